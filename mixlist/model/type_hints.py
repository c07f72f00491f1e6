"""Write the user's type hints into a model, so that every later step reads these types as declarations.

Type hints are for tensors that custom operators make: ONNX cannot infer their types. ``build_graph`` can also read
hints without a change of the model. A check needs them in the model, because it builds several models from this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.load import LoadedModel
from mixlist.model.protos import copy_message, scopes_in

if TYPE_CHECKING:
    from onnx import GraphProto


def add_type_hints(loaded: LoadedModel, type_hints: Mapping[str, str] | None) -> LoadedModel:
    """Return a copy of a model that declares the types of ``type_hints`` where it declares no type yet.

    ``type_hints`` has a type, such as ``float32``, by tensor name. A name means the node output of that name in every
    scope. Without hints the result is ``loaded`` itself. Raises UsageError for a text that is no type.
    """
    if not type_hints:
        return loaded
    hints = {name: dtypes.parse_name(text) for name, text in type_hints.items()}
    proto = copy_message(loaded.proto)
    for scope in scopes_in(proto.graph):
        _declare(scope, hints)
    return replace(loaded, proto=proto)


def _declare(scope: GraphProto, hints: Mapping[str, dtypes.Type]) -> None:
    """Add a value_info for each hinted tensor of one scope that has no declaration; skip the bodies in the scope."""
    # A value_info without a type does not count, as in build.py.
    declared = {info.name for info in (*scope.output, *scope.value_info) if info.type.WhichOneof("value")}
    for node in scope.node:
        for name in node.output:
            if name in hints and name not in declared:
                dtypes.write_type(scope.value_info.add(name=name).type, hints[name])
                declared.add(name)
