"""A misspelled op type in a modify_mixlist file: legal to read, and an error in ``validate`` (Rule S2.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

import mixlist
from tests.support.builders import model


def severities(path: Path, op: str, **options: object) -> list[tuple[str, str]]:
    path.write_text(f'{{"black-list": {{"to-add": ["{op}"]}}}}')
    findings = mixlist.validate(path, **options).findings  # type: ignore[arg-type]
    return [(finding.code, finding.severity) for finding in findings if finding.code == "ML108"]


@pytest.mark.parametrize(
    ("op", "severity"),
    [
        ("SoftmxV2", "error"),
        ("softmaxV2", "error"),
        ("AcmeDetectorHead", "warning"),  # no name is near
        ("my.domain::SoftmxV2", "warning"),
        ("BatchNormV3", "warning"),  # another Ascend operator, which this library lacks
    ],
)
def test_a_near_name_makes_an_unknown_one_an_error(tmp_path: Path, op: str, severity: str) -> None:
    """Rule S2.5: An unknown op type starts gray."""
    assert severities(tmp_path / "m.json", op, ops_info="ascend310p") == [("ML108", severity)]
    without_library = [("ML108", "warning")] if severity == "error" else []
    assert severities(tmp_path / "m.json", op) == without_library
    assert mixlist.load_policy("ascend310p", mixlist=tmp_path / "m.json").lists.list_of(op) == "black"


def test_a_name_of_the_model_is_not_misspelled(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { y = my.Softmx (x) }"
    source = model(text.replace("my.Softmx (x)", "Relu(x)"))
    source.graph.node[0].op_type, source.graph.node[0].domain = "Softmx", "my"
    source.opset_import.add(domain="my", version=1)
    assert severities(tmp_path / "m.json", "Softmx", ops_info="onnx", model=source) == [("ML108", "warning")]
