"""Convert values to strict JSON, which has no infinities and no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping


def to_strict_json(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members with lists for tuples, and with ``"inf"``, ``"-inf"`` and ``"nan"`` for such numbers."""
    return {name: _strict(value) for name, value in members.items()}


def _strict(value: object) -> object:
    if isinstance(value, dict):
        return to_strict_json(value)
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
