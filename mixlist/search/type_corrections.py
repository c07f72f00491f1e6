"""Insert or change the Casts that a model lacks, so that it loads.

Rule S4.52: The inputs of a node that must have one type get the widest float of them, so that no value is lost, and a
graph output gets the type that it is declared with; so do the values that a control-flow node joins, such as those of
two branches. A Cast that makes the tensor, and that nothing else reads, is changed; elsewhere a Cast is inserted. A
Cast of a constant without elements becomes such a constant if it is the ``scales`` of a Resize, which has none then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.build import (
    build_graph,
    describe_clash,
    describe_declarations,
    find_clashes,
    find_clashing_links,
    find_output_types,
    find_wrong_declarations,
)
from mixlist.model.load import LoadedModel, TypeCorrection
from mixlist.model.naming import NameGenerator, names_in
from mixlist.model.protos import copy_message, scopes_in
from mixlist.model.signature import widest_float

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto

    from mixlist.model.control_flow import LinkSource
    from mixlist.model.graph import Graph, Node, Value

_MAX_ROUNDS = 100  # one is enough, unless types around bodies change: then one for each control-flow node in a row


def correct_types(loaded: LoadedModel, type_hints: Mapping[str, str] | None = None) -> LoadedModel:
    """Return a model without clashes of types; ``loaded`` itself if it needs no correction.

    ``corrections`` of the result names the Casts, and wrong declarations, which a written model does not have.

    Raises ModelError for a clash that no Cast between floats removes, such as a type that the opset does not admit.
    """
    hints = {name: dtypes.parse_name(text) for name, text in (type_hints or {}).items()}
    for _ in range(_MAX_ROUNDS):
        graph = build_graph(loaded.proto, hints, show_marked_casts=True, allow_clashes=True)
        clashes = find_clashes(graph)
        if not clashes and not _find_casts_of_nothing(graph):
            # A model that was corrected before keeps its declarations, and names them once.
            wrong = [found for found in _find_wrong_declarations(graph) if found not in loaded.corrections]
            return loaded._replace(corrections=(*loaded.corrections, *wrong)) if wrong else loaded
        proto = copy_message(loaded.proto)
        # The same Graph over the copy, which is edited.
        graph = build_graph(proto, hints, show_marked_casts=True, allow_clashes=True)
        corrections = _correct(graph) if clashes else _fold_casts_of_nothing(graph)
        if not corrections:
            break
        loaded = loaded._replace(proto=proto, corrections=(*loaded.corrections, *corrections))
    build_graph(loaded.proto, hints)  # raises the error of the clash that is left
    return loaded


def _correct(graph: Graph) -> list[TypeCorrection]:
    """Correct in place the clashes that a Cast between floats removes, and return what was done."""
    names = NameGenerator(names_in(graph.model.graph))
    reads = _count_reads(graph.root.proto)
    corrections = []
    for clash in find_clashes(graph):
        why = describe_clash(graph, clash)
        if isinstance(clash, int):
            tensor, elem = graph.root.output_names()[clash], graph.root.declared_output_types[clash]
            value = graph.root.outputs[clash]
            # No Cast can come between an input and an output that are one tensor.
            if value.producer is None or not dtypes.FLOATS.issuperset({elem, find_output_types(graph)[clash]}):
                continue
            if not _change_cast(value, dtypes.element(elem), reads[tensor]):
                _insert_before_output(graph.root.proto, tensor, dtypes.element(elem), names)
            corrections.append(TypeCorrection(tensor, dtypes.type_name(elem), why))
            continue
        if clash.signature is None:
            for sources in find_clashing_links(clash):
                corrections += _widen_sources(sources, names, reads, why)
            continue
        types = zip(clash.input_types, clash.signature.inputs, strict=True)
        for slot in [slot for slot, (authored, needed) in enumerate(types) if authored != needed]:
            tensor, elem = clash.proto.input[slot], clash.signature.inputs[slot]
            if not _change_cast(clash.inputs[slot], dtypes.element(elem), reads[tensor]):
                _insert_before_input(clash, slot, dtypes.element(elem), names)
            corrections.append(TypeCorrection(tensor, dtypes.type_name(elem), why))
    return corrections


def _widen_sources(
    sources: list[LinkSource], names: NameGenerator, reads: Mapping[str, int], why: str
) -> list[TypeCorrection]:
    """Give the values that a control-flow node joins the widest type of them, and return what was done."""
    elem = dtypes.element(widest_float({source.type for source in sources}))
    corrections = []
    for source in [source for source in sources if source.type != elem]:
        tensor = source.name
        if not _change_cast(source.value, elem, reads[tensor]):
            if source.body is None:
                _insert_before_input(source.node, source.slot, elem, names)
            else:
                output = source.body.proto.output[source.slot]
                output.name = names.make_name(f"{tensor}_{dtypes.type_name(elem)}")
                source.body.proto.node.append(names.make_cast(tensor, output.name, elem))
        corrections.append(TypeCorrection(tensor, dtypes.type_name(elem), why))
    return corrections


def _find_wrong_declarations(graph: Graph) -> list[TypeCorrection]:
    """Return one correction for all declarations of inner tensors that contradict the types of these; [] if none do."""
    wrong = find_wrong_declarations(graph)
    if not wrong:
        return []
    value = wrong[0][0]
    return [TypeCorrection(value.name, dtypes.type_name(value.type), describe_declarations(wrong), "declaration")]


def _find_casts_of_nothing(graph: Graph) -> list[Node]:
    """Return the Casts of a constant without elements that make the ``scales`` of a Resize with ``sizes``.

    From opset 13 on, ONNX takes ``scales`` that it cannot read for given, and refuses to have both.
    """
    if graph.opsets.get("", 0) < 13:
        return []
    casts = []
    for node in graph.nodes:
        if node.op_type == "Resize" and node.is_plain and len(node.inputs) == 4 and None not in node.inputs[2:]:
            scales = node.inputs[2]
            cast = scales.producer if scales is not None else None
            source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" and cast.is_plain else None
            # A Constant of one attribute ``value_floats`` has no dims.
            if cast is not None and source is not None and 0 in getattr(source.constant_proto, "dims", ()):
                casts.append(cast)
    return list(dict.fromkeys(casts))


def _fold_casts_of_nothing(graph: Graph) -> list[TypeCorrection]:
    """Replace in place the Casts by constants without elements, and return what was done."""
    names = NameGenerator(names_in(graph.model.graph))
    corrections = []
    for cast in _find_casts_of_nothing(graph):
        tensor = cast.proto.output[0]
        elem = next(int(attribute.i) for attribute in cast.proto.attribute if attribute.name == "to")
        cast.proto.CopyFrom(names.make_constant(tensor, elem, [0], []))
        why = "a Cast makes the scales of a Resize, which have no elements, because the Resize has sizes"
        corrections.append(TypeCorrection(tensor, dtypes.type_name(elem), why))
    return corrections


def _count_reads(graph: GraphProto) -> dict[str, int]:
    """Return how often nodes, and outputs of the graph and its bodies, read each tensor, by name."""
    counts: dict[str, int] = {}
    for scope in scopes_in(graph):
        read = [name for node in scope.node for name in node.input] + [output.name for output in scope.output]
        for name in read:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _change_cast(value: Value | None, elem: int, reads: int) -> bool:
    """Let a Cast whose output is read once make another type; return False if no such Cast makes the value."""
    producer = value.producer if value is not None else None
    if producer is None or producer.op_type != "Cast" or producer.domain or reads != 1:
        return False
    next(attribute for attribute in producer.proto.attribute if attribute.name == "to").i = elem
    return True


def _insert_before_input(reader: Node, slot: int, elem: int, names: NameGenerator) -> None:
    """Insert a Cast between an input slot of a node and the tensor that it reads."""
    nodes, tensor = reader.scope.proto.node, reader.proto.input[slot]
    reader.proto.input[slot] = names.make_name(f"{tensor}_{dtypes.type_name(elem)}")
    # Equal messages are not the same node: nodes may lack names, but not outputs.
    index = next(k for k, node in enumerate(nodes) if list(node.output) == list(reader.proto.output))
    nodes.insert(index, names.make_cast(tensor, reader.proto.input[slot], elem))


def _insert_before_output(root: GraphProto, output: str, elem: int, names: NameGenerator) -> None:
    """Insert a Cast between the producer of a graph output and the output. Other readers keep the authored tensor."""
    authored = names.make_name(f"{output}_authored")
    for scope in scopes_in(root):
        for node in scope.node:
            for slots in (node.input, node.output):
                for slot, name in enumerate(slots):
                    if name == output:
                        slots[slot] = authored
        if scope is not root:
            for body_output in scope.output:
                if body_output.name == output:
                    body_output.name = authored
    root.node.append(names.make_cast(authored, output, elem))
