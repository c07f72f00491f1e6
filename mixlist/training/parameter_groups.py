"""Give groups of parameters a learning rate and a weight decay of their own (``--param-groups``, Rule S10.23)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.errors import UsageError, raise_for_errors
from mixlist.files import jsonc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.training.optimizers import Settings
    from mixlist.training.step_graph import Parameter

_KEYS = ("match", "lr", "weight_decay")


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters whose names hold a match of the regular expression ``match``, and their values.

    None leaves the value of the Settings. Raises UsageError for values out of range.
    """

    match: str
    lr: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except (re.error, TypeError) as error:
            raise UsageError(f"the parameter group {self.match!r}: not a regular expression ({error})") from None
        for name, value in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value < math.inf):
                raise UsageError(f"the parameter group {self.match!r}: {name} is {value!r}, not a number of 0 or more")


def read_parameter_groups(path: str | os.PathLike[str]) -> tuple[ParameterGroup, ...]:
    """Return the groups of a JSON file: a list of objects with "match", and "lr" or "weight_decay" or both.

    Raises FileError for a file that cannot be read, UsageError for one with other content.
    """
    document, name = jsonc.read(path), os.fspath(path)
    raise_for_errors(document.findings)
    content = document.value
    hint = 'give a list such as [{"match": "bias$", "weight_decay": 0}]'
    if not isinstance(content, list):
        raise UsageError(f"{name}: parameter groups are a list, not {type(content).__name__}", hint=hint)
    groups = []
    for index, members in enumerate(content):
        if not isinstance(members, dict) or "match" not in members:
            raise UsageError(f'{name}: group {index} is no object with "match"', hint=hint)
        unknown = [key for key in members if key not in _KEYS]
        if unknown:
            raise UsageError(f"{name}: group {index} has the unknown key {unknown[0]!r}", hint=f"known: {_KEYS}")
        groups.append(ParameterGroup(**members))
    return tuple(groups)


def values_by_element(
    settings: Settings, parameters: Sequence[Parameter]
) -> tuple[float | NDArray[np.float32], float | NDArray[np.float32]]:
    """Return the factor of the learning rate and the weight decay: numbers, or with groups one value per element.

    A parameter belongs to the first group that matches its name. Raises UsageError for a group without parameters.
    """
    if not settings.parameter_groups:
        return 1.0, settings.weight_decay
    import numpy as np

    sizes = [math.prod(parameter.shape) for parameter in parameters]
    rates, decays, matched = [], [], set()
    for parameter in parameters:
        groups = (group for group in settings.parameter_groups if re.search(group.match, parameter.name))
        group = next(groups, None)
        matched.add(group)
        rates.append(1.0 if group is None or group.lr is None else group.lr / settings.lr)
        decays.append(settings.weight_decay if group is None or group.weight_decay is None else group.weight_decay)
    for group in settings.parameter_groups:
        if group not in matched:
            names = ", ".join(parameter.name for parameter in parameters[:12])
            hint = f"each parameter belongs to the first group that matches; the graph has {names}"
            raise UsageError(f"the parameter group {group.match!r} has no parameter", hint=hint)
    return np.repeat(np.asarray(rates, np.float32), sizes), np.repeat(np.asarray(decays, np.float32), sizes)
