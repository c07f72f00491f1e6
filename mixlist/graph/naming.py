"""Name nodes and scopes in reports and rules, and make names that are new in a whole model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from mixlist.graph.model import Graph, Node, Scope
from mixlist.graph.refs import NodeRef, TensorRef, qualified_name
from mixlist.graph.traversal import is_graph, scopes_in

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.graph.proto_types import ScopeProto


def display_name(node: Node) -> str:
    """A node's name, or ``OpType_k`` where it has none (Rule S6.4); never written to a file."""
    return node.proto.name or display_names(node.scope)[node]


def display_names(scope: Scope) -> dict[Node, str]:
    """The display names of a scope's unnamed nodes.

    k counts the unnamed nodes of a type in topological order and skips names already taken.
    """
    if scope.display_names is None:
        taken = {n.proto.name for n in scope.nodes if n.proto.name}
        numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        scope.display_names = {}
        for node in scope.nodes:
            if not node.proto.name:
                names = (f"{node.op_type}_{k}" for k in numbers[node.op_type])
                scope.display_names[node] = next(name for name in names if name not in taken)
    return scope.display_names


def scope_path(graph: Graph, scope: Scope) -> str:
    """``""`` for the main graph, ``If_0/then_branch`` for a subgraph, below a function's own path."""
    if scope.owner is None:
        return graph.path
    return qualified_name(scope_path(graph, scope.owner.scope), f"{display_name(scope.owner)}/{scope.attribute_name}")


def node_ref(graph: Graph, node: Node) -> NodeRef:
    """Return the identity of a node of a Graph."""
    return NodeRef(scope_path(graph, node.scope), display_name(node))


def output_ref(graph: Graph, node: Node, slot: int) -> TensorRef:
    """Return the identity of output ``slot`` of a node of a Graph."""
    return TensorRef(scope_path(graph, node.scope), display_name(node), slot)


class NameGenerator:
    """Names that no tensor or node of any scope of a model has, and nodes with such names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def make_name(self, wish: str) -> str:
        """``wish``, or ``wish_2``, ``wish_3``, ... where it is taken."""
        name, k = wish, 2
        while name in self._taken:
            name, k = f"{wish}_{k}", k + 1
        self._taken.add(name)
        return name

    def make_node(self, op_type: str, inputs: Iterable[str], output: str, **attributes: object) -> NodeProto:
        """Return a node with a new name that makes the tensor ``output``."""
        from onnx import helper

        node = helper.make_node(op_type, list(inputs), [output], name=self.make_name(f"{op_type}_{output}"))
        node.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
        return node

    def make_constant(self, output: str, elem: int, dims: Sequence[int], numbers: Sequence[float]) -> NodeProto:
        """Return a Constant of an element type and a shape."""
        from onnx import helper

        return self.make_node("Constant", [], output, value=helper.make_tensor("", elem, dims, numbers))

    def make_cast(self, source: str, output: str, elem: int) -> NodeProto:
        """Return a Cast of ``source`` to an element type."""
        return self.make_node("Cast", [source], output, to=elem)


def names_in(*roots: ScopeProto) -> Iterator[str]:
    """Yield every tensor and node name in scopes and in all bodies in them."""
    for scope in scopes_in(*roots):
        if is_graph(scope):
            for infos in (scope.input, scope.output, scope.value_info, scope.initializer):
                yield from (info.name for info in infos)
            yield from (sparse.values.name for sparse in scope.sparse_initializer)
        else:
            yield from scope.input
            yield from scope.output
        for node in scope.node:
            yield node.name
            yield from node.input
            yield from node.output
