"""How a gray node behaves: four policies (Rules S4.6, S4.8 and S4.22 to S4.24)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import types
from mixlist.resolver.decisions import UNDECIDED, Solution

if TYPE_CHECKING:
    from mixlist.resolver.classification import Fact
    from mixlist.resolver.solve import Resolution


def follow(node: Node, solver: Any) -> tuple[int, Value | None]:
    """The type that a gray node takes and the value that it took it from.

    Returns 0 while that value is undecided; the authored type where there is nothing to follow.
    """
    policy = solver.shared.policy.gray_policy
    if policy == "ascend":
        return _first(node, solver)
    if policy == "between":
        low = solver.between.get(node.id, False)
        return (solver.low if low else authored(node)), None
    producers = [_seen(v, solver) for v in node.inputs if _counts(v)]
    if not producers:
        return authored(node), None
    if policy == "promote":
        return _widest(node, producers, solver)
    return _black_wins(node, producers, solver)


def _counts(value: Value | None) -> bool:
    return value is not None and not value.constant and types.element(value.type) in types.FLOATS


def authored(node: Node) -> int:
    """The element type that the model gives a node that has one."""
    assert node.signature is not None and node.signature.primary is not None
    return node.signature.primary.authored


def _seen(value: Value | None, solver: Any) -> Value:
    """The value, or what stands behind exactly one Cast from the low type to float32 (or bfloat16)."""
    assert value is not None
    return looked_through(value, solver.decided, solver.low, solver.shared.facts.cast_is_black) or value


def looked_through(value: Value, decided: list[int], low: int, cast_is_black: bool) -> Value | None:
    """The source of a Cast that resolution looks through; None for every other value.

    Also while the source is undecided: should it turn out high, the Cast's own type counts again.
    """
    cast = value.producer
    if cast is None or cast.op_type != "Cast" or cast.domain or cast_is_black:
        return None
    to = types.element(value.type)
    if to != types.FLOAT and not (to == types.BFLOAT16 and low == types.FLOAT16):
        return None
    source = cast.inputs[0]
    if source is None or decided[source.id] not in (low, UNDECIDED):
        return None
    return source


def _first(node: Node, solver: Any) -> tuple[int, Value | None]:
    for value in node.inputs:
        if value is not None and not value.constant and types.element(value.type) in types.FLOATS:
            if value.producer is not None and value.producer.op_type == "Cast":
                value = _seen(value, solver)
            return solver.decided[value.id], value
    return authored(node), None


def _widest(node: Node, producers: list[Value], solver: Any) -> tuple[int, Value | None]:
    """PyTorch's promotion: the widest of the inputs; float16 with bfloat16 gives float32."""
    chosen, source = UNDECIDED, producers[0]
    for value in producers:
        elem = solver.decided[value.id]
        if elem == UNDECIDED:
            continue
        wider = _promoted(chosen, elem)
        if wider != chosen:
            chosen, source = wider, value
    return chosen, source


def _promoted(one: int, other: int) -> int:
    if one in (UNDECIDED, other):
        return other
    if types.DOUBLE in (one, other):
        return types.DOUBLE
    return types.FLOAT


def _black_wins(node: Node, producers: list[Value], solver: Any) -> tuple[int, Value | None]:
    """Paddle's rule: high if any producer is high by black, else low if any is low, else authored."""
    lowest = None
    for value in producers:
        if is_high_by_black(value, solver.solution, solver.low):
            solver.solution.high_by_black.update(v.id for v in node.outputs if v is not None)
            return types.FLOAT, value
        if solver.decided[value.id] == solver.low and lowest is None:
            lowest = value
    if lowest is not None:
        return solver.low, lowest
    if any(solver.decided[v.id] == UNDECIDED for v in producers):
        return UNDECIDED, producers[0]
    return authored(node), None


def is_high_by_black(value: Value, solution: Solution, low: int) -> bool:
    """Whether a value is high because a black node made it, or one that black wins over."""
    if value.id in solution.high_by_black:
        return True
    maker = value.producer
    if maker is None or maker.signature is None or solution.decided[value.id] == low:
        return False
    fact = solution.facts[maker.id]
    return fact.list == "black" and fact.kind == "authored"


