"""Gray nodes: find the type that a gray node takes from the nodes around it, under each gray policy (Rule S4.8).

docs/semantics.md has the rules of `ascend` (S4.6), `promote` (S4.24) and `between` (S4.22), and says through which
Casts of the user a reader looks (S4.17, S4.48). ``model/build.py`` leaves out the Casts that mixlist inserted (Rule
S4.18), so this file sees only Casts of the user.

Example: under `between`, in ``MatMul -> Relu -> MatMul -> Neg`` with white MatMuls, Relu is low precision and Neg is
not.

A gray policy may only raise types, from undecided to low to high (Rule S4.28).
"""

from __future__ import annotations

from collections.abc import Container

from mixlist.decide.control_flow_types import takes_type
from mixlist.decide.solution import UNDECIDED, Solution, find_authored_type
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value, float_values

# The element type, and the value from which the gray node takes the type.
_TypeAndSource = tuple[int, Value | None]
# By the id of a node, the ids of its neighbors; the same for values.
_Edges = dict[int, list[int]]


# --- follow the inputs: ascend and promote ---


def find_gray_type(node: Node, solution: Solution) -> _TypeAndSource:
    """Return the element type that a gray node takes, and the value that it takes the type from.

    The type is UNDECIDED as long as that value is undecided. It is the authored type, and the value None, if the node
    has no input to follow.
    """
    policy = solution.policy.gray_policy
    if policy == "ascend":
        return _follow_first_input(node, solution)
    if policy == "between":
        return (solution.low_type if node.id in solution.low_gray_ids else find_authored_type(node)), None
    inputs = [_find_followed_value(v, solution) for v in node.inputs if v is not None and can_be_followed(v)]
    return _follow_widest_input(inputs, solution) if inputs else (find_authored_type(node), None)


def can_be_followed(value: Value) -> bool:
    """Return whether a gray node may follow an input: the input holds floats and is no constant."""
    return not value.is_constant and dtypes.element(value.type) in dtypes.FLOATS


def _follow_first_input(node: Node, solution: Solution) -> _TypeAndSource:
    """Return the type of the first float input that is no constant (Rule S4.6)."""
    for value in node.inputs:
        if value is not None and can_be_followed(value) and value.id not in solution.unbound_values:
            value = _find_followed_value(value, solution)
            if value.id in solution.followed_instead:
                value = _find_followed_value(solution.followed_instead[value.id], solution)
            return solution.decided_types[value.id], value
    return find_authored_type(node), None


def _follow_widest_input(inputs: list[Value], solution: Solution) -> _TypeAndSource:
    """Return the widest type of the inputs that are decided, and the first input of this type (Rule S4.24)."""
    widest, source = UNDECIDED, inputs[0]
    for value in inputs:
        elem = solution.decided_types[value.id]
        if elem == UNDECIDED:
            continue
        wider = _wider_type(widest, elem)
        if wider != widest:
            widest, source = wider, value
    return widest, source


def _wider_type(first: int, second: int) -> int:
    """Return the narrowest type that holds the values of both types; float16 and bfloat16 need float32."""
    if first in (UNDECIDED, second):
        return second
    # Two different floats: float64 holds all others, and float32 both low types.
    return dtypes.DOUBLE if dtypes.DOUBLE in (first, second) else dtypes.FLOAT


# --- look through a Cast ---


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


def skip_idle_casts(value: Value) -> Value:
    """Return the value that a chain of Casts from float32 to float32 begins with; ``value`` itself without such Casts.

    A model that was traced with ``x.to(torch.float32)`` has such Casts, which do nothing (Rule S4.48).
    """
    while value.producer is not None and is_idle_cast(value.producer):
        source = value.producer.inputs[0]
        assert source is not None, "an idle Cast has an input"
        value = source
    return value


def is_idle_cast(node: Node) -> bool:
    """Return whether a node is a Cast from float32 to float32."""
    if node.op_type != "Cast" or not node.is_plain:
        return False
    source, output = node.inputs[0], node.outputs[0]
    return source is not None and output is not None and source.type == output.type == dtypes.FLOAT


def _find_followed_value(value: Value, solution: Solution) -> Value:
    """Return the value that a gray reader of ``value`` follows: the source of its Cast, or ``value`` itself."""
    # The test only saves calls: this function runs for every gray node.
    if value.producer is None or value.producer.op_type != "Cast":
        return value
    classifier = solution.classifier
    if classifier.skips_idle_casts:
        value = skip_idle_casts(value)
    return find_cast_source(value, solution.decided_types, solution.low_type, classifier.cast_is_black) or value


