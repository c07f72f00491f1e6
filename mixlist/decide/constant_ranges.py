"""Find the range of each constant, and whether the low type holds it (Rule S4.7). ``node_types.py`` decides by it.

A constant does not fit if a finite value of it becomes infinite, or if all of its nonzero values become zero: an
epsilon, or a tiny weight.

Rule S4.20: S4.7 applies to the value of every deterministic node without bodies whose inputs are all constants. The
ranges of ``Range`` and ``ConstantOfShape`` come from their inputs alone, at any size, and a value mover has the range
of its inputs. ONNX's reference implementation computes all other constants, each when it is first asked for. Shape
inference finds the size of the result first, and a large result is not computed. ONNX Runtime is not used, because
another release could give other bytes, and so another decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mixlist.lru_cache import LruCache
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value, float_values
from mixlist.model.low_precision import LOW_TYPES, flush_bound, overflow_bound
from mixlist.model.shape_inference import infer_shapes
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import embedded_array, is_external, read_pieces, stored_element_count, stores_all_elements
from mixlist.progress import ProgressCounter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.model.protos import ConstantProto

    Array = NDArray[np.generic]

_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_QUANTIZED_TYPES = frozenset({2, 3, 4, 5, 6})  # uint8, int8, uint16, int16, int32
_MOST_COMPUTED_ELEMENTS = 2**20  # of a tensor that a node computes
_MOST_STORED = 2**24  # elements of an initializer that a node reads
# Shape inference may read the values of inputs up to this size: shapes, axes, sizes.
_MOST_ELEMENTS_FOR_INFERENCE = 1024
_CACHE_BYTES = 64 * 2**20  # of all computed arrays that are kept
# The opset of a Constant whose attribute must be evaluated: it has all attributes of a Constant. A Constant gets no
# schema, because its value alone decides its type.
_CONSTANT_OPSET = 13
# onnx.reference implements these operators from this version on. On types that an older version admits, the new version
# computes the same as the old one.
_IMPLEMENTED_SINCE = {"DequantizeLinear": 19, "QuantizeLinear": 19}
# The values of their input decide the size of their output, so shape inference does not find it.
_SELECTING = frozenset({"Compress", "NonZero", "Unique"})
# onnx.reference loops in Python over the elements of these operators: each element takes 2 to 800 microseconds.
_SLOW = {"AveragePool", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "GRU", "GatherND", "GridSample", "LSTM"}
_SLOW |= {"LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "NonMaxSuppression", "RNN", "Resize", "RoiAlign", "Upsample"}
_SLOW |= {"ScatterElements", "ScatterND"}
_MOST_ELEMENTS_SLOW = 2**12


# --- the range of a constant ---


class ConstantRange(NamedTuple):
    """The largest finite magnitude of a constant, and its smallest and largest element.

    A constant without elements has ``smallest`` inf and ``largest`` -inf, so that a union with it changes nothing. A
    constant with a NaN has ``smallest`` -inf and ``largest`` inf. ``unknown``: the reason why the values of
    some elements are unknown, or "" if all are known. The range is then that of the known elements.
    """

    max_abs: float
    smallest: float
    largest: float
    unknown: str = ""

    @property
    def single_value(self) -> float | None:
        """Return the value that all elements have; None if there are several values, or none."""
        return self.smallest if self.smallest == self.largest and not self.unknown else None

    def misfit_reason(self, low: int) -> str | None:
        """Return why the constant does not fit the low type, as the end of a sentence; None if it fits."""
        if self.max_abs >= overflow_bound(low):
            return f"reaches {self.max_abs:.6g}, which {dtypes.type_name(low)} turns into infinity"
        # If one small element of many becomes zero, this is a rounding error. If all elements become zero, the constant
        # has no effect any more: an epsilon that is zero does not prevent a division by zero.
        magnitude = max(abs(self.smallest), abs(self.largest))  # infinite with an infinity, or without elements
        if 0 < magnitude <= flush_bound(low) and not self.unknown:
            values = f"is {self.smallest:.6g}" if self.smallest == self.largest else f"reaches only {magnitude:.6g}"
            return f"{values}, which {dtypes.type_name(low)} turns into zero"
        return None

    def union(self, second: ConstantRange) -> ConstantRange:
        """Return the range of the elements of both constants."""
        smallest, largest = min(self.smallest, second.smallest), max(self.largest, second.largest)
        return ConstantRange(max(self.max_abs, second.max_abs), smallest, largest, self.unknown or second.unknown)


_EMPTY = ConstantRange(0.0, math.inf, -math.inf)
_ZERO = ConstantRange(0.0, 0.0, 0.0)


class ConstantRanges:
    """The ranges of a model's constants; each is computed once, when it is first asked for."""

    def __init__(self, folder: Path | None, progress: ProgressCounter | None = None) -> None:
        self.folder = folder
        self._progress = progress
        self._evaluator = _ConstantEvaluator(folder)
        # By id of the tensor. The tensor is kept, too, so that no other object can get its id.
        self._stored: dict[int, tuple[ConstantProto, ConstantRange]] = {}
        self._computed: dict[Value, ConstantRange] = {}

    def range_of(self, value: Value) -> ConstantRange | None:
        """Return the range of a constant; None for a value that is no constant, or that holds no floats.

        A constant that value movers make has the union of the ranges of all constants that are moved into it.
        """
        if not value.is_constant or dtypes.element(value.type) not in dtypes.FLOATS:
            return None
        if value.constant_proto is not None:
            return self._stored_range(value.constant_proto)
        # Depth first through the value movers, with a stack: a chain of them may be longer than Python's stack.
        stack = [value]
        while stack:
            step = stack[-1]
            if step in self._computed:  # computed now, or earlier: two movers can read one constant
                stack.pop()
                continue
            moved = _moved_inputs(step, _MOVERS)
            missing = [source for source in moved if source not in self._computed]
            stack += missing
            if not missing:
                self._computed[step] = (
                    self._range_of_mover_output(step, moved) if moved else self._range_of_other_constant(step)
                )
        return self._computed[value]

    def known_range_of(self, value: Value) -> ConstantRange | None:
        """Return the range of a constant if the values of all its elements are known; None for every other value."""
        constant_range = self.range_of(value)
        return constant_range if constant_range is not None and not constant_range.unknown else None

    def fits(self, value: Value, low: int) -> bool:
        """Return True if the low type holds the constant, or if the value is no constant of floats."""
        constant_range = self.range_of(value)
        return constant_range is None or constant_range.misfit_reason(low) is None

    def _range_of_mover_output(self, constant: Value, moved: Iterable[Value]) -> ConstantRange:
        """Return the union of the ranges of the constants that a value mover moves into this one."""
        fills = constant.producer is not None and constant.producer.op_type in _FILLERS
        return reduce(ConstantRange.union, (self._computed[source] for source in moved), _ZERO if fills else _EMPTY)

    def _range_of_other_constant(self, constant: Value) -> ConstantRange:
        """Return the range of a constant that no value mover makes."""
        node = constant.producer
        if constant.constant_proto is not None:
            return self._stored_range(constant.constant_proto)
        if isinstance(constant.type, tuple) and node is not None and not node.inputs:
            return _EMPTY  # SequenceEmpty, or an Optional without content
        operator = node.op_type if node is not None and not node.domain else ""
        try:
            if operator == "ConstantOfShape":
                return self._filled_range(constant)
            if operator == "Range":
                return self._progression_range(constant)
            if operator == "DequantizeLinear" and (bound := self._dequantized_bound(constant)) is not None:
                return bound
            return _range_of_pieces([self._evaluator.array(constant).reshape(-1)])
        except _UnknownValueError as reason:
            return _EMPTY._replace(unknown=str(reason))

    def _filled_range(self, constant: Value) -> ConstantRange:
        """Return the range of the output of a ConstantOfShape. Its size does not matter: no element is computed."""
        (shape,) = self._evaluator.input_arrays(constant)
        fill_value = self._evaluator.attribute_value(constant, "value")
        if not shape.all():  # a dimension is 0
            return _EMPTY
        return _range_of_pieces([fill_value.reshape(-1)]) if fill_value is not None else _ZERO

    def _progression_range(self, constant: Value) -> ConstantRange:
        """Return the range of the output of a Range. Its size does not matter: no element is computed."""
        scalars = self._evaluator.input_arrays(constant)
        if any(scalar.size != 1 for scalar in scalars):
            raise _UnknownValueError("a Range reads tensors that are no scalars")
        start, limit, delta = (float(scalar.reshape(-1)[0]) for scalar in scalars)
        count = math.ceil((limit - start) / delta) if delta and math.isfinite((limit - start) / delta) else 0
        if count <= 0:
            return _EMPTY
        # A Range is monotonic: its first and its last element are the ends of its range.
        last = start + (count - 1) * delta
        return ConstantRange(max(abs(start), abs(last)), min(start, last), max(start, last))

    def _dequantized_bound(self, constant: Value) -> ConstantRange | None:
        """Return a bound of a dequantized weight; None if the bound does not prove that the weight fits.

        The bound is the largest scale times the largest difference of an integer and a zero point. Without it, every
        large quantized weight would be unknown: no result of more than 2^20 elements is computed.
        """
        node = constant.producer
        assert node is not None
        # The inputs are the integers, their scale and, if it is not left out, their zero point.
        integers, *parameters = [value for value in node.inputs if value is not None]
        if integers.constant_proto is None or integers.type not in _QUANTIZED_TYPES:
            return None
        integer_range = self._stored_range(integers.constant_proto)
        scale, *zero_point = [
            _range_of_pieces([self._evaluator.array(parameter).reshape(-1)]) for parameter in parameters
        ]
        bound = scale.max_abs * (integer_range.max_abs + sum(point.max_abs for point in zero_point))
        # A bound cannot show that all values become zero, so that must be impossible: of different integers, one
        # differs from the zero point. The narrower low type decides, because the range of a constant serves both.
        may_vanish = integer_range.single_value is not None or scale.smallest <= max(map(flush_bound, LOW_TYPES))
        if may_vanish or bound >= min(map(overflow_bound, LOW_TYPES)):
            return None
        return ConstantRange(bound, -bound, bound)

    def _stored_range(self, tensor: ConstantProto) -> ConstantRange:
        """Return the range of an initializer or of a Constant's attribute."""
        entry = self._stored.get(id(tensor))
        if entry is None:
            stored_range = _range_of_pieces(read_pieces(tensor, self.folder), self._progress)
            if not stores_all_elements(tensor):  # a sparse tensor: the others are zero
                stored_range = stored_range.union(_ZERO)
            entry = self._stored[id(tensor)] = (tensor, stored_range)
        return entry[1]


