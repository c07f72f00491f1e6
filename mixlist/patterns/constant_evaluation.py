"""Evaluate constants that nodes compute, by ONNX's reference implementation (Rule S4.20).

Values are computed when they are asked for, and only if their sizes, which are known before, are small. ONNX Runtime
is not used: its release could change the bytes of a result.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.graph.function_attributes import resolve_attribute_references
from mixlist.graph.model import Node
from mixlist.graph.weights import read_pieces, stored_element_count, stores_all_elements
from mixlist.ops import types
from mixlist.ops.shape_inference import infer_shapes
from mixlist.patterns.call_frames import CallFrames, FrameValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto

    from mixlist.graph.proto_types import ConstantProto

    Array = NDArray[np.generic]

LARGEST = 2**20  # elements of a tensor that a node computes
_LARGEST_STORED = 2**24  # elements of an initializer that a node reads
_SHORT = 1024  # elements of an input that shape inference may read: a shape, axes, sizes
_CACHED = 64 * 2**20  # the largest size of all computed values that are kept, in bytes
_CONSTANT_OPSET = 13  # Constant has all of its attributes there
# The first version that onnx.reference implements; for the types of older ones it computes the same.
_IMPLEMENTED_SINCE = {"DequantizeLinear": 19, "QuantizeLinear": 19}
_SELECTS = frozenset({"Compress", "NonZero", "Unique"})  # their output's size depends on the values of the input
# The reference implementation walks over the elements of these in Python: it takes 2 to 800 microseconds for each.
_SLOW = {"AveragePool", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "GRU", "GatherND", "GridSample", "LSTM"}
_SLOW |= {"LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "NonMaxSuppression", "RNN", "Resize", "RoiAlign", "Upsample"}
_SLOW |= {"ScatterElements", "ScatterND"}
_LARGEST_SLOW = 2**12


class UnknownValueError(Exception):
    """The value of a constant is not known, for the reason that is the text."""


class ConstantEvaluator:
    """Computes constants; keeps the values that were used last, in a limited memory."""

    def __init__(self, folder: Path | None, frames: CallFrames) -> None:
        self._folder, self._frames = folder, frames
        self._cached: OrderedDict[FrameValue, Array] = OrderedDict()  # the one that was used last at the end
        self._cached_bytes = 0
        self._unknown: dict[FrameValue, str] = {}

    def array(self, asked: FrameValue) -> Array:
        """Return the elements of a constant that is no parameter and no result of a call.

        Raises UnknownValueError if the value is not known.
        """
        held: dict[FrameValue, Array] = {}
        try:
            order = self._missing(asked, held)
            readers = Counter(source for at in order for source in self._sources(at))
            for at in order:
                sources = self._sources(at)
                held[at] = self._evaluate(at, [held[source] for source in sources])
                if at.value.constant_proto is None:
                    self._keep(at, held[at])
                for source in sources:
                    readers[source] -= 1
                    if not readers[source]:
                        held.pop(source, None)
        except UnknownValueError as reason:
            self._unknown[asked] = str(reason)
            raise
        return held[asked]

    def inputs(self, at: FrameValue) -> list[Array]:
        """Return the elements of the inputs of the node that computes a constant; may raise UnknownValueError."""
        return [self.array(source) for source in self._sources(at)]

    def attribute_value(self, at: FrameValue, name: str) -> Array | None:
        """Return the elements of a tensor attribute of the node that computes a constant; None if it has none."""
        assert at.value.producer is not None
        bound = _bound(at.value.producer, at)
        tensor = next((attribute.t for attribute in bound.attribute if attribute.name == name), None)
        return None if tensor is None else self._stored(tensor)

    def _missing(self, asked: FrameValue, held: dict[FrameValue, Array]) -> list[FrameValue]:
        """Return the constants to compute, each after those that its node reads; put those that are kept into held."""
        order: list[FrameValue] = []
        done: set[FrameValue] = set()
        waiting = [asked]
        while waiting:
            at = waiting[-1]
            if at in self._unknown:
                raise UnknownValueError(self._unknown[at])
            if at in self._cached:
                self._cached.move_to_end(at)
                held[at] = self._cached[at]
                done.add(at)
            missing = [source for source in self._sources(at) if source not in done] if at not in done else []
            if missing:
                waiting += missing
                continue
            if waiting.pop() not in done:
                done.add(at)
                order.append(at)
        return order

    def _sources(self, at: FrameValue) -> list[FrameValue]:
        """Return the constants that the node of a constant reads; raise UnknownValueError if it is not evaluated."""
        value, node = at.value, at.value.producer
        if value.constant_proto is not None:
            return []
        if node is None or node.function is not None:
            raise UnknownValueError(f"{value.name!r} comes from the caller of a function")
        if node.bodies:
            raise UnknownValueError(f"the bodies of {node.op_type} are not evaluated")
        if node.domain:
            raise UnknownValueError(f"{node.op_type} is an operator of {node.domain}")
        if any(isinstance(read.type, tuple) for read in (value, *node.inputs) if read is not None):
            raise UnknownValueError(f"{node.op_type} reads or yields a sequence")
        return [self._frames.find_source(read, at.frame) for read in node.inputs if read is not None]

    def _keep(self, at: FrameValue, array: Array) -> None:
        """Keep a value for later, in place of those that were not used for the longest time."""
        self._cached[at] = array
        self._cached_bytes += array.nbytes
        while self._cached_bytes > _CACHED:
            self._cached_bytes -= self._cached.popitem(last=False)[1].nbytes

    def _evaluate(self, at: FrameValue, inputs: list[Array]) -> Array:
        value, node = at.value, at.value.producer
        if value.constant_proto is not None:
            return self._stored(value.constant_proto)
        assert node is not None
        arrays = _in_slots(node, inputs)
        model = _model_of(node, _bound(node, at), arrays, value.output_slot)
        _refuse_size(node, model, arrays)
        return _run(node, model, arrays)

    def _stored(self, tensor: ConstantProto) -> Array:
        """Return the elements of an initializer or of a Constant's attribute."""
        import numpy as np
        from onnx import helper

        count = stored_element_count(tensor)
        if count > _LARGEST_STORED:
            raise UnknownValueError(f"initializers of more than {_LARGEST_STORED} elements are not evaluated")
        if not stores_all_elements(tensor):
            raise UnknownValueError("sparse tensors are not evaluated")
        flat = [*read_pieces(tensor, self._folder)]
        whole = np.concatenate(flat) if len(flat) > 1 else flat[0] if flat else None
        dims = getattr(tensor, "dims", None)
        if dims is None:  # an attribute of a Constant: value_float or value_floats
            dims = [count] if getattr(tensor, "name", "") == "value_floats" else []
        if whole is None:  # no elements, as in the shape of a scalar
            elem = getattr(tensor, "data_type", types.FLOAT)
            return np.zeros(dims, helper.tensor_dtype_to_np_dtype(elem))
        return whole.reshape(dims)


