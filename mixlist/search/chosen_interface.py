"""Give a model the inputs and outputs that ``io`` asks for. That comes first, so that data judges what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.decide import resolve
from mixlist.lists.load import load_policy
from mixlist.lists.policy import InterfaceOptions, Mode
from mixlist.model.load import LoadedModel, load_model
from mixlist.write import rewrite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mixlist.model.load import Model


def choose_interface(
    model: Model | LoadedModel, options: InterfaceOptions, low_type: Any, type_hints: Mapping[str, str] | None
) -> LoadedModel:
    """Return the model with the types of inputs and outputs that ``options`` ask for; no node changes (Rule S7.3).

    ``low_type``: float16 or bfloat16, for ``io`` "low". Raises the errors of ``resolve``.
    """
    loaded = load_model(model)
    if options.io == "keep" and not options.keep_io:
        return loaded
    policy = replace(load_policy(precision_mode_v2="origin"), mode=Mode("origin", "origin", low_type))
    plan = resolve(loaded, policy, type_hints=type_hints, io=options.io, keep_io=options.keep_io)
    return loaded._replace(proto=rewrite(loaded, plan).proto)
