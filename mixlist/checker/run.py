"""The check: the original in float32 and the mixed model, batch by batch, judged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mixlist.checker import accuracy, counts
from mixlist.checker.findings import node_findings, tensor_ranges
from mixlist.checker.instrument import Instrumented, Key, Probe, instrument
from mixlist.checker.internal import Bodies
from mixlist.checker.layerwise import DIFFERENCE, REFERENCE, Twins, low_nodes, ranking
from mixlist.checker.observe import Observer
from mixlist.checker.overflow import SENTINEL, Range, Tally, classify
from mixlist.checker.result import CheckReport, NodeError
from mixlist.checker.task import TaskAccuracy
from mixlist.checker.wiring import Wired, wire
from mixlist.errors import ModelError, UsageError
from mixlist.graph.build import build_main
from mixlist.graph.io import Loaded, load
from mixlist.graph.model import POLICY_KEY, Node
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.resolver import Plan, resolve
from mixlist.rewriter import rewrite
from mixlist.rewriter.emulate import FINITE_MAX, LOW, emulate, raise_low, widen
from mixlist.runtime.feeds import Batches, as_batches
from mixlist.runtime.inputs import model_inputs
from mixlist.runtime.isolated import Crashed, make_runner
from mixlist.runtime.kernels import has_low_kernel
from mixlist.runtime.sessions import faithful


@dataclass
class Pair:
    """The two models of a check: the reference in float32 and the mixed one, both observed."""

    original: Loaded
    mixed: Loaded
    plan: Plan | None
    way: Way
    reference: Observer
    ours: Observer
    wired: list[Wired]
    low: dict[Key, int]
    renamed: dict[str, str]
    sources: dict[Key, Key]  # tensors that only move another one's values
    warnings: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Let both sessions go."""
        self.reference.close()
        self.ours.close()


def check(
    model: Any,
    policy: Policy,
    data: Any,
    *,
    against: Any = None,
    provider: str = "cpu",
    isolate: bool = False,
    overflow_mode: str = "inf",
    full_statistics: bool = False,
    steps: int | None = None,
    max_exception_rate: float = 0.005,
    limits: accuracy.Limits | None = None,
    labels: Any = None,
    baseline: str = "float32",
    layerwise: bool = False,
    per_tensor: bool = False,
    progress: Callable[[int], None] | None = None,
) -> CheckReport:
    """Whether ``model`` under ``policy`` overflows on ``data``, and how far its outputs are from float32.

    ``data``: a path or several (contract, data options), or feeds, each a mapping of input names to arrays;
    ``against`` is a mixed model that is judged instead of the one that the policy makes. On CUDA it runs as it is; on
    the CPU it is emulated in float32 with every low value rounded, since ONNX Runtime's CPU provider hides float16.
    With ``isolate`` the sessions run in processes of their own, and a crash is a finding. ``steps`` looks at no more
    batches than that;
    ``labels`` are the right answers to the batches' samples (``task.read_labels``); ``layerwise`` ranks the low nodes
    by the error that each adds itself; ``per_tensor`` and ``full_statistics`` report every tensor's range.
    ``baseline`` float64 computes the reference in double where ONNX Runtime has such kernels.
    ``max_exception_rate`` is the share of batches with an overflow at which the check fails.
    ``progress`` is told each batch. Raises UsageError where there is no data.
    """
    if overflow_mode not in ("inf", "saturate"):
        raise UsageError(f"overflow mode {overflow_mode!r}: it is inf or saturate")
    if baseline not in ("float32", "float64"):
        raise UsageError(f"baseline {baseline!r}: it is float32 or float64")
    limits = limits or accuracy.Limits()
    clock = _Clock()
    with clock.phase("prepare"):
        pair = _pair(model, policy, against, Way(provider, isolate, overflow_mode == "saturate", baseline == "float64"))
        batches = as_batches(data, pair.original.proto)
    judged = [accuracy.OutputAccuracy(name) for name in pair.ours.own]
    tallies: dict[Key, Tally] = {}
    spans: dict[Key, tuple[Range, Range]] = {}
    task = TaskAccuracy(labels) if labels is not None else None
    exceptions, count, crash = 0, 0, ""
    for index, feed in enumerate(batches):
        if steps is not None and index >= steps:
            break
        try:
            with clock.phase("reference"):
                exact, exact_ranges = pair.reference.run(feed)
            with clock.phase("mixed"):
                ours, mixed_ranges = pair.ours.run(feed)
        except Crashed as problem:
            crash = str(problem)
            break
        mixed_ranges = _by_original_scope(mixed_ranges, pair.renamed)
        exceptions += classify(index, pair.wired, exact_ranges, mixed_ranges, pair.low, pair.way.saturate, tallies)
        _widen(spans, exact_ranges, mixed_ranges)
        for output, one, other in zip(judged, exact, ours, strict=True):
            output.add(one, other)
        if task is not None:
            names = pair.ours.own
            task.add(dict(zip(names, exact, strict=True)), dict(zip(names, ours, strict=True)))
        count += 1
        if progress is not None:
            progress(1)
    if not count and not crash:
        raise UsageError("there is no batch to check", hint="give --data or --random")
    rate = exceptions / max(count, 1)
    outputs = tuple(output.finding(limits) for output in judged)
    with clock.phase("second look"):
        _look_again(pair, batches, tallies)
        _look_inside(pair, batches, tallies, full_statistics)
    pair.close()
    masks = {key for key, tally in tallies.items() if "intended" in tally.batches}
    errors = rank_layers(pair, batches, steps, masks) if layerwise else ()
    nodes = node_findings(pair.plan, tallies, pair.low)
    reasons = ([crash] if crash else []) + _reasons(exceptions, count, rate, max_exception_rate, outputs)
    warnings = [*pair.warnings, *batches.notes, *(note for output in judged for note in output.notes())]
    warnings += task.notes() if task is not None else ()
    return CheckReport(
        model=pair.original.name,
        verdict="fail" if reasons else "pass",
        reasons=tuple(reasons) or ("no batch overflowed and every output keeps its limits",),
        provider=provider,
        mode=pair.way.mode,
        precision=policy.mode.low,
        batches=count,
        exception_rate=rate,
        limits={"exception_rate": max_exception_rate, **limits.asked()},
        nodes=nodes,
        outputs=outputs,
        tensors=tensor_ranges(pair.wired, spans, pair.low) if per_tensor or full_statistics else (),
        layerwise=errors,
        task=task.result() if task is not None else None,
        warnings=tuple(warnings),
        seconds=clock.seconds,
    )


