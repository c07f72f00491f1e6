"""Further looks at the data, where the ranges of the first call for them: counts, layers, the insides of operators."""

from __future__ import annotations

import math

from mixlist.checker import value_counts
from mixlist.checker.counting_sessions import Counter
from mixlist.checker.function_body_overflow import Bodies, has_body
from mixlist.checker.layerwise import DIFFERENCE, REFERENCE, Twins, nodes_with_low_outputs, ranking
from mixlist.checker.model_pair import Pair
from mixlist.checker.overflow import SENTINEL, Tally
from mixlist.checker.result import NodeError
from mixlist.emulation.observer import Observer
from mixlist.errors import ModelError
from mixlist.graph.build import build_main
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX
from mixlist.runtime.feeds import Batches
from mixlist.runtime.inputs import model_inputs


def rank_layers(pair: Pair, batches: Batches, steps: int | None, masks: set[TensorRef]) -> tuple[NodeError, ...]:
    """The nodes by the error that each adds when all it reads is exact, over all batches; ``masks`` are left out."""
    reference = pair.way.raised(pair.original)
    twins = Twins(reference, nodes_with_low_outputs(build_main(pair.mixed.proto)), lambda probe: probe.key not in masks)
    made = twins.run()
    observer = Observer(made, pair.way.plain_runner(made.proto, pair.original), [], model_inputs(pair.original.proto))
    sums: dict[tuple[TensorRef, str], float] = {}
    for index, feed in enumerate(batches):
        if steps is not None and index >= steps:
            break
        for key, total in observer.totals(feed, (DIFFERENCE, REFERENCE)).items():
            sums[key] = sums.get(key, 0.0) + total
    observer.close()
    return ranking(sums, {p.key: p.op_type for p in made.probes})


def look_again(pair: Pair, batches: Batches, tallies: dict[TensorRef, Tally]) -> None:
    """Count the values behind the findings, in the first batch where each arose."""
    chosen = value_counts.suspects(tallies)
    if not chosen:
        return
    keys, low = set().union(*chosen.values()), next(iter(pair.low.values()), types.FLOAT16)
    ours = Counter.of(pair, True, value_counts.of_mixed(low), keys)
    exact = Counter.of(pair, False, value_counts.of_reference(low), keys)
    for index, feed in enumerate(batches):
        if index not in chosen:
            continue
        (mixed, _), (reference, _) = ours.count(feed), exact.count(feed)
        for key in chosen[index]:
            tally = tallies[key]
            for kind in (k for k, where in tally.batches.items() if index in where and k != "intended"):
                found = value_counts.number(kind, key, mixed, reference)
                tally.counts[kind] = max(found, tally.counts.get(kind, 0))
        if index == max(chosen):
            break
    ours.close()
    exact.close()


def look_inside(pair: Pair, batches: Batches, tallies: dict[TensorRef, Tally], most: int | None) -> None:
    """Add an ``internal-risk`` where an operator's function body passes the low range and its output does not.

    Looks at the first ``most`` batches, None for all. What ONNX Runtime cannot run written out is passed over.
    """
    low_nodes = {tensor.producer for tensor in pair.low}
    if not any(n.ref in low_nodes and has_body(n.node, n.graph.opsets.get(n.node.domain, 0)) for n in pair.wired):
        return
    made = Bodies(pair.way.raised(pair.original), nodes_with_low_outputs(build_main(pair.mixed.proto))).run()
    if not made.outputs:
        return
    try:
        runner = pair.way.plain_runner(made.proto, pair.original)
    except ModelError:
        pair.warnings.append("ONNX Runtime does not take the operators' function bodies: no look inside operators")
        return
    observer = Observer(made, runner, [], model_inputs(pair.original.proto))
    nodes = {node.ref: node for node in pair.wired}
    observed = dict.fromkeys(key for key, _ in made.outputs)
    for index, feed in enumerate(batches):
        if most is not None and index >= most:
            break
        _, ranges = observer.run(feed)
        for key in observed:
            span, tally, elem = ranges.get(key), tallies.get(key), pair.low.get(key)
            if span is None or elem is None or not FINITE_MAX[elem] <= span.magnitude < SENTINEL:
                continue  # beyond it is a mask on its way through
            if any("intended" in tallies[s.ref].batches for s in nodes[key.producer].inputs if s.ref in tallies):
                continue
            if nodes[key.producer].node.op_type == "Softmax" and span.maximum < FINITE_MAX[elem]:
                continue  # scores less the largest one: what falls to -inf is zero in the end, as it should be
            if tally is None:
                tally = tallies[key] = Tally(nodes[key.producer], key)
            if tally.mixed < math.inf:
                tally.reference = max(tally.reference, span.magnitude)
                tally.batches.setdefault("internal-risk", []).append(index)
    observer.close()
