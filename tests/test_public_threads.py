"""Public threads on wrong results after a conversion to float16, each rebuilt as a small model.

A test names the repository and the number of its thread. It shows the failure, and what mixlist does about it: the
mixed model is valid and right, ``check`` finds the failure, or ``tune`` and ``repair`` correct it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import mixlist
from mixlist import Policy
from tests.support.builders import HEAD, apply, model, policy
from tests.support.local_workers import InProcessExecutor

Feeds = dict[str, np.ndarray[Any, Any]]
# Every operator is white, and nothing is protected but constants out of range.
ALL_LOW = mixlist.load_policy("mindspore-o3", constants="keep")
DEFAULT = mixlist.load_policy()


def check(original: onnx.ModelProto, lists: Policy, *batches: Feeds) -> mixlist.CheckReport:
    return mixlist.check(original, lists, list(batches), executor=InProcessExecutor())


def tune(original: onnx.ModelProto, lists: Policy, *batches: Feeds) -> mixlist.TuneReport:
    return mixlist.tune(original, lists, list(batches), executor=InProcessExecutor())


def offenders(report: mixlist.CheckReport) -> set[str]:
    """Return the nodes where a failure starts."""
    return {finding.name for finding in report.nodes if finding.first}


def precisions(original: onnx.ModelProto, lists: Policy) -> dict[str, str]:
    return {node.name: node.precision for node in mixlist.resolve(original, lists).nodes}


def run(original: onnx.ModelProto, feeds: Feeds) -> np.ndarray[Any, Any]:
    """Return the first output, computed by the reference of onnx, which rounds float16 as numpy does."""
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(original).run(None, feeds)[0])


def test_an_infinite_variance_hides_in_a_finite_output() -> None:
    """microsoft/onnxruntime 31626: x / sqrt(inf) is 0, so the LayerNorm of nodes yields its bias and no NaN.

    ``check`` names the Pow, and ``tune`` finds the nodes that must stay high.
    """
    layer_norm = model(f"""{HEAD} g (float[2, 8] x, float[8, 8] w) => (float[2, 8] y)
    <float two = {{2}}, float eps = {{0.00001}}, float[8] b = {{0, 1, 0, 1, 0, 1, 0, 1}}> {{
        [p] p = MatMul (x, w) [mean] m = ReduceMean <axes = [-1]> (p) [sub] d = Sub (p, m)
        [pow] q = Pow (d, two) [var] v = ReduceMean <axes = [-1]> (q) [eps] e = Add (v, eps) [sqrt] s = Sqrt (e)
        [div] n = Div (d, s) [bias] y = Add (n, b) }}""")
    feeds = {"x": np.full((2, 8), 40, np.float32), "w": np.diag(np.arange(8, dtype=np.float32) * 5)}
    mixed = apply(layer_norm, ALL_LOW)
    assert np.isfinite(run(mixed, feeds)).all() and np.abs(run(mixed, feeds) - run(layer_norm, feeds)).max() > 1
    report = check(layer_norm, ALL_LOW, feeds)
    assert report.verdict == "fail" and offenders(report) == {"pow"}
    tuned = tune(layer_norm, ALL_LOW, feeds)
    assert tuned.verdict == "pass" and "Pow" in tuned.modify_mixlist
    assert check(layer_norm, DEFAULT, feeds).verdict == "pass"


def test_instance_normalization_of_large_values() -> None:
    """microsoft/onnxruntime 10079: the variance of an InstanceNormalization leaves the range of float16.

    The default lists keep the operator in float32. Where it is low, ``check`` warns of the sum inside it.
    """
    norm = model(f"""{HEAD} g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
    <float[2] s = {{1, 1}}, float[2] b = {{0, 0}}> {{ [c] c = Relu (x) [norm] y = InstanceNormalization (c, s, b) }}""")
    feeds = {"x": np.linspace(0, 4000, 32, dtype=np.float32).reshape(1, 2, 4, 4)}
    assert precisions(norm, DEFAULT)["norm"] == "float32"
    assert check(norm, DEFAULT, feeds).passes_without_low
    report = check(norm, ALL_LOW, feeds)
    assert ("norm", "internal-risk") in {(finding.name, finding.kind) for finding in report.nodes}


def test_unnamed_resizes_before_opset_11() -> None:
    """microsoft/onnxruntime 14827: Casts named after unnamed nodes collide, and the scales become float16."""
    resizes = model("""<ir_version: 5, opset_import: ["" : 10]> g (float[1, 1, 2, 2] x) => (float[1, 1, 8, 8] y)
    <float[4] k = {1, 1, 2, 2}> { a = Resize <mode = "nearest"> (x, k) y = Resize <mode = "nearest"> (a, k) }""")
    mixed = apply(resizes, ALL_LOW)
    onnx.checker.check_model(mixed, full_check=True)
    names = [name for node in mixed.graph.node for name in node.output]
    assert len(set(names)) == len(names) and {t.data_type for t in mixed.graph.initializer} == {1}
    feeds = {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)}
    assert check(resizes, ALL_LOW, feeds).verdict == "pass"


def test_the_state_of_a_loop_has_one_type() -> None:
    """microsoft/onnxruntime 7981: float16 went into a Loop whose body had float32 tensors, and no session was made."""
    loop = model(f"""{HEAD} g (float[2] x) => (float[2] y) <int64 n = {{3}}, bool go = {{1}}, float[2] w = {{2, 3}}> {{
        [pre] a = Exp (x) [loop] y = Loop (n, go, a) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t)
        {{ d = Identity (c) [mul] t = Mul (s, w) }}> }}""")
    mixed = apply(loop, ALL_LOW)
    onnx.checker.check_model(mixed, full_check=True)
    feeds = {"x": np.array([0, 1], np.float32)}
    np.testing.assert_allclose(run(mixed, feeds), run(loop, feeds), rtol=2e-3)
    assert precisions(loop, ALL_LOW)["mul"] == "float16"


def test_positions_beyond_2048() -> None:
    """NVIDIA/Megatron-LM 535: float16 has no odd numbers above 2048, so neighbors get one rotary embedding."""
    rotary = model(f"""{HEAD} g (int64[4] p, float[4] x) => (float[4] y) <float f = {{1}}> {{
        [cast] a = Cast <to = 1> (p) [angle] m = Mul (a, f) [cos] c = Cos (m) [rotate] y = Mul (x, c) }}""")
    feeds = {"p": np.arange(4093, 4097), "x": np.ones(4, np.float32)}
    unprotected = mixlist.resolve(rotary, ALL_LOW)
    assert "ML507" in {warning.code for warning in unprotected.warnings}
    assert check(rotary, ALL_LOW, feeds).verdict == "fail"
    protected = mixlist.load_policy("mindspore-o3", protect="positions")
    kept = precisions(rotary, protected)
    assert (kept["angle"], kept["rotate"]) == ("float32", "float16")
    assert check(rotary, protected, feeds).verdict == "pass"


def test_an_operator_whose_function_body_is_float32() -> None:
    """onnx/onnx 5753: the type check of a float16 MeanVarianceNormalization fails, although its schema allows it."""
    norm = model(
        f"""{HEAD} g (float[1, 2, 2, 2] x) => (float[1, 2, 2, 2] y)
    {{ [c] c = Relu (x) [norm] n = MeanVarianceNormalization (c) [r] y = Neg (n) }}""",
        check=False,
    )
    assert precisions(norm, ALL_LOW) == {"c": "float16", "norm": "float32", "r": "float16"}


def test_a_kernel_that_refuses_a_reduction() -> None:
    """microsoft/onnxruntime 18864: the CPU provider has a float16 ScatterElements that cannot reduce.

    ``--target cpu`` keeps the node in float32.
    """
    scatter = model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[4, 2] x, int64[3, 2] i, float[3, 2] u) => (float[4, 2] y) {
        [message] m = Relu (u) [aggregate] a = ScatterElements <reduction = "add"> (x, i, m) [out] y = Relu (a) }""")
    target = mixlist.plan_for_target(mixlist.resolve(scatter, ALL_LOW), "cpu")
    assert {node.name: node.otherwise for node in target.kept}["./aggregate"] == "refusal"
    assert {node.name: node.precision for node in target.plan.nodes}["aggregate"] == "float32"
    assert target.refused == ()


