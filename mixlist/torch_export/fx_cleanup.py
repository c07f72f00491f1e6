"""What tracing leaves in a step's graph that ONNX Runtime need not compute, taken out before the export."""

from __future__ import annotations

from typing import Any

import torch

from mixlist.torch_export.tracing import Step

aten = torch.ops.aten
COPIES = (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)

RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def tidy(step: Step) -> set[str]:
    """Simplifies ``step.graph`` in place; returns the buffers whose value the step changes.

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


def _replace(graph: Any, node: Any, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def _sizes(node: Any) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]


def _free_axis(node: Any) -> None:
    """A view with one symbolic size needs no arithmetic on it: -1 says the same.

    A reshape, since without the copies its input may have other strides.
    """
    node.target = aten.reshape.default
    sizes = list(node.args[1])
    unknown = [index for index, size in enumerate(sizes) if not isinstance(size, int)]
    if len(unknown) == 1 and -1 not in sizes and 0 not in sizes:
        sizes[unknown[0]] = -1
        node.args = (node.args[0], sizes)


def _join_permutations(graph: Any, node: Any) -> None:
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


def _guards_unmasked_softmax(node: Any) -> bool:
    """torch's attention sets rows of a softmax to zero where a mask left nothing; without a mask there are none.

    A row of scores that are all -inf by overflow then gives NaN, as an overflow should.
    """
    softmax = node.args[2]
    if getattr(softmax, "target", None) is not aten._softmax.default:
        return False
    scores = softmax.args[0]
    condition = node.args[0]
    chain = (aten.logical_not.default, aten.any.dim, aten.logical_not.default, aten.eq.Scalar)
    for target in chain:
        if getattr(condition, "target", None) is not target:
            return False
        condition = condition.args[0]
    while scores.target in RESHAPES:
        scores = scores.args[0]
    return scores.target in (aten.bmm.default, aten.mm.default)


def _drop_kept_state(step: Step) -> set[str]:
    result = step.graph.graph.output_node()
    holders = dict(zip((n for n in step.graph.graph.nodes if n.op == "placeholder"), step.inputs, strict=True))
    kept, changed = [], set()
    for node, name in zip(result.args[0], step.outputs, strict=True):
        buffer = name.removeprefix("state.") if name.startswith("state.") else None
        if buffer is not None and holders.get(node) == buffer:
            continue
        if buffer is not None:
            changed.add(buffer)
        kept.append(node)
    result.args = (kept,)
    return changed
