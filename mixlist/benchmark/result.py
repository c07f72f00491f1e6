"""The result of ``bench``: values only, rendered by the report rooms (schema: ``mixlist.bench/1``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mixlist.benchmark.graph_changes import GraphChanges
from mixlist.benchmark.paired_statistics import Ratio, Spread
from mixlist.diagnostics import Diagnostic, warnings_as_text

if TYPE_CHECKING:
    from mixlist.cost.estimate import Work
    from mixlist.runtime.profile_reader import Profile


@dataclass(frozen=True)
class TimedModel:
    """One of the two models: how fast it ran, what it took, and what really ran.

    ``seconds``: per run. ``host_memory``: the most resident bytes that loading and running it added to a process of its
    own, inputs and outputs included. ``low_nodes`` of its file compute in float16 or bfloat16, ``low_kernels`` of these
    have a kernel of that type on the provider. ``graph``: what ONNX Runtime made of it; ``profile``: what ran, its
    ``arena`` the most bytes in use in the provider's own memory. None stands for what could not be had. ``failure``:
    why it could not be timed, or "".
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
    """Two models, timed in turn.

    ``rounds`` pairs of turns were timed, after ``warmup`` runs of each batch; a turn is ``repeats`` runs of one batch
    in a row. ``batches`` differ and take turns too. ``transfers``: whether the times include carrying inputs to the
    device and outputs back. ``threads``: within an operator, None for ONNX Runtime's own choice. ``ratio`` is None
    where one of the two could not be timed. ``notes``: what one must know to read the figures, a sentence each.
    """

    provider: str
    threads: int | None
    rounds: int
    warmup: int
    repeats: int
    batches: int
    transfers: bool
    original: TimedModel
    other: TimedModel
    ratio: Ratio | None
    notes: tuple[str, ...]
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        ratio = "not timed" if self.ratio is None else f"{self.ratio.value:.3g} times as long as the original"
        return f"<BenchReport of {self.other.name!r}: {ratio}; rounds {self.rounds}, warnings {len(self.warnings)}>"

    @property
    def failed(self) -> bool:
        """Return True if one of the two models could not be timed."""
        return bool(self.original.failure or self.other.failure)

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.bench/1`` object."""
        timing = asdict(self)
        del timing["warnings"]
        return _bench_json(self.original.name, self.other.name, {"timing": timing}, self.warnings)


def estimate_json(original: Work, other: Work, warnings: tuple[Diagnostic, ...] = ()) -> dict[str, object]:
    """Return the ``mixlist.bench/1`` object of an estimate alone: the accounts of both models."""
    works = {"original": _work(original), "other": _work(other)}
    return _bench_json(original.model, other.model, {"estimate": works}, warnings)


def _bench_json(
    model: str, other: str, part: Mapping[str, object], warnings: tuple[Diagnostic, ...]
) -> dict[str, object]:
    """Return the object with a timing or an estimate; the other one is null."""
    parts = {"timing": None, "estimate": None, **part}
    return {
        "format": "mixlist.bench/1",
        "model": model,
        "other": other,
        **parts,
        "warnings": warnings_as_text(warnings),
    }


def _work(work: Work) -> dict[str, object]:
    return {**asdict(work), "low_share": work.low_share}
