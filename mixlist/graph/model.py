"""The model as mixlist sees it: values and nodes of all scopes, linked, typed and in topological order.

Built from protobuf messages and never writing to them: protobuf holds everything that a model file
can hold, so nothing has to be carried around an in-memory library that lacks a field.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from mixlist.graph.traversal import is_graph
from mixlist.ops import types
from mixlist.ops.signature import Signature

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

    from mixlist.graph.proto_types import ConstantProto, ScopeProto

CAST_MARK = "pkg.mixlist.cast"  # metadata key of a Cast that mixlist made; its value is what the Cast serves
POLICY_KEY = "pkg.mixlist.policy"  # model metadata: the digest of the policy that was applied
FunctionKey = tuple[str, str, str]  # domain, name, overload
ValueKind = Literal["input", "overridable", "initializer", "node", "absent"]


def function_key(function: FunctionProto) -> FunctionKey:
    """Return what nodes name when they call a function."""
    return function.domain, function.name, function.overload


@dataclass(eq=False, repr=False, slots=True)
class Value:
    """A tensor, sequence or optional in one scope.

    ``name`` is the tensor's own name, ``file_name`` the name it has in the file (they differ where
    mixlist made a graph output's Cast). ``type`` is the authored type. ``tensor`` is the initializer's or
    Constant's TensorProto. A function's parameter without an argument is ``absent``: what reads it has a hole there.
    ``constant`` is defined by Rule S4.15, ``from_shape`` by Rule S4.3.
    """

    id: int
    name: str
    name_in_file: str
    scope: Scope
    kind: ValueKind
    type: types.Type = types.UNKNOWN
    producer: Node | None = None
    output_slot: int = 0
    constant_proto: ConstantProto | None = None
    is_constant: bool = False
    is_from_shape: bool = False

    def __repr__(self) -> str:
        return f"<Value {self.name}: {types.type_name(self.type)}>"


def float_values(values: Iterable[Value | None]) -> list[Value]:
    """Return the values that hold floats: tensors, sequences and optionals, without the holes."""
    return [value for value in values if value is not None and types.element(value.type) in types.FLOATS]


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A node, linked: ``inputs`` and ``outputs`` hold Values, None for holes.

    ``types`` is what each input slot was authored to read: the value's type, or that of a Cast that
    mixlist made for it, which is not there for resolution. ``position`` is the place in the file's node
    list; ``bodies`` the subgraphs by attribute name; ``function`` the Graph of the function that the node calls.
    """

    id: int
    scope: Scope
    position: int
    proto: NodeProto
    op_type: str
    domain: str
    inputs: list[Value | None] = field(default_factory=list)
    outputs: list[Value | None] = field(default_factory=list)
    input_types: tuple[types.Type, ...] = ()
    bodies: dict[str, Scope] = field(default_factory=dict)
    function: Graph | None = None
    signature: Signature | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether this is an operator of the standard domain without bodies, and no call of a function."""
        return not self.domain and not self.bodies and self.function is None

    def __repr__(self) -> str:
        return f"<Node {self.proto.name or self.op_type}>"


@dataclass(eq=False)
class Scope:
    """A graph, a subgraph or a function's body; ``nodes`` stand in stable topological order."""

    proto: ScopeProto
    parent: Scope | None = None
    owner: Node | None = None
    attribute_name: str = ""
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    declared_output_types: list[types.Type] = field(default_factory=list)  # as declared, UNKNOWN where not
    captures: dict[Value, None] = field(default_factory=dict)  # outer values used in here, in order of first use
    declared_types: dict[str, types.Type] = field(default_factory=dict)  # by value_info
    marked_casts: set[int] = field(default_factory=set)  # positions of the Casts that mixlist made
    output_types: list[types.Type] = field(default_factory=list)  # what each output slot was authored to hand out
    is_sorted: bool = True  # whether the file's order is topological
    display_names: dict[Node, str] | None = None  # display names, made when first asked for

    def output_names(self) -> list[str]:
        """Return the names of the scope's outputs in the file."""
        return [info.name for info in self.proto.output] if is_graph(self.proto) else list(self.proto.output)


@dataclass(eq=False)
class Graph:
    """One main graph or one specialisation of a function: its scopes, values and nodes, flattened.

    ``order`` holds all nodes so that each comes after what it reads; the nodes of a subgraph come
    just before the node that owns it. ``path`` is "" or ``function:domain:name``.
    """

    root: Scope
    model: ModelProto
    opsets: dict[str, int]
    functions: dict[FunctionKey, FunctionProto]
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    unlinked_bodies: list[GraphProto] = field(default_factory=list)  # bodies in attributes of type GRAPHS
    path: str = ""
    call_attributes: dict[str, AttributeProto] = field(
        default_factory=dict
    )  # a function call's attributes, for references
    signatures: dict[Hashable, Signature] = field(default_factory=dict)
    function_graphs: dict[Hashable, Graph] = field(
        default_factory=dict
    )  # function bodies built, shared by all graphs of a model
    has_undeclared_types: bool = False  # whether the types of some values had to be proven, or are unknown
    show_marked_casts: bool = False  # whether the Casts that mixlist made are nodes like all others
    type_hints: dict[str, types.Type] = field(default_factory=dict)  # types that the user tells, by tensor name
    marked_cast_types: dict[str, int] = field(
        default_factory=dict
    )  # type by output name of the Casts that mixlist made

    @property
    def function(self) -> FunctionProto:
        """The function whose body this Graph is; a main graph has none."""
        assert not is_graph(self.root.proto)
        return self.root.proto

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Number of dimensions by tensor name in the main graph, where the model declares or ONNX infers it."""
        from mixlist.graph.inferred_shapes import infer_ranks

        return {} if self.path else infer_ranks(self.model)
