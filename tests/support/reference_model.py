"""The scopes, nodes and values of a model without functions.

Rule S4.10: nodes in topological order. Rule S4.25: the producer of a captured value is the outer node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import scopes

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
LISTED = (FLOAT, FLOAT16, BFLOAT16)
ELEM_TYPES = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16}
CONTRIB_DOMAIN = "com.microsoft"
CONTRIB = Path(__file__).parents[2] / "mixlist" / "model" / "data" / "contrib_schemas.json"
CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}


@cache
def contrib_schemas() -> dict[str, onnx.defs.OpSchema]:
    """Return the schemas of ONNX Runtime's contrib operators, by op type."""
    schemas = {}
    for entry in json.loads(CONTRIB.read_text(encoding="utf-8"))["schemas"]:
        sides = [[_formal(*slot) for slot in entry[side]] for side in ("inputs", "outputs")]
        constraints = [(param, allowed, "") for param, allowed in entry["allowed"].items()]
        schemas[entry["op_type"]] = onnx.defs.OpSchema(
            entry["op_type"],
            CONTRIB_DOMAIN,
            entry["since"],
            inputs=sides[0],
            outputs=sides[1],
            type_constraints=constraints,
        )
    return schemas


def _formal(param: str, is_variadic: bool, is_homogeneous: bool) -> onnx.defs.OpSchema.FormalParameter:
    options = onnx.defs.OpSchema.FormalParameterOption
    option = options.Variadic if is_variadic else options.Optional
    return onnx.defs.OpSchema.FormalParameter("x", param, "", param_option=option, is_homogeneous=is_homogeneous)


@dataclass(eq=False)
class Value:
    """A tensor, sequence or optional of one scope; ``elem`` is its authored element type."""

    name: str
    type: onnx.TypeProto | None = None
    declared: onnx.TypeProto | None = None  # what the file says, where nothing can be inferred
    producer: Node | None = None
    slot: int = 0
    array: np.ndarray | None = None  # of an initializer
    is_input: bool = False
    scope: Scope | None = None  # where the value is defined
    readers: list[tuple[Node, int]] = field(default_factory=list)

    @property
    def elem(self) -> int | None:
        """Return the authored element type, through sequences and optionals; None where unknown."""
        return scopes.elem_type(self.type)

    @property
    def is_tensor(self) -> bool:
        """Return whether the value is no sequence and no optional, as far as is known."""
        return self.type is None or self.type.WhichOneof("value") not in ("sequence_type", "optional_type")

    def __repr__(self) -> str:
        return f"Value({self.name})"


