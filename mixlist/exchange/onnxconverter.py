"""Export a plan for ``float16.convert_float_to_float16`` of onnxconverter-common.

The facts were read from ``float16.py`` of onnxconverter-common 1.16.0:

- A list that is given replaces the tool's default list; op types match in every domain.
- Casts that are blocked by their op type make an endless loop, because the tool blocks the Casts that it adds, too.
- An initializer that a blocked node of its graph reads stays in float32, also for the converted nodes that read it. The
  program gives the blocked nodes of the main graph a copy.
- The default of a graph input is converted, and its declared type is not. The program makes it a constant.
- The output of a blocked node is rounded to float16, and blocked readers read a Cast of it. The tool removes this pair
  of Casts only in the main graph, and only if the output has one reader and does not come from a Constant.
- A graph output that a blocked node makes becomes float16, also with ``keep_io_types``. Other readers of a graph output
  read it behind its Cast, so that the program lets an Identity make such an output.
- A tensor can be declared several times, with different types. The program deletes all declarations of inner tensors.
- The Casts of a node are named after it, so that two blocked nodes without a name break the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mixlist.decide.plan import Plan
from mixlist.exchange.block_lists import PlannedNode, captured_floats, find_low_inputs
from mixlist.exchange.converter_facts import ConverterModel, float_initializers, require_float16
from mixlist.exchange.export_result import ExportException, ExportResult
from mixlist.model import dtypes
from mixlist.model.graph import Value

MEASURED_WITH = "onnxconverter-common 1.16.0"
_OUTPUT_NOTE = "the converter makes a graph output float16 if a float32 node makes it; the program corrects the type"
_NAME_ALL = "the tool names its Casts after nodes: give all nodes names, and export again"

_ADD_IDENTITIES = """\
# Let an Identity make each graph output that converted nodes read, because the converter moves it behind a Cast.
inner = {{output: output + "_inner" for output in {outputs}}}
for node in model.graph.node:
    node.input[:] = [inner.get(name, name) for name in node.input]
    node.output[:] = [inner.get(name, name) for name in node.output]
for output in model.graph.output:
    if output.name in inner:
        name = inner[output.name]
        model.graph.value_info.add().CopyFrom(output)
        model.graph.value_info[-1].name = name
        model.graph.node.add(op_type="Identity", name=name, input=[name], output=[output.name])
"""
_IDENTITY_NOTE = "the program lets an Identity make each graph output that converted nodes read"
_REMOVE_DEFAULTS = """\
# Make each graph input with a default a constant, because the converter converts the default only.
defaults = {tensor.name for tensor in model.graph.initializer}
inputs = [value for value in model.graph.input if value.name not in defaults]
del model.graph.input[:]
model.graph.input.extend(inputs)
model.ir_version = max(model.ir_version, 4)
"""
_DEFAULTS_NOTE = "the program makes each graph input with a default a constant"


def export_for_onnxconverter(plan: Plan) -> ExportResult:
    """Return the block lists for onnxconverter-common.

    Raises UsageError for a plan in bfloat16, to which the tool does not convert.
    """
    require_float16(plan, "onnxconverter-common")
    model = ConverterModel(plan, {}, by_name_only=("Cast",), raises_float16=True)
    graph = plan.solution.graph
    has_float16 = any(value.type == dtypes.FLOAT16 for value in graph.values)
    notes, preparation = [_OUTPUT_NOTE], ""
    if any(value.kind == "overridable" and value.type == dtypes.FLOAT for value in graph.values):
        notes.append(_DEFAULTS_NOTE)
        preparation += _REMOVE_DEFAULTS
    outputs = _find_read_outputs(model)
    if outputs:
        notes.append(_IDENTITY_NOTE)
        preparation += _ADD_IDENTITIES.format(outputs=[value.name_in_file for value in outputs])
    made_high = [v for v in outputs if v.producer is not None and model.is_high(model.graph.by_node[v.producer])]
    return model.make_result(
        "onnxconverter",
        MEASURED_WITH,
        "onnxconverter_common.float16",
        _find_exceptions(model),
        notes=tuple(notes),
        arguments={"check_fp16_ready": False} if has_float16 else None,
        preparation=preparation,
        added_names=[f"{value.name_in_file}_inner" for value in made_high],
    )


def _find_read_outputs(model: ConverterModel) -> list[Value]:
    """Return the graph outputs that converted nodes of the main graph read, and no node of a body.

    The converter would let these nodes read float32, behind the Cast of the output.
    """
    outputs = {v for v in model.graph.solution.graph.root.outputs if v.type == dtypes.FLOAT and v.producer is not None}
    readers = {value: [reader for reader, _ in model.graph.readers.get(value, ())] for value in outputs}
    in_main_graph = [v for v in outputs if all(reader.node.scope.owner is None for reader in readers[v])]
    read_low = (v for v in in_main_graph if not all(model.is_high(reader) for reader in readers[v]))
    return sorted(read_low, key=lambda value: value.id)


def _find_output_readers(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the converted nodes that read a graph output which nodes of bodies read: they read it behind a Cast."""
    outputs = {v for v in model.graph.solution.graph.root.outputs if v.type == dtypes.FLOAT and v.producer is not None}
    for value in sorted(outputs.difference(_find_read_outputs(model)), key=lambda value: value.id):
        for reader, _ in model.graph.readers.get(value, ()):
            if not model.is_high(reader):
                why = f"reads the graph output {value.name!r}, which is float32: the result is invalid"
                yield ExportException(reader.ref, f"{why}; let an Identity make the graph output", invalid=True)


