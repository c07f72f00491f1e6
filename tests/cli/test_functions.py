"""Every command works on a model with model-local functions, whose calls are ordinary nodes (Rule S4.31)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Run

# F calls G, and has bodies: the warning counts its five nodes, with the two of the bodies, and the two of G.
MODEL = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (float[2] x) => (float[2] y) { [square] s = Mul(x, x) [call] c = f.F(s) [root] y = Sqrt(c) }
<domain: "f", opset_import: ["" : 17, "f" : 1]> F (a) => (b) {
  [zero] z = Constant<value = float {0}>() [sum] t = ReduceSum<keepdims = 0>(a) [more] m = Greater(t, z)
  [if] b = If(m) <then_branch = t () => (p) { [inner] p = f.G(a) }, else_branch = e () => (q) { [neg] q = Neg(a) }> }
<domain: "f", opset_import: ["" : 17]> G (a) => (b) { [product] h = Mul(a, a) [inner_root] b = Sqrt(h) }"""
# The model that `--inline-functions` makes of it, but for names.
WITHOUT_FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { [square] s = Mul(x, x)
  z = Constant<value = float {0}>() t = ReduceSum<keepdims = 0>(s) m = Greater(t, z)
  c = If(m) <then_branch = t () => (p) { h = Mul(s, s) p = Sqrt(h) }, else_branch = e () => (q) { q = Neg(s) }>
  [root] y = Sqrt(c) }"""
WARNING = "8 nodes in 2 model-local functions stay as authored"
LISTS = {"white-list": {"to-add": ["Mul"]}, "black-list": {"to-add": ["Sqrt"]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the model, lists for it, and two batches."""
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    onnx.save(onnx.parser.parse_model(WITHOUT_FUNCTIONS), tmp_path / "flat.onnx")
    (tmp_path / "lists.json").write_text(json.dumps(LISTS))
    (tmp_path / "batches").mkdir()
    np.savez(tmp_path / "batches" / "b0.npz", x=np.array([1, 2], np.float32))
    np.savez(tmp_path / "batches" / "b1.npz", x=np.array([3, 1.5], np.float32))
    return tmp_path


def test_apply_copies_the_functions(run: Run, folder: Path) -> None:
    completed = run("apply", folder / "m.onnx", "-o", folder / "o.onnx", "--mixlist", folder / "lists.json")
    assert completed.status == 0
    assert f"ML410: {WARNING}" in completed.err
    before, after = onnx.load(folder / "m.onnx"), onnx.load(folder / "o.onnx")
    assert after.functions == before.functions
    onnx.checker.check_model(after, full_check=True)


def test_resolve_and_export_show_the_call(run: Run, folder: Path) -> None:
    arguments = (folder / "m.onnx", "--mixlist", folder / "lists.json")
    report = json.loads(run("resolve", *arguments, "--format", "json").out)
    assert [(node["scope"], node["name"], node["rule"]) for node in report["nodes"]] == [
        ("", "square", "white"),
        ("", "call", "schema"),
        ("", "root", "black"),
    ]
    explained = run("resolve", *arguments, "--explain", "call").out
    assert "F is a model-local function: its call stays as authored (S4.31)" in explained
    assert run("export", *arguments, "--for", "modelopt").status == 0


def test_inlined_functions_are_decided_like_other_nodes(run: Run, folder: Path) -> None:
    lists = ("--mixlist", folder / "lists.json")
    completed = run("apply", folder / "m.onnx", "-o", folder / "o.onnx", "--inline-functions", *lists)
    assert completed.status == 0 and "ML410" not in completed.err
    assert run("apply", folder / "flat.onnx", "-o", folder / "flat.out.onnx", *lists).status == 0
    inlined, flat = (onnx.load(folder / name) for name in ("o.onnx", "flat.out.onnx"))
    assert not inlined.functions
    assert operators(inlined.graph) == operators(flat.graph)


def operators(graph: onnx.GraphProto) -> list[object]:
    """Return the operators of a graph and of its bodies in order, with the types of its Casts."""
    rows: list[object] = []
    for node in graph.node:
        kinds = [attribute.i for attribute in node.attribute if attribute.name == "to"]
        rows.append((node.op_type, kinds, [operators(attribute.g) for attribute in node.attribute if attribute.g.node]))
    return rows


def test_commands_on_data(run: Run, folder: Path) -> None:
    """check judges the call as a node; tune finds the edit; neither looks inside."""
    arguments = (folder / "m.onnx", "--mixlist", folder / "lists.json", "--data", folder / "batches")
    assert run("check", *arguments).status == 0
    np.savez(folder / "batches" / "b2.npz", x=np.array([300, 1], np.float32))
    completed = run("check", *arguments, "--format", "json")
    assert completed.status == 1
    findings = {node["name"]: node["kind"] for node in json.loads(completed.out)["nodes"]}
    assert findings == {"square": "overflow", "call": "propagated", "root": "propagated"}
    completed = run("tune", *arguments, "-o", folder / "tuned.json", "--no-holdout")
    assert completed.status == 1 and "NOTHING IS LOW" in completed.out  # these were the only low nodes
    assert json.loads((folder / "tuned.json").read_text())["black-list"]["to-add"] == ["Mul", "Sqrt"]


def test_commands_on_two_models(run: Run, folder: Path) -> None:
    lists = ("--mixlist", folder / "lists.json")
    assert run("apply", folder / "m.onnx", "-o", folder / "o.onnx", *lists).status == 0
    assert (
        "square"
        in run("diff", "onnx", "onnx", "--other-mixlist", folder / "lists.json", "--model", folder / "m.onnx").out
    )
    assert run("view", folder / "m.onnx", "-o", folder / "page.html", *lists).status == 0
    assert run("bench", folder / "m.onnx", folder / "o.onnx", "--estimate").status == 0


def test_repair_raises_nodes_outside_of_functions(run: Run, folder: Path) -> None:
    text = MODEL.replace("float[2]", "float16[2]").replace("float {0}", "float16 {0}")
    text = text.replace("[square] s = Mul(x, x)", "[n] n = Neg(x) [m] m = Neg(n) [square] s = Mul(m, m)")
    low = onnx.parser.parse_model(text.replace("[root] y = Sqrt(c)", "[exp] e = Exp(c) [root] y = Sqrt(e)"))
    onnx.save(low, folder / "low.onnx")
    np.savez(folder / "data.npz", x=np.array([3.5, 1], np.float16))  # exp(3.5 * 3.5) is 208981
    completed = run("repair", folder / "low.onnx", "--data", folder / "data.npz", "-o", folder / "repaired.onnx")
    assert completed.status == 0, completed.err
    assert onnx.load(folder / "repaired.onnx").functions == low.functions
