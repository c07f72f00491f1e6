"""The linked form of a model: the values and nodes of all its scopes, with types, in topological order.

A Graph is built from protobuf messages and never writes to them. Every object keeps the message that it was built from,
so a rewrite can copy all that a model file holds, also fields that mixlist does not read.

A *marked Cast* is a Cast that an earlier run of mixlist inserted. The metadata key CAST_MARK identifies it. By default
a Graph hides marked Casts: a node that reads one seems to read the input of the Cast, as in the authored model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakKeyDictionary

from mixlist.model import dtypes
from mixlist.model.signature import Signature

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

    from mixlist.model.protos import ConstantProto, FunctionKey

Fact = TypeVar("Fact")

# The metadata key of a marked Cast. Its value is "output" if the Cast's output is a graph output, with the authored
# name of that graph output. It is "tensor" for every other marked Cast, whose output has a new name.
CAST_MARK = "pkg.mixlist.cast"
# The metadata key of a model for the digest of the policy that was applied.
POLICY_KEY = "pkg.mixlist.policy"
# "input": an input of a scope. "overridable": an initializer that is a graph input too. "initializer": any other one.
# "node": the output of a node.
ValueKind = Literal["input", "overridable", "initializer", "node"]


@dataclass(eq=False, repr=False, slots=True)
class Value:
    """A tensor, sequence or optional in one scope.

    ``name``: the name in the authored model. ``name_in_file``: the name in the file. The two differ only for the input
    of a marked Cast that makes a graph output: in the file, the Cast's output has the authored name of this input.
    ``type``: the authored type.
    ``output_slot``: the position among the outputs of ``producer``.
    ``constant_proto``: the message that holds the numbers, for an initializer or the output of a Constant.
    ``is_constant``: Rule S4.15. ``is_from_shape``: Rule S4.3.
    """

    id: int
    name: str
    name_in_file: str
    scope: Scope
    kind: ValueKind
    type: dtypes.Type = dtypes.UNKNOWN
    producer: Node | None = None
    output_slot: int = 0
    constant_proto: ConstantProto | None = None
    is_constant: bool = False
    is_from_shape: bool = False

    def __repr__(self) -> str:
        return f"<Value {self.name}: {dtypes.type_name(self.type)}>"


def has_container(node: Node) -> bool:
    """Return whether a node reads or makes a sequence or an optional (Rule S4.29)."""
    return any(value is not None and dtypes.is_container(value.type) for value in (*node.inputs, *node.outputs))


def float_values(values: Iterable[Value | None]) -> list[Value]:
    """Return the tensors, sequences and optionals that hold floats; skip omitted slots (None)."""
    return [value for value in values if value is not None and dtypes.element(value.type) in dtypes.FLOATS]


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A node with links to its values. ``inputs`` and ``outputs`` have None for an omitted slot.

    ``id``: the position in ``Graph.nodes``. ``position``: the position in the node list of ``scope.proto``.
    ``input_types``: the authored type of each input slot. It differs from the value's type where a hidden marked Cast
    lies between the value and this node.
    ``bodies``: the subgraphs, by attribute name. ``is_call``: whether the node calls a model-local function.
    """

    id: int
    scope: Scope
    position: int
    proto: NodeProto
    op_type: str
    domain: str
    inputs: list[Value | None] = field(default_factory=list)
    outputs: list[Value | None] = field(default_factory=list)
    input_types: tuple[dtypes.Type, ...] = ()
    bodies: dict[str, Scope] = field(default_factory=dict)
    is_call: bool = False
    signature: Signature | None = None

    @property
    def is_plain(self) -> bool:
        """Return True for an operator of the standard domain that has no body."""
        return not self.domain and not self.bodies

    @property
    def text_attributes(self) -> dict[str, str]:
        """Return the attributes that are texts, such as the ``reduction`` of a ScatterND."""
        texts = (attribute for attribute in self.proto.attribute if attribute.HasField("s"))
        return {attribute.name: attribute.s.decode("utf-8", "replace") for attribute in texts}

    def __repr__(self) -> str:
        return f"<Node {self.proto.name or self.op_type}>"


