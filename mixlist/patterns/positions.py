"""Rule S4.38: find the arithmetic that carries positions to Sin, Cos or the grid of GridSample.

A float is a *position* if a Cast makes it of integers or bools, if Range or CumSum counts it, or if Mul, Add, Sub, Div,
MatMul, Gemm, Einsum, Concat or a value mover makes it of a position. Every other float that these operators read must
be a position too, or *fixed*: what depends on constants and shapes alone.

Each graph is walked twice. The first walk goes forward and finds the positions; the second goes back from the readers
(Sin, Cos, the grid of GridSample) and finds the nodes on the way. A function's body is walked once for each kind of
call, as if it were inlined: what its arguments are decides which of its values are positions, and which of its results
are wanted decides which of its nodes lead to a reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mixlist.graph.constants_and_shapes import is_random
from mixlist.graph.control_flow import CONTROL_FLOW, Link, links_of
from mixlist.graph.model import Graph, Node, Scope, Value, float_values
from mixlist.graph.naming import node_ref
from mixlist.graph.traversal import reachable_graphs
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators

READERS = {"Sin": 0, "Cos": 0, "GridSample": 1}  # the input slot that a position must not reach rounded
_COUNTERS = frozenset({"CumSum", "Range"})
_COUNTED = types.INTEGERS | {types.BOOL}
_ARITHMETIC = operators(Trait.MOVES_VALUES) | {"Add", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Sub"}

# The kinds of a float value in the forward walk. A kind only rises, so that loops settle. Data, by far the most values
# of a model, have no entry.
_UNKNOWN, _FIXED, _POSITION, _OTHER = range(4)
_MOVED = operators(Trait.SAME_VALUES) | {"Expand", "Slice"}
_Step = Node | Link


@dataclass(frozen=True)
class Position:
    """The reason why a node belongs to position arithmetic.

    ``source``: the integers that its result derives from; None if the node makes a fixed operand of the arithmetic.
    ``reader``: the operator and name of the node that reads the positions in the end; ``is_reader``: it is this node.
    """

    source: str | None
    reader: str
    is_reader: bool = False


@dataclass(eq=False)
class PositionPlan:
    """The position arithmetic of one graph, for one kind of call if it is the body of a function.

    ``nodes``: by node id, the arithmetic and the readers. ``sources``: the Casts of integers, with their readers.
    ``calls``: the plans of the functions, by the id of the calling node. ``arguments``: for each parameter the reader
    that it reaches.
    """

    nodes: dict[int, Position] = field(default_factory=dict)
    sources: dict[Node, str] = field(default_factory=dict)
    calls: dict[int, PositionPlan] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)

    @cached_property
    def is_empty(self) -> bool:
        """Return whether neither the graph nor a function that it calls has position arithmetic."""
        return not self.nodes and all(plan.is_empty for plan in self.calls.values())

    def of_call(self, node: Node) -> PositionPlan | None:
        """Return the plan of the function that a node calls; None if it is empty."""
        plan = self.calls.get(node.id)
        return None if plan is None or plan.is_empty else plan


def find_positions(main: Graph) -> PositionPlan | None:
    """Return the position arithmetic of a model; None if the model has no operator that could read it."""
    for graph in reachable_graphs(main):
        if any(node.op_type in READERS and not node.domain for node in graph.nodes):
            return _Graphs().walk(main, ()).trace(())
    return None


def list_plans(plan: PositionPlan) -> list[PositionPlan]:
    """Return a plan and those of all functions that its graph calls, each once."""
    found = {plan: None}
    waiting = deque([plan])
    while waiting:
        for callee in waiting.popleft().calls.values():
            if callee not in found:
                found[callee] = None
                waiting.append(callee)
    return list(found)


class _Graphs:
    """The walks of a model, one per graph and kind of its arguments."""

    def __init__(self) -> None:
        self._walks: dict[tuple[int, tuple[int, ...]], _Walk] = {}

    def walk(self, graph: Graph, arguments: tuple[int, ...]) -> _Walk:
        key = id(graph), arguments
        known = self._walks.get(key)
        if known is None:
            known = self._walks[key] = _Walk(self, graph, arguments)
        return known


class _Walk:
    """The walk forward through one graph: ``kinds`` says of each float whether it is a position.

    ``integers`` holds the integers that a position derives from: the first ones where there are several.
    """

    def __init__(self, shared: _Graphs, graph: Graph, arguments: tuple[int, ...]) -> None:
        self.shared, self.graph = shared, graph
        self.kinds: dict[Value, int] = {}
        self.integers: dict[Value, Value] = {}
        self.feeds: dict[Value, list[Value]] = {}  # by target, the values that control flow hands to it
        self.callees: dict[Node, _Walk] = {}
        self._plans: dict[tuple[bool, ...], PositionPlan] = {}
        for value, kind in zip(graph.root.inputs, arguments, strict=False):
            if _is_float(value):
                self.kinds[value], self.integers[value] = kind, value
        owners = {node.op_type for node in graph.nodes if node.bodies}
        if not owners:
            for node in graph.nodes:
                if not self._reads_data_first(node):
                    self._evaluate(node)
            return
        steps = list(self._steps(graph.root))
        for step in steps:
            self._evaluate(step)
        if owners != {"If"}:
            self._settle(steps)

    # --- forward: which floats are positions ---

    def _reads_data_first(self, node: Node) -> bool:
        """Return whether a node makes data of data, as most nodes of a model do."""
        first = node.inputs[0] if node.inputs else None
        if first is None or node.function is not None or first in self.kinds:
            return False
        return not first.is_constant and first.type in types.FLOATS

    def _steps(self, scope: Scope) -> Iterator[_Step]:
        """Yield the nodes of a scope and what is below; the links of a body come before and after it."""
        for node in scope.nodes:
            if not node.bodies:
                yield node
                continue
            own = list(links_of(node)) if node.op_type in CONTROL_FLOW and not node.domain else []
            for link in own:
                for read in link.sources:
                    if read.value.scope is read.body and _is_float(read.value):
                        self.kinds[read.value] = _UNKNOWN  # until the body has been walked
                for target in link.targets:
                    self.feeds.setdefault(target, []).extend(read.value for read in link.sources)
            yield from own
            for body in node.bodies.values():
                yield from self._steps(body)
            yield from own

    def _settle(self, steps: Sequence[_Step]) -> None:
        """Evaluate steps again until nothing changes: the states of loops feed back."""
        readers: dict[Value, list[_Step]] = {}
        for step in dict.fromkeys(steps):
            read = [each.value for each in step.sources] if isinstance(step, Link) else step.inputs
            for value in read:
                if value is not None:
                    readers.setdefault(value, []).append(step)
        waiting = deque(dict.fromkeys(steps))
        queued = set(waiting)
        while waiting:
            step = waiting.popleft()
            queued.discard(step)
            for value in self._evaluate(step):
                fresh = [reader for reader in readers.get(value, ()) if reader not in queued]
                waiting.extend(fresh)
                queued.update(fresh)

    def _evaluate(self, step: _Step) -> list[Value]:
        """Find out what a step makes; return the values of which more is known than before."""
        if isinstance(step, Link):
            read = [each.value for each in step.sources]
            kind = max(map(self._kind, read), default=_OTHER)
            return self._raise(step.targets, kind, self._first_integers(read))
        if step.function is not None:
            return self._evaluate_call(step, step.function)
        kind, integers = self._made_by(step)
        return self._raise(step.outputs, kind, integers)

    def _evaluate_call(self, node: Node, function: Graph) -> list[Value]:
        arguments = [self._kind(v) if v is not None and _is_float(v) else _FIXED for v in node.inputs]
        callee = self.callees[node] = self.shared.walk(function, tuple(arguments))
        integers = self._first_integers(float_values(node.inputs))
        if integers is None:  # the body makes floats of them
            integers = next((v for v in node.inputs if v is not None and not v.is_constant), None)
        changed = []
        for value, result in zip(node.outputs, callee.graph.root.outputs, strict=False):
            changed += self._raise([value], callee._kind(result), integers)
        return changed

    def _raise(self, values: Iterable[Value | None], kind: int, integers: Value | None) -> list[Value]:
        changed = []
        for value in values:
            before = self.kinds.get(value) if value is not None else None
            if value is None or not _is_float(value):
                continue
            settled = _FIXED if kind == _OTHER and (value.is_constant or value.is_from_shape) else kind
            if settled != _OTHER if before is None else settled > before:
                self.kinds[value] = settled
                if settled == _POSITION:
                    self.integers[value] = integers or value
                changed.append(value)
        return changed

    def _made_by(self, node: Node) -> tuple[int, Value | None]:
        """Return what the outputs of a node are, and the integers that they derive from."""
        kinds, kind, is_unknown, is_fixed = self.kinds, _FIXED, False, True
        floats = []
        for value in node.inputs:
            if value is None:
                continue
            known = kinds.get(value)
            if known is None and not value.is_constant:
                if _is_float(value):
                    return _OTHER, None  # data, as in most nodes
                is_fixed = is_fixed and value.is_from_shape
            elif known is not None:
                floats.append(value)
                is_unknown = is_unknown or known == _UNKNOWN
                kind = max(kind, known)
        op_type = node.op_type if not node.domain and not node.bodies else ""
        if op_type == "Cast" and node.inputs and node.inputs[0] is not None and not _is_float(node.inputs[0]):
            return self._made_by_cast(node.inputs[0])
        if kind == _OTHER or is_unknown:
            return (_OTHER if kind == _OTHER else _UNKNOWN), None
        if op_type in _COUNTERS or (kind == _POSITION and (op_type in _ARITHMETIC or op_type == "Cast")):
            return _POSITION, self._first_integers(floats)
        return _FIXED if kind == _FIXED and is_fixed and not node.bodies and not is_random(node) else _OTHER, None

    def _made_by_cast(self, source: Value) -> tuple[int, Value | None]:
        return (_POSITION, source) if types.element(source.type) in _COUNTED else (_OTHER, None)

    def _kind(self, value: Value) -> int:
        return self.kinds.get(value, _FIXED if value.is_constant else _OTHER)

    def _first_integers(self, values: Iterable[Value]) -> Value | None:
        return next((self.integers[v] for v in values if self.kinds.get(v) == _POSITION and v in self.integers), None)

    # --- back: which nodes lead to a reader ---

    def trace(self, wanted: tuple[str | None, ...]) -> PositionPlan:
        """Return the arithmetic before the readers; ``wanted`` has for each output the reader that it reaches."""
        key = tuple([reader is not None for reader in wanted])
        if key not in self._plans:
            plan = self._plans[key] = PositionPlan()
            _Trace(self, plan).run(wanted)
        return self._plans[key]


class _Trace:
    """The walk back through one graph, from its readers and from the outputs that are wanted."""

    def __init__(self, walk: _Walk, plan: PositionPlan) -> None:
        self.walk, self.plan = walk, plan
        self.parameters = {value: slot for slot, value in enumerate(walk.graph.root.inputs) if walk.graph.path}
        self.readers: dict[Value, str] = {}  # the reader that each value reaches
        self.waiting: deque[Value] = deque()
        self.wanted: dict[Node, dict[int, str]] = {}  # the wanted results of calls

    def run(self, wanted: tuple[str | None, ...]) -> None:
        walk = self.walk
        for node in walk.graph.nodes:
            slot = READERS.get(node.op_type) if not node.domain else None
            value = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
            if value is not None and walk.kinds.get(value) == _POSITION:
                reader = f"{node.op_type} {node_ref(walk.graph, node)}"
                self.plan.nodes[node.id] = Position(self._source(value), reader, is_reader=True)
                self._want(value, reader)
        for value, outer_reader in zip(walk.graph.root.outputs, wanted, strict=False):
            if outer_reader is not None:
                self._want(value, outer_reader)
        for node in walk.callees:
            self._go_back_through_call(node)
        while self.waiting:
            self._go_back(self.waiting.popleft())

    def _want(self, value: Value, reader: str) -> None:
        if value not in self.readers:
            self.readers[value] = reader
            self.waiting.append(value)

    def _go_back(self, value: Value) -> None:
        reader, node = self.readers[value], value.producer
        for source in self.walk.feeds.get(value, ()):
            self._want(source, reader)
        if value in self.parameters:
            self.plan.arguments[self.parameters[value]] = reader
        if node is None or node.bodies:
            return
        if node.function is not None:
            self.wanted.setdefault(node, {})[value.output_slot] = reader
            self._go_back_through_call(node)
            return
        floats = float_values(node.inputs)
        if node.op_type == "Cast" and not node.domain and not floats:
            self.plan.sources[node] = reader
            return
        is_position = self.walk.kinds.get(value) == _POSITION
        self.plan.nodes.setdefault(node.id, Position(self._source(value) if is_position else None, reader))
        for operand in floats:
            self._want(operand, reader)

    def _go_back_through_call(self, node: Node) -> None:
        """Go on from the arguments that reach a reader inside, or outside through the results wanted so far."""
        callee, wanted = self.walk.callees[node], self.wanted.get(node, {})
        plan = callee.trace(tuple([wanted.get(slot) for slot in range(len(callee.graph.root.outputs))]))
        self.plan.calls[node.id] = plan
        for slot, inner_reader in plan.arguments.items():
            argument = node.inputs[slot] if slot < len(node.inputs) else None
            if argument is not None:
                self._want(argument, inner_reader)

    def _source(self, value: Value) -> str:
        """Return the name of the integers that a position derives from, before operators that only move them."""
        source = self.walk.integers.get(value, value)
        while (maker := source.producer) is not None and maker.op_type in _MOVED and not maker.domain:
            before = maker.inputs[0] if maker.inputs else None
            if before is None or before.is_constant:
                break
            source = before
        return source.name


def _is_float(value: Value) -> bool:
    return (value.type if isinstance(value.type, int) else types.element(value.type)) in types.FLOATS
