"""Find the shape of every tensor of a model for given input sizes, as far as the model determines the shapes.

ONNX's shape inference stops where a model computes a shape (Shape, Gather, Concat, Reshape ...) in a way that it does
not follow. So two steps take turns on a scratch copy of the model until nothing new is found: ONNX's shape inference,
and ``shape_folding.py``, which computes the small tensors whose inputs are known and turns their nodes into Constants.
Shapes that depend on data stay unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph.contrib_shapes import Shape as Shape  # other rooms import Shape from this module
from mixlist.graph.function_attributes import copy_with_resolved_attributes
from mixlist.graph.inferred_shapes import copy_without_weights, dimensions_in, remove_value_infos
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.shape_folding import ShapeFolder, read_static_shapes
from mixlist.graph.traversal import protos_by_scope
from mixlist.ops import dtypes
from mixlist.ops.shape_inference import infer_shapes, infer_shapes_with_data_propagation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, ValueInfoProto

    Array = NDArray[np.generic]

# Each pass finds values and shapes that the next pass needs. Real models need four passes. ONNX infers no shapes
# after a fused operator, so a model with fused operators needs one more pass for each of its layers.
_MAX_PASSES = 200


@dataclass
class _SharedState:
    """State that the Graphs of one model share.

    ``function_shapes``: the known shapes in the bodies of functions, by body and arguments.
    ``value_inference_exhausted``: ONNX's inference with data propagation (of the values of small tensors) took too much
    memory or time once, and is not tried again.
    """

    function_shapes: dict[Hashable, KnownShapes] = field(default_factory=dict)
    value_inference_exhausted: bool = False


@dataclass
class KnownShapes:
    """The known shapes in one Graph, and the elements of its small tensors that are known, both by Value.

    ``shared``: one object for all Graphs of a model.
    """

    shapes: dict[Value, Shape] = field(default_factory=dict)
    arrays: dict[Value, Array] = field(default_factory=dict)
    shared: _SharedState = field(default_factory=_SharedState)

    def shape_of(self, value: Value | None) -> Shape | None:
        """Return the shape of a value; None if the shape is unknown or the slot is omitted."""
        return self.shapes.get(value) if value is not None else None


def propagate_shapes(graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> KnownShapes:
    """Return the known shapes in a main graph.

    ``dims``: sizes of symbolic dimensions, by name or as ``input.axis``. ``inputs``: complete shapes of graph inputs.
    """
    scratch = copy_without_weights(graph.model)
    _set_sizes(scratch.graph, dims, inputs)
    return _propagate(graph, scratch, _SharedState())


def count_elements(model: ModelProto, inputs: Mapping[str, Shape]) -> dict[str, int]:
    """Return the number of elements of the tensors in a main graph, by name, for complete shapes of its inputs.

    This is one inference by ONNX alone: a tensor is left out if its shape is computed in the graph.
    """
    scratch = copy_without_weights(model)
    _set_sizes(scratch.graph, {}, inputs)
    inferred = _try_inference(scratch, None, _SharedState(value_inference_exhausted=True))
    shapes = read_static_shapes((scratch if inferred is None else inferred).graph)
    return {name: prod(shape) for name, shape in shapes.items()}


def propagate_shapes_in_function(body: Graph, call: Node, outer: KnownShapes) -> KnownShapes:
    """Return the known shapes in a function's body for the arguments of one call.

    ``outer``: the known shapes around the call. Calls with equal arguments share one result.
    """
    function_shapes = outer.shared.function_shapes
    arguments = [
        (outer.shape_of(value), *_array_key(outer.arrays.get(value))) for value in call.inputs if value is not None
    ]
    # ``arguments`` skips the omitted ones, so the key also says which slots are omitted.
    key = body, tuple([value is None for value in call.inputs]), tuple(arguments)
    if key not in function_shapes:
        function_shapes[key] = _propagate_in_body(body, call, outer)
    return function_shapes[key]


def _array_key(array: Array | None) -> tuple[str, bytes]:
    """Return the dtype and the bytes of a small tensor, as part of a key."""
    return ("", b"") if array is None else (str(array.dtype), array.tobytes())


def _propagate_in_body(body: Graph, call: Node, outer: KnownShapes) -> KnownShapes:
    """Return the known shapes in a function's body, found in a scratch model whose main graph is that body."""
    from onnx import helper, numpy_helper

    function = body.function
    nodes = [copy_with_resolved_attributes(node, body.call_attributes) for node in function.node]
    # An argument whose elements are known becomes an initializer, any other one a graph input.
    input_infos, initializers = [], []
    # A call may have fewer arguments than the function has inputs, or in an invalid model more.
    for name, argument in zip_longest(function.input, call.inputs[: len(function.input)]):
        if argument in outer.arrays:
            initializers.append(numpy_helper.from_array(outer.arrays[argument], name))
        else:
            input_infos.append(_argument_info(name, body.root.values[name], argument, outer))
    scratch_graph = helper.make_graph(nodes, function.name, input_infos, [], initializers)
    scratch_graph.value_info.extend(function.value_info)
    scratch = helper.make_model(scratch_graph, opset_imports=function.opset_import, functions=body.model.functions)
    return _propagate(body, scratch, outer.shared)


