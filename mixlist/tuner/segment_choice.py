"""Decide whether the trials of a search run their model in segments (Rule S8.31).

A search on a whole model holds the weights several times: in float32, rounded, in the gated graph, in the bytes that
are sent to the workers, and in the sessions of each worker. Measured on models with 200 and 400 MB of weights, the
searching process takes nine times the weights, shared memory included, and each worker six times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.checker.segment_choice import DEFAULT_SEGMENT_BYTES, weight_bytes
from mixlist.errors import UsageError
from mixlist.graph.load import LoadedModel
from mixlist.graph.save import INLINE_LIMIT
from mixlist.runtime.available_memory import measure_available_memory

if TYPE_CHECKING:
    from mixlist.tuner.options import SearchOptions

# The memory of the searching process and of one worker, in multiples of the float32 weights. Both are below the
# measured factors (9 and 6): a model that fits runs whole, which is faster.
SEARCH_FACTOR, WORKER_FACTOR = 8, 5
# Models with fewer bytes of weights fit on every machine, so the free memory is not measured for them.
_LEAST_WEIGHTS = 64 << 20


def choose_segment_bytes(loaded: LoadedModel, options: SearchOptions, workers: int) -> int | None:
    """Return the most bytes of weights in a segment; None if trials run the model whole.

    ``workers``: the number of processes on this machine. Raises UsageError for a model that must run in segments if the
    workers may be on other machines.
    """
    weights = weight_bytes(loaded)
    if options.segment_bytes is not None or weights < _LEAST_WEIGHTS:
        return options.segment_bytes
    free = measure_available_memory()
    # The gated graph has each weight twice, rounded and not rounded. ONNX Runtime makes no session from more bytes.
    fits = 2 * weights <= INLINE_LIMIT and (free is None or weights * (SEARCH_FACTOR + WORKER_FACTOR * workers) <= free)
    if not fits and options.runs_whole:
        raise UsageError(
            f"{loaded.name} has {weights / 1e9:.1f} GB of weights, which is too much for trials on a cluster",
            hint="leave out --scheduler: on this machine the trials load one segment of the model at a time",
        )
    return None if fits else DEFAULT_SEGMENT_BYTES
