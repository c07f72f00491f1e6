"""Rule S4.31: functions are specialized per call.

A model-local function is decided once for each kind of call: the types of the arguments, and everything else in the
caller that the function's decisions depend on (``CallContext``). The opset is that of the function itself. Equal
results become one function. Two calls share a decision if each of their constants fits the low type in both or in
neither (S4.20).

Rule S7.5: No Cast is inserted where a constant can be converted instead; so a parameter that receives a constant takes
the type that its readers want.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSet

from mixlist.graph.control_flow import TypeLink
from mixlist.graph.model import Node, Value
from mixlist.ops import dtypes
from mixlist.resolver.control_flow_types import takes_type
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.solver_state import CallContext, SolverState
from mixlist.resolver.value_uses import find_uses


def decide_call(node: Node, state: SolverState) -> list[Value]:
    """Decide the body of the called function, and give the outputs of the call the types of the body's outputs.

    Return the values of the caller whose type changed.
    """
    assert node.function is not None
    # Phase 1: describe the call by everything that the decisions in the body depend on.
    solution, decided_types = state.solution, state.decided_types
    call = CallContext(
        argument_types=tuple([decided_types[v.id] if v is not None else UNDECIDED for v in node.inputs]),
        positions=solution.positions.of_call(node) if solution.positions is not None else None,
        masks=solution.masks.of_call(node) if solution.masks is not None else None,
        call_frame=state.model_solver.constant_ranges.frames.frame_of(node, state.call_frame),
    )
    # Phase 2: decide the body, or take the solution of an earlier call of this kind.
    callee = solution.callees[node.id] = state.model_solver.specialize(node.function, call)
    # Only the solution of a function is shared between calls, and needs the solutions that it depended on.
    if state.call_frame is not None:
        solution.tried_callees.setdefault(node, {})[callee] = None
    # Phase 3: bring the results back to the caller.
    callee_types, results = callee.decided_types, callee.graph.root.outputs
    return state.decide_types(node.outputs, [callee_types[v.id] for v in results])


def settle_constant_arguments(
    solution: GraphSolution, fits: Callable[[Value], bool], settled_solutions: MutableSet[GraphSolution]
) -> None:
    """Give each parameter that receives a constant the type that all its readers want.

    The constant can then be converted in the file, and needs no Cast (Rule S7.5). Parameters are those of functions,
    and those of the bodies of Scan and SequenceMap, if the operator takes the type at the graph's opset (Rule S4.11).

    ``fits`` returns whether a constant may be converted to the low type. It is called for the constants that a link
    passes into a body. A function's parameter needs no such test: if its constant did not fit, the solver has already
    kept the readers in their authored type. ``settled_solutions`` has the solutions that are settled; this function
    adds to it.
    """
    if solution in settled_solutions:
        return
    settled_solutions.add(solution)
    # A call reads its argument in the type of the callee's parameter, so callees come first.
    for callee in dict.fromkeys(solution.callees.values()):
        settle_constant_arguments(callee, fits, settled_solutions)
    root = solution.graph.root
    # A parameter that is also a result keeps its type: the caller reads it in that type.
    parameters = [v for v in root.inputs if solution.graph.path and v.is_constant and v not in root.outputs]
    link_of_parameter: dict[Value, TypeLink | None] = dict.fromkeys(parameters)
    # By link: the parameters of bodies. None: the parameters of the function itself.
    link_of_parameter |= {link.targets[0]: link for link in solution.links if _passes_constant(link, fits)}
    if not link_of_parameter:
        return
    wanted_types: dict[int, set[int | None]] = {}  # by the id of a value
    for use in find_uses(solution):
        wanted_types.setdefault(use.value.id, set()).add(use.wanted_type)
    for parameter, link in link_of_parameter.items():
        types_of_readers = wanted_types.get(parameter.id, set())
        # If readers want different types, or a reader takes every type, the parameter keeps its type.
        wanted_type = next(iter(types_of_readers)) if len(types_of_readers) == 1 else None
        if wanted_type is None or dtypes.element(parameter.type) not in dtypes.MIXABLE:
            continue
        if link is None or takes_type(link, wanted_type, solution.graph):
            solution.decided_types[parameter.id] = wanted_type


def _passes_constant(link: TypeLink, fits: Callable[[Value], bool]) -> bool:
    """Return whether a link only passes an initializer or a Constant into a body, as Scan and SequenceMap do."""
    if len(link.sources) != 1 or len(link.targets) != 1 or link.targets[0].kind != "input":
        return False
    value = link.sources[0].value
    return value.constant_proto is not None and value.kind != "overridable" and fits(value)
