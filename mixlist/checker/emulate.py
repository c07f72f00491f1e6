"""Build the float32 graph that rounds like a mixed model, and the float32 or float64 graph that does not round.

On ONNX Runtime's CPU provider, a mixed model shows no overflow: the provider computes float16 nodes in float32 and
drops the Casts between them. Therefore ``emulate`` turns every tensor of a low type into float32, and inserts a pair of
Casts, to the low type and back, after each node that computes such a tensor. ONNX Runtime keeps these Casts
(``run/provider_rounding.py`` tests it), so the values are rounded and an overflow gives infinity. ``widen_to_float32``
does the same without the pairs: its result is the reference.

    mixed model:  x (float16) -> MatMul -> y (float16)
    emulation:    x (float32, rounded) -> MatMul -> y_exact -> Cast to float16 -> Cast to float32 -> y

A node is computed in float32 from rounded inputs, and its output is rounded once, like in a kernel with a float32
accumulator (Rule S8.2). A tensor keeps its name: ``y`` of the mixed model is ``y`` in the emulation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.checker.emulation_builder import EmulationBuilder
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.protos import nodes_in, scopes_in, tensors_in_model
from mixlist.model.schema import TYPE_ATTRIBUTES

if TYPE_CHECKING:
    from onnx import ModelProto


def emulate(loaded: LoadedModel, *, saturate: bool = False, keep_external: bool = False) -> ModelProto:
    """Return a new float32 model that rounds every tensor that has a low type in ``loaded`` (Rule S8.2).

    saturate: a value beyond the range of the low type becomes its largest finite value, as on accelerators that
        saturate. Otherwise it becomes infinite.
    keep_external: external data stays in its files, except data that changes. Otherwise it moves into the model.
    """
    return EmulationBuilder(loaded, rounding=True, saturate=saturate, keep_external=keep_external).run()


def widen_to_float32(loaded: LoadedModel, *, keep_external: bool = False) -> ModelProto:
    """Return a new model that computes every low-precision node in float32, with the same weights.

    keep_external: see ``emulate``.
    """
    return EmulationBuilder(loaded, rounding=False, keep_external=keep_external).run()


def widen_to_float64(loaded: LoadedModel, has_kernel: Callable[[Node], bool]) -> ModelProto:
    """Return a new model that computes in float64 where the operator allows it and ``has_kernel`` returns True.

    Casts surround a node that stays in float32. The float inputs and outputs of the graph are float64.
    """
    return EmulationBuilder(
        loaded, rounding=False, widened_types=dtypes.MIXABLE, target_type=dtypes.DOUBLE, has_kernel=has_kernel
    ).run()


def has_low_types(model: ModelProto) -> bool:
    """Return True if a model may have a low type: in tensors, in declarations, or in attributes.

    Some cases cannot be decided here; the result is then True. These are sparse tensors, attributes that hold a type,
    and an integer attribute of a custom operator that equals the number of a low type (10 or 16).
    """
    if model.graph.sparse_initializer or any(tensor.data_type in LOW_TYPES for tensor in tensors_in_model(model)):
        return True
    infos = chain(model.graph.input, model.graph.output, *(scope.value_info for scope in scopes_in(model.graph)))
    if any(dtypes.element(dtypes.from_proto(info.type)) in LOW_TYPES for info in infos):
        return True
    for node in nodes_in(model.graph):
        for attribute in node.attribute:
            if attribute.i in LOW_TYPES and (node.domain or attribute.name in TYPE_ATTRIBUTES):
                return True
            if attribute.type in (attribute.SPARSE_TENSOR, attribute.TYPE_PROTO):
                return True
    return False
