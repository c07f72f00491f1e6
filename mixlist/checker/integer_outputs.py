"""Find the integer outputs that hold quantities, and no ids (Rule S8.34).

A difference of one step between two quantities is an error of rounding, but another id is another answer.
"""

from __future__ import annotations

from mixlist.model import dtypes
from mixlist.model.graph import Graph, Value
from mixlist.model.traits import TRAITS, Trait, operators

_QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# These preserve values, but what they make are signs and places.
_MAKES_IDS = frozenset({"Sign", "Hardmax"})
_READS_FIRST = operators(Trait.SAME_VALUES) | operators(Trait.PICKS) | operators(Trait.FILLS) | {"TopK", "MaxPool"}


def find_quantity_outputs(graph: Graph) -> frozenset[str]:
    """Return the names of the integer outputs that hold quantities."""
    outputs = zip(graph.root.output_names(), graph.root.outputs, strict=True)
    return frozenset(name for name, value in outputs if value.type in dtypes.INTEGERS and _holds_quantities(value))


def _holds_quantities(output: Value) -> bool:
    """Return True if a quantization, or a Cast of computed floats, makes all values that are not constant."""
    pending, seen, has_quantity = [output], {output}, False
    while pending:
        value = pending.pop()
        node = value.producer
        if value.is_constant or value.is_from_shape:
            continue
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
    return op_type in _QUANTIZING or op_type.startswith("QLinear") or op_type.endswith("Integer")


def _keeps_values(op_type: str, output_slot: int) -> bool:
    """Return True for a Cast, and for an output whose elements are elements of the inputs. Only Split has several."""
    traits = TRAITS.get(op_type, Trait(0))
    keeps_values = Trait.VALUE_PRESERVING in traits and op_type not in _MAKES_IDS
    return op_type == "Cast" or (keeps_values and (output_slot == 0 or op_type == "Split"))