def note_scatters(solution: Solution) -> None:
    """Note that readers of a black scatter that adds up follow the tensor that it adds (Rule S5.8)."""
    for node in solution.graph.nodes:
        if node.op_type in ("ScatterElements", "ScatterND"):
            classification, added, output = solution.classifications[node.id], node.inputs[2], node.outputs[0]
            entry = classification.list_match
            adds_up = classification.rule == "black" and entry is not None and entry.op == "ReduceSum"
            if adds_up and added is not None and output is not None:
                solution.followed_instead[output.id] = added


# --- look at the whole graph: between ---


def find_low_gray_nodes(solution: Solution) -> set[int]:
    """Return the ids of the gray nodes that are low precision."""
    # Phase 1: the nodes of each list.
    graph, classifications = solution.graph, solution.classifications
    readers, producers = _find_neighbors(solution)
    neighbors = {i: readers.get(i, []) + producers.get(i, []) for i in readers.keys() | producers.keys()}
    clear_ops = solution.policy.lists.library.clear_ops
    white = {n.id for n in graph.nodes if classifications[n.id].kind == "low" and _can_be_low(n, solution)}
    black = {n.id for n in graph.nodes if classifications[n.id].is_black}
    grays = {n.id: n for n in graph.nodes if classifications[n.id].kind == "gray"}
    # Phase 2: the gray nodes that a path may pass. Black reaches forward through every gray node, also through those
    # that cannot be low precision.
    after_black = _find_reachable(black, readers, grays)
    passable = {i for i, node in grays.items() if _can_be_low(node, solution)} - after_black
    # Phase 3: a gray node is low if it is behind a white node and before one; clear operators next to it are low too.
    behind_white = _find_reachable(white, readers, passable)
    before_white = _find_reachable(white, producers, passable)
    low = (behind_white & before_white) | white
    clear = {i for i in passable if _list_op(grays[i], solution) in clear_ops}
    return (low | _find_reachable(low, neighbors, clear)) & grays.keys()


def _list_op(node: Node, solution: Solution) -> str | None:
    """Return the op type on the policy's lists that decides a node's list; None if no list decides the node."""
    entry = solution.classifications[node.id].list_match
    return None if entry is None else entry.op


def _can_be_low(node: Node, solution: Solution) -> bool:
    """Return whether the operator's schema lets some slot of the node have the low type."""
    classification = solution.classifications[node.id]
    signature, movable_types = node.signature, solution.classifier.movable_types_of(classification)
    if signature is None or not signature.groups:
        return False
    requested_types = tuple(
        [solution.low_type if g.authored in movable_types else g.authored for g in signature.groups]
    )
    return solution.low_type in signature.assign(requested_types).elements


def _find_neighbors(solution: Solution) -> tuple[_Edges, _Edges]:
    """Return the ids of the nodes that read the float outputs of each node, and of those that make its float inputs.

    Values of control flow connect nodes too, if the control-flow operator takes the low type.
    """
    graph = solution.graph
    made_by: _Edges = {}  # producers by the id of a value
    for node in graph.nodes:
        if not node.bodies:
            for output in node.outputs:
                if output is not None:
                    made_by[output.id] = [node.id]
    # Control flow only passes values on. So the producers of a body's input are the producers of the values that
    # control flow passes to this input.
    sources_of: _Edges = {}  # the ids of the values that control flow passes to a value
    for link in solution.links:
        if takes_type(link, solution.low_type, graph):
            for target in link.targets:
                sources_of.setdefault(target.id, []).extend(source.value.id for source in link.sources)
    edges: list[tuple[list[int], int]] = []
    for node in graph.nodes:
        if not node.bodies and node.signature is not None:
            edges += [(_find_producers(v.id, made_by, sources_of), node.id) for v in float_values(node.inputs)]
    readers: _Edges = {}
    producers: _Edges = {}
    for value_producers, reader in edges:
        for producer in value_producers:
            readers.setdefault(producer, []).append(reader)
            producers.setdefault(reader, []).append(producer)
    return readers, producers


def _find_producers(value_id: int, made_by: _Edges, sources_of: _Edges) -> list[int]:
    """Return the nodes that make a value, also through control flow; remember the answer in ``made_by``."""
    if value_id not in made_by:
        if value_id not in sources_of:
            return []
        reachable = _find_reachable({value_id}, sources_of)
        made_by[value_id] = sorted({producer for source in reachable for producer in made_by.get(source, ())})
    return made_by[value_id]


def _find_reachable(start: set[int], edges: _Edges, through: Container[int] | None = None) -> set[int]:
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
