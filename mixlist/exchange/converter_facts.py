"""Facts that the two float16 converters, of ONNX Runtime and of onnxconverter-common, have in common.

Both convert every node that is not blocked, in the main graph and in the bodies of control flow. Most exceptions hold
for both, and one program calls either of them.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from mixlist.decide.decisions import is_guard_limit
from mixlist.decide.plan import Plan
from mixlist.errors import UsageError
from mixlist.exchange.block_lists import (
    BlockLists,
    FloatInputs,
    Need,
    PlannedGraph,
    PlannedNode,
    find_block_lists,
    is_authored_low,
    is_broken,
)
from mixlist.exchange.export_result import ExportException, ExportResult
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Scope, Value, linked_scopes, protos_by_scope
from mixlist.model.inferred_shapes import copy_without_weights
from mixlist.model.shape_inference import infer_shapes
from mixlist.option_spelling import spell

_WIDTH = 116
_PROGRAM = """\
import onnx
from {module} import convert_float_to_float16

model = onnx.load({model!r})
names = {{node.name for node in model.graph.node}}
types = {{output.name: output.type.tensor_type.elem_type for output in model.graph.output}}
# A graph output that value_info declares too would end the converter with an error.
infos = [info for info in model.graph.value_info if info.name not in types]
del model.graph.value_info[:]
model.graph.value_info.extend(infos)
{preparation}{call}
# Connect float32 nodes directly, because the converter rounds each tensor between them to float16. Keep one Cast of
# each tensor, because it adds one for each node that reads the tensor.
casts = {{node.output[0]: node for node in model.graph.node if node.op_type == "Cast" and node.name not in names}}
sources = {{}}
for node in casts.values():
    if node.input[0] in casts:
        sources[node.output[0]] = node.input[0] = casts[node.input[0]].input[0]
for node in model.graph.node:
    node.input[:] = [sources.get(name, name) for name in node.input]
# Give each graph output its type again: the converter can make it float16, in spite of keep_io_types.
for output in model.graph.output:
    if output.type.tensor_type.elem_type != types[output.name]:
        output.type.tensor_type.elem_type = casts[output.name].attribute[0].i = types[output.name]
nodes = [node for node in model.graph.node if casts.get(node.output[0], node) is node]
nodes = [node for node in nodes if node.output[0] not in sources or node.output[0] in types]
del model.graph.node[:]
model.graph.node.extend(nodes)
graphs = [model.graph]
for graph in graphs:  # the loop also reaches the bodies that it appends
    del graph.value_info[:]  # the converter declares some tensors twice, with different types; runtimes infer all types
    graphs += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
onnx.save(model, "mixed.onnx")
"""

# The steps before the call. The exporter writes those that the model needs.
_COPY_INITIALIZERS = """\
# Give float32 nodes copies of the initializers that converted nodes read too, because an initializer has one type.
copies = {copies}
tensors = [tensor for tensor in model.graph.initializer if tensor.name in copies]
for tensor in tensors:
    model.graph.initializer.add().CopyFrom(tensor)
    model.graph.initializer[-1].name += "_float32"
    for node in model.graph.node:
        if not copies[tensor.name].isdisjoint(node.output):
            node.input[:] = [name + "_float32" if name == tensor.name else name for name in node.input]
