"""Make random data, for users who have no data for a model.

Random data shows whether a model runs. It does not show which ranges and errors occur on real data.

Floats are standard normal. Bools are True and False with the same probability. Strings are short words. ``ranges`` sets
the smallest and the largest value of an input; its floats are then uniform between them. An initializer that is also an
input keeps its default value unless ``ranges`` or ``dims`` names it.

Random integers have the range that the graph shows for their input. They are 0 or 1 if it shows none.

A size that the model leaves open comes from the option with the name ``INPUT.AXIS``, else from the option
with its symbolic name, else from the first option with a pattern that matches. A pattern is compared with the symbolic
name, or with ``INPUT.AXIS`` if the size has no symbolic name. An open size that no option gives is 1 if it is the first
axis of some input, because that axis is usually the batch. Otherwise it is an error: an image or a sentence of size 1
would test nothing. ``bench --estimate`` finds its sizes in the same way. The sizes of a decoder follow from
``past_sequence_length`` and from its attention nodes. Exporters of language models give these sizes fixed names:
``sequence_length`` new words follow the ``past_sequence_length`` words of the cache, and the mask covers all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.lists.suggestions import did_you_mean
from mixlist.model import dtypes
from mixlist.model.shape_propagation import CONTRIB_DOMAIN
from mixlist.option_spelling import Verbatim, spell
from mixlist.run.available_memory import format_gigabytes
from mixlist.run.inputs import (
    Input,
    declared_shape,
    integer_bounds,
    model_inputs,
    numpy_type,
    refuse_unknown_inputs,
)
from mixlist.run.integer_inputs import IntegerRange, find_integer_ranges

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto

    from mixlist.run.session import Array, Feed

_WORDS = ("a", "of", "mixed", "list", "tensor", "graph", "low", "high", "word", "", "Ähre", "7")
_REAL_TYPES = dtypes.FLOATS | dtypes.FLOATS_OF_8_BITS
# The limit of one batch in bytes. numpy draws floats in float64 first, which takes several times the memory. Real
# batches take megabytes.
MAX_BATCH_BYTES = 10**9

Bounds = tuple[float, float]  # the smallest and the largest value
_PAST, _NEW = "past_sequence_length", "sequence_length"
# The names of the whole length: of ONNX Runtime's exporter of language models, and of Optimum, which writes the sum.
_TOTALS = frozenset({"total_sequence_length", "total_length", f"{_PAST} + {_NEW}"})
_CACHE_SLOTS = (3, 4)  # of GroupQueryAttention: past_key and past_value, each (batch, heads, length, head size)
_LENGTH_AXIS, _HEAD_AXIS = 2, 3


class RandomFeedPlan(NamedTuple):
    """The inputs to fill, each with its shape and the bounds of its values (None: the default).

    warnings: the sizes and ranges that were assumed (ML601).
    """

    entries: tuple[tuple[Input, tuple[int, ...], Bounds | None], ...]
    warnings: tuple[Diagnostic, ...]

    def make_feed(self, seed: int, batch: int) -> Feed:
        """Return the values of one batch. They do not depend on the other batches."""
        from numpy.random import default_rng

        # Every input of every batch has its own generator: its values do not depend on the sizes of other inputs.
        return {
            model_input.name: _draw_values(
                default_rng([seed, batch, index]), dtypes.element(model_input.type), shape, bounds
            )
            for index, (model_input, shape, bounds) in enumerate(self.entries)
        }


def plan_random_feeds(proto: ModelProto, dims: Mapping[str, int], ranges: Mapping[str, Bounds]) -> RandomFeedPlan:
    """Decide the shape and the bounds of every input.

    Raises UsageError for missing sizes (the error lists all of them), and for a name that the model does not have.
    """
    # 1. The names in the options: a name that the model does not have is an error.
    inputs = model_inputs(proto)
    dims = expand_sizes(inputs, dims)
    refuse_unknown_inputs("ranges", ranges, inputs)
    # 2. The inputs that get data. An initializer keeps its value, unless an option names the input.
    inputs_in_dims = {name.rpartition(".")[0] for name in dims}  # of names like INPUT.AXIS
    filled_inputs = [i for i in inputs if not i.optional or i.name in ranges or i.name in inputs_in_dims]
    for model_input in filled_inputs:
        _check_input(model_input, ranges.get(model_input.name))
    shapes, warnings = decide_shapes(proto, filled_inputs, dims, "random data")
    check_window_caches(proto, filled_inputs, shapes)
    _check_batch_size(filled_inputs, shapes)
    # 3. The bounds of integers without an option. They can depend on the shapes: an index is below the size of an axis.
    bounds = dict(ranges)
    integers = [i for i in filled_inputs if i.type in dtypes.INTEGERS and i.name not in ranges]
    if integers:
        graph_ranges = find_integer_ranges(proto, shapes)
        for model_input in integers:
            name = model_input.name
            bounds[name], assumption = _decide_integer_bounds(model_input, graph_ranges.get(name))
            if bounds[name] == (0, 1) and covers_the_whole_text(model_input):
                # A decoder attends to every word of its cache, except to padding, which random data has none of.
                bounds[name] = (1, 1)
                message = f"input {name!r}: integers 1, because it masks a text without padding"
                assumption = warning("ML601", message, hint=_range_hint())
            warnings.append(assumption)
    return RandomFeedPlan(tuple([(i, shapes[i.name], bounds.get(i.name)) for i in filled_inputs]), tuple(warnings))


def decide_shapes(
    proto: ModelProto, inputs: Sequence[Input], dims: Mapping[str, int], purpose: str
) -> tuple[dict[str, tuple[int, ...]], list[Diagnostic]]:
    """Return the shape of each input, and warnings about assumed sizes.

    ``dims``: a result of ``expand_sizes``. ``purpose``: what needs the sizes, for the message. Raises UsageError, which
    lists all missing sizes.
    """
    dims, decoder_warnings = add_decoder_sizes(proto, inputs, dims)
    first_sizes = {model_input.shape[0] for model_input in inputs if model_input.shape}
    shapes: dict[str, tuple[int, ...]] = {}
    missing: list[str] = []
    assumed: list[str] = []
    proposed: dict[str, int] = {}
    for model_input in inputs:
        shape = []
        for axis, declared_size in enumerate(model_input.shape or ()):
            axis_name = f"{model_input.name}.{axis}"
            if isinstance(declared_size, int):
                shape.append(declared_size)
                continue
            # INPUT.AXIS wins over the symbolic name.
            size = dims.get(axis_name, dims.get(declared_size) if declared_size else None)
            if size is None:
                # A symbolic batch size has the same name on axes that are not the first: float[2, N, 8].
                is_batch_size = axis == 0 or (declared_size is not None and declared_size in first_sizes)
                (assumed if is_batch_size else missing).append(declared_size or axis_name)
                proposed.setdefault(declared_size or axis_name, _propose_size(proto, model_input, axis))
                size = 1
            shape.append(size)
        shapes[model_input.name] = tuple(shape)
    if missing:
        names = list(dict.fromkeys(missing))
        # The lengths of a decoder must fit each other, so the hint names only the one that the others follow from.
        following = [name for name in names if name == _NEW or name in _TOTALS] if _PAST in names else []
        follow = f" ({' and '.join(following)} follow{'s' * (len(following) == 1)} from {_PAST})" if following else ""
        sizes = {name: proposed[name] for name in names if name not in following}
        if len(sizes) > 1 and not following:  # of a decoder with other names, for example
            follow = " (sizes that belong together must fit)"
        raise UsageError(
            f"{purpose} needs sizes that the model leaves open: {', '.join(names)}",
            hint=f"set them{follow}, for example: {spell('dims', dict([*sizes.items()][:6]))}",
        )
    return shapes, decoder_warnings + [
        warning(
            "ML601",
            f"size {name} is not given: 1 is used",
            hint=f"set it with {spell('dims', {name: Verbatim('N')})}",
        )
        for name in dict.fromkeys(assumed)
    ]


def _propose_size(proto: ModelProto, model_input: Input, axis: int) -> int:
    """Return a size that the network probably accepts.

    The height and the width of an image are those in the metadata that ultralytics writes, or 320, a multiple of the 32
    by which most networks for images shrink them. Everything else is short.
    """
    shape = model_input.shape or ()
    spatial = (1, 2) if shape[-1:] in ((1,), (3,)) else (2, 3)
    if len(shape) != 4 or axis not in spatial:
        return 16
    stated = next((entry.value for entry in proto.metadata_props if entry.key == "imgsz"), "")
    sizes = [int(number) for number in re.findall(r"\d+", stated)]
    return sizes[axis - spatial[0]] if len(sizes) == 2 else 320


def _data_hint() -> str:
    return f"give data with {spell('data')}"


def _range_hint() -> str:
    return f"set another range with {spell('ranges')}"


def _decide_integer_bounds(model_input: Input, graph_range: IntegerRange | None) -> tuple[Bounds, Diagnostic]:
    """Return the bounds of an integer input that no ``--range`` names, and a warning with the reason."""
    prefix = f"input {model_input.name!r}: integers"
    if graph_range is None:
        return (0, 1), warning("ML601", f"{prefix} 0 or 1, because the graph shows no range", hint=_range_hint())
    type_low, type_high = integer_bounds(numpy_type(dtypes.element(model_input.type)))
    # An int8 index into an axis of 1,000 elements can only reach 127.
    low, high = max(graph_range.smallest, type_low), min(graph_range.largest, type_high)
    bounds_text = "0 or 1" if (low, high) == (0, 1) else str(low) if low == high else f"from {low} to {high}"
    return (low, high), warning("ML601", f"{prefix} {bounds_text}, because {graph_range.reason}", hint=_range_hint())


def expand_sizes(inputs: Sequence[Input], dims: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes in ``dims`` by exact names, with every pattern replaced by the open sizes that it matches.

    An exact name wins over a pattern, and of several patterns the first one that matches wins. Raises UsageError for a
    name or a pattern that no open size has, and for a size that contradicts the model.

    Example: for the inputs float[N, L] a, float[N, M] b, the sizes {"N": 2, "*": 16} become {"N": 2, "L": 16, "M": 16}.
    """
    # For each name of a size, the size in the model: a number, a symbolic name, or None. For the input float[N, 8] a,
    # this is {"a.0": "N", "N": None, "a.1": 8}.
    declared: dict[str, int | str | None] = {}
    for model_input in inputs:
        for axis, size in enumerate(model_input.shape or ()):
            declared[f"{model_input.name}.{axis}"] = size
            if isinstance(size, str):
                declared[size] = None
    # One name for each open size: its symbolic name, or INPUT.AXIS if it has none. Messages show these names, too.
    open_names = [name for name, size in declared.items() if size is None]
    # Exact names first: patterns then fill only the sizes that are still open.
    expanded = {name: size for name, size in dims.items() if name in declared}
    for name, size in dims.items():
        if name not in declared:
            matches = [open_name for open_name in open_names if _matches(name, open_name)]
            if not matches:
                _refuse_size(name, open_names, declared)
            expanded.update({match: size for match in matches if match not in expanded})
        declared_size = declared.get(name)
        if isinstance(declared_size, int) and declared_size != size:
            raise UsageError(f"{name} is {declared_size} in the model, not {size}", hint="leave it out")
    return expanded


