"""Insert or change the Casts that a model lacks, so that it loads.

Rule S4.52: The inputs of a node that must have one type get the widest float of them, so that no value is lost, and a
graph output gets the type that it is declared with. A Cast that makes the tensor, and that nothing else reads, is
changed; elsewhere a Cast is inserted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.build import build_graph, describe_clash, find_clashes, find_output_types
from mixlist.model.load import LoadedModel, TypeCorrection
from mixlist.model.naming import NameGenerator, names_in
from mixlist.model.protos import copy_message, scopes_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto, NodeProto

    from mixlist.model.graph import Graph, Node

_MAX_ROUNDS = 10  # one is enough, unless types around bodies change


def correct_types(loaded: LoadedModel, type_hints: Mapping[str, str] | None = None) -> LoadedModel:
    """Return a model without clashes of types; ``loaded`` itself if it has none. ``corrections`` names the Casts.

    Raises ModelError for a clash that no Cast between floats removes, such as a type that the opset does not admit.
    """
    hints = {name: dtypes.parse_name(text) for name, text in (type_hints or {}).items()}
    for _ in range(_MAX_ROUNDS):
        graph = build_graph(loaded.proto, hints, show_marked_casts=True, allow_clashes=True)
        if not find_clashes(graph):
            return loaded
        proto = copy_message(loaded.proto)
        # The same Graph over the copy, which is edited.
        graph = build_graph(proto, hints, show_marked_casts=True, allow_clashes=True)
        corrections = _correct(graph)
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
            producer = graph.root.outputs[clash].producer
            # No Cast can come between an input and an output that are one tensor.
            if producer is None or not dtypes.FLOATS.issuperset({elem, find_output_types(graph)[clash]}):
                continue
            if not _change_cast(producer, dtypes.element(elem), reads[tensor]):
                _insert_before_output(graph.root.proto, tensor, dtypes.element(elem), names)
            corrections.append(TypeCorrection(tensor, dtypes.type_name(elem), why))
            continue
        assert clash.signature is not None
        types = zip(clash.input_types, clash.signature.inputs, strict=True)
        for slot in [slot for slot, (authored, needed) in enumerate(types) if authored != needed]:
            tensor, elem, value = clash.proto.input[slot], clash.signature.inputs[slot], clash.inputs[slot]
            producer = value.producer if value is not None else None
            if producer is None or not _change_cast(producer, dtypes.element(elem), reads[tensor]):
                clash.proto.input[slot] = names.make_name(f"{tensor}_{dtypes.type_name(elem)}")
                cast = names.make_cast(tensor, clash.proto.input[slot], dtypes.element(elem))
                _insert_before(clash.scope.proto, clash.proto, cast)
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


def _change_cast(producer: Node, elem: int, reads: int) -> bool:
    """Let a Cast whose output is read once make another type; return False if the producer is no such Cast."""
    if producer.op_type != "Cast" or producer.domain or reads != 1:
        return False
    next(attribute for attribute in producer.proto.attribute if attribute.name == "to").i = elem
    return True


def _insert_before(graph: GraphProto, reader: NodeProto, cast: NodeProto) -> None:
    """Insert a node into a graph before another one."""
    # Equal messages are not the same node: nodes may lack names, but not outputs.
    index = next(k for k, node in enumerate(graph.node) if list(node.output) == list(reader.output))
    graph.node.insert(index, cast)


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