def _bound(node: Node, at: FrameValue) -> NodeProto:
    """Return the message of a node; in the body of a function its references to attributes are replaced."""
    return (
        resolve_attribute_references(node.proto, at.frame.function.call_attributes)
        if at.frame is not None
        else node.proto
    )


def _in_slots(node: Node, inputs: list[Array]) -> list[Array | None]:
    """Return the inputs by slot, None for a hole, in the types that the model was authored in.

    A slot may read a Cast that mixlist inserted: such Casts are invisible (Rule S4.18).
    """
    from onnx import helper

    given = iter(inputs)
    arrays: list[Array | None] = []
    for value, authored in zip(node.inputs, node.input_types, strict=True):
        array = None if value is None else next(given)
        if array is not None and value is not None and authored != value.type:
            array = array.astype(helper.tensor_dtype_to_np_dtype(types.element(authored)))
        arrays.append(array)
    return arrays


def _model_of(node: Node, proto: NodeProto, arrays: list[Array | None], slot_asked: int) -> ModelProto:
    """Return a model of one node that yields one of its outputs; small inputs are initializers."""
    from onnx import ModelProto, helper, numpy_helper

    schema = node.signature.schema if node.signature is not None else None
    model = ModelProto(ir_version=10)
    since = schema.since_version if schema is not None else _CONSTANT_OPSET
    model.opset_import.add(domain="", version=max(since, _IMPLEMENTED_SINCE.get(node.op_type, 0)))
    model.graph.name = "constant"
    single = model.graph.node.add()
    single.CopyFrom(proto)
    single.input[:] = [f"i{slot}" if array is not None else "" for slot, array in enumerate(arrays)]
    single.output[:] = [f"o{slot}" if value is not None else "" for slot, value in enumerate(node.outputs)]
    for slot, array in enumerate(arrays):
        if array is None:
            continue
        if array.size <= _SHORT:
            model.graph.initializer.append(numpy_helper.from_array(array, f"i{slot}"))
        else:
            elem = types.element(node.input_types[slot])
            model.graph.input.append(helper.make_tensor_value_info(f"i{slot}", elem, array.shape))
    model.graph.output.add(name=single.output[slot_asked])
    return model


def _refuse_size(node: Node, model: ModelProto, arrays: list[Array | None]) -> None:
    """Raise UnknownValueError if the output is too large to be computed, or if its size is not known."""
    largest = _LARGEST_SLOW if node.op_type in _SLOW else LARGEST
    first = arrays[0] if arrays else None
    inferred = infer_shapes(model).graph.output[0].type.tensor_type
    if inferred.HasField("shape") and all(dim.HasField("dim_value") for dim in inferred.shape.dim):
        count = prod(dim.dim_value for dim in inferred.shape.dim)
    elif node.op_type in _SELECTS and first is not None:
        count = first.size * max(first.ndim, 1)
    else:
        raise UnknownValueError(f"the size of the result of {node.op_type} is not known before")
    if count > largest:
        raise UnknownValueError(f"results of {node.op_type} with more than {largest} elements are not evaluated")


def _run(node: Node, model: ModelProto, arrays: list[Array | None]) -> Array:
    import numpy as np
    from onnx.reference import ReferenceEvaluator  # slow to import

    feeds = {info.name: arrays[int(info.name[1:])] for info in model.graph.input}
    try:
        with np.errstate(all="ignore"):
            (output,) = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # onnx raises errors of many kinds, by operator
        text = str(error).partition("\n")[0]
        raise UnknownValueError(
            f"onnx.reference cannot compute {node.op_type} ({type(error).__name__}: {text})"
        ) from None
    return np.asarray(output)