def _matches(pattern: str, name: str) -> bool:
    """Return True if a name matches a pattern of ``*`` and ``?``. Brackets are literal, because names contain them."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _refuse_size(name: str, open_names: Sequence[str], all_names: Iterable[str]) -> NoReturn:
    if any(wildcard in name for wildcard in "*?"):
        message, suggestion = f"no open size of an input matches {name!r}", None
    else:
        message, suggestion = f"no input has a size called {name!r}", did_you_mean(name, all_names)
    open_text = f"the open sizes are {', '.join(open_names)}" if open_names else "the model fixes all sizes"
    raise UsageError(message, hint=suggestion or open_text)


def _check_input(model_input: Input, bounds: Bounds | None) -> None:
    """Raise UsageError if random data cannot be made for an input, or if its type cannot represent the bounds."""
    elem = model_input.type
    fillable_types = _REAL_TYPES | dtypes.COMPLEX | dtypes.INTEGERS | {dtypes.BOOL, dtypes.STRING}
    if isinstance(elem, tuple) or elem not in fillable_types:
        raise UsageError(f"random data cannot be made for input {model_input}", hint=_data_hint())
    if model_input.shape is None:
        raise UsageError(f"random data needs a shape, and input {model_input} has none", hint=_data_hint())
    if bounds is None:
        return
    low, high = bounds
    if elem in (dtypes.STRING, *dtypes.COMPLEX):
        message = f"{spell('ranges')} cannot be used for input {model_input}: its values have no order"
        raise UsageError(message, hint=f"leave out the range of {model_input.name}")
    import numpy as np

    option = spell("ranges", {model_input.name: bounds})
    if elem in _REAL_TYPES:
        with np.errstate(over="ignore"):
            cast_bounds = np.array(bounds, np.float64).astype(numpy_type(elem))
        if not np.isfinite(cast_bounds).all():
            message = f"{option} is beyond the range of {dtypes.type_name(elem)}"
            raise UsageError(message, hint="give bounds that the type can represent")
        return
    type_low, type_high = integer_bounds(numpy_type(elem))
    if low != int(low) or high != int(high) or low < type_low or high > type_high:
        hint = f"give whole numbers from {type_low} to {type_high}"
        raise UsageError(f"{option} does not fit {dtypes.type_name(elem)}", hint=hint)


def _check_batch_size(inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError, which names the largest input, if one batch takes more than ``MAX_BATCH_BYTES``."""
    sizes = {i: prod(shapes[i.name]) * _item_size(dtypes.element(i.type)) for i in inputs}  # in bytes
    total = sum(sizes.values())
    if total > MAX_BATCH_BYTES:
        largest = max(sizes, key=lambda model_input: sizes[model_input])
        all_inputs = f" and {format_gigabytes(total)} for all inputs" if total > sizes[largest] else ""
        raise UsageError(
            f"one batch of random data takes {format_gigabytes(sizes[largest])} for input {largest}{all_inputs},"
            f" more than the limit of {MAX_BATCH_BYTES // 10**9} GB",
            hint=f"{_data_hint()}, or give open sizes smaller values with {spell('dims')}",
        )


