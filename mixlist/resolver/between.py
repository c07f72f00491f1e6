"""Rule S4.22: between, where a gray node is low precision only between white nodes (TensorFlow).

Under `between`, a gray node that a black node reaches forward through gray nodes is high precision; any other gray
node is low precision exactly if gray paths lead back to a white node and forward to a white node. Casts, graph inputs,
shape arithmetic and calls of functions end a path. An op type of the library's *clear* list, which only the built-in
library `tensorflow` has, is also low precision if a neighbor is, unless a black node reaches it.
"""

from __future__ import annotations

from collections.abc import Container

from mixlist.graph.model import Graph, Node
from mixlist.ops import types
from mixlist.resolver.decisions import Solution
from mixlist.resolver.solver_state import SolverState

Edges = dict[int, list[int]]  # ids of nodes, or of values, by the id of one


def low_gray_nodes(state: SolverState) -> set[int]:
    """Return the ids of the gray nodes that are low precision."""
    graph, facts = state.graph, state.solution.facts
    readers, producers = _neighbors(graph, state.solution)
    neighbors = {i: readers.get(i, []) + producers.get(i, []) for i in readers.keys() | producers.keys()}
    clear_ops = state.policy.lists.library.clear
    white = {n.id for n in graph.order if facts[n.id].kind == "low" and _can_be_low(n, state.low)}
    black = {n.id for n in graph.order if facts[n.id].kind == "authored" and facts[n.id].list == "black"}
    gray = {n.id for n in graph.order if facts[n.id].kind == "gray"}
    after_black = _reach(black, readers, gray)
    able = {i for i in gray - after_black if _can_be_low(graph.order[i], state.low)}
    behind_white = _reach(white, readers, able)
    before_white = _reach(white, producers, able)
    low = (behind_white & before_white) | white
    clear = {i for i in able if (entry := facts[i].listed) is not None and entry.op in clear_ops}
    return (low | _reach(low, neighbors, clear)) & gray


def _can_be_low(node: Node, low: int) -> bool:
    signature = node.signature
    if signature is None or not signature.groups:
        return False
    wish = tuple([low if g.authored in (types.FLOAT, low) else g.authored for g in signature.groups])
    return low in signature.assign(wish).elements


def _neighbors(graph: Graph, solution: Solution) -> tuple[Edges, Edges]:
    """Return the nodes that read the float outputs of each node, and those that make its float inputs.

    Links of control flow connect nodes as well.
    """
    made_by: Edges = {}  # producers by the id of a value
    for node in graph.order:
        if not node.bodies:
            for output in node.outputs:
                if output is not None:
                    made_by[output.id] = [node.id]
    feeds: Edges = {}  # the values that control flow hands to a value
    for link in solution.links:
        for target in link.targets:
            feeds.setdefault(target.id, []).extend(r.value.id for r in link.reads)
    readers: Edges = {}
    producers: Edges = {}
    for node in graph.order:
        if node.bodies or node.signature is None:
            continue
        for value in node.inputs:
            if value is None or types.element(value.type) not in types.FLOATS:
                continue
            for producer in _producers(value.id, made_by, feeds):
                readers.setdefault(producer, []).append(node.id)
                producers.setdefault(node.id, []).append(producer)
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
