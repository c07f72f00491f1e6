"""Simplify the traced graph of a step before the export: remove the nodes that the ONNX graph does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mixlist.torch_export.step_names import EVALUATION_PREFIX, STATE_PREFIX
from mixlist.torch_export.tracing import TracedStep

if TYPE_CHECKING:
    from torch.fx import Graph, Node

aten = torch.ops.aten
COPIES = (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def simplify_graph(step: TracedStep) -> set[str]:
    """Simplify ``step.graph_module`` in place; return the names of the buffers that the step changes.

    The outputs of the other buffers are removed.
    """
    # The nodes are in topological order, so the inputs of a node are simplified before it. A copy of the list, because
    # nodes are erased on the way.
    graph = step.graph_module.graph
    for node in list(graph.nodes):
        if node.target in COPIES:
            _replace(graph, node, node.args[0])
        elif node.target in RESHAPES:
            _simplify_reshape(node)
        elif node.target is aten.expand.default and _size_texts(node) == _size_texts(node.args[0]):
            _replace(graph, node, node.args[0])
        elif node.target is aten.permute.default:
            _merge_permutations(graph, node)
        elif node.target is aten.where.self and _is_softmax_guard_without_mask(node):
            _replace(graph, node, node.args[2])
    _merge_evaluation(graph)
    changed_buffers = _drop_unchanged_buffers(step)
    graph.eliminate_dead_code()
    step.graph_module.recompile()
    return changed_buffers


def _replace(graph: Graph, node: Node, replacement: Node) -> None:
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)


def _merge_evaluation(graph: Graph) -> None:
    """Merge each node of the mode eval() with the same node of the step."""
    first_nodes: dict[str, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        # The text of a node among the arguments is its name.
        first_node = first_nodes.setdefault(repr((node.target, node.args, node.kwargs)), node)
        is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        path = node.meta.get("nn_module_stack", {}).get("scope", ("", ""))[0]
        if first_node is not node and path.startswith(EVALUATION_PREFIX) and not is_random:
            _replace(graph, node, first_node)


def _size_texts(node: Node) -> list[str]:
    """Return the sizes of a node's output as texts: a comparison of symbolic sizes would add a guard on the batch."""
    return [str(size) for size in node.meta["val"].shape]


def _simplify_reshape(node: Node) -> None:
    """Turn a view into a reshape, and write -1 for its only symbolic size.

    With -1, the ONNX graph needs no nodes that compute the size. A view requires suitable strides of its input, which
    the removal of copies may change; a reshape does not.
    """
    node.target = aten.reshape.default
    sizes = list(node.args[1])
    symbolic_axes = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    # With a size 0, torch cannot infer -1.
    if len(symbolic_axes) == 1 and -1 not in sizes and 0 not in sizes:
        sizes[symbolic_axes[0]] = -1
        node.args = (node.args[0], sizes)


def _merge_permutations(graph: Graph, node: Node) -> None:
    """Merge a permutation with one directly before it: permute -> permute becomes one permute, or none."""
    # Output axis i of a permutation is axis order[i] of its input. Axes may be negative.
    source, order = node.args
    rank = len(order)
    order = [axis % rank for axis in order]
    if source.target is aten.permute.default:
        order = [source.args[1][axis] % rank for axis in order]
        source = source.args[0]
    if order == list(range(rank)):
        _replace(graph, node, source)
    else:
        node.args = (source, order)


def _is_softmax_guard_without_mask(node: Node) -> bool:
    """Return whether a ``where`` node zeroes the rows of a softmax that are fully masked, although there is no mask.

    torch's attention always has this node: scores == -inf -> not -> any -> not -> where(_, 0, softmax(scores)). Without
    a mask, a row of scores is -inf only by an overflow. Its softmax must be NaN then, so that the overflow shows.
    """
    condition, _, softmax = node.args
    for target in (aten.logical_not.default, aten.any.dim, aten.logical_not.default, aten.eq.Scalar):
        if getattr(condition, "target", None) is not target:
            return False
        condition = condition.args[0]
    if getattr(softmax, "target", None) is not aten._softmax.default:
        return False
    # Scores that come straight from a product of matrices have no mask: a mask would be an Add or a where between.
    scores = softmax.args[0]
    while scores.target in RESHAPES:
        scores = scores.args[0]
    return scores.target in (aten.bmm.default, aten.mm.default)


def _drop_unchanged_buffers(step: TracedStep) -> set[str]:
    """Remove the outputs of buffers that the step returns unchanged; return the names of the other buffers."""
    result = step.graph_module.graph.output_node()
    placeholders = (node for node in step.graph_module.graph.nodes if node.op == "placeholder")
    input_names = dict(zip(placeholders, step.inputs, strict=True))
    # A buffer is unchanged if its output is its own placeholder.
    outputs = [
        (node, name)
        for node, name in zip(result.args[0], step.outputs, strict=True)
        if not (name.startswith(STATE_PREFIX) and input_names.get(node) == name.removeprefix(STATE_PREFIX))
    ]
    result.args = ([node for node, _ in outputs],)
    return {name.removeprefix(STATE_PREFIX) for _, name in outputs if name.startswith(STATE_PREFIX)}
