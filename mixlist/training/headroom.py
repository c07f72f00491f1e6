"""Find how near the values of each module come to the largest number of the low type.

Sampled steps of the mixed trainings are measured. The values are those that become low, before they are rounded. The
gradients count without the loss scale: what is left to the largest number is the largest loss scale that they bear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixlist.training.result import LargestValues, ModuleHeadroom

# A module whose values come nearer than this factor is named although the training passes.
NEAR = 4.0
# A value that grows by this factor from the first to the last quarter of the steps rises.
RISES = 2.0


def measure_headroom(runs: Sequence[Mapping[int, LargestValues]], largest: float) -> tuple[ModuleHeadroom, ...]:
    """Return the headroom of each module, the smallest first.

    ``runs`` has the largest values of each measured step for each run; ``largest`` is the largest number of the type.
    """
    first: LargestValues = {}
    last: LargestValues = {}
    overall: LargestValues = {}
    for steps in runs:
        numbers = sorted(steps)
        quarter = max(1, len(numbers) // 4)
        for parts, target in ((numbers[:quarter], first), (numbers[-quarter:], last), (numbers, overall)):
            for number in parts:
                for key, value in steps[number].items():
                    target[key] = max(value, target.get(key, 0.0))
    modules = dict.fromkeys(module for module, _ in overall)

    def headroom(module: str) -> ModuleHeadroom:
        activation, gradient = (module, False), (module, True)
        most = max(overall.get(activation, 0.0), overall.get(gradient, 0.0))
        return ModuleHeadroom(
            module=module,
            factor=largest / most if most else None,
            activation=overall.get(activation),
            activation_start=first.get(activation),
            activation_end=last.get(activation),
            gradient=overall.get(gradient),
            gradient_start=first.get(gradient),
            gradient_end=last.get(gradient),
        )

    return tuple(sorted(map(headroom, modules), key=lambda found: (found.factor is None, found.factor)))


def describe_near_modules(modules: Sequence[ModuleHeadroom], largest: float) -> list[str]:
    """Return a sentence that names the module nearest to the largest number, or nothing if all are far."""
    near = [found for found in modules if found.factor is not None and found.factor < NEAR]
    if not near:
        return []
    found = near[0]
    kind, value, start, end = "value", found.activation or 0.0, found.activation_start, found.activation_end
    if (found.gradient or 0.0) > value:
        kind, value, start, end = "gradient", found.gradient or 0.0, found.gradient_start, found.gradient_end
    rises = ", and it rises" if (end or 0.0) > RISES * (start or 0.0) else ""
    others = f" ({len(near) - 1} more modules are near)" if len(near) > 1 else ""
    return [
        f"{found.module} is near overflow: its largest {kind} is {value:.3g} of {largest:.6g}{rises}{others}; keep it"
        " in float32, or watch it in a longer training"
    ]
