"""The op types that exist, and the guess of a library's name space (Rule S5.1)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mixlist.lists.op_catalog import ascend_ops, guess_space, is_known, onnx_domains, onnx_ops
from tests.support.versions import release

ROOT = Path(__file__).parents[2]


def test_the_names_are_those_of_the_installed_packages() -> None:
    import onnx
    import onnx.defs
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    data = json.loads((ROOT / "mixlist" / "lists" / "data" / "onnx_ops.json").read_text("utf-8"))
    schemas = [*onnx.defs.get_all_schemas_with_history(), *get_all_operator_schema()]
    versions = [(release(package.__version__), release(data[package.__name__])) for package in (onnx, onnxruntime)]
    is_older = any(installed < described for installed, described in versions)
    is_newer = any(installed > described for installed, described in versions)
    for domain, names in onnx_domains().items():
        installed_names = {schema.name for schema in schemas if schema.domain == domain}
        # A newer version may add op types. It never loses one that had a schema.
        assert names <= installed_names or is_older
        assert names >= installed_names or is_newer


def test_the_tool_writes_the_committed_files(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    data = json.loads((ROOT / "mixlist" / "lists" / "data" / "onnx_ops.json").read_text("utf-8"))
    if (data["onnx"], data["onnxruntime"]) != (onnx.__version__, onnxruntime.__version__):
        pytest.skip(f"the files describe onnx {data['onnx']} and onnxruntime {data['onnxruntime']}")
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_names.py"), str(tmp_path)], check=True)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert len(written) == 3
    for path in written:
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes(), path


def test_a_name_is_known_in_its_domain_and_name_space() -> None:
    assert {"Conv", "Upsample", "TreeEnsemble", "FusedMatMul", "SimplifiedLayerNormalization"} <= onnx_ops()
    assert {"Conv2D", "BatchMatMulV2", "MatMul"} <= ascend_ops()
    assert is_known("com.microsoft::FusedMatMul", "onnx")
    assert is_known("ai.onnx::Conv", "onnx")
    assert not is_known("com.microsoft::Conv", "onnx")
    assert not is_known("Conv", "ascend")
    assert not is_known("npu::Conv2D", "ascend")


@pytest.mark.parametrize(
    ("names", "space", "is_uncertain"),
    [
        (["Conv", "Add"], "onnx", False),
        (["Conv2D", "Add"], "ascend", False),
        (["Add", "Relu"], "onnx", True),
        (["Conv", "Conv2D"], "onnx", True),
        (["Conv2D", "Conv3D", "Conv"], "ascend", True),
        (["FancyOp"], "onnx", True),
        ([], "onnx", False),
    ],
)
def test_the_space_with_more_names_is_guessed(names: list[str], space: str, is_uncertain: bool) -> None:
    """Rule S5.1: A library has one name space."""
    guess, reason = guess_space(names)
    assert guess == space
    assert bool(reason) == is_uncertain
