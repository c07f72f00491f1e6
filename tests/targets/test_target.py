"""The tables of targets: their form, the tool that writes the one of TensorRT, and the faults of a file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from jsonschema import Draft202012Validator

from mixlist.errors import ListError, UsageError
from mixlist.targets.providers import DATA
from mixlist.targets.target import TARGETS, load_target
from tests.support.package import data_folder

SCHEMA = json.loads((data_folder("schemas") / "target.json").read_text("utf-8"))
TOOLS = Path(__file__).parents[2] / "tools"
TABLE = {
    "format": "mixlist.target/1",
    "name": "npu",
    "source": "NPU 3.1, list of operators",
    "otherwise": {"float16": "cast", "bfloat16": "fallback"},
    "kernels": {"": {"MatMul": [[1, 22, {"T": "float16 float"}]], "Sin": [[1, 22, {"*": "float"}]]}},
}
OPERATORS_MD = """# Supported ONNX Operators

TensorRT 10.15 supports operators in the inclusive range of opset 9 to opset 24. See the chart.

TensorRT supports the following ONNX data types: DOUBLE, FLOAT32, FLOAT16, INT64, and BOOL

| Operator | Supported | Supported Types | Restrictions |
|----------|-----------|-----------------|--------------|
| Abs      | Y         | FP32, FP16, INT64 |
| Bernoulli | N        |
| Selu     | Y         | FP32, FP16, | an `axis`, FP8 |
| Xor      | Y         | BOOL
"""


def write(folder: Path, **changes: object) -> str:
    path = folder / "npu.json"
    path.write_text(json.dumps({**TABLE, **changes}))
    return str(path)


@pytest.mark.parametrize("name", TARGETS)
def test_each_table_has_the_form_and_a_source(name: str) -> None:
    table = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    Draft202012Validator(SCHEMA).validate(table)
    assert table["name"] == name and any(character.isdigit() for character in table["source"])
    assert load_target(name).name == name


def test_the_tool_reads_the_list_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    import make_tensorrt

    table = make_tensorrt.make(OPERATORS_MD)
    Draft202012Validator(SCHEMA).validate(json.loads(make_tensorrt.text(table)))
    assert table["source"].startswith("TensorRT 10.15") and "up to 11.5" in table["source"]
    assert table["opsets"] == [9, 25] and "Swish (11.0)" in table["note"]
    assert table["tensor_types"] == "double float float16 int64 bool"
    assert table["kernels"] == {
        "": {
            "Abs": [[1, 25, {"*": "float float16 int64"}]],
            "DFT": [[1, 25, {"*": "float"}]],
            "Selu": [[1, 25, {"*": "float float16"}]],
            "Swish": [[1, 25, {"*": "float"}]],
            "Xor": [[1, 25, {"*": "bool"}]],
        }
    }
    # A list that has the later changes itself is taken as it is.
    newer = (
        OPERATORS_MD.replace("10.15", "11.6").replace("opset 24", "opset 25") + "| DFT | Y | FP32\n| Swish | Y | FP16\n"
    )
    table = make_tensorrt.make(newer)
    assert table["source"] == "TensorRT 11.6, docs/operators.md of onnx-tensorrt" and "Swish" not in table["note"]
    assert table["kernels"][""]["Swish"] == [[1, 25, {"*": "float16"}]]
    with pytest.raises(SystemExit, match=r"name no version"):
        make_tensorrt.make("another text")
    for name in ("make_tensorrt", "make_kernels"):
        sys.modules.pop(name)


WEBGPU_SOURCES = {
    "provider.cc": """
BuildKernelCreateInfo<class ONNX_OPERATOR_KERNEL_CLASS_NAME(kWebGpuExecutionProvider, kOnnxDomain, 13, Tanh)>,
RegisterBinaryOp(kernel_registry, "Add", CreateBinaryOpKernel<Add>, numbers, {{7, 12}, {13, std::nullopt}});
const auto& numbers = NumberTypes();
Register(CreateRangeKernelInfo<float>());
Register(CreateCastKernelInfo(9, 12, enable_int64));
""",
    "tanh.cc": """
ONNX_OPERATOR_KERNEL_EX(Tanh, kOnnxDomain, 13, kWebGpuExecutionProvider,
  (*KernelDefBuilder::Create()).TypeConstraint("T", NumberTypes()), Tanh);
std::vector<MLDataType>& NumberTypes() {
  return BuildKernelDefConstraints<float, MLFloat16, int32_t>();
}
KernelCreateInfo CreateRangeKernelInfo() {
  return {KernelDefBuilder().SetName("Range").SetDomain(kOnnxDomain).SinceVersion(11)
    .TypeConstraint("T", DataTypeImpl::GetTensorType<T>()).Build(), Create};
}
KernelCreateInfo CreateCastKernelInfo(int start, int end, bool enable_int64) {
  std::vector<MLDataType> types = NumberTypes();
  return {KernelDefBuilder().SetName("Cast").SetDomain(kOnnxDomain).SinceVersion(start, end)
    .TypeConstraint("T1", types).TypeConstraint("T2", AllTensorTypes()).Build(), Create};
}
""",
}
OPERATOR_KERNELS = """
## Operators implemented by CUDAExecutionProvider

