"""Find the outputs that hold ids, and the integer outputs that hold quantities (Rule S8.34).

A difference of one step between two quantities is an error of rounding, but another id is another answer. Ids often
pass through floats, and a detector joins them with boxes and scores in one float output.

An integer output holds quantities if all its values come from QuantizeLinear, DynamicQuantizeLinear, an operator whose
name starts with ``QLinear`` or ends with ``Integer``, or a Cast of floats that the model computes. The values may pass
through operators that only move or choose values or change their signs, as Reshape, Split, Gather, Clip, Round and Neg,
and through more Casts; constants among them do not count. All other integers are ids: those of ArgMax, TopK and
NonZero, of Sign and Hardmax, of other arithmetic on integers, of bodies of control flow, and Casts of any of these, of
bools or of an input of the model.

The ids of ArgMax, ArgMin, TopK, NonZero and NonMaxSuppression stay ids as floats, too, where they are moved, resized to
the nearest element, rounded, added to constants, or multiplied by a Cast of bools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, once_per_graph
from mixlist.model.inferred_shapes import infer_dimensions
from mixlist.model.traits import TRAITS, Trait, operators

QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# These preserve values, but what they make are signs and places.
_MAKES_IDS = frozenset({"Sign", "Hardmax"})
_READS_FIRST = operators(Trait.SAME_VALUES) | operators(Trait.PICKS) | operators(Trait.FILLS) | {"TopK", "MaxPool"}
# The output slot of the ids that an operator chooses.
_ID_SLOTS = {"ArgMax": 0, "ArgMin": 0, "NonMaxSuppression": 0, "NonZero": 0, "TopK": 1}
_RESIZES = frozenset({"Resize", "Upsample"})  # of ids, if they take the nearest element
# These keep the columns of their first input where the last axis keeps its size.
_KEEPS_COLUMNS = frozenset({"Cast", "Identity", "Gather", "GatherND", "Reshape", "Slice", "Squeeze", "Unsqueeze"})

# The columns of an output that hold ids: indices of its last axis; () if the whole output holds ids.
IdColumns: TypeAlias = tuple[int, ...]


@once_per_graph
def find_id_outputs(graph: Graph) -> dict[str, IdColumns]:
    """Return the float outputs that hold ids, by name, each with its columns of ids."""
    ids = _find_ids(graph)
    found: dict[str, IdColumns] = {}
    dimensions: dict[Value, tuple[str, ...]] | None = None
    for name, output in zip(graph.root.output_names(), graph.root.outputs, strict=True):
        if dtypes.element(output.type) not in dtypes.FLOATS:
            continue
        if output in ids:
            found[name] = ()
        elif _finds_join(output, ids):
            dimensions = dimensions or infer_dimensions(graph)
            columns = _id_columns(output, ids, dimensions)
            if columns:
                found[name] = columns
    return found


def find_quantity_outputs(graph: Graph) -> frozenset[str]:
    """Return the names of the integer outputs that hold quantities."""
    ids = _find_ids(graph)
    outputs = zip(graph.root.output_names(), graph.root.outputs, strict=True)
    return frozenset(name for name, v in outputs if v.type in dtypes.INTEGERS and _holds_quantities(v, ids))


@once_per_graph
def _find_ids(graph: Graph) -> frozenset[Value]:
    """Return the values of the main graph that hold ids: chosen places, and what only moves, masks or shifts these."""
    ids: set[Value] = set()
    for node in graph.root.nodes:
        for slot, value in enumerate(node.outputs if node.is_plain else ()):
            if value is not None and (_ID_SLOTS.get(node.op_type) == slot or _carries_ids(node, slot, ids)):
                ids.add(value)
    return frozenset(ids)


def _carries_ids(node: Node, slot: int, ids: set[Value]) -> bool:
    """Return True if an output of a node holds ids that the node reads."""
    inputs = [value for value in node.inputs if value is not None]
    if ids.isdisjoint(inputs) or node.op_type in _MAKES_IDS:
        return False
    if node.op_type in _RESIZES:
        # Both operators take the nearest element unless the attribute says otherwise.
        mode = next((attribute.s for attribute in node.proto.attribute if attribute.name == "mode"), b"nearest")
        return inputs[0] in ids and mode == b"nearest"
    if node.op_type in ("Add", "Sub"):
        return all(value in ids or value.is_constant or value.is_from_shape for value in inputs)
    if node.op_type == "Mul":
        return all(value in ids or _is_mask(value) for value in inputs)
    if not _keeps_values(node.op_type, slot):
        return False
    output = node.outputs[slot]
    is_single = node.op_type in _READS_FIRST or node.op_type == "Cast"
    sources = inputs[:1] if is_single else [v for v in inputs if output is not None and v.type == output.type]
    return any(value in ids for value in sources) and all(value in ids or value.is_constant for value in sources)


def _is_mask(value: Value) -> bool:
    """Return True if a value is the Cast of bools, perhaps moved."""
    while value.producer is not None and value.producer.is_plain:
        node = value.producer
        source = node.inputs[0] if node.inputs else None
        if source is None:
            return False
        if node.op_type == "Cast" and source.type == dtypes.BOOL:
            return True
        if node.op_type not in _READS_FIRST and node.op_type not in ("Cast", "Expand", "Tile"):
            return False
        value = source
    return False


def _joined_source(value: Value) -> Value | None:
    """Return the value whose columns a node of ``_KEEPS_COLUMNS`` may keep; None for other values."""
    node = value.producer
    if node is None or not node.is_plain or node.op_type not in _KEEPS_COLUMNS:
        return None
    return node.inputs[0]


def _finds_join(value: Value, ids: frozenset[Value]) -> bool:
    """Return True if a value may come from a Concat with ids."""
    source: Value | None = value
    while source is not None:
        node = source.producer
        if node is not None and node.is_plain and node.op_type == "Concat":
            return not ids.isdisjoint(node.inputs)
        source = _joined_source(source)
    return False


def _id_columns(value: Value, ids: frozenset[Value], dimensions: Mapping[Value, Sequence[str]]) -> IdColumns:
    """Return the columns of ids of a value that a Concat along the last axis joined; () if they are not known."""
    width = dimensions.get(value, ("?",))[-1:]
    while (source := _joined_source(value)) is not None:
        if dimensions.get(source, ("?",))[-1:] != width:
            return ()
        value = source
    node = value.producer
    assert node is not None  # the Concat
    parts = [part for part in node.inputs if part is not None]
    axis = next((attribute.i for attribute in node.proto.attribute if attribute.name == "axis"), 1)
    sizes = [size for part in parts for size in dimensions.get(part, ("?",))[-1:]]
    if axis not in (-1, len(dimensions.get(value, ())) - 1) or not all(size.isdecimal() for size in sizes):
        return ()
    ends = list(accumulate(map(int, sizes)))
    return tuple(
        column
        for part, start, end in zip(parts, [0, *ends], ends, strict=False)
        if part in ids
        for column in range(start, end)
    )


def _holds_quantities(output: Value, ids: frozenset[Value]) -> bool:
    """Return True if a quantization, or a Cast of computed floats, makes all values that are not constant."""
    pending, seen, has_quantity = [output], {output}, False
    while pending:
        value = pending.pop()
        node = value.producer
        if value.is_constant or value.is_from_shape:
            continue
        if value in ids:
            return False
        if node is not None and _makes_quantities(node.op_type):
            has_quantity = True
        elif node is not None and node.is_plain and _keeps_values(node.op_type, value.output_slot):
            sources = [node.inputs[0]] if node.op_type in _READS_FIRST or node.op_type == "Cast" else node.inputs
            for source in sources:
                is_data = source is not None and (node.op_type == "Cast" or source.type == value.type)
                if source is not None and is_data and source not in seen:
                    seen.add(source)
                    pending.append(source)
        elif node is not None and dtypes.element(value.type) in dtypes.FLOATS and node.op_type not in _MAKES_IDS:
            has_quantity = True  # a Cast after this computed value made the integers
        else:
            return False
    return has_quantity


def _makes_quantities(op_type: str) -> bool:
    return op_type in QUANTIZING or op_type.startswith("QLinear") or op_type.endswith("Integer")


def _keeps_values(op_type: str, output_slot: int) -> bool:
    """Return True for a Cast, and for an output whose elements are elements of the inputs. Only Split has several."""
    traits = TRAITS.get(op_type, Trait(0))
    keeps_values = Trait.VALUE_PRESERVING in traits and op_type not in _MAKES_IDS
    return op_type == "Cast" or (keeps_values and (output_slot == 0 or op_type == "Split"))
