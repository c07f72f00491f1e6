"""Define the result of ``train``: values only, which ``report`` renders (schemas/train.json)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mixlist.checker.result import Verdict
from mixlist.diagnostics import Diagnostic
from mixlist.files.strict_json import JsonObject, result_json, to_strict_json
from mixlist.lists.library import ListName
from mixlist.result_tables import limited, notebook_facts

# By the module and whether they are gradients, the largest values of a step.
LargestValues: TypeAlias = dict[tuple[str, bool], float]


@dataclass(frozen=True)
class OverflowStart:
    """An operator whose result was not finite although its operands were.

    - ``module``: the path of its module, as in ``named_modules()`` with "/"; the class of the module that the loop
      calls if it is that one. ``operator``: its name in ATen. ``op_type``: its name in the lists.
    - ``path``: the path of its module; "" for the module that the loop calls, and outside of modules.
    - ``list``: the list that it is on, or the one that a node rule has the effect of (``by_rule``). ``is_low``: whether
      its result is in low precision. ``is_gradient``: whether it ran in the backward pass.
    """

    module: str
    path: str
    operator: str
    op_type: str
    list: ListName
    by_rule: bool
    is_low: bool
    is_gradient: bool


@dataclass
class TrainingHistory:
    """The course of one training. A step ends with ``scaler.update()``.

    - ``loss``: the unscaled loss of each step; the mean if a step has several losses.
    - ``metric``: what the loop returned, or the mean of it; None if Ctrl-C ended the training earlier.
    - ``diverged``: the reason why the training failed, as the end of a sentence, or "".
    - ``scale``: the loss scale of each step.
    - ``exceptions``: the steps with a gradient that was not finite, or with an overflow in any operator.
    - ``skipped``: the steps in which an optimizer was not applied.

    Not in the report: ``first_loss`` (the first one that was scaled), ``applied`` (for each step() in each step,
    whether the optimizer was applied), ``last_scale`` (after the last step), ``several_losses`` (a step has more than
    one), ``findings`` (by step), ``largest`` (by sampled step, see ``headroom.py``), ``changed_gradients`` (the first
    step in which a gradient changed between the backward pass and the division by the scale; None if in none).
    """

    loss: list[float] = field(default_factory=list)
    metric: float | None = None
    diverged: str = ""
    scale: list[float] = field(default_factory=list)
    exceptions: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    applied: list[tuple[bool, ...]] = field(default_factory=list)
    last_scale: float = 1.0
    first_loss: float | None = None
    several_losses: bool = False
    findings: dict[int, OverflowStart] = field(default_factory=dict)
    changed_gradients: int | None = None
    largest: dict[int, LargestValues] = field(default_factory=dict)

    @property
    def skips_most(self) -> bool:
        """Return whether more than half of the steps were skipped: then float32, which skips them too, is untrained."""
        return 2 * len(self.skipped) > len(self.loss)

    def to_json(self) -> JsonObject:
        """Return what of the history is in the report."""
        names = ("loss", "metric", "diverged", "scale", "exceptions", "skipped")
        return to_strict_json({name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class SeedRun:
    """The trainings of one seed, with the same updates.

    ``twin`` is in float32, too. Its parameters differ by one rounding error: what its metric differs by is no fault of
    the precision. ``untrained``: the metric of a training without updates; None if it was not needed. ``unskipped``: if
    mixed precision skips most steps, what is wrong with a training in float32 that skips none, "" if nothing is.
    """

    seed: int
    mixed: TrainingHistory
    float32: TrainingHistory
    twin: TrainingHistory
    untrained: float | None = None
    unskipped: str = ""


@dataclass(frozen=True)
class Replay:
    """The replay of a mixed training, with the scale 1 in the steps that had an exception.

    ``repeats``: whether it had the losses of the training. ``own_exceptions``: the steps that had an exception again.
    """

    seed: int
    repeats: bool
    own_exceptions: tuple[int, ...]


@dataclass(frozen=True)
class ScaleExceptions:
    """The exceptions that belong to the loss scale.

    ``steps``: their number, in all replayed runs. ``first_scale``: a first scale that would have had none; None if the
    network has exceptions of its own, which lower the scale, too, or if the scale grows too often.
    """

    steps: int
    first_scale: float | None


@dataclass(frozen=True)
class OperatorFinding:
    """The overflows that no loss scale prevents and that start in one operator.

    ``steps`` is the number of steps of all runs, ``seed`` and ``step`` the first one.
    """

    operator: OverflowStart
    steps: int
    seed: int
    step: int


@dataclass(frozen=True)
class GradientUnderflow:
    """The gradient values that become zero, as shares of those that are not zero in float32.

    ``zero`` is the share of all, ``by_parameter`` that of each parameter, the largest first. ``steps`` is the number of
    sampled steps of all runs. ``zero_gradient_share`` has the share of zeros among all gradient values by the type:
    "float32" and "mixed".
    """

    zero: float
    steps: int
    zero_gradient_share: dict[str, float]
    by_parameter: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModuleHeadroom:
    """The distance of the low-precision values of a module from the largest number of the type, over the runs.

    ``factor``: that number divided by the largest value; None if all are 0. ``activation``, ``gradient``: the largest
    value of the forward pass, and of the gradients without the loss scale, in all sampled steps; ``_start``, ``_end``:
    in the first and in the last quarter of them. None if the module has no such value.
    """

    module: str
    factor: float | None
    activation: float | None = None
    activation_start: float | None = None
    activation_end: float | None = None
    gradient: float | None = None
    gradient_start: float | None = None
    gradient_end: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The decline of the metric from float32 to mixed precision, over the runs. Positive numbers are worse.

    - ``difference``: the mean of mixed minus the mean of float32 and its twin. ``lower``, ``upper``: its bounds; the
      lower one exceeds the tolerance in a comparison that fails, the upper one is within ``margin`` in one that passes.
    - ``margin``: the tolerance, or the scatter of float32 itself if that is larger.
    - ``scatter``: the root of the mean square of twin minus float32.
    - ``deviation``: the standard deviation of mixed minus float32. ``deviation_of_rest``: the same without the run that
      differs most. Above ``largest_deviation`` the metric is not constant. All are 0 for a single run.
    - ``runs_needed``: the number of runs that would decide, if the figures stay the same; None if the comparison
      decides, or if ``verdict.MOST_RUNS`` runs would not.
    - ``relative``: True if the metric is better when lower: then all figures are shares of what float32 has learned.
    """

    verdict: Literal["pass", "fail", "inconclusive"]
    difference: float
    lower: float
    upper: float
    margin: float
    scatter: float
    deviation: float
    deviation_of_rest: float
    largest_deviation: float
    runs_needed: int | None
    relative: bool

    @property
    def constancy(self) -> Literal["pass", "fail", "inconclusive"]:
        """Return whether the mixed metric is as constant over the runs as that of float32."""
        if self.deviation <= self.largest_deviation:
            return "pass"
        return "fail" if self.deviation_of_rest > self.largest_deviation else "inconclusive"


