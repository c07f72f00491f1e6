"""Collect the nodes, tensors and edges of a plan in tables, with the Casts that ``rewrite`` inserts.

Each text is stored once and has a number, so that the page of a large model stays small.

The nodes are those of ``Plan.nodes``, in the same order. After them comes one *terminal* for each input and each output
of the model. An edge is one input slot of a node, an output of the model, or an output of a body, which the
control-flow node of the body reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mixlist.decide.describe_decisions import show_type
from mixlist.decide.plan import Plan
from mixlist.decide.solution import Solution
from mixlist.model import dtypes
from mixlist.model.graph import Node, Scope, Value, linked_scopes
from mixlist.model.inferred_shapes import infer_dimensions
from mixlist.model.naming import NodeRef, scope_path
from mixlist.model.operator_names import operator_name
from mixlist.show.scope_tree import GroupStep, name_steps
from mixlist.write import lay_out_plan
from mixlist.write.cast_layout import CastLayout

NO_NODE = -1  # no node makes the tensor (a weight), or no node is followed
NO_CAST, NEW_CAST, CONVERTED_CONSTANT = 0, 1, 2  # how an edge gets another type than its tensor has
# A longer dimension is shown as an ellipsis: inferred ones can be formulas of hundreds of characters.
_MAX_DIMENSION_LENGTH = 20
INPUT, OUTPUT = "graph input", "graph output"  # the operators of terminals


class NodeRow(NamedTuple):
    """A node, or a terminal. The fields from ``scope`` to ``reason`` are numbers of texts.

    ``follows`` and ``decider``: the number of the node whose output it follows, and of the one at the end of the chain.
    """

    name: str
    scope: int
    op: int
    list: int
    precision: int
    rule: int
    reason: int
    changed: int
    follows: int
    decider: int


class TensorRow(NamedTuple):
    """A tensor. ``type`` and ``shape`` are numbers of texts. ``constant``: 1 for a weight or the output of Constant.

    ``body_input``: 1 for an input of the body of a Loop or Scan. Its ``producer`` is the Loop or Scan.
    """

    name: str
    producer: int
    type: int
    shape: int
    constant: int
    body_input: int


class EdgeRow(NamedTuple):
    """One use of a tensor. ``slot``: the input slot, or -1 - k for output k of a body.

    ``cast``: NO_CAST, NEW_CAST or CONVERTED_CONSTANT. ``type``: the number of the type that the node reads.
    """

    tensor: int
    node: int
    slot: int
    cast: int
    type: int


@dataclass
class GraphTables:
    """The nodes, tensors and edges of a plan.

    ``paths``: the groups of each node, from the outermost to the innermost. ``node_count``: the number of nodes without
    the terminals. ``node_numbers`` and ``tensor_numbers``: the numbers by the name that reports use.
    """

    nodes: list[NodeRow] = field(default_factory=list)
    tensors: list[TensorRow] = field(default_factory=list)
    edges: list[EdgeRow] = field(default_factory=list)
    paths: list[list[GroupStep]] = field(default_factory=list)
    node_count: int = 0
    node_numbers: dict[NodeRef, int] = field(default_factory=dict)
    tensor_numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _text_numbers: dict[str, int] = field(default_factory=lambda: {"": 0})

    def text_number(self, text: str) -> int:
        """Return the number of a text; a new text gets the next number. Number 0 is the empty text."""
        return self._text_numbers.setdefault(text, len(self._text_numbers))

    def node_producers(self) -> list[list[int]]:
        """Return the nodes whose outputs each node reads; a control-flow node reads the outputs of its bodies."""
        producers: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            producer = self.tensors[edge.tensor].producer
            if producer != NO_NODE:
                producers[edge.node].append(producer)
        return producers

    @property
    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers."""
        return list(self._text_numbers)


