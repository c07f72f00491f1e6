"""Run ONNX's shape inference on a copy of a model without weights, and correct or remove declared shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING

from mixlist.model.graph import Graph, Value, once_per_graph, protos_by_scope
from mixlist.model.protos import copy_fields, scopes_in
from mixlist.model.shape_inference import infer_shapes, infer_shapes_with_data_propagation
from mixlist.model.weights import is_external

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

# An initializer of at most this many elements stays in the copy: inference may read it as a shape, axes or sizes.
_MAX_KEPT_ELEMENTS = 256


@once_per_graph
def find_ranks(graph: Graph) -> dict[str, int]:
    """Return the number of dimensions of tensors in the main graph, by name, if declared or inferred by ONNX."""
    return infer_ranks(graph.model)


def infer_ranks(model: ModelProto) -> dict[str, int]:
    """Return the number of dimensions of each tensor of the main graph whose shape is declared or inferred, by name."""
    graph = _infer_without_weights(model).graph
    infos = (*graph.input, *graph.output, *graph.value_info)
    return {i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")}


def infer_dimensions(graph: Graph) -> dict[Value, tuple[str, ...]]:
    """Return the dimensions of the tensors of a Graph whose shape is declared, inferred by ONNX, or that of a weight.

    A dimension is a text: its size, its name, or ``?`` if neither is known.
    """
    message = _infer_without_weights(graph.model).graph
    dimensions: dict[Value, tuple[str, ...]] = {}
    for scope, scope_message in protos_by_scope(graph.root, message).items():
        infos = (*scope_message.value_info, *scope_message.input, *scope_message.output)
        declared = {info.name: info.type.tensor_type.shape for info in infos if info.type.tensor_type.HasField("shape")}
        for value in scope.values.values():
            if value.name_in_file in declared:
                dimensions[value] = tuple(map(_dimension_text, declared[value.name_in_file].dim))
            elif value.constant_proto is not None and hasattr(value.constant_proto, "dims"):
                dimensions[value] = tuple(map(str, value.constant_proto.dims))
    return dimensions


def _dimension_text(dim: TensorShapeProto.Dimension) -> str:
    return dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")


def correct_shapes(model: ModelProto) -> None:
    """Replace in place each declared shape in ``value_info`` that contradicts the shape that ONNX infers.

    Such a declaration is stale: a tool changed the model and left the old shape. If inference fails, all declarations
    stay.
    """
    if not any(graph.value_info for graph in scopes_in(model.graph)):
        return  # no declaration, so no inference is needed
    # Without the values of shapes: their propagation needs a second inference, and a Cast changes no shape.
    try:
        inferred = infer_shapes(copy_without_weights(model, keep_declared=False))
    except MemoryError:
        raise
    except Exception:  # onnx raises errors of many kinds
        return
    # Inference adds no nodes and no bodies, so both walks visit the same scopes in the same order.
    for scope, inferred_scope in zip(scopes_in(model.graph), scopes_in(inferred.graph), strict=True):
        inferred_types = {i.name: i.type.tensor_type for i in inferred_scope.value_info}
        for info in scope.value_info:
            inferred_type = inferred_types.get(info.name)
            if inferred_type is not None and _contradicts(info.type.tensor_type, inferred_type):
                info.type.tensor_type.shape.CopyFrom(inferred_type.shape)


def _contradicts(declared: TypeProto.Tensor, inferred: TypeProto.Tensor) -> bool:
    """Return True if two shapes differ in their rank or in a dimension whose size both of them have."""
    if not declared.HasField("shape") or not inferred.HasField("shape"):
        return False
    declared_dims, inferred_dims = declared.shape.dim, inferred.shape.dim
    # A symbolic dimension contradicts nothing.
    pairs = zip(declared_dims, inferred_dims, strict=False)
    sized = [(a, b) for a, b in pairs if a.HasField("dim_value") and b.HasField("dim_value")]
    return len(declared_dims) != len(inferred_dims) or any(a.dim_value != b.dim_value for a, b in sized)


def _infer_without_weights(model: ModelProto) -> ModelProto:
    """Return a copy of a model without large weights, and add inferred shapes to it. If inference fails, add none."""
    bare = copy_without_weights(model)
    try:
        inferred, _ = infer_shapes_with_data_propagation(bare)
        return inferred
    except MemoryError:
        raise
    except Exception:
        # onnx raises errors of many kinds. The callers can do without inferred shapes.
        return bare


def copy_without_weights(model: ModelProto, keep_declared: bool = True) -> ModelProto:
    """Return a copy of a model in which graph inputs of the same type and shape replace large initializers.

    Shape inference needs only the shapes of large initializers. External initializers count as large, whatever their
    size. Sparse initializers are left out. The nodes keep their positions. ``keep_declared``: whether ``value_info`` is
    copied.
    """
    bare = copy_without_large_initializers(model)
    clear_declarations(scopes_in(bare.graph), keep_declared)
    return bare


def copy_without_large_initializers(model: ModelProto) -> ModelProto:
    """Return the copy that ``copy_without_weights`` describes, with the declarations of the model."""
    from onnx import ModelProto, helper

    bare = ModelProto()
    graph = bare.graph
    copy_fields(model, bare, "graph", "training_info")
    copy_fields(model.graph, graph, "initializer", "sparse_initializer")
    input_names = {i.name for i in graph.input}
    for tensor in model.graph.initializer:
        if not is_external(tensor) and prod(tensor.dims) <= _MAX_KEPT_ELEMENTS:
            graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in input_names:  # before IR version 4, every initializer is a graph input too
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return bare


def clear_declarations(scopes: Iterable[GraphProto], keep_declared: bool) -> None:
    """Remove in place what onnx's inference must not read of the declarations of some scopes."""
    for scope in scopes:
        if not keep_declared:
            del scope.value_info[:]
        for info in (*scope.input, *scope.output, *scope.value_info):
            for dim in info.type.tensor_type.shape.dim:
                # Some exporters write -1 for an unknown size, and onnx aborts on it at a Slice.
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def remove_value_infos(graph: GraphProto) -> None:
    """Remove every value_info of a graph and of the bodies in it."""
    for scope in scopes_in(graph):
        del scope.value_info[:]


def value_infos_in(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield the declarations of a graph and of the bodies in it: inputs, outputs and value_infos."""
    for scope in scopes_in(graph):
        yield from (*scope.input, *scope.output, *scope.value_info)


def dimensions_in(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    """Yield every dimension that a graph and the bodies in it declare."""
    for info in value_infos_in(graph):
        yield from info.type.tensor_type.shape.dim


def remove_dimension_names(graph: GraphProto) -> None:
    """Remove the names of open dimensions from the declared shapes of a graph, in place.

    ONNX Runtime infers that the new cache of a GroupQueryAttention has the length of the past cache. In a branch, which
    declares no shapes, it then plans one buffer for both, and refuses to run. Without a name, no two lengths are equal.
    """
    for dim in dimensions_in(graph):
        dim.ClearField("dim_param")
