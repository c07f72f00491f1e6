"""Types of tensors that custom operators make, written into a model, so that every step of a check reads them there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.graph.load import LoadedModel
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.traversal import is_graph, scopes_in_model
from mixlist.ops import types

if TYPE_CHECKING:
    from mixlist.graph.proto_types import ScopeProto


def add_type_hints(loaded: LoadedModel, type_hints: Mapping[str, str] | None) -> LoadedModel:
    """The model with a value_info for each tensor of ``type_hints`` (tensor name to ``float32``, ...) that has none.

    ``loaded`` stays as it is; without hints it comes back. A name means that tensor in every scope, as for
    ``mixlist.resolve``. Raises UsageError for a text that is no type.
    """
    if not type_hints:
        return loaded
    hints = {name: types.parse_name(text) for name, text in type_hints.items()}
    proto = copy_message(loaded.proto)
    for scope in scopes_in_model(proto):
        _declare(scope, hints)
    return replace(loaded, proto=proto)


def _declare(scope: ScopeProto, hints: Mapping[str, types.Type]) -> None:
    """Add the value_infos that one scope lacks, without those of its bodies."""
    infos = [*scope.output, *scope.value_info] if is_graph(scope) else scope.value_info
    declared = {info.name for info in infos if info.type.WhichOneof("value")}
    for node in scope.node:
        for name in node.output:
            if name in hints and name not in declared:
                types.set_proto(scope.value_info.add(name=name).type, hints[name])
                declared.add(name)
