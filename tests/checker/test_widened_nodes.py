"""Rule S8.2: nodes that a native check computes in float32 are emulated; the CPU provider plays CUDA here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker import check_sessions
from mixlist.checker.widened_nodes import describe_widened_nodes, number_low_nodes, round_widened_nodes
from mixlist.run.session import SessionOptions
from tests.support.builders import model
from tests.support.package import load_model
from tests.support.planted_models import PLANTED, Planted

FP16 = mixlist.load_policy(precision_mode_v2="fp16")
SINH = "g (float[N] x) => (float[N] y) { [s] h = Sinh(x) [t] y = Tanh(h) }"
LARGE = [{"x": np.array([1.0, 15.0], np.float32)}]  # sinh(15) is 1.6e6, and its Tanh 1 in both types


@pytest.fixture
def cuda_is_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the sessions of ``--provider cuda`` on the CPU: all float16 nodes are like those without a CUDA kernel."""

    def on_the_cpu(provider: str = "cpu", **options: Any) -> SessionOptions:
        return SessionOptions("cpu", **options)

    monkeypatch.setattr(check_sessions, "SessionOptions", on_the_cpu)


def kinds(report: mixlist.CheckReport) -> dict[str, str]:
    return {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in reversed(report.nodes)}


@pytest.mark.usefixtures("cuda_is_cpu")
def test_an_overflow_of_a_node_without_a_kernel_is_found_and_named() -> None:
    report = mixlist.check(model(SINH), FP16, LARGE, provider="cuda")
    assert (report.mode, report.verdict, kinds(report)) == ("native", "fail", {"s": "overflow"})
    (found,) = (w for w in report.warnings if w.code == "ML621")
    assert found.message == "2 low nodes ran in float32 on the CPU, not on cuda; the check emulates: s (Sinh), t (Tanh)"


@pytest.mark.usefixtures("cuda_is_cpu")
@pytest.mark.parametrize("case", [case for case in PLANTED if "bfloat16" not in case.name], ids=lambda case: case.name)
def test_planted_overflows_are_found_as_in_the_emulation(case: Planted) -> None:
    report = mixlist.check(model(case.text), case.policy, case.feeds, provider="cuda")
    assert (report.mode, kinds(report), report.exception_rate) == ("native", case.kinds, case.rate)


@pytest.mark.usefixtures("cuda_is_cpu")
def test_segments_have_profiles_too() -> None:
    report = mixlist.check(model(SINH), FP16, LARGE, provider="cuda", segment_bytes=1)
    assert kinds(report) == {"s": "overflow"}
    assert any(w.code == "ML621" and "s (Sinh), t (Tanh)" in w.message for w in report.warnings)


def test_an_emulated_check_has_no_such_nodes() -> None:
    assert not any(w.code == "ML621" for w in mixlist.check(model(SINH), FP16, LARGE).warnings)


def test_only_the_given_nodes_get_casts() -> None:
    text = """g (float16[N] x) => (float16[N] y, bool[N] e) {
        [s] h = Sinh(x) [t] y = Tan(h) [e] e = Equal(h, y) }"""
    loaded = load_model(model(text))
    _, node_of = number_low_nodes(loaded.proto)
    rounded = round_widened_nodes(loaded, [node for node in node_of.values() if node.op_type != "Tan"])
    made_by = {node.output[0]: node for node in rounded.graph.node}
    casts = [(n.input[0], n.output[0], n.attribute[0].i) for n in rounded.graph.node if n.op_type == "Cast"]
    assert casts == [("x", "x_float", 1), ("h_exact", "h", 10), ("h", "h_float", 1), ("y", "y_float", 1)]
    assert list(made_by["h_exact"].input) == ["x_float"]
    assert list(made_by["y"].input) == ["h"]
    assert list(made_by["e"].input) == ["h_float", "y_float"]


def test_the_warning_names_ten_nodes() -> None:
    text = "g (float16[N] x0) => (float16[N] x12) {"
    text += "".join(f"x{k + 1} = Sinh(x{k}) " for k in range(12)) + "}"
    _, node_of = number_low_nodes(model(text))
    (found,) = describe_widened_nodes(list(node_of.values()), "cuda")
    assert found.message.endswith("Sinh_9 (Sinh), and 2 more")
    assert "Sinh_10" not in found.message
    assert describe_widened_nodes([], "cuda") == []
