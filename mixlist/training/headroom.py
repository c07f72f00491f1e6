"""Find how near the values of each module come to the largest number of the low type.

Sampled steps of the mixed trainings are measured. The values are those that become low, before they are rounded. The
gradients count without the loss scale: what is left to the largest number is the largest loss scale that they bear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mixlist.number_text import format_number, pluralize
from mixlist.training.result import LargestValues, ModuleHeadroom

# A module whose values come nearer than this factor is named although the training passes.
NEAR = 4.0
# A value that grows by this factor from the first to the last quarter of the steps rises.
RISES = 2.0


def measure_headroom(runs: Sequence[Mapping[int, LargestValues]], largest: float) -> tuple[ModuleHeadroom, ...]:
    """Return the headroom of each module, the smallest first.

    ``runs`` has the largest values of each measured step for each run; ``largest`` is the largest number of the type.
    """
    # By module, the fields of its ModuleHeadroom.
    values: dict[str, dict[str, float]] = {}
    for steps in runs:
        numbers = sorted(steps)
        quarter = max(1, len(numbers) // 4)
        for part, measured in (("", numbers), ("_start", numbers[:quarter]), ("_end", numbers[-quarter:])):
            for (module, is_gradient), value in (item for number in measured for item in steps[number].items()):
                of_module = values.setdefault(module, {})
                name = ("gradient" if is_gradient else "activation") + part
                of_module[name] = max(value, of_module.get(name, 0.0))
    found = [
        ModuleHeadroom(module, largest / most if (most := max(of_module.values())) else None, **of_module)
        for module, of_module in values.items()
    ]
    return tuple(sorted(found, key=lambda module: module.factor or math.inf))


def describe_near_modules(modules: Sequence[ModuleHeadroom], largest: float) -> list[str]:
    """Return a sentence that names the module nearest to the largest number, or nothing if all are far.

    A module is near within the factor ``NEAR``, or if it reaches the number by growing once more as it did.
    """
    near = [found for found in modules if found.factor is not None and found.factor < max(NEAR, _growth(found))]
    if not near:
        return []
    found = near[0]
    kind, value = "value", found.activation or 0.0
    if (found.gradient or 0.0) > value:
        kind, value = "gradient", found.gradient or 0.0
    rises = ", and it rises" if _growth(found) > RISES else ""
    more = len(near) - 1
    others = f" ({pluralize(more, 'more module')} {'is' if more == 1 else 'are'} near)" if more else ""
    return [
        f"{found.module} {'is near overflow' if value <= largest else 'overflows'}: its largest {kind} is"
        f" {format_number(value)}, the largest number is {format_number(largest)}{rises}{others}; keep it in float32,"
        " or watch it in a longer training"
    ]


def _growth(found: ModuleHeadroom) -> float:
    """Return the factor by which the larger value of a module grows from the first quarter of the steps to the last."""
    start, end = found.activation_start, found.activation_end
    if (found.gradient or 0.0) > (found.activation or 0.0):
        start, end = found.gradient_start, found.gradient_end
    return (end or 0.0) / start if start else 0.0
