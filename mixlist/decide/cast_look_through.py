"""Rule S4.17: look through one Cast from the low type.

A reader looks through exactly one Cast of the user: from the low type to float32, or to bfloat16 if the low type is
float16. A low-precision reader then reads the source of the Cast, so nothing is rounded; the Cast stays in the file.
Every other Cast is a producer of its `to` type, and so is every Cast if `Cast` is on the black list.

Example: in ``low -> Cast(to=float32) -> Relu`` a gray Relu follows ``low``.

``graph.build.build_graph`` leaves out the Casts that mixlist inserted (Rule S4.18), so this file sees only Casts of
the user.
"""

from __future__ import annotations

from mixlist.decide.decisions import UNDECIDED
from mixlist.decide.solver_state import SolverState
from mixlist.model import dtypes
from mixlist.model.graph import Value


def find_cast_source(value: Value, decided_types: list[int], low_type: int, cast_is_black: bool) -> Value | None:
    """Return the input of the Cast that makes ``value`` if readers look through this Cast; else None.

    ``decided_types`` has the element type of each value by its id. The source may still be undecided. When its type is
    decided, the readers of ``value`` run again. If the type is float32, these readers then no longer look through the
    Cast.
    """
    cast = value.producer
    if cast is None or cast.op_type != "Cast" or cast.domain or cast_is_black:
        return None
    cast_type = dtypes.element(value.type)
    # Of the Casts between the two low types, readers look through float16 -> bfloat16 only.
    if cast_type != dtypes.FLOAT and not (cast_type == dtypes.BFLOAT16 and low_type == dtypes.FLOAT16):
        return None
    source = cast.inputs[0]
    if source is None or source.type == dtypes.UNKNOWN or decided_types[source.id] not in (low_type, UNDECIDED):
        return None
    return source


def find_followed_value(value: Value, state: SolverState) -> Value:
    """Return the value that a gray reader of ``value`` follows: the source of its Cast, or ``value`` itself."""
    cast_is_black = state.applied.classifier.cast_is_black
    return find_cast_source(value, state.decided_types, state.low_type, cast_is_black) or value
