"""The estimated work of small models against numbers worked out by hand."""

from __future__ import annotations

import tracemalloc
from math import prod
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist.targets.estimate import Work, compute_low_share, count_moved_bytes, estimate_costs, estimate_work
from tests.support.builders import keep, model, policy
from tests.support.package import build_graph, data_folder

DIGITS = data_folder("demo_data") / "digits.onnx"


def estimate(text: str, **dims: int) -> Work:
    return estimate_work(model(text), dims)


def make_weight(name: str, *shape: int, elem: str = "float32"):
    return numpy_helper.from_array(np.ones(shape, elem), name)


def with_weights(text: str, *weights) -> object:
    proto = model(text, check=False)
    proto.graph.initializer.extend(weights)
    return proto


# --- matrix products and convolutions ---


def test_matmul_counts_two_operations_per_product() -> None:
    work = estimate("g (float[2, 5, 7] x, float[7, 3] w) => (float[2, 5, 3] y) { y = MatMul (x, w) }")
    assert (work.flops, work.matrix_flops) == (2 * 2 * 5 * 3 * 7,) * 2
    assert work.bytes == 4 * (70 + 21 + 30)
    assert (work.low_flops, work.low_share, work.unknown) == (0, 0, ())


def test_matmul_of_a_vector_has_one_row() -> None:
    assert estimate("g (float[7] x, float[7, 3] w) => (float[3] y) { y = MatMul (x, w) }").flops == 2 * 7 * 3


@pytest.mark.parametrize("flip, shape", [(0, "5, 7"), (1, "7, 5")])
def test_gemm_counts_the_product_and_the_bias(flip: int, shape: str) -> None:
    work = estimate(
        f"g (float[{shape}] x, float[7, 3] w, float[3] b) => (float[5, 3] y) {{ y = Gemm <transA = {flip}> (x, w, b) }}"
    )
    assert work.flops == 2 * 5 * 3 * 7 + 5 * 3
    assert work.bytes == 4 * (35 + 21 + 3 + 15)


def test_conv_counts_the_kernel_at_each_output_element() -> None:
    text = """g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[1, 4, 8, 8] y)
    { y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }"""
    assert estimate(text).flops == 256 * 2 * 27 + 256  # 256 output elements, each with 27 products and sums, and a bias
    assert estimate(text).bytes == 4 * (192 + 108 + 4 + 256)


def test_conv_with_groups_counts_the_channels_of_one_group() -> None:
    text = """g (float[1, 4, 8, 8] x, float[4, 2, 3, 3] w) => (float[1, 4, 3, 3] y)
    { y = Conv <group = 2, strides = [2, 2]> (x, w) }"""
    assert estimate(text).flops == 36 * 2 * (2 * 9)


def test_conv_transpose_counts_the_kernel_at_each_input_element() -> None:
    text = """g (float[1, 4, 5, 5] x, float[4, 2, 3, 3] w, float[2] b) => (float[1, 2, 11, 11] y)
    { y = ConvTranspose <strides = [2, 2]> (x, w, b) }"""
    assert estimate(text).flops == 2 * 100 * (2 * 9) + 242  # each of 100 input elements meets 9 weights for 2 channels


def test_einsum_counts_products_and_sums() -> None:
    batched = (
        'g (float[2, 3, 4] a, float[2, 4, 5] b) => (float[2, 3, 5] y) { y = Einsum <equation = "bij,bjk->bik"> (a, b) }'
    )
    assert estimate(batched).flops == 2 * 2 * 3 * 4 * 5
    implied = 'g (float[3, 4] a, float[4, 5] b) => (float[3, 5] y) { y = Einsum <equation = "ij,jk"> (a, b) }'
    assert estimate(implied).flops == 2 * 3 * 4 * 5
    spread = """g (float[2, 6, 3] a, float[1, 6, 3] b) => (float[2, 6, 3] y)
    { y = Einsum <equation = "...i,...i->...i"> (a, b) }"""
    assert estimate(spread).flops == 2 * 6 * 3  # the product alone, no sum
    summed = 'g (float[3, 4] a) => (float y) { y = Einsum <equation = "ij->"> (a) }'
    assert estimate(summed).flops == 12
    transposed = 'g (float[3, 4] a) => (float[4, 3] y) { y = Einsum <equation = "ij->ji"> (a) }'
    assert estimate(transposed).flops == 0


