"""Hold what ``train`` measured: values only, rendered by the report rooms (schemas/train.json)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Literal

from mixlist.checker.result import NodeFinding, Verdict
from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.files.strict_json import to_strict_json


@dataclass
class TrainingHistory:
    """One training: the unscaled loss of each step, and the evaluation metric at its end (None: none was taken).

    The rest is for mixed trainings: the scale of each step, the steps whose update was skipped, those with a gradient
    that was not finite, extra runs of batches that were tried again, and by parameter in how many steps its gradient
    was not finite. ``diverged``: why the training came to nothing (Rule S10.16), or "".
    """

    loss: list[float] = field(default_factory=list)
    metric: float | None = None
    scale: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    exceptions: list[int] = field(default_factory=list)
    tries: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    diverged: str = ""


@dataclass(frozen=True)
class SeedRun:
    """One seed, trained twice on the same batches."""

    seed: int
    float32: TrainingHistory
    mixed: TrainingHistory


@dataclass(frozen=True)
class GradientUnderflow:
    """Of the gradient values that are not zero in float32: the share that is zero, or subnormal, in the low type.

    With the loss scaled as in training, and unscaled; over ``steps`` sampled steps of all runs.
    """

    zero: float
    subnormal: float
    zero_unscaled: float
    subnormal_unscaled: float
    steps: int


@dataclass(frozen=True)
class TuningRun:
    """One setting of the scaler that was tried (``--tune-scale``): its exceptions and gradients lost in ``steps``."""

    parameters: dict[str, float]
    exceptions: int
    steps: int
    zero: float


@dataclass(frozen=True, repr=False)
class TrainReport:
    """The verdict on training in mixed precision and what it rests on.

    ``exception_rate``: share of the mixed steps of all runs with a gradient that was not finite; ``limit``: the rate
    from which it fails. ``steps``: of each training. ``metric``: its name, ``higher``: whether more is better;
    ``tolerance``: how much worse than float32 it may be. ``scaler``: its name and parameters.
    ``offenders``: nodes that overflow first in the first bad step, with the loss multiplied by ``trace_scale`` (1: they
    do so whatever the scale); ``suggestion``: a modify_mixlist under which that step does not overflow, or "".
    ``scale_choice``: the best parameters that ``scale_trials`` found. ``complete``: False after Ctrl-C; the last run
    may be a part then.
    """

    model: str
    verdict: Verdict
    reasons: tuple[str, ...]
    provider: str
    mode: Literal["emulated", "native"]
    precision: str
    exception_rate: float
    limit: float
    steps: int
    batch_size: int
    metric: str
    higher: bool
    tolerance: float
    runs: tuple[SeedRun, ...]
    scaler: dict[str, object]
    optimizer: dict[str, object]
    underflow: GradientUnderflow | None = None
    offenders: tuple[NodeFinding, ...] = ()
    trace_scale: float | None = None
    suggestion: str = ""
    scale_trials: tuple[TuningRun, ...] = ()
    scale_choice: dict[str, float] = field(default_factory=dict)
    complete: bool = True
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"runs {len(self.runs)}, steps {self.steps}, warnings {len(self.warnings)}"
        return f"<TrainReport of {self.model!r}: {self.verdict}; {counts}>"

    @property
    def bad(self) -> dict[str, int]:
        """Return by parameter the number of steps of all runs with a gradient that was not finite; the worst first."""
        total: Counter[str] = Counter()
        for run in self.runs:
            total.update(run.mixed.bad)
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.train/1`` object of schemas/train.json; infinities and NaN become strings."""
        plain = asdict(self)
        plain["bad"] = self.bad
        plain["warnings"] = warnings_as_text(self.warnings)
        for run in plain["runs"]:
            for name in ("scale", "skipped", "exceptions", "tries", "bad"):
                del run["float32"][name]
        return {"format": "mixlist.train/1", **to_strict_json(plain)}


def spread(values: list[float]) -> float:
    """Return the largest value less the smallest."""
    return max(values) - min(values) if values else 0.0
