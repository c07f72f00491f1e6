"""Rule S4.52: types that clash are refused, and ``repair`` corrects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import mixlist
from mixlist.errors import ModelError
from mixlist.model.load import load_model
from mixlist.search.type_corrections import correct_types
from tests.support.builders import model
from tests.support.local_workers import InProcessExecutor

MATMUL = (
    "g (float[2,4] x) => (float[2,4] y) <float16[4,4] w = {2,0,0,0,0,2,0,0,0,0,2,0,0,0,0,2}> { [mm] y = MatMul(x, w) }"
)
NORM = "g (float[2,4] x) => (float[2,4] y) <float16[4] s = {1,1,1,1}> { [ln] y = LayerNormalization(x, s) }"
DECLARED = "g (float16[2,4] x) => (float16[2,4] y) { [r] h = Relu(x) [c] y = Cast<to=1>(h) }"
COMPUTED = "g (float[2,4] x) => (float16[2,4] y, float[2,4] z) { [r] y = Relu(x) [n] z = Neg(y) }"
CHANGED = (
    "g (float[2,4] x) => (float[2,4] y) <float[4] k = {1,2,3,4}> {"
    " [c] h = Cast<to=10>(x) [m] m = Add(h, k) [n] y = Neg(m) }"
)
# A clash in a branch, and one behind another: the types of the second follow from the corrected first.
DEEP = (
    "g (float[2,4] x, bool c) => (float[2,4] y) <float16[4] k = {1,2,3,4}, float[4] f = {1,2,3,4}> {"
    " [a] a = Add(x, k) [b] b = Add(a, f) [i] y = If (c) <"
    " then_branch = t () => (float[2,4] p) { [p] p = Mul(b, k) },"
    " else_branch = e () => (float[2,4] q) { [q] q = Neg(b) }>"
    " }"
)
# The branches join two types; so do the initial state of a Loop and its new one. The initial state is cast outside.
BRANCHES = (
    "g (float[2,4] x, bool c) => (float[2,4] y) { [i] y = If (c) <"
    " then_branch = t () => (float16[2,4] p) { [p] p = Cast<to=10>(x) },"
    " else_branch = e () => (float[2,4] q) { [q] q = Neg(x) }> }"
)
STATES = (
    "g (float16[2,4] x) => (float16[2,4] y) <int64 n = {3}, bool b = {1}, float[4] k = {1,2,3,4}> {"
    " [l] y = Loop (n, b, x) <body = l (int64 i, bool c, float16[2,4] s) => (bool d, float16[2,4] t)"
    " { [d] d = Identity(c) [w] w = Cast<to=1>(s) [t] t = Add(w, k) }> }"
)
CLASHES = {
    "branches": (
        BRANCHES,
        "node 'i' (If) joins float16 'p' (output 0 of then_branch) and float32 'q' (output 0 of else_branch), "
        "which must have one type",
    ),
    "states": (STATES, "node 'l' (Loop) joins float16 'x' (input 2) and float32 't' (output 1 of body), which must"),
    "matmul": (MATMUL, "node 'mm' (MatMul) reads float32 'x' at input 0 and float16 'w' at input 1"),
    "norm": (NORM, "node 'ln' (LayerNormalization) reads float32 'x' at input 0 and float16 's' at input 1"),
    "declared": (DECLARED, "the graph output 'y' is declared float16, but node 'c' (Cast) makes it float32"),
    "computed": (COMPUTED, "the graph output 'y' is declared float16, but node 'r' (Relu) makes it float32"),
    "changed": (CHANGED, "node 'm' (Add) reads float16 'h' at input 0 and float32 'k' at input 1"),
    "deep": (DEEP, "node 'a' (Add) reads float32 'x' at input 0 and float16 'k' at input 1"),
}


def feeds(network: onnx.ModelProto) -> list[dict[str, Any]]:
    """Return one batch: ones, and true."""
    types = {i.name: i.type.tensor_type for i in network.graph.input}
    one = {name: np.ones([d.dim_value for d in t.shape.dim]) for name, t in types.items()}
    return [{n: v.astype(onnx.helper.tensor_dtype_to_np_dtype(types[n].elem_type)) for n, v in one.items()}]


@pytest.mark.parametrize(("text", "message"), CLASHES.values(), ids=CLASHES)
def test_a_clash_is_refused_by_name_and_corrected(text: str, message: str) -> None:
    network = model(text, check=False)
    with pytest.raises(ModelError) as caught:
        mixlist.resolve(network, mixlist.load_policy())
    assert caught.value.message.startswith(message)
    batches = feeds(network)
    report = mixlist.repair(network, batches, executor=InProcessExecutor())
    assert report.verdict == "pass"
    assert {edit.kind for edit in report.edits} - {"declaration"} == {"cast"}
    assert message in report.edits[0].why
    repaired = report.repaired_model
    onnxruntime.InferenceSession(repaired.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [o.type.tensor_type.elem_type for o in repaired.graph.output] == [
        o.type.tensor_type.elem_type for o in network.graph.output
    ]
    assert all(np.isfinite(y).all() for y in ReferenceEvaluator(repaired).run(None, batches[0]))


def casts(network: onnx.ModelProto) -> list[tuple[str, int]]:
    """Return the inputs and types of all Casts of the main graph."""
    return [(n.input[0], int(n.attribute[0].i)) for n in network.graph.node if n.op_type == "Cast"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MATMUL, [("w", 1)]),
        (DECLARED, [("h", 10)]),  # the Cast is changed
        (COMPUTED, [("y_authored", 10)]),  # and z is computed from the float32 value
        (CHANGED, [("x", 1)]),
        (DEEP, [("k", 1)]),  # and one in the branch, none for b
        (BRANCHES, []),  # the Cast in the branch is changed
        (STATES, [("x", 1), ("y_authored", 10)]),
    ],
)
def test_only_the_casts_that_are_needed_are_inserted(text: str, expected: list[tuple[str, int]]) -> None:
    network = model(text, check=False)
    repaired = mixlist.repair(network, feeds(network), executor=InProcessExecutor()).repaired_model
    assert casts(repaired) == expected
    if text == COMPUTED:
        assert [list(node.input) for node in repaired.graph.node if node.op_type == "Neg"] == [["y_authored"]]


def test_a_cast_with_another_reader_stays() -> None:
    text = "g (float[4] x) => (float[4] y, float16[4] h) <float[4] k = {1,2,3,4}> { h = Cast<to=10>(x) y = Add(h, k) }"
    repaired = mixlist.repair(
        model(text, check=False), [{"x": np.ones(4, np.float32)}], executor=InProcessExecutor()
    ).repaired_model
    assert casts(repaired) == [("x", 10), ("h", 1)]


def test_a_clash_with_integers_has_no_correction() -> None:
    network = model("g (float[4] x, int64[4] i) => (float[4] y) { [a] y = Add(x, i) }", check=False)
    with pytest.raises(ModelError, match="float32 'x' at input 0 and int64 'i' at input 1"):
        mixlist.repair(network, feeds(network))


def test_a_stale_declaration_inside_the_graph_is_no_clash() -> None:
    network = model("g (float16[4] x) => (float[4] y) <float16[4] h> { h = Cast<to=1>(x) y = Relu(h) }", check=False)
    written = mixlist.rewrite(network, mixlist.resolve(network, mixlist.load_policy())).model
    onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])


def loads(network: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime loads a model."""
    try:
        onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # its errors have no common class
        return False
    return True