@pytest.mark.parametrize("op, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_count_every_step_and_direction(op: str, gates: int, directions: int) -> None:
    steps, batch, width, hidden = 5, 2, 3, 4
    rows = gates * hidden
    direction = "bidirectional" if directions == 2 else "forward"
    text = f"""g (float[{steps}, {batch}, {width}] x, float[{directions}, {rows}, {width}] w,
      float[{directions}, {rows}, {hidden}] r) => (float[{steps}, {directions}, {batch}, {hidden}] y)
    {{ y = {op} <hidden_size = {hidden}, direction = "{direction}"> (x, w, r) }}"""
    per_step = directions * gates * hidden * (width + hidden) * 2
    assert estimate(text).flops == steps * batch * per_step
    elements = steps * batch * width + directions * rows * (width + hidden) + steps * directions * batch * hidden
    assert estimate(text).bytes == 4 * elements


def test_attention_counts_its_two_matrix_products() -> None:
    text = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[2, 8, 6, 16] q, float[2, 4, 9, 16] k, float[2, 4, 9, 32] v) => (float[2, 8, 6, 32] y)
    { y = Attention (q, k, v) }"""
    assert estimate(text).flops == 2 * 2 * 8 * 6 * 9 * (16 + 32)
    flat = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[2, 6, 128] q, float[2, 9, 64] k, float[2, 9, 128] v) => (float[2, 6, 256] y)
    { y = Attention <q_num_heads = 8, kv_num_heads = 4> (q, k, v) }"""
    assert estimate(flat).flops == estimate(text).flops


CONTRIB = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'


@pytest.mark.parametrize(
    "nodes, inputs, output, flops",
    [
        ("y = com.microsoft.FusedMatMul (a, b)", {"a": (2, 5, 7), "b": (7, 3)}, (2, 5, 3), 420),
        ("y = com.microsoft.FusedMatMul <transA = 1> (a, b)", {"a": (2, 7, 5), "b": (7, 3)}, (2, 5, 3), 420),
        ("y = com.microsoft.FusedConv (a, b)", {"a": (1, 3, 4, 4), "b": (2, 3, 1, 1)}, (1, 2, 4, 4), 192),
        ("y = com.microsoft.FusedGemm (a, b)", {"a": (5, 7), "b": (7, 3)}, (5, 3), 210),
        (
            "y = com.microsoft.Attention <num_heads = 2> (a, b)",
            {"a": (1, 6, 8), "b": (8, 24)},
            (1, 6, 8),
            2 * 6 * 8 * 24 + 2 * 2 * 6 * 6 * 8,
        ),
        (
            "y = com.microsoft.MultiHeadAttention <num_heads = 2> (a, b, c)",
            {"a": (1, 6, 8), "b": (1, 9, 8), "c": (1, 9, 8)},
            (1, 6, 8),
            2 * 2 * 6 * 9 * 8,
        ),
    ],
)
def test_fused_operators_of_onnx_runtime_count_their_matrix_products(
    nodes: str, inputs: dict[str, tuple], output: tuple, flops: int
) -> None:
    declarations = ", ".join(f"float{list(shape)} {name}" for name, shape in inputs.items())
    work = estimate(f"{CONTRIB}g ({declarations}) => (float{list(output)} y) {{ {nodes} }}")
    assert (work.matrix_flops, work.unknown) == (flops, ())
    assert work.bytes == 4 * (sum(map(int, map(np.prod, inputs.values()))) + int(np.prod(output)))


# --- everything else ---


