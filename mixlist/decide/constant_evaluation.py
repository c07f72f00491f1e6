"""Evaluate constants that nodes compute, with ONNX's reference implementation (Rule S4.20).

A constant is computed when it is first asked for. Shape inference finds the size of the result first, and a large
result is not computed. ONNX Runtime is not used, because another release could give other bytes, and so another
decision.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.graph import Node, Value
from mixlist.model.shape_inference import infer_shapes
from mixlist.model.weights import read_pieces, stored_element_count, stores_all_elements

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.model.protos import ConstantProto

    Array = NDArray[np.generic]

MOST_COMPUTED_ELEMENTS = 2**20  # of a tensor that a node computes
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


class UnknownValueError(Exception):
    """The value of a constant is unknown; the text of the error is the reason."""


class ConstantEvaluator:
    """Computes constants, and caches the arrays that were used last."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cache: OrderedDict[Value, Array] = OrderedDict()  # the array that was used last is at the end
        self._cache_bytes = 0
        self._unknown_reasons: dict[Value, str] = {}

    def array(self, constant: Value) -> Array:
        """Return the elements of a constant; raise UnknownValueError if its value is unknown."""
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
                    self._add_to_cache(step, arrays[step])
                for source in sources:  # release an array after its last reader
                    unfinished_readers[source] -= 1
                    if not unfinished_readers[source]:
                        arrays.pop(source, None)
        except UnknownValueError as reason:
            self._unknown_reasons[constant] = str(reason)
            raise
        return arrays[constant]

    def input_arrays(self, constant: Value) -> list[Array]:
        """Return the elements of the inputs of the node that computes a constant; may raise UnknownValueError."""
        return [self.array(source) for source in self._sources(constant)]

    def attribute_value(self, constant: Value, name: str) -> Array | None:
        """Return the elements of a tensor attribute of the node that computes a constant; None if it has none."""
        assert constant.producer is not None
        attributes = constant.producer.proto.attribute
        tensor = next((attribute.t for attribute in attributes if attribute.name == name), None)
        return None if tensor is None else self._stored_array(tensor)

    def _evaluation_order(self, constant: Value, arrays: dict[Value, Array]) -> list[Value]:
        """Return the constants to compute: each one after the inputs of its node, so that ``constant`` is the last.

        Arrays of the cache are put into ``arrays``. Raises UnknownValueError if one of the constants is unknown.
        """
        order: list[Value] = []
        done: set[Value] = set()
        # Depth first, with a stack instead of a recursion: a chain of constants may be longer than Python's stack.
        stack = [constant]
        while stack:
            step = stack[-1]
            if step in self._unknown_reasons:
                raise UnknownValueError(self._unknown_reasons[step])
            if step in self._cache:
                self._cache.move_to_end(step)
                arrays[step] = self._cache[step]
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

        Raises UnknownValueError if this node cannot be evaluated.
        """
        node = constant.producer
        if constant.constant_proto is not None:
            return []
        assert node is not None
        # The node must be one that onnx.reference can run alone, in a model of its own.
        if node.bodies:
            raise UnknownValueError(f"the bodies of {node.op_type} are not evaluated")
        if node.domain:
            raise UnknownValueError(f"{node.op_type} is an operator of {node.domain}")
        if any(isinstance(read.type, tuple) for read in (constant, *node.inputs) if read is not None):
            raise UnknownValueError(f"{node.op_type} reads or yields a sequence")
        return [read for read in node.inputs if read is not None]

    def _add_to_cache(self, constant: Value, array: Array) -> None:
        """Cache an array; drop those that were not used for the longest time if the cache is too large."""
        self._cache[constant] = array
        self._cache_bytes += array.nbytes
        while self._cache_bytes > _CACHE_BYTES:
            self._cache_bytes -= self._cache.popitem(last=False)[1].nbytes

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
            raise UnknownValueError(f"initializers of more than {_MOST_STORED} elements are not evaluated")
        if not stores_all_elements(tensor):
            raise UnknownValueError("sparse tensors are not evaluated")
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
    """Raise UnknownValueError if shape inference finds a result that is too large to be computed, or finds no size."""
    limit = _MOST_ELEMENTS_SLOW if node.op_type in _SLOW else MOST_COMPUTED_ELEMENTS
    first = arrays[0] if arrays else None
    # The size comes from inference alone. Computing the result to see its size could take all memory.
    inferred = infer_shapes(model).graph.output[0].type.tensor_type
    if inferred.HasField("shape") and all(dim.HasField("dim_value") for dim in inferred.shape.dim):
        count = prod(dim.dim_value for dim in inferred.shape.dim)
    elif node.op_type in _SELECTING and first is not None:
        count = first.size * max(first.ndim, 1)  # the most: NonZero yields one index per axis for each element
    else:
        raise UnknownValueError(f"the size of the result of {node.op_type} is not known before the evaluation")
    if count > limit:
        raise UnknownValueError(f"results of {node.op_type} with more than {limit} elements are not evaluated")


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
        raise UnknownValueError(
            f"onnx.reference cannot compute {node.op_type} ({type(error).__name__}: {text})"
        ) from None
    return np.asarray(output)
