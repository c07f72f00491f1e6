"""Warn of overflow inside an operator whose output is finite, by the operator's ONNX function body (Rule S8.13).

LayerNormalization squares before it takes the root, and Softplus computes an exponential. In float16 these
intermediate values may overflow although the result does not. Kernels compute them in float32, so such a finding never
fails a check: it names operators to examine on a new accelerator. To observe the intermediate values, the function body
of each low node is added to the float32 reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from mixlist.checker.finding_records import FindingRecord
from mixlist.checker.model_pair import ModelPair
from mixlist.diagnostics import warning
from mixlist.emulation.graph_statistics import InstrumentedModel, Probe
from mixlist.emulation.instrument import Instrumenter
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import Ranges
from mixlist.emulation.packing import ScalarStatistic
from mixlist.errors import ModelError
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.function_attributes import copy_with_resolved_attributes
from mixlist.graph.model import Node
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import bodies_of
from mixlist.ops import dtypes
from mixlist.ops.low_precision import FINITE_MAX
from mixlist.ops.schema import find_schema
from mixlist.patterns.proven_masks import SENTINEL
from mixlist.runtime.local_session import RunRefused

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

    from mixlist.runtime.feeds import Batches


def find_internal_risks(
    pair: ModelPair, batches: Batches, records: Mapping[TensorRef, FindingRecord], batch_count: int | None
) -> list[FindingRecord]:
    """Return an ``internal-risk`` for each low node with a finite output whose function body exceeds the low range.

    The magnitude of such a record is the largest one inside the body. ``records`` are the findings of outputs. The
    first ``batch_count`` batches are examined, None for all. If ONNX Runtime cannot run the bodies, the result is
    empty.
    """
    nodes = {node.ref: node for node in pair.nodes}
    low_producers = {tensor.producer for tensor in pair.low_type_of}
    low_nodes = [node for node in pair.nodes if node.ref in low_producers]
    # Most models have no operator with a function body: do not build their reference a second time.
    if all(_body_version(n.node, n.graph.opsets.get(n.node.domain, 0)) is None for n in low_nodes):
        return []
    # Add the bodies to the reference, where no value is lost, so that they show how large the values really are.
    reference = pair.config.as_float32_graph(pair.reference.loaded)
    instrumented = _BodyInstrumenter(reference, pair.mixed_low_nodes()).run()
    if not instrumented.columns:
        return []
    ranges_by_batch = _run_bodies(pair, instrumented, batches, batch_count)
    risks: dict[TensorRef, FindingRecord] = {}
    tensors = dict.fromkeys(tensor for tensor, _ in instrumented.columns)
    for index, body_ranges in enumerate(ranges_by_batch):
        for tensor in tensors:
            body_range, low, node = body_ranges.get(tensor), pair.low_type_of.get(tensor), nodes[tensor.producer]
            if body_range is None or low is None or not _exceeds_range(body_range, low, node, records):
                continue
            # Rule S8.13: an output that is infinite or NaN has a finding of its own. A comparison with NaN is
            # false.
            output = records.get(tensor)
            if output is None or output.mixed_magnitude < math.inf:
                risk = risks.setdefault(tensor, FindingRecord(node, tensor))
                risk.reference_magnitude = max(risk.reference_magnitude, body_range.magnitude)
                risk.mixed_magnitude = output.mixed_magnitude if output is not None else 0.0
                risk.add_finding("internal-risk", index)
    return list(risks.values())


def _run_bodies(
    pair: ModelPair, instrumented: InstrumentedModel, batches: Batches, batch_count: int | None
) -> list[Ranges]:
    """Return the ranges inside the bodies for each batch; nothing, with a warning, if ONNX Runtime has no kernel."""
    # onnx defines bodies with operators and types for which ONNX Runtime may have no kernel. A session loads its model
    # when it is opened or, in segments, when it runs first.
    try:
        with closing(pair.open_cpu_observer(instrumented)) as observer:
            return [observer.run(feed)[1] for feed in islice(batches, batch_count)]
    except RunRefused:  # it is a ModelError, but the body was loaded: the caller reports the refusal
        raise
    except ModelError:
        message = "ONNX Runtime cannot run the function bodies of operators: overflow inside operators is not judged"
        pair.warnings.append(warning("ML606", message))
        return []


def _exceeds_range(
    body_range: ObservedRange, low: int, node: DataflowNode, records: Mapping[TensorRef, FindingRecord]
) -> bool:
    """Return True if the values inside a function body exceed the range of the low type, and not by design."""
    # A value from SENTINEL on belongs to a mask on its way through the operator.
    if not FINITE_MAX[low] <= body_range.magnitude < SENTINEL:
        return False
    # The inputs carry a mask, and so do the values inside the body.
    if any("intended" in records[source.ref].batches for source in node.inputs if source.ref in records):
        return False
    # The body of Softmax subtracts the largest score first. A score that falls to -infinity there becomes zero in the
    # output, which is right.
    return node.node.op_type != "Softmax" or body_range.maximum >= FINITE_MAX[low]


class _BodyInstrumenter(Instrumenter):
    """An instrumenter that adds the function body of each low node; ``low_nodes`` are those of the mixed model."""

    def __init__(self, reference: ModelProto, low_nodes: Mapping[NodeRef, Node]) -> None:
        super().__init__(reference)
        self.low_nodes = low_nodes
        self.expanded: set[int] = set()  # the ids of the nodes whose body was added: it is added once for all outputs

    def make_statistics(
        self, probe: Probe, node: Node | None = None, node_proto: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the ranges of the intermediate values of the node's function body, and the nodes that compute them."""
        if node is None or node_proto is None or id(node) in self.expanded or probe.ref.producer not in self.low_nodes:
            return [], []
        self.expanded.add(id(node))
        body = find_function_body(node, node_proto, self.graph.opsets.get(node.domain, 0))
        if body is None:
            return [], []
        nodes, intermediate_tensors = self._copy_body(body, node_proto)
        results = []
        for name in intermediate_tensors:
            float32 = self.new_names.make_name(f"{name}_float")  # some bodies compute in float64
            nodes.append(self.new_names.make_cast(name, float32, dtypes.FLOAT))
            for statistic in self.statistics:
                out = self.new_names.make_name(f"{name}_{statistic.name}")
                nodes += statistic.build(float32, out, dtypes.FLOAT, self.new_names)
                # All intermediate tensors of a body are observed as one: under the name of the node's output.
                results.append(ScalarStatistic(probe.ref, statistic, out, dtypes.FLOAT))
        return results, nodes

    def _copy_body(self, body: FunctionProto, node_proto: NodeProto) -> tuple[list[NodeProto], list[str]]:
        """Return copies of the body's nodes under new names, and the intermediate float tensors that they make."""
        # The attributes of the node win over the defaults of the body, which come first.
        attributes = {a.name: a for a in (*body.attribute_proto, *node_proto.attribute)}
        # x -> LayerNormalization -> y becomes x -> LayerNormalization -> y and x -> ReduceMean -> ... -> y_2. The body
        # reads the inputs of the node. Everything that the body makes gets a new name, its outputs too, because the
        # node itself stays in the graph.
        new_name_of = dict(zip(body.input, node_proto.input, strict=False))
        nodes, intermediate_tensors = [], []
        float_tensors = _float_tensors(body)
        for body_node in body.node:
            copy = copy_with_resolved_attributes(body_node, attributes)
            copy.name = self.new_names.make_name(f"{node_proto.name}_body")
            # A node may omit trailing inputs. The body then reads them as omitted, too.
            for slot, name in enumerate(body_node.input):
                copy.input[slot] = new_name_of.get(name, "") if name else ""
            for slot, name in enumerate(body_node.output):
                if name:
                    new_name_of[name] = copy.output[slot] = self.new_names.make_name(f"{node_proto.name}_{name}")
                    if name in float_tensors and name not in body.output:
                        intermediate_tensors.append(new_name_of[name])
            nodes.append(copy)
        return nodes, intermediate_tensors


