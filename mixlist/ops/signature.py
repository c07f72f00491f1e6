"""Find the slots of a node that can change their type, and the types that the node then yields.

A *group* is the slots of a node that share one type parameter of the operator's schema: they go
together. A group can take a type only if the schema at the model's opset admits it **and** ONNX's
own type inference of the node with those types agrees, because schemas are looser than inference
(MeanVarianceNormalization; LayerNormalization's Mean): Rule S4.11.

Signatures are shared: nodes of equal operator, input types and type-fixing attributes have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.ops import types
from mixlist.ops.schema import TYPE_ATTRIBUTES, VALUE_TYPED, FormalSlot, FormalSlots, Schema, find_schema
from mixlist.ops.shape_inference import infer_shapes
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnx.defs import OpSchema

_READS_ANY = operators(Trait.READS_ONLY_SHAPE) | {"Cast"}  # any element type of the input will do
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
_TYPED_BY_VALUE = TYPE_ATTRIBUTES | {"stash_type"}
# ONNX's inference of these reads the type of an input that has none, and ends the process.
_CRASHING_WITHOUT_TYPES = frozenset({"EyeLike", "RegexFullMatch", "DictVectorizer"})

Types = tuple[types.Type, ...]
Inference = Callable[[Types], Types | None]  # from input types to output types; None if inference refuses them


@dataclass(frozen=True)
class TypeGroup:
    """Slots that share a type parameter; ``authored`` is the element type that the model gives them."""

    parameter: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    authored: int


@dataclass(frozen=True)
class Assignment:
    """A node's types once each group has its element type.

    ``inputs``: the type that each input slot wants, None where the node takes what comes.
    ``outputs``: the type of each output. ``elements``: per group. ``refused``: the groups that could
    not take the wished type.
    """

    inputs: tuple[types.Type | None, ...]
    outputs: Types
    elements: tuple[int, ...]
    refused: tuple[int, ...] = ()


@dataclass(eq=False)
class Signature:
    """The types of one kind of node, as authored, and what it can change to."""

    schema: Schema | None
    inputs: Types
    outputs: Types
    groups: tuple[TypeGroup, ...]
    has_fixed_output: bool  # an attribute fixes the output type: the node never follows a list
    reads_any_type: bool
    inference: Inference | None = None
    _assigned: dict[tuple[int, ...], Assignment] = field(default_factory=dict)
    # The solver's assignments by (target type, low type, types that the policy may move). All three are needed: one
    # signature serves all policies under which its model is resolved. The bool tells whether the operator refused.
    solver_cache: dict[tuple[int, int, frozenset[int]], tuple[Assignment, bool]] = field(default_factory=dict)

    def assign(self, wish: tuple[int, ...]) -> Assignment:
        """The assignment nearest to ``wish``, one element type per group."""
        found = self._assigned.get(wish)
        if found is None:
            found = self._assigned[wish] = _assign(self, wish)
        return found

    def authored(self) -> Assignment:
        """The assignment that changes nothing."""
        return self.assign(tuple(g.authored for g in self.groups))

    @property
    def primary(self) -> TypeGroup | None:
        """The group that gives the node its precision: the first with an output, else the first."""
        return next((g for g in self.groups if g.outputs), self.groups[0] if self.groups else None)


def make_signature(
    domain: str, op_type: str, opset: int, inputs: Types, present: tuple[bool, ...], proto: NodeProto
) -> Signature:
    """The signature of a node with these input types (UNKNOWN for a hole) and present outputs.

    ``proto`` is the NodeProto with references to function attributes already replaced.
    """
    schema = find_schema(domain, op_type, opset)
    reads_any = domain == "" and op_type in _READS_ANY
    if schema is None:
        return Signature(None, inputs, (types.UNKNOWN,) * len(present), (), False, False)
    native = schema.onnx_schema
    inference = _inference(native, opset, present, proto) if native is not None else None
    formal_in = schema.formal_slots(schema.inputs, len(inputs))
    formal_out = schema.formal_slots(schema.outputs, len(present))
    bound = {f.parameter: t for f, t in zip(formal_in, inputs, strict=False) if t != types.UNKNOWN}
    outputs = inference(inputs) if inference else None
    if outputs is None:
        inference, outputs = None, (types.UNKNOWN,) * len(present)
    outputs = tuple(
        t if t != types.UNKNOWN or not here else _by_schema(schema, f, bound)
        for t, f, here in zip(outputs, formal_out, present, strict=False)
    )
    groups = _groups(schema, formal_in, formal_out, inputs, outputs)
    fixed = (domain == "" and op_type in VALUE_TYPED) or _is_fixed(schema, proto)
    if reads_any and (fixed or op_type in _YIELDS_SHAPE):
        groups = ()
    return Signature(schema, inputs, outputs, groups, fixed, reads_any and not groups, inference)


def attribute_type_key(proto: NodeProto) -> tuple[tuple[str, int, int], ...]:
    """Return what of a node's attributes decides its types: names, kinds, and the values that fix a type."""
    key = []
    for attribute in proto.attribute:
        name = attribute.name
        fixed = attribute.i if name in _TYPED_BY_VALUE else attribute.t.data_type if name == "value" else 0
        key.append((name, attribute.type, fixed))
    return tuple(key)


