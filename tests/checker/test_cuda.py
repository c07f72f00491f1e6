"""The check on planted graphs: emulated on the CPU everywhere, and on a GPU in real float16 and bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import mixlist
from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.instrument import Instrumenter
from mixlist.checker.result import CheckReport
from tests.support.builders import model
from tests.support.cuda import cuda_error
from tests.support.local_workers import InProcessExecutor
from tests.support.package import Workers, data_folder, load_model
from tests.support.planted_models import PLANTED, Planted

IN_THIS_PROCESS = Workers(InProcessExecutor(), 1, None, str)
needs_cuda = pytest.mark.skipif(bool(cuda_error()), reason=f"no CUDA here: {cuda_error()}")
BOTH_PROVIDERS = pytest.mark.parametrize("provider", ["cpu", pytest.param("cuda", marks=needs_cuda)])
LOW = {"float16": (10, np.dtype(np.float16)), "bfloat16": (16, np.dtype(ml_dtypes.bfloat16))}
NAN, INF = np.nan, np.inf
VALUES = {
    "finite": [1.0, -2.0, 3.0],
    "one": [-7.0],
    "NaN first": [NAN, 1.0, 2.0],
    "NaN in the middle": [1.0, NAN, 2.0],
    "NaN last": [1.0, -2.0, NAN],
    "only NaN": [NAN, NAN],
    "infinite": [1.0, INF, 2.0],
    "infinite below": [1.0, -INF],
    "infinite both ways": [INF, 1.0, -INF],
    "infinite and NaN": [NAN, INF, 1.0],
    "sums beyond float16": [60000.0, -60000.0] * 1000,
    "subnormal": [2.0**-24, 2.0**-20],
}


def kinds(report: CheckReport) -> dict[str, str]:
    """Return the worst kind of finding by scope/node."""
    return {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in reversed(report.nodes)}


@BOTH_PROVIDERS
@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case.name)
def test_planted_overflows_are_found(case: Planted, provider: str) -> None:
    report = mixlist.check(model(case.text), case.policy, case.feeds, provider=provider)
    assert report.mode == ("emulated" if provider == "cpu" else "native")
    assert kinds(report) == case.kinds
    assert {f"{n.scope}/{n.name}".lstrip("/") for n in report.nodes if n.first} == case.first
    assert report.exception_rate == case.rate


@BOTH_PROVIDERS
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_ranges_of_low_tensors(provider: str, low: str, values: list[float]) -> None:
    elem, dtype = LOW[low]
    text = f"g (float[N] x) => (float[N] y) {{ h = Cast<to={elem}>(x) [m] n = Neg(h) y = Cast<to=1>(n) }}"
    loaded = load_model(model(text))
    observer = CheckSessions(provider, IN_THIS_PROCESS, False).open_mixed_observer(
        loaded, Instrumenter(loaded.proto).run(), ["y"]
    )
    _, ranges = observer.run({"x": np.array(values, np.float32)})
    observer.close()
    (observed,) = (observed for tensor, observed in ranges.items() if tensor.node == "m")
    expected = -np.array(values, np.float32).astype(dtype).astype(np.float32)
    numbers = expected[~np.isnan(expected)]
    assert observed.nan == np.isnan(expected).any()
    assert observed.finite == np.isfinite(expected).all()
    if numbers.size and np.isfinite(expected).all():
        assert (observed.minimum, observed.maximum) == (numbers.min(), numbers.max())
    assert observed.magnitude == (np.abs(expected).max() if np.isfinite(expected).all() else INF)


@needs_cuda
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_the_demo_has_the_same_verdict_natively_and_emulated(mode: str) -> None:
    with np.load(data_folder("demo_data") / "digits.npz") as arrays:
        feed = {"pixels": arrays["pixels"].astype(np.float32)}
    digits, rules = data_folder("demo_data") / "digits.onnx", mixlist.load_policy(precision_mode_v2=mode)
    native = mixlist.check(digits, rules, [feed], provider="cuda")
    emulated = mixlist.check(digits, rules, [feed])
    assert (native.mode, emulated.mode) == ("native", "emulated")
    assert native.verdict == emulated.verdict
    assert {n.name for n in native.nodes if n.first} == {n.name for n in emulated.nodes if n.first}


@needs_cuda
def test_sessions_in_another_process() -> None:
    case = PLANTED[0]
    report = mixlist.check(model(case.text), case.policy, case.feeds, provider="cuda")
    assert (kinds(report), report.mode) == (case.kinds, "native")


@needs_cuda
def test_saturation_is_emulated_on_a_gpu_too() -> None:
    feeds = [{"x": np.array([300.0, 1.0], np.float32)}]
    fp16 = mixlist.load_policy(precision_mode_v2="fp16")
    text = "g (float[N] x) => (float[N] y) { y = Mul(x, x) }"
    report = mixlist.check(model(text), fp16, feeds, provider="cuda", overflow_mode="saturate")
    assert (report.mode, [node.kind for node in report.nodes]) == ("emulated", ["saturated"])


@needs_cuda
def test_an_overflow_of_a_node_without_a_cuda_kernel_is_found() -> None:
    """Rule S8.2: Sinh runs on the CPU provider in float32, where its result stays finite."""
    text = "g (float[N] x) => (float[N] y) { [s] h = Sinh(x) [t] y = Tanh(h) }"
    fp16 = mixlist.load_policy(precision_mode_v2="fp16")
    report = mixlist.check(model(text), fp16, [{"x": np.array([1.0, 15.0], np.float32)}], provider="cuda")
    assert (report.mode, kinds(report)) == ("native", {"s": "overflow"})
    (found,) = (found for found in report.warnings if found.code == "ML621")
    assert found.message.endswith("the check emulates: s (Sinh)")
