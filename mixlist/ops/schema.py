"""Look up the types that an operator's schema allows in its slots.

Standard domains: ``onnx.defs`` at the model's opset, never a hand-written table. ``com.microsoft``:
ONNX Runtime's own schemas, kept as data (tools/make_contrib_schemas.py writes the file).

Rule S4.39: An operator that ONNX Runtime writes into the standard domain, where ONNX has no schema of it at the model's
opset, takes the schema that ONNX Runtime has for it there (``SimplifiedLayerNormalization``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.ops import types

if TYPE_CHECKING:
    from onnx.defs import OpSchema

TYPE_ATTRIBUTES = frozenset({"dtype", "to", "output_dtype", "output_datatype"})  # their value is the output type
VALUE_TYPED = frozenset({"Constant", "ConstantOfShape"})  # their attribute ``value`` has the output type


@dataclass(frozen=True)
class FormalSlot:
    """A formal input or output: its type parameter (or one concrete type), and whether it repeats."""

    parameter: str
    variadic: bool
    homogeneous: bool


FormalSlots = tuple[FormalSlot, ...]


@dataclass(frozen=True)
class Schema:
    """The part of an operator schema that decides types.

    ``allowed`` holds the types of each type parameter. ``fixing`` are the attributes that fix the
    output type, with their default (0 where there is none). ``native`` is ONNX's own schema object
    where onnx can infer types with it.
    """

    since_version: int
    inputs: FormalSlots
    outputs: FormalSlots
    allowed: dict[str, frozenset[types.Type]]
    type_attributes: dict[str, int]
    onnx_schema: Any = None  # an OpSchema or None: the stubs of onnx lack members that others read here

    def formal_slots(self, slots: FormalSlots, count: int) -> FormalSlots:
        """The formal slot of each of ``count`` actual ones; fewer where the schema has no more."""
        if count <= len(slots):
            return slots[:count]
        if slots and slots[-1].variadic:
            return slots + (slots[-1],) * (count - len(slots))
        return slots

    def types_of(self, parameter: str) -> frozenset[types.Type]:
        """Return the types that a type parameter, or a concrete type string, admits."""
        if parameter in self.allowed:
            return self.allowed[parameter]
        return frozenset({types.parse(parameter)})


@cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema of an operator at an opset version; None where nobody defines one."""
    if domain == "com.microsoft":
        return _contrib().get((domain, op_type))
    from onnx import defs

    try:
        native = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return _contrib().get((domain, op_type))
    return _from_onnx(native)


@cache
def next_opset_allowing(domain: str, op_type: str, opset: int, elem: int) -> int | None:
    """The first later opset whose schema admits ``elem`` in some type parameter of the operator.

    None where this opset's schema does so already: then it is ONNX's inference that refuses, and no opset changes that.
    """
    from onnx import defs

    def allows(version: int) -> bool:
        schema = find_schema(domain, op_type, version)
        return schema is not None and any(elem in allowed for allowed in schema.allowed.values())

    if domain not in ("", "ai.onnx.ml") or allows(opset):
        return None
    return next(filter(allows, range(opset + 1, defs.onnx_opset_version() + 1)), None)


def _from_onnx(native: OpSchema) -> Schema:
    fixing = {
        name: int(native.attributes[name].default_value.i) for name in sorted(TYPE_ATTRIBUTES & set(native.attributes))
    }
    if native.domain == "" and native.name in VALUE_TYPED:
        fixing["value"] = types.FLOAT
    return Schema(
        since_version=native.since_version,
        inputs=tuple(map(_slot, native.inputs)),
        outputs=tuple(map(_slot, native.outputs)),
        allowed={c.type_param_str: frozenset(map(types.parse, c.allowed_type_strs)) for c in native.type_constraints},
        type_attributes=fixing,
        onnx_schema=native,
    )


def _slot(formal: OpSchema.FormalParameter) -> FormalSlot:
    from onnx.defs import OpSchema

    variadic = formal.option == OpSchema.FormalParameterOption.Variadic
    return FormalSlot(formal.type_str, variadic, formal.is_homogeneous)


@cache
def _contrib() -> dict[tuple[str, str], Schema]:
    """Return the schemas that only ONNX Runtime has, by domain and op type."""
    rows = json.loads((Path(__file__).parent / "data" / "contrib_schemas.json").read_text(encoding="utf-8"))["schemas"]
    return {
        (row["domain"], row["op_type"]): Schema(
            since_version=row["since"],
            inputs=tuple(FormalSlot(*slot) for slot in row["inputs"]),
            outputs=tuple(FormalSlot(*slot) for slot in row["outputs"]),
            allowed={name: frozenset(map(types.parse, texts)) for name, texts in row["allowed"].items()},
            type_attributes=dict.fromkeys(row["fixing"], 0),
        )
        for row in rows
    }
