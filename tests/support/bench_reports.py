"""Bench reports and estimates made by hand, for the tests of what shows them."""

from __future__ import annotations

from dataclasses import replace

from mixlist.benchmark.result import BenchReport, GraphChanges, Ratio, Spread, TimedModel
from mixlist.diagnostics import warning
from mixlist.run.profile_reader import OpTime, Profile
from mixlist.targets.estimate import OpWork, UnknownNode, Work


def timed_model(name: str, median: float, low_nodes: int, low_kernels: int) -> TimedModel:
    operators = (OpTime("MatMul", 4.0, 0.8 * median), OpTime("Cast", 2.0, 0.1 * median))
    profile = Profile(5, operators, 12, low_nodes, {"CPUExecutionProvider": 12}, 2_000_000, False, median)
    graph = GraphChanges(20, 2, 12, 6, low_nodes, {"com.microsoft::FusedMatMul": 3} if low_nodes else {})
    spread = Spread(0.85 * median, median, 0.9 * median, 1.1 * median, 0.8 * median, 5)
    return TimedModel(name, low_nodes, low_kernels, spread, 10_000_000, graph, profile)


SLOWER = BenchReport(
    provider="cpu",
    threads=None,
    rounds=30,
    repeats=1,
    batches=1,
    transfers=False,
    original=timed_model("model.onnx", 0.010, 0, 0),
    other=timed_model("model.onnx, mixed", 0.033, 8, 3),
    ratio=Ratio(3.3, 1.06, 4.95),
    notes=("float16 timing on the CPU says nothing about an accelerator",),
    warnings=(warning("ML604", "the size N is not given: 1 is used"),),
)
FASTER = replace(SLOWER, provider="cuda", ratio=Ratio(0.5, 0.49, 0.52), notes=(), warnings=())
EQUAL = replace(SLOWER, ratio=Ratio(0.95, 0.9, 1.1), other=timed_model("other.onnx", 0.0095, 8, 8))
INCONCLUSIVE = replace(SLOWER, rounds=3, ratio=None)
NOT_TIMED = replace(SLOWER, ratio=None, other=TimedModel("model.onnx, mixed", 8, 3, failure="no kernel for Mod"))


def work(model: str, low: bool) -> Work:
    share, size = int(low), 16 if low else 32
    ops = (OpWork("MatMul", "", 4, 1000, 1000 * share, 100 * size), OpWork("Cast", "", 2 * share, 0, 0, 10 * share))
    unknown = (UnknownNode("", "/custom", "Custom", "its shape is unknown"),)
    return Work(model, ops, 1000, 1000 * share, 1000, 1000 * share, 100 * size, unknown, ("loop: one iteration",))