def read_fill_value(node: Node) -> float | None:
    """Return the number with which a ConstantOfShape of floats fills its output; None if it is not in the message."""
    fill_values = [attribute.t for attribute in node.proto.attribute if attribute.name == "value"]
    # With the attribute ``value``, the tensor has exactly one element. Without it, a ConstantOfShape makes zeros.
    if any(is_external(tensor) or stored_element_count(tensor) != 1 for tensor in fill_values):
        return None
    return float(embedded_array(fill_values[0]).flat[0]) if fill_values else 0.0


def find_origins(value: Value, movers: AbstractSet[str] = _MOVERS) -> list[Value]:
    """Return the tensors from which ``movers`` take the elements of ``value``; only ``value`` if no mover makes it."""
    origins: list[Value] = []
    waiting, visited = [value], {value}
    while waiting:
        value = waiting.pop()
        sources = _moved_inputs(value, movers)
        if not sources:
            origins.append(value)
        waiting += [source for source in dict.fromkeys(sources) if source not in visited]
        visited.update(sources)
    return origins


def _moved_inputs(value: Value, movers: AbstractSet[str]) -> list[Value]:
    """Return the inputs whose elements a mover puts into ``value``: its float inputs, because indices are integers."""
    node = value.producer
    if node is None or node.op_type not in movers or node.domain:
        return []
    return float_values(node.inputs)


