"""``mixlist resolve``: the formats, ``--explain`` and ``--provider``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import onnx
import pytest

from mixlist.decide import Decision
from mixlist.files.package_data import data_folder
from mixlist.show.resolve_document import chain_text, resolve_document
from tests.support.package import write_document

DIGITS = data_folder("demo_data") / "digits.onnx"
LISTS = ("--ops-info", "pytorch")  # MatMul is white, Relu gray, and Softmax black


def test_json_has_each_node_with_its_list_and_rule(run, model_path: Path) -> None:
    completed = run("resolve", model_path, *LISTS, "--format", "json")
    assert (completed.status, completed.err) == (0, "")
    result = json.loads(completed.out)
    assert list(result) == ["format", "model", "precision", "gray_policy", "op_names", "nodes", "counts"]
    assert result["format"] == "mixlist.resolve/1"
    assert result["model"] == str(model_path)
    by_name = {node["name"]: node for node in result["nodes"]}
    assert {name: (n["list"], n["precision"], n["rule"]) for name, n in by_name.items()} == {
        "first": ("white", "float16", "white"),
        "second": ("gray", "float16", "follow"),
        "third": ("black", "float32", "black"),
    }
    assert by_name["second"]["follows"] == ["first", "first"]
    assert result["counts"] == {"float16": 2, "float32": 1}


def test_text_has_a_summary_and_first_the_nodes_that_stay_high(run, model_path: Path) -> None:
    lines = [line.split() for line in run("resolve", model_path, *LISTS).out.splitlines()]
    assert lines[0] == ["list", "precision", "rule", "nodes", "operators"]
    assert lines[2:5] == [
        ["black", "float32", "black", "1", "Softmax", "1"],
        ["gray", "float16", "follow", "1", "Relu", "1"],
        ["white", "float16", "white", "1", "MatMul", "1"],
    ]
    assert lines[6] == ["3", "nodes:", "2", "float16,", "1", "float32"]
    assert lines[8] == ["node", "op", "list", "precision", "rule", "reason"]
    assert [line[0] for line in lines[10:]] == ["third", "first", "second"]
    kept = run("resolve", model_path, *LISTS, "--keep-dtype", "-", stdin="second\n")
    lines = [line.split() for line in kept.out.splitlines()]
    assert [line[1:3] for line in lines[2:5]] == [["float32", "black"], ["float32", "node-rule"], ["float16", "white"]]
    assert [line[0] for line in lines[10:]] == ["second", "third", "first"]


def test_csv_has_every_node(run, model_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("resolve", model_path, "--format", "csv").out)))
    assert [row["name"] for row in rows] == ["first", "second", "third"]
    assert rows[0]["outputs"] == "a:float16"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--op", "Softmax"], ["third"]),
        (["--op", "Softmax", "--op", "Relu"], ["second", "third"]),
        (["--op", "Softmax", "--list", "white"], []),
        (["--list", "gray"], ["second"]),
        (["--precision", "float32"], ["third"]),
        (["--rule", "follow"], ["second"]),
        (["--rule", "S4.4"], ["first"]),
        (["--scope", "t"], ["third"]),
        (["--scope", "*d"], ["second", "third"]),
    ],
)
def test_filters_choose_the_nodes_of_every_format(
    run, model_path: Path, filters: list[str], expected: list[str]
) -> None:
    arguments = ("resolve", model_path, *LISTS, *filters)
    result = json.loads(run(*arguments, "--format", "json").out)
    assert [node["name"] for node in result["nodes"]] == expected
    rows = csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").out))
    assert [row["name"] for row in rows] == expected
    text = run(*arguments).out
    assert [name for name in ("first", "second", "third") if f"\n{name} " in text] == expected
    assert ("no node matches; the model has 3 nodes: " in text) == (not expected)


def test_an_op_type_that_no_node_has_is_named(run, model_path: Path) -> None:
    result = run("resolve", model_path, "--op", "matmul", "--op", "Relu", "--op", "Zzz")
    assert "no node is a matmul: did you mean MatMul?\nno node is a Zzz\n" in result.err
    assert "Relu" not in result.err


def test_text_has_fifty_nodes_unless_all_are_asked_for(run, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    nodes = [onnx.helper.make_node("MatMul", ["x", "x"], [f"y{i}"], name=f"n{i}") for i in range(60)]
    for node in nodes[::2]:
        node.op_type = "Gemm"  # nodes with one operator and reason have one row
    values = [onnx.helper.make_tensor_value_info(name, 1, [2, 2]) for name in ("x", "y59")]
    graph = onnx.helper.make_graph(nodes, "chain", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    text = run("resolve", path).out
    assert text.count("\nn") == 51  # 50 nodes and the header of the table
    assert text.endswith("  ... and 10 more (--all shows every node)\n")
    assert run("resolve", path, "--all").out.count("\nn") == 61
    for node in graph.node:
        node.op_type = "MatMul"
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    assert "\nn0 and 59 more  MatMul" in run("resolve", path).out
    assert run("resolve", path, "--op", "MatMul", "--all").out.count("\nn") == 61


def test_the_summary_has_all_operators(run, tmp_path: Path) -> None:
    names = ("Relu", "Abs", "Neg", "Tanh", "Sigmoid", "Floor", "Ceil", "Round")
    nodes = [onnx.helper.make_node(name, ["x"], [f"y{at}"]) for at, name in enumerate(names)]
    values = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", *(f"y{at}" for at in range(8)))]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    summary = run("resolve", tmp_path / "m.onnx", "--precision-mode-v2", "fp16").out.split("8 nodes: ")[0]
    assert all(f"{name} 1" in summary for name in names) and "more" not in summary


def test_explain_follows_the_chain_to_the_deciding_node(run, model_path: Path) -> None:
    completed = run("resolve", model_path, "--explain", "second")
    assert completed.status == 0
    assert completed.out.startswith("second (Relu) becomes float16.\n")
    assert "    It follows first:\nfirst (MatMul) becomes float16.\n" in completed.out
    result = json.loads(run("resolve", model_path, "--explain", "second", "--format", "json").out)
    assert result["format"] == "mixlist.explain/1"
    rows = csv.DictReader(io.StringIO(run("resolve", model_path, "--explain", "second", "--format", "csv").out))
    assert [(row["name"], row["reason"]) for row in rows] == [
        (node["name"], node["reason"]) for node in result["chain"]
    ]
    assert [node["name"] for node in result["chain"]] == ["second", "first"]


def test_explain_names_the_line_of_the_list(run, model_path: Path, tmp_path: Path) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text('{\n  "black-list": {"to-add": ["Relu"]}\n}\n')
    completed = run("resolve", model_path, "--mixlist", modify, "--explain", "second")
    assert "second (Relu) stays float32." in completed.out
    assert f"{modify}:2:29" in completed.out


def test_explain_hints_at_a_similar_name_for_an_unknown_node(run, model_path: Path) -> None:
    completed = run("resolve", model_path, "--explain", "secnd")
    assert completed.status == 2
    assert "second" in completed.err
    assert (
        "hint: Softmax is an op type; its nodes are third\n" in run("resolve", model_path, "--explain", "Softmax").err
    )


def test_provider_cpu_lists_low_nodes_without_kernel(run, model_path: Path) -> None:
    result = json.loads(run("resolve", model_path, "--target", "cpu", "--format", "json").out)
    all_nodes = json.loads(run("resolve", model_path, "--format", "json").out)
    named_nodes = [node["name"] for node in result["nodes"]]
    assert set(named_nodes) <= {node["name"] for node in all_nodes["nodes"] if node["precision"] == "float16"}
    assert sum(result["counts"].values()) == len(named_nodes)


def test_a_provider_with_all_kernels_says_so(run, model_path: Path) -> None:
    text = run("resolve", model_path, "--target", "cuda").out
    assert text == "3 of 3 float16 nodes have a kernel of cuda\n"


def test_provider_cuda_works_without_a_gpu(run, model_path: Path) -> None:
    completed = run(
        "resolve", model_path, "--target", "cuda", "--precision-mode-v2", "mixed_bfloat16", "--format", "json"
    )
    assert completed.status == 0
    assert "kernels of cuda are those of onnxruntime-gpu" in completed.err
    all_nodes = json.loads(run("resolve", model_path, "--precision-mode-v2", "mixed_bfloat16", "--format", "json").out)
    low_nodes = {node["name"] for node in all_nodes["nodes"] if node["precision"] == "bfloat16"}
    assert {node["name"] for node in json.loads(completed.out)["nodes"]} <= low_nodes


def test_long_names_are_not_cut_in_a_pipe() -> None:
    name = "/encoder/" + "very_long_layer_name/" * 20 + "MatMul"
    stream = io.StringIO()
    _write_nodes(name, stream)
    assert name in stream.getvalue()


def test_long_names_are_whole_on_a_terminal(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    name = "".join(f"/block{at}" for at in range(20))
    stream = Terminal()
    _write_nodes(name, stream)
    assert max(len(line) for line in stream.getvalue().splitlines() if name not in line) <= 80
    assert f"node: {name}" in stream.getvalue().splitlines()


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    _write_nodes("a\x1b[2Jb\nc", stream)
    assert "a\\x1b[2Jb\\nc" in stream.getvalue()
    assert "\x1b" not in chain_text([_decision("a\x1b[2J")])


def _write_nodes(name: str, stream: io.StringIO) -> None:
    nodes = [_decision(name)]
    write_document(resolve_document(nodes, nodes, None, nodes), stream)


def _decision(name: str) -> Decision:
    return Decision("", name, "MatMul", "", "white", "float16", True, "white", (), {"y": "float16"}, "it is white")
