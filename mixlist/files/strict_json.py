"""Convert values to strict JSON, which has no infinities and no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # the members by name, as json.loads gives them or json.dumps takes them


def to_strict_json(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members in the types of JSON.

    Tuples become lists, and numbers that are not finite become the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
    """
    return {name: _to_strict_value(value) for name, value in members.items()}


def _to_strict_value(value: object) -> object:
    if isinstance(value, dict):
        return to_strict_json(value)
    if isinstance(value, list | tuple):
        return [_to_strict_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
