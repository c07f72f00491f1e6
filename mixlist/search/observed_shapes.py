"""Read shapes that depend on data from a run of the reference.

The shapes of a model's tensors follow from the shapes of its inputs, except where a model computes a shape from data,
as the number of frames of a spoken text. One run on a batch shows these shapes in the main graph. In bodies of Loop,
Scan and If they stay unknown, and ML618 names what the share of matrix work does not count: such nodes, products that
are empty, operators without a formula, and loops and branches, which count as one iteration or the costlier branch. A
batch may leave a tensor empty, as a detector does that finds nothing; then the next batch shows more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mixlist.checker.check_sessions import CheckSessions
from mixlist.errors import ModelError
from mixlist.model import dtypes
from mixlist.model.graph import Graph
from mixlist.model.load import LoadedModel
from mixlist.model.naming import NameGenerator, names_in
from mixlist.model.protos import copy_message
from mixlist.model.prune import prune_model
from mixlist.model.shape_propagation import Shape
from mixlist.run.feeds import find_shapes
from mixlist.targets.estimate import Costs, estimate_costs

if TYPE_CHECKING:
    from mixlist.run.session import Feed


def estimate_observed_costs(
    loaded: LoadedModel, graph: Graph, feeds: Sequence[Feed], sessions: CheckSessions
) -> tuple[dict[str, Shape], Costs]:
    """Return shapes by the names of inputs and of tensors whose shape depends on data, and the costs that follow.

    ``feeds``: at least one batch. The shapes are those of the first batch in which no shape that depends on data is
    empty, or of the first batch.
    """
    candidates = []
    for feed in feeds:
        shapes = find_shapes(feed)
        costs = estimate_costs(graph, {}, shapes)
        if observed := _observe_shapes(loaded, costs, feed, sessions):
            shapes |= observed
            costs = estimate_costs(graph, {}, shapes)
        candidates.append((shapes, costs))
        if all(map(all, observed.values())):
            return shapes, costs
    return candidates[0]


def _observe_shapes(loaded: LoadedModel, costs: Costs, feed: Feed, sessions: CheckSessions) -> dict[str, Shape]:
    """Return the shapes of the tensors of the main graph whose shape ``costs`` does not know, by name in the file.

    ``feed``: the batch to run, with its low-precision inputs in float32. No model runs if every shape is known.
    """
    from onnx import helper

    shapes = costs.known_shapes.shapes
    names = [
        value.name_in_file
        for node in costs.graph.root.nodes
        for value in node.outputs
        if value is not None and value not in shapes and isinstance(value.type, int)
    ]
    if not names:
        return {}
    proto = copy_message(sessions.reference_graph(loaded))
    generator = NameGenerator(names_in(proto.graph))
    shape_names = [generator.make_name(f"{name}_shape") for name in names]
    for name, shape_name in zip(names, shape_names, strict=True):
        proto.graph.node.append(helper.make_node("Shape", [name], [shape_name]))
        proto.graph.output.append(helper.make_tensor_value_info(shape_name, dtypes.INT64, [None]))
    prune_model(proto, shape_names)
    # The check has run the reference on this batch. If ONNX Runtime refuses this part of it, the shapes stay unknown.
    with suppress(ModelError), sessions.cpu_session(proto, loaded) as session:
        results = session.run(shape_names, feed)
        return {name: tuple(map(int, shape)) for name, shape in zip(names, results, strict=True)}
    return {}
