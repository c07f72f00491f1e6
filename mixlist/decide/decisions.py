"""The decision for one node, as a user sees it, and the facts about nodes that protections find.

``solution.py`` has the decisions for a whole model, as they are computed and as ``write/`` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, NamedTuple

from mixlist.model.graph import Node
from mixlist.model.naming import NodeRef

# By input slot, the largest magnitude of a mask's constant (Rule S4.36), or below 1, the smallest number of a guard's
# constant (Rule S4.43).
SlotLimits = dict[int, float]


def is_guard_limit(limit: float) -> bool:
    """Return whether a limit of a constant is the smallest number of a guard, and not the largest one of a mask."""
    return 0 < limit < 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The precision of one node and the reason for it.

    ``follows`` is empty, or holds the names of the immediate producer and of the node that decided. ``outputs`` maps
    the name of each output to its decided type (``float16``, ``int64``, ``seq(float16)``, ``unknown``).
    ``follows_refs`` are the identities of the two nodes in ``follows``: None for a graph input.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        for node in plan.nodes:
            print(node.name, node.precision, node.rule, node.reason)
    """

    scope: str
    name: str
    op_type: str
    domain: str
    list: str
    precision: str
    changed: bool
    rule: str
    follows: tuple[str, ...]
    outputs: Mapping[str, str]
    reason: str
    follows_refs: tuple[NodeRef | None, ...] = ()

    @property
    def ref(self) -> NodeRef:
        """Return the node's identity."""
        return NodeRef(self.scope, self.name)

    @property
    def producer(self) -> NodeRef | None:
        """Return the node that the node follows; None if it follows none."""
        return self.follows_refs[0] if self.follows_refs else None

    @property
    def decider(self) -> NodeRef | None:
        """Return the node at the end of the chain of followed nodes; None for a graph input."""
        return self.follows_refs[1] if self.follows_refs else None


class PositionReason(NamedTuple):
    """The reason why a node belongs to position arithmetic.

    ``source``: the name of the integers from which its result is computed; None if the node makes a fixed operand of
    the arithmetic. ``reader``: the operator and name of the node that reads the positions in the end. ``is_reader``:
    whether this node is the reader. ``scales``: whether it multiplies what the reader makes with a constant.
    """

    source: str | None
    reader: str
    is_reader: bool = False
    scales: bool = False


@dataclass(eq=False)
class Positions:
    """The position arithmetic of a model.

    ``nodes``: by node id, the nodes of the arithmetic and the readers. ``casts``: the Casts of integers with which the
    arithmetic starts, each with its reader.
    """

    nodes: dict[int, PositionReason] = field(default_factory=dict)
    casts: dict[Node, str] = field(default_factory=dict)


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type cannot hold.

    ``softmaxes``: the softmaxes that the masks reach. ``exceeding_nodes``: the nodes that must not be low precision as
    long as the mask is not reduced, softmaxes included. ``limit``: the largest magnitude of a reduced constant.
    ``limits``: by node, the slots that read a constant to be reduced, each with ``limit``. ``fills``: each
    ConstantOfShape whose number is to be reduced, with ``limit``. ``reducible``: whether all masks come from such
    constants. ``magnitude``: the largest magnitude of the masks. ``source``: the first constant or
    node that makes a mask. ``destination``: the first softmax. ``misfit``: for a group of one node, which computes a
    mask from other constants: why this node must not be low precision; else empty.
    """

    softmaxes: list[Node] = field(default_factory=list)
    exceeding_nodes: list[Node] = field(default_factory=list)
    limits: dict[Node, SlotLimits] = field(default_factory=dict)
    fills: dict[Node, float] = field(default_factory=dict)
    reducible: bool = True
    source: str = ""
    destination: str = ""
    magnitude: float = 0.0
    limit: float = 0.0
    misfit: str = ""

    @property
    def magnitude_text(self) -> str:
        """Return the largest magnitude for messages."""
        return f"magnitude {self.magnitude:.6g}" if isfinite(self.magnitude) else "unknown magnitude"


@dataclass(frozen=True, eq=False)
class Unit:
    """One unit: its operator, and all its nodes in topological order.

    ``rule``: the name of the rule that keeps it in the reports. The operator of a normalization is its square. Of a
    quantized unit, ``nodes`` has each DequantizeLinear that the operator reads, the value movers behind these, the
    operator, the Relus, Clips and value movers behind it, and each QuantizeLinear at the end.
    """

    operator: Node
    nodes: tuple[Node, ...]
    rule: Literal["quantized", "norm"] = "quantized"

    @property
    def first(self) -> Node:
        """Return the first DequantizeLinear that does not make a constant (a weight)."""
        return next(
            node for node in self.nodes if not all(value is None or value.is_constant for value in node.outputs)
        )


UnitsByNode = dict[int, list[Unit]]  # by the id of a node, the units that it belongs to
