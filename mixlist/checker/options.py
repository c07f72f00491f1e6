"""The options of ``check``, and those that ``tune`` shares with it.

To add an option to ``check``: declare it here, as a field of ``CheckOptions`` (of ``JudgingOptions`` if ``tune`` and
``convert`` take it too), and read it in ``checker/run.py``. The keyword argument, the command-line option and the TOML
key follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from mixlist.checker.limits import DEFAULT_RATE_LIMIT, Limits, require_numbers
from mixlist.checker.user_judge import Judge, UserJudge
from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.option_spelling import spell
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import ProviderOption

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from mixlist.model.load import Model

OverflowMode = Literal["inf", "saturate"]
OVERFLOW_MODES: tuple[OverflowMode, ...] = get_args(OverflowMode)
REFERENCE_TYPES = ("authored", "float32")
INNER_TYPES = ("float32", "low")


@dataclass(frozen=True, kw_only=True)
class JudgingOptions(ProviderOption):
    """The options about how both models run, and the limits of the mixed model.

    ``limits``: the limits of outputs, None for the defaults of ``Limits``. ``judge``: a function of the outputs of both
    models for one batch, by name, which returns numbers by name, or "boxes" (``box_judge``). ``judge_limits``: the
    largest value of such a number in any batch, by name. ``type_hints``: the types of tensors that custom operators
    make, as for ``resolve``. Sessions run in another process, so that a crash of ONNX Runtime makes the verdict
    ``fail`` and does not end this process. Instead they can run in ``jobs`` processes of this machine, on the Dask
    cluster of ``scheduler``, or through ``executor``; ``executor=ThreadPoolExecutor(1)`` runs them in this process.
    """

    overflow_mode: OverflowMode = option(
        "inf",
        "The result of the accelerator for a value out of range: infinity, or the largest finite value.",
        choices=OVERFLOW_MODES,
    )
    max_batches: int | None = option(None, "Stop after N batches.", "integer", bounds=(1, None), group="data")
    max_exception_rate: float = option(
        DEFAULT_RATE_LIMIT,
        "Fail if at least this share of the batches overflows.",
        "number",
        bounds=(0, 1),
        group="limits",
    )
    max_ignored: float = option(
        0.5,
        "Share of an output's values that may be NaN in the reference; if more are, the verdict is inconclusive.",
        "number",
        bounds=(0, 1),
        group="limits",
    )
    limits: Limits | None = field(default=None, metadata={"held class": Limits})
    judge: Judge | Literal["boxes"] | None = option(
        None,
        "A Python function of the outputs of both models for one batch that returns numbers by name; larger is worse."
        "  'boxes' compares the detections of a detector.",
        "python function",
        metavar="FILE.py:NAME|boxes",
        group="limits",
    )
    judge_limits: Mapping[str, float] | None = option(
        None,
        "The largest value of a number of --judge in any batch. Can be given more than once.",
        flag="--limit",
        metavar="NAME=X",
        repeatable=True,
        group="limits",
    )
    jobs: int | None = option(
        None,
        "Processes that run batches.  [default: one, for 'tune' at most one for every two cores]",
        "integer",
        bounds=(1, None),
    )
    scheduler: str | None = option(
        None, "Run batches or trials on the workers of this Dask scheduler instead.", metavar="ADDRESS"
    )
    executor: Executor | None = None
    segment_bytes: int | None = option(
        None,
        "Run models in segments with at most N bytes of weights each, which takes less memory and more time."
        "  [default: whole; in segments if memory is short]",
        "integer",
        bounds=(1, None),
    )
    type_hints: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        limits: object = self.limits  # a Python caller can pass any value
        if not isinstance(limits, Limits | None):
            kind = type(limits).__name__
            raise TypeError(f"limits is a {kind}: pass a mixlist.Limits, such as mixlist.Limits(normalized=0.05)")
        if self.judge is None and self.judge_limits:
            name = next(iter(self.judge_limits))
            raise UsageError(f"{name!r} has a limit, and there is no judge", hint=f"give {spell('judge')}")
        for name, limit in (self.judge_limits or {}).items():
            if math.isnan(limit):
                raise UsageError(f"the limit of {name!r} is NaN", hint="give a number")
        _ = self.user_judge  # raises for a judge that cannot be called with two dicts

    @property
    def user_judge(self) -> UserJudge | None:
        """Return the judge with its limits; None without a judge."""
        if self.judge is None:
            return None
        if self.judge == "boxes":
            from mixlist.checker.box_judge import DEFAULT_LIMITS, explain_no_detections, judge_boxes

            return UserJudge(judge_boxes, self.judge_limits or DEFAULT_LIMITS, "detections", explain_no_detections)
        return UserJudge(self.judge, self.judge_limits or {})

    @property
    def saturate(self) -> bool:
        """Return True if values out of range become the largest finite value, and not infinity."""
        return self.overflow_mode == "saturate"


@dataclass(frozen=True, kw_only=True)
class CheckOptions(JudgingOptions):
    """The options of ``check``.

    ``mixed_model``: a mixed model that is judged instead of the one that the policy makes. ``progress`` is called with
    a Progress after each batch.
    """

    mixed_model: Model | None = option(
        None, "Judge this model file instead of the mixed model that the lists make.", "model file"
    )
    reference_type: str = option(
        "authored",
        "The types of the reference: those of the model as given, or its form in float32, which does not round"
        " what the author rounds.",
        choices=REFERENCE_TYPES,
    )
    inner_type: str = option(
        "float32",
        "The type in which the accelerator adds inside an operator; with low, a sum beyond its range is an overflow.",
        choices=INNER_TYPES,
    )
    layerwise: bool = option(False, "Rank nodes by the error that each adds to exact inputs.", "flag", group="output")
    per_tensor: bool = option(False, "Report the range of every tensor (--html always does).", "flag", group="output")
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # The command line admits only the declared choices, Python any value.
        if self.overflow_mode not in OVERFLOW_MODES:
            raise UsageError(f"overflow mode {self.overflow_mode!r} is not known", hint="use inf or saturate")
        if self.reference_type not in REFERENCE_TYPES:
            raise UsageError(f"reference type {self.reference_type!r} is not known", hint="use authored or float32")
        if self.inner_type not in INNER_TYPES:
            raise UsageError(f"inner type {self.inner_type!r} is not known", hint="use float32 or low")
        if self.segment_bytes is not None and self.on_workers:
            raise UsageError(
                "segments cannot run on workers",
                hint=f"leave out {spell('segment_bytes')}, or {spell('jobs')} and {spell('scheduler')}",
            )

    @property
    def on_workers(self) -> bool:
        """Return True if the options name the workers of the sessions, which get whole models, no segments."""
        return self.jobs is not None or self.scheduler is not None or self.executor is not None

    @property
    def output_limits(self) -> Limits:
        """Return the limits of outputs: those that were given, or the defaults."""
        return self.limits or Limits()

    def all_limits(self) -> dict[str, float]:
        """Return every limit that is not None by name, those of the exception rate and of ignored values too."""
        limits = {"exception_rate": self.max_exception_rate, **self.output_limits.enabled()}
        return limits | {"max_ignored": self.max_ignored}
