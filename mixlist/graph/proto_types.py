"""Type aliases for ONNX messages that several rooms handle alike. Import it under TYPE_CHECKING only."""

from __future__ import annotations

import os
from typing import TypeAlias

import onnx_ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

ScopeProto: TypeAlias = GraphProto | FunctionProto  # a main graph, a body of control flow, or a function
ConstantProto: TypeAlias = TensorProto | SparseTensorProto | AttributeProto  # the messages that hold a constant
ModelSource: TypeAlias = str | os.PathLike[str] | ModelProto | onnx_ir.Model  # what a user passes as a model
