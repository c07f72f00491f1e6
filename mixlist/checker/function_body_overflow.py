"""Warn of overflow inside an operator whose output is finite, by the operator's ONNX function body (Rule S8.13).

LayerNormalization squares before it takes the root, Softplus takes the exponential: in float16 that may overflow where
the result does not. Kernels compute such things in float32, so this never fails a check; it names operators to examine
on a new accelerator. The body of each low node is added to the float32 reference, and its values are observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from mixlist.checker.finding_rules import SENTINEL, FindingRecord
from mixlist.checker.layerwise import nodes_with_low_outputs
from mixlist.checker.model_pair import ModelPair
from mixlist.diagnostics import warning
from mixlist.emulation.graph_statistics import Probe
from mixlist.emulation.instrument import Instrumenter
from mixlist.emulation.packing import ScalarStatistic
from mixlist.errors import ModelError
from mixlist.graph.build import build_graph
from mixlist.graph.function_attributes import resolve_attribute_references
from mixlist.graph.model import Node
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import bodies_of
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX
from mixlist.ops.schema import find_schema

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

    from mixlist.runtime.feeds import Batches


def find_internal_risks(
    pair: ModelPair, batches: Batches, records: Mapping[TensorRef, FindingRecord], steps: int | None
) -> list[FindingRecord]:
    """Return an ``internal-risk`` where an operator's function body passes the low range and its output does not.

    Its magnitude in float32 is the largest inside the body. ``records``: the findings of outputs. Examines the first
    ``steps`` batches, None for all. Bodies that ONNX Runtime cannot run are left out.
    """
    nodes = {node.ref: node for node in pair.nodes}
    low_nodes = {tensor.producer for tensor in pair.low_type_of}
    low = [n for n in pair.nodes if n.ref in low_nodes]
    if all(_body_version(n.node, n.graph.opsets.get(n.node.domain, 0)) is None for n in low):
        return []
    mixed_nodes = nodes_with_low_outputs(build_graph(pair.mixed.loaded.proto))
    made = _BodyInstrumenter(pair.config.raised(pair.reference.loaded), mixed_nodes).run()
    if not made.outputs:
        return []
    try:
        observer = pair.observe_on_cpu(made)
    except ModelError:
        message = "ONNX Runtime cannot run the function bodies of operators: overflow inside operators is not judged"
        pair.warnings.append(warning("ML606", message))
        return []
    risks: dict[TensorRef, FindingRecord] = {}
    tensors = dict.fromkeys(tensor for tensor, _ in made.outputs)
    for index, feed in enumerate(islice(batches, steps)):
        _, ranges = observer.run(feed)
        for tensor in tensors:
            span, elem, node = ranges.get(tensor), pair.low_type_of.get(tensor), nodes[tensor.producer]
            if span is None or elem is None or not FINITE_MAX[elem] <= span.magnitude < SENTINEL:
                continue  # beyond it is a mask on its way through
            if any("intended" in records[s.ref].batches for s in node.inputs if s.ref in records):
                continue
            if node.node.op_type == "Softmax" and span.maximum < FINITE_MAX[elem]:
                continue  # scores less the largest one: what falls to -inf is zero in the end, as it should be
            output = records.get(tensor)
            if output is None or output.mixed < math.inf:
                risk = risks.setdefault(tensor, FindingRecord(node, tensor))
                risk.reference = max(risk.reference, span.magnitude)
                risk.mixed = output.mixed if output is not None else 0.0
                risk.add_batch("internal-risk", index)
    observer.close()
    return list(risks.values())


class _BodyInstrumenter(Instrumenter):
    """Adds to the reference the function body of each low node; ``low_nodes`` are those of the mixed model."""

    def __init__(self, reference: ModelProto, low_nodes: Mapping[NodeRef, Node]) -> None:
        super().__init__(reference)
        self.low_nodes = low_nodes
        self.done: set[int] = set()

    def observe(
        self, probe: Probe, node: Node | None = None, target: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the ranges of what the node's function body computes on the way to its outputs."""
        if node is None or target is None or id(node) in self.done or probe.ref.producer not in self.low_nodes:
            return [], []
        self.done.add(id(node))
        body = function_body(node, target, self.graph.opsets.get(node.domain, 0))
        if body is None:
            return [], []
        nodes, inner = self._written_out(body, target)
        results = []
        for name in inner:
            single = self.new_names.make_name(f"{name}_float")  # some bodies compute in float64
            nodes.append(self.new_names.make_cast(name, single, types.FLOAT))
            for statistic in self.statistics:
                out = self.new_names.make_name(f"{name}_{statistic.name}")
                nodes += statistic.build(single, out, types.FLOAT, self.new_names)
                results.append(ScalarStatistic(probe.ref, statistic, out, types.FLOAT))
        return results, nodes

    def _written_out(self, body: FunctionProto, target: NodeProto) -> tuple[list[NodeProto], list[str]]:
        """Return the body's nodes under new names, and the float tensors that they make on the way."""
        attributes = {a.name: a for a in (*body.attribute_proto, *target.attribute)}
        names = dict(zip(body.input, target.input, strict=False))
        nodes, inner = [], []
        floats = _float_tensors(body)
        for inside in body.node:
            copy = resolve_attribute_references(inside, attributes)
            copy.name = self.new_names.make_name(f"{target.name}_body")
            for slot, name in enumerate(inside.input):
                copy.input[slot] = names.get(name, "") if name else ""
            for slot, name in enumerate(inside.output):
                if name:
                    names[name] = copy.output[slot] = self.new_names.make_name(f"{target.name}_{name}")
                    if name in floats and name not in body.output:
                        inner.append(names[name])
            nodes.append(copy)
        return nodes, inner


def _native_schema(node: Node) -> Any:
    """Return onnx's OpSchema of a node's operator, whose type stubs lack what it says of functions; None for none."""
    schema = node.signature.schema if node.signature is not None else None
    return schema.onnx_schema if schema is not None else None


def _body_version(node: Node, opset: int) -> int | None:
    """Return the newest version of an operator's function body in terms of the opset, None where there is none."""
    native = _native_schema(node)
    if native is None:
        return None
    if native.has_function:
        versions = native.function_opset_versions
    else:
        versions = native.context_dependent_function_opset_versions if native.has_context_dependent_function else []
    return max((int(version) for version in versions if version <= opset), default=None)


def function_body(node: Node, target: NodeProto, opset: int) -> FunctionProto | None:
    """Return the body of a standard operator in terms of the model's opset; None where ONNX gives none that fits."""
    from onnx import FunctionProto, TypeProto

    native, version = _native_schema(node), _body_version(node, opset)
    if version is None or bodies_of(target):
        return None
    body = FunctionProto()
    try:
        if native.has_function:
            body.ParseFromString(native.get_function_with_opset_version(version))
        else:
            inputs = []
            for value_type in node.input_types:
                message = TypeProto()
                if value_type != types.UNKNOWN:
                    types.set_proto(message, value_type)
                inputs.append(message.SerializeToString())
            call = native.get_context_dependent_function_with_opset_version
            body.ParseFromString(call(version, target.SerializeToString(), inputs))
    except Exception:  # onnx raises its own errors where a body cannot be built for these types
        return None
    return body if body.node else None


def _float_tensors(body: FunctionProto) -> set[str]:
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