def _find_exceptions(model: ConverterModel) -> Iterator[ExportException]:
    yield from _find_shared_initializers(model)
    yield from _find_rounded_outputs(model)
    yield from _find_output_readers(model)
    yield from _find_unnamed_nodes(model)
    yield from _find_captures(model)
    yield from _find_input_readers(model)
    yield from _find_float16_readers(model)


def _find_shared_initializers(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the converted nodes that read an initializer which a blocked node of a body reads too.

    The program gives a blocked node of the main graph a copy of such an initializer.
    """
    blocked = [planned for planned in model.visited_and_blocked() if planned.node.scope.owner is not None]
    unconverted = {value for planned in blocked for value in float_initializers(planned)}
    for planned in model.converted_nodes():
        shared = [value for value in float_initializers(planned) if value in unconverted]
        if shared:
            names = ", ".join(repr(value.name) for value in shared)
            why = f"a float32 node reads its initializer {names} too, so that it stays float32: the result is invalid"
            yield ExportException(planned.ref, f"{why}; give each node its own initializer", invalid=True)


def _find_rounded_outputs(model: ConverterModel) -> Iterator[ExportException]:
    for planned in model.visited_and_blocked():
        for value in planned.node.outputs:
            if value is None or value.type != dtypes.FLOAT:
                continue
            readers = model.graph.readers.get(value, [])
            blocked = [reader for reader, _ in readers if model.is_high(reader)]
            # In the main graph, the program that runs the tool connects the two nodes directly.
            if blocked and planned.node.scope.owner is not None:
                names = ", ".join(dict.fromkeys(str(reader.ref) for reader in blocked[:3]))
                yield ExportException(
                    planned.ref, f"the tool rounds its output {value.name!r} to float16 before {names}"
                )


def _find_unnamed_nodes(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the nodes without a name whose Casts the tool would give one name."""
    blocked = [planned for planned in model.visited_and_blocked() if not planned.name]
    if len(blocked) > 1:
        yield from (ExportException(planned.ref, f"has no name; {_NAME_ALL}") for planned in blocked)
    graph_inputs = {v for v in model.graph.solution.graph.root.inputs if v.type == dtypes.FLOAT}
    unnamed = [(v, p) for v in graph_inputs for p, _ in model.graph.readers.get(v, ()) if not p.name]
    counts = Counter(value for value, _ in unnamed)
    for value, planned in unnamed:
        if counts[value] > 1:
            yield ExportException(planned.ref, f"has no name and reads the graph input {value.name!r}; {_NAME_ALL}")


def _find_input_readers(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the nodes that read a graph input for which the tool inserts no Cast."""
    main_readers = {v for planned in model.graph.nodes if planned.node.scope.owner is None for v in planned.node.inputs}
    for planned in model.graph.nodes:
        values = [v for v in planned.node.inputs if v is not None and v.type == dtypes.FLOAT]
        inputs = [v for v in values if v.kind == "input" and v.scope.owner is None and v not in main_readers]
        if inputs and planned.node.scope.owner is not None and not model.is_high(planned):
            why = f"reads the graph input {inputs[0].name!r} in a body, where the tool inserts no Cast"
            yield ExportException(planned.ref, f"{why}: the result is invalid", invalid=True)


def _find_float16_readers(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the blocked nodes that read tensors which the model has in float16, and the Casts before these."""
    for planned in model.visited_and_blocked():
        for value in _float16_inputs(planned):
            why = f"reads {value.name!r}, which the model has in float16: the tool casts it to float32"
            makes_float16 = any(output is not None and output.type == dtypes.FLOAT16 for output in planned.node.outputs)
            invalid = makes_float16 and planned.op_type != "Cast"
            yield ExportException(planned.ref, why + (", and the result is invalid" if invalid else ""), invalid)
            producer = value.producer
            if producer is not None and producer.op_type == "Cast" and len(model.graph.readers[value]) == 1:
                why = f"the tool removes it together with the Cast that it adds before {planned.ref}"
                yield ExportException(model.graph.by_node[producer].ref, why)


def _float16_inputs(planned: PlannedNode) -> list[Value]:
    return [value for value, elem in find_low_inputs(planned.node).items() if elem == dtypes.FLOAT16]


def _find_captures(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the blocked nodes of bodies that read a tensor of an outer graph: the tool inserts no Cast there."""
    for planned in model.visited_and_blocked():
        scope = planned.node.scope
        if scope.owner is None:
            continue
        outer = [v for v in planned.node.inputs if v is not None and v.scope is not scope and v.type == dtypes.FLOAT]
        if outer:
            why = f"reads {outer[0].name!r} of an outer graph, where the tool inserts no Cast: the result is invalid"
            yield ExportException(planned.ref, why, invalid=True)
    for planned in model.graph.nodes:
        if planned.node.bodies and planned.node in model.lists.blocked:
            captured = [v for v in captured_floats(planned.node.bodies.values()) if v.kind == "initializer"]
            if captured:
                why = f"its bodies stay in float32 and read the initializer {captured[0].name!r}"
                why += ", which the tool converts: the result is invalid"
                yield ExportException(planned.ref, why, invalid=True)
