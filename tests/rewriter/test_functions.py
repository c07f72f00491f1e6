"""Model-local functions: specialized per combination of types, shared if equal, and never dropped (Rule S4.31)."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

import mixlist
from mixlist.graph.onnx_conversion import inline_functions
from tests.support.builders import customize, model, policy
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


def function_names(result: Case) -> list[str]:
    """Return the functions of the rewritten model, in order."""
    return [":".join(filter(None, (f.domain, f.name, f.overload))) for f in result.after.functions]


def test_a_low_and_a_high_call_get_a_function_each() -> None:
    """Only the function of the low call has a Cast before Log."""
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) [c] y = f.F(w) [d] z = f.F(x) }",
        "F (a) => (b) { [r] r = Relu(a) [l] b = Log(r) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert function_names(result) == ["f:F", "f:F_2"]
    assert result.low == {"w", "function:f:F#0/r"}
    assert result.casts == ["function:f:F: r>float32", "x>float16"]
    assert [result.makes(n) for n in ("c", "d")] == [["float32"], ["float32"]]


def test_equal_specializations_are_shared() -> None:
    """A function that only follows its input is the same for both calls."""
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) [c] y = f.F(w) [d] z = f.F(x) }", "F (a) => (b) { [r] b = Relu(a) }"
    )
    result = case(text, feeds=X, **LISTS)
    assert function_names(result) == ["f:F"]
    assert result.casts == [">y", "x>float16"]
    assert (result.makes("c"), result.makes("d")) == (["float16"], ["float32"])


def test_specializations_that_differ_only_in_the_names_of_casts_are_shared() -> None:
    """One call passes a constant, the other an input; both bodies need the same Casts and constants."""
    text = model_text(
        "(float[4] y, float[4] z) <float[4] k = {1,2,3,4}> { y = f.F(x, k) z = f.F(x, x) }",
        """F (a, k) => (b) { c = Constant<value_float=2.0>() [e] e = Exp(a) [m] m = Mul(e, c) [l] l = Log(m)
          [n] n = Log(c) [s] s = Add(l, n) [b] b = Add(s, k) }""",
    )
    result = case(text, white=["Exp"], black=["Log", "Add"], feeds=X)
    assert function_names(result) == ["f:F"]
    assert result.casts == ["function:f:F: a>float16", "function:f:F: m>float32"]
    assert [n.op_type for n in result.after.graph.node] == ["F", "F"]


def test_equal_functions_of_the_model_are_not_merged() -> None:
    body = "(a) => (b) { b = Relu(a) }"
    text = model_text("(float[4] y) { w = f.G(x) y = f.F(w) }", f"F {body}", f"G {body}", f"H {body}")
    result = case(text, feeds=X, **LISTS)
    assert function_names(result) == ["f:F", "f:G", "f:H"]  # H, which nobody calls, too
    assert [n.op_type for n in result.after.graph.node] == ["G", "F"]


def test_functions_whose_callees_become_equal_are_shared() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) y = f.F(w) z = f.F(x) }",
        "F (a) => (c) { [h] b = f.H(a) [l] d = Log(b) [i] c = f.H(d) }",
        "H (a) => (c) { [r] c = Relu(a) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert function_names(result) == [
        "f:F",
        "f:F_2",
        "f:H",
    ]  # only the two F differ: by a Cast
    assert result.casts == ["function:f:F: b>float32", "x>float16"]


def test_a_specialization_that_is_called_in_a_specialization() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) y = f.F(w) z = f.F(x) }",
        "F (a) => (c) { [h] c = f.H(a) }",
        "H (a) => (c) { k = Constant<value_float=2.0>() [m] c = Mul(a, k) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert function_names(result) == ["f:F", "f:F_2", "f:H", "f:H_2"]
    calls = {f.name: f.node[0].op_type for f in result.after.functions if f.name.startswith("F")}
    assert calls == {"F": "H", "F_2": "H_2"}
    assert result.casts == [">y", "x>float16"]  # the constant in H is converted


def test_a_name_that_is_taken_is_not_given_to_a_specialization() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { w = Exp(x) a = f.F(w) z = f.F(x) y = f.F_2(a) }",
        "F (a) => (c) { k = Constant<value_float=2.0>() c = Mul(a, k) }",
        "F_2 (a) => (c) { c = Neg(a) }",
    )
    assert function_names(case(text, feeds=X, **LISTS)) == ["f:F", "f:F_3", "f:F_2"]


def test_the_opset_of_the_function_decides_which_types_a_slot_admits() -> None:
    """Reshape takes bfloat16 from opset 13 on: the body at opset 12 keeps float32, the main graph is low."""
    main = "(float[4] y) <int64[1] s = {4}> { [w] w = Exp(x) [r] r = Reshape(w, s) [c] y = f.F(r, s) }"
    text = model_text(main, '<domain: "f", opset_import: ["" : 12]> F (a, s) => (b) { [i] b = Reshape(a, s) }')
    result = case(text, check=False, runtime=False, mode="mixed_bfloat16", **LISTS)
    assert {"w", "r"} <= result.low
    inner = result.nodes["function:f:F/i"]
    assert (inner.precision, inner.rule) == ("float32", "schema")
    assert "opset 13 would allow it" in inner.reason
    assert "function:f:F: a>float32" in result.casts


def test_attribute_references_are_bound_per_call() -> None:
    """An attribute of the call decides the type of a Cast: both calls share the function, which keeps the reference."""
    text = model_text(
        "(float[4] y, float16[4] z) { [w] w = Exp(x) [c] y = f.F<k = 1>(w) [d] z = f.F<k = 10>(x) }",
        "F <k> (a) => (c) { [r] b = Relu(a) [t] c = Cast<to: int = @k>(b) }",
    )
    result = case(text, **LISTS)
    assert function_names(result) == ["f:F"]
    assert result.casts == ["x>float16"]
    assert result.after.functions[0].node[1].attribute[0].ref_attr_name == "k"
    assert (result.makes("c"), result.makes("d")) == (["float32"], ["float16"])


def test_a_constant_that_refers_to_an_attribute_is_cast() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) y = f.F<k = 2.0>(w) z = f.F<k = 3.0>(x) }",
        "F <k> (a) => (c) { v = Constant<value_float: float = @k>() [m] c = Mul(a, v) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert result.casts == [">y", "function:f:F: v>float16", "x>float16"]
    assert function_names(result) == ["f:F", "f:F_2"]


def test_the_default_of_an_attribute_counts_if_the_call_has_none() -> None:
    proto = model(
        model_text(
            "(float[4] y) { [w] w = Exp(x) [c] y = f.F(w) }", "F (a) => (c) { [r] b = Relu(a) [t] c = Cast<to=1>(b) }"
        )
    )
    function = proto.functions[0]
    function.attribute_proto.append(helper.make_attribute("k", 1))
    attribute = function.node[1].attribute[0]
    attribute.Clear()
    attribute.name, attribute.ref_attr_name, attribute.type = "to", "k", 2
    onnx.checker.check_model(proto, full_check=True)
    result = case(proto, **LISTS)
    assert result.nodes["function:f:F/t"].outputs == {"c": "float32"}
    assert result.casts == ["x>float16"]


@pytest.mark.parametrize("value", ["value: tensor = @k", "value_floats: floats = @k", "value_float: float = @k"])
def test_every_form_of_a_constant_that_refers_to_an_attribute_has_its_type(value: str) -> None:
    argument = {"t": "float[1] {2}", "s": "[2.0]", "_": "2.0"}[
        "t" if "tensor" in value else "s" if "floats" in value else "_"
    ]
    text = model_text(
        f"(float[4] y) {{ [w] w = Exp(x) y = f.F<k = {argument}>(w) }}",
        f"F <k> (a) => (c) {{ v = Constant<{value}>() [m] c = Mul(a, v) }}",
    )
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "function:f:F/m"}
    assert result.casts == [">y", "function:f:F: v>float16", "x>float16"]


def test_a_function_with_a_body_that_is_called_in_a_body() -> None:
    text = model_text(
        """(float[4] y) <bool c = {1}> { [w] w = Exp(x)
          [i] y = If(c) <then_branch = t () => (float[4] p) { [a] p = f.F(w, c) },
                         else_branch = e () => (float[4] q) { [b] q = f.F(x, c) }> }""",
        """F (a, c) => (d) { [j] d = If(c) <then_branch = t () => (float[4] p) { [k] p = Sqrt(a) },
                                          else_branch = e () => (float[4] q) { [m] q = Relu(a) }> }""",
    )
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "function:f:F#0/j/then_branch/k", "function:f:F#0/j/else_branch/m"}
    assert result.casts == ["i/then_branch: p>float32", "x>float16"]
    # the declared types of the branches' outputs make two functions of one
    assert function_names(result) == ["f:F", "f:F_2"]


def test_an_output_that_is_an_input() -> None:
    text = model_text(
        "(float[4] y) { [w] w = Exp(x) [c] a, b = f.F(w, x) [n] y = Add(a, b) }", "F (a, b) => (b, a) { }"
    )
    result = case(text, **LISTS)
    assert result.makes("c") == ["float32", "float16"]
    assert result.low == {"w"} and result.casts == ["b>float32", "x>float16"]


def test_missing_empty_and_unused_arguments() -> None:
    text = model_text(
        "(float[4] y) <float k = {2}> { [w] w = Exp(x) [c] a = f.F(w, , k, x) [d] y = f.F(a) }",
        "F (a, lo, hi, no) => (c) { [r] c = Clip(a, lo, hi) }",
    )
    result = case(text, runtime=False, **LISTS)
    assert result.low >= {"w"}
    assert result.reads("c") == ["float16", "", "float16", "float32"]  # the argument without a reader is not converted
    assert result.casts == [">y", "x>float16"]


def test_a_constant_argument_is_converted_by_the_caller() -> None:
    text = model_text(
        "(float[4] y, float[4] z) <float k = {2}> { [w] w = Exp(x) [c] y = f.F(w, k) [d] z = f.F(x, k) }",
        "F (a, k) => (c) { [m] c = Mul(a, k) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert result.casts == [">y", "x>float16"]
    assert result.initializers() == {"k": "float32", "k_float16": "float16"}
    assert function_names(result) == ["f:F"]


def test_a_constant_argument_that_does_not_fit_keeps_its_reader_high() -> None:
    text = model_text(
        "(float[4] y) <float k = {100000.0}> { [w] w = Exp(x) [c] y = f.F(w, k) }",
        "F (a, k) => (c) { [m] c = Mul(a, k) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert result.nodes["function:f:F/m"].rule == "constant"
    assert result.casts == ["function:f:F: a>float32", "x>float16"]


def test_the_same_name_in_two_domains() -> None:
    two = (
        "F (a) => (b) { k = Constant<value_float=2.0>() [m] b = Mul(a, k) }",
        '<domain: "h", opset_import: ["" : 17]> F (a) => (b) { [n] b = Neg(a) }',
    )
    main = "(float[4] y, float[4] z) { [w] w = Exp(x) [c] y = f.F(w) [d] z = h.F(x) }"
    result = case(model_text(main, *two, imports='"" : 17, "f" : 1, "h" : 1'), feeds=X, **LISTS)
    assert function_names(result) == ["f:F", "h:F"]
    assert result.low == {"w", "function:f:F/m"}


def test_overloads_are_different_functions() -> None:
    main = """(float[4] y, float[4] z, float[4] u) {
      [w] w = Exp(x) [c] y = f.F:one(w) [d] z = f.F:two(x) [e] u = f.F:one(x) }"""
    head = '<domain: "f", overload: "{}", opset_import: ["" : 17]> F (a) => (b) '
    overload_one = head.format("one") + "{ k = Constant<value_float=2.0>() [m] b = Mul(a, k) }"
    overload_two = head.format("two") + "{ [n] b = Neg(a) }"
    result = case(model_text(main, overload_one, overload_two, ir=10), runtime=False, **LISTS)
    assert function_names(result) == ["f:F:one", "f:F_2:one", "f:F:two"]
    calls = [(n.op_type, n.overload) for n in result.after.graph.node if n.domain == "f"]
    assert calls == [("F", "one"), ("F", "two"), ("F_2", "one")]


def test_a_function_that_a_list_names_warns_and_is_entered() -> None:
    text = model_text("(float[4] y) { [c] y = f.F(x) }", "F (a) => (b) { [e] b = Exp(a) }")
    result = case(text, white=["Exp"], edits={"F": "black"}, feeds=X)
    assert result.low == {"function:f:F/e"}
    assert any("F" in w.message for w in result.plan.warnings)


def test_new_names_differ_from_names_in_functions() -> None:
    text = model_text(
        "(float[4] y) { [w] w = Exp(x) [c] y = f.F(w) }",
        "F (a) => (b) { x_float16 = Relu(a) y_float16 = Log(x_float16) b = Neg(y_float16) }",
    )
    result = case(text, feeds=X, **LISTS)
    assert {n.output[0] for n in result.after.graph.node} == {"x_float16_2", "w", "y"}


@pytest.mark.parametrize(("function_opset", "main_opset"), [(13, 19), (19, 17), (13, 17)])
def test_a_cast_in_a_function_of_another_opset(function_opset: int, main_opset: int) -> None:
    """Neg and Log are the same from opset 13 on, but Cast is not: a function with a Cast takes the model's opset."""
    text = model_text(
        "(float[4] y) { [w] w = Exp(x) [c] y = f.F(w) }",
        f'<domain: "f", opset_import: ["" : {function_opset}]> F (a) => (b) {{ [n] s = Neg(a) [l] b = Log(s) }}',
        imports=f'"" : {main_opset}, "f" : 1',
        ir=9,
    )
    result = case(text, **LISTS)
    assert result.casts == ["function:f:F: s>float32", "x>float16"]
    assert result.after.functions[0].opset_import[0].version == (
        function_opset if (function_opset, main_opset) == (13, 17) else main_opset
    )
    without_cast = case(text.replace("Log(s)", "Exp(s)"), **LISTS)
    assert without_cast.after.functions[0].opset_import[0].version == function_opset