def _range_of_pieces(pieces: Iterable[Array], progress: ProgressCounter | None = None) -> ConstantRange:
    """Return the range of a constant from its elements in flat arrays; ``progress`` counts the bytes of the arrays."""
    import numpy as np

    total = _EMPTY
    for piece in pieces:
        if progress is not None:
            progress.add(piece.nbytes)
        if not piece.size:
            continue
        numbers = piece.astype(np.float32, copy=False)
        smallest, largest = float(numbers.min()), float(numbers.max())
        if math.isfinite(smallest) and math.isfinite(largest):
            total = total.union(ConstantRange(max(-smallest, largest), smallest, largest))
            continue
        # Infinities of the author do not count in the magnitude, because a low type holds them.
        magnitude = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
        if math.isnan(smallest):  # numpy's minimum is NaN if one element is
            smallest, largest = -math.inf, math.inf
        total = total.union(ConstantRange(magnitude, smallest, largest))
    return total


# --- the value of a constant that nodes compute ---


class _UnknownValueError(Exception):
    """The value of a constant is unknown; the text of the error is the reason."""


class _ConstantEvaluator:
    """Computes constants, and caches the arrays that were used last."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cache: LruCache[Array] = LruCache(_CACHE_BYTES, lambda array: array.nbytes)
        self._unknown_reasons: dict[Value, str] = {}

    def array(self, constant: Value) -> Array:
        """Return the elements of a constant; raise _UnknownValueError if its value is unknown."""
        arrays: dict[Value, Array] = {}
        try:
            order = self._evaluation_order(constant, arrays)
            # Know the number of readers of each array, so that memory holds only the arrays that a later step reads.
            unfinished_readers = Counter(source for step in order for source in self._sources(step))
            for step in order:
                sources = self._sources(step)
                arrays[step] = self._evaluate(step, [arrays[source] for source in sources])
                # A stored constant is not kept: it can be read from the file again.
                if step.constant_proto is None:
                    self._cache.put(step, arrays[step])
                for source in sources:  # release an array after its last reader
                    unfinished_readers[source] -= 1
                    if not unfinished_readers[source]:
                        arrays.pop(source, None)
        except _UnknownValueError as reason:
            self._unknown_reasons[constant] = str(reason)
            raise
        return arrays[constant]

    def input_arrays(self, constant: Value) -> list[Array]:
        """Return the elements of the inputs of the node that computes a constant; may raise _UnknownValueError."""
        return [self.array(source) for source in self._sources(constant)]

    def attribute_value(self, constant: Value, name: str) -> Array | None:
        """Return the elements of a tensor attribute of the node that computes a constant; None if it has none."""
        assert constant.producer is not None
        attributes = constant.producer.proto.attribute
        tensor = next((attribute.t for attribute in attributes if attribute.name == name), None)
        return None if tensor is None else self._stored_array(tensor)

    def _evaluation_order(self, constant: Value, arrays: dict[Value, Array]) -> list[Value]:
        """Return the constants to compute: each one after the inputs of its node, so that ``constant`` is the last.

        Arrays of the cache are put into ``arrays``. Raises _UnknownValueError if one of the constants is unknown.
        """
        order: list[Value] = []
        done: set[Value] = set()
        # Depth first, with a stack instead of a recursion: a chain of constants may be longer than Python's stack.
        stack = [constant]
        while stack:
            step = stack[-1]
            if step in self._unknown_reasons:
                raise _UnknownValueError(self._unknown_reasons[step])
            if (cached := self._cache.get(step)) is not None:
                arrays[step] = cached
                done.add(step)
            # The inputs of a cached constant are not needed.
            missing = [source for source in self._sources(step) if source not in done] if step not in done else []
            if missing:
                stack += missing
                continue
            # A constant that two nodes read can be on the stack twice.
            if stack.pop() not in done:
                done.add(step)
                order.append(step)
        return order

    def _sources(self, constant: Value) -> list[Value]:
        """Return the constants that the node of a constant reads.

        Raises _UnknownValueError if this node cannot be evaluated.
        """
        node = constant.producer
        if constant.constant_proto is not None:
            return []
        assert node is not None
        # The node must be one that onnx.reference can run alone, in a model of its own.
        if node.bodies:
            raise _UnknownValueError(f"the bodies of {node.op_type} are not evaluated")
        if node.domain:
            raise _UnknownValueError(f"{node.op_type} is an operator of {node.domain}")
        if any(isinstance(read.type, tuple) for read in (constant, *node.inputs) if read is not None):
            raise _UnknownValueError(f"{node.op_type} reads or yields a sequence")
        return [read for read in node.inputs if read is not None]

    def _evaluate(self, constant: Value, inputs: list[Array]) -> Array:
        """Return the elements of a constant; ``inputs``: those of the inputs of its node that are not left out."""
        node = constant.producer
        if constant.constant_proto is not None:
            return self._stored_array(constant.constant_proto)
        assert node is not None
        arrays = _arrays_by_slot(node, inputs)
        model = _single_node_model(node, arrays, constant.output_slot)
        _refuse_large_result(node, model, arrays)
        return _run(node, model, arrays)

    def _stored_array(self, tensor: ConstantProto) -> Array:
        """Return the elements of an initializer or of a Constant's attribute."""
        import numpy as np
        from onnx import helper

        count = stored_element_count(tensor)
        if count > _MOST_STORED:
            raise _UnknownValueError(f"initializers of more than {_MOST_STORED} elements are not evaluated")
        if not stores_all_elements(tensor):
            raise _UnknownValueError("sparse tensors are not evaluated")
        flat_pieces = [*read_pieces(tensor, self._folder)]
        # Most constants are one piece, which needs no copy.
        array = np.concatenate(flat_pieces) if len(flat_pieces) > 1 else flat_pieces[0] if flat_pieces else None
        dims = getattr(tensor, "dims", None)
        if dims is None:  # an attribute of a Constant: value_float or value_floats
            dims = [count] if getattr(tensor, "name", "") == "value_floats" else []
        if array is None:  # no elements, as in the shape of a scalar
            elem = getattr(tensor, "data_type", dtypes.FLOAT)
            return np.zeros(dims, helper.tensor_dtype_to_np_dtype(elem))
        return array.reshape(dims)