def test_the_epsilon_of_a_logarithm() -> None:
    """rwightman/efficientdet-pytorch 291: log(w + 1e-8) of an empty box is -infinity, because 1e-8 is 0 in float16."""
    coder = model(f"""{HEAD} g (float[4] w, float[4] a) => (float[4] y) <float eps = {{0.00000001}}> {{
        [ratio] r = Div (w, a) [guard] g = Add (r, eps) [log] l = Log (g) [out] y = Neg (l) }}""")
    feeds = {"w": np.array([0, 1, 2, 3], np.float32), "a": np.ones(4, np.float32)}
    assert np.isinf(run(apply(coder, mixlist.load_policy("mindspore-o3", constants="ieee")), feeds)).any()
    kept = precisions(coder, ALL_LOW)
    assert (kept["ratio"], kept["guard"], kept["log"]) == ("float16", "float32", "float32")
    assert np.isfinite(run(apply(coder, ALL_LOW), feeds)).all()
    assert check(coder, ALL_LOW, feeds).verdict == "pass"


def test_a_branch_that_reads_outer_tensors() -> None:
    """NVIDIA/Model-Optimizer 1628: a Gemm in a branch of If got float16 weights and a float32 outer tensor."""
    branches = model(f"""{HEAD} g (float[2, 2] x, bool c) => (float[2, 2] y)
    <float[2, 2] w = {{1, 2, 3, 4}}, float[2, 2] v = {{4, 3, 2, 1}}> {{ [outer] a = Exp (x) [if] i = If (c) <
        then_branch = t () => (float[2, 2] p) {{ [gemm] p = Gemm (a, w) }},
        else_branch = e () => (float[2, 2] q) {{ [matmul] q = MatMul (x, v) }}> [out] y = Neg (i) }}""")
    feeds = {"x": np.eye(2, dtype=np.float32)}
    for lists in (ALL_LOW, DEFAULT, policy(white=["Gemm"], black=["Exp", "Neg"])):
        mixed = apply(branches, lists)
        onnx.checker.check_model(mixed, full_check=True)
        for condition in (True, False):
            batch = {**feeds, "c": np.array(condition)}
            np.testing.assert_allclose(run(mixed, batch), run(branches, batch), rtol=2e-3)


