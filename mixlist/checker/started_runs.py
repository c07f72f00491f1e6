"""Start the runs of later batches before the results of earlier ones are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mixlist.checker.model_pair import ModelPair
from mixlist.checker.value_counts import FullStatistics
from mixlist.emulation.observer import ObservedBatch

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed

PendingRun = Callable[[], ObservedBatch]  # waits for a run that has begun
GROUP_BYTES = 2**28  # of inputs of the batches that run together in segments


class StartedBatch(NamedTuple):
    """A batch, and its runs in the two models, which have begun.

    ``last_index``: the index of the last batch of its group; of the batch itself if it runs alone.
    """

    batch_index: int
    last_index: int
    feed: Feed
    reference: PendingRun
    mixed: PendingRun


def start_runs(
    pair: ModelPair, feeds: Iterable[Feed], statistics: FullStatistics | None = None
) -> Iterator[StartedBatch]:
    """Yield each batch, whose runs in the reference and in the mixed model have begun.

    With n workers, n later batches have begun too, so that no worker waits for this process. Models that run in
    segments get as many batches as fit into GROUP_BYTES, because each group loads all segments once. So do the counting
    sessions of ``statistics``, if there are any.
    """
    if pair.config.segment_bytes is not None:
        yield from _start_groups(pair, feeds, statistics)
        return
    batches_ahead = pair.config.workers.batches_ahead
    started: deque[StartedBatch] = deque()
    for index, feed in enumerate(feeds):
        started.append(_start(pair, index, feed))
        if len(started) > batches_ahead:
            yield started.popleft()
    yield from started


def _start_groups(pair: ModelPair, feeds: Iterable[Feed], statistics: FullStatistics | None) -> Iterator[StartedBatch]:
    """Yield the batches of one group after the other."""
    group: list[StartedBatch] = []
    group_bytes = 0
    for index, feed in enumerate(feeds):
        group.append(_start(pair, index, feed))
        group_bytes += sum(getattr(value, "nbytes", 0) for value in feed.values())
        if group_bytes > GROUP_BYTES:
            yield from _close_group(group, statistics)
            group, group_bytes = [], 0
    if group:
        yield from _close_group(group, statistics)


def _start(pair: ModelPair, index: int, feed: Feed) -> StartedBatch:
    reference, mixed = pair.reference_observer.start(feed), pair.mixed_observer.start(feed)
    return StartedBatch(index, index, feed, reference, mixed)


def _close_group(group: list[StartedBatch], statistics: FullStatistics | None) -> list[StartedBatch]:
    """Return the batches of a group with the index of the last one, and start to count them."""
    if statistics is not None:
        statistics.start_ahead([batch.feed for batch in group])
    return [batch._replace(last_index=group[-1].batch_index) for batch in group]
