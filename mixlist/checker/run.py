"""The check: the original in float32 and the mixed model, batch by batch, judged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mixlist.checker import accuracy
from mixlist.checker.counting import Census, Hidden
from mixlist.checker.findings import node_findings, tensor_ranges
from mixlist.checker.hints import hinted
from mixlist.checker.instrument import Key
from mixlist.checker.looks import look_again, look_inside, rank_layers
from mixlist.checker.overflow import Batch, Range, Tally, classify
from mixlist.checker.pair import Way, make_pair, replace_scope
from mixlist.checker.result import CheckReport, NodeError
from mixlist.checker.task import TaskAccuracy
from mixlist.errors import UsageError
from mixlist.graph.io import load
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import as_batches
from mixlist.runtime.isolated import Crashed, Process

QUICK = 20  # batches from which optimised sessions pay: they load 60 ms slower and run 3 ms faster (nudenet_320n)


_LARGEST = float.fromhex("0x1.fffffep127")  # of float32


def check(
    model: Any,
    policy: Policy,
    data: Any,
    *,
    against: Any = None,
    provider: str = "cpu",
    isolate: bool | Process = False,
    overflow_mode: str = "inf",
    full_statistics: bool = False,
    steps: int | None = None,
    max_exception_rate: float = 0.005,
    limits: accuracy.Limits | None = None,
    labels: Any = None,
    baseline: str = "float32",
    layerwise: bool = False,
    per_tensor: bool = False,
    type_hints: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> CheckReport:
    """Whether ``model`` under ``policy`` overflows on ``data``, and how far its outputs are from float32.

    ``data``: a path or several (contract, data options), or feeds, each a mapping of input names to arrays;
    ``against`` is a mixed model that is judged instead of the one that the policy makes. On CUDA it runs as it is; on
    the CPU it is emulated in float32 with every low value rounded, since ONNX Runtime's CPU provider hides float16.
    With ``isolate`` the sessions run in a process of their own, or in the one given, and a crash is a finding.
    ``steps`` looks at no more batches than that;
    ``labels`` are the right answers to the batches' samples (``task.read_labels``); ``layerwise`` ranks the low nodes
    by the error that each adds itself; ``per_tensor`` and ``full_statistics`` report every tensor's range.
    ``baseline`` float64 computes the reference in double where ONNX Runtime has such kernels.
    ``max_exception_rate`` is the share of batches with an overflow at which the check fails.
    ``type_hints`` names the types of tensors that custom operators make, as for ``resolve``.
    ``progress`` is told each batch. Raises UsageError where there is no data.
    """
    if overflow_mode not in ("inf", "saturate"):
        raise UsageError(f"overflow mode {overflow_mode!r}: it is inf or saturate")
    if baseline not in ("float32", "float64"):
        raise UsageError(f"baseline {baseline!r}: it is float32 or float64")
    limits = limits or accuracy.Limits()
    clock = _Clock()
    with clock.phase("prepare"):
        process = Process() if isolate is True else isolate
        original = hinted(load(model), type_hints)
        batches = as_batches(data, original.proto)
        quick = min(len(batches), steps or len(batches)) < QUICK
        way = Way(provider, process, overflow_mode == "saturate", baseline == "float64", quick)
        judged_instead = hinted(load(against), type_hints) if against is not None else None
        pair = make_pair(original, policy, judged_instead, way)
    judged = [accuracy.OutputAccuracy(name) for name in pair.ours.own]
    tallies: dict[Key, Tally] = {}
    spans: dict[Key, tuple[Range, Range]] = {}
    task = TaskAccuracy(labels) if labels is not None else None
    hidden = Hidden(pair)
    census = Census(pair) if full_statistics else None
    exceptions, count, crash = 0, 0, ""
    for index, feed in enumerate(batches):
        if steps is not None and index >= steps:
            break
        try:
            with clock.phase("reference"):
                exact, exact_ranges = pair.reference.run(feed)
            with clock.phase("mixed"):
                ours, mixed_ranges = pair.ours.run(feed)
            mixed_ranges = _by_original_scope(mixed_ranges, pair.renamed)
            if pair.way.wide:
                exact_ranges = {k: _in_float32(span) if k in pair.low else span for k, span in exact_ranges.items()}
            batch = Batch(index, exact_ranges, mixed_ranges, pair.low, pair.way.saturate)
            with clock.phase("counts"):
                batch = hidden.look(feed, batch)
                if census is not None:
                    batch = replace(batch, counts=census.add(feed))
        except Crashed as problem:
            crash = str(problem)
            break
        exceptions += classify(batch, pair.wired, tallies)
        if census is not None:
            census.number(index, tallies)
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
    errors: tuple[NodeError, ...] = ()
    try:
        if not crash:
            with clock.phase("second look"):
                if census is None:
                    look_again(pair, batches, tallies)
                look_inside(pair, batches, tallies, steps if full_statistics else 1)
            masks = {key for key, tally in tallies.items() if "intended" in tally.batches}
            errors = rank_layers(pair, batches, steps, masks) if layerwise else ()
    except Crashed as problem:
        pair.warnings.append(f"the look at the findings ended early: {problem}")
    for each in (pair, hidden, census):
        if each is not None:
            each.close()
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
        tensors=tensor_ranges(pair.wired, spans, pair.low, census) if per_tensor or full_statistics else (),
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


def _by_original_scope(ranges: dict[Key, Range], renamed: Mapping[str, str]) -> dict[Key, Range]:
    """Specialisations of one function are one function to the original."""
    if not renamed:
        return ranges
    found: dict[Key, Range] = {}
    for key, span in ranges.items():
        plain = replace_scope(key, renamed)
        found[plain] = _union(found[plain], span) if plain in found and span.ran else found.get(plain, span)
    return found


def _in_float32(span: Range) -> Range:
    """What float64 holds and float32 does not is not finite in float32: no fault of the list."""
    if not span.ran or span.magnitude <= _LARGEST or not span.finite:
        return span
    low = -math.inf if span.minimum < -_LARGEST else span.minimum
    high = math.inf if span.maximum > _LARGEST else span.maximum
    return Range(low, high, span.nan, True, 0)


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
