"""Start the runs of later batches before the results of earlier ones are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from mixlist.checker.model_pair import ModelPair
from mixlist.emulation.observer import ObservedBatch

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed

PendingRun = Callable[[], ObservedBatch]  # waits for a run that has begun
GROUP_BYTES = 2**28  # of inputs of the batches that run together in segments


def start_runs(pair: ModelPair, feeds: Iterable[Feed]) -> Iterator[tuple[int, Feed, PendingRun, PendingRun]]:
    """Yield each batch with its index and its runs in the reference and in the mixed model, which have begun.

    With n workers, n later batches have begun too, so that no worker waits for this process. Models that run in
    segments get as many batches as fit into GROUP_BYTES, because each group loads all segments once.
    """
    in_groups = pair.config.segment_bytes is not None
    batches_ahead = pair.config.workers.count if pair.config.workers is not None else 0
    started: deque[tuple[int, Feed, PendingRun, PendingRun]] = deque()
    started_bytes = 0
    for index, feed in enumerate(feeds):
        started.append((index, feed, pair.reference_observer.start(feed), pair.mixed_observer.start(feed)))
        started_bytes += sum(getattr(value, "nbytes", 0) for value in feed.values())
        if in_groups and started_bytes > GROUP_BYTES:
            while started:
                yield started.popleft()
            started_bytes = 0
        elif not in_groups and len(started) > batches_ahead:
            yield started.popleft()
    while started:
        yield started.popleft()
