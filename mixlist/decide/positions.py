"""Rule S4.38: position arithmetic stays as authored.

Integers that arithmetic carries to Sin, Cos or the grid of GridSample are positions: the low type holds only small
integers exactly, and a sine of a rounded angle is wrong. The nodes of this arithmetic and the readers stay as authored
under every list; a node rule wins (Rule S4.2), and nodes that keep their authored type for another reason keep that
reason. In

    position_ids -> Cast -> Mul(inverse frequencies) -> Sin -> Mul(scale) -> Neg

all nodes but Neg stay as authored. A rotary embedding of Llama is written so, and ONNX Runtime fuses it with a Cast
behind the last Mul, but not with one before it.

A float is a *position* if a Cast makes it of integers or bools, if Range or CumSum counts it, or if Mul, Add, Sub, Div,
MatMul, Gemm, Einsum, Concat, ScatterElements, ScatterND or a value mover makes it of a position. Every other float that
these operators read must be a position too, or *fixed*: computed from constants and shapes alone. All other floats are
*data*.

The graph is walked twice. The forward walk finds the positions. The backward walk starts at the readers (Sin, Cos, the
grid of GridSample) and finds the nodes on the way to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from mixlist.decide.decisions import PositionReason, Positions
from mixlist.decide.solution import Solution, keep_as_authored
from mixlist.diagnostics import Diagnostic
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink, is_control_flow, type_links_of
from mixlist.model.graph import Graph, Node, Scope, Value, float_values, once_per_graph
from mixlist.model.low_precision import MAX_EXACT_INTEGER
from mixlist.model.naming import node_ref
from mixlist.model.traits import Trait, operators
from mixlist.model.value_origins import is_random
from mixlist.option_spelling import spell

# By operator, the input slot at which a rounded position gives a wrong result.
POSITION_READERS = {"Sin": 0, "Cos": 0, "GridSample": 1}
_COUNTERS = frozenset({"CumSum", "Range"})
_COUNT_TYPES = dtypes.INTEGERS | {dtypes.BOOL}
_ARITHMETIC = operators(Trait.MOVES_VALUES) | {"Add", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Sub"}
# Models with several axes of positions write those of one axis into the angles of another, as Qwen3-VL does.
_ARITHMETIC |= {"ScatterElements", "ScatterND"}
_ONE_INPUT_MOVERS = operators(Trait.SAME_VALUES) | {"Expand", "Slice"}

# The kinds of a float value in the forward walk. A kind only rises, so that the walk of a loop ends. Data, by far the
# most values of a model, usually have no entry, which saves time.
_UNKNOWN, _FIXED, _POSITION, _DATA = range(4)
_Step = Node | TypeLink


# --- find the positions of a graph ---


@once_per_graph
def find_positions(graph: Graph) -> Positions:
    """Return the position arithmetic of a model."""
    # Most models have no operator that could read a position, and need no walk.
    if any(node.op_type in POSITION_READERS and not node.domain for node in graph.nodes):
        return _BackwardWalk(_ForwardWalk(graph)).run()
    return Positions()


class _ForwardWalk:
    """The walk forward through the graph, which finds the positions.

    ``kinds``: by float value, its kind; a float without an entry is data, or fixed if it is a constant. ``integers``:
    by position, the integers from which it is computed, the first ones if there are several. ``link_sources``: by
    target of control flow, the values that can flow into it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kinds: dict[Value, int] = {}
        self.integers: dict[Value, Value] = {}
        self.link_sources: dict[Value, list[Value]] = {}
        # Without bodies, one pass in topological order finds all kinds.
        control_flow = {node.op_type for node in graph.nodes if node.bodies}
        if not control_flow:
            for node in graph.nodes:
                if not self._makes_data(node):
                    self._evaluate(node)
            return
        steps = list(self._steps(graph.root))
        for step in steps:
            self._evaluate(step)
        if control_flow != {"If"}:  # an If has no loop: one pass is enough
            self._evaluate_until_stable(steps)

    # --- forward: which floats are positions ---

    def _makes_data(self, node: Node) -> bool:
        """Return whether the first input of a node is data. The outputs are then data, too, and need no entry.

        This is a shortcut for most nodes of a model.
        """
        first = node.inputs[0] if node.inputs else None
        if first is None or first in self.kinds:
            return False
        return not first.is_constant and first.type in dtypes.FLOATS

    def _steps(self, scope: Scope) -> Iterator[_Step]:
        """Yield the nodes and links of a scope and of the bodies in it, in the order of evaluation.

        The links of a control-flow node come before its bodies, for the values that go in, and again after them, for
        the values that come out.
        """
        for node in scope.nodes:
            if not node.bodies:
                yield node
                continue
            links = list(type_links_of(node)) if is_control_flow(node) else []
            for link in links:
                for source in link.sources:
                    # A value that the body computes. One that the body captures has its kind already.
                    if source.value.scope is source.body and _is_float(source.value):
                        self.kinds[source.value] = _UNKNOWN  # until its body is evaluated
                for target in link.targets:
                    self.link_sources.setdefault(target, []).extend(source.value for source in link.sources)
            yield from links
            for body in node.bodies.values():
                yield from self._steps(body)
            yield from links

    def _evaluate_until_stable(self, steps: Sequence[_Step]) -> None:
        """Evaluate the steps again until no kind changes, because the states of a loop depend on each other."""
        readers: dict[Value, list[_Step]] = {}
        for step in dict.fromkeys(steps):
            values = [source.value for source in step.sources] if isinstance(step, TypeLink) else step.inputs
            for value in values:
                if value is not None:
                    readers.setdefault(value, []).append(step)
        waiting = deque(dict.fromkeys(steps))
        queued = set(waiting)
        while waiting:
            step = waiting.popleft()
            queued.discard(step)
            for value in self._evaluate(step):
                # A step that waits already will see the new kind.
                new_steps = [reader for reader in readers.get(value, ()) if reader not in queued]
                waiting.extend(new_steps)
                queued.update(new_steps)

    def _evaluate(self, step: _Step) -> list[Value]:
        """Find the kinds of the values that a step makes; return the values whose kind has risen."""
        if isinstance(step, TypeLink):
            sources = [source.value for source in step.sources]
            # One source that is data makes the target data: its value may come from any of the sources.
            kind = max(map(self._kind, sources), default=_DATA)
            return self._raise_kinds(step.targets, kind, self._first_integers(sources))
        kind, integers = self._result_kind(step)
        return self._raise_kinds(step.outputs, kind, integers)

    def _raise_kinds(self, values: Iterable[Value | None], kind: int, integers: Value | None) -> list[Value]:
        """Raise the kinds of the floats among ``values`` to ``kind``; return the values that have changed.

        A constant, or a float that is computed from shapes, becomes fixed instead of data.
        """
        changed = []
        for value in values:
            if value is None or not _is_float(value):
                continue
            before = self.kinds.get(value)
            new_kind = _FIXED if kind == _DATA and (value.is_constant or value.is_from_shape) else kind
            # A value without an entry is data already. An entry only rises.
            has_risen = new_kind != _DATA if before is None else new_kind > before
            if has_risen:
                self.kinds[value] = new_kind
                if new_kind == _POSITION:
                    self.integers[value] = integers or value
                changed.append(value)
        return changed

    def _result_kind(self, node: Node) -> tuple[int, Value | None]:
        """Return the kind of the outputs of a node; for positions also the integers from which they are computed."""
        # 1. The highest kind of the float inputs. Fixed also needs that all integers come from constants or shapes.
        kinds, highest, is_unknown, is_fixed = self.kinds, _FIXED, False, True
        floats = []
        for value in node.inputs:
            if value is None:
                continue
            kind = kinds.get(value)
            if kind is None and not value.is_constant:
                if _is_float(value):
                    # One input is data, so the outputs are data. Most nodes end here.
                    return _DATA, None
                is_fixed = is_fixed and value.is_from_shape
            elif kind is not None:
                floats.append(value)
                is_unknown = is_unknown or kind == _UNKNOWN
                highest = max(highest, kind)
        # 2. The operator decides whether a position stays one.
        op_type = node.op_type if not node.domain and not node.bodies else ""
        if op_type == "Cast" and node.inputs and node.inputs[0] is not None and not _is_float(node.inputs[0]):
            is_count = dtypes.element(node.inputs[0].type) in _COUNT_TYPES
            return (_POSITION, node.inputs[0]) if is_count else (_DATA, None)
        if highest == _DATA or is_unknown:
            return (_DATA if highest == _DATA else _UNKNOWN), None
        if op_type in _COUNTERS or (highest == _POSITION and (op_type in _ARITHMETIC or op_type == "Cast")):
            return _POSITION, self._first_integers(floats)
        return _FIXED if highest == _FIXED and is_fixed and not node.bodies and not is_random(node) else _DATA, None

    def _kind(self, value: Value) -> int:
        return self.kinds.get(value, _FIXED if value.is_constant else _DATA)

    def _first_integers(self, values: Iterable[Value]) -> Value | None:
        return next((self.integers[v] for v in values if self.kinds.get(v) == _POSITION and v in self.integers), None)


