"""Read the types that another tool gave the nodes of a model (Rule S11.2).

The types of a node are those of its type groups: slots that share a type parameter of the operator's schema. They come
from ONNX's inference of the mixed model, whatever its declarations say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mixlist.exchange.model_matching import ModelMatch
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value, has_container
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators

_NO_ARITHMETIC = operators(Trait.NO_ARITHMETIC)


class UnreadableTypesError(Exception):
    """No lists and rules can give a node the types that the mixed model has. The text says why.

    ``refused``: the type that the operator has in the mixed model, and not at the opset of the original; None if that
    is not the cause.
    """

    def __init__(self, why: str, refused: int | None = None) -> None:
        super().__init__(why)
        self.refused = refused


@dataclass(eq=False)
class MixedTypes:
    """The types that the nodes of the original have in the mixed model.

    ``assignments``: the types of the paired nodes that compute with floats, in order of computation. ``problems``: the
    nodes that lists and node rules cannot give their types, each with its partner and the reason. ``refused``: for
    those of ``problems`` whose operator lacks a type at the opset of the original, this type.
    """

    assignments: dict[Node, Assignment] = field(default_factory=dict)
    problems: dict[Node, tuple[Node, str]] = field(default_factory=dict)
    refused: dict[Node, int] = field(default_factory=dict)


def read_mixed_types(match: ModelMatch) -> MixedTypes:
    """Return the types of all paired nodes that compute with floats."""
    types = MixedTypes()
    for node in match.original.nodes:
        partner = match.partners.get(node)
        if partner is None:
            continue
        try:
            target = _read_assignment(node, partner, match)
        except UnreadableTypesError as error:
            types.problems[node] = partner, str(error)
            if error.refused is not None:
                types.refused[node] = error.refused
            continue
        if target is not None:
            types.assignments[node] = target
    return types


def _read_assignment(node: Node, partner: Node, match: ModelMatch) -> Assignment | None:
    """Return the types that a node of the original has in the mixed model; None for a node without types to vary.

    Raises UnreadableTypesError if the node cannot have them.
    """
    signature = node.signature
    if signature is None or node.bodies or _only_makes_values(node):
        return None
    if signature.has_fixed_output or not signature.groups:
        _check_fixed_types(node, partner, match)
        return None
    elements = tuple(_read_groups(node, partner))
    assignment = signature.assign(elements)
    if assignment.refused:
        raise _refused_type(node, elements[assignment.refused[0]], match)
    return assignment


def _refused_type(node: Node, elem: int, match: ModelMatch) -> UnreadableTypesError:
    """Return the error for an operator that does not have a type of the mixed model at the opset of the original."""
    before, after = (graph.opsets.get(node.domain) for graph in (match.original, match.mixed))
    higher = f"; the mixed model has opset {after}" if after != before else ""
    why = f"{node.op_type} cannot be {dtypes.type_name(elem)} at opset {before} of the original{higher}"
    return UnreadableTypesError(why, elem)


def _only_makes_values(node: Node) -> bool:
    """Return whether a node only converts or fills in values: a Cast, Constant or ConstantOfShape.

    Its readers decide the type in which the value is used.
    """
    signature = node.signature
    return signature is not None and signature.has_fixed_output and not node.domain and node.op_type in _NO_ARITHMETIC


def computes_float(node: Node) -> bool:
    """Return whether a node computes with a float type that lists or node rules can change.

    Casts and Constants do not compute, and control flow has no precision of its own.
    """
    signature = node.signature
    return signature is not None and bool(signature.groups) and not signature.has_fixed_output and not node.bodies


def find_low_type(types: MixedTypes) -> int:
    """Return the low type to which most nodes were changed; float16 if none was."""
    counts = Counter(
        elem
        for node, assignment in types.assignments.items()
        if node.signature is not None
        for group, elem in zip(node.signature.groups, assignment.elements, strict=True)
        if elem != group.authored
    )
    counts.update(types.refused.values())
    return max(dtypes.FLOAT16, dtypes.BFLOAT16, key=lambda elem: counts[elem])  # of equal counts the first one


def _read_groups(node: Node, partner: Node) -> Iterator[int]:
    """Yield the element type of each type group of ``node`` in the mixed model."""
    assert node.signature is not None
    for group in node.signature.groups:
        # If a converter of opsets replaced the operator, only the precision of the new operator is known.
        if node.op_type != partner.op_type:
            primary = partner.signature.primary_group if partner.signature is not None else None
            yield primary.authored if primary is not None else group.authored
            continue
        slot_types = {
            *_slot_elements(partner.inputs, partner.input_types, group.inputs),
            *_slot_elements(partner.outputs, [v.type if v is not None else 0 for v in partner.outputs], group.outputs),
        }
        elements = slot_types & dtypes.MIXABLE
        if len(elements) > 1:
            both = " and ".join(sorted(map(dtypes.type_name, elements)))
            raise UnreadableTypesError(f"it computes with {both} on type parameter {group.parameter}")
        if slot_types - dtypes.MIXABLE or not elements:
            raise UnreadableTypesError(f"its type on parameter {group.parameter} is not known in the mixed model")
        yield elements.pop()


def _slot_elements(values: Sequence[Value | None], types: Sequence[dtypes.Type], slots: Sequence[int]) -> Iterator[int]:
    """Yield the element types of those of ``slots`` that have a value."""
    for slot in slots:
        if slot < len(values) and values[slot] is not None:
            yield dtypes.element(types[slot])


def _check_fixed_types(node: Node, partner: Node, match: ModelMatch) -> None:
    """Raise UnreadableTypesError if a node whose types no list changes has other float types in the mixed model."""
    signature = node.signature
    assert signature is not None
    if signature.reads_any_type and not signature.has_fixed_output:
        return  # Shape, IsNaN: their input has any type, and their output no float type
    pairs = list(zip(node.outputs, partner.outputs, strict=False))
    if not signature.has_fixed_output:
        pairs += zip(node.inputs, partner.inputs, strict=False)
    for value, mixed_value in pairs:
        before, after = (dtypes.element(v.type) if v is not None else dtypes.UNKNOWN for v in (value, mixed_value))
        if before != after and before in dtypes.MIXABLE and after in dtypes.MIXABLE:
            if signature.has_fixed_output:
                cause = f"an attribute fixes the output type of {node.op_type} (Rule S4.13)"
            elif node.is_call:
                cause = f"{node.op_type} is a model-local function, so its call keeps its types (Rule S4.31)"
            elif signature.schema is None:
                cause = f"no schema of {node.op_type} is known, so it keeps its types (Rule S4.14)"
            elif has_container(node):
                cause = f"{node.op_type} reads or makes a sequence or optional, so it keeps its types (Rule S4.29)"
            else:
                raise _refused_type(node, after, match)
            raise UnreadableTypesError(cause)
