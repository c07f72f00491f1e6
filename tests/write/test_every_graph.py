"""Every valid graph: inputs and outputs, unusual content of files, and nothing that is dropped."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

import mixlist
from tests.support.builders import model, policy
from tests.support.evaluation import ort_session
from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}
FREE = {"io": "low"}


# --- inputs and outputs of the graph ---


def test_a_graph_input_that_is_an_output() -> None:
    """Rule S7.2: The interface stays."""
    text = "g (float[4] x) => (float[4] x, float[4] y) { [w] y = Exp(x) }"
    for options in ({}, FREE):
        result = case(text, options=options, **LISTS)
        outputs = {o.name: o.type.tensor_type.elem_type for o in result.after.graph.output}
        assert outputs["x"] == result.after.graph.input[0].type.tensor_type.elem_type
    assert result.low == {"w"} and not result.casts  # x feeds only Exp and the output


def test_a_graph_without_nodes_that_returns_its_input() -> None:
    result = case("g (float[4] x) => (float[4] x) { }", **LISTS)
    assert not result.casts and not result.after.graph.node


@pytest.mark.parametrize("kind", ["<float[4] k = {1,2,3,4}> {", "{ k = Constant<value=float[4] {1,2,3,4}>()"])
def test_an_initializer_or_constant_that_is_an_output(kind: str) -> None:
    text = f"g (float[4] x) => (float[4] k, float[4] y) {kind} [w] w = Exp(x) [a] y = Add(w, k) }}"
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "a"}
    assert result.casts == [">y", "x>float16"]  # k exists in both types, and the output is float32
    assert result.reads("a") == ["float16", "float16"]
    free = case(text, options=FREE, **LISTS)
    outputs = {o.name: o.type.tensor_type.elem_type for o in free.after.graph.output}
    assert not free.casts and outputs["y"] == TensorProto.FLOAT16


def test_an_overridable_initializer_counts_as_a_constant_and_gets_a_cast() -> None:
    """Rule S4.16: An initializer that is also an input is a constant with a fixed type."""
    text = """<ir_version: 3, opset_import: ["" : 17]>
      g (float[4] x, float[4] k = {1,2,3,4}) => (float[4] y, float[4] z) {
      [w] w = Exp(x) [a] y = Add(k, w) [r] z = Relu(k) }"""
    for options in ({}, FREE):
        result = case(text, options=options, **LISTS)
        assert result.low == {"w", "a"}  # Add follows its first float input that is no constant, not k
        assert "k>float16" in result.casts
        assert result.initializers() == {"k": "float32"}
        assert [i.type.tensor_type.elem_type for i in result.after.graph.input if i.name == "k"] == [TensorProto.FLOAT]


def test_an_overridable_initializer_that_is_an_output_too() -> None:
    text = """<ir_version: 3, opset_import: ["" : 17]>
      g (float[4] x, float[4] k = {1,2,3,4}) => (float[4] y, float[4] k) {
      [w] w = Exp(x) [a] y = Add(k, w) }"""
    result = case(text, **LISTS)
    assert result.casts == [">y", "k>float16", "x>float16"]


def test_one_tensor_listed_twice_as_output() -> None:
    result = case("g (float[4] x) => (float[4] y, float[4] y) { [w] y = Exp(x) }", check=False, **LISTS)
    assert result.casts == [">y", "x>float16"]
    assert [o.name for o in result.after.graph.output] == ["y", "y"]


def test_an_output_with_readers_in_the_graph() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { [w] y = Exp(x) [r] a = Relu(y) [l] z = Log(a) [m] b = Log(y) }"
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "r"}
    assert result.casts == [">y", "a>float32", "x>float16"]
    assert result.reads("m") == ["float32"]  # it reads the Cast that makes the output


def test_an_output_that_a_subgraph_reads() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float[4] z) { [w] y = Exp(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) { [r] p = Relu(y) },
                     else_branch = e () => (float[4] q) { [l] q = Log(y) }> }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == [">y", "i/then_branch: p>float32", "x>float16"]


def test_a_free_input_in_the_other_low_type_keeps_it() -> None:
    """Rules S3.8, S4.9, S7.3: the node becomes float16, and Casts convert its input and output."""
    original = model("g (bfloat16[4] x) => (bfloat16[4] y) { [n] y = Neg(x) }")
    plan = mixlist.resolve(original, policy(white=["Neg"], space="ascend"), io="low")
    assert plan.nodes[0].precision == "float16"
    graph = mixlist.rewrite(original, plan).proto.graph
    types = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
    assert types == [TensorProto.BFLOAT16, TensorProto.BFLOAT16]


@pytest.mark.parametrize(("second_reader", "is_cast"), [("Exp", False), ("Log", True)])
def test_a_captured_use_of_a_free_input_is_cast(second_reader: str, is_cast: bool) -> None:
    """Rule S7.3: --io chooses the type of the interface."""
    text = f"""g (float[4] x, bool c) => (float[4] y) {{
      [i] y = If(c) <then_branch = t () => (float[4] p) {{ [a] p = Exp(x) }},
                     else_branch = e () => (float[4] q) {{ [b] q = {second_reader}(x) }}> }}"""
    result = case(text, options=FREE, **LISTS)
    assert result.after.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert ("x>float32" in result.casts) is is_cast


def test_named_inputs_and_outputs_keep_their_types() -> None:
    text = "g (float[4] x, float[4] u) => (float[4] y, float[4] z) { [w] y = Exp(x) [v] z = Exp(u) }"
    result = case(text, options={**FREE, "keep_io": ["x", "z"]}, **LISTS)
    assert result.casts == [">z", "x>float16"]


def test_an_input_of_the_low_type_and_an_output_of_the_low_type() -> None:
    text = """g (float16[4] x) => (float[4] y, float16[4] z) {
      [a] a = Cast<to=1>(x) [l] y = Log(a) [w] b = Exp(a) [c] z = Cast<to=10>(b) }"""
    result = case(text, **LISTS)
    assert result.low >= {"w"} and not result.casts  # Exp reads x itself: the Cast to float32 was exact


# --- unusual graphs ---


def test_a_graph_without_nodes_or_outputs() -> None:
    assert not case("g () => () { }", **LISTS).after.graph.node
    result = case("g (float[4] x) => () { [w] y = Exp(x) }", runtime=False, **LISTS)
    assert result.low == {"w"} and result.casts == ["x>float16"]


def test_a_dead_node_is_decided_and_stays() -> None:
    text = "g (float[4] x) => (float[4] y) <float[4] k = {1,2,1,2}> { [d] d = Exp(k) [e] e = Exp(d) [y] y = Log(x) }"
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"d", "e"} and not result.casts
    assert result.initializers() == {"k": "float16"}


def test_an_output_without_a_reader_gets_no_cast() -> None:
    text = "g (float[4] x) => (float[2] y) <int64[1] k = {2}> { [w] w = Exp(x) [t] y, i = TopK(w, k) [l] z = Log(x) }"
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "t"} and result.casts == [">y", "x>float16"]


def test_unnamed_nodes_stay_unnamed() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) [Exp_1] b = Exp(a) c = Exp(b) y = Log(c) }"
    result = case(text, feeds=X, **LISTS)
    assert list(result.nodes) == ["Exp_0", "Exp_1", "Exp_2", "Log_0"]
    assert [n.name for n in result.after.graph.node if n.op_type != "Cast"] == ["", "Exp_1", "", ""]


def test_unsorted_nodes_come_out_sorted() -> None:
    """Rule S7.10: The graph is sorted and free of stale entries."""
    proto = model("g (float[4] x) => (float[4] y) { [a] a = Exp(x) [b] b = Relu(a) [c] y = Log(b) }")
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    result = case(proto, **LISTS)
    assert [n.name for n in result.after.graph.node if n.op_type != "Cast"] == ["a", "b", "c"]
    assert result.casts == ["b>float32", "x>float16"]


def test_unsorted_nodes_with_captures_in_a_subgraph() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { [w] w = Exp(x)
      [i] y = If(c) <then_branch = t () => (float[4] p) { [a] a = Relu(w) [b] p = Log(a) },
                     else_branch = e () => (float[4] q) { [e] q = Relu(w) }> }"""
    proto = model(text)
    proto.graph.node.insert(0, proto.graph.node.pop())
    branch = proto.graph.node[0].attribute[0].g
    branch.node.insert(0, branch.node.pop())
    result = case(proto, **LISTS)
    assert [n.op_type for n in result.after.graph.node if n.op_type != "Cast"] == ["Exp", "If"]
    assert "i/then_branch: a>float32" in result.casts