def test_boxes_that_are_shifted_by_their_class() -> None:
    """MultimediaTechLab/YOLO 234: boxes + class * 3501 leave the range of float16, so duplicates are not suppressed.

    ``check`` finds the shift, and ``tune`` keeps it in float32.
    """
    shift = model(f"""{HEAD} g (float[1, 3, 4] b, float[1, 3, 1] k, float[1, 1, 3] s)
    => (int64[N, 3] y, float[1, 3, 4] z)
    <float size = {{3501}}, int64[1] n = {{3}}, float[1] t = {{0.5}}> {{
        [offset] o = Mul (k, size) [shift] z = Add (b, o) [nms] y = NonMaxSuppression (z, s, n, t, t) }}""")
    feeds = {
        "b": np.array([[[10, 10, 90, 90], [11, 11, 91, 91], [500, 500, 600, 600]]], np.float32),
        "k": np.full((1, 3, 1), 19, np.float32),
        "s": np.array([[[0.9, 0.8, 0.7]]], np.float32),
    }
    assert run(shift, feeds)[:, 2].tolist() == [0, 2]
    onnx.checker.check_model(apply(shift, ALL_LOW), full_check=True)
    report = check(shift, ALL_LOW, feeds)
    assert report.verdict == "fail" and offenders(report) == {"offset"}
    tuned = tune(shift, ALL_LOW, feeds)
    assert tuned.keeps_nothing_low and {"Add", "Mul"} <= {edit.op for edit in tuned.edits}


def test_a_residual_stream_that_overflows() -> None:
    """microsoft/onnxruntime 26732: activations of a decoder leave the range of float16; Clips were put into the file.

    ``repair`` finds the addition, and with ``clip`` a Clip takes the place of the nodes that it would raise.
    """
    decoder = model(f"""{HEAD} g (float16[1, 8] x) => (float16[1, 8] y)
    <float16[8] w = {{1, 1, 1, 1, 1, 1, 1, 1}}, float16[8] v = {{2, 1, 1, 1, 1, 1, 1, 1}}> {{
        [mlp] m = Mul (x, v) [residual] r = Add (m, x) [norm] n = LayerNormalization (r, w) [out] y = Mul (n, w) }}""")
    feeds = {"x": np.array([[27000, 8, 9, 2, 3, 1, 7, 4]], np.float16)}
    clipped = mixlist.repair(decoder, [feeds], executor=InProcessExecutor(), clip=True)
    assert clipped.verdict == "pass"
    assert [str(finding.ref) for finding in clipped.first_offenders] == ["residual"]
    assert [(edit.kind, edit.tensor, edit.limit) for edit in clipped.edits] == [("clip", "r", 32752.0)]