def _by_schema(schema: Schema, formal: FormalSlot, bound: dict[str, types.Type]) -> types.Type:
    if formal.parameter in schema.allowed:
        only = schema.allowed[formal.parameter]
        return bound.get(formal.parameter) or (next(iter(only)) if len(only) == 1 else types.UNKNOWN)
    return types.parse(formal.parameter)


def _is_fixed(schema: Schema, proto: NodeProto) -> bool:
    given = {a.name: (a.i or a.type == a.TENSOR) for a in proto.attribute if a.name in schema.type_attributes}
    return any(given.get(name, default) for name, default in schema.type_attributes.items())


def _groups(
    schema: Schema, formal_in: FormalSlots, formal_out: FormalSlots, inputs: Types, outputs: Types
) -> tuple[TypeGroup, ...]:
    slots: dict[str, tuple[list[int], list[int]]] = {}
    contained = any(isinstance(t, tuple) for t in inputs + outputs)
    for index, (formal, value_type) in enumerate(zip(formal_in, inputs, strict=False)):
        if types.element(value_type) in types.MIXABLE and len(schema.types_of(formal.parameter)) > 1:
            key = formal.parameter if formal.homogeneous else f"{formal.parameter}#{index}"
            slots.setdefault("*" if contained else key, ([], []))[0].append(index)
    for index, (formal, value_type) in enumerate(zip(formal_out, outputs, strict=False)):
        key = "*" if contained and types.element(value_type) in types.MIXABLE else formal.parameter
        if key in slots and value_type != types.UNKNOWN:
            slots[key][1].append(index)
    groups = []
    for parameter, (ins, outs) in slots.items():
        elements = {types.element(inputs[i]) for i in ins} | {types.element(outputs[o]) for o in outs}
        if len(elements) == 1:  # a model whose types disagree is not ours to mend
            groups.append(TypeGroup(parameter, tuple(ins), tuple(outs), elements.pop()))
    return tuple(groups)


def _assign(signature: Signature, wish: tuple[int, ...]) -> Assignment:
    authored = tuple(g.authored for g in signature.groups)
    admitted = tuple(
        w if w == g.authored or _admits(signature, g, w) else g.authored
        for g, w in zip(signature.groups, wish, strict=True)
    )
    outputs = _outputs(signature, admitted)
    if outputs is None:  # some combination that inference refuses: take the groups one by one
        wished, admitted, outputs = admitted, authored, signature.outputs
        for index, elem in enumerate(wished):
            trial = (*admitted[:index], elem, *admitted[index + 1 :])
            if (inferred := _outputs(signature, trial)) is not None:
                admitted, outputs = trial, inferred
    refused = tuple(i for i, (a, w) in enumerate(zip(admitted, wish, strict=True)) if a != w)
    inputs, _ = _retyped(signature, admitted)
    wanted = [t if types.element(t) in types.MIXABLE and not signature.reads_any_type else None for t in inputs]
    return Assignment(tuple(wanted), outputs, admitted, refused)


