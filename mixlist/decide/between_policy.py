"""Rule S4.22: the gray policy `between`, where a gray node is low precision only between white nodes (TensorFlow).

Under `between`, a gray node keeps its authored type if a path from a black node forward through gray nodes reaches it.
Any other gray node is low precision exactly if a path through gray nodes leads back to a white node, and another one
forward to a white node; otherwise it keeps its authored type. These two paths pass no node that a black node reaches,
and no node that cannot be low precision. A path ends at each of these:

- a Cast, a graph input, shape arithmetic, a node without a precision (S4.1),
- a node that a node rule names,
- a white node that cannot be low precision,
- a white or gray node that S4.38 or S4.41 keeps, a node that S4.40 keeps,
- control flow that cannot take the low type.

An op type of the library's *clear* list, which only the built-in library `tensorflow` has, is also low precision if a
neighbor is, unless a black node reaches it.

Example: in ``MatMul -> Relu -> MatMul -> Neg`` with white MatMuls, Relu is low precision and Neg is not.
"""

from __future__ import annotations

from collections.abc import Container

from mixlist.decide.control_flow_types import takes_type
from mixlist.decide.solver_state import SolverState
from mixlist.model.graph import Node, float_values

# By the id of a node, the ids of its neighbors; the same for values.
Edges = dict[int, list[int]]


def find_low_gray_nodes(state: SolverState) -> set[int]:
    """Return the ids of the gray nodes that are low precision."""
    # Phase 1: the nodes of each list.
    graph, classifications = state.graph, state.solution.classifications
    readers, producers = _find_neighbors(state)
    neighbors = {i: readers.get(i, []) + producers.get(i, []) for i in readers.keys() | producers.keys()}
    clear_ops = state.policy.lists.library.clear_ops
    white = {n.id for n in graph.nodes if classifications[n.id].kind == "low" and _can_be_low(n, state)}
    black = {n.id for n in graph.nodes if classifications[n.id].is_black}
    grays = {n.id: n for n in graph.nodes if classifications[n.id].kind == "gray"}
    # Phase 2: the gray nodes that a path may pass. Black reaches forward through every gray node, also through those
    # that cannot be low precision.
    after_black = _find_reachable(black, readers, grays)
    passable = {i for i, node in grays.items() if _can_be_low(node, state)} - after_black
    # Phase 3: a gray node is low if it is behind a white node and before one; clear operators next to it are low too.
    behind_white = _find_reachable(white, readers, passable)
    before_white = _find_reachable(white, producers, passable)
    low = (behind_white & before_white) | white
    clear = {i for i in passable if _list_op(grays[i], state) in clear_ops}
    return (low | _find_reachable(low, neighbors, clear)) & grays.keys()


def _list_op(node: Node, state: SolverState) -> str | None:
    """Return the op type on the policy's lists that decides a node's list; None if no list decides the node."""
    entry = state.solution.classifications[node.id].list_match
    return None if entry is None else entry.op


def _can_be_low(node: Node, state: SolverState) -> bool:
    """Return whether the operator's schema lets some slot of the node have the low type."""
    classification = state.solution.classifications[node.id]
    signature, movable_types = node.signature, state.applied.classifier.movable_types_of(classification)
    if signature is None or not signature.groups:
        return False
    requested_types = tuple([state.low_type if g.authored in movable_types else g.authored for g in signature.groups])
    return state.low_type in signature.assign(requested_types).elements


def _find_neighbors(state: SolverState) -> tuple[Edges, Edges]:
    """Return the ids of the nodes that read the float outputs of each node, and of those that make its float inputs.

    Values of control flow connect nodes too, if the control-flow operator takes the low type.
    """
    graph = state.graph
    made_by: Edges = {}  # producers by the id of a value
    for node in graph.nodes:
        if not node.bodies:
            for output in node.outputs:
                if output is not None:
                    made_by[output.id] = [node.id]
    # Control flow only passes values on. So the producers of a body's input are the producers of the values that
    # control flow passes to this input.
    sources_of: Edges = {}  # the ids of the values that control flow passes to a value
    for link in state.solution.links:
        if takes_type(link, state.low_type, graph):
            for target in link.targets:
                sources_of.setdefault(target.id, []).extend(source.value.id for source in link.sources)
    edges: list[tuple[list[int], int]] = []
    for node in graph.nodes:
        if not node.bodies and node.signature is not None:
            edges += [(_find_producers(v.id, made_by, sources_of), node.id) for v in float_values(node.inputs)]
    readers: Edges = {}
    producers: Edges = {}
    for value_producers, reader in edges:
        for producer in value_producers:
            readers.setdefault(producer, []).append(reader)
            producers.setdefault(reader, []).append(producer)
    return readers, producers


def _find_producers(value_id: int, made_by: Edges, sources_of: Edges) -> list[int]:
    """Return the nodes that make a value, also through control flow; remember the answer in ``made_by``."""
    if value_id not in made_by:
        if value_id not in sources_of:
            return []
        reachable = _find_reachable({value_id}, sources_of)
        made_by[value_id] = sorted({producer for source in reachable for producer in made_by.get(source, ())})
    return made_by[value_id]


def _find_reachable(start: set[int], edges: Edges, through: Container[int] | None = None) -> set[int]:
    """Return the ids that paths from ``start`` reach along the edges.

    With ``through``, paths pass only these ids, and the result has no others.
    """
    reachable: set[int] = set()
    waiting = list(start)
    while waiting:
        for neighbor in edges.get(waiting.pop(), ()):
            if neighbor not in reachable and (through is None or neighbor in through):
                reachable.add(neighbor)
                waiting.append(neighbor)
    return reachable
