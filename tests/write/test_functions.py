"""Calls of model-local functions keep their types, and the functions are copied as they are (Rule S4.31)."""

from __future__ import annotations

import onnx
import pytest

import mixlist
from mixlist.errors import ListError
from mixlist.model.onnx_conversion import inline_functions
from tests.support.builders import customize, keep, model, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.rewriter_cases import Case, case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


def model_text(main: str, *functions: str, imports: str = '"" : 17, "f" : 1', ir: int = 8) -> str:
    """Return a model in ONNX text of a main graph and functions of domain f."""
    head = f"<ir_version: {ir}, opset_import: [{imports}]>\ng (float[4] x) => {main}\n"
    return head + "\n".join(
        f if f.startswith("<") else f'<domain: "f", opset_import: [{imports}]> {f}' for f in functions
    )


CHAIN = model_text(
    "(float[4] y) { [w] w = Exp(x) [c] v = f.F(w) [e] y = Exp(v) }", "F (a) => (b) { [r] r = Relu(a) [l] b = Exp(r) }"
)


def function_warnings(result: Case) -> list[str]:
    """Return the messages of the warnings about functions."""
    return [warning.message for warning in result.plan.warnings if warning.code == "ML410"]


def test_a_call_keeps_its_types_and_its_function() -> None:
    """Rule S4.31: the call reads and makes float32, and no node inside is decided or changed."""
    result = case(CHAIN, feeds=X, **LISTS)
    assert [node.name for node in result.plan.nodes] == ["w", "c", "e"]
    assert result.low == {"w", "e"}
    assert result.casts == [">y", "v>float16", "w>float32", "x>float16"]
    assert (result.reads("c"), result.makes("c")) == (["float32"], ["float32"])
    call = result.nodes["c"]
    assert (call.list, call.rule, call.precision, call.domain) == ("none", "schema", "float32", "f")
    assert call.reason == "F is a model-local function: its call stays as authored (S4.31)"
    assert list(result.after.functions) == list(result.before.functions)


def test_a_gray_node_follows_the_result_of_a_call() -> None:
    """Rule S4.31: the result of a call has its authored type for every reader."""
    text = model_text("(float[4] y) { w = Exp(x) v = f.F(w) [r] y = Relu(v) }", "F (a) => (b) { b = Neg(a) }")
    result = case(text, feeds=X, **LISTS)
    assert result.nodes["r"].precision == "float32"
    assert result.nodes["r"].follows == ("F_0", "F_0")


@pytest.mark.parametrize(
    ("call", "function", "elem"),
    [
        ("f.F(x)", "F (a) => (b) { b = Cast<to = 10>(a) }", "float16"),
        ("f.F<kind = 10>(x)", "F <kind> (a) => (b) { b = Cast<to: int = @kind>(a) }", "float16"),
        ("f.F<kind = 11>(x)", "F <kind> (a) => (b) { b = Cast<to: int = @kind>(a) }", "float64"),
        ("f.F(x)", "F (a) => (b) { c = f.G(a) b = Neg(c) } <domain: \"f\", opset_import: [\"\" : 17]> G (a) => (b) "
         "{ b = Shape(a) }", "int64"),
    ],
)  # fmt: skip
def test_the_types_of_results_come_from_the_inference_of_onnx(call: str, function: str, elem: str) -> None:
    """Rule S4.31: onnx infers through functions that call functions, and with the attributes of the call."""
    text = model_text(f"(float[4] y) {{ [c] u = {call} z = Cast<to = 1>(u) y = Add(z, x) }}", function)
    result = case(text, check=False, **LISTS)
    assert result.nodes["c"].outputs == {"u": elem}


def test_calls_of_one_function_with_other_types_have_results_of_other_types() -> None:
    text = model_text(
        "(float[4] y) { h = Cast<to = 10>(x) [c] u = f.F(x) [d] v = f.F(h) w = Cast<to = 1>(v) y = Add(u, w) }",
        "F (a) => (b) { b = Neg(a) }",
    )
    result = case(text, **LISTS)
    assert (result.nodes["c"].outputs, result.nodes["d"].outputs) == ({"u": "float32"}, {"v": "float16"})
    assert result.reads("d") == ["float16"]