def repair_by_one_edit(network: onnx.ModelProto, batches: Any) -> tuple[mixlist.RepairEdit, onnx.ModelProto]:
    """Return the only edit that makes a model load, and the repaired model."""
    assert not loads(network)
    report = mixlist.repair(network, batches, executor=InProcessExecutor())
    assert report.verdict == "pass" and loads(report.repaired_model)
    (edit,) = report.edits
    return edit, report.repaired_model


def test_wrong_declarations_are_named_and_corrected() -> None:
    # The declared types of an inner tensor, and of the outputs of both branches.
    text = (
        "g (float16[2,4] x, bool c) => (float[2,4] y) <float16[2,4] h> { [c] h = Cast<to=1>(x) [i] y = If (c) <"
        " then_branch = t () => (float16[2,4] p) { [p] p = Neg(h) },"
        " else_branch = e () => (float16[2,4] q) { [q] q = Relu(h) }> }"
    )
    network = model(text, check=False)
    edit, _ = repair_by_one_edit(network, feeds(network))
    assert edit.kind == "declaration" and edit.why == "to float32: 'h' is declared float16, but is float32, as 2 more"


def test_a_cast_of_no_scales_becomes_no_scales() -> None:
    text = (
        "g (float16[1,1,2,2] x) => (float16[1,1,4,4] y) <int64[4] sizes = {1,1,4,4}, float16[0] none = {}> {"
        ' [c] scales = Cast<to=1>(none) [r] y = Resize(x, "", scales, sizes) }'
    )
    network = model(text, check=False)
    edit, repaired = repair_by_one_edit(network, [{"x": np.ones((1, 1, 2, 2), np.float16)}])
    assert (edit.kind, edit.tensor) == ("cast", "scales")
    assert (
        edit.why
        == "to float32: a Cast makes the scales of a Resize, which have no elements, because the Resize has sizes"
    )
    assert casts(repaired) == []


def test_a_cast_of_no_scales_is_valid_before_opset_13() -> None:
    text = (
        "g (float[1,1,2,2] x) => (float16[1,1,4,4] y) <int64[4] sizes = {1,1,4,4}, float16[0] none = {},"
        " float[0] roi = {}> { [c] scales = Cast<to=1>(none) [r] h = Resize(x, roi, scales, sizes)"
        " [d] y = Cast<to=10>(h) }"
    )
    network = model(text, check=False)
    network.opset_import[0].version = 12
    assert loads(network)
    assert correct_types(load_model(network)).corrections == ()
