"""Test sessions on a GPU: rounding, the kernels that run, and the data file that lists these kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from mixlist.errors import ModelError
from mixlist.run.local_session import LocalSession, open_session
from mixlist.run.session import SessionOptions
from mixlist.targets.target import load_target
from tests.support.builders import model
from tests.support.cuda import cuda_error
from tests.support.rounding import rounding_defect
from tests.support.workers import remote_session

pytestmark = pytest.mark.skipif(bool(cuda_error()), reason=f"no CUDA here: {cuda_error()}")

NUMBERS = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
UNARY = (
    "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh",
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
    "GlobalAveragePool", "GlobalMaxPool", "LogSoftmax", "Transpose", "Identity",
)  # fmt: skip


def run_one_node(op_type: str, low: str, provider: str, profile: Path) -> dict[str, str]:
    """Run a model of one low-precision node, and return the provider of each op type that ran."""
    proto = model(f"g ({low}[1,2,4] x) => ({low}[A,B,C] y) {{ y = {op_type}(x) }}", check=False)
    session = open_session(proto.SerializeToString(), SessionOptions(provider, optimize=False, profile=profile))
    dtype = np.float16 if low == "float16" else ml_dtypes.bfloat16
    LocalSession(session).run(None, {"x": np.linspace(0.25, 2, 8, dtype=np.float32).reshape(1, 2, 4).astype(dtype)})
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    nodes = [event["args"] for event in events if event.get("name", "").endswith("_kernel_time")]
    return {args["op_name"]: args["provider"] for args in nodes}


@pytest.mark.parametrize("optimize", [True, False])
def test_cast_pairs_round(optimize: bool) -> None:
    assert rounding_defect("cuda", optimize) is None


@pytest.mark.parametrize("low", NUMBERS)
@pytest.mark.parametrize("op_type", UNARY)
def test_the_data_file_lists_the_kernels_that_run(op_type: str, low: str, tmp_path: Path) -> None:
    """If the file lists a kernel, the node runs on the GPU in the low type, without Casts."""
    is_listed = load_target("cuda").runs("", op_type, 17, low, (0,))
    try:
        providers = run_one_node(op_type, low, "cuda", tmp_path / "profile")
    except ModelError as error:
        assert not is_listed, error
    else:
        assert (providers.get(op_type) == "CUDAExecutionProvider" and "Cast" not in providers) == is_listed


def test_bfloat16_inputs_and_outputs() -> None:
    proto = model("g (bfloat16[4] x) => (bfloat16[4] y, float[4] z) { y = Neg(x) z = Cast<to=1>(x) }", check=False)
    values = np.array([1, -2, 3e38, 0], ml_dtypes.bfloat16)
    y, z = LocalSession(open_session(proto.SerializeToString(), SessionOptions("cuda"))).run(None, {"x": values})
    assert y.dtype == values.dtype
    np.testing.assert_array_equal(y.astype(np.float32), -values.astype(np.float32))
    np.testing.assert_array_equal(z, values.astype(np.float32))


def matmul_error(tf32: bool, rows: Any) -> float:
    """Return the largest error of a float32 product, relative to its largest value."""
    proto = model("g (float[N,N] x) => (float[N,N] y) { y = MatMul(x, x) }")
    (y,) = LocalSession(open_session(proto.SerializeToString(), SessionOptions("cuda", tf32=tf32))).run(
        None, {"x": rows}
    )
    expected = rows.astype(np.float64) @ rows.astype(np.float64)
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def test_float32_is_not_computed_in_tf32() -> None:
    rows = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    assert matmul_error(False, rows) < 1e-5
    assert matmul_error(False, rows) <= matmul_error(True, rows)


@pytest.mark.parametrize("low", NUMBERS)
def test_products_are_summed_in_float32(low: str) -> None:
    """The emulation rounds once, after the sum. If each addition rounded to float16, 2048 + 4095 ones would be 2048."""
    text = """g (float[1,4096] x, float[4096,1] w) => (float[1,1] y) {
      a = Cast<to=LOW>(x) b = Cast<to=LOW>(w) c = MatMul(a, b) y = Cast<to=1>(c) }"""
    x = np.ones((1, 4096), np.float32)
    x[0, 0] = 2048
    runner = LocalSession(
        open_session(model(text.replace("LOW", str(NUMBERS[low]))).SerializeToString(), SessionOptions("cuda"))
    )
    (y,) = runner.run(None, {"x": x, "w": np.ones((4096, 1), np.float32)})
    assert y[0, 0] == pytest.approx(6143, rel=2.0**-8)


def test_a_remote_session_runs_on_the_gpu() -> None:
    proto = model("g (float[2] x) => (float[2] y) { h = Cast<to=10>(x) m = Mul(h, h) y = Cast<to=1>(m) }")
    with remote_session(proto, SessionOptions("cuda")) as session:
        (y,) = session.run(None, {"x": np.array([300, 2], np.float32)})
    np.testing.assert_array_equal(y, [np.inf, 4])
