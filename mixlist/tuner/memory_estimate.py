"""Refuse to tune a model that does not fit into memory, before anything large is allocated.

A search holds the weights several times: in float32, rounded, in the gated graph, in the bytes that are sent to the
workers, and in the sessions of each worker. Measured on models with 200 and 400 MB of weights, the searching process
takes nine times the weights, shared memory included, and each worker six times.
"""

from __future__ import annotations

from mixlist.checker.segment_choice import weight_bytes
from mixlist.errors import UsageError
from mixlist.graph.load import LoadedModel
from mixlist.runtime.available_memory import format_gigabytes, measure_available_memory

# The memory of the searching process and of one worker, in multiples of the float32 weights. Both are below the
# measured factors (9 and 6), so that no model is refused that fits.
SEARCH_FACTOR, WORKER_FACTOR = 8, 5
# Models with fewer bytes of weights fit on every machine, so the free memory is not measured for them.
_LEAST_REFUSED_WEIGHTS = 64 << 20


def refuse_too_large(loaded: LoadedModel, workers: int) -> None:
    """Raise UsageError if tuning with ``workers`` processes on this machine needs more memory than is free."""
    weights = weight_bytes(loaded)
    if weights < _LEAST_REFUSED_WEIGHTS:
        return
    free, needed = measure_available_memory(), _needed_bytes(weights, workers)
    if free is None or needed <= free:
        return
    # Fewer workers are slower and need less memory: advise them only if that is enough.
    with_one_worker = _needed_bytes(weights, 1)
    one_worker_fits = workers > 1 and with_one_worker <= free
    advice = (
        f"use --jobs 1, which takes {format_gigabytes(with_one_worker)}"
        if one_worker_fits
        else "use a machine with more memory"
    )
    raise UsageError(
        f"tuning {loaded.name} takes about {format_gigabytes(needed)} of memory with {workers} worker"
        f"{'s' if workers != 1 else ''}, and {format_gigabytes(free)} are free",
        hint=f"{advice}, or judge single lists with mixlist check, which maps the weights from disk",
    )


def _needed_bytes(weights: int, workers: int) -> int:
    return weights * (SEARCH_FACTOR + WORKER_FACTOR * workers)