def _reasons(exceptions: int, count: int, rate: float, limit: float, outputs: tuple[Any, ...]) -> list[str]:
    found = []
    if exceptions and rate >= limit:
        found.append(f"{exceptions} of {count} batches overflow: {rate:.2%}, the limit is {limit:.2%}")
    for output in outputs:
        if not output.passed:
            found.append(f"output {output.name!r} misses {', '.join(output.failed_limits)}")
    return found


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


def _look_again(pair: Pair, batches: Batches, tallies: dict[Key, Tally]) -> None:
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


def _look_inside(pair: Pair, batches: Batches, tallies: dict[Key, Tally], every: bool) -> None:
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


@dataclass(frozen=True)
class Way:
    """How the two models run: on which provider, in a process of their own or not, saturating or not."""

    provider: str
    isolate: bool
    saturate: bool
    wide: bool = False  # the reference in float64 where the operators allow it

    @property
    def mode(self) -> Literal["emulated", "native"]:
        """Real low precision where the provider has it; the CPU provider hides it."""
        return "emulated" if self.provider == "cpu" else "native"

    def observe_mixed(self, mixed: Loaded, observed: Instrumented, own: list[str]) -> Observer:
        """The mixed model, observed: emulated in float32, or as it is."""
        if self.mode == "native":
            return Observer(observed, self._runner(observed.proto, mixed), own)
        proto = emulate(replace(mixed, proto=observed.proto), saturate=self.saturate)
        return Observer(observed, self._runner(proto, mixed), own, model_inputs(mixed.proto))

    def observe_reference(self, original: Loaded, exact: Instrumented, own: list[str]) -> Observer:
        """The original in float32, observed."""
        raised = replace(original, proto=raise_low(replace(original, proto=exact.proto)))
        inputs = model_inputs(original.proto)
        if not self.wide:
            return Observer(exact, self._runner(raised.proto, original), own, inputs)
        try:
            runner = self.plain_runner(widen(raised, _computes_double), original)
        except ModelError as problem:
            raise ModelError(
                f"the reference of {original.name} cannot be computed in float64: {problem.message}",
                hint="use --baseline float32",
            ) from None
        return Observer(exact, runner, own, inputs, wide=True)

    def plain_runner(self, proto: Any, loaded: Loaded) -> Any:
        """A session of a float32 graph on the CPU."""
        return make_runner(proto, isolate=self.isolate, folder=loaded.folder)

    def _runner(self, proto: Any, loaded: Loaded) -> Any:
        return make_runner(proto, isolate=self.isolate, provider=self.provider, folder=loaded.folder)


