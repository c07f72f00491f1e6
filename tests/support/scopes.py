"""The scopes of a model, with names and types, for tests: plain protobufs, without any code of mixlist.

Types come from ONNX's own shape inference, run on a copy without any value_info. The bodies of functions are no scopes
here: mixlist does not look into them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import onnx
from onnx import AttributeProto, TensorProto, helper

MARK = "pkg.mixlist."


@dataclass(eq=False)
class Scope:
    """A graph or a subgraph.

    ``path`` is that of docs/stability.md: node names and attributes from the main graph down.
    """

    body: onnx.GraphProto
    path: str
    outer: Scope | None = None
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes in file order, always the same objects (protobuf makes new ones for each access)."""
        return list(self.body.node)

    @cached_property
    def inputs(self) -> set[str]:
        """Names of the inputs of this scope."""
        return {v.name for v in self.body.input}

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs of this scope."""
        return [v.name for v in self.body.output]

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """Dense initializers by name."""
        return {t.name: t for t in self.body.initializer}

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        """The node that makes each value of this scope."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def defined(self) -> set[str]:
        """Every name that this scope itself defines."""
        sparse = {t.values.name for t in self.body.sparse_initializer}
        return self.inputs | set(self.initializers) | sparse | set(self.producers)

    @cached_property
    def subscopes(self) -> list[Scope]:
        """The subgraphs of this scope's nodes, one level down."""
        owners = [(node, attr, graph) for node in self.nodes for attr, graph in subgraphs(node)]
        names = node_names(self) if owners else {}
        return [
            Scope(graph, "/".join(p for p in (self.path, names[id(node)], attr) if p), self)
            for node, attr, graph in owners
        ]

    def resolve(self, name: str) -> Scope | None:
        """The scope that defines a name read here."""
        scope: Scope | None = self
        while scope is not None and name not in scope.defined:
            scope = scope.outer
        return scope

    def elem_type(self, name: str) -> int | None:
        """Element type of a value visible here, through sequences and optionals; None where unknown."""
        scope = self.resolve(name)
        return elem_type(scope.types.get(name)) if scope else None

    def walk(self) -> Iterator[Scope]:
        """This scope and all below it."""
        yield self
        for inner in self.subscopes:
            yield from inner.walk()


def subgraphs(node: onnx.NodeProto) -> list[tuple[str, onnx.GraphProto]]:
    """The subgraphs of a node, by attribute name."""
    single_graphs = [(a.name, a.g) for a in node.attribute if a.type == AttributeProto.GRAPH]
    return single_graphs + [(f"{a.name}#{i}", g) for a in node.attribute for i, g in enumerate(a.graphs)]


def is_marked(node: onnx.NodeProto) -> bool:
    """Return whether mixlist made the node."""
    return any(p.key.startswith(MARK) for p in node.metadata_props)


def is_marked_cast(node: onnx.NodeProto | None) -> bool:
    """Return whether the node is a Cast that mixlist made."""
    return node is not None and node.op_type == "Cast" and node.domain in ("", "ai.onnx") and is_marked(node)


def cast_target(node: onnx.NodeProto) -> int:
    """The ``to`` attribute of a Cast."""
    return next((int(a.i) for a in node.attribute if a.name == "to"), 0)


def elem_type(type_proto: onnx.TypeProto | None) -> int | None:
    """The element type inside a type, None where there is none."""
    if type_proto is None:
        return None
    kind = type_proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return getattr(type_proto, kind).elem_type or None
    if kind in ("sequence_type", "optional_type"):
        return elem_type(getattr(type_proto, kind).elem_type)
    return None


def captured(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads from outside itself."""
    defined = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= (reads(node)) - defined
        defined |= set(node.output)
    return (free | {v.name for v in graph.output} - defined) - {""}


def reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, through its subgraphs too."""
    names = set(node.input) - {""}
    for _, graph in subgraphs(node):
        names |= captured(graph)
    return names


def sorted_nodes(scope: Scope) -> list[onnx.NodeProto]:
    """The nodes in stable topological order: the next node is always the first in the file whose inputs are ready."""
    waiting = list(scope.nodes)
    produced = {name for node in waiting for name in node.output}
    available: set[str] = set()
    result: list[onnx.NodeProto] = []
    while waiting:
        ready = next((n for n in waiting if not (reads(n) & produced) - available), waiting[0])
        waiting.remove(ready)
        result.append(ready)
        available |= set(ready.output)
    return result


def node_names(scope: Scope) -> dict[int, str]:
    """The name of every node by ``id``; a node without a name is called OpType_k (Rule S6.4)."""
    order = scope.nodes if _is_sorted(scope) else sorted_nodes(scope)
    used_names = {node.name for node in order if node.name}
    counts: dict[str, int] = {}
    names: dict[int, str] = {}
    for node in order:
        name = node.name
        while not name and not is_marked_cast(node):
            k = counts.get(node.op_type, 0)
            counts[node.op_type] = k + 1
            name = f"{node.op_type}_{k}" if f"{node.op_type}_{k}" not in used_names else ""
        names[id(node)] = name
    return names


def _is_sorted(scope: Scope) -> bool:
    produced = {name for node in scope.nodes for name in node.output} - {""}
    available: set[str] = set()
    for node in scope.nodes:
        if (reads(node) & produced) - available:
            return False
        available |= set(node.output)
    return True


class View:
    """The scopes of a model, from ``main`` down; they have the types that can be inferred."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = without_value_info(model)
        self.main = Scope(self.model.graph, "")
        inferred = onnx.shape_inference.infer_shapes(self.model, check_type=False, strict_mode=False)
        self._take_types(self.main, inferred.graph)

    def scopes(self) -> list[Scope]:
        """Every scope: the main graph and all subgraphs."""
        return list(self.main.walk())

    def _take_types(self, scope: Scope, typed: onnx.GraphProto) -> None:
        for v in (*typed.input, *typed.value_info, *typed.output):
            if v.type.WhichOneof("value"):
                scope.types[v.name] = v.type
        for t in typed.initializer:
            scope.types.setdefault(t.name, helper.make_tensor_type_proto(t.data_type, list(t.dims)))
        inner = iter(scope.subscopes)
        for typed_node in typed.node:
            for _, graph in subgraphs(typed_node):
                self._take_types(next(inner), graph)


def without_value_info(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without any value_info, in any scope, its standard domain spelled ""."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    stack: list[onnx.GraphProto | onnx.FunctionProto] = [copy.graph, *copy.functions]
    while stack:
        body = stack.pop()
        del body.value_info[:]
        for node in body.node:
            node.domain = _standard(node.domain)
            stack.extend(graph for _, graph in subgraphs(node))
    for holder in (copy, *copy.functions):
        versions = {_standard(o.domain): o.version for o in holder.opset_import}
        del holder.opset_import[:]
        holder.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())
    return copy


def _standard(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def dtype_name(elem: int | None) -> str:
    """Return an element type as JSON results spell it."""
    names = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
    return "unknown" if elem is None else names.get(elem, TensorProto.DataType.Name(elem).lower())
