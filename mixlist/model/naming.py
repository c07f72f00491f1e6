"""Refer to nodes and tensors by name, name nodes and scopes, and generate names for new nodes and tensors.

Reports, analyses and node rules use references. A reference holds no object of a loaded graph. Therefore a reference
stays valid while the model is copied, instrumented and rewritten, and processes can exchange references.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from mixlist.model import dtypes
from mixlist.model.protos import scopes_in

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from mixlist.model.graph import Node, Scope


def qualified_name(scope: str, name: str) -> str:
    """Return ``scope/name``, or ``name`` in the main graph: the form of messages and node rules."""
    return f"{scope}/{name}" if scope else name


class NodeRef(NamedTuple):
    """The identity of a node: the path of its scope ("" for the main graph) and its display name.

    ``scope_path`` and ``display_name`` compute the two.
    """

    scope: str
    name: str

    def __str__(self) -> str:
        return qualified_name(self.scope, self.name)


def accepted_names(ref: NodeRef) -> tuple[str, ...]:
    """Return the two names that node rules and ``--explain`` accept for a node (Rule S6.5).

    The first is ``NAME``, which means every node of that name in any scope. The second means this node only: see
    ``scoped_name``.
    """
    return ref.name, scoped_name(ref)


def scoped_name(ref: NodeRef) -> str:
    """Return ``scope/NAME`` for a node in a body, ``./NAME`` for a node in the main graph (Rule S6.5)."""
    return qualified_name(ref.scope or ".", ref.name)


def unique_names(refs: Iterable[NodeRef]) -> dict[NodeRef, str]:
    """Return for each node the shortest accepted name that is unique among ``refs`` (Rules S6.4 and S6.5).

    ``refs`` holds each node of a model once. A node is left out if other nodes have all of its accepted names.
    """
    nodes = list(refs)
    # A name can mean several nodes: two scopes can have a node of the same name, and a name may look like a path.
    uses = Counter(name for ref in nodes for name in accepted_names(ref))
    names = ((ref, next((name for name in accepted_names(ref) if uses[name] == 1), "")) for ref in nodes)
    return {ref: name for ref, name in names if name}


@dataclass(frozen=True)
class NodeResult:
    """The base class of results about one node. It identifies the node. Subclasses add the result."""

    scope: str
    name: str
    op_type: str

    @property
    def ref(self) -> NodeRef:
        """The node's identity."""
        return NodeRef(self.scope, self.name)


class TensorRef(NamedTuple):
    """The identity of a tensor: output ``slot`` of the node ``node`` in ``scope``.

    An input of a scope has ``node`` "", and ``slot`` is its position among the inputs of the scope. If ``slot`` is -1,
    the tensor belongs to an outer scope and is observed where ``scope`` reads it; then ``node`` is the name of the
    tensor.
    """

    scope: str
    node: str
    slot: int

    @property
    def producer(self) -> NodeRef:
        """The node that computes the tensor."""
        return NodeRef(self.scope, self.node)


# --- names of nodes and scopes in a Graph ---


def display_name(node: Node) -> str:
    """Return the name of a node, or ``OpType_k`` for an unnamed node (Rule S6.4).

    ``OpType_k`` is for reports and node rules. It is never written to a model file.
    """
    return node.proto.name or names_of_unnamed_nodes(node.scope)[node]


def names_of_unnamed_nodes(scope: Scope) -> dict[Node, str]:
    """Return the display name of each unnamed node of a scope.

    The name is ``OpType_k``. k counts the unnamed nodes of this type in topological order, from 0, and skips
    names that named nodes of the scope have.
    """
    if scope.names_of_unnamed_nodes is None:
        # Computed once for each scope, and only if a report needs a name.
        used_names = {n.proto.name for n in scope.nodes if n.proto.name}
        counters: defaultdict[str, Iterator[int]] = defaultdict(count)
        scope.names_of_unnamed_nodes = {}
        for node in scope.nodes:
            if not node.proto.name:
                # The names start with the next number of the op type, so the loop stays linear.
                names = (f"{node.op_type}_{k}" for k in counters[node.op_type])
                scope.names_of_unnamed_nodes[node] = next(name for name in names if name not in used_names)
    return scope.names_of_unnamed_nodes


def scope_path(scope: Scope) -> str:
    """Return the path of a scope.

    The path of the main graph is ``""``, of a body the path of the scope around it with the node and the attribute, as
    in ``If_0/then_branch/Loop_0/body``.
    """
    if scope.owner is None:
        return ""
    return qualified_name(scope_path(scope.owner.scope), f"{display_name(scope.owner)}/{scope.attribute_name}")


def node_ref(node: Node) -> NodeRef:
    """Return the NodeRef of a node."""
    return NodeRef(scope_path(node.scope), display_name(node))


def output_ref(node: Node, slot: int) -> TensorRef:
    """Return the TensorRef of output ``slot`` of a node."""
    return TensorRef(scope_path(node.scope), display_name(node), slot)


# --- names for new nodes and tensors ---


class NameGenerator:
    """Generate names that no tensor or node of a model has, and nodes with such names.

    ``used_names`` are the names in all scopes of the model: see ``names_in``.
    """

    def __init__(self, used_names: Iterable[str]) -> None:
        self._used_names = set(used_names)

    def make_name(self, preferred: str) -> str:
        """Return ``preferred``, or ``preferred_2``, ``preferred_3``, ... if the name is in use; reserve the result."""
        name, k = preferred, 2
        while name in self._used_names:
            name, k = f"{preferred}_{k}", k + 1
        self._used_names.add(name)
        return name

    def make_node(self, op_type: str, inputs: Iterable[str], output: str, **attributes: object) -> NodeProto:
        """Return a node with a new name that computes the tensor ``output``."""
        from onnx import helper

        node = helper.make_node(op_type, list(inputs), [output], name=self.make_name(f"{op_type}_{output}"))
        # Sorted, so that the same input always gives the same bytes (Rule S7.9).
        node.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
        return node

    def make_constant(self, output: str, elem: int, dims: Sequence[int], numbers: Sequence[float]) -> NodeProto:
        """Return a Constant that makes ``output`` from ``numbers``, with element type ``elem`` and shape ``dims``."""
        from onnx import helper

        return self.make_node("Constant", [], output, value=helper.make_tensor("", elem, dims, numbers))

    def make_cast(self, source: str, output: str, elem: int) -> NodeProto:
        """Return a Cast of the tensor ``source`` to the element type ``elem``."""
        return self.make_node("Cast", [source], output, to=elem)

    def make_float_constant(self, output: str, elem: int, dims: Sequence[int], number: float) -> list[NodeProto]:
        """Return the nodes that make ``output`` of shape ``dims``, filled with one number, in any float type."""
        float32_name = output if elem == dtypes.FLOAT else self.make_name(f"{output}_float")
        constant = self.make_constant(float32_name, dtypes.FLOAT, dims, [number] * prod(dims))
        return [constant] if float32_name == output else [constant, self.make_cast(float32_name, output, elem)]


def names_in(*roots: GraphProto) -> Iterator[str]:
    """Yield the name of every tensor and node in ``roots`` and in all bodies in them."""
    for scope in scopes_in(*roots):
        for infos in (scope.input, scope.output, scope.value_info, scope.initializer):
            yield from (info.name for info in infos)
        yield from (sparse.values.name for sparse in scope.sparse_initializer)
        for node in scope.node:
            yield node.name
            yield from node.input
            yield from node.output
