"""Call a training loop in float32 and in mixed precision, and decide whether mixed precision works.

For every seed, the loop is called three times: *mixed*, in float32, and in float32 once more as the *twin*, with the
same seeds of torch, numpy and random. In the twin, the parameters of an optimizer change by a relative 2^-11 up or down
at random, before its first step: it shows by how much float32 itself varies. The float32 trainings have the loss scales
of the mixed one and skip the steps that it skipped, so that metrics are compared at equal updates.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mixlist.checker.limits import exception_rate
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.installed_runtime import require_scipy, require_tensorboard, require_torch
from mixlist.lists.load import load_policy
from mixlist.lists.policy import Policy, require_policy
from mixlist.number_text import pluralize
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell
from mixlist.progress import PhaseTimer, ProgressCounter
from mixlist.run.python_function import describe_kind
from mixlist.search.edits import ListEdit, render_modify_mixlist
from mixlist.training.options import AUTOCAST_LISTS, LISTS_NOTE, TrainOptions
from mixlist.training.result import (
    OperatorCount,
    OperatorFinding,
    OverflowStart,
    Replay,
    SeedRun,
    TrainingHistory,
    TrainReport,
)
from mixlist.training.scalers import Scaler, describe_scaler, make_scaler, parameter_defaults
from mixlist.training.tensorboard import make_folder, write_tensorboard
from mixlist.training.verdict import (
    Metric,
    describe_unskipped,
    gains_much,
    judge,
    judges_gain,
    learns,
    reason_of_failure,
    seeds_to_replay,
)

if TYPE_CHECKING:
    from mixlist.training.gradient_underflow import ZeroCounter
    from mixlist.training.loop_scaler import LoopScaler
    from mixlist.training.rounding_mode import ModuleTracker, RoundingMode

Kind = Literal["mixed", "float32", "twin", "untrained", "unskipped", "replay"]
KINDS: tuple[Kind, ...] = ("mixed", "float32", "twin")
LoopResult: TypeAlias = Mapping[str, Any] | float | Iterable[float]
Loop: TypeAlias = Callable[..., LoopResult]  # takes the seed, and the scaler if it has an argument for it
UNNAMED_METRIC = "metric"
_DEFAULTS = TrainOptions()


@dataclass(frozen=True)
class StepProgress:
    """Progress of a training after one step: the ``detail`` of the ``progress`` callback.

    ``step`` counts from 1. ``loss`` is not scaled; ``scale`` is the loss scale of the step.
    """

    seed: int
    kind: Kind
    step: int
    loss: float
    scale: float

    def __str__(self) -> str:
        scale = f", scale {self.scale:g}" if self.kind == "mixed" else ""
        return f"seed {self.seed}, {self.kind}: loss {self.loss:.4g}{scale}"


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(TrainOptions):
        run: Loop
        policy: Policy | None = None

else:
    _Arguments = TrainOptions


@with_fields(_Arguments)
def train(run: Loop, policy: Policy | None = None, options: TrainOptions = _DEFAULTS) -> TrainReport:
    """Call a PyTorch training loop in mixed precision and in float32, and decide whether mixed precision works.

    ``run(seed)`` makes its network, optimizer and data, trains with a ``torch.amp.GradScaler``, and returns the metric:
    a number, a list of the last evaluations, whose mean counts, or one of them by name. While it runs, every GradScaler
    of PyTorch is the scaler of the training, also one in a library. A function ``run(seed, scaler)`` gets a GradScaler.
    mixlist rounds the operators of the loop as the lists of ``policy`` say; None is the lists of
    ``torch.autocast``. The keyword arguments are options of ``mixlist train
    --help-all``. Ctrl-C ends the training; the report then has ``complete`` False and the results so far.

    Example::

        def run(seed):
            network = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler()
            for x in torch.randn(30, 8, 4):
                loss = (network(x)[:, 0] - x.sum(1)).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return {"loss": loss}

        report = mixlist.train(run, mixlist.load_policy(ops_info="mindspore-o2"))
        print(report.verdict, report.reasons)

    Raises UsageError for a function, a result or options that cannot be used. Errors of the loop pass through.
    """
    if policy is None:
        policy = load_policy(**AUTOCAST_LISTS)
    return run_train(run, policy, options)


def run_train(run: Loop, policy: Policy, options: TrainOptions, name: str = "") -> TrainReport:
    """Do the work of ``train``, with its options in one object. ``name``: of the function, in the report."""
    require_policy(policy)
    require_torch()
    require_scipy()  # now, not after the trainings
    if options.tensorboard is not None:
        require_tensorboard()
        make_folder(options.tensorboard)
    from mixlist.training.loop_environment import remember_ctrl_c, show_warnings_once

    name = name or getattr(run, "__qualname__", type(run).__name__)
    options = options.for_library(policy.lists.library.name)
    series = _TrainingSeries(_with_two_arguments(run, name), policy, options, name)
    with show_warnings_once(), remember_ctrl_c() as series.raise_ctrl_c:
        series.run_all()
    report = series.make_report()
    if options.tensorboard is not None:
        write_tensorboard(report, options.tensorboard)
    return report


def _with_two_arguments(run: Loop, name: str) -> Loop:
    """Return the loop as a function of the seed and the scaler. Raises UsageError for what cannot be called so.

    A function without an argument for the scaler makes its own one.
    """
    hint = "write def run(seed), or def run(seed, scaler): it is called once for each seed and precision"
    if not callable(run):
        raise UsageError(f"the loop is an object of the type {name}, and not a function", hint=hint)
    signature = inspect.signature(run)
    has_scaler = "scaler" in signature.parameters
    for arguments in ((0, None),) if has_scaler else ((0,), (0, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return run if len(arguments) == 2 else lambda seed, scaler: run(seed)
    raise UsageError(f"{name}{signature} cannot be called with a seed, or with a seed and a scaler", hint=hint)


class _TrainingSeries:
    """The trainings of one command: for each seed the mixed one, float32, and its twin; then the replays."""

    def __init__(self, run: Loop, policy: Policy, options: TrainOptions, name: str) -> None:
        from mixlist.training.operators import OperatorLists

        self.loop, self.policy, self.options, self.name = run, policy, options, name
        OperatorLists(policy)  # raises for a policy that cannot be followed, before the first training
        self.timer = PhaseTimer()
        self.progress = ProgressCounter(options.progress, "steps")
        self.metric = Metric(options.metric or UNNAMED_METRIC, higher_is_better=True)
        self.loop_parameters: dict[str, object] = {}  # of the loop's own scaler
        self.scalers_enabled: set[bool] = set()  # the argument of the loop's own scalers
        self.device = "cpu"
        self.operator_counts: Counter[tuple[str, str, bool]] = Counter()
        self.unlisted: dict[str, int] = {}
        self.without_effect: set[str] = set()  # of the loop: see ``loop_environment``
        self.raise_ctrl_c: Callable[[], None] = lambda: None  # raises KeyboardInterrupt after Ctrl-C
        self.name_warnings: list[Diagnostic] = []
        self.finished: list[SeedRun] = []
        self.interrupted: list[SeedRun] = []  # the run that Ctrl-C ended, with the steps so far; else empty
        self.zeros: list[tuple[ZeroCounter, ZeroCounter, set[int]]] = []  # of the gradients, for each finished run
        self.histories: dict[Kind, TrainingHistory] = {}  # of the current seed, by kind
        self.replays: list[Replay] = []
        # By operator, the seeds and steps of the network's own exceptions that start there.
        self.starts: dict[OverflowStart, list[tuple[int, int]]] = {}
        self.complete = True  # False if Ctrl-C ended a run or a replay

    def run_all(self) -> None:
        """Train every seed, then replay the runs whose exceptions can decide; Ctrl-C ends both."""
        options = self.options
        seed = options.first_seed
        try:
            for seed in range(options.first_seed, options.first_seed + options.runs):
                self.run_seed(seed)
            runs = {run.seed: run for run in self.finished}
            for replayed in seeds_to_replay(self.finished, options.max_exception_rate):
                self.replay(runs[replayed])
        except KeyboardInterrupt:
            self.complete = False
            if len(self.finished) < options.runs:
                mixed, float32, twin = (self.histories.get(kind, TrainingHistory()) for kind in KINDS)
                self.interrupted.append(SeedRun(seed, mixed, float32, twin))

    def run_seed(self, seed: int) -> None:
        """Train one seed: mixed first, because the other two skip the steps that it skipped."""
        from mixlist.training.gradient_underflow import ZeroCounter

        self.histories = {}
        mixed_zeros, float32_zeros = ZeroCounter(), ZeroCounter()
        mixed = self.train("mixed", seed, observe=mixed_zeros)
        kinds = len(KINDS) if self.options.float32 else 1
        later_seeds = self.options.first_seed + self.options.runs - 1 - seed
        self.progress.total = self.progress.done + (kinds * (later_seeds + 1) - 1) * len(mixed.loss)
        if not self.options.float32:
            self.finished.append(SeedRun(seed, mixed, TrainingHistory(), TrainingHistory()))
            return
        float32 = self.train("float32", seed, leader=mixed, observe=float32_zeros)
        twin = self.train("twin", seed, leader=mixed)
        untrained, problem = None, ""
        if mixed.skips_most and not float32.diverged:
            # float32 skipped these steps, too, so it is hardly trained: does it learn if it skips none?
            applied = [(True,) * len(applied) for applied in mixed.applied]
            free = replace(mixed, applied=applied, skipped=[], scale=[], last_scale=1.0)
            self.progress.total += len(mixed.loss)
            problem = describe_unskipped(self.train("unskipped", seed, leader=free))
        elif not float32.diverged and self.needs_untrained(float32):
            # A loss need not measure what is learned, nor the metric: see whether the metric does.
            frozen = replace(mixed, applied=[(False,) * len(applied) for applied in mixed.applied])
            self.progress.total += len(mixed.loss)
            history = self.train("untrained", seed, leader=frozen)
            # A loop that ends by its metric goes on, and trains in the steps that the others did not have.
            untrained = history.metric if len(history.loss) == len(mixed.loss) else None
        self.finished.append(SeedRun(seed, mixed, float32, twin, untrained, problem))
        self.zeros.append((mixed_zeros, float32_zeros, {*mixed.exceptions, *float32.exceptions}))

    def needs_untrained(self, float32: TrainingHistory) -> bool:
        """Return whether the metric of the untrained network is needed, to see whether the training changes it.

        It is if the loss does not fall, and for a metric that is better when higher until one seed shows a clear gain.
        """
        if not learns(float32.loss):
            return not float32.several_losses
        is_clear = any(gains_much(run, self.metric, self.options.tolerance) for run in self.finished)
        return judges_gain(self.metric, self.options) and not is_clear

    def replay(self, run: SeedRun) -> None:
        """Repeat a mixed training with the scale 1 in its steps with an exception."""
        self.progress.total = (self.progress.total or 0) + len(run.mixed.loss)
        history = self.train("replay", run.seed, leader=run.mixed)
        own = sorted(set(run.mixed.exceptions) & set(history.exceptions))
        self.replays.append(Replay(run.seed, self._repeats(run, history), tuple(own)))
        for step in own:
            if step in history.findings:
                self.starts.setdefault(history.findings[step], []).append((run.seed, step))

    def _repeats(self, run: SeedRun, history: TrainingHistory) -> bool:
        """Return whether a replay has the losses of its training: bit for bit on a CPU, else as close as the twins.

        In a step with an exception, the loss can differ by the scale: a gradient penalty overflows with the gradients.
        """
        if len(run.mixed.loss) != len(history.loss):
            return False
        good = sorted(set(range(len(history.loss))) - set(run.mixed.exceptions))
        expected, losses = ([losses[step] for step in good] for losses in (run.mixed.loss, history.loss))
        if self.device == "cpu":
            return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(expected, losses, strict=True))
        pairs = zip(run.float32.loss, run.twin.loss, strict=False)
        allowed = max((abs(a - b) for a, b in pairs if math.isfinite(a - b)), default=0.0)
        finite = [(a, b) for a, b in zip(expected, losses, strict=True) if math.isfinite(a) or math.isfinite(b)]
        return all(abs(a - b) <= allowed for a, b in finite)

    def new_scaler(self) -> Scaler:
        """Return a new scaler with the arguments of the loop's own scaler, and those of the options instead of them."""
        return make_scaler(
            self.options.loss_scaler, **self.loop_parameters | dict(self.options.scaler_parameters or {})
        )

    def note_parameters(self, scaler: LoopScaler, arguments: Mapping[str, object]) -> None:
        """Note the arguments of a GradScaler of the loop: the first that has some count for the scaler ``torch``."""
        self.scalers_enabled.add(bool(arguments.get("enabled", True)))
        known = {name: value for name, value in arguments.items() if name in parameter_defaults("torch")}
        if self.options.loss_scaler == "torch" and known and not self.loop_parameters:
            self.loop_parameters = known
            if scaler.deciding_scaler is not None and not scaler.updates:
                scaler.deciding_scaler = self.new_scaler()

    def train(
        self,
        kind: Kind,
        seed: int,
        *,
        leader: TrainingHistory | None = None,
        observe: ZeroCounter | None = None,
    ) -> TrainingHistory:
        """Call the loop once, and return the history of the training.

        ``leader`` and ``observe``: those of ``LoopScaler``. The history is in ``histories[kind]`` from the start, so
        that the report of an interrupted training has its steps.
        """
        from mixlist.training.loop_scaler import LoopScaler
        from mixlist.training.rounding_mode import ModuleTracker, RoundingMode

        def report_progress(scaler: LoopScaler) -> None:
            self.raise_ctrl_c()
            step = StepProgress(seed, kind, scaler.updates, scaler.history.loss[-1], scaler.history.scale[-1])
            self.progress.add(detail=step)

        options, tracker, mode = self.options, ModuleTracker(), None
        if kind in ("mixed", "replay"):
            mode = RoundingMode(
                self.policy,
                tracker,
                saturate=options.overflow_mode == "saturate",
                examines_roundings=options.overflow_detection == "any-node",
                examines_results=kind == "replay",
            )
        scaler = LoopScaler(
            tracker,
            self.new_scaler() if leader is None else None,
            leader,
            scales=options.loss_scaler != "none",
            mode=mode,
            replays=kind == "replay",
            observe=observe,
            twin_seed=seed if kind == "twin" else None,
            after_update=report_progress,
        )
        self.histories[kind] = history = scaler.history
        with self.timer.phase(kind):
            self._call_loop(kind, seed, scaler, tracker, mode)
        history.diverged = reason_of_failure(history, parameters_finite=scaler.parameters_are_finite())
        if kind in ("float32", "twin") and leader is not None:
            history.diverged = self._reason_of_float32(history, leader)
        self.device = scaler.device()
        return history

    def _reason_of_float32(self, history: TrainingHistory, leader: TrainingHistory) -> str:
        """Return the reason why a float32 training failed by itself, or "".

        It skips what the mixed training skips. Where that skipped every step, only the gradients can fail.
        """
        if history.diverged and any(map(any, leader.applied)):
            return history.diverged
        # An exception in a step that float32 skips, too, does no harm. If the mixed training skipped most steps, few
        # others are left, so float32 fails if it has exceptions in most steps itself; but with a scale of 0, no
        # gradient is finite in any precision.
        own = set(history.exceptions) - set(leader.skipped)
        steps = len(history.loss)
        if leader.skips_most and not own:
            own = {step for step in history.exceptions if history.scale[step]}
            own = own if 2 * len(own) > steps else set()
        return f"has gradients that are not finite in {len(own)} of {steps} steps" if own else ""

    def _call_loop(
        self, kind: Kind, seed: int, scaler: LoopScaler, tracker: ModuleTracker, mode: RoundingMode | None
    ) -> None:
        """Call the loop, and put its metric into the history."""
        import torch

        from mixlist.training.loop_environment import loop_environment
        from mixlist.training.loop_scaler import STEP_HINT, answer_grad_scalers
        from mixlist.training.rounding_mode import FunctionMode

        grad_scaler = torch.amp.GradScaler("cpu")
        with ExitStack() as stack:
            without_effect = stack.enter_context(loop_environment(seed, tracker))
            if mode is not None:
                stack.enter_context(mode)
                stack.enter_context(FunctionMode(mode))
            stack.enter_context(answer_grad_scalers(scaler, partial(self.note_parameters, scaler)))
            # After the hooks of the scaler: a closure that it runs is no part of the optimizer.
            stack.enter_context(tracker.hooks())
            try:
                result = self.loop(seed, grad_scaler)
            except Exception as error:
                self.raise_ctrl_c()
                error.add_note(f"mixlist: in the {kind} training of seed {seed}, after {scaler.updates} steps")
                raise
        self.raise_ctrl_c()
        self.without_effect |= without_effect
        if not scaler.updates:
            raise UsageError(
                f"{self.name} never calls scaler.update(), so that there is no step to judge",
                hint=STEP_HINT,
            )
        if mode is not None:
            self.operator_counts += mode.counts
            self.unlisted |= mode.lists.unlisted
            self.name_warnings = mode.lists.find_warnings()
        name, evaluations = read_metric(result, self.options.metric, self.name)
        self.metric = Metric.of(name, self.options.better)
        scaler.history.metric = sum(evaluations) / len(evaluations)

    def make_report(self) -> TrainReport:
        """Return the report on the runs so far: the verdict, and the measurements that decide it."""
        import torch

        from mixlist.training.gradient_underflow import compare_gradients
        from mixlist.training.headroom import describe_near_modules, measure_headroom

        options, scaler = self.options, self.new_scaler()
        runs = (*self.finished, *self.interrupted)
        steps = sum(len(run.mixed.loss) for run in runs)
        underflow = compare_gradients(self.zeros)
        judged = judge(self.finished, self.replays, underflow, self.metric, scaler, options)
        verdict, reasons = judged.verdict, judged.reasons
        if not self.complete:
            verdict = "fail" if verdict == "fail" else "inconclusive"
            ended = f"after {len(self.finished)} of {options.runs} runs" if self.interrupted else "in a replay"
            reasons = (f"interrupted {ended}", *(reasons if self.finished else ()))
        findings, keep_dtype, suggestion = self._find_edits(judged.judged)
        largest = torch.finfo(getattr(torch, self.policy.mode.low)).max
        headroom = measure_headroom([run.mixed.largest for run in runs], largest)
        # Findings say it otherwise, and where float32 fails, no module in float32 helps.
        if not findings and len(judged.judged) == len(self.finished):
            reasons = (*reasons, *describe_near_modules(headroom, largest))
        return TrainReport(
            loop=self.name,
            verdict=verdict,
            reasons=reasons,
            device=self.device,
            precision=self.policy.mode.low,
            overflow_mode=str(options.overflow_mode),
            overflow_detection=str(options.overflow_detection),
            exception_rate=exception_rate(sum(len(run.mixed.exceptions) for run in runs), steps),
            limit=options.max_exception_rate,
            steps=max((len(run.mixed.loss) for run in runs), default=0),
            metric=self.metric.name,
            higher=self.metric.higher_is_better,
            tolerance=options.tolerance,
            comparison=judged.comparison,
            runs=runs,
            scaler=describe_scaler(scaler),
            scale_exceptions=judged.scale_exceptions,
            replays=tuple(self.replays),
            underflow=underflow,
            headroom=headroom,
            findings=findings,
            keep_dtype=keep_dtype,
            suggestion=suggestion,
            operators=_sum_operators(self.operator_counts),
            unlisted_operators=dict(sorted(self.unlisted.items(), key=lambda item: (-item[1], item[0]))),
            notes=tuple(self._notes()),
            complete=self.complete,
            warnings=tuple(self._warnings()),
            seconds=self.timer.seconds,
        )

    def _find_edits(self, judged: AbstractSet[int]) -> tuple[tuple[OperatorFinding, ...], str, str]:
        """Return the operators where own exceptions start, and what keeps them in float32: see ``TrainReport``.

        Only those of the ``judged`` seeds: a training that fails in float32 is not cured by lists.
        """
        starts = {operator: [step for step in steps if step[0] in judged] for operator, steps in self.starts.items()}
        by_steps = sorted(((o, steps) for o, steps in starts.items() if steps), key=lambda item: -len(item[1]))
        findings = tuple(OperatorFinding(operator, len(steps), *steps[0]) for operator, steps in by_steps)
        low = [operator for operator, _ in by_steps if operator.is_low and not operator.by_rule]
        kept = [rule for rule in self.policy.rules if rule.keep]
        lines = {f"OpType::{rule.pattern}" if rule.by == "type" else rule.pattern for rule in kept}
        paths = sorted({operator.path for operator in low if operator.path})
        edits = frozenset(ListEdit(operator.op_type, operator.list) for operator in low if not operator.path)
        has_lists = self.policy.mode.action == "lists"
        suggestion = render_modify_mixlist(self.policy, edits) if edits and has_lists else ""
        # The file takes the place of the one that the training had.
        keep_dtype = "".join(f"{line}\n" for line in sorted({*paths, *lines})) if paths else ""
        return findings, keep_dtype, suggestion

    def _notes(self) -> Sequence[str]:
        policy = self.policy
        notes = []
        if policy.mode.action == "lists":
            edits = f", {pluralize(len(policy.lists.moves), 'op type')} moved" if policy.lists.moves else ""
            rules = f", {pluralize(len(policy.rules), 'node rule')}" if policy.rules else ""
            lists = LISTS_NOTE.format(ops_info=policy.lists.library.name, gray_policy=policy.gray_policy)
            notes.append(f"{lists}{edits}{rules}")
        if "autocast" in self.without_effect:
            library = policy.lists.library.name
            of_autocast = library == AUTOCAST_LISTS["ops_info"]
            lists = f"torch.autocast ({library})" if of_autocast else f"{library}, not those of torch.autocast"
            notes.append(f"the lists are those of {lists}; regions with enabled=False in the loop stay in float32")
        runs = (*self.finished, *self.interrupted)
        if any(run.mixed.skips_most for run in runs if run.float32.loss):
            notes.append("float32 skips the same steps, so its metric is not that of a whole training in float32")
        if "compile" in self.without_effect:
            notes.append("torch.compile ran eagerly: mixlist rounds each operator")
        if self.finished and self.options.better is None and not self.metric.is_known:
            notes.append(f"of {self.metric.name}, more counts as better: {spell('better', 'lower')} says otherwise")
        return notes

    def _warnings(self) -> Sequence[Diagnostic]:
        warnings = list(self.name_warnings)
        if self.finished and not any(is_low for *_, is_low in self.operator_counts):
            message = "no operator is in low precision: the mixed training is the same as the float32 training"
            warnings.append(warning("ML605", message, hint="give lists with white operators that the network has"))
        changed = [(run.seed, run.float32.changed_gradients) for run in (*self.finished, *self.interrupted)]
        first = next(((seed, step) for seed, step in changed if step is not None), None)
        if first is not None:
            message = f"seed {first[0]}, step {first[1]}: gradients change while they are multiplied by the loss scale"
            hint = "call scaler.unscale_(optimizer) before the loop clips gradients, or adds to them"
            warnings.append(warning("ML620", message, hint=hint))
        # bfloat16 is judged only where the user asks for it, so a float16 in the loop is no surprise.
        if "bfloat16" in self.without_effect and self.policy.mode.low == "float16":
            message = "torch.autocast has the type bfloat16 in the loop, and float16 is judged"
            hint = f"{spell('precision_mode_v2', 'mixed_bfloat16')} judges it"
            warnings.append(warning("ML619", message, hint=hint))
        if self.scalers_enabled == {False} and self.options.loss_scaler == "torch":
            message = "GradScaler has enabled=False in the loop, and a training with its loss scale is judged"
            hint = f"{spell('loss_scaler', 'none')} judges the loop without loss scaling, as it is"
            warnings.append(warning("ML622", message, hint=hint))
        if self.unlisted:
            names = ", ".join(list(self.unlisted)[:8])
            message = (
                f"{len(self.unlisted)} ATen operators have no name in the lists and follow their operands: {names}"
            )
            warnings.append(
                warning("ML616", message, hint="keep their modules in float32 by a keep_dtype file, if they matter")
            )
        return warnings


