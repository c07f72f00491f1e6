"""Count what a mixed model does: its low nodes, its Casts, and the bytes that it moves in the shapes of a batch.

The figures are those of a model file or message, whichever tool made it, so that results of all tools compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan

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


def find_shapes(original: Any, feed: Mapping[str, Any]) -> Shapes:
    """Return the shapes of a batch's inputs, and of the tensors whose shape depends on data, which a run shows."""
    from mixlist.checker.check_sessions import CheckSessions
    from mixlist.model.build import build_graph
    from mixlist.model.load import load_model
    from mixlist.run.executors import open_process
    from mixlist.search.observed_shapes import estimate_observed_costs

    loaded = load_model(original)
    with open_process() as workers:
        sessions = CheckSessions("cpu", workers, False, skip_optimization=True)
        shapes, _ = estimate_observed_costs(loaded, build_graph(loaded.proto), [feed], sessions)
    return {name: tuple(shape) for name, shape in shapes.items()}


def count_bytes(model: Any, shapes: Shapes) -> tuple[int, int]:
    """Return the bytes that a model moves in these shapes, and the number of nodes whose shapes are not known."""
    from mixlist.targets.estimate import estimate_work

    work = estimate_work(model, None, shapes)
    return work.bytes, len(work.unknown)
