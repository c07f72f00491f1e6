"""Define the result of ``train``: values only, which ``report`` renders (schemas/train.json)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Literal

from mixlist.checker.result import NodeFinding, Verdict
from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.files.strict_json import to_strict_json
from mixlist.notebook_table import limited, notebook_facts
from mixlist.training.comparison import Comparison


@dataclass
class TrainingHistory:
    """The course of one training.

    - ``loss``: the unscaled loss of each step.
    - ``first_metric``: the metric on the evaluation data before the first step.
    - ``evaluations``: the metric after 80, 85, 90, 95 and 100 % of the steps. ``metric``: their mean; None if Ctrl-C
      ended the training earlier.
    - ``diverged``: the reason why the training failed (Rule S10.16), as the end of a sentence, or "".

    The report shows the other fields for mixed trainings only:

    - ``scale``: the loss scale of each step.
    - ``skipped``: the steps whose update was skipped.
    - ``exceptions``: the steps with a gradient that was not finite, or with an overflow in any node.
    - ``tries``: the number of steps after which the scaler tried the update again with the next batch (nnabla).
    - ``bad``: for each parameter, the number of steps in which its gradient was not finite.
    """

    loss: list[float] = field(default_factory=list)
    first_metric: float | None = None
    evaluations: list[float] = field(default_factory=list)
    metric: float | None = None
    scale: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    exceptions: list[int] = field(default_factory=list)
    tries: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    diverged: str = ""


@dataclass(frozen=True)
class SeedRun:
    """The trainings of one seed, on the same batches.

    ``twin`` is in float32, too. It starts from slightly other weights: what it differs by is no fault of the precision.
    """

    seed: int
    float32: TrainingHistory
    twin: TrainingHistory
    mixed: TrainingHistory


@dataclass(frozen=True)
class GradientHistogram:
    """The magnitudes of the gradient of one parameter, with the loss scaled as in training, and unscaled.

    Both have len(exponent_edges) + 2 numbers of values: zeros; below the first edge; between each edge and the next;
    at least the last edge, which is beyond the low type, or not finite.
    """

    parameter: str
    scaled: tuple[int, ...]
    unscaled: tuple[int, ...]


@dataclass(frozen=True)
class GradientUnderflow:
    """The shares of gradient values that underflow, among those that are not zero in float32.

    ``zero`` is the share that becomes zero, ``subnormal`` the share that becomes a subnormal number of the low type,
    both with the loss scaled as in training. ``zero_unscaled`` and ``subnormal_unscaled`` are the same with the loss
    scale 1. ``steps`` is the number of sampled steps of all runs. ``zero_gradient_share`` has the share of zeros among
    all gradient values, with the loss scaled, by the type: "float32" and "mixed". ``histograms`` has the magnitudes of
    the same values for each parameter; ``exponent_edges`` are the edges of its bins as exponents of 2.
    """

    zero: float
    subnormal: float
    zero_unscaled: float
    subnormal_unscaled: float
    steps: int
    zero_gradient_share: dict[str, float]
    exponent_edges: tuple[int, ...] = ()
    histograms: tuple[GradientHistogram, ...] = ()


@dataclass(frozen=True)
class TuningRun:
    """One training with a setting of the scaler (``--tune-scale``).

    ``parameters`` has the changed parameters of the scaler. ``exceptions`` counts the exceptions in ``steps`` steps.
    A training that cannot keep the limit of exceptions ends early.
    ``zero`` is the share of gradient values that became zero. ``projected_rate``: the steady rate of exceptions of a
    longer training, 1 if there was no steady state.
    """

    parameters: dict[str, float]
    exceptions: int
    steps: int
    zero: float
    projected_rate: float


@dataclass(frozen=True, repr=False)
class TrainReport:
    """The verdict on training in mixed precision, and the measurements that decide it.

    - ``reasons``: the reasons of the verdict, one sentence each.
    - ``mode``: how the mixed step ran: "emulated" on the CPU, "native" on CUDA. ``precision``: the low type.
    - ``overflow_mode``: what a value out of range becomes: "inf" or "saturate". ``overflow_detection``: what makes a
      step an exception: "gradients" that are not finite, or an overflow in "any-node" too.
    - ``exception_rate``: the share of the mixed steps of all runs with an exception.
      ``start_up_rate`` and ``steady_rate``: the same before and in the steady state (Rule S10.20); ``steady_rate`` is
      None if there is none. ``limit``: the largest steady rate. ``initial_scale``: the initial scale with which the
      start-up would have no exception, None if no training has a steady state. ``projected_rate``: the rate of a
      training of ``planned_steps``, None if they are not given.
    - ``comparison``: the comparison of the metric with float32, None if no run came to its end.
    - ``steps``: the length of each training. ``batch_size``: None if the data are whole batches.
    - ``metric``: the name of the metric. ``higher``: True if more is better. ``tolerance``: how much worse than in
      float32 it may be.
    - ``start``: where the trainings start: all seeds from the same values, or each from its own draws.
    - ``evaluation``: which graph computes the metric.
    - ``runs``: one for each seed. The last one may be incomplete after Ctrl-C.
    - ``scaler``, ``optimizer``: their names and parameters.
    - ``offenders``: the nodes that overflow first in the earliest step with an exception, with the loss multiplied by
      ``trace_scale``. If ``trace_scale`` is 1, the nodes overflow without loss scaling, so no smaller scale helps.
    - ``suggestion``: the text of a modify_mixlist under which that step does not overflow, or "".
    - ``scale_trials``: the trainings of ``--tune-scale``. ``scale_choice``: the best parameters among them,
      empty if none keeps the limit of exceptions.
    - ``complete``: False after Ctrl-C.
    - ``seconds``: wall time by phase.
    """

    model: str
    verdict: Verdict
    reasons: tuple[str, ...]
    provider: str
    mode: Literal["emulated", "native"]
    precision: str
    overflow_mode: str
    overflow_detection: str
    exception_rate: float
    start_up_rate: float
    steady_rate: float | None
    initial_scale: float | None
    projected_rate: float | None
    limit: float
    steps: int
    batch_size: int | None
    metric: str
    higher: bool
    tolerance: float
    comparison: Comparison | None
    runs: tuple[SeedRun, ...]
    scaler: dict[str, object]
    optimizer: dict[str, object]
    underflow: GradientUnderflow | None = None
    offenders: tuple[NodeFinding, ...] = ()
    trace_scale: float | None = None
    suggestion: str = ""
    scale_trials: tuple[TuningRun, ...] = ()
    scale_choice: dict[str, float] = field(default_factory=dict)
    start: str = ""
    evaluation: str = ""
    complete: bool = True
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"runs {len(self.runs)}, steps {self.steps}, warnings {len(self.warnings)}"
        return f"<TrainReport of {self.model!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        metrics = [f"seed {run.seed}: {_shown(run.float32.metric)}, {_shown(run.mixed.metric)}" for run in self.runs]
        return notebook_facts(
            f"train of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "run": f"{self.precision}, {self.mode} on {self.provider}, runs: {len(self.runs)}, steps: {self.steps}",
                f"{self.metric} in float32, mixed": limited(metrics),
                "rate of exceptions": f"{100 * self.exception_rate:.3g} %",
                "page": "mixlist.html(report)",
            },
        )

    @property
    def bad(self) -> dict[str, int]:
        """Return the number of steps with a gradient that was not finite, by parameter; the largest number first."""
        total: Counter[str] = Counter()
        for run in self.runs:
            total.update(run.mixed.bad)
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.train/1`` object of schemas/train.json; infinities and NaN become strings."""
        document = asdict(self)
        document["bad"] = self.bad
        document["warnings"] = warnings_as_text(self.warnings)
        for run in document["runs"]:
            # A float32 training has no loss scaling, so the report leaves out the fields about it.
            for kind in ("float32", "twin"):
                for name in ("scale", "skipped", "exceptions", "tries", "bad"):
                    del run[kind][name]
        return {"format": "mixlist.train/1", **to_strict_json(document)}


def _shown(metric: float | None) -> str:
    return "-" if metric is None else f"{metric:.4g}"