@dataclass(eq=False)
class Node:
    """One node of one scope."""

    proto: onnx.NodeProto
    name: str
    scope: Scope
    inputs: list[Value | None]
    outputs: list[Value | None] = field(default_factory=list)
    bodies: dict[str, Scope] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """Return the op type."""
        return self.proto.op_type

    @property
    def is_standard(self) -> bool:
        """Return whether the operator is of the standard domain."""
        return self.proto.domain in ("", "ai.onnx")

    @property
    def is_user_cast(self) -> bool:
        """Return whether the node is a Cast that the author wrote."""
        return self.op == "Cast" and self.is_standard and not scopes.is_marked(self.proto)

    @property
    def is_control_flow(self) -> bool:
        """Return whether the node carries no precision itself (Rule S4.25)."""
        return self.op in CONTROL_FLOW and self.is_standard

    def attribute(self, name: str) -> onnx.AttributeProto | None:
        """Return an attribute of the node, None where it is not given."""
        return next((a for a in self.proto.attribute if a.name == name), None)

    def schema(self) -> onnx.defs.OpSchema | None:
        """Return the schema at the opset of the model; None where there is none."""
        domain = self.proto.domain if not self.is_standard else ""
        if domain == CONTRIB_DOMAIN:
            return contrib_schemas().get(self.op)
        try:
            return onnx.defs.get_schema(self.op, self.scope.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return None

    def __repr__(self) -> str:
        return f"Node({self.scope.path}/{self.name}: {self.op})"


@dataclass(eq=False)
class Scope:
    """A graph or body."""

    path: str
    outer: Scope | None
    opsets: Mapping[str, int]
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def find(self, name: str) -> Value | None:
        """Return the value that a name means here."""
        if not name:
            return None
        if name in self.values:
            return self.values[name]
        return self.outer.find(name) if self.outer else None

    def walk(self) -> Iterator[Node]:
        """Yield all nodes in order of computation: those of bodies come before their owner."""
        for node in self.nodes:
            for inner in node.bodies.values():
                yield from inner.walk()
            yield node


class Expansion:
    """Expand one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.declared = {v.name: v.type for g in _graphs(model.graph) for v in (*g.value_info, *g.output)}
        self.model = scopes.without_value_info(model)
        opsets = {o.domain: o.version for o in self.model.opset_import}
        typed = onnx.shape_inference.infer_shapes(self.model, check_type=False, strict_mode=False)
        self.main = Scope("", None, opsets)
        self._fill(self.main, self.model.graph, typed.graph)

    def _fill(self, scope: Scope, body: onnx.GraphProto, typed: onnx.GraphProto) -> None:
        """Read the nodes and values of one graph."""
        types = {v.name: v.type for v in (*typed.value_info, *typed.output, *typed.input) if v.type.WhichOneof("value")}
        for value_info in body.input:
            value = Value(value_info.name, types.get(value_info.name), is_input=scope.outer is None, scope=scope)
            scope.values[value_info.name] = value
            scope.inputs.append(value)
        for tensor in body.initializer:
            kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            value = scope.values.setdefault(tensor.name, Value(tensor.name, kind))
            value.array, value.scope = numpy_helper.to_array(tensor), scope
        plain = scopes.Scope(body, scope.path)
        names = scopes.node_names(plain)
        typed_nodes = {id(node): typed_node for node, typed_node in zip(plain.nodes, typed.node, strict=True)}
        for proto in scopes.sorted_nodes(plain):
            node = Node(proto, names[id(proto)], scope, [scope.find(name) for name in proto.input])
            scope.nodes.append(node)
            self._add_bodies(node, typed_nodes[id(proto)])
            self._add_outputs(node, types)
        scope.outputs = [value for value_info in body.output if (value := scope.find(value_info.name)) is not None]

    def _add_bodies(self, node: Node, typed: onnx.NodeProto) -> None:
        scope = node.scope
        for slot, value in enumerate(node.inputs):
            if value is not None:
                value.readers.append((node, slot))
        typed_bodies = dict(scopes.subgraphs(typed))
        for name, graph in scopes.subgraphs(node.proto):
            path = "/".join(part for part in (scope.path, node.name, name) if part)
            node.bodies[name] = Scope(path, scope, scope.opsets)
            self._fill(node.bodies[name], graph, typed_bodies[name])

    def _add_outputs(self, node: Node, types: dict[str, onnx.TypeProto]) -> None:
        for slot, name in enumerate(node.proto.output):
            if name:
                value = Value(name, types.get(name), self.declared.get(name), node, slot, scope=node.scope)
                node.outputs.append(value)
                node.scope.values[name] = value
            else:
                node.outputs.append(None)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for _, inner in scopes.subgraphs(node):
            yield from _graphs(inner)


def borders(node: Node) -> Iterator[tuple[list[Value], list[Value | None], bool]]:
    """Yield the values that cross the borders of the bodies of If, Loop and Scan.

    Each item holds the values that take over (an output of the node, an input of a body), the values that they take
    over, and whether this is a state: its first value, then what the body yields.
    """
    if node.op == "If":
        for i, result in enumerate(node.outputs):
            yield [v for v in [result] if v], [body.outputs[i] for body in node.bodies.values()], False
    elif node.op in ("Loop", "Scan"):
        yield from _loop_borders(node, node.bodies["body"])


def _loop_borders(node: Node, body: Scope) -> Iterator[tuple[list[Value], list[Value | None], bool]]:
    scanned = node.attribute("num_scan_inputs")
    is_loop = scanned is None
    skipped = 2 if is_loop else 1 if node.scope.opsets[""] == 8 else 0  # trip count and condition, sequence lengths
    outer = node.inputs[skipped:]
    inner, yielded = body.inputs[2 if is_loop else 0 :], body.outputs[1 if is_loop else 0 :]
    states = len(outer) - (scanned.i if scanned else 0)
    for i in range(states):
        result = node.outputs[i] if i < len(node.outputs) else None
        yield [v for v in (inner[i], result) if v], [outer[i], yielded[i]], True
    for i in range(states, len(outer)):
        yield [inner[i]], [outer[i]], False
    for result, collected in zip(node.outputs[states:], yielded[states:], strict=False):
        yield [v for v in [result] if v], [collected], False
