"""The built-in libraries: they are complete, have a reason for each op type, and agree with their origins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mixlist.errors import UsageError
from mixlist.lists import op_catalog, presets
from mixlist.lists.ops_info import load_ops_info
from tests.support.package import data_folder

ROOT = Path(__file__).parents[2]
NAMES = presets.names()
ONNX_SPACE = [name for name in NAMES if presets.find(name).space == "onnx"]
ASCEND = ["ascend910b", "ascend910_93", "ascend910", "ascend310p", "ascend310b", "ascend310", "ascend950"]


def lists(name: str, *ops: str) -> list[str]:
    """Return the lists of op types in a built-in library."""
    library = presets.load(name)
    return [library.lists[op] for op in ops]


def test_all_promised_libraries_exist() -> None:
    promised_names = [
        "onnx",
        *ASCEND,
        "mindspore-o0",
        "mindspore-o1",
        "mindspore-o2",
        "mindspore-o3",
        "mindspore-auto",
        "nnabla-half",
        "tensorflow",
        "pytorch",
    ]
    assert promised_names == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_library_is_an_ordinary_ops_info_file(name: str) -> None:
    preset = presets.find(name)
    library, warnings = load_ops_info(preset.path, strict=True)
    assert warnings == []
    assert library.lists == presets.load(name).lists
    assert (presets.load(name).name, presets.load(name).space) == (name, preset.space)


@pytest.mark.parametrize("name", NAMES)
def test_a_library_has_a_title_and_an_origin_with_a_version(name: str) -> None:
    preset = presets.find(name)
    assert preset.title
    assert any(c.isdigit() for c in preset.origin)


@pytest.mark.parametrize("name", ONNX_SPACE)
def test_every_known_op_type_is_listed_with_a_reason(name: str) -> None:
    entries = json.loads(presets.find(name).path.read_text("utf-8"))
    # A training also has the operators of PyTorch that ONNX lacks: tests/training/test_rounding.py.
    assert {op for op in entries if not op.startswith("aten::")} == op_catalog.onnx_ops()
    assert not [op for op, entry in entries.items() if not entry["reason"].strip()]


@pytest.mark.parametrize("name", ASCEND)
def test_ascend_libraries_have_the_flags_of_the_chips(name: str) -> None:
    facts = json.loads((ROOT / "tools" / "data" / "ascend_flags.json").read_text("utf-8"))["soc"][name]
    counts = Counter(presets.load(name).lists.values())
    assert counts == {"white": len(facts["true"]), "black": len(facts["false"]), "gray": len(facts["absent"])}
    assert all(presets.load(name).lists[op] == "white" for op in facts["true"])
    assert all(presets.load(name).lists[op] == "black" for op in facts["false"])


def test_onnx_has_three_lists() -> None:
    white = ["MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "Attention", "Einsum", "Gather"]
    assert set(lists("onnx", *white)) == {"white"}
    black = ["ReduceSum", "ReduceL1", "ReduceL2", "CumSum", "Range", "Sin", "Cos", "QuantizeLinear", "DequantizeLinear"]
    assert set(lists("onnx", *black, "SoftmaxCrossEntropyLoss")) == {"black"}
    gray = ["Add", "Mul", "Relu", "Reshape", "Concat", "MaxPool", "BatchNormalization", "Cast", "If", "Sigmoid"]
    assert set(lists("onnx", *gray)) == {"gray"}
    bounded = ["Exp", "Softplus", "Log", "Pow", "Reciprocal", "ReduceMean", "Softmax", "LogSoftmax"]
    normalizations = ["LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"]
    assert set(lists("onnx", *bounded, *normalizations)) == {"gray"}


def test_each_mindspore_level_has_its_lists() -> None:
    white = ["Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "PRelu", "Relu"]
    assert set(lists("mindspore-o1", *white)) == {"white"}
    assert set(lists("mindspore-o1", "Add", "Sigmoid", "Softmax", "BatchNormalization", "Reshape")) == {"black"}
    black = ["BatchNormalization", "LayerNormalization", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]
    assert set(lists("mindspore-o2", *black)) == {"black"}
    white_in_o2 = [*white, "Add", "Softmax", "Exp", "ReduceSum", "InstanceNormalization"]
    assert set(lists("mindspore-o2", *white_in_o2)) == {"white"}
    assert set(presets.load("mindspore-o0").lists.values()) == {"black", "gray"}
    assert set(presets.load("mindspore-o3").lists.values()) == {"white", "gray"}
    assert set(lists("mindspore-o3", *white, *black, "Softmax", "Exp")) == {"white"}


def test_mindspore_auto_has_the_lists_of_its_document() -> None:
    assert set(lists("mindspore-auto", "Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "PRelu")) == {"white"}
    black = ["Pow", "Acos", "Exp", "Log", "Reciprocal", "Tan", "Softplus", "LayerNormalization", "BatchNormalization"]
    assert set(lists("mindspore-auto", *black, "Softmax", "ReduceProd", "CumSum", "GroupNormalization")) == {"black"}
    assert set(lists("mindspore-auto", "Add", "Concat", "GridSample", "Relu", "LSTM", "ReduceMean")) == {"gray"}
    assert "--gray-policy promote" in presets.find("mindspore-auto").title


def test_newer_flags_of_the_sources_are_marked() -> None:
    newer = ["GLU", "MaskedScatter", "ScatterNdUpdate", "BesselI1e"]
    for name in ("ascend910b", "ascend910_93"):
        assert set(lists(name, *newer)) == {"white"} and "newer flags" in presets.find(name).origin
        entries = json.loads(presets.find(name).path.read_text("utf-8"))
        assert {op for op, entry in entries.items() if "reason" in entry} == set(newer)
    assert set(lists("ascend910", *newer)) == {"gray"}


def test_the_library_of_the_ascend_950_is_from_source() -> None:
    """Three configurations with explicit flags, one that AddConfig makes, and one that has no flag."""
    assert "from source, not from an installed file" in presets.find("ascend950").title
    assert lists("ascend950", "SGD", "BesselI1e", "Conv2DV2", "MatMulV3") == ["black", "white", "white", "white"]
    assert lists("ascend950", "ScatterElementsV2", "LayerNormV4", "ReduceSum") == ["gray", "gray", "gray"]


def test_nnabla_half_has_white_and_black_op_types() -> None:
    black = ["ReduceSum", "ReduceMean", "ReduceProd", "CumSum", "BatchNormalization", "LayerNormalization", "Softmax"]
    black += ["GlobalAveragePool", "AveragePool"]  # means
    assert set(lists("nnabla-half", *black, "LogSoftmax", "SoftmaxCrossEntropyLoss")) == {"black"}
    assert set(lists("nnabla-half", "Conv", "MatMul", "Add", "Exp", "Relu", "MaxPool", "ReduceMax")) == {"white"}


def test_tensorflow_has_four_lists() -> None:
    assert set(lists("tensorflow", "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM")) == {"white"}
    assert set(lists("tensorflow", "Exp", "Pow", "ReduceSum", "ReduceMean", "SoftmaxCrossEntropyLoss")) == {"black"}
    infer = ["Add", "Mul", "Sub", "Div", "BatchNormalization", "Softmax", "Log", "Sigmoid", "Tanh", "AveragePool"]
    assert set(lists("tensorflow", *infer)) == {"gray"}
    clear = presets.find("tensorflow").clear_ops
    assert clear >= {"Relu", "Reshape", "Transpose", "Concat", "MaxPool", "Max", "Where", "Slice", "If"}
    assert not clear & set(infer)
    assert set(lists("tensorflow", *clear)) == {"gray"}
    assert presets.load("tensorflow").clear_ops == clear
    assert lists("tensorflow", "Resize") == ["black"]  # only nearest resizing is on a list
    assert lists("tensorflow", "CumSum") == ["black"]  # TensorFlow has it on no list, so it stays float32


def test_pytorch_has_three_lists() -> None:
    assert set(lists("pytorch", "Conv", "MatMul", "Gemm", "PRelu", "LSTM", "Attention")) == {"white"}
    black = ["Exp", "Log", "Pow", "Softmax", "LayerNormalization", "GroupNormalization", "ReduceSum", "CumSum"]
    assert set(lists("pytorch", *black, "Resize")) == {"black"}
    assert set(lists("pytorch", "Add", "Mul", "GridSample", "ScatterElements", "BatchNormalization")) == {"gray"}
    assert "--gray-policy promote" in presets.find("pytorch").title


def test_the_error_about_an_unknown_library_has_the_most_similar_name() -> None:
    with pytest.raises(UsageError, match="no built-in library 'acsend910b'") as error:
        presets.load("acsend910b")
    assert "did you mean ascend910b" in str(error.value.hint)


def test_the_tool_writes_the_committed_files(tmp_path: Path) -> None:
    if not (ROOT / "tools" / "make_presets.py").exists():
        pytest.fail("this test runs in a checkout")
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_presets.py"), str(tmp_path)], check=True)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert len(written) == len(NAMES) + 1
    for path in written:
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes(), path


def test_every_file_of_the_folder_is_a_library() -> None:
    files = {path.stem for path in (data_folder("sample_lists") / "presets").iterdir()}
    assert files == set(NAMES)