# --- the two models ---


# ONNX Runtime 1.31.1's CPU provider registers float64 kernels of these and refuses to run them.
_CLAIM_DOUBLE = frozenset({"LSTM", "GRU", "RNN"})


def _computes_double(node: Node) -> bool:
    """Whether ONNX Runtime's CPU provider has a float64 kernel of the node's operator."""
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or node.op_type in _CLAIM_DOUBLE:
        return False
    outputs = tuple(i for i, v in enumerate(node.outputs) if v is not None and types.element(v.type) == types.FLOAT)
    return has_low_kernel("cpu", node.domain, node.op_type, schema.since, "double", outputs)


def _pair(model: Any, policy: Policy, against: Any, way: Way) -> Pair:
    original = load(model)
    warnings = []
    if against is None:
        plan = resolve(original, policy)
        result = rewrite(original, plan)
        mixed = replace(original, proto=result.proto)
        warnings += [str(w) for w in plan.warnings]
        if any(p.key == POLICY_KEY for p in original.proto.metadata_props):
            warnings.append(
                f"{original.name} is an output of mixlist: what it lost to rounding of constants is not seen; "
                "check its original with --against"
            )
    else:
        plan, mixed = None, load(against)
        _same_outputs(original, mixed)
    unfaithful = faithful(way.provider)
    if unfaithful:
        raise ModelError(f"this ONNX Runtime cannot be trusted to check: {unfaithful}")
    observed, exact = instrument(mixed.proto), instrument(original.proto)
    renamed = _renamed(mixed.proto)
    low = {replace_scope(p.key, renamed): p.elem for p in observed.probes if p.elem in LOW}
    if not low:
        warnings.append("no node is low: the mixed model is the original")
    return Pair(
        original,
        mixed,
        plan,
        way,
        way.observe_reference(original, exact, _names(original.proto)),
        way.observe_mixed(mixed, observed, _names(original.proto)),
        wire(build_main(original.proto)),
        low,
        renamed,
        {p.key: p.source for p in exact.probes if p.source is not None},
        warnings,
    )


def _names(proto: Any) -> list[str]:
    return [o.name for o in proto.graph.output]


def _same_outputs(original: Loaded, mixed: Loaded) -> None:
    missing = [n for n in _names(original.proto) if n not in _names(mixed.proto)]
    if missing:
        raise UsageError(f"{mixed.name} has no output {missing[0]!r}, which {original.name} has")


def _renamed(proto: Any) -> dict[str, str]:
    """Scope of a function that mixlist specialised, to the scope of the function it was made from."""
    found = {}
    for function in proto.functions:
        for entry in function.metadata_props:
            if entry.key == "pkg.mixlist.function":
                base = f"function:{function.domain}:"
                found[f"{base}{function.name}"] = f"{base}{entry.value}"
    return found


def replace_scope(key: Key, renamed: Mapping[str, str]) -> Key:
    """The Key by the name that the original gives the function."""
    if not renamed or not key.scope.startswith("function:"):
        return key
    head, slash, rest = key.scope.partition("/")
    return Key(f"{renamed.get(head, head)}{slash}{rest}", key.node, key.slot)


def _by_original_scope(ranges: dict[Key, Range], renamed: Mapping[str, str]) -> dict[Key, Range]:
    """Specialisations of one function are one function to the original."""
    if not renamed:
        return ranges
    found: dict[Key, Range] = {}
    for key, span in ranges.items():
        plain = replace_scope(key, renamed)
        found[plain] = _union(found[plain], span) if plain in found and span.ran else found.get(plain, span)
    return found


def _widen(spans: dict[Key, tuple[Range, Range]], exact: Mapping[Key, Range], ours: Mapping[Key, Range]) -> None:
    for key, one in exact.items():
        other = ours.get(key)
        if other is None or not (one.ran and other.ran):
            continue
        before = spans.get(key)
        spans[key] = (one, other) if before is None else (_union(before[0], one), _union(before[1], other))


def _union(one: Range, other: Range) -> Range:
    when = one.when if one.when is not None else other.when
    return Range(min(one.minimum, other.minimum), max(one.maximum, other.maximum), one.nan or other.nan, True, when)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Any:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
