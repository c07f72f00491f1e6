"""Write a plan as node data of Model Explorer: a value and a color for each node of an ONNX model.

A file has one value for each node. Model Explorer finds the node by the identity that its ONNX adapter gives it
(model-explorer-onnx 0.4.2, ai-edge-model-explorer 0.1.34):

- The main graph has its name, and the body of a Loop or Scan is a graph ``NODE/ATTRIBUTE``.
- The bodies of an If are part of the graph around it: their nodes are called ``IF/ATTRIBUTE/NODE``.
- Nodes without a name are called ``node``, and a name that its graph has already gets ``_1``, ``_2``, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from mixlist.decide.decisions import Decision
from mixlist.decide.plan import Plan
from mixlist.files.strict_json import JsonObject
from mixlist.model.graph import Node, Scope
from mixlist.model.naming import NodeRef

# Background and text by precision; nodes with other precisions have no color.
_LOW_COLORS, _HIGH_COLORS = ("#2f6fb7", "#ffffff"), ("#e8a52c", "#1b1e22")
_COLORS = {"float16": _LOW_COLORS, "bfloat16": _LOW_COLORS, "float32": _HIGH_COLORS}
_ERROR_GRADIENT = [{"stop": 0, "bgColor": "#dccdeb"}, {"stop": 1, "bgColor": "#5b2a86", "textColor": "#ffffff"}]


def precision_data(plan: Plan, nodes: Collection[Decision]) -> JsonObject:
    """Return the node data with precision, list and rule of ``nodes``, which are among those of the plan.

    Example of a value: ``float32 (gray, mask)``.
    """
    values = {}
    for node in nodes:
        reasons = dict.fromkeys(word for word in (node.list, node.rule) if word != "none")
        values[id(node)] = value = {"value": f"{node.precision} ({', '.join(reasons)})"}
        if node.precision in _COLORS:
            value["bgColor"], value["textColor"] = _COLORS[node.precision]
    return _by_graph(plan, {"name": "precision"}, lambda decision: values.get(id(decision)))


def error_data(plan: Plan, errors: Mapping[NodeRef, float]) -> JsonObject:
    """Return the node data with the error that each low node adds: those of a check with ``--layerwise``."""
    settings = {"name": "normalized error", "gradient": _ERROR_GRADIENT}
    return _by_graph(plan, settings, lambda node: {"value": errors[node.ref]} if node.ref in errors else None)


def _by_graph(plan: Plan, settings: JsonObject, value_of: Callable[[Decision], JsonObject | None]) -> JsonObject:
    """Return the values of nodes by the identities of their graphs and nodes."""
    graph = plan.solution.graph
    identities = dict(_identify(graph.root, graph.root.proto.name, "", Counter()))
    data: JsonObject = {}
    for node, decision in zip(graph.nodes, plan.nodes, strict=True):
        value = value_of(decision)
        if value is not None:
            graph_id, node_id = identities[node]
            data.setdefault(graph_id, {**settings, "results": {}})["results"][node_id] = value
    return data


def _identify(scope: Scope, graph_id: str, prefix: str, counts: Counter[str]) -> Iterator[tuple[Node, tuple[str, str]]]:
    """Yield each node of a scope and its bodies with the identities of its graph and of itself.

    ``prefix``: the names of the Ifs and attributes around the scope. ``counts``: the number of renamed nodes by name.
    """
    used_names: set[str] = set()
    for node in sorted(scope.nodes, key=lambda node: node.position):
        name = first_name = node.proto.name or "node"
        while name in used_names:
            counts[first_name] += 1
            name = f"{first_name}_{counts[first_name]}"
        used_names.add(name)
        yield node, (graph_id, prefix + name)
        for attribute, body in node.bodies.items():
            path = f"{prefix}{name}/{attribute}"
            if node.op_type == "If":
                yield from _identify(body, graph_id, f"{path}/", counts)
            else:
                yield from _identify(body, path, "", counts)