def _sum_operators(counts: Mapping[tuple[str, str, bool], int]) -> tuple[OperatorCount, ...]:
    """Return the counts of each op type and list, the most frequent first."""
    names = {(op_type, list_name) for op_type, list_name, _ in counts}
    found = [OperatorCount(*name, *(counts.get((*name, is_low), 0) for is_low in (True, False))) for name in names]
    return tuple(sorted(found, key=lambda count: (-count.low - count.float32, count.op_type, count.list)))


def read_metric(result: object, name: str | None, loop: str) -> tuple[str, list[float]]:
    """Return the name of the metric in the result of a loop, and its evaluations. Raises UsageError.

    The result is a number, a list of the last evaluations, whose mean counts, or a dict of such values by name.
    """
    hint = "return a number, a list of the last evaluations, or a dict such as {'accuracy': 0.9}"
    if isinstance(result, Mapping):
        names = ", ".join(map(str, result))
        if name is None and len(result) > 1:
            raise UsageError(
                f"{loop} returned {len(result)} metrics: {names}", hint=f"choose one with {spell('metric')}"
            )
        if not result:
            raise UsageError(f"{loop} returned no metric", hint=hint)
        if name is not None and name not in result:
            raise UsageError(f"{loop} returned no metric {name!r}: it has {names}", hint=f"correct {spell('metric')}")
        name = name if name is not None else str(next(iter(result)))
        result = result[name]
    shown = describe_kind(result)
    # Tensors and arrays have item(): those with one value are numbers.
    values: list[Any] = list(result) if isinstance(result, list | tuple) else [result]
    try:
        numbers = [value.item() if hasattr(value, "item") else value for value in values]
    except (ValueError, RuntimeError):  # an array or tensor with several values
        numbers = []
    if not numbers or not all(isinstance(number, Real) for number in numbers):
        raise UsageError(f"{loop} returned {shown}, and not a metric", hint=hint)
    return name or UNNAMED_METRIC, [float(number) for number in numbers]
