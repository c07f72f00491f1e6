"""Pair each node of the original model with its counterpart in the rewritten model, by the values that they make."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tests.support.scopes import Scope, View, is_marked_cast, subgraphs

STANDARD = ("", "ai.onnx")


@dataclass
class ScopePair:
    """A scope before and after; ``nodes`` pairs the original's nodes with their counterparts."""

    before: Scope
    after: Scope
    nodes: list[tuple[onnx.NodeProto, onnx.NodeProto | None]]


class Pairing:
    """All pairs of scopes of two models."""

    def __init__(self, before: View, after: View) -> None:
        self.before, self.after = before, after
        self.pairs: list[ScopePair] = []
        self._pair(before.main, after.main)

    def _pair(self, old: Scope, new: Scope) -> None:
        pair = ScopePair(old, new, [(node, counterpart(node, new)) for node in old.nodes])
        self.pairs.append(pair)
        inner_old, inner_new = _children(old), _children(new)
        for node, rewritten in pair.nodes:
            if rewritten is None:
                continue
            for (name, _), (rewritten_name, _) in zip(subgraphs(node), subgraphs(rewritten), strict=True):
                self._pair(inner_old[id(node), name], inner_new[id(rewritten), rewritten_name])


def _children(scope: Scope) -> dict[tuple[int, str], Scope]:
    owners = [(id(node), name) for node in scope.nodes for name, _ in subgraphs(node)]
    return dict(zip(owners, scope.subscopes, strict=True))


def counterpart(node: onnx.NodeProto, after: Scope) -> onnx.NodeProto | None:
    """The node of the rewritten model that makes the same value; a Cast of mixlist may have its name now."""
    for i, name in enumerate(node.output):
        if not name:
            continue
        producer = after.producers.get(name)
        if is_marked_cast(producer) and not is_marked_cast(node):
            assert producer is not None
            producer = after.producers.get(producer.input[0])
        if producer is not None and len(producer.output) > i:
            return producer
    return None


def is_constant(node: onnx.NodeProto) -> bool:
    """Return whether the node is a Constant."""
    return node.op_type == "Constant" and node.domain in STANDARD
