"""Overflow inside an operator whose output is finite: a warning, from the operator's own ONNX function body.

LayerNormalization squares before it takes the root, Softplus takes the exponential: in float16 that may overflow where
the result does not. Kernels compute such things in float32, so this never fails a check; it names operators to look at
on a new accelerator. The body is written out beside each low node of the float32 reference, and its values observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixlist.emulation.instrument import RANGE, Instrumenter, Probe, Result
from mixlist.graph.build import bind
from mixlist.graph.model import Node
from mixlist.graph.naming import NewNames
from mixlist.graph.refs import NodeRef
from mixlist.graph.traversal import bodies
from mixlist.ops import types
from mixlist.ops.schema import find_schema

if TYPE_CHECKING:
    from onnx import NodeProto


class Bodies(Instrumenter):
    """The reference with the function body of each low node beside it; ``low`` are those of the mixed model."""

    def __init__(self, reference: Any, low: Mapping[NodeRef, Node]) -> None:
        super().__init__(reference, RANGE, lambda _: True)
        self.low = low
        self.done: set[int] = set()

    def observe(self, probe: Probe, node: Node | None = None, target: Any = None) -> tuple[list[Result], list[Any]]:
        """The ranges of what the node's function body computes on the way to its outputs."""
        if node is None or id(node) in self.done or probe.key.producer not in self.low:
            return [], []
        self.done.add(id(node))
        body = function_body(node, target, self.graph.opsets.get(node.domain, 0))
        if body is None:
            return [], []
        nodes, inner = self._written_out(body, target)
        results = []
        for name in inner:
            single = self.new.make(f"{name}_float")  # some bodies compute in float64
            nodes.append(make_cast(name, single, self.new))
            for statistic in self.statistics:
                out = self.new.make(f"{name}_{statistic.name}")
                nodes += statistic.build(single, out, types.FLOAT, self.new)
                results.append(Result(probe.key, statistic, out, types.FLOAT))
        return results, nodes

    def _written_out(self, body: Any, target: Any) -> tuple[list[Any], list[str]]:
        """The body's nodes under new names, and the float tensors that they make on the way."""
        given = {a.name: a for a in body.attribute_proto}
        given.update({a.name: a for a in target.attribute})
        names = dict(zip(body.input, target.input, strict=False))
        nodes, inner = [], []
        floats = _float_tensors(body)
        for inside in body.node:
            copy = bind(inside, given)
            copy.name = self.new.make(f"{target.name}_body")
            for slot, name in enumerate(inside.input):
                copy.input[slot] = names.get(name, "") if name else ""
            for slot, name in enumerate(inside.output):
                if name:
                    names[name] = copy.output[slot] = self.new.make(f"{target.name}_{name}")
                    if name in floats and name not in body.output:
                        inner.append(names[name])
            nodes.append(copy)
        return nodes, inner


def has_body(node: Node, opset: int) -> bool:
    """Whether ONNX may give a function body of the operator in terms of the opset: ``function_body`` says which."""
    native = node.signature.schema.native if node.signature is not None and node.signature.schema is not None else None
    if native is None:
        return False
    versions = native.function_opset_versions if native.has_function else []
    if not native.has_function and native.has_context_dependent_function:
        versions = native.context_dependent_function_opset_versions
    return any(version <= opset for version in versions)


def function_body(node: Node, target: Any, opset: int) -> Any | None:
    """The FunctionProto of a standard operator in terms of the model's opset; None where ONNX gives none that fits."""
    from onnx import FunctionProto, TypeProto

    native = node.signature.schema.native if node.signature is not None and node.signature.schema is not None else None
    if native is None or bodies(target):
        return None
    body = FunctionProto()
    try:
        if native.has_function:
            fitting = [v for v in native.function_opset_versions if v <= opset]
            if not fitting:
                return None
            body.ParseFromString(native.get_function_with_opset_version(max(fitting)))
        elif native.has_context_dependent_function:
            fitting = [v for v in native.context_dependent_function_opset_versions if v <= opset]
            if not fitting:
                return None
            kinds = []
            for value_type in node.types:
                kind = TypeProto()
                if value_type != types.UNKNOWN:
                    types.set_proto(kind, value_type)
                kinds.append(kind.SerializeToString())
            version = max(fitting)
            body.ParseFromString(
                native.get_context_dependent_function_with_opset_version(version, target.SerializeToString(), kinds)
            )
        else:
            return None
    except Exception:  # onnx raises its own errors where a body cannot be built for these types
        return None
    return body if body.node else None


def _float_tensors(body: Any) -> set[str]:
    """Return the tensors of a function body that are computed from its inputs and may hold floats."""
    opsets = {entry.domain: entry.version for entry in body.opset_import}
    float_tensors: set[str] = set()
    computed = set(body.input)
    for node in body.node:
        if _may_yield_float(node, opsets.get(node.domain, 1)) and not computed.isdisjoint(node.input):
            float_tensors.update(node.output)
            computed.update(node.output)
    return float_tensors


def _may_yield_float(node: NodeProto, opset: int) -> bool:
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i in types.FLOATS for a in node.attribute)
    schema = find_schema(node.domain, node.op_type, opset)
    return schema is None or any(types.FLOATS & schema.types_of(slot.parameter) for slot in schema.outputs)


def make_cast(source: str, out: str, names: NewNames) -> Any:
    """A Cast to float32."""
    from onnx import helper

    return helper.make_node("Cast", [source], [out], name=names.make(f"Cast_{out}"), to=types.FLOAT)