|Sin|*in* X:**T**|7+|**T** = tensor(double)|

## Operators implemented by DmlExecutionProvider

| Op Name | Parameters | OpSet Version | Types Supported |
|**Operator Domain:** *ai.onnx*||||
|Abs|*in* X:**T**|13+|**T** = tensor(float), tensor(float16), tensor(int8)|
|||[6, 12]|**T** = tensor(float)|
|**Operator Domain:** *com.microsoft*||||
|Gelu|*in* X:**T**|1+|**T** = tensor(float16)|
"""


@pytest.mark.skipif(shutil.which("cpp") is None, reason="needs the C preprocessor cpp")
def test_the_tool_reads_the_registrations_of_webgpu_and_directml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way in which ONNX Runtime's source registers a kernel, and the loss of an operator."""
    monkeypatch.syspath_prepend(TOOLS)
    import make_source_kernels

    folder = tmp_path / "onnxruntime/core/providers/webgpu"
    folder.mkdir(parents=True)
    for name, source in WEBGPU_SOURCES.items():
        (folder / name).write_text(source)
    (tmp_path / "VERSION_NUMBER").write_text("1.99.0\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/OperatorKernels.md").write_text(OPERATOR_KERNELS)
    command = ["make_source_kernels.py", str(tmp_path), "abc", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    make_source_kernels.main()
    webgpu, dml = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("webgpu", "dml"))
    for table in (webgpu, dml):
        Draft202012Validator(SCHEMA).validate(table)
        assert "ONNX Runtime 1.99.0, commit abc" in table["source"] and table["note"]
    both = "float16 float"
    assert webgpu["kernels"] == {
        "": {
            "Add": [[13, None, {"T": both}], [7, 12, {"T": both}]],
            "Cast": [[9, 12, {"T1": both, "T2": "float16 bfloat16 float double"}]],
            "Range": [[11, None, {"T": "float"}]],
            "Tanh": [[13, None, {"T": both}]],
        }
    }
    assert dml["kernels"] == {
        "": {"Abs": [[13, None, {"T": both}], [6, 12, {"T": "float"}]]},
        "com.microsoft": {"Gelu": [[1, None, {"T": "float16"}]]},
    }
    (folder / "provider.cc").write_text(WEBGPU_SOURCES["provider.cc"].replace("RegisterBinaryOp", "NewForm"))
    with pytest.raises(SystemExit, match=r"webgpu has no kernels any more for \['Add'\]"):
        make_source_kernels.main()
    for name in ("make_source_kernels", "make_kernels"):
        sys.modules.pop(name)


# From the tables of ONNX Runtime 1.30.
@pytest.mark.parametrize(
    ("name", "op_type", "dtype", "expected"),
    [
        ("webgpu", "MatMul", "float16", True),
        ("webgpu", "Mul", "float16", True),
        ("webgpu", "Mul", "bfloat16", False),
        ("webgpu", "GRU", "float", True),
        ("webgpu", "GRU", "float16", False),
        ("webgpu", "NonZero", "float16", False),
        ("dml", "GRU", "float16", True),
        ("dml", "MatMul", "bfloat16", False),
        ("dml", "Loop", "float16", False),
    ],
)
def test_the_operators_of_webgpu_and_directml(name: str, op_type: str, dtype: str, expected: bool) -> None:
    """Rule S13.2"""
    assert load_target(name).runs("", op_type, 20, dtype, (0,)) == expected


# From docs/operators.md of onnx-tensorrt, TensorRT 10.15, and the release notes of TensorRT 11.
@pytest.mark.parametrize(
    ("op_type", "dtype", "expected"),
    [
        ("MatMul", "float16", True),
        ("MatMul", "bfloat16", True),
        ("GridSample", "float16", True),
        ("GridSample", "bfloat16", False),
        ("STFT", "float", True),
        ("STFT", "float16", False),
        ("Clip", "int64", False),
        ("Relu", "int64", True),
        ("Bernoulli", "float", False),
        ("DFT", "float", True),
        ("DFT", "float16", False),
    ],
)
def test_the_operators_of_tensorrt(op_type: str, dtype: str, expected: bool) -> None:
    """Rule S13.2: an operator of the table has a kernel in the types of its row, and no other one has."""
    assert load_target("tensorrt").runs("", op_type, 20, dtype, ()) == expected


