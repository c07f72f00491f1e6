"""Export a plan for AutoCast of NVIDIA ModelOpt (``python -m modelopt.onnx.autocast``).

The facts were read from ``modelopt/onnx/autocast`` of nvidia-modelopt 0.47.0:

- Names are regular expressions, matched at the start of a node's name; op types match in every domain.
- Without ``data_max`` and ``init_max`` of infinity, magnitudes of random data and of weights keep more nodes high.
- A low-precision node has the low type in all float slots, except the scales of a Resize (with bfloat16, its ROI too).
- A node in a body is low precision only if it reads initializers alone; float32 bodies are always valid.
- Operators that onnx does not know need TensorRT. Casts of the user between floats are removed.
- ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div and Mul that make a layer normalization become one operator, but only
  if the axes of the first ReduceMean are its first attribute. From opset 18 on, they are an input.
- A node without a name gets one that depends on the changes before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from shlex import quote

from mixlist.decide.decisions import is_guard_limit
from mixlist.decide.plan import Plan
from mixlist.decide.solution import Solution
from mixlist.exchange.block_lists import (
    BlockLists,
    FloatInputs,
    Need,
    PlannedGraph,
    PlannedNode,
    find_block_lists,
    find_low_inputs,
    is_authored_low,
    is_broken,
)
from mixlist.exchange.export_result import ExportException, ExportResult
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value

MEASURED_WITH = "nvidia-modelopt 0.47.0"
_SHORT_TYPES = {"float16": "fp16", "bfloat16": "bf16"}
_KEPT_INPUTS: dict[str, dict[str, tuple[int, ...]]] = {"float16": {"Resize": (2,)}, "bfloat16": {"Resize": (1, 2)}}
_OLDEST_OPSET = {"float16": 13, "bfloat16": 22}
_OLDEST_OPSET_WITH_QUANTIZATION = 19
_OPSET_OF_AXES_INPUT = 18  # ReduceMean has its axes as an input
_QUANTIZATION = ("QuantizeLinear", "DequantizeLinear")
_NEVER_LOW = ("Upsample", "NonMaxSuppression", "Celu")
_LAYER_NORM = "LayerNormalization"
_NOTES = (
    "AutoCast clamps finite constants beyond the low type's range, and raises smaller ones to the smallest subnormal",
    "AutoCast removes nodes on which no output depends",
)


def export_for_modelopt(plan: Plan) -> ExportResult:
    """Return the lists for ModelOpt AutoCast. Each name is a regular expression that matches this name only."""
    graph = PlannedGraph(plan.solution)
    low = plan.policy.mode.low
    float_inputs = _KEPT_INPUTS[low]
    needs = {planned.node: _find_need(planned, float_inputs) for planned in graph.nodes}
    # AutoCast makes a listed node float32, also one that the model has in a low type.
    low_type = plan.solution.low_type
    needs |= {planned.node: "low" for planned in graph.nodes if is_authored_low(planned, low_type)}
    main_nodes = [planned for planned in graph.nodes if planned.node.scope.owner is None]
    lists = find_block_lists(main_nodes, needs)
    layer_norms = _find_layer_norms(graph)
    if any(needs[nodes[-1]] == "high" for nodes in layer_norms) and _LAYER_NORM not in lists.op_types:
        lists.op_types = sorted([*lists.op_types, _LAYER_NORM])
    arguments = {
        "low_precision_type": _SHORT_TYPES[low],
        "keep_io_types": True,
        "data_max": float("inf"),
        "init_max": float("inf"),
    }
    patterns = [f"^{re.escape(name)}$" for name in lists.names]
    exported = {"nodes_to_exclude": patterns, "op_types_to_exclude": lists.op_types}
    return ExportResult(
        tool="modelopt",
        measured_with=MEASURED_WITH,
        model=plan.model,
        precision=low,
        lists=exported,
        arguments=arguments,
        call=_show_command(plan.model, arguments, exported),
        exceptions=tuple(_find_exceptions(graph, needs, lists, float_inputs)),
        notes=tuple(_find_notes(plan)),
        warnings=plan.warnings,
    )


def _show_command(model: str, arguments: Mapping[str, object], lists: Mapping[str, list[str]]) -> str:
    words = ["python -m modelopt.onnx.autocast", f"--onnx_path {quote(model)}", "--output_path mixed.onnx"]
    for name, value in arguments.items():
        words.append(f"--{name}" if value is True else f"--{name} {value}")
    for name, entries in lists.items():
        if entries:
            words.append(" ".join([f"--{name}", *map(quote, entries)]))
    return " \\\n  ".join(words) + "\n"


def _find_need(planned: PlannedNode, float_inputs: FloatInputs) -> Need:
    """Return the state that AutoCast must give to a node of the main graph.

    A control-flow node is excluded, because its bodies stay in float32. An operator with a fixed output type needs
    nothing: AutoCast casts its output for each reader. A Cast to float32 is excluded, or AutoCast would replace it.
    """
    node, slots = planned.node, planned.slots
    if node.bodies:
        return "high"
    if planned.need == "low":
        return "high" if is_broken(planned, float_inputs) or planned.op_type in _NEVER_LOW else "low"
    if planned.op_type == "Cast":
        return planned.need
    if planned.op_type == "Constant" or (node.signature is not None and node.signature.has_fixed_output):
        return "high" if slots.high_inputs else "any"
    return planned.need


def _find_exceptions(
    graph: PlannedGraph, needs: Mapping[Node, Need], lists: BlockLists, float_inputs: FloatInputs
) -> Iterator[ExportException]:
    yield from lists.exceptions
    for planned in graph.nodes:
        if why := _find_difference(graph, planned, needs, lists, float_inputs):
            yield ExportException(planned.ref, why)
    for nodes in _find_layer_norms(graph):
        where = "float32" if needs[nodes[-1]] == "high" else "the low type"
        why = f"AutoCast makes it part of a LayerNormalization, which is in {where}"
        yield from (ExportException(graph.by_node[node].ref, why) for node in nodes)
    for node, limits in graph.solution.changed_slots.items():
        why = "mixlist reduces the mask that it reads (S4.36), and AutoCast clamps it: a fully masked row"
        if all(map(is_guard_limit, limits.values())):
            why = "mixlist raises the guard that it reads (S4.43), and AutoCast does not: a row of zeros"
        yield ExportException(graph.by_node[node].ref, f"{why} can become NaN")


def _find_difference(
    graph: PlannedGraph,
    planned: PlannedNode,
    needs: Mapping[Node, Need],
    lists: BlockLists,
    float_inputs: FloatInputs,
) -> str:
    """Return the reason why AutoCast gives a node other types than the plan; empty if the types are equal."""
    node, slots = planned.node, planned.slots
    if node.scope.owner is not None:
        return "is in a body, which AutoCast leaves in float32" if planned.need == "low" else ""
    if node.is_call or not _is_known(node):
        return "is no operator of onnx: AutoCast needs TensorRT for the whole model"
    if node.domain.startswith("com.microsoft"):
        return f"AutoCast replaces {node.domain}::{node.op_type} by {node.op_type} of onnx"
    if planned.op_type == "Cast" and _is_float_cast(node):
        return "AutoCast removes Casts of the model between float types, and casts for each reader instead"
    if planned.op_type == "Cast" and (why := _describe_merged_cast(graph, planned, lists)):
        return why
    if planned.need == "low" and needs[node] == "high":
        return (
            "stays in float32: AutoCast gives all of its slots one type, and the operator needs float32 in one of them"
        )
    if any(
        value is not None and dtypes.element(value.type) == dtypes.DOUBLE for value in (*node.inputs, *node.outputs)
    ):
        return "has float64, which AutoCast makes float32"
    if planned.need == "low" and node not in lists.blocked:
        float_slots = float_inputs.get(planned.op_type, ())
        high = [f"input {slot}" for slot in slots.high_inputs if slot not in float_slots]
        return f"AutoCast makes its {', '.join(high)} low precision; the plan has float32 there" if high else ""
    if planned.need == "high" and slots.low_inputs and node in lists.blocked:
        return f"AutoCast makes its input {slots.low_inputs[0]} float32; the plan has the low type there"
    return _describe_low_inputs(graph, planned, lists)


def _describe_low_inputs(graph: PlannedGraph, planned: PlannedNode, lists: BlockLists) -> str:
    """Return the reason if AutoCast gives a node that the model has in a low type another type."""
    target = dtypes.FLOAT if planned.node in lists.blocked else graph.solution.low_type
    for value, elem in find_low_inputs(planned.node).items():
        if elem != target:
            before, after = dtypes.type_name(elem), dtypes.type_name(target)
            return f"reads {value.name!r}, which the model has in {before} and AutoCast makes {after}"
    return ""


def _describe_merged_cast(graph: PlannedGraph, planned: PlannedNode, lists: BlockLists) -> str:
    """Return the reason if AutoCast removes a Cast without effect, or merges a Cast with one that it adds after it."""
    source, output = planned.node.inputs[0], planned.node.outputs[0]
    if source is not None and output is not None and source.type == output.type:
        return "AutoCast removes it, because its input has its type already"
    is_of_constant = source is not None and source.producer is not None and source.producer.op_type == "Constant"
    if source is not None and is_of_constant and len(graph.readers.get(source, ())) == 1:
        return f"AutoCast makes the Constant {source.name!r} of its type, and removes it"
    if output is None or output.type not in dtypes.MIXABLE:
        return ""
    if graph.solution.decided_types[output.id] != output.type:
        return ""  # the plan merges it, too (Rule S4.45)
    readers = _find_readers_behind_casts(graph, output)
    high_readers = [str(reader.ref) for reader, slot in readers if not _is_read_low(reader, slot, lists)]
    if len(high_readers) == len(readers):
        return ""
    why = "AutoCast merges it with the Cast that it adds for low-precision readers"
    return f"{why}, and lets {high_readers[0]} read its input: the result can be invalid" if high_readers else why


def _is_read_low(reader: PlannedNode, slot: int, lists: BlockLists) -> bool:
    """Return whether AutoCast makes an input of a node low precision: as planned, or as in the model if not listed."""
    if slot in reader.slots.low_inputs:
        return True
    return reader.node not in lists.blocked and reader.node.inputs[slot] in find_low_inputs(reader.node)


def _find_readers_behind_casts(graph: PlannedGraph, output: Value) -> list[tuple[PlannedNode, int]]:
    """Return the readers of a value, and instead of each Cast that AutoCast removes the readers of that Cast."""
    readers: list[tuple[PlannedNode, int]] = []
    values = [output]
    for value in values:  # the loop also reaches what it appends
        for reader, slot in graph.readers.get(value, ()):
            target = reader.node.outputs[0] if reader.op_type == "Cast" and _is_float_cast(reader.node) else None
            if target is None:
                readers.append((reader, slot))
            else:
                values.append(target)
    return readers


def _find_notes(plan: Plan) -> Iterator[str]:
    yield from _NOTES
    opset, converted = plan.solution.graph.opsets.get("", 0), _find_opset(plan.solution)
    if opset < converted:
        yield (
            f"AutoCast converts the model from opset {opset} to {converted} first, which can change nodes; "
            f"mixlist apply --opset {converted} does the same before an export"
        )


def _find_opset(solution: Solution) -> int:
    """Return the opset to which AutoCast converts the model first, or the opset of the model if that is higher."""
    oldest = _OLDEST_OPSET[solution.policy.mode.low]
    if any(node.op_type in _QUANTIZATION for node in solution.graph.nodes):
        oldest = max(oldest, _OLDEST_OPSET_WITH_QUANTIZATION)
    return max(solution.graph.opsets.get("", 0), oldest)


def _is_known(node: Node) -> bool:
    """Return whether onnx has an operator of this name, in any domain."""
    from onnx import defs

    return any(defs.has(node.op_type, domain) for domain in ("", "ai.onnx.ml", "ai.onnx.preview.training"))


def _is_float_cast(node: Node) -> bool:
    """Return whether a Cast goes from float32 or a low type to float32 or float16, and not from an initializer."""
    source, target = node.inputs[0], node.outputs[0]
    if source is None or target is None or source.kind in ("initializer", "overridable"):
        return False
    return source.type in dtypes.MIXABLE and target.type in (dtypes.FLOAT, dtypes.FLOAT16)


def _find_layer_norms(graph: PlannedGraph) -> list[list[Node]]:
    """Return the nodes of each layer normalization that AutoCast makes one operator, in order of computation."""
    if _find_opset(graph.solution) >= _OPSET_OF_AXES_INPUT:
        return []
    matches = (_match_layer_norm(graph, planned.node) for planned in graph.nodes)
    return [nodes for nodes in matches if nodes]


def _match_layer_norm(graph: PlannedGraph, mean: Node) -> list[Node]:
    """Return the nodes of the layer normalization that begins with a ReduceMean; empty if there is none.

    The chain is ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div and Mul, then Add if the Mul has no other reader.
    Each node reads the one before; the Div reads the Sub, too. AutoCast needs the Mul, because it has the scale.
    """
    attributes = mean.proto.attribute
    if mean.op_type != "ReduceMean" or mean.scope.owner is not None or not (attributes and attributes[0].ints):
        return []
    subtract = _only_reader(graph, mean, "Sub")
    powers = _readers(graph, subtract, "Pow") if subtract else []
    if subtract is None or len(powers) != 1 or not _reads_initializer(powers[0]):
        return []
    chain = [mean, subtract, powers[0]]
    for op_type in ("ReduceMean", "Add", "Sqrt"):
        following = _only_reader(graph, chain[-1], op_type)
        if following is None:
            return []
        chain.append(following)
    divisions = [node for node in _readers(graph, chain[-1], "Div") if subtract.outputs[0] is node.inputs[0]]
    if len(divisions) != 1 or not _reads_initializer(chain[4]):
        return []
    scale = _only_reader(graph, divisions[0], "Mul")
    if scale is None or not _reads_initializer(scale):
        return []
    bias = _only_reader(graph, scale, "Add")
    return [*chain, divisions[0], scale, *([bias] if bias is not None else [])]


def _readers(graph: PlannedGraph, node: Node, op_type: str = "") -> list[Node]:
    value: Value | None = node.outputs[0]
    readers = [] if value is None else [reader.node for reader, _ in graph.readers.get(value, ())]
    return [reader for reader in dict.fromkeys(readers) if not op_type or reader.op_type == op_type]


def _only_reader(graph: PlannedGraph, node: Node, op_type: str) -> Node | None:
    readers = _readers(graph, node)
    return readers[0] if len(readers) == 1 and readers[0].op_type == op_type else None


def _reads_initializer(node: Node) -> bool:
    """Return whether the second input of a node is an initializer."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    return value is not None and value.kind == "initializer"