def _admits(signature: Signature, group: TypeGroup, elem: int) -> bool:
    schema = signature.schema
    assert schema is not None
    formal_in = schema.formal_slots(schema.inputs, len(signature.inputs))
    formal_out = schema.formal_slots(schema.outputs, len(signature.outputs))
    pairs = [(formal_in[i], signature.inputs[i]) for i in group.inputs]
    pairs += [(formal_out[o], signature.outputs[o]) for o in group.outputs]
    return all(types.with_element(t, elem) in schema.types_of(f.parameter) for f, t in pairs)


def _retyped(signature: Signature, elements: tuple[int, ...]) -> tuple[list[types.Type], list[types.Type]]:
    """Return the types of inputs and outputs once each group has its element type of ``elements``."""
    inputs, outputs = list(signature.inputs), list(signature.outputs)
    for group, elem in zip(signature.groups, elements, strict=True):
        for i in group.inputs:
            inputs[i] = types.with_element(inputs[i], elem)
        for o in group.outputs:
            outputs[o] = types.with_element(outputs[o], elem)
    return inputs, outputs


def _outputs(signature: Signature, elements: tuple[int, ...]) -> Types | None:
    """Return the output types under ``elements``; None if inference disagrees with the schema."""
    inputs, expected = _retyped(signature, elements)
    if signature.inference is None:
        return tuple(expected)
    inferred = signature.inference(tuple(inputs))
    if inferred is None:
        return None
    grouped = {o for g in signature.groups for o in g.outputs}
    if any(inferred[o] not in (types.UNKNOWN, expected[o]) for o in grouped):
        return None
    return tuple(e if i == types.UNKNOWN else i for i, e in zip(inferred, expected, strict=True))


def _inference(native: OpSchema, opset: int, present: tuple[bool, ...], proto: NodeProto) -> Inference:
    """A function from input types to output types by ONNX's inference of a model of this one node.

    It returns None where inference refuses the types. Defaults are written out, since inference of a
    function body sees only the attributes that are given.
    """
    from onnx import ModelProto

    model = ModelProto(ir_version=10)
    model.opset_import.add(domain=native.domain, version=opset)
    if native.domain:
        model.opset_import.add(domain="", version=17)
    node = model.graph.node.add()
    node.CopyFrom(proto)
    node.domain = native.domain
    node.ClearField("metadata_props")
    given = {a.name for a in node.attribute}
    for name, attribute in native.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
    del node.output[:]
    for i, here in enumerate(present):
        node.output.append(f"o{i}" if here else "")
        if here:
            model.graph.output.add(name=f"o{i}")

    def infer(inputs: Types) -> Types | None:
        if native.name in _CRASHING_WITHOUT_TYPES and types.UNKNOWN in inputs:
            return None
        del node.input[:]
        del model.graph.input[:]
        for i, value_type in enumerate(inputs):
            node.input.append(f"i{i}" if value_type != types.UNKNOWN else "")
            if value_type != types.UNKNOWN:
                types.set_proto(model.graph.input.add(name=f"i{i}").type, value_type)
        try:
            done = infer_shapes(model, strict=True)
        except MemoryError:
            raise
        except Exception:  # onnx raises its own InferenceError or a ValidationError, by operator
            return None
        found = {o.name: types.from_proto(o.type) for o in done.graph.output}
        return tuple(found.get(f"o{i}", types.UNKNOWN) for i in range(len(present)))

    return infer
