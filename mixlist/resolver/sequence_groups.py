"""Sequences and optionals: all that can be one container's content has one type (Rule S4.29).

A *cluster* is the set of container values that nodes and control flow tie together. No Cast can stand on a
sequence, so the cluster decides as a whole: every node that touches it votes (white low, black authored, gray
what its first float tensor is), high wins, and a node whose operator lacks the low type makes it high. A
container that enters or leaves the graph votes for its declared type. What a function gets or returns is part
of the caller's cluster and of one in the body: each votes in the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mixlist.errors import ListError
from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import types
from mixlist.resolver.decisions import UNDECIDED, join


@dataclass(eq=False)
class Cluster:
    """``values`` share one element type; ``nodes`` touch them; ``tensors`` vote through ``links``.

    ``calls`` are (function call, input slot) where a value goes into a function. ``fixed`` is the type that the
    border or an attribute imposes, UNDECIDED where none does.
    """

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    calls: list[tuple[Node, int]] = field(default_factory=list)
    fixed: int = UNDECIDED


def is_container(value: Value | None) -> bool:
    """Whether the value is a sequence or optional of a type that lists move."""
    return value is not None and isinstance(value.type, tuple) and types.element(value.type) in types.LISTED


def find_clusters(
    graph: Graph, links: list[Link], calls: set[int], border: Iterable[tuple[Value, int]]
) -> dict[Value, Cluster]:
    """The cluster of each container value.

    ``calls`` are the ids of function calls, which tie nothing together; ``border`` tells the element types that
    the surroundings give to inputs and want of outputs.
    """
    if not any(isinstance(v.type, tuple) for v in graph.values):
        return {}
    parent: dict[Value, Value] = {v: v for v in graph.values if is_container(v)}
    for node in graph.order:
        if node.signature is not None and node.id not in calls:
            _unite(parent, [v for v in (*node.inputs, *node.outputs) if v is not None and is_container(v)])
    for link in links:
        _unite(parent, [v for v in (*link.targets, *(r.value for r in link.reads)) if is_container(v)])
    clusters: dict[Value, Cluster] = {}
    for value in parent:
        clusters.setdefault(_root(parent, value), Cluster()).values.append(value)
    found = {value: clusters[_root(parent, value)] for value in parent}
    _attach(graph, links, calls, found)
    for value, elem in border:
        if value in found:
            found[value].fixed = join(found[value].fixed, elem)
    return found


def _root(parent: dict[Value, Value], value: Value) -> Value:
    while parent[value] is not value:
        parent[value] = parent[parent[value]]
        value = parent[value]
    return value


def _unite(parent: dict[Value, Value], values: list[Value]) -> None:
    for other in values[1:]:
        parent[_root(parent, other)] = _root(parent, values[0])


def _attach(graph: Graph, links: list[Link], calls: set[int], found: dict[Value, Cluster]) -> None:
    for node in graph.order:
        touched = next((found[v] for v in (*node.inputs, *node.outputs) if v is not None and v in found), None)
        if touched is None:
            continue
        signature = node.signature
        if node.id in calls:
            for value in node.outputs:
                if value is not None and value in found:
                    found[value].tensors.append(value)
            for slot, value in enumerate(node.inputs):
                if value is not None and value in found:
                    found[value].calls.append((node, slot))
        elif signature is not None and (signature.fixed or signature.schema is None or not signature.groups):
            _impose(touched, node)  # a custom operator, or one like SequenceEmpty that has no type to choose
        elif signature is not None:
            touched.nodes.append(node)
    for link in links:
        cluster = next((found[t] for t in link.targets if t in found), None)
        if cluster is not None:
            cluster.tensors.extend(r.value for r in link.reads if not is_container(r.value))
            cluster.links.append(link)


def _impose(cluster: Cluster, node: Node) -> None:
    for value in (*node.inputs, *node.outputs):
        if value is not None and is_container(value):
            cluster.fixed = types.element(value.type)


def vote(cluster: Cluster, solver: Any) -> int:
    """The cluster's type as far as the votes go; UNDECIDED while there is none."""
    voted = cluster.fixed
    for value in cluster.tensors:
        voted = join(voted, solver.decided[value.id])
    for call, slot in cluster.calls:
        callee = solver.solution.callees.get(call.id)
        if callee is not None and slot < len(callee.graph.root.inputs):
            voted = join(voted, callee.decided[callee.graph.root.inputs[slot].id])
    for node in cluster.nodes:
        if voted not in (UNDECIDED, solver.low):
            break
        voted = join(voted, _node_vote(node, solver))
    if voted == solver.low and cluster.fixed != voted and not all(solver.admits(k, voted) for k in cluster.links):
        return types.FLOAT
    authored = types.element(cluster.values[0].type)
    return voted if voted in (UNDECIDED, solver.low, types.FLOAT) else authored  # lists never make the other low type


def _node_vote(node: Node, solver: Any) -> int:
    fact, signature = solver.solution.facts[node.id], node.signature
    assert signature is not None
    if fact.kind == "rule":
        return int(solver.shared.rules.assignment(solver.graph, node).elements[0])
    authored = signature.groups[0].authored
    target = {"low": solver.low, "raise": types.FLOAT, "gray": _tensor_vote(node, solver)}.get(fact.kind, authored)
    if target == solver.low and authored != solver.low:
        refused = signature.assign((solver.low,)).refused or any(solver.misfit(v) for v in node.inputs if v is not None)
        return types.FLOAT if refused else target
    return int(target)


def _tensor_vote(node: Node, solver: Any) -> int:
    """What a gray node adds: the type of its first float tensor, if that stands before any container."""
    for value in node.inputs:
        if value is None or value.constant or types.element(value.type) not in types.FLOATS:
            continue
        return UNDECIDED if is_container(value) else int(solver.decided[value.id])
    return UNDECIDED


def check_rule(node: Node, elem: int, solver: Any) -> None:
    """A node rule in a cluster must be what the whole cluster became."""
    asked = int(solver.shared.rules.assignment(solver.graph, node).elements[0])
    if asked != elem:
        rule = solver.shared.rules.rule_of(solver.graph, node)
        raise ListError(
            f"{rule.place}: the rule asks for {types.type_name(asked)}, but all elements of a sequence or optional "
            f"share one type, and another node or the graph's border makes it {types.type_name(elem)}",
            hint="give the other nodes of the sequence the same rule",
        )
