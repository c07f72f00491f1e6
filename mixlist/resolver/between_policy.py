"""Rule S4.22: between, where a gray node is low precision only between white nodes (TensorFlow).

Under `between`, a gray node that a black node reaches forward through gray nodes keeps its authored type; any other
gray node is low precision exactly if gray paths lead back to a white node and forward to a white node, and keeps its
authored type otherwise. These two paths pass no node that a black node reaches and none that cannot be low precision.
Casts, graph inputs, shape arithmetic, calls of functions, nodes without a precision (S4.1), nodes that a node rule
names, white nodes that cannot be low precision, white and gray nodes that S4.38 keeps, nodes that S4.40 keeps, and
control flow that cannot take the low type end a path. An op type of the library's *clear* list, which only the
built-in library `tensorflow` has, is also low precision if a neighbor is, unless a black node reaches it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from mixlist.graph.model import Node, Value, float_values
from mixlist.resolver.control_flow_types import takes_type
from mixlist.resolver.decisions import UNDECIDED
from mixlist.resolver.sequence_groups import is_container
from mixlist.resolver.solver_state import SolverState

Edges = dict[int, list[int]]  # ids of nodes, or of values, by the id of one


def low_gray_nodes(state: SolverState) -> set[int]:
    """Return the ids of the gray nodes that are low precision; a group of sequences is one node (Rule S4.30)."""
    graph, facts = state.graph, state.solution.classifications
    groups = dict.fromkeys(state.groups.values())
    stand_ins = {n.id: g.place for g in groups for n in g.nodes if facts[n.id].kind == "gray"}
    readers, producers = _neighbors(state, stand_ins)
    neighbors = {i: readers.get(i, []) + producers.get(i, []) for i in readers.keys() | producers.keys()}
    clear_ops = state.policy.lists.library.clear_ops
    fixed = {i for g in groups if g.fixed not in (UNDECIDED, state.low) for i in (g.place, *(n.id for n in g.nodes))}
    white = {n.id for n in graph.nodes if facts[n.id].kind == "low" and _can_be_low(n, state)} - fixed
    black = {n.id for n in graph.nodes if facts[n.id].kind == "authored" and facts[n.id].list == "black"}
    grays = {n.id: [n] for n in graph.nodes if facts[n.id].kind == "gray" and n.id not in stand_ins}
    grays |= {g.place: [n for n in g.nodes if n.id in stand_ins] for g in groups}
    after_black = _reach(black, readers, grays)
    can_be_low = {i for i, nodes in grays.items() if all(_can_be_low(n, state) for n in nodes)}
    able = can_be_low - fixed - after_black
    behind_white = _reach(white, readers, able)
    before_white = _reach(white, producers, able)
    low = (behind_white & before_white) | white
    clear = {i for i in able if grays[i] and all(_entry(n, state) in clear_ops for n in grays[i])}
    return (low | _reach(low, neighbors, clear)) & grays.keys()


def _entry(node: Node, state: SolverState) -> str | None:
    """Return the name on the policy's lists that decides a node's list."""
    listed = state.solution.classifications[node.id].listed
    return None if listed is None else listed.op


def _can_be_low(node: Node, state: SolverState) -> bool:
    signature, movable = node.signature, state.shared.classifier.movable_by(state.solution.classifications[node.id])
    if signature is None or not signature.groups:
        return False
    wish = tuple([state.low if g.authored in movable else g.authored for g in signature.groups])
    return state.low in signature.assign(wish).elements


def _neighbors(state: SolverState, stand_ins: Mapping[int, int]) -> tuple[Edges, Edges]:
    """Return the nodes that read the float outputs of each node, and those that make its float inputs.

    Links of control flow that take the low type connect nodes as well. ``stand_ins`` has the id of the node that stands
    for a gray operator on sequences.
    """
    graph = state.graph
    made_by: Edges = {}  # producers by the id of a value
    for node in graph.nodes:
        if not node.bodies:
            for output in node.outputs:
                if output is not None:
                    made_by[output.id] = [stand_ins.get(node.id, node.id)]
    feeds: Edges = {}  # the values that control flow hands to a value
    put_in: list[tuple[int, Value]] = []  # tensors that control flow puts into a group, by the group's place
    for link in state.solution.links:
        passes = takes_type(link, state.low, graph)
        for target in link.targets:
            group = state.groups.get(target)
            if group is not None and not any(is_container(read.value) for read in link.sources):
                made_by[target.id] = [group.place]
                put_in += [(group.place, read.value) for read in link.sources]
            elif passes:
                feeds.setdefault(target.id, []).extend(r.value.id for r in link.sources)
    edges = [(_producers(value.id, made_by, feeds), place) for place, value in put_in]
    for node in graph.nodes:
        if not node.bodies and node.signature is not None:
            reader = stand_ins.get(node.id, node.id)
            edges += [(_producers(v.id, made_by, feeds), reader) for v in float_values(node.inputs)]
    readers: Edges = {}
    producers: Edges = {}
    for makers, reader in edges:
        for producer in makers:
            readers.setdefault(producer, []).append(reader)
            producers.setdefault(reader, []).append(producer)
    return readers, producers


def _producers(value: int, made_by: Edges, feeds: Edges) -> list[int]:
    """Return the nodes that make a value, directly or behind control flow; remember them in ``made_by``."""
    if value not in made_by:
        if value not in feeds:
            return []
        made_by[value] = sorted({p for v in _reach({value}, feeds) for p in made_by.get(v, ())})
    return made_by[value]


def _reach(start: set[int], edges: Edges, through: Container[int] | None = None) -> set[int]:
    """Return what the edges lead to from ``start``, step by step; ``through`` limits the steps."""
    reached: set[int] = set()
    waiting = list(start)
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in reached and (through is None or other in through):
                reached.add(other)
                waiting.append(other)
    return reached
