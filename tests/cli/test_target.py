"""``--target`` of ``resolve`` and ``apply``: nodes with and without a kernel, and the model that a target accepts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

# The list of TensorRT has GridSample and Mish in float32 and float16, and not in bfloat16.
GRAPH = """<ir_version: 10, opset_import: ["": 22]>
g (float[1,2,4,4] x, float[1,3,3,2] points, float[4,4] w) => (float[1,2,3,3] y, float[1,2,4,4] z) {
    [product] a = MatMul (x, w)
    [sample] y = GridSample (a, points)
    [mish] m = Mish (a)
    [relu] z = Relu (m)
}"""
# The first MatMul is a quantized unit, the other one is none.
QUANTIZED = """<ir_version: 10, opset_import: ["": 20]>
g (int8[4,4] q, float[4,4] x) => (int8[4,4] y, float[4,4] z) <float s = {0.5}, int8 z0 = {0}> {
    [dequantize] a = DequantizeLinear (q, s)
    [inner] b = MatMul (a, a)
    [quantize] y = QuantizeLinear (b, s, z0)
    [outer] z = MatMul (x, x)
}"""
LISTS = ("--ops-info", "onnx", "--gray-policy", "promote")
SOFTMAX_BLACK = ("--ops-info", "pytorch")


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a model."""

    def save_model(text: str) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return save_model


def types_of(path: Path) -> dict[str, str]:
    """Return the type of the first output of each node of the main graph, by onnx's own inference."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    infos = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    types = {info.name: onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type) for info in infos}
    return {node.name: types[node.output[0]] for node in model.graph.node}


def test_json_and_csv_have_each_low_node(run, model_path: Path) -> None:
    """Rule S13.2"""
    arguments = ("resolve", model_path, *SOFTMAX_BLACK)
    result = json.loads(run(*arguments, "--target", "tensorrt", "--format", "json").out)
    assert result["target"]["name"] == "tensorrt" and "TensorRT" in result["target"]["source"]
    assert [(n["name"], n["kernel"], n["otherwise"]) for n in result["nodes"]] == [
        ("first", True, None),
        ("second", True, None),
    ]
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--target", "cpu", "--format", "csv").out)))
    assert [(row["name"], row["kernel"], row["otherwise"]) for row in rows] == [
        ("first", "false", "cast"),
        ("second", "false", "cast"),
    ]


def test_text_has_each_low_node_with_those_without_a_kernel_first(run, tmp_path: Path, model_path: Path) -> None:
    table = {"format": "mixlist.target/1", "name": "npu", "source": "NPU 3.1", "otherwise": {"float16": "cast"}}
    kernels = {"": {"MatMul": [[1, 22, {"T": "float16 float"}]], "Relu": [[1, 22, {"T": "float"}]]}}
    path = tmp_path / "npu.json"
    path.write_text(json.dumps({**table, "note": "no shapes", "kernels": kernels}))
    completed = run("resolve", model_path, *SOFTMAX_BLACK, "--target", path)
    assert "the kernels of npu are those of NPU 3.1\nnote: no shapes\n" in completed.err
    lines = [line.split() for line in completed.out.splitlines()]
    assert lines[2:4] == [["no", "cast", "1", "Relu", "1"], ["yes", "1", "MatMul", "1"]]
    assert [line[:4] for line in lines[-2:]] == [["second", "Relu", "no", "cast"], ["first", "MatMul", "yes", "white"]]


def test_a_model_without_low_nodes_says_so(run, model_path: Path) -> None:
    text = run("resolve", model_path, "--target", "tensorrt", "--precision-mode-v2", "origin").out
    assert text == "no node is float16\n"


def test_an_unknown_target_is_refused(run, model_path: Path, tmp_path: Path) -> None:
    for command in (("resolve", model_path), ("apply", model_path, "-o", tmp_path / "out.onnx")):
        completed = run(*command, "--target", "tensor-rt")
        assert completed.status == 2
        assert "no target tensor-rt" in completed.err and "cpu, cuda, tensorrt" in completed.err
    assert not (tmp_path / "out.onnx").exists()


def test_apply_keeps_nodes_without_a_kernel_as_authored(run, save: Callable[[str], Path], tmp_path: Path) -> None:
    """In bfloat16 the parser has neither GridSample nor Mish."""
    out = tmp_path / "out.onnx"
    arguments = ("apply", save(GRAPH), "-o", out, *LISTS, "--protect", "none", "--target", "tensorrt")
    completed = run(*arguments, "--precision-mode-v2", "mixed_bfloat16", "--report", "-")
    assert completed.status == 0
    report = json.loads(completed.out)["target"]
    assert set(report["kept"]) >= {"./mish"} and report["missing_operators"] == [] and report["broken_rules"] == []
    types = types_of(out)
    assert (types["product"], types["mish"], types["sample"]) == ("BFLOAT16", "FLOAT", "FLOAT")
    assert "the model keeps the type rules of tensorrt" in completed.err
    # The same target and policy give the same file without a warning (Rule S7.9).
    options = (*LISTS, "--protect", "none", "--target", "tensorrt", "--precision-mode-v2", "mixed_bfloat16")
    again = run("apply", out, "-o", tmp_path / "again.onnx", *options)
    assert "warning" not in again.err and (tmp_path / "again.onnx").read_bytes() == out.read_bytes()
    assert run(*arguments, "--force", "--precision-mode-v2", "mixed_float16").status == 0
    assert types_of(out)["mish"] == "FLOAT16"


def test_a_finished_file_is_checked_by_the_type_rules(run, save: Callable[[str], Path], tmp_path: Path) -> None:
    """``convert`` says what ``apply`` says, and ``resolve`` under ``origin`` says it of a file."""
    out = tmp_path / "out.onnx"
    accepted, finished = "the model keeps the type rules of tensorrt\n", ("--precision-mode-v2", "origin")
    converted = run("convert", save(GRAPH), "-o", out, "--random", 1, "--jobs", 1, "--target", "tensorrt")
    assert converted.status == 0 and accepted in converted.err
    checked = run("resolve", out, "--target", "tensorrt", *finished)
    assert checked.status == 0 and accepted in checked.err and "ML501" not in checked.err
    text = '<ir_version: 10, opset_import: ["": 20]> g (float16[2] x, float[2] e) => (float16[2] y) { y = Pow (x, e) }'
    broken = run("resolve", save(text), "--target", "tensorrt", *finished)
    assert "the model breaks 1 type rule of tensorrt:\n" in broken.err
    lacking = save(GRAPH.replace("Relu (m)", "Det (m)").replace("float[1,2,4,4] z", "float[1,2] z"))
    refused = run("convert", lacking, "-o", out, "--force", "--random", 1, "--jobs", 1, "--target", "tensorrt")
    assert refused.status == 1 and "lacks 1 operator of the model" in refused.err


def test_apply_keeps_quantized_units_whole(run, save: Callable[[str], Path], tmp_path: Path) -> None:
    """Also with ``--protect none``, and without a warning about the unit (ML510)."""
    model, out = save(QUANTIZED), tmp_path / "out.onnx"
    completed = run("apply", model, "-o", out, *LISTS, "--protect", "none", "--target", "tensorrt")
    assert completed.status == 0 and "ML510" not in completed.err
    types = types_of(out)
    assert (types["inner"], types["outer"]) == ("FLOAT", "FLOAT16")
    assert [node.op_type for node in onnx.load(out).graph.node if "a" in node.input] == ["MatMul"]


def test_apply_writes_the_file_and_names_the_operators_that_the_parser_lacks(
    run, save: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = save(GRAPH.replace("Relu (m)", "Bernoulli (m)")), tmp_path / "out.onnx"
    completed = run("apply", model, "-o", out, *LISTS, "--target", "tensorrt")
    assert completed.status == 1 and out.exists()
    assert "lacks 1 operator of the model:\n  Bernoulli (1 node, it is relu)\n" in completed.err
    assert run("apply", model, "-o", tmp_path / "other.onnx", *LISTS).status == 0


def test_a_node_rule_that_breaks_a_type_rule_is_named(run, save: Callable[[str], Path], tmp_path: Path) -> None:
    model = save(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] x, float[2] e) => (float[2] y) { [p] y = Pow (x, e) }'
    )
    rules, out = tmp_path / "rules.txt", tmp_path / "out.onnx"
    rules.write_text("p::InputDtype:float16,float32,OutputDtype:float16\n")
    completed = run("apply", model, "-o", out, "--customize-dtypes", rules, "--target", "tensorrt", "--report", "-")
    assert completed.status == 1 and out.exists()
    (sentence,) = json.loads(completed.out)["target"]["broken_rules"]
    assert sentence == "p (Pow) reads float16 and float32, and tensorrt demands one float type"
    assert sentence in completed.err


def test_a_low_node_without_a_kernel_is_refused_where_it_was_authored_low(
    run, save: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rule S13.3: ONNX Runtime's CPU provider loads no bfloat16 MatMul, and the file is not changed for it."""
    model = save(
        '<ir_version: 10, opset_import: ["": 20]> g (bfloat16[2,2] x) => (bfloat16[2,2] y) { [p] y = MatMul (x, x) }'
    )
    completed = run(
        "apply", model, "-o", tmp_path / "out.onnx", "--precision-mode-v2", "mixed_bfloat16", "--target", "cpu"
    )
    assert completed.status == 1
    assert "cpu refuses low-precision nodes: MatMul 1" in completed.err