def _item_size(elem: int) -> int:
    return 8 if elem == dtypes.STRING else numpy_type(elem).itemsize  # an array of strings has pointers of 8 bytes


def _draw_floats(rng: np.random.Generator, shape: tuple[int, ...], bounds: Bounds | None) -> Array:
    if bounds is None:
        return rng.standard_normal(shape)
    fraction = rng.random(shape)
    # Not low + (high - low) * fraction: the difference of two large float64 bounds could overflow.
    return float(bounds[0]) * (1 - fraction) + float(bounds[1]) * fraction


def _draw_values(rng: np.random.Generator, elem: int, shape: tuple[int, ...], bounds: Bounds | None) -> Array:
    import numpy as np

    if elem == dtypes.STRING:
        return np.asarray(np.take(np.array(_WORDS, object), rng.integers(0, len(_WORDS), shape)), object)
    dtype = numpy_type(elem)
    if elem in _REAL_TYPES:
        return np.asarray(_draw_floats(rng, shape, bounds)).astype(dtype)
    if elem in dtypes.COMPLEX:
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    low, high = (0, 1) if bounds is None else (int(bounds[0]), int(bounds[1]))
    # int64 cannot represent the upper bounds of uint64. No type needs both a negative bound and such an upper bound.
    wide_dtype = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    return np.asarray(rng.integers(low, high, shape, dtype=wide_dtype, endpoint=True)).astype(dtype)