@dataclass(frozen=True)
class OperatorCount:
    """The calls of an operator on a list in the mixed trainings, forward and backward.

    ``op_type``: its name in the lists. ``low``: those in low precision, ``float32``: the others.
    """

    op_type: str
    list: str
    low: int
    float32: int


@dataclass(frozen=True, repr=False)
class TrainReport:
    """The verdict on training in mixed precision, and the measurements that decide it.

    - ``loop``: the function that trained. ``reasons``: the reasons of the verdict, one sentence each.
    - ``device``: where the parameters are: "cpu", "cuda", ... ``precision``: the low type.
    - ``overflow_mode``: what a value out of range becomes: "inf" or "saturate". ``overflow_detection``: what makes a
      step an exception: "gradients" that are not finite, or an overflow in "any-node" too.
    - ``exception_rate``: the share of the mixed steps of all runs with an exception. ``limit``: the rate of the
      network's own ones from which they fail.
    - ``steps``: the number of steps of the longest training.
    - ``metric``: the name of the metric. ``higher``: True if more is better. ``tolerance``: how much worse than in
      float32 it may be. ``comparison``: the comparison with float32, None if no run came to its end.
    - ``runs``: one for each seed. The last one may be incomplete after Ctrl-C.
    - ``scaler``: its name and parameters. ``scale_exceptions``: None if no exception belongs to the scale.
    - ``replays``: one for each run whose exceptions can decide the verdict.
    - ``headroom``: how near the values of each module come to the largest number of the low type, the nearest first.
    - ``findings``: the operators where the network's own exceptions start, the most frequent first.
      ``keep_dtype``: the text of a file that keeps their modules in float32, or "". ``suggestion``: the text of a
      modify_mixlist that keeps the operators in no module of the network in float32, or "".
    - ``operators``: how often the mixed trainings ran each operator in low precision, the most frequent first.
      ``unlisted_operators``: ATen operators without a name in the lists, with the number of their calls. They are gray.
    - ``notes``: sentences on what mixlist does differently from the framework or from the loop.
    - ``complete``: False after Ctrl-C.
    - ``seconds``: wall time by phase.

    Example::

        def run(seed):
            network, x = torch.nn.Linear(4, 1), torch.randn(64, 4)
            optimizer, scaler = torch.optim.SGD(network.parameters(), lr=0.1), torch.amp.GradScaler()
            for _ in range(30):
                loss = network(x).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return {"loss": loss}

        report = mixlist.train(run, mixlist.load_policy(ops_info="mindspore-o2"), runs=1)
        print(report.verdict, report.exception_rate, [finding.operator for finding in report.findings])
    """

    loop: str
    verdict: Verdict
    reasons: tuple[str, ...]
    device: str
    precision: str
    overflow_mode: str
    overflow_detection: str
    exception_rate: float
    limit: float
    steps: int
    metric: str
    higher: bool
    tolerance: float
    comparison: Comparison | None
    runs: tuple[SeedRun, ...]
    scaler: dict[str, object]
    scale_exceptions: ScaleExceptions | None = None
    replays: tuple[Replay, ...] = ()
    underflow: GradientUnderflow | None = None
    headroom: tuple[ModuleHeadroom, ...] = ()
    findings: tuple[OperatorFinding, ...] = ()
    keep_dtype: str = ""
    suggestion: str = ""
    operators: tuple[OperatorCount, ...] = ()
    unlisted_operators: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = True
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def low_operators(self) -> int:
        """Return how often an operator of the mixed trainings was in low precision."""
        return sum(count.low for count in self.operators)

    def __repr__(self) -> str:
        counts = f"runs {len(self.runs)}, steps {self.steps}, warnings {len(self.warnings)}"
        return f"<TrainReport of {self.loop!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        metrics = [f"seed {run.seed}: {_shown(run.float32.metric)}, {_shown(run.mixed.metric)}" for run in self.runs]
        return notebook_facts(
            f"train of {self.loop}: {self.verdict}",
            {
                "why": self.reasons,
                "run": f"{self.precision} on {self.device}, runs: {len(self.runs)}, steps: {self.steps}",
                f"{self.metric} in float32, mixed": limited(metrics),
                "rate of exceptions": f"{100 * self.exception_rate:.3g} %",
                "page": "mixlist.html(report)",
            },
        )

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.train/1`` object of schemas/train.json; infinities and NaN become strings."""
        return result_json(self, "mixlist.train/1")


def _shown(metric: float | None) -> str:
    return "-" if metric is None else f"{metric:.4g}"
