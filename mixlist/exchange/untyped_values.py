"""Find the tensors whose type ONNX's shape inference does not give: converters insert no Cast for them."""

from __future__ import annotations

from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Value, linked_scopes, protos_by_scope
from mixlist.model.inferred_shapes import copy_without_weights
from mixlist.model.shape_inference import infer_shapes


def find_untyped_values(graph: Graph) -> set[Value]:
    """Return the float32 values of nodes that neither a declaration nor ONNX's inference types.

    Without operators of other domains, inference types all values, so that it need not run.
    """
    if all(is_standard_domain(node.domain) for node in graph.nodes):
        return set()
    try:
        inferred = infer_shapes(copy_without_weights(graph.model))
    except MemoryError:
        raise
    except Exception:  # onnx raises errors of many kinds; the converters go on with the declared types
        inferred = graph.model
    untyped: set[Value] = set()
    messages = protos_by_scope(graph.root, inferred.graph)
    for scope in linked_scopes(graph.root):
        message = messages[scope]
        typed_names = {info.name for info in (*message.value_info, *message.output) if info.type.WhichOneof("value")}
        outputs = (value for node in scope.nodes for value in node.outputs if value is not None)
        untyped |= {v for v in outputs if v.name_in_file not in typed_names and dtypes.element(v.type) == dtypes.FLOAT}
    return untyped
