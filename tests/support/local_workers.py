"""Run searches in the process of the test: an executor without threads, and trials that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import onnx

import mixlist
from mixlist import Limits, Policy
from mixlist.decide import Resolver
from mixlist.search.search_state import SearchState
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import TrialLimits
from mixlist.search.trials import Trials
from tests.support.package import Workers


class InProcessExecutor(Executor):
    """Run each task when it is submitted, in the thread of the caller."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def interrupt_at(last: int) -> Callable[[Any], None]:
    """Return a progress callback that raises KeyboardInterrupt at its call number ``last``, counted from 1."""
    count = 0

    def progress(_: Any) -> None:
        nonlocal count
        count += 1
        if count == last:
            raise KeyboardInterrupt

    return progress


def trials(
    proto: onnx.ModelProto | Path,
    rules: Policy,
    feeds: Sequence[Mapping[str, Any]],
    *,
    saturate: bool = False,
    limits: Limits | None = None,
    exception_rate: float = 0.005,
    base: mixlist.CheckReport | None = None,
    segment_bytes: int | None = None,
) -> Trials:
    """Return trials as ``tune`` makes them; the caller closes ``compiler``.

    ``base`` is the check of these lists with the ranges of every tensor. If it is None, the check runs here.
    """
    mode = "saturate" if saturate else "inf"
    base = base or mixlist.check(proto, rules, feeds, per_tensor=True, overflow_mode=mode)
    trial_limits = TrialLimits(limits or Limits(), exception_rate)
    compiler = TrialCompiler(
        Resolver(proto),
        rules,
        feeds,
        base.tensors,
        saturate=saturate,
        threads=1,
        limits=trial_limits,
        segment_bytes=segment_bytes,
    )
    workers = Workers(InProcessExecutor(), 1, 1, lambda path: Path(path).read_bytes())
    return Trials(compiler, workers, SearchState(None, {}))