def test_a_node_rule_holds_in_every_specialization() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) [c] y = f.F(w) [d] z = f.F(x) }",
        "F (a) => (b) { [r] r = Relu(a) [l] b = Log(r) }",
    )
    result = case(text, rules=(customize("l", ["float16"], ["float16"]),), feeds=X, **LISTS)
    assert {"function:f:F#0/l", "function:f:F#1/l"} <= result.low
    assert result.casts == [">y", ">z", "function:f:F_2: r>float16", "x>float16"]


def test_functions_inlined_on_request() -> None:
    text = model_text(
        "(float[4] y, float[4] z) { [w] w = Exp(x) y = f.F<k = 2.0>(w) z = f.F<k = 3.0>(x) }",
        "F <k> (a) => (c) { v = Constant<value_float: float = @k>() [m] d = Mul(a, v) c = f.H(d) }",
        "H (a) => (c) { [l] c = Log(a) }",
    )
    original = model(text)
    inlined = inline_functions(original)
    rules = policy(**LISTS)
    plan = mixlist.resolve(inlined, rules)
    rewritten_model = mixlist.rewrite(inlined, plan).model
    check_contract(inlined, rewritten_model, plan)
    check_idempotent(rewritten_model, lambda m: mixlist.rewrite(m, mixlist.resolve(m, rules)).model)
    assert not rewritten_model.functions and len(original.functions) == 2
    low = [n.op_type for n in plan.nodes if n.precision == "float16"]
    assert low == ["Exp", "Mul"]  # the Mul that follows w; its Log stays float32
    assert sum(n.op_type == "Cast" for n in rewritten_model.graph.node) == 2