def test_a_result_that_nothing_types_is_of_unknown_type() -> None:
    """Rules S4.31 and S4.40: the readers stay as authored; a declaration or a hint gives the type."""
    text = model_text(
        "(float[4] y) { [c] u = f.F(x) [m] m = Exp(u) [k] y = Cast<to = 1>(m) }",
        "F (a) => (b) { b = other.Unknown(a) }",
        imports='"" : 17, "f" : 1, "other" : 1',
    )
    unknown = case(text, check=False, runtime=False, **LISTS)
    assert (unknown.nodes["c"].outputs, unknown.nodes["m"].rule) == ({"u": "unknown"}, "unknown-type")
    hinted = case(text, check=False, runtime=False, hints={"u": "float32"}, **LISTS)
    declared = model(text, check=False)
    declared.graph.value_info.add(name="u").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for known in (hinted, case(declared, runtime=False, **LISTS)):
        assert (known.nodes["c"].outputs, known.nodes["m"].precision) == ({"u": "float32"}, "float16")


def test_functions_that_expand_without_end_have_results_of_unknown_type() -> None:
    """onnx's inference would not end: 30 functions that call the next one twice."""
    chain = [f"F{i} (a) => (b) {{ c = f.F{i + 1}(a) b = f.F{i + 1}(c) }}" for i in range(30)]
    text = model_text(
        "(float[4] y) { [c] u = f.F0(x) m = Exp(u) y = Cast<to = 1>(m) }", *chain, "F30 (a) => (b) { b = Neg(a) }"
    )
    result = mixlist.resolve(model(text, check=False), policy(**LISTS))
    assert [node.outputs for node in result.nodes if node.name == "c"] == [{"u": "unknown"}]


def test_overloads_are_different_functions() -> None:
    """IR version 10: a call names one of several functions of the same name."""
    proto = model(model_text("(float[4] y) { [c] y = f.F(x) }", "F (a) => (b) { b = Neg(a) }", ir=10))
    proto.functions.add().CopyFrom(proto.functions[0])
    proto.functions[1].overload = "cast"
    proto.functions[1].node[0].op_type = "Shape"
    assert case(proto, **LISTS).nodes["c"].outputs == {"y": "float32"}
    proto.graph.node[0].overload = "cast"
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    plan = mixlist.resolve(proto, policy(**LISTS))
    assert plan.nodes[0].outputs == {"y": "int64"}


def test_a_function_with_the_name_of_an_operator_is_not_that_operator() -> None:
    """ONNX Runtime takes the function, too; ``Softmax`` here makes no mask and follows no list."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { [c] u = Exp(x) [n] y = Neg(u) }
      <domain: "", opset_import: ["" : 17]> Exp (a) => (b) { b = Relu(a) }"""
    plan = mixlist.resolve(model(text, check=False), policy(white=["Exp", "Neg"]))
    assert [(node.name, node.precision) for node in plan.nodes] == [("c", "float32"), ("n", "float16")]