def collect_tables(plan: Plan) -> GraphTables:
    """Return the tables of a plan, with the Casts that ``rewrite`` inserts if inputs and outputs keep their types."""
    tables = GraphTables(node_count=len(plan.nodes))
    # Reversed, so that the first one wins if nodes of one scope share a name.
    tables.node_numbers = {plan.nodes[index].ref: index for index in reversed(range(len(plan.nodes)))}
    _add_decisions(tables, plan)
    # Plan.nodes has the same order: scope by scope.
    nodes = (node for scope in linked_scopes(plan.solution.graph.root) for node in scope.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    _GraphWriter(tables, plan.solution, lay_out_plan(plan), numbers).write()
    return tables


def _add_decisions(tables: GraphTables, plan: Plan) -> None:
    """Append a row for each decision."""
    text_number = tables.text_number
    for decision in plan.nodes:
        producer, decider = decision.producer, decision.decider
        tables.nodes.append(
            NodeRow(
                name=decision.name,
                scope=text_number(decision.scope),
                op=text_number(operator_name(decision.domain, decision.op_type)),
                list=text_number(decision.list),
                precision=text_number(decision.precision),
                rule=text_number(decision.rule),
                reason=text_number(decision.reason),
                changed=int(decision.changed),
                follows=tables.node_numbers.get(producer, NO_NODE) if producer is not None else NO_NODE,
                decider=tables.node_numbers.get(decider, NO_NODE) if decider is not None else NO_NODE,
            )
        )
    tables.paths = [[] for _ in plan.nodes]


class _GraphWriter:
    """Writes the tensors, edges, terminals and paths of a graph into the tables.

    ``numbers``: the number of each node. ``tensors``: the number of each value that has a row.
    """

    def __init__(self, tables: GraphTables, solution: Solution, layout: CastLayout, numbers: dict[Node, int]) -> None:
        self.tables, self.solution, self.layout, self.numbers = tables, solution, layout, numbers
        self.tensors: dict[Value, int] = {}
        self.dimensions = infer_dimensions(solution.graph)
        self.cast_types = {cast.name: cast.elem for casts in layout.casts.values() for cast in casts}
        self.constant_types = {constant.name: constant.elem for constant in layout.converted_constants}

    def write(self) -> None:
        """Append the rows of the graph."""
        self._set_paths()
        self._add_inputs()
        for scope in linked_scopes(self.solution.graph.root):
            for node in scope.nodes:
                for slot, value in enumerate(node.inputs):
                    if value is not None:
                        self._add_edge(value, self.numbers[node], slot, self._find_conversion(node, slot, value))
                for body in node.bodies.values():
                    self._add_body_outputs(body, self.numbers[node])
                for value in node.outputs:
                    if value is not None:
                        self._add_tensor(value)  # also an output that nothing reads
        self._add_outputs()

    # --- groups ---

    def _set_paths(self) -> None:
        """Set the groups of each node: of its body, then those of its name."""
        paths = self.tables.paths
        for scope in linked_scopes(self.solution.graph.root):
            base: list[GroupStep] = []
            owner_steps: list[GroupStep] = []
            if scope.owner is not None:
                owner = self.numbers[scope.owner]
                owner_name = self.tables.nodes[owner].name
                owner_steps = name_steps(owner_name)
                short_name = owner_name[owner_steps[-1].offset if owner_steps else 0 :]
                base = [*paths[owner], GroupStep("body", f"{short_name}: {scope.attribute_name}")]
            for node in scope.nodes:
                steps = name_steps(self.tables.nodes[self.numbers[node]].name)
                # Exporters repeat the scopes of the control-flow node in the names of the body.
                shared = 0
                while shared < min(len(steps), len(owner_steps)) and steps[shared] == owner_steps[shared]:
                    shared += 1
                paths[self.numbers[node]] = [*base, *steps[shared:]]
            self._move_constants_to_readers(scope)

    def _move_constants_to_readers(self, scope: Scope) -> None:
        """Give each node that computes a constant the groups of its first reader, unless its own name has scopes."""
        constants: set[Value] = set()
        for node in scope.nodes:
            if not node.bodies and all(
                value is None or value in constants or value.kind == "initializer" for value in node.inputs
            ):
                constants.update(value for value in node.outputs if value is not None)
        first_readers: dict[Value, Node] = {}
        for node in reversed(scope.nodes):
            readers = [first_readers[value] for value in node.outputs if value in constants and value in first_readers]
            if readers and not name_steps(self.tables.nodes[self.numbers[node]].name):
                first = min(readers, key=self.numbers.__getitem__)
                self.tables.paths[self.numbers[node]] = self.tables.paths[self.numbers[first]]
            first_readers.update((value, node) for value in node.inputs if value is not None)

    # --- tensors and terminals ---

    def _add_tensor(self, value: Value) -> int:
        """Append the row of a tensor, unless it has one; return the number of the tensor."""
        if value not in self.tensors:
            tables, text_number = self.tables, self.tables.text_number
            dimensions = self.dimensions.get(value)
            is_body_input = value.kind == "input" and value.scope.owner is not None
            producer = value.scope.owner if is_body_input else value.producer
            self.tensors[value] = len(tables.tensors)
            tables.tensor_numbers[scope_path(value.scope), value.name] = len(tables.tensors)
            tables.tensors.append(
                TensorRow(
                    name=value.name,
                    producer=self.numbers[producer] if producer is not None else NO_NODE,
                    type=text_number(show_type(self.solution, value)),
                    shape=text_number(
                        "" if dimensions is None else f"[{', '.join(map(_shorten_dimension, dimensions))}]"
                    ),
                    constant=int(value.constant_proto is not None),
                    body_input=int(is_body_input),
                )
            )
        return self.tensors[value]

    def _add_inputs(self) -> None:
        """Append a terminal for each input of the model. An input with a default is a weight."""
        inputs = [value for value in self.solution.graph.root.inputs if value.kind == "input"]
        for value in inputs:
            tensor = self._add_tensor(value)
            terminal = self._add_terminal(value, INPUT, "inputs")
            self.tables.tensors[tensor] = self.tables.tensors[tensor]._replace(producer=terminal)

    def _add_outputs(self) -> None:
        """Append a terminal for each output of the model, and the edge to it."""
        root = self.solution.graph.root
        new_casts = (cast for casts in self.layout.casts.values() for cast in casts if cast.makes_graph_output)
        output_types = {cast.value: cast.elem for cast in new_casts}
        for value in root.outputs:
            terminal = self._add_terminal(value, OUTPUT, "outputs", output_types.get(value))
            self._add_edge(value, terminal, 0, (NEW_CAST, output_types[value]) if value in output_types else None)

    def _add_terminal(self, value: Value, operator: str, group: str, cast_elem: int | None = None) -> int:
        """Append a terminal; return its number. ``cast_elem``: the type of the new Cast that makes the output."""
        text_number = self.tables.text_number
        elem = self.solution.decided_types[value.id] if cast_elem is None else cast_elem
        precision = dtypes.type_name(elem) if elem in dtypes.FLOATS else "none"
        none, empty = text_number("none"), text_number("")
        self.tables.nodes.append(
            NodeRow(
                name=value.name,
                scope=empty,
                op=text_number(operator),
                list=none,
                precision=text_number(precision),
                rule=empty,
                reason=empty,
                changed=0,
                follows=NO_NODE,
                decider=NO_NODE,
            )
        )
        self.tables.paths.append([GroupStep("terminals", group)])
        return len(self.tables.nodes) - 1

    # --- edges ---

    def _add_edge(self, value: Value, node: int, slot: int, conversion: tuple[int, int] | None) -> None:
        """Append an edge. ``conversion``: how the tensor is converted, and the element type that the node reads."""
        tensor = self._add_tensor(value)
        cast, elem = conversion or (NO_CAST, dtypes.UNKNOWN)
        read_type = self.tables.tensors[tensor].type
        if conversion:
            read_type = self.tables.text_number(dtypes.type_name(dtypes.with_element(value.type, elem)))
        self.tables.edges.append(EdgeRow(tensor, node, slot, cast, read_type))

    def _add_body_outputs(self, body: Scope, owner: int) -> None:
        new_names = self.layout.output_names.get(body, {})
        for slot, value in enumerate(body.outputs):
            self._add_edge(value, owner, -1 - slot, self._conversion_by_name(new_names.get(slot, "")))

    def _find_conversion(self, node: Node, slot: int, value: Value) -> tuple[int, int] | None:
        """Return how input ``slot`` of a node is converted, and to which element type; None if it is not converted."""
        name = self.layout.input_names.get(node, {}).get(slot)
        if name is not None:
            return self._conversion_by_name(name)
        if value.constant_proto is not None and value.id in self.layout.value_types:  # converted in place
            return CONVERTED_CONSTANT, self.layout.value_types[value.id]
        return None

    def _conversion_by_name(self, name: str) -> tuple[int, int] | None:
        """Return how the tensor of a new name is made; None for a tensor that is in the model already."""
        if name in self.cast_types:
            return NEW_CAST, self.cast_types[name]
        if name in self.constant_types:
            return CONVERTED_CONSTANT, self.constant_types[name]
        return None


def to_columns(row_type: type[NamedTuple], rows: Sequence[NamedTuple]) -> dict[str, list[object]]:
    """Return a list for each field of ``row_type``, with the values of all rows."""
    fields: tuple[str, ...] = row_type._fields
    return {name: [row[index] for row in rows] for index, name in enumerate(fields)}


def _shorten_dimension(dimension: str) -> str:
    return dimension if len(dimension) <= _MAX_DIMENSION_LENGTH else "…"
