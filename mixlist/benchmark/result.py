"""The result of ``bench``, and the statistics of its timings.

``mixlist/show/`` renders the result; its JSON has the schema ``mixlist.bench/1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.result_tables import Row, choose_table, flat_row, notebook_facts

if TYPE_CHECKING:
    from mixlist.run.profile_reader import Profile
    from mixlist.targets.estimate import Work

# --- statistics of timings that were taken in turn ---
# Another load on the machine only makes a run slower, and it can slow most of the rounds. So the statistics compare the
# fast rounds of the two models. Two equal models still differ a little, for example by where their memory lies.

LEAST_ROUNDS = 10  # with fewer rounds, nothing is said about the ratio
LEAST_DIFFERENCE = 0.05  # models whose times differ by less are called equal
PERCENTILE = 10  # of the times of the rounds
RESAMPLES = 2000
CONFIDENCE = 0.95
BenchVerdict: TypeAlias = Literal["faster", "slower", "no difference", "inconclusive", "not timed"]


@dataclass(frozen=True)
class Spread:
    """Seconds per run: ``p10`` (the tenth percentile), the median, the quartiles and the least of ``count`` timings.

    There is one timing for each round. ``scale_batches`` makes timings of batches of several sizes comparable.
    """

    p10: float
    median: float
    q1: float
    q3: float
    least: float
    count: int


@dataclass(frozen=True)
class Ratio:
    """The time of the other model divided by the time of the original: below 1, the other model is faster.

    The time of a model is ``Spread.p10``, the tenth percentile of its times in all rounds, after ``scale_batches``.
    ``low`` and ``high``: the ends of the confidence interval of ``value``, at the level ``confidence``. They are
    percentiles of a bootstrap with 2000 resamples of the rounds. Its seed is fixed, so that the same timings give the
    same interval.
    """

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def is_significant(self) -> bool:
        """Return True if the ratio shows which model is faster.

        The confidence interval must exclude 1, and the times must differ by at least 5 %.
        """
        largest_equal = 1 + LEAST_DIFFERENCE
        return (self.low > 1 and self.value >= largest_equal) or (self.high < 1 and self.value <= 1 / largest_equal)


def compute_spread(seconds: Sequence[float]) -> Spread:
    """Return the spread of at least one timing."""
    import numpy as np

    p10, q1, median, q3 = np.percentile(seconds, [PERCENTILE, 25, 50, 75])
    return Spread(float(p10), float(median), float(q1), float(q3), float(min(seconds)), len(seconds))


def scale_batches(times: Sequence[Sequence[float]], batches: int) -> list[list[float]]:
    """Return the times of each model as if all batches had the same size.

    Each time is divided by the least time of its batch in all models, and multiplied by the mean of these least times.
    ``batches``: the number of batches, which the rounds used in turn.
    """
    least_of_batch = [
        min(seconds)
        for batch in range(batches)
        if (seconds := [second for model_times in times for second in model_times[batch::batches]])
    ]
    mean = sum(least_of_batch) / max(len(least_of_batch), 1)
    return [
        [seconds / least_of_batch[index % batches] * mean for index, seconds in enumerate(model_times)]
        for model_times in times
    ]


def compute_ratio(original_times: Sequence[float], other_times: Sequence[float]) -> Ratio | None:
    """Return the ratio of the times of two models in the same rounds; None if there are fewer than ten rounds."""
    import numpy as np

    times = np.array([original_times, other_times], np.float64)
    rounds = times.shape[1]
    if rounds < LEAST_ROUNDS:
        return None
    # 1. Bootstrap: each resample draws as many rounds as there are, with repetition.
    resampled_rounds = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    original, other = np.percentile(times[:, resampled_rounds], PERCENTILE, axis=2)
    # 2. The interval leaves out the same share of resamples at each end: 2.5 % for a confidence of 95 %.
    tail_percent = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(other / original, [tail_percent, 100 - tail_percent])
    original_time, other_time = np.percentile(times, PERCENTILE, axis=1)
    return Ratio(float(other_time / original_time), float(low), float(high))


# --- the report ---


@dataclass(frozen=True)
class GraphChanges:
    """The numbers of nodes and Casts in the file and in the graph that ONNX Runtime optimized.

    The nodes of bodies count. ``inserted_casts``: Casts of the optimized graph that are not in the file. ``new_ops``:
    for each op type that only the optimized graph has, the number of its nodes: fused operators, changes of layout,
    copies between devices. The key is the op type, or ``domain::type`` outside the standard domain.
    """

    nodes: int
    casts: int
    optimised_nodes: int
    optimised_casts: int
    inserted_casts: int
    new_ops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedModel:
    """The measurements of one of the two models. A measurement that failed is None.

    ``low_nodes``: the number of nodes in the model file that compute in float16 or bfloat16. ``low_kernels``: the
    number of those that have a kernel of this type on the provider. ``seconds``: the time of a run. ``host_memory``:
    the bytes by which loading and running the model raised the peak of the resident memory of its process, inputs and
    outputs included. ``graph``: how ONNX Runtime changed the graph. ``profile``: the nodes that ran, and the peak of
    the provider's own memory (``arena``, in bytes). ``failure``: why the model could not be timed, or "".
    """

    name: str
    low_nodes: int
    low_kernels: int
    seconds: Spread | None = None
    host_memory: int | None = None
    graph: GraphChanges | None = None
    profile: Profile | None = None
    failure: str = ""


@dataclass(frozen=True, repr=False)
class BenchReport:
    """The times of two models that ran in turn.

    ``threads``: the threads within an operator; None for ONNX Runtime's own choice. ``rounds``: the number of timed
    pairs of turns. ``repeats``: how often one turn runs its batch. ``batches``: the number of different batches.
    ``transfers``: whether the times include copying inputs to the device and outputs back. ``ratio``: None if one of
    the models could not be timed, or with fewer than ten rounds. ``notes``: sentences that a reader needs to interpret
    the figures.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 16})
        report = mixlist.bench("digits.onnx", mixlist.load_policy(), batches, rounds=10)
        print(report.verdict, report.ratio, report.notes)
    """

    provider: str
    threads: int | None
    rounds: int
    repeats: int
    batches: int
    transfers: bool
    original: TimedModel
    other: TimedModel
    ratio: Ratio | None
    notes: tuple[str, ...]
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio.value:.3g} times as long as the original, "
        verdict = f"{self.verdict}: {ratio}rounds {self.rounds}"
        return f"<BenchReport of {self.other.name!r}: {verdict}, warnings {len(self.warnings)}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        ratio = self.ratio
        ratio_text = "" if ratio is None else f"{ratio.value:.3g}; {ratio.low:.3g} to {ratio.high:.3g}"
        confidence = "" if ratio is None else f" ({100 * ratio.confidence:.3g} % confidence)"
        times = [
            f"{model.name}: {model.failure or (f'{1000 * model.seconds.p10:.3g} ms' if model.seconds else '-')}"
            for model in (self.original, self.other)
        ]
        return notebook_facts(
            f"bench of {self.other.name}",
            {
                "verdict": self.verdict,
                "time of a run (10th percentile)": times,
                "time as a multiple of the original": ratio_text + confidence,
                "run": f"on {self.provider}, rounds: {self.rounds}",
                "notes": self.notes,
                "page": "mixlist.html(report)",
            },
        )

    @property
    def failed(self) -> bool:
        """Return True if one of the two models could not be timed."""
        return bool(self.original.failure or self.other.failure)

    @property
    def verdict(self) -> BenchVerdict:
        """Return what the times show about the other model.

        With fewer than ten rounds the verdict is ``inconclusive``. ``no difference`` means that no difference of at
        least 5 % was found.
        """
        if self.failed:
            return "not timed"
        if self.ratio is None:
            return "inconclusive"
        if not self.ratio.is_significant:
            return "no difference"
        return "faster" if self.ratio.value < 1 else "slower"

    def to_rows(self, table: str = "models") -> list[Row]:
        """Return the flat rows of a table, for pandas or polars.

        ``table``: ``models`` (one row for each model: times in seconds, memory in bytes, nodes, and the ratio of the
        other model) or ``operators`` (one row for each op type of each model, if there is a profile). The column
        ``role`` is ``original`` or ``other``. Raises UsageError for another table.
        """
        models = {"original": self.original, "other": self.other}
        return choose_table(
            table,
            {
                "models": lambda: [self._model_row(role, model) for role, model in models.items()],
                "operators": lambda: [
                    {"role": role, "model": model.name, **flat_row(op)}
                    for role, model in models.items()
                    for op in (model.profile.ops if model.profile is not None else ())
                ],
            },
        )

    def _model_row(self, role: str, model: TimedModel) -> Row:
        from mixlist.run.profile_reader import Profile

        row = flat_row(model, seconds=Spread, graph=GraphChanges, profile=Profile)
        del row["profile_ops"]  # the table ``operators``
        # The ratio is that of the other model to the original.
        ratio = self.ratio if role == "other" else None
        parts: Row = {f"ratio_{name}": getattr(ratio, name, None) for name in ("value", "low", "high", "confidence")}
        return {"role": role, **row, **parts}

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.bench/1`` object."""
        timing = {"verdict": self.verdict, **asdict(self)}
        del timing["warnings"]  # the object has them as text, next to the timing
        return _bench_json(self.original.name, self.other.name, {"timing": timing}, self.warnings)


def estimate_json(original: Work, other: Work, warnings: tuple[Diagnostic, ...] = ()) -> dict[str, object]:
    """Return the ``mixlist.bench/1`` object of an estimate, without a timing."""
    works = {"original": _work_json(original), "other": _work_json(other)}
    return _bench_json(original.model, other.model, {"estimate": works}, warnings)


def _bench_json(
    original_name: str, other_name: str, part: Mapping[str, object], warnings: tuple[Diagnostic, ...]
) -> dict[str, object]:
    """Return the object with ``part``, which has the key ``timing`` or ``estimate``; the other key is null."""
    parts = {"timing": None, "estimate": None, **part}
    return {
        "format": "mixlist.bench/1",
        "model": original_name,
        "other": other_name,
        **parts,
        "warnings": warnings_as_text(warnings),
    }


def _work_json(work: Work) -> dict[str, object]:
    return {**asdict(work), "low_share": work.low_share}