class _BackwardWalk:
    """The walk back through the graph, from its readers.

    ``readers``: by visited value, the reader that it reaches.
    """

    def __init__(self, forward: _ForwardWalk) -> None:
        self.forward, self.positions = forward, Positions()
        self.readers: dict[Value, str] = {}
        self.waiting: deque[Value] = deque()

    def run(self) -> Positions:
        """Return the arithmetic before the readers."""
        forward = self.forward
        for node in forward.graph.nodes:
            slot = POSITION_READERS.get(node.op_type) if not node.domain else None
            value = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
            if value is not None and forward.kinds.get(value) == _POSITION:
                reader = f"{node.op_type} {node_ref(node)}"
                self.positions.nodes[node.id] = PositionReason(self._source_name(value), reader, is_reader=True)
                self._visit(value, reader)
            elif node.op_type == "Mul" and node.is_plain:
                self._add_scaling(node)
        while self.waiting:
            self._go_back(self.waiting.popleft())
        return self.positions

    def _add_scaling(self, mul: Node) -> None:
        """Add a Mul of a sine or cosine with a constant: runtimes fuse rotary embeddings up to it."""
        others = [value for value in mul.inputs if value is not None and not value.is_constant]
        sine = others[0].producer if len(others) == 1 < len(mul.inputs) else None
        position = self.positions.nodes.get(sine.id) if sine is not None and sine.op_type in ("Sin", "Cos") else None
        if position is not None:
            self.positions.nodes[mul.id] = PositionReason(position.source, position.reader, scales=True)

    def _visit(self, value: Value, reader: str) -> None:
        if value not in self.readers:
            self.readers[value] = reader
            self.waiting.append(value)

    def _go_back(self, value: Value) -> None:
        """Add the producer of a value to the arithmetic, and visit the floats from which it computes the value."""
        reader, node = self.readers[value], value.producer
        for source in self.forward.link_sources.get(value, ()):
            self._visit(source, reader)
        if node is None or node.bodies:
            return
        floats = float_values(node.inputs)
        if node.op_type == "Cast" and not node.domain and not floats:  # the arithmetic starts here
            self.positions.casts[node] = reader
            return
        # A fixed operand, such as the inverse frequencies, belongs to the arithmetic, but comes from no integers.
        is_position = self.forward.kinds.get(value) == _POSITION
        source_name = self._source_name(value) if is_position else None
        self.positions.nodes.setdefault(node.id, PositionReason(source_name, reader))
        for operand in floats:
            self._visit(operand, reader)

    def _source_name(self, value: Value) -> str:
        """Return the name of the integers from which a position is computed, as they are named before value movers."""
        source = self.forward.integers.get(value, value)
        while (node := source.producer) is not None and node.op_type in _ONE_INPUT_MOVERS and not node.domain:
            moved = node.inputs[0] if node.inputs else None
            if moved is None or moved.is_constant:
                break
            source = moved
        return source.name


