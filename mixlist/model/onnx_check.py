"""Refuse models that onnx's checker refuses (Rule S4.53).

The checker is stricter than ONNX Runtime, and it knows no operators of chips. It therefore gets a copy of the model
without what ONNX Runtime does not ask for, and without large weights.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import canonical_domain
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Scope, linked_scopes, protos_by_scope
from mixlist.model.inferred_shapes import clear_declarations, copy_without_large_initializers
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.protos import nodes_in, tensors_in_model
from mixlist.model.schema import find_schema
from mixlist.model.shape_inference import find_fault
from mixlist.model.signature import CRASHING_WITHOUT_TYPES
from mixlist.model.weights import is_external

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_MOST_INFERRED_NODES = 2000  # of more nodes, inference would take more than 5 % of the time of ``apply``
_UNCHECKED = "mixlist.unchecked"  # a domain that onnx does not know: it does not check such nodes


def refuse_invalid_model(graph: Graph, may_be_external: bool) -> None:
    """Raise ModelError for a model that onnx's checker or its shape inference refuses (Rule S4.53).

    ``may_be_external``: whether tensors of the model can have their numbers in other files. A model is not checked if
    nodes come before the producers of their inputs, or if a body or an attribute has external data: ONNX Runtime
    sorts nodes, and finds the data.
    """
    if not all(scope.is_sorted for scope in linked_scopes(graph.root)):
        return
    copy, infers = _copy_for_checker(graph)
    if may_be_external and any(is_external(tensor) for tensor in tensors_in_model(copy)):
        return
    fault = _find_sparse_fault(graph.model) or find_fault(copy, infers)
    if fault is not None:
        is_low = any(dtypes.element(value.type) in LOW_TYPES for value in graph.values)
        other = "; if another tool converted the model, convert the float32 one with mixlist convert" if is_low else ""
        raise ModelError(f"the model is not valid ONNX: {fault}", hint=f"correct this node, or what it reads{other}")


def _find_sparse_fault(model: ModelProto) -> str | None:
    """Return why onnx's checker refuses a sparse initializer, None if it refuses none; external ones are skipped."""
    from onnx import checker

    for sparse in model.graph.sparse_initializer:
        if is_external(sparse.values) or is_external(sparse.indices):
            continue
        try:
            checker.check_sparse_tensor(sparse)
        except checker.ValidationError as error:
            return f"sparse initializer {sparse.values.name!r}: {error}"
    return None


def _copy_for_checker(graph: Graph) -> tuple[ModelProto, bool]:
    """Return a copy of a model without large weights, in which the checker finds only what ONNX Runtime refuses, too.

    ONNX Runtime needs no name of the main graph, no new IR version, and no shapes of inputs. It warns of wrong shapes
    of outputs and of the states of a Loop, and skips initializers without a name. Bodies get the declarations that
    mixlist writes. The second result is False if types inside bodies or functions are unknown, which onnx's inference
    refuses, and for a model of too many nodes.
    """
    from onnx import helper

    copy = copy_without_large_initializers(graph.model)
    main = copy.graph
    copy.ir_version, main.name = max(copy.ir_version, 4), "main"
    for sparse in graph.model.graph.sparse_initializer:  # ONNX Runtime makes dense tensors of them
        main.input.append(helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, sparse.dims))
    for position in reversed([k for k, tensor in enumerate(main.initializer) if not tensor.name]):
        del main.initializer[position]
    protos = protos_by_scope(graph.root, main)
    clear_declarations(protos.values(), keep_declared=False)
    for scope, body in protos.items():
        if scope.parent is not None:  # a declaration inside the graph is no error (Rule S4.52)
            types = [*(value.type for value in scope.inputs), *scope.output_types]
            for info, value_type in zip((*body.input, *body.output), types, strict=True):
                if dtypes.UNKNOWN not in (value_type, dtypes.from_proto(info.type)):
                    dtypes.write_type(info.type, value_type)
        is_loop = scope.owner is not None and scope.owner.op_type == "Loop"
        for info in (*body.output, *(body.input if is_loop else ())):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    del main.output[:]  # the checker wants their shapes; build_graph() has compared their types
    infers = _exclude_unknown_operators(graph, copy, protos) and len(graph.nodes) <= _MOST_INFERRED_NODES
    _make_inputs_without_shape(main)
    for imports in (copy.opset_import, *(function.opset_import for function in copy.functions)):
        for entry in imports:
            entry.domain = canonical_domain(entry.domain)
        imports.add(domain=_UNCHECKED, version=1)
    return copy, infers


def _exclude_unknown_operators(graph: Graph, copy: ModelProto, protos: dict[Scope, GraphProto]) -> bool:
    """Give the nodes of the copy the domains that the checker must see; return False if a body hides one from it.

    ``protos``: the scopes of the copy. The checker knows one spelling of the standard domain only.
    """
    infers = True
    # A node of each operator. Most models have no unknown one, and need no walk over their nodes.
    samples = {(node.domain, node.op_type, node.proto.domain): node for node in graph.nodes if not node.is_call}
    needs_walk = graph.opsets.get("", 12) < 12 or any(
        spelling or not _is_checked(node.proto, domain, graph.opsets.get(domain))
        for (domain, _, spelling), node in samples.items()
    )
    for node in graph.nodes if needs_walk else ():
        if node.is_call:
            continue
        is_checked = _is_checked(node.proto, node.domain, graph.opsets.get(node.domain))
        infers = infers and (is_checked or node.scope.parent is None)
        protos[node.scope].node[node.position].domain = node.domain if is_checked else _UNCHECKED
    for function in copy.functions:
        opsets = {canonical_domain(entry.domain): entry.version for entry in function.opset_import}
        for proto in nodes_in(function):
            if (proto.domain, proto.op_type, proto.overload) not in graph.functions:
                domain = canonical_domain(proto.domain)
                is_checked = _is_checked(proto, domain, opsets.get(domain))
                proto.domain = domain if is_checked else _UNCHECKED
                infers = infers and is_checked
    return infers


def _is_checked(node: NodeProto, domain: str, opset: int | None) -> bool:
    """Return True for a node that the checker must see; False if only ONNX Runtime, or a chip, has such an operator.

    ``domain``: the canonical one. ``opset``: None for a domain that is not imported, which the checker reports.
    """
    if node.op_type == "Constant" and not domain and opset is not None:
        # ONNX has ``value_float`` and the others since opset 12. ONNX Runtime reads them at any opset.
        return opset >= 12 or all(a.name in ("value", "sparse_value") for a in node.attribute)
    return opset is None or not node.op_type or _is_known(domain, node.op_type, opset)


@cache
def _is_known(domain: str, op_type: str, opset: int) -> bool:
    """Return whether onnx has an operator at an opset version, and can infer the types of its outputs."""
    schema = find_schema(domain, op_type, opset)
    if schema is None or schema.onnx_schema is None or op_type in CRASHING_WITHOUT_TYPES:
        return False
    # Without one, onnx infers a function body, in which defaults of attributes are missing.
    return bool(schema.onnx_schema.has_type_and_shape_inference_function)


def _make_inputs_without_shape(main: GraphProto) -> None:
    """Let a node that onnx does not know make the graph inputs without a shape: the checker wants a shape of inputs."""
    positions = [
        k
        for k, info in enumerate(main.input)
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")
    ]
    if positions:
        from onnx import helper

        names = [main.input[k].name for k in positions]
        main.node.insert(0, helper.make_node("Input", [], names, domain=_UNCHECKED))
        for position in reversed(positions):
            del main.input[position]