"""
_COPY_NOTE = "the program gives float32 nodes copies of the initializers that converted nodes read too"

_ARGUMENTS = {"keep_io_types": True, "min_positive_val": 5.96e-08, "max_finite_val": 65504.0}
_NOTES = (
    "the converter rounds each tensor between two float32 nodes to float16 and back; the program that export prints "
    "connects these nodes directly afterwards, and the exceptions assume that",
    "the converter adds a Cast of a tensor for each float32 node that reads it, all of one name, and ONNX Runtime "
    "refuses such a model; the program keeps one",
    "the converter raises constants between 0 and 5.96e-08 in magnitude to 5.96e-08; mixlist rounds them",
    "the converter clamps finite constants beyond 65504 to 65504",
)


def require_float16(plan: Plan, tool: str) -> None:
    """Raise UsageError for a plan whose low type is not float16."""
    if plan.policy.mode.low != "float16":
        raise UsageError(
            f"{tool} converts to float16 only, and the plan is {plan.policy.mode.low}",
            hint=f"use {spell('precision_mode_v2', 'mixed_float16')}, or {spell('tool', 'modelopt')}, which"
            " has bfloat16",
        )


def _find_needs(graph: PlannedGraph, float_inputs: FloatInputs) -> dict[Node, Need]:
    """Return the state that the converter must give to each node.

    A node that the converter would break stays in float32. A control-flow node is blocked, so that its bodies are not
    converted, if nodes of its bodies stay in float32 and none is low precision.
    """
    needs: dict[Node, Need] = {}
    for planned in graph.nodes:
        needs[planned.node] = "high" if planned.need == "low" and is_broken(planned, float_inputs) else planned.need
    for planned in graph.nodes:
        if planned.node.bodies:
            inner_states = {needs[inner.node] for inner in graph.nodes_in_bodies(planned.node)}
            needs[planned.node] = "low" if "low" in inner_states else "high" if "high" in inner_states else "any"
    return needs


class ConverterModel:
    """The lists for one converter, and the exceptions that both converters have."""

    def __init__(
        self, plan: Plan, float_inputs: FloatInputs, by_name_only: tuple[str, ...] = (), raises_float16: bool = False
    ) -> None:
        """Find the lists. ``raises_float16``: a blocked node becomes float32 even if the model has it in float16."""
        self.plan, self.float_inputs = plan, float_inputs
        self.graph = PlannedGraph(plan.solution)
        self.needs = _find_needs(self.graph, float_inputs)
        if raises_float16:
            self.needs |= {node.node: "low" for node in self.graph.nodes if is_authored_low(node, dtypes.FLOAT16)}
        self.lists: BlockLists = find_block_lists(self.graph.nodes, self.needs, by_name_only)
        self.skipped = self._find_skipped()

    def make_result(
        self,
        tool: str,
        measured_with: str,
        module: str,
        exceptions: Iterable[ExportException],
        *,
        notes: tuple[str, ...] = (),
        arguments: Mapping[str, object] | None = None,
        preparation: str = "",
        added_names: Iterable[str] = (),
    ) -> ExportResult:
        """Return the lists for ``convert_float_to_float16`` of a module.

        ``exceptions``, ``notes`` and ``arguments``: those of this converter besides those that both have.
        ``preparation``: lines of the program before the call. ``added_names``: float32 nodes that these lines add.
        """
        lists = {"op_block_list": self.lists.op_types, "node_block_list": [*self.lists.names, *added_names]}
        all_arguments = {**_ARGUMENTS, **(arguments or {})}
        if self.copied_initializers:
            preparation += _COPY_INITIALIZERS.format(copies=_show(self.copied_initializers, len("copies = ")))
            notes = (*notes, _COPY_NOTE)
        return ExportResult(
            tool=tool,
            measured_with=measured_with,
            model=self.plan.model,
            precision=self.plan.policy.mode.low,
            lists=lists,
            arguments=all_arguments,
            call=_show_conversion(module, self.plan.model, preparation, {**all_arguments, **lists}),
            exceptions=(*self._find_exceptions(), *exceptions),
            notes=(*_NOTES, *notes),
            warnings=self.plan.warnings,
        )

    def is_high(self, planned: PlannedNode) -> bool:
        """Return whether the converter leaves the node in float32."""
        return planned.node in self.lists.blocked or planned.node in self.skipped

    def converted_nodes(self) -> Iterator[PlannedNode]:
        """Yield the nodes that the converter visits and does not block."""
        return (planned for planned in self.graph.nodes if not self.is_high(planned))

    def visited_and_blocked(self) -> Iterator[PlannedNode]:
        """Yield the blocked nodes around which the converter inserts Casts."""
        nodes = self.graph.nodes
        return (planned for planned in nodes if planned.node in self.lists.blocked and planned.node not in self.skipped)

    @cached_property
    def copied_initializers(self) -> dict[str, set[str]]:
        """The initializers that need a copy, each with the outputs of the float32 nodes that read the copy.

        The float32 nodes are those of the main graph. Converted nodes read the initializer too, or it needs no copy.
        """
        converted = {value for planned in self.converted_nodes() for value in float_initializers(planned)}
        copies: dict[str, set[str]] = {}
        for planned in self.graph.nodes:
            if planned.node.scope.owner is None and self.is_high(planned):
                for value in converted.intersection(float_initializers(planned)):
                    copies.setdefault(value.name_in_file, set()).update(filter(None, planned.node.proto.output))
        return copies

    def _find_skipped(self) -> set[Node]:
        """Return the nodes in the bodies of blocked nodes: the converter does not visit them."""
        blocked_owners = [node for node in self.lists.blocked if node.bodies]
        return {inner.node for owner in blocked_owners for inner in self.graph.nodes_in_bodies(owner)}

    def _find_exceptions(self) -> Iterator[ExportException]:
        """Yield the exceptions that follow from the types of the slots."""
        yield from self.lists.exceptions
        for planned in self.graph.nodes:
            if is_broken(planned, self.float_inputs) and planned.need == "low":
                yield ExportException(planned.ref, self._describe_break(planned))
            elif planned.node in self.skipped and planned.need == "low":
                yield ExportException(planned.ref, "is in a body that the tool leaves in float32")
        yield from self._find_differing_slots()
        yield from self._find_captured_values()
        yield from self._find_control_flow_outputs()
        yield from self._find_untyped_reads()
        yield from self._find_reduced_masks()
        yield from self._find_raised_nodes()

    def _describe_break(self, planned: PlannedNode) -> str:
        slots = planned.slots
        inputs = sorted(set(slots.fixed_inputs) - set(self.float_inputs.get(planned.op_type, ())))
        kinds = [
            f"{kind} {slot}" for kind, group in (("input", inputs), ("output", slots.fixed_outputs)) for slot in group
        ]
        where = " and ".join(kinds)
        return f"stays in float32: the tool converts all of its slots or none, and its {where} must be float32"

    def _find_differing_slots(self) -> Iterator[ExportException]:
        """Yield the nodes that get the right state, and have slots that get another type than in the plan."""
        for planned in self.graph.nodes:
            slots, node = planned.slots, planned.node
            if self.needs[node] != planned.need or planned.op_type == "Constant" or node.bodies:
                continue
            # A Cast of the model to the low type makes the same tensor in float32 and in low precision, so its need is
            # "any". Only the type of its input differs.
            is_free_cast = planned.op_type == "Cast" and planned.need == "any"
            if self.is_high(planned):
                if (planned.need == "high" or is_free_cast) and (low := _names(slots.low_inputs, slots.low_outputs)):
                    why = f"the tool makes its {', '.join(low)} float32; the plan has float16 there"
                    yield ExportException(planned.ref, why)
            elif planned.need == "low" or is_free_cast:
                float_slots = self.float_inputs.get(planned.op_type, ())
                high_inputs = [slot for slot in slots.high_inputs if slot not in float_slots]
                if high := _names(high_inputs, slots.high_outputs):
                    why = f"the tool makes its {', '.join(high)} float16; the plan has float32 there"
                    yield ExportException(planned.ref, why)

    def _find_captured_values(self) -> Iterator[ExportException]:
        """Yield the nodes that are not visited, in bodies, and read a tensor which the tool converts."""
        for planned in self.graph.nodes:
            if planned.node not in self.skipped:
                continue
            values = [v for v in planned.node.inputs if v is not None and v.type == dtypes.FLOAT]
            outer = [v for v in values if v.kind != "initializer" and not self._is_skipped_scope(v.scope)]
            if outer:
                why = f"is in a body that stays in float32, and reads {outer[0].name!r}, which the tool converts"
                yield ExportException(planned.ref, f"{why}: the result is invalid", invalid=True)

    def _is_skipped_scope(self, scope: Scope) -> bool:
        """Return whether the tool does not visit the scope."""
        owner = scope.owner
        return owner is not None and (owner in self.lists.blocked or owner in self.skipped)

    def _find_control_flow_outputs(self) -> Iterator[ExportException]:
        """Yield the control-flow nodes with an output that gets another type than in the plan."""
        solution = self.graph.solution
        for planned in self.graph.nodes:
            if not planned.node.bodies:
                continue
            actual = dtypes.FLOAT if self.is_high(planned) else solution.low_type
            decided = solution.decided_types
            floats = [v for v in planned.node.outputs if v is not None and dtypes.element(v.type) == dtypes.FLOAT]
            names = [repr(v.name) for v in floats if decided[v.id] != actual]
            if names:
                why = f"the tool makes its outputs {', '.join(names[:3])} {dtypes.type_name(actual)}"
                yield ExportException(planned.ref, f"{why}; the plan has another type there")

    def _find_untyped_reads(self) -> Iterator[ExportException]:
        untyped = _find_untyped_values(self.graph.solution.graph)
        for value in sorted(untyped, key=lambda value: value.id):
            assert value.producer is not None
            producer = self.graph.by_node[value.producer]
            for reader, _ in self.graph.readers.get(value, ()):
                if self.is_high(reader) != self.is_high(producer):
                    why = f"ONNX does not infer the type of its input {value.name!r}, so that the tool inserts no Cast"
                    why += ": the result is invalid; declare the type in value_info"
                    yield ExportException(reader.ref, why, invalid=True)

    def _find_reduced_masks(self) -> Iterator[ExportException]:
        main = self.graph.solution
        for node, limits in main.changed_slots.items():
            if not all(map(is_guard_limit, limits.values())):  # the tool raises guards, too, to 5.96e-08
                why = "mixlist reduces the mask that it reads (S4.36), and the tool clamps it to -65504: a fully masked"
                yield ExportException(self.graph.by_node[node].ref, f"{why} row can become NaN")

    def _find_raised_nodes(self) -> Iterator[ExportException]:
        """Yield the nodes that the model has in a low type and the plan raises to float32 (Rule S3.6)."""
        solution = self.graph.solution
        if solution.policy.mode.action != "raise":
            return
        for planned in self.graph.nodes:
            assignment = solution.assignments[planned.node.id]
            if assignment is not None and any(
                dtypes.element(value.type) != solution.decided_types[value.id]
                for value in planned.node.outputs
                if value is not None
            ):
                yield ExportException(planned.ref, "the plan raises it to float32, and the tool only lowers nodes")


def float_initializers(planned: PlannedNode) -> list[Value]:
    """Return the float32 initializers that a node reads, also those that are defaults of graph inputs."""
    values = (value for value in planned.node.inputs if value is not None)
    return [value for value in values if value.kind in ("initializer", "overridable") and value.type == dtypes.FLOAT]


def _names(inputs: Iterable[int], outputs: Iterable[int]) -> list[str]:
    return [f"input {slot}" for slot in inputs] + [f"output {slot}" for slot in outputs]


# --- values without a type ---


def _find_untyped_values(graph: Graph) -> set[Value]:
    """Return the float32 values of nodes that neither a declaration nor ONNX's inference types.

    Without operators of other domains, inference types all values, so that it need not run.
    """
    if all(is_standard_domain(node.domain) for node in graph.nodes):
        return set()
    try:
        inferred = infer_shapes(copy_without_weights(graph.model))
    except MemoryError:
        raise
    except Exception:  # onnx raises errors of many kinds; the converters go on with the declared types
        inferred = graph.model
    untyped: set[Value] = set()
    messages = protos_by_scope(graph.root, inferred.graph)
    for scope in linked_scopes(graph.root):
        message = messages[scope]
        typed_names = {info.name for info in (*message.value_info, *message.output) if info.type.WhichOneof("value")}
        outputs = (value for node in scope.nodes for value in node.outputs if value is not None)
        untyped |= {v for v in outputs if v.name_in_file not in typed_names and dtypes.element(v.type) == dtypes.FLOAT}
    return untyped


# --- the program that runs a converter ---


def _show_conversion(module: str, model: str, preparation: str, keywords: Mapping[str, object]) -> str:
    """Return a program that calls ``convert_float_to_float16`` of a module for the model in a file."""
    lines = ["model = convert_float_to_float16(", "    model,"]
    lines += [f"    {name}={_show(value, len(name) + 5)}," for name, value in keywords.items()]
    call = "\n".join([*lines, ")"])
    return _PROGRAM.format(module=module, model=model, preparation=preparation, call=call)


def _show(value: object, indent: int) -> str:
    """Return a value as Python text, whose lines after the first are indented."""
    text = pprint.pformat(value, width=_WIDTH - indent, compact=True, sort_dicts=False)
    return text.replace("\n", "\n" + " " * indent)