def test_a_file_is_a_target(tmp_path: Path) -> None:
    path = write(tmp_path, opsets=[9, 22], strongly_typed=True, tensor_types="float float16")
    Draft202012Validator(SCHEMA).validate(json.loads(Path(path).read_text()))
    target = load_target(path)
    assert (target.name, target.source, target.opsets) == ("npu", "NPU 3.1, list of operators", (9, 22))
    assert target.strongly_typed and target.tensor_types == {"float", "float16"}
    assert target.runs("", "MatMul", 20, "float16", (0,)) and not target.runs("", "Sin", 20, "float16", (0,))


def test_a_file_can_limit_attributes(tmp_path: Path) -> None:
    """Rule S13.2: an attribute that a node lacks has its default."""
    path = write(tmp_path, kernels={"": {"Resize": [[1, 22, {"T1": "float16 float"}, {"mode": "linear cubic"}]]}})
    Draft202012Validator(SCHEMA).validate(json.loads(Path(path).read_text()))
    runs = [
        load_target(path).runs("", "Resize", 19, "float16", (0,), texts) for texts in ({"mode": "linear"}, {}, None)
    ]
    assert runs == [True, False, True]  # the default is nearest


def test_what_happens_to_a_node_without_a_kernel(tmp_path: Path) -> None:
    """Rule S13.3"""
    target = load_target(write(tmp_path))
    assert target.find_otherwise("", "Sin", 20, "float16", (0,)) == "cast"
    assert target.find_otherwise("", "Cos", 20, "float16", (0,)) == "refusal"  # no float32 kernel either
    # ONNX Runtime's CPU provider has bfloat16 kernels of Reshape, and none of Sin.
    assert target.find_otherwise("", "Reshape", 20, "bfloat16", (0,)) == "fallback"
    assert target.find_otherwise("", "Sin", 20, "bfloat16", (0,)) == "refusal"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, r"npu\.json:1:1: .*mixlist\.target/1"),
        ({"name": 3}, r'npu\.json:1:\d+: "name" must be a text'),
        ({"kernels": []}, r'"kernels" must be an object'),
        ({"otherwise": {"float16": "crash"}}, r'"cast", "fallback" or "refusal"'),
        ({"otherwise": {"float64": "cast"}}, r"must map float16 and bfloat16"),
        ({"strongly_typed": "yes"}, r'"strongly_typed" must be true or false'),
        ({"strongly-typed": True}, r"npu\.json:1:\d+: a table has no key 'strongly-typed'.*strongly_typed"),
        ({"opsets": [9]}, r'"opsets" must be'),
        ({"tensor_types": ["float"]}, r'"tensor_types" must be'),
        ({"kernels": {"": {"MatMul": [[1, {"T": "float"}]]}}}, r"a kernel must be"),
        ({"kernels": {"": {"MatMul": [["1", None, {"T": "float"}]]}}}, r"a kernel must be"),
        ({"kernels": {"": {"MatMul": [[1, None, {"T": "fp16"}]]}}}, r"there is no type 'fp16': write float16"),
        ({"tensor_types": "float32"}, r"there is no type 'float32'"),
        ({"kernels": {"": {"MatMul": [[1, 22, {"T": "float"}, {"mode": ["a"]}]]}}}, r"a kernel must be"),
        ({"kernels": {"": {"MatMul": {}}}}, r"must be a list"),
        ({"kernels": {"": {"Sigmod": []}}}, r"npu\.json:1:\d+: there is no operator 'Sigmod': did you mean Sigmoid\?"),
        ({"kernels": {"com.microsoft": {"biasgelu": []}}}, r"no operator 'biasgelu': did you mean BiasGelu\?"),
        ({"kernels": {"": []}}, r"a domain must map"),
    ],
)
def test_a_fault_of_a_file_has_its_place(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ListError, match=message):
        load_target(write(tmp_path, **changes))


def test_an_unknown_target_names_the_others() -> None:
    with pytest.raises(UsageError, match="no target tensorr ") as caught:
        load_target("tensorr")
    assert "cpu, cuda, tensorrt" in str(caught.value.hint)


# MatMul and Relu have float32 kernels only, Concat has one for each type.
@pytest.mark.parametrize("op", ["MatMul (x, x)", "Relu (x)", "Concat <axis = 0> (x, x)", "Transpose (x)", "Erf (x)"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_the_outcome_on_a_cpu_is_that_of_onnx_runtime(op: str, low: str) -> None:
    """Rule S13.3: the model loads unless the outcome is a refusal."""
    head = '<ir_version: 10, opset_import: ["": 20]>'
    model = onnx.parser.parse_model(f"{head} g ({low}[2,2] x) => ({low}[N,2] y) {{ y = {op} }}")
    target, subject = load_target("cpu"), ("", op.split()[0], 20, low, (0,))
    is_refused = not target.runs(*subject) and target.find_otherwise(*subject) == "refusal"
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        assert is_refused
    else:
        assert not is_refused
