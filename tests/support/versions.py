"""Which opsets and operators the installed onnx and ONNX Runtime have: the tests also run with the lowest versions."""

from __future__ import annotations

from functools import cache

import onnx
import onnxruntime
from onnx import defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from tests.support.evaluation import ort_session


def release(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, for comparison."""
    return tuple(int(number) for number in version.split(".")[:3])


@cache
def newest_opset() -> int:
    """Return the newest opset that both onnx and ONNX Runtime read."""
    for opset in range(defs.onnx_opset_version(), 0, -1):
        node = helper.make_node("Identity", ["x"], ["y"])
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
        graph = helper.make_graph([node], "g", values[:1], values[1:])
        try:
            ort_session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
        except Exception as error:
            assert "opset" in str(error), error
        else:
            return opset
    raise AssertionError("ONNX Runtime reads no opset")


# Before this version, ONNX Runtime writes no statistics of its memory into profiles.
PROFILES_HAVE_ARENA = release(onnxruntime.__version__) >= (1, 23)

_ATTENTION_SCHEMAS = [s for s in get_all_operator_schema() if s.name == "GroupQueryAttention"]
ATTENTION_HAS_WINDOW_CACHES = any("sliding_window_cache" in schema.attributes for schema in _ATTENTION_SCHEMAS)
