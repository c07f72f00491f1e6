"""Decide whether a check runs its models in segments (Rule S8.31)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.graph.load import LoadedModel
from mixlist.graph.traversal import tensors_in_model
from mixlist.graph.weights import declared_byte_size, stored_element_count
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.runtime.array_casts import STRING
from mixlist.runtime.available_memory import measure_available_memory

if TYPE_CHECKING:
    from mixlist.checker.options import CheckOptions

# The largest share of the free memory that the weights of a model may take, if it runs whole. A check holds them
# several times: ONNX Runtime packs the weights of the two models, and their pages are mapped.
_LARGEST_SHARE = 0.25
# Models with fewer bytes of weights fit on every machine, so the free memory is not measured for them.
_LEAST_WEIGHTS = 64 << 20
DEFAULT_SEGMENT_BYTES = 256 << 20


def choose_segment_bytes(loaded: LoadedModel, options: CheckOptions) -> int | None:
    """Return the most bytes of weights in a segment; None if the models run whole."""
    if options.segment_bytes is not None or options.runs_whole:
        return options.segment_bytes
    weights = weight_bytes(loaded)
    free = measure_available_memory() if weights >= _LEAST_WEIGHTS else None
    return DEFAULT_SEGMENT_BYTES if free is not None and weights > _LARGEST_SHARE * free else None


def weight_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of the model's constants, where those of a low type count as float32."""
    # Strings have no fixed size and are never rounded, so they are left out.
    numbers = [tensor for tensor in tensors_in_model(loaded.proto) if tensor.data_type != STRING]
    return sum(
        4 * stored_element_count(tensor) if tensor.data_type in LOW_TYPES else declared_byte_size(tensor)
        for tensor in numbers
    )
