"""Find the slots of a node that can change their type, and the output types that follow.

A *type group* is the set of slots of a node that share one type parameter of the operator's schema. They change
together: for ``Add(T, T) -> T`` the group is both inputs and the output. A group can take a type only if the schema at
the model's opset admits the type **and** ONNX's own type inference accepts the node with it (Rule S4.11). Both are
asked, because some schemas admit more than inference does: MeanVarianceNormalization, and the Mean of
LayerNormalization.

Nodes with the same operator, input types and type attributes share one Signature.

Rule S4.52: Two inputs of one type parameter must have one type. Of floats that differ, the widest one is the type that
a Cast would give them, with which the outputs are inferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mixlist.model import dtypes
from mixlist.model.schema import (
    TYPE_ATTRIBUTES,
    VALUE_TYPED,
    FormalSlot,
    FormalSlots,
    Schema,
    find_schema,
    next_opset_allowing,
)
from mixlist.model.shape_inference import infer_shapes
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto
    from onnx.defs import OpSchema

_READS_ANY_TYPE = operators(Trait.READS_ONLY_SHAPE) | {"Cast"}  # these accept every element type at their input
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
_VALUE_DECIDES_TYPE = TYPE_ATTRIBUTES | {"stash_type"}
# ONNX's inference of these operators ends the process if an input has no type.
CRASHING_WITHOUT_TYPES = frozenset({"EyeLike", "RegexFullMatch", "DictVectorizer"})

Types = tuple[dtypes.Type, ...]
Inference = Callable[[Types], Types | None]  # from input types to output types; None if inference refuses them


class TypeGroup(NamedTuple):
    """The slots that share a type parameter, by index; ``authored`` is the element type that the model gives them."""

    parameter: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    authored: int


class Assignment(NamedTuple):
    """The types of a node's slots, after each type group has got its element type.

    ``inputs``: the type that each input slot requires; None for a slot that accepts every type. ``outputs``: the type
    of each output. ``elements``: the element type of each group. ``refused``: the indices of the groups that could not
    take the requested type.
    """

    inputs: tuple[dtypes.Type | None, ...]
    outputs: Types
    elements: tuple[int, ...]
    refused: tuple[int, ...] = ()


@dataclass(eq=False)
class Signature:
    """The authored types of one kind of node, and the type groups that can change.

    ``has_fixed_output``: whether an attribute fixes the output type, so that the node never follows a list.
    ``reads_any_type``: whether the node accepts every element type and has no group. ``inference``: None if onnx cannot
    infer this node; then the schema alone decides. ``clash``: two input slots that must have one type and do not, or
    one slot whose type the schema does not admit; () for a valid node. Floats among ``inputs`` then have the types that
    a Cast would give them (Rule S4.52).
    """

    schema: Schema | None
    inputs: Types
    outputs: Types
    groups: tuple[TypeGroup, ...]
    has_fixed_output: bool
    reads_any_type: bool
    inference: Inference | None = None
    clash: tuple[int, ...] = ()
    _assignments: dict[tuple[int, ...], Assignment] = field(default_factory=dict)
    # The solver's assignments by (target type, low type, types that the policy may move). All three are needed: one
    # signature serves all policies under which its model is resolved. The bool is True if the operator refused a type.
    solver_cache: dict[tuple[int, int, frozenset[int]], tuple[Assignment, bool]] = field(default_factory=dict)

    def assign(self, requested: tuple[int, ...]) -> Assignment:
        """Return the assignment for ``requested``, which has one element type per group.

        A group that cannot take its requested type keeps the authored one.
        """
        assignment = self._assignments.get(requested)
        if assignment is None:
            assignment = self._assignments[requested] = _assign(self, requested)
        return assignment

    def authored_assignment(self) -> Assignment:
        """Return the assignment that changes nothing."""
        return self.assign(tuple(group.authored for group in self.groups))

    @property
    def primary_group(self) -> TypeGroup | None:
        """Return the group that gives the node its precision: the first with an output, or else the first."""
        return next((group for group in self.groups if group.outputs), self.groups[0] if self.groups else None)


def make_signature(
    domain: str, op_type: str, opset: int, inputs: Types, present_outputs: tuple[bool, ...], proto: NodeProto
) -> Signature:
    """Return the signature of a node.

    ``inputs``: the types of its inputs, UNKNOWN for an input that is left out. ``present_outputs``: for each output,
    whether the node has it. ``proto``: the node.
    """
    schema = find_schema(domain, op_type, opset)
    reads_any_type = domain == "" and op_type in _READS_ANY_TYPE
    if schema is None:  # a custom operator: without a group, nothing of it can change
        return Signature(None, inputs, (dtypes.UNKNOWN,) * len(present_outputs), (), False, False)
    onnx_schema = schema.onnx_schema
    inference = _make_inference(onnx_schema, opset, present_outputs, proto) if onnx_schema is not None else None
    formal_inputs = schema.formal_slots(schema.inputs, len(inputs))
    formal_outputs = schema.formal_slots(schema.outputs, len(present_outputs))
    clash = _find_clash(schema, formal_inputs, inputs)
    if clash:
        inputs = _with_common_types(schema, formal_inputs, inputs, opset)
    # The types that the inputs give to the type parameters, for outputs that inference leaves open.
    type_of_parameter = {
        formal.parameter: value_type
        for formal, value_type in zip(formal_inputs, inputs, strict=False)
        if value_type != dtypes.UNKNOWN
    }
    # The output types come from inference if it succeeds, and else from the schema and the types of the inputs.
    outputs = inference(inputs) if inference else None
    if outputs is None:
        inference, outputs = None, (dtypes.UNKNOWN,) * len(present_outputs)
    outputs = tuple(
        value_type
        if value_type != dtypes.UNKNOWN or not is_present
        else _type_by_schema(schema, formal, type_of_parameter)
        for value_type, formal, is_present in zip(outputs, formal_outputs, present_outputs, strict=False)
    )
    groups = _type_groups(schema, formal_inputs, formal_outputs, inputs, outputs)
    has_fixed_output = (domain == "" and op_type in VALUE_TYPED) or _has_type_attribute(schema, proto)
    # A Shape or a Cast has nothing to change. An EyeLike without ``dtype`` has: its output takes the type of its input.
    if reads_any_type and (has_fixed_output or op_type in _YIELDS_SHAPE):
        groups = ()
    reads_any_type = reads_any_type and not groups
    return Signature(schema, inputs, outputs, groups, has_fixed_output, reads_any_type, inference, clash)


def make_call_signature(call: NodeProto, model: ModelProto, inputs: Types) -> Signature:
    """Return the signature of a call of a model-local function: no group, so nothing of it can change (Rule S4.31).

    ``model``: the model that has the function. ``inputs``: the types of the call's inputs. The types of its outputs are
    those that ONNX infers through the function, UNKNOWN if it infers none.
    """
    single = type(model)(ir_version=10, opset_import=model.opset_import, functions=model.functions)
    single.graph.node.append(call)
    for name, value_type in dict(zip(call.input, inputs, strict=True)).items():
        if name:
            info = single.graph.input.add(name=name)
            if value_type != dtypes.UNKNOWN:
                dtypes.write_type(info.type, value_type)
    for name in filter(None, call.output):
        single.graph.output.add(name=name)
    try:
        inferred = infer_shapes(single).graph.output
    except MemoryError:
        raise
    except Exception:  # ModelError for functions that expand without end, and errors of onnx of many kinds
        inferred = single.graph.output
    types = {output.name: dtypes.from_proto(output.type) for output in inferred}
    return Signature(None, inputs, tuple([types.get(name, dtypes.UNKNOWN) for name in call.output]), (), False, False)


def attribute_type_key(proto: NodeProto) -> tuple[tuple[str, int, int], ...]:
    """Return the part of a node's attributes that decides its types: names, attribute types, values that fix a type.

    Nodes of one operator with equal input types and equal keys have the same Signature.
    """
    key = []
    for attribute in proto.attribute:
        name = attribute.name
        type_value = attribute.i if name in _VALUE_DECIDES_TYPE else attribute.t.data_type if name == "value" else 0
        key.append((name, attribute.type, type_value))
    return tuple(key)


def _find_clash(schema: Schema, formal_inputs: FormalSlots, inputs: Types) -> tuple[int, ...]:
    """Return what ``Signature.clash`` holds, for the first input that does not fit."""
    first_slots: dict[str, int] = {}  # by type parameter
    for slot, (formal, value_type) in enumerate(zip(formal_inputs, inputs, strict=False)):
        if value_type == dtypes.UNKNOWN or dtypes.is_container(value_type) or not formal.homogeneous:
            continue
        first = first_slots.setdefault(formal.parameter, slot)
        if inputs[first] != value_type:
            return (first, slot)
        # The schemas of ONNX Runtime's own operators may be older than the installed ONNX Runtime.
        if schema.onnx_schema is not None and value_type not in schema.types_of(formal.parameter):
            return (slot,)
    return ()


def _with_common_types(schema: Schema, formal_inputs: FormalSlots, inputs: Types, opset: int) -> Types:
    """Return the input types with one type for the floats of each type parameter, which holds all their values.

    Where neither the schema nor a later opset admits this type, it is float32.
    """
    floats: dict[str, set[dtypes.Type]] = {}
    for formal, value_type in zip(formal_inputs, inputs, strict=False):
        if value_type in dtypes.FLOATS and formal.homogeneous:
            floats.setdefault(formal.parameter, set()).add(value_type)
    common = {parameter: widest_float(types) for parameter, types in floats.items()}
    for parameter in common if schema.onnx_schema is not None else ():
        admitted = schema.types_of(parameter)
        if common[parameter] not in admitted and dtypes.FLOAT in admitted:
            elem = dtypes.element(common[parameter])
            if next_opset_allowing(schema.onnx_schema.domain, schema.onnx_schema.name, opset, elem) is None:
                common[parameter] = dtypes.FLOAT
    pairs = zip(formal_inputs, inputs, strict=False)
    return tuple([common[formal.parameter] if t in dtypes.FLOATS and formal.homogeneous else t for formal, t in pairs])


def widest_float(types: set[dtypes.Type]) -> dtypes.Type:
    """Return the float type that holds all values of ``types``, which are floats."""
    if len(types) == 1:
        return next(iter(types))
    return dtypes.DOUBLE if dtypes.DOUBLE in types else dtypes.FLOAT


def _type_by_schema(schema: Schema, formal: FormalSlot, type_of_parameter: dict[str, dtypes.Type]) -> dtypes.Type:
    """Return the type of an output that inference does not give; UNKNOWN if the schema leaves a choice."""
    if formal.parameter in schema.allowed:
        allowed = schema.allowed[formal.parameter]
        return type_of_parameter.get(formal.parameter) or (next(iter(allowed)) if len(allowed) == 1 else dtypes.UNKNOWN)
    return dtypes.parse_schema_type(formal.parameter)


def _has_type_attribute(schema: Schema, proto: NodeProto) -> bool:
    """Return whether an attribute, or the default of an absent one, fixes the output type."""
    # A type number of 0 fixes nothing. The tensor ``value`` of a ConstantOfShape always has a type.
    written = {
        attribute.name: (attribute.i or attribute.type == attribute.TENSOR)
        for attribute in proto.attribute
        if attribute.name in schema.type_attributes
    }
    return any(written.get(name, default) for name, default in schema.type_attributes.items())


def _type_groups(
    schema: Schema, formal_inputs: FormalSlots, formal_outputs: FormalSlots, inputs: Types, outputs: Types
) -> tuple[TypeGroup, ...]:
    """Return the groups of slots with a float type that lists can change; none with sequences or optionals (S4.29)."""
    slots: dict[str, tuple[list[int], list[int]]] = {}  # by type parameter: the inputs and the outputs
    if any(map(dtypes.is_container, inputs + outputs)):
        return ()
    for index, (formal, value_type) in enumerate(zip(formal_inputs, inputs, strict=False)):
        if dtypes.element(value_type) in dtypes.MIXABLE and len(schema.types_of(formal.parameter)) > 1:
            # The repetitions of a heterogeneous slot, such as the states of a Loop, have independent types.
            key = formal.parameter if formal.homogeneous else f"{formal.parameter}#{index}"
            slots.setdefault(key, ([], []))[0].append(index)
    for index, (formal, value_type) in enumerate(zip(formal_outputs, outputs, strict=False)):
        # An output joins the inputs with the same parameter. Heterogeneous inputs have other keys: no output joins.
        if formal.parameter in slots and value_type != dtypes.UNKNOWN:
            slots[formal.parameter][1].append(index)
    groups = []
    for parameter, (input_slots, output_slots) in slots.items():
        elements = {dtypes.element(inputs[i]) for i in input_slots} | {dtypes.element(outputs[o]) for o in output_slots}
        # In an invalid model a group may have two types. Its slots keep their types.
        if len(elements) == 1:
            groups.append(TypeGroup(parameter, tuple(input_slots), tuple(output_slots), elements.pop()))
    return tuple(groups)


def _assign(signature: Signature, requested: tuple[int, ...]) -> Assignment:
    """Compute what ``Signature.assign`` returns."""
    authored = tuple(group.authored for group in signature.groups)
    # First ask the schema, group by group.
    admitted = tuple(
        elem if elem == group.authored or _admits(signature, group, elem) else group.authored
        for group, elem in zip(signature.groups, requested, strict=True)
    )
    # Then ask inference, about all groups at once.
    outputs = _infer_outputs(signature, admitted)
    if outputs is None:
        # Inference refuses the combination: add one group after the other to the authored types.
        candidates, admitted, outputs = admitted, authored, signature.outputs
        for index, elem in enumerate(candidates):
            extended = (*admitted[:index], elem, *admitted[index + 1 :])
            if (inferred := _infer_outputs(signature, extended)) is not None:
                admitted, outputs = extended, inferred
    pairs = zip(admitted, requested, strict=True)
    refused = tuple(index for index, (elem, requested_elem) in enumerate(pairs) if elem != requested_elem)
    inputs, _ = _with_elements(signature, admitted)
    required_inputs = [
        value_type if dtypes.element(value_type) in dtypes.MIXABLE and not signature.reads_any_type else None
        for value_type in inputs
    ]
    return Assignment(tuple(required_inputs), outputs, admitted, refused)


def _admits(signature: Signature, group: TypeGroup, elem: int) -> bool:
    """Return whether the schema admits the element type in all slots of a group."""
    schema = signature.schema
    assert schema is not None
    formal_inputs = schema.formal_slots(schema.inputs, len(signature.inputs))
    formal_outputs = schema.formal_slots(schema.outputs, len(signature.outputs))
    pairs = [(formal_inputs[i], signature.inputs[i]) for i in group.inputs]
    pairs += [(formal_outputs[o], signature.outputs[o]) for o in group.outputs]
    return all(
        dtypes.with_element(value_type, elem) in schema.types_of(formal.parameter) for formal, value_type in pairs
    )


def _with_elements(signature: Signature, elements: tuple[int, ...]) -> tuple[list[dtypes.Type], list[dtypes.Type]]:
    """Return the types of inputs and outputs, with the element type of each group taken from ``elements``."""
    inputs, outputs = list(signature.inputs), list(signature.outputs)
    for group, elem in zip(signature.groups, elements, strict=True):
        for i in group.inputs:
            inputs[i] = dtypes.with_element(inputs[i], elem)
        for o in group.outputs:
            outputs[o] = dtypes.with_element(outputs[o], elem)
    return inputs, outputs


def _infer_outputs(signature: Signature, elements: tuple[int, ...]) -> Types | None:
    """Return the output types for the ``elements`` of the groups; None if inference disagrees with the schema."""
    inputs, expected = _with_elements(signature, elements)
    if signature.inference is None:
        return tuple(expected)
    inferred = signature.inference(tuple(inputs))
    if inferred is None:
        return None
    # Where inference and schema disagree, a value could get a type that the next reader does not expect.
    grouped_outputs = {o for group in signature.groups for o in group.outputs}
    if any(inferred[o] not in (dtypes.UNKNOWN, expected[o]) for o in grouped_outputs):
        return None
    return tuple(
        expected_type if inferred_type == dtypes.UNKNOWN else inferred_type
        for inferred_type, expected_type in zip(inferred, expected, strict=True)
    )


def _make_inference(
    onnx_schema: OpSchema, opset: int, present_outputs: tuple[bool, ...], proto: NodeProto
) -> Inference:
    """Return a function from input types to output types: ONNX's inference of a model with this one node.

    The function returns None if inference refuses the types.
    """
    from onnx import ModelProto

    model = ModelProto(ir_version=10)
    model.opset_import.add(domain=onnx_schema.domain, version=opset)
    if onnx_schema.domain:
        model.opset_import.add(domain="", version=17)
    node = model.graph.node.add()
    node.CopyFrom(proto)
    node.domain = onnx_schema.domain
    node.ClearField("metadata_props")
    # Write the defaults of absent attributes: some operators are inferred through their function body, and inference of
    # a body sees the attributes of the node only.
    written_names = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx_schema.attributes.items():
        if name not in written_names and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
    del node.output[:]
    for i, is_present in enumerate(present_outputs):
        node.output.append(f"o{i}" if is_present else "")
        if is_present:
            model.graph.output.add(name=f"o{i}")

    def infer(inputs: Types) -> Types | None:
        if onnx_schema.name in CRASHING_WITHOUT_TYPES and dtypes.UNKNOWN in inputs:
            return None
        # One model message serves all calls: only its inputs and their types change.
        del node.input[:]
        del model.graph.input[:]
        for i, value_type in enumerate(inputs):
            node.input.append(f"i{i}" if value_type != dtypes.UNKNOWN else "")
            if value_type != dtypes.UNKNOWN:
                dtypes.write_type(model.graph.input.add(name=f"i{i}").type, value_type)
        try:
            inferred_model = infer_shapes(model, strict=True)
        except MemoryError:
            raise
        except Exception:  # onnx raises its own InferenceError or a ValidationError, by operator
            return None
        inferred_types = {output.name: dtypes.from_proto(output.type) for output in inferred_model.graph.output}
        return tuple(inferred_types.get(f"o{i}", dtypes.UNKNOWN) for i in range(len(present_outputs)))

    return infer
