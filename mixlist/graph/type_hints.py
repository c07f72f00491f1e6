"""Types of tensors that custom operators make, written into a model, so that every step of a check reads them there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mixlist.graph.io import Loaded
from mixlist.ops import types


def hinted(loaded: Loaded, type_hints: Mapping[str, str] | None) -> Loaded:
    """The model with a value_info for each tensor of ``type_hints`` (tensor name to ``float32``, ...) that has none.

    ``loaded`` stays as it is; without hints it comes back. A name means that tensor in every scope, as for
    ``mixlist.resolve``. Raises UsageError for a text that is no type.
    """
    if not type_hints:
        return loaded
    told = {name: types.parse_name(text) for name, text in type_hints.items()}
    proto = type(loaded.proto)()
    proto.CopyFrom(loaded.proto)
    for body in (proto.graph, *proto.functions):
        _declare(body, told)
    return replace(loaded, proto=proto)


def _declare(body: Any, told: Mapping[str, types.Type]) -> None:
    named = (*body.output, *body.value_info) if body.DESCRIPTOR.name == "GraphProto" else body.value_info
    declared = {info.name for info in named if info.type.WhichOneof("value")}
    for node in body.node:
        for name in node.output:
            if name in told and name not in declared:
                types.set_proto(body.value_info.add(name=name).type, told[name])
                declared.add(name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _declare(inner, told)
