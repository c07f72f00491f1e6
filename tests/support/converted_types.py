"""Compare the types of a model that another tool converted with those of the model that mixlist writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import ModelProto, TensorProto

from mixlist.model.naming import NodeRef
from tests.support.scopes import subgraphs

Types = tuple[tuple[str, ...], tuple[str, ...]]  # the float types of the inputs and of the outputs; "?" if unknown
_NAMES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_READS_ONLY_SHAPE = ("Shape", "Size")
_SUFFIXES = ("_cast_to_fp16", "_pre_cast")  # that a tool appends to the name of a tensor which it moves behind a Cast


@dataclass
class Comparison:
    """The number of equal nodes, the nodes of other types, and those that the converted model does not have."""

    equal: int = 0
    unlike: dict[str, str] = field(default_factory=dict)  # by the name of the node, the difference
    missing: list[str] = field(default_factory=list)


def compare(mixed: ModelProto, converted: ModelProto) -> Comparison:
    """Compare the float types of all slots of all nodes of the model that mixlist wrote.

    Constants are left out, because mixlist stores each one in the types of its readers, and so are mixlist's Casts.
    """
    result = Comparison()
    converted_types = {key: types for key, _, types in _nodes(converted)}
    for key, op_type, expected in _nodes(mixed):
        if op_type == "Constant":
            continue
        if key not in converted_types:
            result.missing.append(key)
        elif _differ(expected, converted_types[key]):
            result.unlike[key] = f"{op_type}: {converted_types[key]}, planned {expected}"
        else:
            result.equal += 1
    return result


def find_downstream(model: ModelProto, names: set[str]) -> set[str]:
    """Return the keys of the named nodes, and of all nodes that a tensor of theirs reaches."""
    reached, tensors = set(names), set[str]()
    _follow(model.graph, "", reached, tensors)
    return reached


def _follow(graph: onnx.GraphProto, scope: str, reached: set[str], tensors: set[str]) -> bool:
    """Add what the tensors reach in a graph and its bodies; return whether they reach an output of the graph."""
    before = -1
    while before < len(reached) + len(tensors):  # again, because loops feed back
        before = len(reached) + len(tensors)
        for node in graph.node:
            key = str(NodeRef(scope, node.name))
            bodies = [_follow(body, f"{key}/{name}", reached, tensors) for name, body in subgraphs(node)]
            if key in reached or any(bodies) or not tensors.isdisjoint(node.input):
                reached.add(key)
                tensors |= set(node.output)
                for _, body in subgraphs(node):
                    tensors |= {value.name for value in body.input}
    return any(output.name in tensors for output in graph.output)


def _differ(expected: Types, actual: Types) -> bool:
    """Return whether a float type differs. A tool may drop outputs that nothing reads."""
    inputs = [pair for pair in zip(expected[0], actual[0], strict=False) if "?" not in pair]
    outputs = [pair for pair in zip(expected[1], actual[1], strict=False) if "?" not in pair]
    # Where inference gives no type, an input cannot be told from one that is no float, so that the numbers may differ.
    are_known = "?" not in (*expected[0], *actual[0])
    return (are_known and len(expected[0]) != len(actual[0])) or any(a != b for a, b in (*inputs, *outputs))


def _nodes(model: ModelProto) -> Iterator[tuple[str, str, Types]]:
    """Yield key, op type and the float types of inputs and outputs of every node but mixlist's Casts."""
    inferred = onnx.shape_inference.infer_shapes(_sort_nodes(model))
    yield from _nodes_of(inferred.graph, "", {})


def _sort_nodes(model: ModelProto) -> ModelProto:
    """Return a copy with sorted nodes, and without the declared types of inner tensors, which can be stale."""
    copy = ModelProto.FromString(model.SerializeToString())
    _prepare(copy.graph, set())
    return copy


def _prepare(graph: onnx.GraphProto, outer: set[str]) -> None:
    """Sort the nodes, and delete declared types of inner tensors, so that every type is inferred again."""
    del graph.value_info[:]
    ready = outer | {""} | {v.name for v in graph.input} | {t.name for t in graph.initializer}
    produced = {name for node in graph.node for name in node.output}
    waiting, ordered = list(graph.node), []
    while waiting:
        later = []
        for node in waiting:
            if all(name in ready or name not in produced for name in _reads(node)):
                ordered.append(node)
                ready |= set(node.output)
            else:
                later.append(node)
        assert len(later) < len(waiting), "the nodes of the converted model have a cycle"
        waiting = later
    sorted_nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(sorted_nodes)
    for node in graph.node:
        for _, body in subgraphs(node):
            _prepare(body, ready)


def _reads(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for _, body in subgraphs(node):
        names |= {name for inner in body.node for name in _reads(inner)}
        names |= {value.name for value in body.output}
    return names


def _nodes_of(graph: onnx.GraphProto, scope: str, outer: dict[str, str]) -> Iterator[tuple[str, str, Types]]:
    types = {**outer, **{t.name: _NAMES.get(t.data_type, "") for t in graph.initializer}}
    for value in (*graph.input, *graph.value_info, *graph.output):
        elem = value.type.tensor_type.elem_type or value.type.sequence_type.elem_type.tensor_type.elem_type
        types[value.name] = _NAMES.get(elem, "")
    for node in graph.node:
        if any(entry.key == "pkg.mixlist.cast" for entry in node.metadata_props):
            continue
        name = node.name or f"<{_original(node.output[0])}>"
        # The type that a Shape reads changes nothing.
        inputs = [] if node.op_type in _READS_ONLY_SHAPE else node.input
        read, made = (tuple(t for s in slots if s and (t := types.get(s, "?"))) for slots in (inputs, node.output))
        yield str(NodeRef(scope, name)), node.op_type, (read, made)
        for attribute, body in subgraphs(node):
            yield from _nodes_of(body, str(NodeRef(scope, f"{name}/{attribute}")), types)


def _original(output: str) -> str:
    """Return the name of a tensor in the original model."""
    for suffix in _SUFFIXES:
        output = output.removesuffix(suffix)
    return output
