"""Further looks at the data, where the ranges of the first call for them: counts, layers, the insides of operators."""

from __future__ import annotations

import math

from mixlist.checker import counts
from mixlist.checker.instrument import Key, Probe, instrument
from mixlist.checker.internal import Bodies
from mixlist.checker.layerwise import DIFFERENCE, REFERENCE, Twins, low_nodes, ranking
from mixlist.checker.observe import Observer
from mixlist.checker.overflow import SENTINEL, Tally
from mixlist.checker.pair import Pair, replace_scope
from mixlist.checker.result import NodeError
from mixlist.errors import ModelError
from mixlist.graph.build import build_main
from mixlist.ops import types
from mixlist.rewriter.emulate import FINITE_MAX, raise_low
from mixlist.runtime.feeds import Batches
from mixlist.runtime.inputs import model_inputs


def rank_layers(pair: Pair, batches: Batches, steps: int | None, masks: set[Key]) -> tuple[NodeError, ...]:
    """The nodes by the error that each adds when all it reads is exact, over all batches; ``masks`` are left out."""
    reference = raise_low(pair.original)
    twins = Twins(reference, low_nodes(build_main(pair.mixed.proto)), lambda probe: probe.key not in masks)
    made = twins.run()
    observer = Observer(made, pair.way.plain_runner(made.proto, pair.original), [], model_inputs(pair.original.proto))
    sums: dict[tuple[Key, str], float] = {}
    for index, feed in enumerate(batches):
        if steps is not None and index >= steps:
            break
        for key, total in observer.counts(feed, (DIFFERENCE, REFERENCE)).items():
            sums[key] = sums.get(key, 0.0) + total
    observer.close()
    return ranking(sums, {p.key: p.op_type for p in made.probes})


def look_again(pair: Pair, batches: Batches, tallies: dict[Key, Tally]) -> None:
    """Count the values behind the findings, in the first batch where each arose."""
    chosen = counts.suspects(tallies)
    if not chosen:
        return
    ours, exact = _counters(pair, set().union(*chosen.values()))
    for index, feed in enumerate(batches):
        if index not in chosen:
            continue
        mixed = {(replace_scope(k, pair.renamed), s): n for (k, s), n in ours.counts(feed, counts.NAMES).items()}
        reference = exact.counts(feed, counts.NAMES)
        for key in chosen[index]:
            tally, source = tallies[key], pair.sources.get(key, key)
            for kind in tally.batches:
                found = counts.number(kind, source, mixed, reference)
                tally.counts[kind] = max(found, tally.counts.get(kind, 0))
        if index == max(chosen):
            break


def look_inside(pair: Pair, batches: Batches, tallies: dict[Key, Tally], every: bool) -> None:
    """Add an ``internal-risk`` where an operator's function body passes the low range and its output does not.

    Looks at the first batch, at all with ``every``. What ONNX Runtime cannot run written out is passed over.
    """
    low = low_nodes(build_main(pair.mixed.proto))
    made = Bodies(raise_low(pair.original), low).run()
    if not made.outputs:
        return
    try:
        runner = pair.way.plain_runner(made.proto, pair.original)
    except ModelError:
        pair.warnings.append("ONNX Runtime does not take the operators' function bodies: no look inside operators")
        return
    observer = Observer(made, runner, [], model_inputs(pair.original.proto))
    nodes = {(w.path, w.label): w for w in pair.wired}
    observed = dict.fromkeys(key for key, _ in made.outputs)
    for index, feed in enumerate(batches):
        if index and not every:
            break
        _, ranges = observer.run(feed)
        for key in observed:
            span, tally, elem = ranges.get(key), tallies.get(key), pair.low.get(key)
            if span is None or elem is None or not FINITE_MAX[elem] <= span.magnitude < SENTINEL:
                continue  # beyond it is a mask on its way through
            if tally is None:
                tally = tallies[key] = Tally(nodes[key.scope, key.node], key)
            if tally.mixed < math.inf:
                tally.reference = max(tally.reference, span.magnitude)
                tally.batches.setdefault("internal-risk", []).append(index)
    observer.close()


def _counters(pair: Pair, keys: set[Key]) -> tuple[Observer, Observer]:
    sources = {pair.sources.get(key, key) for key in keys}
    low = next(iter(pair.low.values()), types.FLOAT16)
    statistics = counts.statistics(low)

    def wanted(probe: Probe) -> bool:
        return replace_scope(probe.key, pair.renamed) in sources

    observed = instrument(pair.mixed.proto, statistics, wanted)
    exact = instrument(pair.original.proto, statistics, wanted)
    return pair.way.observe_mixed(pair.mixed, observed, []), pair.way.observe_reference(pair.original, exact, [])
