"""Describe a conversion: the numbers of the model before and after, the nodes in float32, and inputs that are large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mixlist.decide.resolve_model import find_refused_nodes
from mixlist.model import dtypes
from mixlist.model.naming import NodeRef
from mixlist.model.protos import nodes_in, tensors_in_model
from mixlist.model.schema import find_later_opsets
from mixlist.model.weights import declared_byte_size, is_external
from mixlist.search.convert_result import HighNode, ModelSize
from mixlist.targets.estimate import Costs, compute_low_share, count_moved_bytes, count_uncounted, is_matrix_operator

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.decide.plan import Plan
    from mixlist.model.graph import Graph, Node
    from mixlist.run.feeds import Batches
    from mixlist.targets.target import Target
    from mixlist.write import RewriteResult

# A float input with larger values is not normalized: 16-bit samples of sound reach 32767.
LARGE_INPUT = 1024.0


def measure_models(plan: Plan, rewritten: RewriteResult | None, costs: Costs) -> tuple[ModelSize, ModelSize | None]:
    """Return the numbers of the given model, and of the rewritten one if there is one.

    ``costs``: those of the given model; of a search, with the shapes that it observed, as the trials have.
    """
    low_name, loaded = plan.policy.mode.low, plan.solution.loaded
    matrix_work = [cost for cost in costs.nodes.values() if cost.is_matrix]
    flops = sum(cost.flops for cost in matrix_work)
    uncounted = count_uncounted(costs)
    before = ModelSize(
        nodes=sum(node.precision in (low_name, "float32") for node in plan.nodes),
        low_nodes=sum(node.precision == low_name and not node.changed for node in plan.nodes),
        low_share=sum(cost.low_flops for cost in matrix_work) / flops if flops else None,
        bytes=sum(cost.bytes for cost in costs.nodes.values()),
        file_bytes=_count_file_bytes(loaded.proto),
        casts=_count_casts(loaded.proto),
        uncounted=uncounted,
    )
    if rewritten is None:
        return before, None
    solution = plan.solution
    after = ModelSize(
        nodes=rewritten.eligible,
        low_nodes=rewritten.low,
        low_share=compute_low_share(solution, low_name, costs),
        bytes=count_moved_bytes(solution, costs),
        file_bytes=_count_file_bytes(rewritten.proto),
        casts=_count_casts(rewritten.proto),
        uncounted=uncounted,
    )
    return before, after


def _count_file_bytes(proto: ModelProto) -> int:
    external = sum(declared_byte_size(tensor) for tensor in tensors_in_model(proto) if is_external(tensor))
    return proto.ByteSize() + external


def _count_casts(proto: ModelProto) -> int:
    return sum(node.op_type == "Cast" for node in nodes_in(proto.graph))


def describe_high_nodes(plan: Plan, rewritten: RewriteResult, raised: Mapping[NodeRef, str]) -> tuple[HighNode, ...]:
    """Return the nodes in float32: first those that the search raised, in the order of ``raised``, its reasons.

    The author's Casts that the rewriter removed are left out.
    """
    left = {(node.name, *node.output) for node in nodes_in(rewritten.proto.graph) if node.op_type == "Cast"}
    high = [
        node
        for node in plan.nodes
        if node.precision == "float32" and (node.op_type != "Cast" or (node.name, *node.outputs) in left)
    ]
    place = {ref: index for index, ref in enumerate(raised)}
    high.sort(key=lambda node: place.get(node.ref, len(place)))
    return tuple(
        HighNode(*node.ref, node.op_type, node.ref in raised, raised.get(node.ref) or node.reason) for node in high
    )


def find_later_opset(plan: Plan, target: Target | None) -> int | None:
    """Return the opset at which white nodes can be low that the opset of the model refuses; None if there is none.

    ``target``: it must run the nodes in the low type, and read this opset; None for no target.
    """
    solution = plan.solution
    nodes, low_name = find_refused_nodes(solution), plan.policy.mode.low
    later = find_later_opsets({n.op_type for n in nodes}, solution.graph.opsets.get("", 0), solution.low_type)
    opsets = {
        later[node.op_type]
        for node in nodes
        if node.op_type in later
        and (target is None or target.runs("", node.op_type, later[node.op_type], low_name, (0,), node.text_attributes))
    }
    newest = target.opsets[1] if target is not None and target.opsets is not None else None
    return max((opset for opset in opsets if newest is None or opset <= newest), default=None)


def has_integer_products(graph: Graph) -> bool:
    """Return whether most matrix products and convolutions of a model are operators on integers."""
    is_integer = [
        _is_on_integers(node)
        for node in graph.nodes
        if is_matrix_operator(node.domain, node.op_type) or node.op_type == "QGemm"
    ]
    return 2 * sum(is_integer) > len(is_integer)


def _is_on_integers(node: Node) -> bool:
    """Return whether a runtime multiplies integers: by an operator for them, or between DequantizeLinear nodes."""
    if "Integer" in node.op_type or node.op_type.startswith(("QLinear", "DynamicQuantize", "QGemm")):
        return True
    makers = [value.producer for value in node.inputs[:2] if value is not None]
    return all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)


def find_large_inputs(batches: Batches) -> tuple[str, ...]:
    """Return a sentence for each float input whose values are as large as those of 16-bit samples.

    That is beyond 1024. Values behind such an input need less range if the model divides it.
    """
    largest: dict[str, float] = {}
    float_inputs = {i.name for i in batches.inputs if i.type == dtypes.FLOAT}
    for feed in batches:
        for name in float_inputs & feed.keys():
            values = np.asarray(feed[name])
            if values.size:
                largest[name] = max(largest.get(name, 0.0), float(np.nanmax(np.abs(values))))
    advice = (
        "a model that divides them first, by 256 or more, and undoes it where the values are small again, would keep"
        " more nodes low; check it with quiet sound, too, whose powers become 0"
    )
    return tuple(
        f"values overflow behind input {name!r}, which reaches {magnitude:.5g}, as 16-bit samples do: {advice}"
        for name, magnitude in largest.items()
        if magnitude > LARGE_INPUT
    )