def test_elementwise_operators_reductions_and_pools_count_and_views_do_not() -> None:
    text = """g (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] p, float[1, 2, 1, 1] r, float[2, 64] t)
    { s = Sigmoid (x)  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)  r = ReduceMean <axes = [2, 3]> (s)
      f = Flatten <axis = 2> (s)  t = Identity (f) }"""
    work = {op.op_type: (op.flops, op.bytes) for op in estimate(text).ops}
    assert work["Sigmoid"] == (128, 4 * 256)
    assert work["MaxPool"] == (32 * 4, 4 * (128 + 32))
    assert work["ReduceMean"] == (128, 4 * (128 + 2))
    assert work["Flatten"] == work["Identity"] == (0, 0)


def test_gather_reads_as_much_as_it_yields() -> None:
    text = "g (int64[2, 3] i) => (float[2, 3, 10] y) { y = Gather (table, i) }"
    work = estimate_work(with_weights(text, make_weight("table", 1000, 10)))
    assert work.bytes == 8 * 6 + 2 * 4 * 60


def test_integer_operations_are_not_counted() -> None:
    assert estimate("g (int64[5] x) => (int64[5] y) { y = Add (x, x) }").flops == 0


def test_a_weight_counts_once() -> None:
    text = "g (float[2, 8] x) => (float[2, 8] y) { a = MatMul (x, w)  y = MatMul (a, w) }"
    assert estimate_work(with_weights(text, make_weight("w", 8, 8))).bytes == 4 * (64 + 4 * 16)


def test_a_node_that_reads_only_constants_costs_nothing() -> None:
    text = "g (float[2, 8] x) => (float[2, 4] y) { t = Transpose (w)  y = MatMul (x, t) }"
    work = estimate_work(with_weights(text, make_weight("w", 4, 8)))
    assert work.bytes == 4 * (16 + 32 + 8)
    assert work.flops == 2 * 8 * 8


def test_low_tensors_have_half_the_bytes_and_casts_move_bytes() -> None:
    text = """g (float[4, 8] x, float16[8, 8] w) => (float[4, 8] y)
    { h = Cast <to = 10> (x)  m = MatMul (h, w)  y = Cast <to = 1> (m) }"""
    work = estimate(text)
    assert work.low_share == 1
    assert {op.op_type: (op.bytes, op.low_flops) for op in work.ops} == {
        "MatMul": (2 * (32 + 64 + 32), 2 * 32 * 8),
        "Cast": (2 * (4 + 2) * 32, 0),
    }


# --- shapes ---


def test_a_symbolic_dimension_without_a_size_is_never_guessed() -> None:
    text = "g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { [first] a = MatMul (x, w)  [second] y = Relu (a) }"
    work = estimate(text)
    assert [(node.name, node.op_type, node.reason) for node in work.unknown] == [
        ("first", "MatMul", "its shapes are not known"),
        ("second", "Relu", "its shapes are not known"),
    ]
    assert (work.flops, work.bytes, work.low_share) == (0, 0, None)
    assert estimate(text, N=3).flops == 2 * 12 * 4 + 12
    assert estimate_work(model(text), {"x.0": 3}) == estimate(text, N=3)
    assert estimate_work(model(text), None, {"x": (3, 4)}) == estimate(text, N=3)


def test_shapes_that_the_model_computes_are_known() -> None:
    text = """g (float[N, 6] x) => (float[N, 2, 3] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[2] tail = {2, 3}>
    { s = Shape (x)  n = Slice (s, zero, one)  t = Concat <axis = 0> (n, tail)  r = Reshape (x, t)  y = Relu (r) }"""
    work = estimate(text, N=5)
    assert {op.op_type: op.flops for op in work.ops}["Relu"] == 30
    assert work.unknown == ()


