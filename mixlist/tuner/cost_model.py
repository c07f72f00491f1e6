"""Say what a set of edits costs, for ``--objective max-speed``: a static cost, or on CUDA a measured time.

Static: each op type takes the longer of its arithmetic and its traffic. Arithmetic in a 16-bit type runs at twice the
rate, as vector and matrix units of the field do at least; traffic takes the bytes that ``estimate`` counts, Casts
included. ``INTENSITY``: float32 operations that take as long as one byte, half of what float16 matrix units do (Ascend
910: 256 TFLOP/s and 1.2 TB/s, Huawei's figures of 2019: 213 per byte; NVIDIA's A100 data sheet: 312 and 1.6: 200).
"""

from __future__ import annotations

import math

from mixlist.cost.estimate import estimate_work
from mixlist.errors import ModelError
from mixlist.rewriter import rewrite
from mixlist.runtime.session import SessionOptions
from mixlist.runtime.timed_session import TimedSession
from mixlist.tuner.candidates import EditSet
from mixlist.tuner.rounding_plan import Rounding, RoundingPoint
from mixlist.tuner.trial_compiler import TrialCompiler

INTENSITY = 100.0
WARMUP, ROUNDS, RUNS = 5, 10, 5  # of a measured time: the least of so many rounds counts


class CostModel:
    """The cost of a set of edits: bytes on the CPU, whose times say nothing, elsewhere seconds.

    Sets of edits that round alike have one cost, measured once. ``threshold``: a cost is lower than another one if it
    is below this part of it.
    """

    def __init__(self, compiler: TrialCompiler, provider: str) -> None:
        self.compiler, self.provider = compiler, provider
        self.threshold = 0.99 if provider == "cpu" else 0.95  # times vary by some percent from session to session
        self._known: dict[frozenset[tuple[RoundingPoint, Rounding]], float] = {}

    def __call__(self, edits: EditSet) -> float:
        key = frozenset(self.compiler.planner.roundings(self.compiler.solution(edits)).items())
        if key not in self._known:
            self._known[key] = self._static(edits) if self.provider == "cpu" else self._measured(edits)
        return self._known[key]

    def _static(self, edits: EditSet) -> float:
        """Return the cost in bytes: of each op type the longer of arithmetic and traffic."""
        plan = self.compiler.plan(edits)
        account = estimate_work(rewrite(plan.solution.loaded, plan).proto, None, self.compiler.shapes)
        return sum(max((op.flops - op.low_flops / 2) / INTENSITY, op.bytes) for op in account.ops)

    def _measured(self, edits: EditSet) -> float:
        """Return the least seconds of a run of the first batch, its inputs on the device; infinite if it cannot run."""
        plan = self.compiler.plan(edits)
        loaded, options = plan.solution.loaded, SessionOptions(provider=self.provider)
        try:
            with TimedSession(rewrite(loaded, plan).proto, options, folder=loaded.folder) as session:
                session.load_batches(self.compiler.feeds[:1], False)
                session.time_runs(0, WARMUP)
                return min(session.time_runs(0, RUNS) for _ in range(ROUNDS))
        except ModelError:
            return math.inf