def test_an_initializer_of_a_high_and_a_low_node() -> None:
    """microsoft/onnxconverter-common 329: an initializer that a blocked node shares stayed float32 for all readers."""
    shared = model(f"""{HEAD} g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {{1, 2, 3, 4}}> {{
        [low] a = MatMul (x, w) [high] b = Pow (x, w) [sum] y = Add (a, b) }}""")
    lists = policy(white=["MatMul"], black=["Pow", "Add"])
    mixed = apply(shared, lists)
    onnx.checker.check_model(mixed, full_check=True)
    assert {tensor.data_type for tensor in mixed.graph.initializer} == {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
    }
    feeds = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    np.testing.assert_allclose(run(mixed, feeds), run(shared, feeds), rtol=2e-3)


def test_a_running_variance_out_of_range() -> None:
    """apple/coreai-torch 54: a running variance above 65504 becomes infinity, which makes the output its bias.

    The slot of the variance stays float32, and the node is low."""
    norm = model(f"""{HEAD} g (float[1, 2, 2] x) => (float[1, 2, 2] y) <float[2] s = {{1, 1}}, float[2] b = {{0, 0}},
    float[2] m = {{100, 100}}, float[2] v = {{100000, 4}}> {{
        [r] r = Relu (x) [norm] n = BatchNormalization (r, s, b, m, v) [out] y = Neg (n) }}""")
    feeds = {"x": np.array([[[0, 1000], [90, 110]]], np.float32)}
    assert precisions(norm, ALL_LOW)["norm"] == "float16"
    variance = next(tensor for tensor in apply(norm, ALL_LOW).graph.initializer if tensor.name == "v")
    assert variance.data_type == onnx.TensorProto.FLOAT
    assert check(norm, ALL_LOW, feeds).verdict == "pass"
    assert check(norm, mixlist.load_policy("mindspore-o3", constants="ieee"), feeds).verdict == "fail"


def test_the_coordinates_of_a_sampling_grid() -> None:
    """pytorch/pytorch 96429: a float16 grid moves the points that GridSample reads in a large image."""
    sample = model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[1, 1, 1, 2000] x, float[1, 1, 64, 2] p) => (float[1, 1, 1, 64] y) <float half = {0.5}> {
        [grid] g = Mul (p, half) [image] i = Relu (x) [sample] y = GridSample (i, g) }""")
    points = np.zeros((1, 1, 64, 2), np.float32)
    points[..., 0] = np.linspace(-1.99, 1.99, 64)
    feeds = {"x": np.arange(2000, dtype=np.float32)[None, None, None] % 2, "p": points}
    assert check(sample, ALL_LOW, feeds).verdict == "fail"
    assert check(sample, DEFAULT, feeds).passes_without_low
    tuned = tune(sample, ALL_LOW, feeds)
    assert tuned.verdict == "pass" and "GridSample" in tuned.modify_mixlist


def test_a_grid_of_an_optical_flow() -> None:
    """NVIDIA/TensorRT 4355: the results of an optical flow network in float16 differ by whole pixels.

    Here the rounded grid is the cause. It depends on the flow, so it is no position (Rule S4.38), and it becomes low
    under the default lists. ``check`` fails, and ``tune`` keeps its arithmetic in float32.
    """
    width = 1500
    warp = model(f"""<ir_version: 9, opset_import: ["" : 20]>
    g (float[1, 1, 1, {width}] x, float[1, 1, 1, {width}] f, float[1, 1, {width}, 2] base, float[1, 1] w)
    => (float[1, 1, 1, {width}] y)
    <float scale = {{{2 / width}}}, float one = {{1}}, int64[4] s = {{1, 1, {width}, 1}}> {{
        [rows] r = Reshape (f, s) [flow] m = MatMul (r, w) [add] c = Add (m, base)
        [scale] d = Mul (c, scale) [center] g = Sub (d, one) [sample] y = GridSample (x, g) }}""")
    base = np.zeros((1, 1, width, 2), np.float32)
    base[..., 0] = np.arange(width) + 0.5
    image = np.arange(width, dtype=np.float32)[None, None, None] % 2
    flow, weight = np.full((1, 1, 1, width), 0.25, np.float32), np.ones((1, 1), np.float32)
    feeds = {"x": image, "f": flow, "base": base, "w": weight}
    assert precisions(warp, DEFAULT)["center"] == "float16"
    assert check(warp, DEFAULT, feeds).verdict == "fail"
    tuned = tune(warp, DEFAULT, feeds)
    assert tuned.verdict == "pass" and tuned.low_share["tuned"] == 1
