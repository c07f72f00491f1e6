"""Check a written model by the rules of a strongly typed target.

In a model for a strongly typed target,

- the opset is one that the target reads;
- every tensor has a type that the target has;
- the slots of a node that share a type parameter have one type, also both float inputs of Pow, and the results of the
  bodies of one If;
- no Cast of mixlist lies inside a quantized unit (Rule S4.41).

An operator that the table lacks, or lacks in the type that a node reads, is reported with the first node.
It is no broken type rule: the user needs a plugin or another operator, and no list helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mixlist.decide.decisions import Unit
from mixlist.decide.units import find_quantized_units
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.load import LoadedModel
from mixlist.model.naming import node_ref
from mixlist.model.operator_names import operator_name
from mixlist.model.protos import nodes_in
from mixlist.model.schema import FormalSlot, find_schema
from mixlist.targets.target import Target

# A row of a table is about the type of one slot of the operator. It is input 0 for most operators. Where reads a
# condition first, and OneHot reads indices and a depth. The operators of _TYPED_BY_OUTPUT have output 0 instead.
_TYPED_INPUT = {"Where": 1, "OneHot": 2}
_TYPED_BY_OUTPUT = frozenset({"Constant", "ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
# The parser of TensorRT computes these with one elementwise layer, whose inputs must have one type. ONNX's schema gives
# them two type parameters.
_ONE_FLOAT_TYPE = frozenset({"Pow"})


@dataclass(frozen=True, slots=True)
class MissingOperator:
    """An operator that a target lacks.

    ``type`` is the type in which the target lacks the operator; "" if it lacks the operator in every type. ``count`` is
    the number of nodes, and ``first`` the name of the first one.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        target_plan = mixlist.plan_for_target(plan, "tensorrt")
        result = target_plan.check_model(mixlist.rewrite("digits.onnx", target_plan.plan).model)
        print([(operator.operator, operator.type, operator.count) for operator in result.missing])
    """

    operator: str
    type: str
    count: int
    first: str

    def __str__(self) -> str:
        operator = f"{self.operator} in {self.type}" if self.type else self.operator
        nodes = "1 node, it is" if self.count == 1 else f"{self.count} nodes, the first is"
        return f"{operator} ({nodes} {self.first})"


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of a check: the operators that the target lacks, and each broken type rule as one sentence.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        target_plan = mixlist.plan_for_target(plan, "tensorrt")
        result = target_plan.check_model(mixlist.rewrite("digits.onnx", target_plan.plan).model)
        print(result.is_accepted, result.missing, result.broken_rules)
    """

    missing: tuple[MissingOperator, ...]
    broken_rules: tuple[str, ...]

    @property
    def is_accepted(self) -> bool:
        """Return True if the target lacks no operator and no type rule is broken."""
        return not self.missing and not self.broken_rules


def check_model(loaded: LoadedModel, target: Target) -> ModelCheck:
    """Check a written model against the table of a strongly typed target."""
    graph = build_graph(loaded.proto, show_marked_casts=True, allow_clashes=True)
    broken_rules = [*_check_opset(graph, target), *_check_quantized_units(loaded)]
    broken_rules += [f"input {fault}" for fault in _find_lacking_types(graph.root.inputs, target)]
    nodes_by_operator: dict[tuple[str, str], list[str]] = {}
    for node in graph.nodes:
        name = str(node_ref(node))
        broken_rules += [f"{name} ({node.op_type}) {fault}" for fault in _check_node(graph, node, target)]
        missing_type = _find_missing_type(graph, node, target)
        if missing_type is not None:
            operator = operator_name(node.domain, node.op_type)
            nodes_by_operator.setdefault((operator, missing_type), []).append(name)
    missing = tuple(
        MissingOperator(operator, missing_type, len(names), names[0])
        for (operator, missing_type), names in nodes_by_operator.items()
    )
    return ModelCheck(missing, tuple(broken_rules))


def _check_opset(graph: Graph, target: Target) -> Iterator[str]:
    opset = graph.opsets.get("", 1)
    if target.opsets is not None and not target.opsets[0] <= opset <= target.opsets[1]:
        first, last = target.opsets
        yield f"the model has opset {opset}, and {target.name} reads {first} to {last}: convert it to one of these"


def _check_quantized_units(loaded: LoadedModel) -> Iterator[str]:
    """Yield each quantized unit with a Cast of mixlist inside."""
    if not any(node.op_type == "QuantizeLinear" for node in nodes_in(loaded.proto.graph)):
        return
    # Without the marked Casts the units are those of the authored model.
    units_by_node = find_quantized_units(build_graph(loaded.proto, allow_clashes=True))
    for unit in dict.fromkeys(unit for units in units_by_node.values() for unit in units):
        for node, name in _find_casts_inside(unit):
            place = f"{node_ref(node)} ({node.op_type}) reads {name} through a Cast"
            yield f"{place}, inside the quantized unit of {node_ref(unit.operator)}"


