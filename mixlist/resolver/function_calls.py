"""Rule S4.31: functions are specialized per call.

A model-local function is decided once for each combination of argument types and surrounding decision, with the opset
of the function itself; equal results become one function.
"""

from __future__ import annotations

from mixlist.graph.model import Node, Value
from mixlist.resolver.black_wins import is_high_by_black, mark
from mixlist.resolver.constants_out_of_range import misfit
from mixlist.resolver.decisions import UNDECIDED
from mixlist.resolver.solver_state import CallArguments, SolverState


def decide_call(node: Node, state: SolverState) -> list[Value]:
    """Decide the body of the called function; return the values of the caller whose type, or mark as black, changed."""
    assert node.function is not None
    solution, decided, groups = state.solution, state.decided, state.groups
    marks_black = state.shared.policy.gray_policy == "black-wins"
    call = CallArguments(
        types=tuple([decided[v.id] if v is not None else UNDECIDED for v in node.inputs]),
        wanted=tuple([decided[v.id] if v is not None and v in groups else UNDECIDED for v in node.outputs]),
        misfits=tuple([misfit(v, state) if v is not None else None for v in node.inputs]),
        blacks=tuple([marks_black and v is not None and is_high_by_black(v, solution, state.low) for v in node.inputs]),
    )
    callee = solution.callees[node.id] = state.shared.specialize(node.function, call)
    results = callee.graph.root.outputs
    parameters = zip(node.inputs, callee.graph.root.inputs, strict=False)
    # A group of the caller has to vote again if the body gave a sequence another type.
    changed = [v for v, p in parameters if v in groups and decided[v.id] != callee.decided[p.id]]
    changed += mark(node.outputs, [is_high_by_black(v, callee, state.low) for v in results], state)
    return changed + state.raise_types(node.outputs, [callee.decided[v.id] for v in results])