def pass_black(targets: Iterable[Value | None], sources: Iterable[bool], solver: Any) -> list[Value]:
    """Mark each target as high by black whose source is; the targets that were not marked before."""
    if solver.shared.policy.gray_policy != "black-wins":
        return []
    by_black: set[int] = solver.solution.high_by_black
    told = [v for v, black in zip(targets, sources, strict=False) if black and v is not None and v.id not in by_black]
    by_black.update(v.id for v in told)
    return told


# --- between ---


def between(graph: Graph, solution: Solution, shared: Resolution) -> dict[int, bool]:
    """TensorFlow's rule: which gray nodes are low.

    A gray node that black reaches forward through gray is high. Otherwise it is low exactly if a path
    of gray nodes leads back to a white node and one leads forward to a white node. Casts, graph
    inputs, shape arithmetic and function calls end a path.
    """
    after, before = _edges(graph, solution)
    white = [n for n in graph.order if _white(n, solution, shared)]
    black = [n for n in graph.order if solution.facts[n.id].kind == "authored" and solution.facts[n.id].list == "black"]
    grays = {n.id for n in graph.order if solution.facts[n.id].kind == "gray"}
    painted = _reach(black, after, grays)
    able = {i for i in grays - painted if _can_be_low(graph.order[i], shared)}
    downstream = _reach(white, after, able)
    upstream = _reach(white, before, able)
    low = (downstream & upstream) | {n.id for n in white}
    clear = {i for i in able if _is_clear(solution.facts[i], shared)}
    low |= _reach([graph.order[i] for i in low], _both(after, before), clear)
    return {i: i in low for i in grays}


def _is_clear(fact: Fact, shared: Resolution) -> bool:
    """Whether the op is on TensorFlow's clear list: without numeric effect, low if a neighbour is."""
    return fact.listed is not None and fact.listed.op in shared.policy.lists.library.clear


def _both(after: dict[int, list[int]], before: dict[int, list[int]]) -> dict[int, list[int]]:
    return {i: after.get(i, []) + before.get(i, []) for i in after.keys() | before.keys()}


def _white(node: Node, solution: Solution, shared: Resolution) -> bool:
    return solution.facts[node.id].kind == "low" and _can_be_low(node, shared)


def _can_be_low(node: Node, shared: Resolution) -> bool:
    signature = node.signature
    if signature is None or not signature.groups:
        return False
    wish = tuple([shared.low if g.authored in (types.FLOAT, shared.low) else g.authored for g in signature.groups])
    return shared.low in signature.assign(wish).elements


def _edges(graph: Graph, solution: Solution) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Node to node by float values, through the links of control flow."""
    made_by: dict[int, list[int]] = {}
    for node in graph.order:
        if not node.bodies:
            for value in node.outputs:
                if value is not None:
                    made_by[value.id] = [node.id]
    feeds: dict[int, list[int]] = {}
    for link in solution.links:
        for target in link.targets:
            feeds.setdefault(target.id, []).extend(r.value.id for r in link.reads)
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for node in graph.order:
        if node.bodies or node.signature is None:
            continue
        for value in node.inputs:
            if value is None or types.element(value.type) not in types.FLOATS:
                continue
            for maker in _makers(value.id, made_by, feeds):
                after.setdefault(maker, []).append(node.id)
                before.setdefault(node.id, []).append(maker)
    return after, before


def _makers(value: int, made_by: dict[int, list[int]], feeds: dict[int, list[int]]) -> list[int]:
    if value in made_by:
        return made_by[value]
    if value not in feeds:
        return []
    found: dict[int, None] = {}
    seen, waiting = {value}, [value]
    while waiting:
        at = waiting.pop()
        found.update(dict.fromkeys(made_by.get(at, ())))
        for source in feeds.get(at, ()):
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    made_by[value] = list(found)
    return made_by[value]


def _reach(start: list[Node], edges: dict[int, list[int]], through: set[int]) -> set[int]:
    reached: set[int] = set()
    waiting = [n.id for n in start]
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other in through and other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached
