"""Rule S4.17: one Cast from the low type is looked through.

A reader looks through exactly one Cast of the user from the low type to float32, or to bfloat16 if the low type is
float16, unless `Cast` is on the black list; a low-precision reader then reads the source of the Cast, which is exact,
and the Cast stays in the file. Every other Cast is a producer of its `to` type.

Casts that mixlist inserted are not in the graph that is decided: ``graph.build`` leaves them out (Rule S4.18).
"""

from __future__ import annotations

from mixlist.graph.model import Value
from mixlist.ops import types
from mixlist.resolver.decisions import UNDECIDED
from mixlist.resolver.solver_state import SolverState


def looked_through(value: Value, decided: list[int], low: int, cast_is_black: bool) -> Value | None:
    """Return the source of a Cast that resolution looks through; None for every other value.

    An undecided source counts as well: if it becomes float32 later, the type of the Cast counts again.
    """
    cast = value.producer
    if cast is None or cast.op_type != "Cast" or cast.domain or cast_is_black:
        return None
    to = types.element(value.type)
    if to != types.FLOAT and not (to == types.BFLOAT16 and low == types.FLOAT16):
        return None
    source = cast.inputs[0]
    if source is None or source.type == types.UNKNOWN or decided[source.id] not in (low, UNDECIDED):
        return None
    return source


def followed_value(value: Value, state: SolverState) -> Value:
    """Return the value that a gray reader of ``value`` follows: the source of its Cast, or the value itself."""
    return looked_through(value, state.decided_types, state.low, state.shared.classifier.cast_is_black) or value