# --- the sizes of a decoder ---


class _AttentionCache(NamedTuple):
    """An input of the model that a GroupQueryAttention node reads as its cache.

    head_size: None if the model does not declare the width of the query, or if the cache is quantized.
    window: the ``local_window_size`` of a node with ``sliding_window_cache``, which is the least number of rows of its
        cache; 0 for a cache of all words.
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
    """Return ``dims`` with the sizes of a decoder that follow, and a warning for each.

    The lengths follow from the option ``past_sequence_length``, and the sizes of a cache from the GroupQueryAttention
    that reads it: the size of a head is the width of the query divided by its heads, and the length of a sliding window
    cache is the window. An option always wins over a derived size.
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
            warnings.append(warning("ML601", message, hint=f"set it with {spell('dims', {name: Verbatim('N')})}"))
    return sizes, warnings


def check_window_caches(proto: ModelProto, inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError for a sliding window cache unless it is as long as its window, and the text fills it.

    Other rows would stay empty for some lengths of the text, and ONNX Runtime leaves them undefined.
    """
    totals = [shapes[i.name][-1] for i in inputs if covers_the_whole_text(i)]
    for cache in _attention_caches(proto, inputs):
        rows, window, name = shapes[cache.cache.name][_LENGTH_AXIS], cache.window, cache.size_name(_LENGTH_AXIS)
        words = min(totals, default=rows)
        if window and not rows == window <= words:
            raise UsageError(
                f"input {cache.cache.name!r} has {rows} rows for a text of {words} words, and {cache.node_name} fills "
                f"its cache only with {window} rows and a text of at least {window} words",
                hint=f"set {spell('dims', {name: window})}, and a longer text" if name else None,
            )


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
        for name in [node.input[slot] for slot in _CACHE_SLOTS if slot < len(node.input)]:
            if name in by_name:
                is_quantized = by_name[name].type not in dtypes.FLOATS
                head_size = _head_size(node, attributes, query_shape[-1]) if query_shape and not is_quantized else None
                yield _AttentionCache(by_name[name], node.name or node.op_type, head_size, max(window, 0))


def _head_size(node: NodeProto, attributes: Mapping[str, int], query_width: int | str | None) -> int | None:
    """Return the size of a head; None if the width of the query is not declared."""
    heads = attributes.get("num_heads", 0)
    if len(node.input) < 2 or not node.input[1]:
        heads += 2 * attributes.get("kv_num_heads", 0)  # without a key input, the query holds key and value, too
    return query_width // heads if isinstance(query_width, int) and heads > 0 else None


def covers_the_whole_text(model_input: Input) -> bool:
    """Return whether the last axis of an input has a name of the whole length, as that of an attention mask."""
    shape = model_input.shape or ()
    return bool(shape) and shape[-1] in _TOTALS
