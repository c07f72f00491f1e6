"""Look up the types that an operator's schema allows in its slots.

The schemas of the standard domains come from ``onnx.defs`` at the model's opset, never from a hand-written table. Those
of ``com.microsoft`` are ONNX Runtime's own, kept as data: tools/make_contrib_schemas.py writes the file.

Rule S4.39: ONNX Runtime writes some operators into the standard domain, such as ``SimplifiedLayerNormalization``. If
ONNX has no schema of such an operator at the model's opset, the operator takes the schema that ONNX Runtime has for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mixlist.model import dtypes

if TYPE_CHECKING:
    from onnx.defs import OpSchema

TYPE_ATTRIBUTES = frozenset({"dtype", "to", "output_dtype", "output_datatype"})  # their value is the output type
VALUE_TYPED = frozenset({"Constant", "ConstantOfShape"})  # their attribute ``value`` has the output type


class FormalSlot(NamedTuple):
    """A formal input or output of a schema.

    ``parameter``: the name of its type parameter (``T``), or one concrete type (``tensor(int64)``). ``variadic``:
    whether it repeats. ``homogeneous``: whether all repetitions have the same type.
    """

    parameter: str
    variadic: bool
    homogeneous: bool


FormalSlots = tuple[FormalSlot, ...]


class Schema(NamedTuple):
    """The part of an operator schema that decides types.

    ``allowed``: the types that each type parameter admits. ``type_attributes``: the attributes that fix the output
    type, with their default, or 0 without a default. ``onnx_schema``: ONNX's own OpSchema, with which onnx can infer
    types; None for the schemas of ONNX Runtime.
    """

    since_version: int
    inputs: FormalSlots
    outputs: FormalSlots
    allowed: dict[str, frozenset[dtypes.Type]]
    type_attributes: dict[str, int]
    # An OpSchema or None. onnx's type stubs lack attributes of OpSchema that other files read, so the type is Any.
    onnx_schema: Any = None

    def formal_slots(self, slots: FormalSlots, count: int) -> FormalSlots:
        """Return the formal slot of each of ``count`` actual ones; fewer if the schema has no more.

        ``slots`` are the ``inputs`` or ``outputs`` of this schema. A variadic last slot is repeated.
        """
        if count <= len(slots):
            return slots[:count]
        if slots and slots[-1].variadic:
            return slots + (slots[-1],) * (count - len(slots))
        return slots

    def types_of(self, parameter: str) -> frozenset[dtypes.Type]:
        """Return the types that a type parameter, or a concrete type string, admits."""
        if parameter in self.allowed:
            return self.allowed[parameter]
        return frozenset({dtypes.parse_schema_type(parameter)})


@cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """Return the schema of an operator at an opset version; None if neither ONNX nor ONNX Runtime has one."""
    if domain == "com.microsoft":
        return _contrib_schemas().get((domain, op_type))
    from onnx import defs

    try:
        onnx_schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:  # operators that ONNX Runtime writes into the standard domain (Rule S4.39)
        return _contrib_schemas().get((domain, op_type))
    return _from_onnx(onnx_schema)


@cache
def next_opset_allowing(domain: str, op_type: str, opset: int, elem: int) -> int | None:
    """Return the first later opset at which some type parameter of the operator admits ``elem``.

    None if there is no such opset, and also if the schema at ``opset`` admits the type already: in that case ONNX's
    inference refuses it, and a later opset does not help.
    """
    from onnx import defs

    def allows(version: int) -> bool:
        schema = find_schema(domain, op_type, version)
        return schema is not None and any(elem in allowed for allowed in schema.allowed.values())

    # Only the domains of ONNX have several versions. ONNX Runtime has one schema for each operator.
    if domain not in ("", "ai.onnx.ml") or allows(opset):
        return None
    return next(filter(allows, range(opset + 1, defs.onnx_opset_version() + 1)), None)


def find_later_opsets(op_types: Iterable[str], opset: int, elem: int) -> dict[str, int]:
    """Return the standard operators that admit ``elem`` only at a later opset, each with the first such opset."""
    later = {op_type: next_opset_allowing("", op_type, opset, elem) for op_type in op_types}
    return {op_type: version for op_type, version in later.items() if version is not None}


def _from_onnx(onnx_schema: OpSchema) -> Schema:
    """Return the Schema with the content of ONNX's OpSchema."""
    # A RandomNormal without ``dtype`` makes float32 (1). A Cast must have ``to``, so its default is 0.
    type_attributes = {
        name: int(onnx_schema.attributes[name].default_value.i)
        for name in sorted(TYPE_ATTRIBUTES & set(onnx_schema.attributes))
    }
    if onnx_schema.domain == "" and onnx_schema.name in VALUE_TYPED:
        type_attributes["value"] = dtypes.FLOAT  # a ConstantOfShape without ``value`` makes float32 zeros
    return Schema(
        since_version=onnx_schema.since_version,
        inputs=tuple(map(_formal_slot, onnx_schema.inputs)),
        outputs=tuple(map(_formal_slot, onnx_schema.outputs)),
        allowed={
            constraint.type_param_str: frozenset(map(dtypes.parse_schema_type, constraint.allowed_type_strs))
            for constraint in onnx_schema.type_constraints
        },
        type_attributes=type_attributes,
        onnx_schema=onnx_schema,
    )


def _formal_slot(parameter: OpSchema.FormalParameter) -> FormalSlot:
    from onnx.defs import OpSchema

    variadic = parameter.option == OpSchema.FormalParameterOption.Variadic
    return FormalSlot(parameter.type_str, variadic, parameter.is_homogeneous)


@cache
def _contrib_schemas() -> dict[tuple[str, str], Schema]:
    """Return the schemas that only ONNX Runtime has, by domain and op type."""
    rows = json.loads((Path(__file__).parent / "data" / "contrib_schemas.json").read_text(encoding="utf-8"))["schemas"]
    return {
        (row["domain"], row["op_type"]): Schema(
            since_version=row["since"],
            inputs=tuple(FormalSlot(*slot) for slot in row["inputs"]),
            outputs=tuple(FormalSlot(*slot) for slot in row["outputs"]),
            allowed={name: frozenset(map(dtypes.parse_schema_type, texts)) for name, texts in row["allowed"].items()},
            type_attributes=dict.fromkeys(row["fixing"], 0),
        )
        for row in rows
    }