def test_explain_says_what_the_target_does_with_the_node(run, save: Callable[[str], Path], tmp_path: Path) -> None:
    """Rules S13.2, S13.3"""
    path = save(GRAPH)
    options = (*LISTS, "--precision-mode-v2", "mixed_bfloat16", "--target", "tensorrt", "--explain")

    def explain(node: str, *more: object) -> str:
        completed = run("resolve", path, *more, *options, node)
        assert completed.status == 0
        assert "the kernels of tensorrt are those of TensorRT" in completed.err
        return completed.out

    assert explain("mish").endswith(
        "    tensorrt has no bfloat16 kernel for it: tensorrt does not load the model; apply --target keeps the node as"
        " authored (S13.3).\n"
    )
    assert explain("product").endswith("    tensorrt has a bfloat16 kernel for it (S13.2).\n")
    high = explain("product", "--keep-dtype", write_text(tmp_path / "keep.cfg", "product\n"))
    assert high.endswith("    It is not low precision, so tensorrt needs no low-precision kernel for it.\n")
    content = json.loads(explain("mish", "--format", "json"))
    assert content["format"] == "mixlist.explain/1" and content["target"]["name"] == "tensorrt"
    assert [(n["name"], n["kernel"], n["otherwise"]) for n in content["chain"]] == [
        ("mish", False, "refusal"),
        ("product", True, None),
    ]
    rows = list(csv.DictReader(io.StringIO(explain("mish", "--format", "csv"))))
    assert [(row["name"], row["kernel"], row["otherwise"]) for row in rows] == [
        ("mish", "false", "refusal"),
        ("product", "true", ""),
    ]


def write_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
