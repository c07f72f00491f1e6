"""Remove what tracing leaves in a step's graph and ONNX Runtime need not compute, before the export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mixlist.torch_export.step_format import STATE_PREFIX
from mixlist.torch_export.tracing import Step

if TYPE_CHECKING:
    from torch.fx import Graph, Node

aten = torch.ops.aten
COPIES = (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def tidy(step: Step) -> set[str]:
    """Simplify ``step.graph`` in place; return the buffers whose value the step changes.

    The outputs of buffers that keep their value are removed.
    """
    graph = step.graph.graph
    for node in list(graph.nodes):
        if node.target in COPIES:
            _replace(graph, node, node.args[0])
        elif node.target in RESHAPES:
            _free_axis(node)
        elif node.target is aten.expand.default and _sizes(node) == _sizes(node.args[0]):
            _replace(graph, node, node.args[0])
        elif node.target is aten.permute.default:
            _join_permutations(graph, node)
        elif node.target is aten.where.self and _guards_unmasked_softmax(node):
            _replace(graph, node, node.args[2])
    changed = _drop_kept_state(step)
    graph.eliminate_dead_code()
    step.graph.recompile()
    return changed


def _replace(graph: Graph, node: Node, by: Node) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def _sizes(node: Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]


def _free_axis(node: Node) -> None:
    """Write -1 for the only symbolic size of a view, which then needs no arithmetic on it.

    The view becomes a reshape, since without the copies its input may have other strides.
    """
    node.target = aten.reshape.default
    sizes = list(node.args[1])
    unknown = [index for index, size in enumerate(sizes) if not isinstance(size, int)]
    if len(unknown) == 1 and -1 not in sizes and 0 not in sizes:
        sizes[unknown[0]] = -1
        node.args = (node.args[0], sizes)


def _join_permutations(graph: Graph, node: Node) -> None:
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


def _guards_unmasked_softmax(node: Node) -> bool:
    """Return whether the node zeroes the rows that a mask left empty, behind a softmax without a mask.

    torch's attention always zeroes them. A row of scores that are all -inf by overflow gives NaN without that, as an
    overflow should.
    """
    condition, _, softmax = node.args
    for target in (aten.logical_not.default, aten.any.dim, aten.logical_not.default, aten.eq.Scalar):
        if getattr(condition, "target", None) is not target:
            return False
        condition = condition.args[0]
    if getattr(softmax, "target", None) is not aten._softmax.default:
        return False
    scores = softmax.args[0]
    while scores.target in RESHAPES:
        scores = scores.args[0]
    return scores.target in (aten.bmm.default, aten.mm.default)


def _drop_kept_state(step: Step) -> set[str]:
    """Remove the outputs of buffers that keep their value; return the names of the other buffers."""
    result = step.graph.graph.output_node()
    input_names = dict(zip((n for n in step.graph.graph.nodes if n.op == "placeholder"), step.inputs, strict=True))
    outputs = [
        (node, name)
        for node, name in zip(result.args[0], step.outputs, strict=True)
        if not (name.startswith(STATE_PREFIX) and input_names.get(node) == name.removeprefix(STATE_PREFIX))
    ]
    result.args = ([node for node, _ in outputs],)
    return {name.removeprefix(STATE_PREFIX) for _, name in outputs if name.startswith(STATE_PREFIX)}
