"""Values as strict JSON holds them: it has no infinities and no NaN, so these become texts."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with ``"inf"``, ``"-inf"`` and ``"nan"`` in place of such numbers, and lists in place of tuples."""
    if isinstance(value, dict):
        return {name: strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
