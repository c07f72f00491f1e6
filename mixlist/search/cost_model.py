"""Compute the cost of a set of edits, for ``--objective max-speed``: a static cost, or on CUDA a measured time.

The static cost is a sum over the op types of the model, in bytes. For each op type it adds the larger of two numbers:
the bytes that the operators move (traffic), and the bytes that could be moved during their arithmetic:

- Arithmetic in a 16-bit type runs at twice the rate of float32. Vector and matrix units do at least that.
- Traffic is the bytes that ``estimate_work`` counts, with the Casts that a rewrite inserts.
- ``FLOPS_PER_BYTE`` float32 operations take as long as moving one byte. The number is half of the operations per byte
  of float16 matrix units: Ascend 910 has 256 TFLOP/s and 1.2 TB/s (Huawei, 2019), 213 operations per byte; NVIDIA A100
  has 312 TFLOP/s and 1.6 TB/s (data sheet), 200 operations per byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.search.edits import EditSet
from mixlist.search.rounding_plan import Rounding, RoundingPoint
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.targets.estimate import estimate_work
from mixlist.write import RewriteResult, rewrite

if TYPE_CHECKING:
    from mixlist.run.session import Feed

FLOPS_PER_BYTE = 100.0


class CostModel:
    """Computes the cost of a set of edits: a static cost in bytes, or a measured time in seconds.

    ``measure_seconds``: returns the seconds of a run of a rewritten model on a batch, and raises ModelError if the
    model cannot run; None for the static cost. Sets of edits that round at the same points share one cost, which is
    computed once. ``threshold``: a cost counts as lower than another one only if it is below ``threshold`` times the
    other one.
    """

    def __init__(self, compiler: TrialCompiler, measure_seconds: Callable[[RewriteResult, Feed], float] | None) -> None:
        self.compiler, self._measure_seconds = compiler, measure_seconds
        self.threshold = 0.99 if measure_seconds is None else 0.95  # times vary by some percent between sessions
        self._costs: dict[frozenset[tuple[RoundingPoint, Rounding]], float] = {}

    def __call__(self, edits: EditSet) -> float:
        """Return the cost of a set of edits."""
        # Different edits often lead to the same plan, for example if an op type that is low already becomes white.
        key = frozenset(self.compiler.planner.find_roundings(self.compiler.solution(edits)).items())
        if key not in self._costs:
            self._costs[key] = self._static_cost(edits) if self._measure_seconds is None else self._measured_time(edits)
        return self._costs[key]

    def _static_cost(self, edits: EditSet) -> float:
        """Return the cost in bytes: the sum over op types of the longer of arithmetic and traffic."""
        plan = self.compiler.plan(edits)
        # The rewritten model has the Casts that the edits make necessary: their traffic can outweigh what is gained.
        work = estimate_work(rewrite(plan.solution.loaded, plan).proto, None, self.compiler.shapes)
        # ``flops`` includes the low operations, which take half the time: subtract the other half.
        return sum(max((op.flops - op.low_flops / 2) / FLOPS_PER_BYTE, op.bytes) for op in work.ops)

    def _measured_time(self, edits: EditSet) -> float:
        """Return the seconds of a run of the first batch; inf if the model cannot run.

        The model that runs is the rewritten one, not the emulation.
        """
        assert self._measure_seconds is not None, "the cost is static"
        plan = self.compiler.plan(edits)
        try:
            return self._measure_seconds(rewrite(plan.solution.loaded, plan), self.compiler.feeds[0])
        except ModelError:
            # ONNX Runtime refuses this model or crashes on it, so these edits must not win.
            return math.inf