def _is_float(value: Value) -> bool:
    return (value.type if isinstance(value.type, int) else dtypes.element(value.type)) in dtypes.FLOATS


# --- protect them ---


def keep_positions(solution: Solution) -> None:
    """Classify the nodes of position arithmetic as authored, if the policy protects them."""
    if "positions" in solution.policy.protect and solution.policy.mode.action in LOWERING_ACTIONS:
        solution.positions = find_positions(solution.graph)
        keep_as_authored(solution, solution.positions.nodes, "position")


def explain_position(solution: Solution, node: Node, kept_type: str) -> str:
    """Return why a node of position arithmetic stays as authored, in ``kept_type``."""
    position = solution.positions.nodes[node.id]
    if position.source is None:
        return f"it computes an operand of the positions that {position.reader} reads: it stays {kept_type} (S4.38)"
    if position.scales:
        return f"it scales the result of {position.reader}, which reads positions: it stays {kept_type} (S4.38)"
    effect = "it reads positions" if position.is_reader else f"it computes positions for {position.reader}"
    exact = f"{dtypes.type_name(solution.low_type)} is exact only for integers up to "
    exact += str(MAX_EXACT_INTEGER[solution.low_type])
    return f"{effect}, which come from the integers of {position.source!r}, and {exact}: it stays {kept_type} (S4.38)"


def find_position_warnings(solution: Solution) -> Iterator[Diagnostic]:
    """Yield a warning if the policy does not protect positions and makes some low precision (Rule S4.38)."""
    policy = solution.policy
    if "positions" in policy.protect or policy.mode.action not in LOWERING_ACTIONS:
        return
    lowered = next(_find_lowered_nodes(find_positions(solution.graph), solution), None)
    if lowered is not None:
        node, reader = lowered
        low_name = dtypes.type_name(solution.low_type)
        yield Diagnostic(
            "ML507",
            "warning",
            f"the positions that {reader} reads are {low_name} at {node.op_type} {node_ref(node)}, and "
            f"{low_name} is exact only for integers up to {MAX_EXACT_INTEGER[solution.low_type]}",
            hint=f"{spell('protect', 'positions')} keeps position arithmetic in high precision",
        )


def _find_lowered_nodes(positions: Positions, solution: Solution) -> Iterator[tuple[Node, str]]:
    """Yield the nodes of position arithmetic that became low precision, each with its reader's name."""
    low_type = solution.low_type
    for node in solution.graph.nodes:
        position, assignment = positions.nodes.get(node.id), solution.assignments[node.id]
        groups = node.signature.groups if node.signature is not None else ()
        elements = assignment.elements if assignment is not None else ()
        if position is not None and any(
            elem == low_type != group.authored for elem, group in zip(elements, groups, strict=False)
        ):
            yield node, position.reader
