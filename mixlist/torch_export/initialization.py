"""Find how a module draws the initial values of its parameters, by drawing them anew.

torch's layers have a method ``reset_parameters``, and so have many layers of users. A copy of each submodule is reset a
few times. The draws describe a parameter if its current values can be such draws too, and if all its elements have the
same distribution. So a pretrained weight, a forget bias that the user has set, and the parameter of a module without
the method are not described: nobody can draw them anew.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixlist.torch_export.init_metadata import Description, describe_draws

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.nn import Module

    FloatArray = NDArray[np.float32]

RESETS = 8
MAX_ELEMENTS = 1 << 18  # the elements of a parameter that are compared; more make the answer no better
_KOLMOGOROV_LIMIT = 2.2  # exceeded by one in 8,000 pairs of samples of one distribution
_RANGE_FACTOR = 1.5  # how much farther from the mean than all draws a current value may be
_DEVIATION_LIMIT = 6.0  # of the mean of an element over the resets, in standard deviations


def describe_initialization(module: Module) -> dict[str, Description]:
    """Return the descriptions of the parameters that ``module`` can draw anew, by name. The module is not changed."""
    descriptions: dict[str, Description] = {}
    for prefix, part in module.named_modules():
        own = {name: value for name, value in part.named_parameters(recurse=False) if value.requires_grad}
        for name, draws in _reset_copies(part, list(own)).items():
            current = own[name].detach().cpu().numpy().ravel()[:MAX_ELEMENTS]
            if _has_one_distribution(draws) and _can_be_drawn(current, draws):
                descriptions[f"{prefix}.{name}" if prefix else name] = describe_draws(draws)
    return descriptions


def _reset_copies(part: Module, names: list[str]) -> dict[str, FloatArray]:
    """Return the values of the parameters ``names`` after each reset of a copy of ``part``: (RESETS, elements)."""
    # The attention layers of torch have the method under its private name.
    method = next((key for key in ("reset_parameters", "_reset_parameters") if hasattr(part, key)), None)
    if method is None or not names:
        return {}
    draws: dict[str, list[FloatArray]] = {name: [] for name in names}
    # A fixed seed, so that the same module gives the same bytes; the user's random numbers do not change.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            duplicate = copy.deepcopy(part)
            for _ in range(RESETS):
                getattr(duplicate, method)()
                for name in names:
                    value = duplicate.get_parameter(name).detach().cpu().numpy()
                    draws[name].append(value.ravel()[:MAX_ELEMENTS].copy())
        except Exception:  # a method of the user may need arguments, or more than a copy of its module
            return {}
    return {name: np.stack(values) for name, values in draws.items()}


def _has_one_distribution(draws: FloatArray) -> bool:
    """Return whether all elements have one distribution: one constant, or draws around one mean."""
    if (draws == draws.flat[0]).all():
        return True
    deviations = draws.std(axis=0)
    limit = _DEVIATION_LIMIT * float(draws.std()) / math.sqrt(RESETS)
    distances = np.abs(draws.mean(axis=0) - draws.mean())
    return bool(deviations.min() > 0 and distances.max() < limit)


def _can_be_drawn(current: FloatArray, draws: FloatArray) -> bool:
    """Return whether ``current`` can be of the distribution of ``draws``, by the test of Kolmogorov and Smirnov."""
    # The test says little about a few values, so their range counts too. It is exact for a constant.
    mean = float(draws.mean())
    if np.abs(current - mean).max() > _RANGE_FACTOR * np.abs(draws - mean).max():
        return False
    sample, other = np.sort(current), np.sort(draws.ravel())
    values = np.concatenate([sample, other])
    shares = (np.searchsorted(part, values, side="right") / len(part) for part in (sample, other))
    distance = float(np.abs(np.subtract(*shares)).max())
    return distance * math.sqrt(len(sample) * len(other) / (len(sample) + len(other))) < _KOLMOGOROV_LIMIT
