"""Count what a mixed model does: its low nodes, its Casts, and the bytes that it moves in the shapes of a batch.

The figures are those of a model file or message, whichever tool made it, so that results of all tools compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan
    from mixlist.targets.estimate import Work

Shapes = dict[str, tuple[int, ...]]
NOT_COUNTED = ("Cast", "Constant")  # they compute nothing


def count_low_nodes(plan: Plan) -> tuple[int, int]:
    """Return the number of low nodes and of all nodes that compute with floats, without Casts and Constants."""
    precisions = [node.precision for node in plan.nodes if node.op_type not in NOT_COUNTED or node.domain]
    low = sum(precision in ("float16", "bfloat16") for precision in precisions)
    return low, low + precisions.count("float32")


def count_low_nodes_of_result(mixed: Any) -> tuple[int, int]:
    """Return what ``count_low_nodes`` returns, for the types that a model has."""
    import mixlist

    # "origin" keeps the types of the file, so the plan says what the tool decided.
    return count_low_nodes(mixlist.resolve(mixed, mixlist.load_policy(precision_mode_v2="origin")))


def count_casts_in(model: Any) -> int:
    """Return the number of Casts of an onnx.ModelProto, in all its graphs."""
    from mixlist.model.protos import nodes_in

    return sum(node.op_type == "Cast" and not node.domain for node in nodes_in(model.graph))


@dataclass(frozen=True)
class BytesMoved:
    """The bytes that a model moves, and the number of nodes that are not counted: their shapes are not known.

    Casts that are not counted are left out of ``uncounted``, because a result has more of them than the original.
    """

    total: int
    uncounted: int


def find_original_work(original: Any, feed: Mapping[str, Any]) -> tuple[Shapes, BytesMoved]:
    """Return the shapes of a batch's inputs and of tensors whose shape depends on data, and the bytes of the original.

    A run of the model shows the shapes that depend on data.
    """
    from mixlist.checker.check_sessions import CheckSessions
    from mixlist.model.build import build_graph
    from mixlist.model.load import load_model
    from mixlist.run.executors import open_process
    from mixlist.search.observed_shapes import estimate_observed_costs

    loaded = load_model(original)
    with open_process() as workers:
        sessions = CheckSessions("cpu", workers, False, skip_optimization=True)
        graph = build_graph(loaded.proto, show_marked_casts=True)
        shapes, costs = estimate_observed_costs(loaded, graph, [feed], sessions)
    moved = BytesMoved(
        sum(cost.bytes for cost in costs.nodes.values() if not cost.unknown),
        sum(
            node.op_type != "Cast" and bool(costs.nodes[node.id].unknown)
            for node in graph.nodes
            if node.id in costs.nodes
        ),
    )
    return {name: tuple(shape) for name, shape in shapes.items()}, moved


def count_bytes(model: Any, shapes: Shapes) -> BytesMoved:
    """Return the bytes that a model moves in these shapes."""
    from mixlist.targets.estimate import estimate_work

    return bytes_of(estimate_work(model, None, shapes))


def bytes_of(work: Work) -> BytesMoved:
    """Return the bytes of an estimate."""
    return BytesMoved(work.bytes, sum(node.op_type != "Cast" for node in work.unknown))


def compare_bytes(original: BytesMoved, result: BytesMoved) -> float | None:
    """Return the bytes of the result relative to the original; None if the result has more nodes without known shapes.

    Such a result would appear to move fewer bytes.
    """
    return result.total / original.total if original.total and result.uncounted <= original.uncounted else None
