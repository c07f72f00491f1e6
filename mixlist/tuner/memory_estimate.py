"""Refuse to tune a model that does not fit into memory, before anything large is allocated.

A search holds the weights in float32 and rounded, in the gated graph, in the bytes that are sent to the workers, and in
the sessions of each worker. Measured on models of 200 and 400 MB: nine times the weights in the process that searches,
shared parts included, and six times in each worker.
"""

from __future__ import annotations

from mixlist.errors import UsageError
from mixlist.graph.load import LoadedModel
from mixlist.graph.traversal import tensors_in_model
from mixlist.graph.weights import declared_byte_size, stored_element_count
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.runtime.array_casts import STRING
from mixlist.runtime.available_memory import format_gigabytes, measure_available_memory

SEARCH, WORKER = 8, 5  # times the weights in float32: less than was measured, so that no model is refused that fits
_SMALL = 64 << 20  # bytes of weights that fit everywhere


def refuse_too_large(loaded: LoadedModel, workers: int) -> None:
    """Raise UsageError if tuning with so many worker processes on this machine needs more memory than is free."""
    weights = weight_bytes(loaded)
    if weights < _SMALL:
        return
    free, needed = measure_available_memory(), _needed(weights, workers)
    if free is None or needed <= free:
        return
    fewer = _needed(weights, 1)
    fits = workers > 1 and fewer <= free
    other = f"--jobs 1 takes {format_gigabytes(fewer)}" if fits else "use a machine with more memory"
    raise UsageError(
        f"to tune {loaded.name} takes about {format_gigabytes(needed)} of memory with {workers} worker"
        f"{'s' if workers != 1 else ''}, and {format_gigabytes(free)} are free",
        hint=f"{other}, or check single lists with mixlist check, which maps the weights from disk",
    )


def weight_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of the model's constants when those of a low type are float32."""
    numbers = [tensor for tensor in tensors_in_model(loaded.proto) if tensor.data_type != STRING]
    return sum(
        4 * stored_element_count(each) if each.data_type in LOW_TYPES else declared_byte_size(each) for each in numbers
    )


def _needed(weights: int, workers: int) -> int:
    return weights * (SEARCH + WORKER * workers)