@dataclass(eq=False)
class Scope:
    """A main graph, or a body of a control-flow node.

    ``owner`` and ``attribute_name``: the node that has this body, and in which attribute.
    ``nodes``: the nodes of this scope alone, in stable topological order.
    """

    proto: GraphProto
    parent: Scope | None = None
    owner: Node | None = None
    attribute_name: str = ""
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    declared_output_types: list[dtypes.Type] = field(default_factory=list)  # UNKNOWN without a declaration
    captures: dict[Value, None] = field(default_factory=dict)  # values of outer scopes, in order of first use in here
    declared_types: dict[str, dtypes.Type] | None = None  # by name in value_info and graph outputs; None until read
    marked_casts: set[int] = field(default_factory=set)  # positions of the hidden marked Casts in ``proto.node``
    # The authored type of each output slot. It differs from the type of the value in ``outputs`` where a hidden marked
    # Cast lies between the value and the slot.
    output_types: list[dtypes.Type] = field(default_factory=list)
    is_sorted: bool = True  # whether the order of the file is topological
    names_of_unnamed_nodes: dict[Node, str] | None = None  # None until naming.py computes them

    def output_names(self) -> list[str]:
        """Return the names that the outputs of the scope have in the file."""
        return [info.name for info in self.proto.output]


@dataclass(eq=False)
class Graph:
    """The main graph of a model, with all scopes below.

    ``functions``: the model-local functions, by domain, name and overload. ``nodes`` and ``values``: those of all
    scopes. A node comes after the producers of its inputs. The nodes of a body come right before the node that owns the
    body.
    """

    root: Scope
    model: ModelProto
    opsets: dict[str, int]
    functions: dict[FunctionKey, FunctionProto]
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    unlinked_bodies: list[GraphProto] = field(default_factory=list)  # graphs in attributes of type GRAPHS
    signatures: dict[Hashable, Signature] = field(default_factory=dict)  # shared by equal nodes
    had_unknown_types: bool = False  # whether a type was still unknown before the types around it were used
    show_marked_casts: bool = False  # whether marked Casts are nodes like all others
    type_hints: dict[str, dtypes.Type] = field(default_factory=dict)  # types that the user gives, by tensor name
    marked_cast_types: dict[str, int] = field(default_factory=dict)  # output type of each hidden Cast, by output name


# --- walks in topological order ---


def linked_scopes(root: Scope) -> Iterator[Scope]:
    """Yield ``root`` and all bodies in it, each scope before the bodies in it."""
    # A stack instead of recursion, so that a deeply nested model cannot exceed Python's recursion limit.
    pending = [root]
    while pending:
        scope = pending.pop()
        yield scope
        # Reversed, because the last element of the stack comes next: the first body of the first node.
        pending.extend(reversed([body for node in scope.nodes for body in node.bodies.values()]))


def protos_by_scope(root: Scope, message: GraphProto) -> dict[Scope, GraphProto]:
    """Return the message that each scope below ``root`` has in ``message``, a copy of ``root.proto``.

    The result of ``root`` is ``message`` itself, the result of a body is the graph in the same attribute of the copy.
    The copy may differ, for example by inferred shapes, but its nodes must have the same positions.
    """
    messages = {root: message}
    for scope in linked_scopes(root):
        for node in scope.nodes:
            if node.bodies:
                attributes = messages[scope].node[node.position].attribute
                messages.update({node.bodies[a.name]: a.g for a in attributes if a.name in node.bodies})
    return messages


# --- memory ---


def once_per_graph(find: Callable[[Graph], Fact]) -> Callable[[Graph], Fact]:
    """Decorate a function of a Graph, so that it runs once for each Graph: a search decides one graph many times.

    The result lives as long as the Graph.
    """
    facts: WeakKeyDictionary[Graph, Fact] = WeakKeyDictionary()

    @wraps(find)
    def find_once(graph: Graph) -> Fact:
        if graph not in facts:
            facts[graph] = find(graph)
        return facts[graph]

    return find_once


@contextmanager
def pause_gc() -> Iterator[None]:
    """Disable Python's cyclic garbage collector inside the ``with`` block, and restore its previous state at the end.

    A graph of 100,000 nodes has over a million objects that refer to each other and stay alive until the end. Each run
    of the collector visits all of them and frees nothing. Without the pause, these runs took a third of the time.
    """
    # A caller may have disabled the collector, or this block may be inside another one.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- the outputs of scopes ---


@once_per_graph
def find_scope_outputs(graph: Graph) -> frozenset[Value]:
    """Return the outputs of the main graph and of all bodies."""
    outputs = set(graph.root.outputs)
    for node in graph.nodes:
        for body in node.bodies.values():
            outputs.update(value for value in body.outputs if value is not None)
    return frozenset(outputs)