def test_stale_value_info_is_corrected() -> None:
    """Rule S7.10: stale are a missing tensor, a wrong shape, and the type of a tensor that changes."""
    proto = model("g (float[4] x) => (float[4] y) { [w] w = Exp(x) [r] r = Relu(w) [l] y = Log(r) }")
    for name, elem, shape in (("gone", 1, [4]), ("w", 1, [4]), ("r", 7, [5, 5])):
        proto.graph.value_info.append(helper.make_tensor_value_info(name, elem, shape))
    result = case(proto, **LISTS)
    declared = {i.name: i.type.tensor_type for i in result.after.graph.value_info}
    assert {name: t.elem_type for name, t in declared.items()} == {"w": TensorProto.FLOAT16, "r": TensorProto.FLOAT16}
    assert [d.dim_value for d in declared["r"].shape.dim] == [4]


def test_value_info_of_a_cast_that_mixlist_made_is_kept() -> None:
    before = model("g (float[4] x) => (float[4] y) { [w] w = Exp(x) [l] y = Log(w) }")
    rules = policy(**LISTS)
    once = mixlist.rewrite(before, mixlist.resolve(before, rules)).model
    once.graph.value_info.append(helper.make_tensor_value_info("x_float16", TensorProto.FLOAT16, [4]))
    once.graph.value_info.append(helper.make_tensor_value_info("w_float32", TensorProto.FLOAT, [4]))
    again = mixlist.rewrite(once, mixlist.resolve(once, rules)).model
    assert again == once


