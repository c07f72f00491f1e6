"""Which tensors need no statistic in a trial: they are finite if what they were made of is, and that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mixlist.checker.result import TensorRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Node, Value, floats_of
from mixlist.graph.refs import NodeRef
from mixlist.ops.low_precision import overflow_bound
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.constants import ConstantRange

NEAR = 1 / 8  # of the low range: a value of the reference that is larger may be beyond it in a trial
LEAST = 1e-6  # what may be divided by: no rounding makes a zero of it
_BOUNDED, _EXACT = operators(Trait.BOUNDED), operators(Trait.EXACT)
# Where all that a steady operator reads and makes is far within the range in the reference, no rounding takes it beyond
# the range. If one does, because terms cancel or errors grow eightfold, the final check finds it.
_STEADY = operators(Trait.STEADY)
_NORMALIZES = operators(Trait.NORMALIZES)  # steady if their epsilon is no zero: a variance divides


@dataclass(frozen=True)
class Sizes:
    """How large what the nodes make is in the reference: ``near`` comes near the low range, nothing of ``far`` does.

    What never ran is neither. ``range_of`` tells the range of a constant; ``limit`` is where near begins.
    """

    near: AbstractSet[NodeRef]
    far: AbstractSet[NodeRef]
    range_of: Callable[[Value], ConstantRange | None]
    limit: float


def sizes(tensors: Iterable[TensorRange], range_of: Callable[[Value], ConstantRange | None], low: int) -> Sizes:
    """The sizes that the tensors of the reference have, for the low type ``low``."""
    limit = NEAR * overflow_bound(low)
    every, near = set[NodeRef](), set[NodeRef]()
    for tensor in tensors:
        every.add(tensor.producer)
        if not tensor.magnitude < limit:
            near.add(tensor.producer)
    return Sizes(near, every - near, range_of, limit)


def is_spared(wired: DataflowNode, known: Sizes) -> bool:
    """Whether what a node makes is finite if what it reads is, and that is watched or spared.

    What is exact may still pass the range where it reads something high that is rounded for it.
    """
    node, ref = wired.node, wired.ref
    if node.domain or not all(_is_safe(value, known) for value in floats_of(node.inputs)):
        return False
    if node.op_type in _BOUNDED or (node.op_type in _EXACT and ref not in known.near):
        return True
    steady = node.op_type in _STEADY or _divides_by_much(node, known)
    return steady and ref in known.far and known.near.isdisjoint(s.ref.producer for s in wired.inputs)


def _divides_by_much(node: Node, known: Sizes) -> bool:
    """Whether a node divides by a constant or by a variance that has an epsilon, and neither is almost nothing."""
    if node.op_type == "Div":
        divisor = node.inputs[1]
        found = known.range_of(divisor) if divisor is not None and divisor.constant else None
        return found is not None and found.single is not None and abs(found.single) >= LEAST
    epsilon = [attribute.f for attribute in node.proto.attribute if attribute.name == "epsilon"]
    return node.op_type in _NORMALIZES and all(each >= LEAST for each in epsilon)  # 1e-5 if left out


def _is_safe(value: Value, known: Sizes) -> bool:
    """Whether a value is a constant far within the range, or of a node whose statistics tell, or need not."""
    if value.constant:
        found = known.range_of(value)
        return found is not None and found.complete and found.max_abs < known.limit
    maker = value.producer
    return maker is not None and not maker.bodies and maker.function is None