def _arrays_by_slot(node: Node, inputs: list[Array]) -> list[Array | None]:
    """Return the arrays by input slot, in the authored types; None for an input that is left out.

    The authored type of a slot can differ from the type of the tensor: a Cast that mixlist inserted between them is
    invisible (Rule S4.18).
    """
    from onnx import helper

    present_inputs = iter(inputs)
    arrays: list[Array | None] = []
    for value, authored in zip(node.inputs, node.input_types, strict=True):
        array = None if value is None else next(present_inputs)
        if array is not None and value is not None and authored != value.type:
            array = array.astype(helper.tensor_dtype_to_np_dtype(dtypes.element(authored)))
        arrays.append(array)
    return arrays


def _single_node_model(node: Node, arrays: list[Array | None], output_slot: int) -> ModelProto:
    """Return a model of one node with one of its outputs.

    Small inputs are initializers, because shape inference reads the values of shapes, axes and sizes. The others are
    inputs of the model.
    """
    from onnx import ModelProto, helper, numpy_helper

    schema = node.signature.schema if node.signature is not None else None
    model = ModelProto(ir_version=10)
    since = schema.since_version if schema is not None else _CONSTANT_OPSET
    model.opset_import.add(domain="", version=max(since, _IMPLEMENTED_SINCE.get(node.op_type, 0)))
    model.graph.name = "constant"
    single = model.graph.node.add()
    single.CopyFrom(node.proto)
    single.domain = ""  # "ai.onnx" is another name of it, which onnx's inference does not know
    single.input[:] = [f"i{slot}" if array is not None else "" for slot, array in enumerate(arrays)]
    single.output[:] = [f"o{slot}" if value is not None else "" for slot, value in enumerate(node.outputs)]
    for slot, array in enumerate(arrays):
        if array is None:  # an omitted input
            continue
        if array.size <= _MOST_ELEMENTS_FOR_INFERENCE:
            model.graph.initializer.append(numpy_helper.from_array(array, f"i{slot}"))
        else:
            elem = dtypes.element(node.input_types[slot])
            model.graph.input.append(helper.make_tensor_value_info(f"i{slot}", elem, array.shape))
    model.graph.output.add(name=single.output[output_slot])
    return model


