"""Type aliases for protobuf messages that several rooms use. Import this module under TYPE_CHECKING only.

The module imports onnx and onnx_ir, which ``import mixlist`` must not load.
"""

from __future__ import annotations

import os
from typing import TypeAlias

import onnx_ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

RootProto: TypeAlias = GraphProto | FunctionProto  # a graph, or a function: where a walk of messages can start
ConstantProto: TypeAlias = TensorProto | SparseTensorProto | AttributeProto  # a message that holds constant numbers
ModelSource: TypeAlias = str | os.PathLike[str] | ModelProto | onnx_ir.Model  # a model as users pass it
