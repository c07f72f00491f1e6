"""Find the low nodes of a plan, and join raised nodes to connected groups: one group is one edit (Rule S12.3)."""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.decide import Plan
from mixlist.model import dtypes
from mixlist.model.dataflow import trace_dataflow
from mixlist.model.graph import Graph
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, node_ref


def find_low_precisions(plan: Plan) -> dict[NodeRef, str]:
    """Return the precision of each node that a plan computes in float16 or bfloat16, in the order of the plan.

    Casts are left out, because no rule raises them (Rule S4.13).
    """
    low_nodes: dict[NodeRef, str] = {}
    solution = plan.solution.graph_solution
    for node in solution.graph.nodes:
        assignment, signature = solution.assignments[node.id], node.signature
        primary = signature.primary_group if signature is not None else None
        if assignment is None or signature is None or primary is None or signature.has_fixed_output:
            continue
        # Not ``find_precision``: to a policy for float16, a bfloat16 node has no types to vary (Rule S4.9).
        elem = assignment.elements[signature.groups.index(primary)]
        if elem in LOW_TYPES:
            low_nodes[node_ref(node)] = dtypes.type_name(elem)
    return low_nodes


def find_connected_groups(graph: Graph, raised: Iterable[NodeRef]) -> list[list[NodeRef]]:
    """Return the raised nodes in groups; the groups and their nodes are in order of computation.

    Two nodes are in one group if one of them reads an output of the other, directly or through nodes of the group.
    """
    raised = set(raised)
    ordered = [node for node in trace_dataflow(graph) if node.ref in raised]
    # First all edges, because the state of a loop is read before it is computed.
    neighbors: dict[NodeRef, set[NodeRef]] = {node.ref: set() for node in ordered}
    for node in ordered:
        for producer in {tensor.ref.producer for tensor in node.inputs} & raised:
            neighbors[node.ref].add(producer)
            neighbors[producer].add(node.ref)
    groups: list[list[NodeRef]] = []
    group_of: dict[NodeRef, list[NodeRef]] = {}
    for node in ordered:
        # The first node of a group reserves an empty group for all nodes that are connected with it.
        if node.ref not in group_of:
            groups.append([])
            waiting = [node.ref]
            while waiting:
                ref = waiting.pop()
                group_of[ref] = groups[-1]
                waiting += [neighbor for neighbor in neighbors[ref] if neighbor not in group_of]
        group_of[node.ref].append(node.ref)
    return groups
