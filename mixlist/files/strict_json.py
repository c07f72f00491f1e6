"""Convert results to strict JSON, which has no infinities and no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mixlist.diagnostics import Diagnostic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JsonObject: TypeAlias = dict[str, Any]  # the members by name, as json.loads gives them or json.dumps takes them


def result_json(result: DataclassInstance, name: str) -> JsonObject:
    """Return the fields of a result as its JSON form ``name``, such as ``mixlist.check/1``.

    A part of the result with a method ``to_json`` has the form that this method returns, and a warning is one line.
    """
    return {"format": name, **_plain_fields(result)}


def to_strict_json(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members in the types of JSON.

    Tuples become lists, and numbers that are not finite become the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
    """
    return {name: _to_strict_value(value) for name, value in members.items()}


def _plain_fields(item: DataclassInstance) -> JsonObject:
    return {field.name: _to_strict_value(getattr(item, field.name)) for field in fields(item)}


def _to_strict_value(value: object) -> object:
    if isinstance(value, dict):
        return to_strict_json(value)
    if isinstance(value, list | tuple):
        return [_to_strict_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Diagnostic):
        return value.without_severity
    if hasattr(value, "to_json"):
        return value.to_json()
    return _plain_fields(value) if is_dataclass(value) and not isinstance(value, type) else value