def _onnx_schema(node: Node) -> Any:
    """Return onnx's OpSchema of a node's operator, None if it has none.

    The type is Any because the type stubs of OpSchema lack the attributes about function bodies.
    """
    schema = node.signature.schema if node.signature is not None else None
    return schema.onnx_schema if schema is not None else None


def _body_version(node: Node, opset: int) -> int | None:
    """Return the newest version of an operator's function body that the opset can run, None if there is none."""
    onnx_schema = _onnx_schema(node)
    if onnx_schema is None:
        return None
    if onnx_schema.has_function:
        versions = onnx_schema.function_opset_versions
    elif onnx_schema.has_context_dependent_function:
        versions = onnx_schema.context_dependent_function_opset_versions
    else:
        versions = []
    return max((int(version) for version in versions if version <= opset), default=None)


def find_function_body(node: Node, node_proto: NodeProto, opset: int) -> FunctionProto | None:
    """Return the function body of a standard operator in operators of the opset; None if onnx has none for the node."""
    from onnx import FunctionProto, TypeProto

    onnx_schema, version = _onnx_schema(node), _body_version(node, opset)
    # SequenceMap has a function body too, a Loop around a copy of its graph. Nodes with graphs are left out.
    if version is None or bodies_of(node_proto):
        return None
    body = FunctionProto()
    try:
        if onnx_schema.has_function:
            body.ParseFromString(onnx_schema.get_function_with_opset_version(version))
        else:  # the body depends on the attributes and input types of the node
            inputs = []
            for value_type in node.input_types:
                message = TypeProto()
                if value_type != dtypes.UNKNOWN:
                    dtypes.write_type(message, value_type)
                inputs.append(message.SerializeToString())
            get_body = onnx_schema.get_context_dependent_function_with_opset_version
            body.ParseFromString(get_body(version, node_proto.SerializeToString(), inputs))
    except Exception:  # onnx raises errors of several types if it cannot build a body for these types
        return None
    return body if body.node else None


def _float_tensors(body: FunctionProto) -> set[str]:
    """Return the tensors of a function body that depend on its inputs and may hold floats.

    Constants of the body are left out: their values do not come from the data.
    """
    # The nodes of a body are in topological order, so one pass follows the data. The pass stops at integers: what comes
    # from a shape, such as the number of elements of a mean, does not depend on the data.
    opsets = {entry.domain: entry.version for entry in body.opset_import}
    float_tensors: set[str] = set()
    from_inputs = set(body.input)
    for node in body.node:
        if _may_yield_float(node, opsets.get(node.domain, 1)) and not from_inputs.isdisjoint(node.input):
            float_tensors.update(node.output)
            from_inputs.update(node.output)
    return float_tensors


def _may_yield_float(node: NodeProto, opset: int) -> bool:
    """Return True if the type of an output may be a float type; True for an operator without a schema."""
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i in dtypes.FLOATS for a in node.attribute)
    schema = find_schema(node.domain, node.op_type, opset)
    return schema is None or any(dtypes.FLOATS & schema.types_of(slot.parameter) for slot in schema.outputs)