def test_dynamic_dimensions_stay_dynamic() -> None:
    text = "g (float[N,4] x) => (float[M,4] y) { [w] w = Exp(x) [r] y = Relu(w) }"
    result = case(text, **LISTS)
    assert [d.dim_param for d in result.after.graph.output[0].type.tensor_type.shape.dim] == ["M", ""]
    for rows in (1, 3):
        case(text, feeds={"x": [[0.5] * 4] * rows}, **LISTS)


def test_unknown_ranks_stay_unknown() -> None:
    proto = model("g (float[4] x) => (float[4] y) { [w] w = Exp(x) [l] y = Log(w) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    result = case(proto, check=False, **LISTS)
    assert not result.after.graph.output[0].type.tensor_type.HasField("shape")
    assert result.casts == ["w>float32", "x>float16"]


def test_quantization_annotations_training_info_and_metadata_are_kept() -> None:
    """Rule S7.13: Nothing is dropped."""
    proto = model("g (float[4] x) => (float[4] y) <float s = {0.5}> { [w] w = Exp(x) [m] y = Mul(w, s) }")
    note = proto.graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    proto.training_info.add().initialization.name = "start"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.metadata_props.add(key="origin", value="somewhere")
    proto.graph.node[0].metadata_props.add(key="layer", value="1")
    proto.graph.node[0].doc_string = "the exponential"
    proto.doc_string, proto.producer_name, proto.domain, proto.model_version = "a model", "p", "d", 7
    result = case(proto, runtime=False, **LISTS)
    after = result.after
    assert after.graph.quantization_annotation[0].quant_parameter_tensor_names[0].value == "s"
    assert [p.key for p in after.metadata_props if not p.key.startswith("pkg.mixlist")] == ["author"]
    exp = next(n for n in after.graph.node if n.op_type == "Exp")
    assert exp.doc_string == "the exponential" and exp.metadata_props[0].value == "1"
    assert after.training_info == proto.training_info


@pytest.mark.parametrize("user", ["initialization", "algorithm", "initialization_binding", "update_binding"])
def test_an_initializer_that_the_training_information_uses_keeps_its_type(user: str) -> None:
    """Rule S7.6: the training graphs share the initializers of the main graph."""
    proto = model(
        "g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,4}, float[4] j = {1,2,3,4}> {"
        "[w] w = Exp(x) [m] m = Mul(w, k) [n] y = Mul(m, j) }"
    )
    training_info = proto.training_info.add()
    if user.endswith("binding"):
        getattr(training_info, user).add(key="k", value="k_new")
    else:
        graph = helper.make_graph([helper.make_node("Neg", ["k"], ["k_new"])], "step", [], [])
        getattr(training_info, user).CopyFrom(graph)
    rules = policy(**LISTS)
    after = mixlist.rewrite(proto, mixlist.resolve(proto, rules)).model
    kinds = {t.name: t.data_type for t in after.graph.initializer}
    assert kinds == {"k": TensorProto.FLOAT, "j": TensorProto.FLOAT16, "k_float16": TensorProto.FLOAT16}
    assert after.training_info == proto.training_info
    assert mixlist.rewrite(after, mixlist.resolve(after, rules)).model == after


@pytest.mark.parametrize("spelling", ["import", "nodes", "both", "one"])
def test_the_standard_domain_spelled_ai_onnx(spelling: str) -> None:
    proto = model(
        """g (float[4] x) => (float[4] y) {
          [e] e = Exp(x) [c] c = Constant<value_float=2.0>() [m] m = Mul(e, c) [l] y = Log(m) }"""
    )
    if spelling in ("import", "both"):
        proto.opset_import[0].domain = "ai.onnx"
    for node in (
        proto.graph.node if spelling in ("nodes", "both") else proto.graph.node[:1] if spelling == "one" else ()
    ):
        node.domain = "ai.onnx"
    result = case(proto, **LISTS)
    assert result.low == {"e", "m"} and result.casts == ["m>float32", "x>float16"]


def test_many_readers_share_one_cast() -> None:
    """Rule S7.4: A Cast follows its producer, once."""
    readers = " ".join(f"[l{k}] y{k} = Log(w)" for k in range(300))
    outputs = ", ".join(f"float[4] y{k}" for k in range(300))
    result = case(f"g (float[4] x) => ({outputs}) {{ [w] w = Exp(x) {readers} }}", runtime=False, **LISTS)
    assert result.casts == ["w>float32", "x>float16"]


def test_empty_names_at_the_end_of_inputs() -> None:
    proto = model("g (float[4] x) => (float[4] y) { [w] w = Exp(x) [c] y = Clip(w) }")
    proto.graph.node[1].input.extend(["", ""])
    result = case(proto, runtime=False, **LISTS)
    assert result.low == {"w", "c"} and list(result.after.graph.node[-2].input)[1:] == ["", ""]


def test_a_second_node_of_one_name_gets_another() -> None:
    """Rule S7.18: A second node of one name gets another."""
    text = """g (float[4] x, bool c) => (float[4] y) { [n] a = Exp(x) [n] b = Log(a) [n] d = Exp(b)
      [m] y = If(c) <then_branch = t () => (float[4] p) { [m] p = Exp(d) },
                     else_branch = e () => (float[4] q) { [n] q = Log(d) }> }"""
    result = case(text, **LISTS)
    assert [d.precision for d in result.plan.nodes if d.name == "n"] == ["float16", "float32", "float16", "float32"]
    names = [node.name for node in result.after.graph.node if node.op_type != "Cast"]
    assert names == ["n", "n_2", "n_3", "m"]  # a name may occur once in each graph
    ort_session(result.after)
    (warning,) = [w for w in mixlist.rewrite(result.before, result.plan).warnings if w.code == "ML512"]
    assert warning.message == "two nodes are called 'n': the second one is 'n_2' in the result"
