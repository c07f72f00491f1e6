"""Shapes, as far as ONNX's inference tells them: ranks for a few questions, and declarations that contradict it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mixlist.graph.proto_edits import copy_fields
from mixlist.graph.traversal import scopes_in
from mixlist.graph.weights import is_external, stored_element_count
from mixlist.ops.shape_inference import infer_shapes_with_values

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

_SMALL = 256  # elements of an initializer that inference may read: a shape, an axis, sizes


def infer_ranks(model: ModelProto) -> dict[str, int]:
    """Number of dimensions by tensor name of the main graph, declared or inferred."""
    graph = _inferred(model, keep_declared=True).graph
    infos = (*graph.input, *graph.output, *graph.value_info)
    return {i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")}


def correct_shapes(model: ModelProto) -> None:
    """Replace each declared shape of a ``value_info`` that contradicts what ONNX infers (a stale declaration).

    Models without ``value_info`` cost nothing. Where inference fails, the declaration stays.
    """
    if not any(graph.value_info for graph in scopes_in(model.graph)):
        return
    inferred = _inferred(model, keep_declared=False)
    for declared, told in zip(scopes_in(model.graph), scopes_in(inferred.graph), strict=True):
        known = {i.name: i.type.tensor_type for i in told.value_info}
        for info in declared.value_info:
            truth = known.get(info.name)
            if truth is not None and _contradict(info.type.tensor_type, truth):
                info.type.tensor_type.shape.CopyFrom(truth.shape)


def _contradict(declared: TypeProto.Tensor, truth: TypeProto.Tensor) -> bool:
    if not declared.HasField("shape") or not truth.HasField("shape"):
        return False
    mine, theirs = declared.shape.dim, truth.shape.dim
    fixed = [(a, b) for a, b in zip(mine, theirs, strict=False) if a.HasField("dim_value") and b.HasField("dim_value")]
    return len(mine) != len(theirs) or any(a.dim_value != b.dim_value for a, b in fixed)


def _inferred(model: ModelProto, keep_declared: bool) -> ModelProto:
    """A copy of the model without large weights, after ONNX's shape inference; as it was where that fails."""
    bare = copy_without_weights(model, keep_declared)
    try:
        return infer_shapes_with_values(bare).model
    except MemoryError:
        raise
    except Exception:  # shapes are a help, never a condition
        return bare


def copy_without_weights(model: ModelProto, keep_declared: bool = True) -> ModelProto:
    """A copy in which large initializers are graph inputs of their type and shape: what shape inference needs.

    The nodes stay where they are. ``keep_declared`` false leaves out every ``value_info``.
    """
    from onnx import ModelProto, helper

    bare = ModelProto()
    graph = bare.graph
    copy_fields(model, bare, "graph", "training_info")
    copy_fields(model.graph, graph, "initializer", "sparse_initializer", *(() if keep_declared else ("value_info",)))
    given = {i.name for i in graph.input}
    for tensor in model.graph.initializer:
        if not is_external(tensor) and stored_element_count(tensor) <= _SMALL:
            graph.initializer.add().CopyFrom(tensor)  # a shape, an axis: inference reads it
        elif tensor.name not in given:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    if not keep_declared:
        remove_value_infos(graph)
    for dim in dimensions_in(graph):
        if dim.dim_value < 0:  # some exporters write a dynamic one so: onnx aborts on it at a Slice
            dim.ClearField("dim_value")
    return bare


def remove_value_infos(graph: GraphProto) -> None:
    """Drop every value_info of a graph and of the bodies in it."""
    for scope in scopes_in(graph):
        del scope.value_info[:]


def value_infos_in(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield what a graph and the bodies in it declare: inputs, outputs and value_infos."""
    for scope in scopes_in(graph):
        yield from (*scope.input, *scope.output, *scope.value_info)


def dimensions_in(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    """Yield every dimension of the tensors that a graph and the bodies in it declare."""
    for info in value_infos_in(graph):
        yield from info.type.tensor_type.shape.dim