def test_calls_in_bodies_keep_their_types() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[4] x, bool go) => (float[4] y) {
        [w] w = Exp(x)
        [i] y = If(go) <then_branch = t () => (float[4] p) { [c] p = f.F(w) },
                        else_branch = e () => (float[4] q) { [r] q = Relu(w) }> }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) { b = Neg(a) }"""
    result = case(text, feeds={**X, "go": True}, **LISTS)
    assert result.low == {"w", "i/else_branch/r"}
    assert result.reads("i/then_branch/c") == ["float32"]


def test_the_constants_that_a_call_reads_stay() -> None:
    """Rule S4.31: a constant is converted for other readers only; its call reads the authored numbers."""
    text = model_text(
        "(float[4] y) <float[4] k = {1, 2, 3, 4}> { [a] w = Add(x, k) [c] y = f.F(w, k) }",
        "F (a, k) => (b) { b = Mul(a, k) }",
    )
    result = case(text, white=["Add"], feeds=X)
    assert result.initializers() == {"k": "float32", "k_float16": "float16"}
    assert result.reads("c") == ["float32", "float32"]


@pytest.mark.parametrize(
    ("main", "functions", "warnings"),
    [
        ("y = Neg(x)", ["F (a) => (b) { b = Neg(a) }"], []),
        ("y = f.F(x)", ["F (a) => (b) { b = Neg(a) }"], ["1 node in a model-local function stays as authored"]),
        (
            "u = f.F(x) y = f.F(u)",
            ["F (a) => (b) { c = f.G(a) b = f.G(c) }", "G (a) => (b) { c = Neg(a) b = Exp(c) }",
             "H (a) => (b) { b = Exp(a) }"],
            ["4 nodes in 2 model-local functions stay as authored"],
        ),
        (
            "y = f.F(x)",
            ["F (a) => (b) { go = Constant<value = bool {1}>() b = If(go) <then_branch = t () => (p) { p = f.G(a) },"
             " else_branch = e () => (q) { q = Neg(a) }> }", "G (a) => (b) { b = Exp(a) }"],
            ["5 nodes in 2 model-local functions stay as authored"],
        ),
    ],
)  # fmt: skip
def test_one_warning_counts_the_nodes_inside(main: str, functions: list[str], warnings: list[str]) -> None:
    """Rule S4.31: each function that is called counts once, with its bodies; one that nothing calls does not."""
    result = case(model_text(f"(float[4] y) {{ {main} }}", *functions), check=False, **LISTS)
    assert function_warnings(result) == warnings
    hints = [warning.hint for warning in result.plan.warnings if warning.code == "ML410"]
    assert all("--inline-functions" in str(hint) for hint in hints)
    assert list(result.after.functions) == list(result.before.functions)


def test_a_list_that_names_a_function_warns_and_moves_nothing() -> None:
    result = case(CHAIN, white=["Exp"], edits={"F": "white"})
    assert [warning.code for warning in result.plan.warnings] == ["ML407", "ML410"]
    assert result.nodes["c"].precision == "float32"


def test_node_rules_on_a_call() -> None:
    """Rules S6.8 and S6.9: a call has nothing to vary, and the nodes inside have no names here."""
    proto = model(CHAIN)
    with pytest.raises(ListError, match="the call of a function keeps its authored types") as error:
        mixlist.resolve(proto, policy(rules=[customize("c", ["float16"], ["float16"])]))
    assert error.value.diagnostics[0].code == "ML308"
    kept = mixlist.resolve(proto, policy(rules=[*keep("c"), *keep("r")]))
    assert [warning.code for warning in kept.warnings] == ["ML306", "ML305", "ML410"]


@pytest.mark.parametrize("function_opset", [1, 6, 12, 18])
def test_the_opset_of_a_function_does_not_matter(function_opset: int) -> None:
    """Rule S7.15 is about the opset of the model: nothing is added to a function."""
    text = CHAIN.replace('<domain: "f", opset_import: ["" : 17', f'<domain: "f", opset_import: ["" : {function_opset}')
    assert case(text, check=False, runtime=False, **LISTS).low == {"w", "e"}


def test_functions_inlined_on_request() -> None:
    """The result is that of the model without functions, which onnx's inliner makes."""
    inlined = inline_functions(model(CHAIN))
    assert not inlined.functions
    result = case(inlined, feeds=X, **LISTS)
    flat = model("g (float[4] x) => (float[4] y) { [w] w = Exp(x) [r] r = Relu(w) [l] v = Exp(r) [e] y = Exp(v) }")
    expected = mixlist.resolve(flat, policy(**LISTS))
    assert [node.precision for node in result.plan.nodes] == [node.precision for node in expected.nodes]
    assert not function_warnings(result)


def test_inlining_a_rewritten_model_changes_no_number() -> None:
    """The rewritten model is valid for onnx's inliner too, and a second rewrite finds its Casts."""
    result = case(CHAIN, **LISTS)
    flat = inline_functions(result.after)
    check_contract(flat, mixlist.rewrite(flat, mixlist.resolve(flat, policy(**LISTS))))
    check_idempotent(result.after, lambda m: mixlist.rewrite(m, mixlist.resolve(m, policy(**LISTS))).model)
