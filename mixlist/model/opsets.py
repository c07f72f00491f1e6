"""Read the versions of ONNX's standard domain that a model imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.lists.op_catalog import is_standard_domain

if TYPE_CHECKING:
    from onnx import ModelProto

OLDEST_OPSET = 7  # the oldest opset of the standard domain that mixlist handles (Rule S7.15)


def standard_opset(model: ModelProto) -> int:
    """Return the version of ONNX's standard domain that a model imports; 13 if the model imports none."""
    return next((entry.version for entry in model.opset_import if is_standard_domain(entry.domain)), 13)


def supports_where(model: ModelProto) -> bool:
    """Return True if the nodes of a model can use Where and IsNaN, which exist since opset 9."""
    return min((entry.version for entry in model.opset_import if is_standard_domain(entry.domain)), default=0) >= 9