def test_an_operator_without_a_formula_is_unknown() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[4] x) => (float[4] y) { [own] y = mine.Thing (x) }"""
    (node,) = estimate_work(model(text, check=False)).unknown
    assert (node.name, node.reason) == ("own", "no formula for this operator")


# --- control flow ---

LOOP = """g (float[4, 4] x) => (float[4, 4] y)
<int64 trips = {3}, bool on = {1}>
{ y = Loop (trips, on, x) <body = b (int64 i, bool c, float[4, 4] s) => (bool d, float[4, 4] t)
    { d = Identity (c)  t = MatMul (s, x) }> }"""


def test_a_loop_counts_every_iteration() -> None:
    assert estimate(LOOP).flops == 3 * 2 * 16 * 4
    assert estimate(LOOP).once == ()


def test_a_loop_whose_end_depends_on_data_counts_one_iteration() -> None:
    text = LOOP.replace("(float[4, 4] x)", "(float[4, 4] x, int64 trips)", 1).replace("int64 trips = {3}, ", "")
    work = estimate(text)
    assert work.flops == 2 * 16 * 4
    assert work.once == ("Loop_0 (Loop): one iteration",)


def test_a_loop_with_several_trip_counts_counts_one_iteration() -> None:
    work = estimate_work(model(LOOP.replace("int64 trips = {3}", "int64[2] trips = {3, 4}"), check=False))
    assert work.once == ("Loop_0 (Loop): one iteration",)


IF = """g (float[4, 4] x, bool c) => (float[4, 4] y)
{ y = If (c) <then_branch = a () => (float[4, 4] t) { t = Relu (x) },
              else_branch = b () => (float[4, 4] e) { e = MatMul (x, x) }> }"""


def test_an_if_counts_the_costlier_branch_unless_the_condition_is_constant() -> None:
    work = estimate(IF)
    assert (work.flops, work.once) == (2 * 16 * 4, ("If_0 (If): else_branch, the costlier one",))
    known_branch = estimate(
        IF.replace(", bool c)", ")").replace("(float[4, 4] y)\n", "(float[4, 4] y)\n<bool c = {1}>\n", 1)
    )
    assert (known_branch.flops, known_branch.once) == (16, ())


def test_a_scan_counts_every_element_of_its_sequence() -> None:
    text = """g (float[4] s, float[7, 4] xs) => (float[4] y, float[7, 4] ys)
    { y, ys = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] x) => (float[4] t, float[4] u)
        { t = Add (a, x)  u = Identity (t) }> (s, xs) }"""
    assert estimate(text).flops == 7 * 4


# --- the share of work in low precision ---


@pytest.mark.parametrize("text", [LOOP, IF])
def test_the_low_share_of_a_plan_is_that_of_the_rewritten_model(text: str) -> None:
    original = model(text)
    for white in (["MatMul"], []):
        plan = mixlist.resolve(original, policy(white=white))
        mixed = mixlist.rewrite(original, plan).model
        assert (
            compute_low_share(plan.solution, "float16", estimate_costs(plan.solution.graph))
            == estimate_work(mixed).low_share
            == float(bool(white))
        )


def test_the_low_share_weighs_nodes_by_their_operations() -> None:
    text = """g (float[2, 4] x, float[4, 4] v, float[4, 12] w) => (float[2, 12] y)
    { [small] a = MatMul (x, v)  [large] y = MatMul (a, w) }"""
    original = model(text)
    all_low = mixlist.resolve(original, policy(white=["MatMul"]))
    costs = estimate_costs(all_low.solution.graph)
    plan = mixlist.resolve(original, policy(white=["MatMul"], rules=keep("large")))
    assert compute_low_share(all_low.solution, "float16", costs) == 1
    assert compute_low_share(plan.solution, "float16", costs) == pytest.approx(1 / 4)


@pytest.mark.parametrize("library", ["onnx", "mindspore-o3", "ascend910b"])
def test_the_bytes_under_decisions_are_those_of_the_rewritten_model(library: str) -> None:
    plan = mixlist.resolve(DIGITS, mixlist.load_policy(ops_info=library))
    costs = estimate_costs(plan.solution.graph, {"batch": 4})
    rewritten = estimate_work(mixlist.rewrite(DIGITS, plan).model, {"batch": 4})
    assert count_moved_bytes(plan.solution, costs) == rewritten.bytes


def test_the_work_of_the_bundled_model_equals_the_count_by_hand() -> None:
    """Count the layers by hand: 8x8 pixels, 32 then 48 channels, 16 tokens of 48, 96 inside the feed-forward."""
    convolutions = 32 * 64 * (2 * 9 + 1) + 48 * 16 * (2 * 32 * 9 + 1)
    attention = 4 * 2 * 16 * 48 * 48 + 2 * 2 * 16 * 16 * 48
    dense = 2 * 2 * 16 * 48 * 96 + 2 * 48 * 10 + 10
    plan = mixlist.resolve(DIGITS, mixlist.load_policy())
    original, mixed = (estimate_work(m, {"batch": 1}) for m in (DIGITS, mixlist.rewrite(DIGITS, plan).model))
    assert original.matrix_flops == mixed.matrix_flops == convolutions + attention + dense
    assert (original.low_share, mixed.low_share) == (0, 1)
    assert mixed.bytes < original.bytes
    assert original.unknown == mixed.unknown == ()
    batch_of_8 = estimate_work(DIGITS, {"batch": 8})
    assert batch_of_8.matrix_flops == 8 * original.matrix_flops


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    import onnx

    proto = with_weights("g (float[2, 64] x) => (float[2, 64] y) { y = MatMul (x, w) }", make_weight("w", 64, 64))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.data", size_threshold=0)
    (tmp_path / "w.data").unlink()
    assert estimate_work(path).flops == 2 * 128 * 64


def test_operators_with_sequences_are_unknown() -> None:
    text = """g (float[4] x) => (float[4] y) { s = SequenceConstruct (x, x)  y = ConcatFromSequence <axis = 0> (s) }"""
    proto = model(text, check=False)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [8]))
    assert {node.op_type for node in estimate_work(proto).unknown} == {"SequenceConstruct", "ConcatFromSequence"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (
            """g (float[2] x) => (int64[a,b,c] y) <int64[1] n = {1500}, int64[3] r = {1,1500,1},
                int64[3] s = {1,1,1500}> {
                v = ConstantOfShape<value = int64[1] {1}>(n) q = Reshape(v, r) p = Reshape(v, s)
                w = Transpose<perm = [1, 0, 2]>(q) m = Cast<to = 9>(w) y = Where(m, q, p) }""",
            1500**3,
        ),
        (
            """g (float[2] x) => (int64[a,b,c] y) <int64[1] n = {4000}, int64[2] r = {1,4000}, int64[2] i = {60,60}> {
                v = ConstantOfShape<value = int64[1] {0}>(n) q = Reshape(v, r)
                k = ConstantOfShape<value = int64[1] {0}>(i) y = Gather<axis = 0>(q, k) }""",
            3600 * 4000,
        ),
    ],
    ids=["broadcast", "gather"],
)
def test_shape_propagation_computes_no_large_tensor(text: str, size: int) -> None:
    """Small constants lead to tensors of 3 GB and 0.1 GB here. Only their shapes may be computed."""
    graph = build_graph(model(text))
    tracemalloc.start()
    try:
        shape = estimate_costs(graph).known_shapes.shapes[graph.root.outputs[0]]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert prod(shape) == size
    assert peak < 20 << 20


def test_an_input_that_is_smaller_than_a_kernel_has_no_cost() -> None:
    """ONNX infers a negative size for it; a runtime refuses such an input."""
    text = "g (float[1, 1, L] x, float[4, 1, 9] w) => (float[1, 4, M] y) { y = Conv (x, w) }"
    work = estimate_work(model(text), {"L": 4})
    assert (work.flops, work.bytes, len(work.unknown)) == (0, 0, 1)
    assert estimate_work(model(text), {"L": 9}).flops == 2 * 4 * 9


# numpy warns where the Range of an old onnx.reference reads arrays of one element as numbers.
@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
def test_a_range_whose_inputs_have_one_element_each_is_estimated() -> None:
    scalars = "<float[1] start = {0}, float[1] limit = {8}, float[1] step = {1}>"
    text = f"g (float[2, 8] x) => (float[2, 8] y) {scalars} {{ r = Range (start, limit, step) y = Mul (x, r) }}"
    assert estimate_work(model(text, check=False), {}).flops == 16
