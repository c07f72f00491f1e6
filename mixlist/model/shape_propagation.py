"""Find the shape of every tensor of a model for given input sizes, as far as the model determines the shapes.

ONNX's shape inference stops where a model computes a shape (Shape, Gather, Concat, Reshape ...) in a way that it does
not follow. So two steps take turns on a scratch copy of the model until nothing new is found: ONNX's shape inference,
and ``shape_folding.py``, which computes the small tensors whose inputs are known and turns their nodes into Constants.
Shapes that depend on data stay unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.model.contrib_shapes import Shape as Shape  # other rooms import Shape from this module
from mixlist.model.graph import Graph, Scope, Value
from mixlist.model.inferred_shapes import copy_without_weights, dimensions_in, remove_value_infos
from mixlist.model.proto_edits import copy_message
from mixlist.model.shape_folding import ShapeFolder, read_static_shapes
from mixlist.model.shape_inference import infer_shapes, infer_shapes_with_data_propagation
from mixlist.model.traversal import protos_by_scope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto

    Array = NDArray[np.generic]

# Each pass finds values and shapes that the next pass needs. Real models need four passes. ONNX infers no shapes
# after a fused operator, so a model with fused operators needs one more pass for each of its layers.
_MAX_PASSES = 200


@dataclass
class KnownShapes:
    """The known shapes of a model, and the elements of its small tensors that are known, both by Value."""

    shapes: dict[Value, Shape] = field(default_factory=dict)
    arrays: dict[Value, Array] = field(default_factory=dict)

    def shape_of(self, value: Value | None) -> Shape | None:
        """Return the shape of a value; None if the shape is unknown or the slot is omitted."""
        return self.shapes.get(value) if value is not None else None


def propagate_shapes(graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> KnownShapes:
    """Return the known shapes of a model.

    ``dims``: sizes of symbolic dimensions, by name or as ``input.axis``. ``inputs``: complete shapes of graph inputs.
    """
    scratch = copy_without_weights(graph.model)
    _set_sizes(scratch.graph, dims, inputs)
    folder, inference = ShapeFolder(graph, scratch), _Inference()
    model = None
    for _ in range(_MAX_PASSES):
        # If inference failed, ``model`` is the scratch model, which is no result of an earlier pass.
        model = inference.infer(scratch, model if model is not scratch else None)
        inferred = protos_by_scope(graph.root, model.graph)
        if not folder.fold(inferred):
            break
    return _collect(inferred, folder.arrays)


def count_elements(model: ModelProto, inputs: Mapping[str, Shape]) -> dict[str, int]:
    """Return the number of elements of the tensors in a main graph, by name, for complete shapes of its inputs.

    This is one inference by ONNX alone: a tensor is left out if its shape is computed in the graph.
    """
    scratch = copy_without_weights(model)
    _set_sizes(scratch.graph, {}, inputs)
    inferred = _Inference(follows_values=False).infer(scratch, None)
    return {name: prod(shape) for name, shape in read_static_shapes(inferred.graph).items()}


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


class _Inference:
    """ONNX's inference of one scratch model, which gets more constants from pass to pass."""

    def __init__(self, follows_values: bool = True) -> None:
        # Whether to follow the values of small tensors (data propagation): no more once that took too much memory or
        # time.
        self._follows_values = follows_values

    def infer(self, scratch: ModelProto, earlier: ModelProto | None) -> ModelProto:
        """Return a copy of the scratch model with inferred shapes; the scratch model itself if inference fails.

        ``earlier``: the result of the previous pass. Raises ModelError for too many function calls, and MemoryError.
        """
        inferred = self._try(scratch, earlier)
        if inferred is None:  # a declared shape may be wrong: try again without the declarations
            bare = copy_message(scratch)
            remove_value_infos(bare.graph)
            inferred = self._try(bare, earlier)
        return scratch if inferred is None else inferred

    def _try(self, model: ModelProto, earlier: ModelProto | None) -> ModelProto | None:
        """Return a copy of a model with inferred shapes; None if inference fails."""
        try:
            if not self._follows_values:
                return infer_shapes(model)
            inferred, is_exhausted = infer_shapes_with_data_propagation(model, earlier)
            self._follows_values = not is_exhausted
        except (ModelError, MemoryError):
            raise
        except Exception:  # onnx raises errors of many kinds
            return None
        return inferred


def _collect(inferred: dict[Scope, GraphProto], arrays: dict[Scope, dict[str, Array]]) -> KnownShapes:
    """Return the shapes and elements that were found, by the Values of the linked Graph."""
    known = KnownShapes()
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