def _find_casts_inside(unit: Unit) -> Iterator[tuple[Node, str]]:
    """Yield each node that reads a tensor of its own unit through a hidden Cast of mixlist, with the tensor's name."""
    for node in unit.nodes:
        for value, read_type in zip(node.inputs, node.input_types, strict=True):
            if value is not None and value.producer in unit.nodes and value.type != read_type:
                yield node, value.name


def _check_node(graph: Graph, node: Node, target: Target) -> Iterator[str]:
    """Yield each type rule that a node breaks."""
    yield from (f"makes {fault}" for fault in _find_lacking_types(node.outputs, target))
    if node.op_type == "If" and not node.domain:
        yield from _check_branches(node)
    schema = find_schema(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
    if schema is None or node.is_call:
        return
    slots = [
        *zip(schema.formal_slots(schema.inputs, len(node.inputs)), node.inputs, strict=False),
        *zip(schema.formal_slots(schema.outputs, len(node.outputs)), node.outputs, strict=False),
    ]
    for parameter, names in _find_types_by_parameter(slots).items():
        if len(names) > 1:
            yield f"has {' and '.join(sorted(names))} where its type parameter {parameter} demands one type"
    if node.op_type in _ONE_FLOAT_TYPE:
        names = {dtypes.type_name(v.type) for v in node.inputs if v is not None and v.type in dtypes.FLOATS}
        if len(names) > 1:
            yield f"reads {' and '.join(sorted(names))}, and {target.name} demands one float type"


def _find_lacking_types(values: Iterable[Value | None], target: Target) -> Iterator[str]:
    """Yield each tensor of a type that the target lacks, with this type."""
    for value in values:
        if value is None or value.type == dtypes.UNKNOWN or not target.tensor_types:
            continue
        if isinstance(value.type, tuple) or _schema_name(value.type) not in target.tensor_types:
            yield f"{value.name} in {dtypes.type_name(value.type)}, a type that {target.name} lacks"


def _check_branches(node: Node) -> Iterator[str]:
    bodies = list(node.bodies.values())
    for index, types in enumerate(zip(*(body.output_types for body in bodies), strict=False)):
        names = {dtypes.type_name(value_type) for value_type in types if value_type != dtypes.UNKNOWN}
        if len(names) > 1:
            yield f"has branches that make output {index} in {' and '.join(sorted(names))}"


def _find_types_by_parameter(slots: list[tuple[FormalSlot, Value | None]]) -> dict[str, set[str]]:
    """Return the names of the element types of the slots of each type parameter, without unknown ones."""
    names: dict[str, set[str]] = {}
    for formal, value in slots:
        # The repetitions of a heterogeneous slot, such as the states of a Loop, have independent types.
        is_free = formal.variadic and not formal.homogeneous
        if value is not None and value.type != dtypes.UNKNOWN and not is_free and "(" not in formal.parameter:
            names.setdefault(formal.parameter, set()).add(dtypes.type_name(value.type))
    return names


def _find_missing_type(graph: Graph, node: Node, target: Target) -> str | None:
    """Return the type in which the target lacks the operator: "" for every type, None if the target has it."""
    if node.is_call:  # the target inlines the function, whose nodes are not checked
        return None
    opset = graph.opsets.get(node.domain, 1)
    kernels = target.kernels.get((node.domain, node.op_type))
    if kernels is None:
        return ""
    typed_value = _find_typed_value(node)
    if node.bodies or typed_value is None or typed_value.type == dtypes.UNKNOWN:
        return None
    name = _schema_name(typed_value.type)
    # A strongly typed target that has float64 at its interface computes in float32.
    name = "float" if name == "double" and "double" in target.tensor_types else name
    if target.runs(node.domain, node.op_type, opset, name, (), node.text_attributes):
        return None
    return dtypes.type_name(typed_value.type)


def _find_typed_value(node: Node) -> Value | None:
    """Return the value whose type the row of the operator is about."""
    index = _TYPED_INPUT.get(node.op_type, 0)
    if node.op_type not in _TYPED_BY_OUTPUT and index < len(node.inputs):
        return node.inputs[index]
    return next(iter(node.outputs), None)


def _schema_name(value_type: dtypes.Type) -> str:
    """Return the name of an element type in onnx's schemas: ``float`` for float32, ``double`` for float64."""
    name = dtypes.type_name(dtypes.element(value_type))
    return {"float32": "float", "float64": "double"}.get(name, name)