def _argument_info(name: str, value: Value, argument: Value | None, outer: KnownShapes) -> ValueInfoProto:
    """Return the declaration of a function's input: its type and, if known, the shape of its argument."""
    from onnx import ValueInfoProto, helper

    if isinstance(value.type, tuple) or value.type == dtypes.UNKNOWN:
        return ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, value.type, outer.shape_of(argument))


def _set_sizes(graph: GraphProto, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> None:
    """Write the given sizes into all declared shapes of a graph.

    A shape in ``inputs`` also gives its symbolic dimensions a size, in the whole model: if the input ``x`` is declared
    as [batch, 3] and has the shape (8, 3), then ``batch`` is 8 everywhere.
    """
    sizes = dict(dims)
    for info in graph.input:
        if not info.type.HasField("tensor_type"):
            continue
        declared_dims, shape = info.type.tensor_type.shape.dim, inputs.get(info.name)
        while shape is not None and len(declared_dims) < len(shape):  # the model declares no shape of the input
            declared_dims.add()
        for axis, dim in enumerate(declared_dims):
            size = dims.get(f"{info.name}.{axis}") if shape is None else shape[axis]
            if size is not None:
                # Python assigns from left to right: dim_param is read before dim_value clears it.
                sizes[dim.dim_param] = dim.dim_value = size
    sizes.pop("", None)  # of dimensions without a name
    for dim in dimensions_in(graph):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


# --- inference and folding in turn ---


def _propagate(graph: Graph, scratch: ModelProto, shared: _SharedState) -> KnownShapes:
    """Return the known shapes of a Graph, found in ``scratch``, which is changed in place."""
    folder = ShapeFolder(graph, scratch)
    model = None
    for _ in range(_MAX_PASSES):
        # If inference failed, ``model`` is the scratch model, which is no result of an earlier pass.
        model = _infer(scratch, model if model is not scratch else None, shared)
        inferred = protos_by_scope(graph.root, model.graph)
        if not folder.fold(inferred):
            break
    return _collect(inferred, folder.arrays, shared)


def _infer(scratch: ModelProto, earlier: ModelProto | None, shared: _SharedState) -> ModelProto:
    """Return a copy of the scratch model with inferred shapes; the scratch model itself if inference fails.

    ``earlier``: the result of the previous pass. Raises ModelError for too many function calls, and MemoryError.
    """
    inferred = _try_inference(scratch, earlier, shared)
    if inferred is None:  # a declared shape may be wrong: try again without the declarations
        bare = copy_message(scratch)
        remove_value_infos(bare.graph)
        inferred = _try_inference(bare, earlier, shared)
    return scratch if inferred is None else inferred


def _try_inference(model: ModelProto, earlier: ModelProto | None, shared: _SharedState) -> ModelProto | None:
    """Return a copy of a model with inferred shapes; None if inference fails."""
    try:
        if shared.value_inference_exhausted:
            return infer_shapes(model)
        inferred, shared.value_inference_exhausted = infer_shapes_with_data_propagation(model, earlier)
    except (ModelError, MemoryError):
        raise
    except Exception:  # onnx raises errors of many kinds
        return None
    return inferred


def _collect(
    inferred: dict[Scope, GraphProto], arrays: dict[Scope, dict[str, Array]], shared: _SharedState
) -> KnownShapes:
    """Return the shapes and elements that were found, by the Values of the linked Graph."""
    known = KnownShapes(shared=shared)
    for scope, proto in inferred.items():
        for name, shape in read_static_shapes(proto).items():
            if name in scope.values:
                known.shapes[scope.values[name]] = shape
        for name, array in arrays.get(scope, {}).items():
            if name in scope.values:
                known.arrays[scope.values[name]] = array
                # If inference failed, the model lacks the shapes of the tensors that were computed.
                known.shapes.setdefault(scope.values[name], tuple(array.shape))
    return known
