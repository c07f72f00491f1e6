"""Rule S4.31: functions are specialized per call.

A model-local function is decided once for each combination of argument types and surrounding decision, with the opset
of the function itself; equal results become one function. Calls whose constants fit the low type alike share a decision
(S4.20).

Rule S7.5: No Cast is inserted where a constant can be converted instead; so a parameter that receives a constant takes
the type that its readers want.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSet

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver.control_flow_types import takes_type
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.gray_policies import is_high_by_black, mark_high_by_black
from mixlist.resolver.solver_state import CallArguments, SolverState
from mixlist.resolver.value_uses import find_uses


def decide_call(node: Node, state: SolverState) -> list[Value]:
    """Decide the body of the called function; return the values of the caller whose type, or mark as black, changed."""
    assert node.function is not None
    solution, decided, groups = state.solution, state.decided_types, state.groups
    marks_black = state.policy.gray_policy == "black-wins"
    call = CallArguments(
        types=tuple([decided[v.id] if v is not None else UNDECIDED for v in node.inputs]),
        wanted=tuple([decided[v.id] if v is not None and v in groups else UNDECIDED for v in node.outputs]),
        blacks=tuple([marks_black and v is not None and is_high_by_black(v, solution, state.low) for v in node.inputs]),
        positions=solution.positions.of_call(node) if solution.positions is not None else None,
        masks=solution.masks.of_call(node) if solution.masks is not None else None,
        frame=state.shared.ranges.frames.frame_of(node, state.frame),
    )
    callee = solution.callees[node.id] = state.shared.specialize(node.function, call)
    if state.frame is not None:
        solution.tried_callees.setdefault(node, {})[callee] = None
    results = callee.graph.root.outputs
    parameters = zip(node.inputs, callee.graph.root.inputs, strict=False)
    # A group of the caller has to vote again if the body gave a sequence another type.
    changed = [v for v, p in parameters if v in groups and decided[v.id] != callee.decided_types[p.id]]
    changed += mark_high_by_black(node.outputs, [is_high_by_black(v, callee, state.low) for v in results], state)
    return changed + state.raise_types(node.outputs, [callee.decided_types[v.id] for v in results])


def settle_constant_arguments(
    solution: GraphSolution, fits: Callable[[Value], bool], done: MutableSet[GraphSolution]
) -> None:
    """Give each parameter that receives a constant the type that all its readers want.

    Parameters are those of functions, and those of the bodies of Scan and SequenceMap, if the operator takes the type
    at the graph's opset (Rule S4.11: Scan learned bfloat16 with opset 16). Callees are settled first;
    ``done`` holds the graphs that are settled. ``fits`` tells whether a constant may be converted to the low type;
    in a function each node has been asked that.
    """
    if solution in done:
        return
    done.add(solution)
    for callee in dict.fromkeys(solution.callees.values()):
        settle_constant_arguments(callee, fits, done)
    root = solution.graph.root
    parameters = [v for v in root.inputs if solution.graph.path and v.is_constant and v not in root.outputs]
    settled: dict[Value, Link | None] = dict.fromkeys(parameters)
    settled |= {link.targets[0]: link for link in solution.links if _hands_in_constant(link, fits)}
    if not settled:
        return
    wanted: dict[int, set[int | None]] = {}
    for use in find_uses(solution):
        wanted.setdefault(use.value.id, set()).add(use.wanted_type)
    for value, handed_in in settled.items():
        wants = wanted.get(value.id, set())
        want = next(iter(wants)) if len(wants) == 1 else None
        if want is None or types.element(value.type) not in types.MIXABLE:
            continue
        if handed_in is None or takes_type(handed_in, want, solution.graph):
            solution.decided_types[value.id] = want


def _hands_in_constant(link: Link, fits: Callable[[Value], bool]) -> bool:
    """Return whether a link only hands an initializer or a Constant to a body, as Scan and SequenceMap do."""
    if len(link.sources) != 1 or len(link.targets) != 1 or link.targets[0].kind != "input":
        return False
    value = link.sources[0].value
    return value.constant_proto is not None and value.kind != "overridable" and fits(value)
