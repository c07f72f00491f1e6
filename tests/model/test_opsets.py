"""The versions of the standard domain, which has two spellings: "" and "ai.onnx"."""

from __future__ import annotations

import pytest

from mixlist.model.protos import standard_opset, supports_where
from tests.support.builders import model

NODE = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize(("version", "has_where"), [(8, False), (9, True), (13, True)])
def test_both_spellings_of_the_standard_domain_count(domain: str, version: int, has_where: bool) -> None:
    proto = model(
        f'<ir_version: 8, opset_import: ["{domain}" : {version}]>\n{NODE}', check=False
    )  # the checker knows both spellings from onnx 1.23 on
    assert standard_opset(proto) == version
    assert supports_where(proto) == has_where
