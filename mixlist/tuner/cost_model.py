"""What a choice costs, for ``--objective max-speed``: a static price, or on CUDA a measured time.

Static: each op type takes the longer of its arithmetic and its traffic. Arithmetic in a 16-bit type runs at twice the
rate, as vector and matrix units of the field do at least; traffic takes the bytes that ``estimate`` counts, Casts
included. ``INTENSITY``: float32 operations that take as long as one byte, half of what float16 matrix units do (Ascend
910: 256 TFLOP/s and 1.2 TB/s, Huawei's figures of 2019: 213 per byte; NVIDIA's A100 data sheet: 312 and 1.6: 200).
"""

from __future__ import annotations

import math

from mixlist.cost.estimate import Work, work
from mixlist.errors import ModelError
from mixlist.rewriter import rewrite
from mixlist.runtime.session import SessionOptions
from mixlist.runtime.timed_session import TimedSession
from mixlist.tuner.candidates import Choice
from mixlist.tuner.rounding_plan import Rounding, RoundingPoint
from mixlist.tuner.trial_compiler import Rig

INTENSITY = 100.0
WARMUP, ROUNDS, RUNS = 5, 10, 5  # of a measured time: the least of so many rounds counts


class Price:
    """The price of a choice: bytes on the CPU, whose times say nothing, elsewhere seconds.

    Choices that round alike have one price, measured once. ``edge``: below this part of another price one is lower.
    """

    def __init__(self, rig: Rig, provider: str) -> None:
        self.rig, self.provider = rig, provider
        self.edge = 0.99 if provider == "cpu" else 0.95  # times vary by some percent from session to session
        self.known: dict[frozenset[tuple[RoundingPoint, Rounding]], float] = {}

    def __call__(self, choice: Choice) -> float:
        key = frozenset(self.rig.planner.roundings(self.rig.solution(choice)).items())
        if key not in self.known:
            self.known[key] = self._static(choice) if self.provider == "cpu" else self._measured(choice)
        return self.known[key]

    def _static(self, choice: Choice) -> float:
        plan = self.rig.plan(choice)
        made = rewrite(plan.solution.loaded, plan)
        return price_of(work(made.proto, None, self.rig.shapes))

    def _measured(self, choice: Choice) -> float:
        """The least seconds of a run of the first batch, its inputs on the device; infinite for what does not run."""
        plan = self.rig.plan(choice)
        made = rewrite(plan.solution.loaded, plan)
        try:
            options = SessionOptions(provider=self.provider)
            with TimedSession(made.proto, options, folder=plan.solution.loaded.folder) as session:
                session.hold(self.rig.feeds[:1], False)
                session.time(0, WARMUP)
                return min(session.time(0, RUNS) for _ in range(ROUNDS))
        except ModelError:
            return math.inf


def price_of(account: Work) -> float:
    """The price of an account: of each op type the longer of arithmetic and traffic, in bytes."""
    return sum(max((op.flops - op.low_flops / 2) / INTENSITY, op.bytes) for op in account.ops)