def _refuse_large_result(node: Node, model: ModelProto, arrays: list[Array | None]) -> None:
    """Raise _UnknownValueError if shape inference finds a result that is too large to be computed, or finds no size."""
    limit = _MOST_ELEMENTS_SLOW if node.op_type in _SLOW else _MOST_COMPUTED_ELEMENTS
    first = arrays[0] if arrays else None
    # The size comes from inference alone. Computing the result to see its size could take all memory.
    inferred = infer_shapes(model).graph.output[0].type.tensor_type
    if inferred.HasField("shape") and all(dim.HasField("dim_value") for dim in inferred.shape.dim):
        count = math.prod(dim.dim_value for dim in inferred.shape.dim)
    elif node.op_type in _SELECTING and first is not None:
        count = first.size * max(first.ndim, 1)  # the most: NonZero yields one index per axis for each element
    else:
        raise _UnknownValueError(f"the size of the result of {node.op_type} is not known before the evaluation")
    if count > limit:
        raise _UnknownValueError(f"results of {node.op_type} with more than {limit} elements are not evaluated")


def _run(node: Node, model: ModelProto, arrays: list[Array | None]) -> Array:
    """Return the output of a model of one node, computed by onnx.reference."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator  # slow to import

    feeds = {value_info.name: arrays[int(value_info.name[1:])] for value_info in model.graph.input}  # i3: slot 3
    try:
        with np.errstate(all="ignore"):  # an overflow gives infinity, and is no error
            (output,) = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # onnx raises errors of many kinds, by operator
        text = str(error).partition("\n")[0]
        raise _UnknownValueError(
            f"onnx.reference cannot compute {node.op_type} ({type(error).__name__}: {text})"
        ) from None
    return np.asarray(output)
