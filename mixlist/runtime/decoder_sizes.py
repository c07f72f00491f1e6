"""Derive the sizes of a decoder's inputs from the length of its cache, and from its attention nodes.

Exporters of language models give these sizes fixed names: ``sequence_length`` new words follow the
``past_sequence_length`` words of the cache, and the mask covers all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.graph.contrib_shapes import CONTRIB_DOMAIN
from mixlist.ops import dtypes
from mixlist.runtime.inputs import Input, declared_shape
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_PAST, _NEW = "past_sequence_length", "sequence_length"
# The names of the whole length: of ONNX Runtime's exporter of language models, and of Optimum, which writes the sum.
_TOTALS = frozenset({"total_sequence_length", "total_length", f"{_PAST} + {_NEW}"})
_CACHE_SLOTS = (3, 4)  # of GroupQueryAttention: past_key and past_value, each (batch, heads, length, head size)
_LENGTH_AXIS, _HEAD_AXIS = 2, 3


@dataclass(frozen=True)
class _AttentionCache:
    """An input of the model that a GroupQueryAttention node reads as its cache.

    head_size: None if the model does not declare the width of the query, or if the cache is quantized.
    window: the number of words that a cache of window size must have room for; 0 for a cache of all words.
    """

    cache: Input
    node_name: str
    head_size: int | None
    window: int

    def size_name(self, axis: int) -> str | None:
        """Return the name of the size of an axis for ``--dim``; None if the model fixes the size."""
        size = (self.cache.shape or ())[axis]
        return None if isinstance(size, int) else size or f"{self.cache.name}.{axis}"


def add_decoder_sizes(
    proto: ModelProto, inputs: Sequence[Input], dims: Mapping[str, int]
) -> tuple[dict[str, int], list[Diagnostic]]:
    """Return ``dims`` with the sizes of a decoder that follow, and a warning for each (Rules S8.24 and S8.32).

    The lengths follow from the option ``past_sequence_length``, and the sizes of a cache from the node that reads it.
    An option always wins over a derived size.
    """
    sizes = dict(dims)
    names = {size for model_input in inputs for size in model_input.shape or () if isinstance(size, str)}
    derived: dict[str, tuple[int, str]] = {}
    if _PAST in dims:
        new = dims.get(_NEW, 1)
        derived[_NEW] = 1, "one new word follows the cache"
        derived |= dict.fromkeys(sorted(_TOTALS), (dims[_PAST] + new, "the cache and the new words together"))
        derived = {name: size for name, size in derived.items() if name in names}
    for cache in _attention_caches(proto, inputs):
        if cache.head_size is not None and (name := cache.size_name(_HEAD_AXIS)) is not None:
            derived.setdefault(name, (cache.head_size, f"the size of a head of {cache.node_name}"))
        if cache.window and (name := cache.size_name(_LENGTH_AXIS)) is not None:
            derived.setdefault(name, (cache.window, f"the window of {cache.node_name}"))
    warnings = []
    for name, (size, reason) in derived.items():
        if name not in sizes:
            sizes[name] = size
            message = f"size {name} is not given: {size} is used, {reason}"
            warnings.append(warning("ML601", message, hint=f"set it with --dim {quote_argument(name)}=N"))
    return sizes, warnings


def check_window_caches(proto: ModelProto, inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError for a cache of window size that its window or the text does not fill (Rule S8.32)."""
    totals = [shapes[i.name][-1] for i in inputs if is_as_long_as_the_text(i)]
    for cache in _attention_caches(proto, inputs):
        capacity, window, name = shapes[cache.cache.name][_LENGTH_AXIS], cache.window, cache.size_name(_LENGTH_AXIS)
        if not window:
            continue
        if capacity < window:
            raise UsageError(
                f"input {cache.cache.name!r} has room for {capacity} words, and {cache.node_name} keeps its window of "
                f"{window} words in it",
                hint=f"set --dim {quote_argument(f'{name}={window}')}" if name else None,
            )
        filled = _filled_rows(min(totals, default=capacity), capacity, window)
        if filled < capacity:
            raise UsageError(
                f"a text of {min(totals)} words fills {filled} of the {capacity} rows of input {cache.cache.name!r}, "
                f"and {cache.node_name} leaves the other rows of its output undefined",
                hint=f"set the sizes of a text of at least {window} words with --dim, and of a cache of {window} rows",
            )


def _filled_rows(words: int, capacity: int, window: int) -> int:
    """Return the number of rows of a cache of window size that hold words after a text of so many words.

    A full cache drops the words before the window at once, as many as it has room for. Source: the documentation of
    GroupQueryAttention in ONNX Runtime 1.32.
    """
    if words <= capacity:
        return words
    dropped_at_once = capacity - window + 1
    return words - dropped_at_once * -(-(words - capacity) // dropped_at_once)


def _attention_caches(proto: ModelProto, inputs: Sequence[Input]) -> Iterator[_AttentionCache]:
    """Yield the inputs of four axes that GroupQueryAttention nodes of the main graph read as caches."""
    by_name = {i.name: i for i in inputs if i.shape is not None and len(i.shape) == 4}
    if not by_name:
        return
    value_infos = {info.name: info for info in (*proto.graph.value_info, *proto.graph.input)}
    for node in proto.graph.node:
        if node.op_type != "GroupQueryAttention" or node.domain != CONTRIB_DOMAIN:
            continue
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        query_info = value_infos.get(node.input[0])
        query_shape = declared_shape(query_info.type) if query_info is not None else None
        window = attributes.get("local_window_size", 0) if attributes.get("sliding_window_cache") else 0
        for name in node.input[slice(_CACHE_SLOTS[0], _CACHE_SLOTS[-1] + 1)]:
            if name in by_name:
                is_plain = by_name[name].type in dtypes.FLOATS and query_shape is not None
                head_size = _head_size(node, attributes, query_shape[-1]) if is_plain and query_shape else None
                yield _AttentionCache(by_name[name], node.name or node.op_type, head_size, max(window, 0))


def _head_size(node: NodeProto, attributes: Mapping[str, int], query_width: int | str | None) -> int | None:
    """Return the size of a head; None if the width of the query is not declared."""
    heads = attributes.get("num_heads", 0)
    if len(node.input) < 2 or not node.input[1]:
        heads += 2 * attributes.get("kv_num_heads", 0)  # without a key input, the query holds key and value, too
    return query_width // heads if isinstance(query_width, int) and heads > 0 else None


def is_as_long_as_the_text(model_input: Input) -> bool:
    """Return whether the last axis of an input has a name of the whole length, as that of an attention mask."""
    shape = model_input.shape or ()
    return bool(shape) and shape[-1] in _TOTALS
