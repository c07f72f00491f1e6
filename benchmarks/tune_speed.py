#!/usr/bin/env python3
"""Measure `mixlist tune`: seconds by trial, seconds by model, the share of the work left low, the number of trials.

    python benchmarks/tune_speed.py [--only trials|solve|share|planted] FOLDER [MODEL ...]

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); each model reads its batches of the corpus.

trials   seconds divided by the number of trials, of two kinds: ``random``, random choices of edits, each far from the
         one before it (decisions, flags, runs in the default executor, verdict); and ``search``, a whole search with
         its strategy and its preparations. The limit is half the error of the base list, or 1e-2 if the base list
         overflows. Some of the same choices are timed with a new session for each trial:
         ``occ`` is the method of onnxconverter_common's auto_mixed_precision (copy, convert_float_to_float16 with the
         nodes that stay high in node_block_list, InferenceSession, run); ``session`` is resolve, rewrite and emulate
         of mixlist, InferenceSession, run, without a verdict. If the model that occ converts does not load, the
         session and run of the original are timed instead, and ``until`` is the time until it failed; the same holds
         for recurrent models, which may crash the CPU provider in float16. If the conversion fails, only
         the time until it fails counts. Each with one batch, and with 16.
solve    seconds of ``mixlist.tune`` from the libraries onnx and mindspore-o3, with at most 1e-2 normalized error, and
         how many plain runs of the float32 model over the same data take as long.
share    the share of the work of matrix products and convolutions left low by ``convert``, as
         ``mixlist.targets.estimate`` counts it, against ``auto_convert_mixed_precision`` with the same data. Its
         ``validate_fn`` accepts a result whose normalized error is at most that of mixlist's result in the check, or
         1e-2 if that is more; it has LIMIT seconds. Its outputs are those of ONNX Runtime's CPU provider, which hides
         the overflows of float16.
planted  the number of trials for planted sets of k among n, anywhere in the order, against 4 k log2 n.
"""

from __future__ import annotations

import copy
import json
import math
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from clock import machine, worker  # noqa: E402

ROUNDS, SEARCHES, BATCHES = {1: 40, 16: 10}, 3, 16  # ROUNDS: random trials by the number of batches
LIMIT = 180.0  # seconds for mixlist or for the peer, per model
ERROR = 1e-2
LIBRARIES = ("onnx", "mindspore-o3")
KINDS = ("random", "search")  # of trials


def main(*arguments: str) -> None:
    """Print the figures of the selected part, or of all parts."""
    options = list(arguments)
    only = options.pop(options.index("--only") + 1) if "--only" in options else ""
    folder, *names = [option for option in options if not option.startswith("--")]
    models = {p.stem: p for p in sorted(Path(folder).glob("*.onnx")) if not names or p.stem in names}
    print(machine(), flush=True)
    for part, run in (("trials", _trials), ("solve", _solve), ("share", _share)):
        if only in ("", part):
            run(models)
    if only in ("", "planted"):
        _planted()


# --- trials per second ---


def _trials(models: Mapping[str, Path]) -> None:
    """Print a line for each model, and the medians of the ratios."""
    ratios: dict[str, list[float]] = {}
    for name, path in models.items():
        line = name
        for amount in ("one", "many"):
            figures = worker([__file__, "--worker", "trial", name, str(path), amount], LIMIT)
            line += f"; {BATCHES if amount == 'many' else 1} batches"
            for kind in KINDS:
                trial = figures[kind]
                line += f"; {kind}: {_ms(trial)}"
                for method in ("session", "occ", "until"):
                    seconds = figures.get(f"{method}, {kind}")
                    if seconds:
                        ratios.setdefault(f"{method}, {kind}, {amount}", []).append(seconds / trial)
                        line += f", {method} {_ms(seconds)}, {seconds / trial:.1f} times"
            line += f"; a plain run {_ms(figures['run'])}; a search has {figures['count']} trials"
            line += f", occ: {figures['failure']}" if figures.get("failure") else ""
        print(line, flush=True)
    for title, values in sorted(ratios.items()):
        print(f"median against {title}, {len(values)} models: {statistics.median(values):.1f} times (goal 20, aim 50)")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _time_trials(name: str, path: Path, amount: str) -> dict[str, Any]:
    """Return the median seconds of both kinds of trials, of some trials by each other method, and of a plain run.

    ``amount`` of batches: "one" or "many". ``count``: trials of the search. ``failure``: why occ fails.
    """
    import mixlist
    from mixlist.checker.emulation import emulate
    from mixlist.decide import Resolver
    from mixlist.model.load import load_model
    from mixlist.search.edits import edit_policy

    feeds = _feeds(name)[:1] * (BATCHES if amount == "many" else 1)
    policy = mixlist.load_policy(ops_info=LIBRARIES[0])
    resolver = Resolver(path)
    if not resolver.plan(policy).counts.get("float16"):  # no node is low: there is nothing to search
        policy = mixlist.load_policy(ops_info=LIBRARIES[1])
    peer = _Peer(path, feeds[0]) if find_spec("onnxconverter_common") is not None else None
    plain = _session(path.read_bytes())
    times: dict[str, list[float]] = {}

    def record(contender: str, start: float) -> None:
        times.setdefault(contender, []).append(time.perf_counter() - start)

    for _ in range(SEARCHES):
        search = _search(resolver, policy, feeds)
        times.setdefault("search", []).append(search["seconds"] / search["count"])
        times.setdefault("random", []).append(statistics.mean(search["times"]))
        for kind, choice, low in search["choices"]:
            start = time.perf_counter()
            mixed = mixlist.rewrite(resolver.loaded, resolver.plan(edit_policy(policy, choice))).model
            _run(emulate(load_model(mixed)).SerializeToString(), feeds)
            record(f"session, {kind}", start)
            for method, seconds in (peer.attempt(low, feeds) if peer is not None else {}).items():
                times.setdefault(f"{method}, {kind}", []).append(seconds)
            start = time.perf_counter()
            for feed in feeds:
                plain.run(None, feed)
            record("run", start)
    figures: dict[str, Any] = {contender: statistics.median(seconds) for contender, seconds in times.items()}
    return figures | {"count": search["count"], "failure": peer.failure if peer is not None else "not installed"}


def _search(resolver: Any, policy: Any, feeds: list[Any]) -> dict[str, Any]:
    """Run one search, then random trials.

    Return the seconds and the number of trials of the search, the seconds of each random trial, and some choices of
    both kinds, each with its low nodes.
    """
    import mixlist
    from mixlist.checker.limits import Limits
    from mixlist.run.executors import open_workers
    from mixlist.search.candidates import CandidateRanking, find_list_candidates, find_node_candidates
    from mixlist.search.search_state import SearchState
    from mixlist.search.strategy import Strategy
    from mixlist.search.trial_compiler import TrialCompiler
    from mixlist.search.trial_verdict import TrialLimits
    from mixlist.search.trials import Trials

    no_limits = Limits(normalized=math.inf, cosine=None)
    base = mixlist.check(resolver.loaded, policy, feeds, per_tensor=True, layerwise=True, limits=no_limits)
    error = max((o.normalized_error or 0.0 for o in base.outputs), default=0.0)
    trial_limits = TrialLimits(
        Limits(normalized=error / 2 if base.verdict == "pass" and error else ERROR, cosine=None), 0.005
    )
    with open_workers(None, None, None, 1) as workers:  # one process, the default on two cores
        compiler = TrialCompiler(resolver, policy, feeds, base.tensors, threads=workers.threads, limits=trial_limits)
        compiler.add_gates(frozenset())
        trials = Trials(compiler, trial_limits, workers, SearchState(None, {}))
        trials.try_reference()
        ranking = CandidateRanking(base, compiler.low_type, compiler.costs)
        strategy = Strategy(trials, ranking)
        start = time.perf_counter()
        strategy.run()
        seconds = time.perf_counter() - start
        tried = list(trials.outcomes)
        low = compiler.low_nodes(frozenset())
        solution = compiler.solution(frozenset())
        candidates = (*find_list_candidates(solution, policy, low), *find_node_candidates(solution, low))
        rng, times, random_choices = random.Random(0), [], []
        rounds = ROUNDS[len(feeds)]
        for _ in range(100 * rounds):
            choice = frozenset(candidate.edit for candidate in candidates if rng.random() < 0.5)
            if choice not in trials.outcomes and len(times) < rounds:  # the outcome of an earlier trial would be reused
                random_choices.append(choice)
                trial_start = time.perf_counter()
                trials.try_edits(choice)
                times.append(time.perf_counter() - trial_start)
        sample = [("search", choice) for choice in tried[:: max(1, len(tried) // 2)][:2]]
        sample += [("random", choice) for choice in random_choices[:2]]
        choices = [(kind, choice, compiler.low_nodes(choice)) for kind, choice in sample]
        compiler.close()
    return {"seconds": seconds, "count": len(tried), "times": times, "choices": choices}


class _Peer:
    """Run trials by the method of auto_mixed_precision: copy, convert, new session, run."""

    def __init__(self, path: Path, feed: Mapping[str, Any]) -> None:
        import onnx
        from onnxconverter_common.auto_mixed_precision import add_missing_dtypes_using_ort

        self.failure, self.original = "", path.read_bytes()
        with redirect_stdout(sys.stderr):
            self.model = add_missing_dtypes_using_ort(onnx.shape_inference.infer_shapes(onnx.load(path)), feed)

    def attempt(self, low: set[tuple[str, str]], feeds: list[Mapping[str, Any]]) -> dict[str, float]:
        """Run one trial that blocks the nodes that mixlist's trial keeps high.

        Return its seconds as ``occ``, and as ``until`` the seconds until it failed, if it failed.
        """
        from onnxconverter_common import float16

        low_names = {node for _, node in low}
        block = [node.name for node in self.model.graph.node if node.name not in low_names]
        start = time.perf_counter()
        try:
            mixed = float16.convert_float_to_float16(
                copy.deepcopy(self.model), node_block_list=block, keep_io_types=True, disable_shape_infer=False
            )
        except Exception as problem:
            return self._failed(problem, start)
        converted = time.perf_counter()
        try:
            if _is_recurrent(mixed):
                raise RuntimeError("not run: the CPU provider may crash")
            _run(mixed.SerializeToString(), feeds)
        except Exception as problem:
            failed = self._failed(problem, start)
            original_start = time.perf_counter()
            _run(self.original, feeds)
            return failed | {"occ": converted - start + time.perf_counter() - original_start}
        return {"occ": time.perf_counter() - start}

    def _failed(self, problem: Exception, start: float) -> dict[str, float]:
        seconds = time.perf_counter() - start
        self.failure = (str(problem).splitlines() or [type(problem).__name__])[0][:100]
        return {"occ": seconds, "until": seconds}


def _is_recurrent(model: Any) -> bool:
    """Return True if the model has a recurrent node: ONNX Runtime's CPU provider may crash on these in float16."""
    return any(node.op_type in ("GRU", "LSTM", "RNN") for node in model.graph.node)


def _run(model: bytes, feeds: list[Mapping[str, Any]]) -> None:
    session = _session(model)
    for feed in feeds:
        session.run(None, feed)


def _session(model: bytes) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


# --- whole searches ---


def _solve(models: Mapping[str, Path]) -> None:
    """Print the seconds of a whole search for each model from each library, each in a process of its own."""
    for library in LIBRARIES:
        for name, path in models.items():
            result: dict[str, Any] = worker([__file__, "--worker", "solve", name, str(path), library], LIMIT)
            seconds, trials, summary = result["seconds"], result["trials"], result["summary"]
            runs = f"{seconds / result['plain']:.0f} plain runs"
            print(f"{library}, {name}: {seconds:.1f} s, {runs}, {trials} trials, {summary}", flush=True)


def _time_search(name: str, path: Path, library: str) -> dict[str, Any]:
    import mixlist
    from mixlist.checker.limits import Limits

    feeds, plain_session = _feeds(name), _session(path.read_bytes())
    plain = min(_run_seconds(plain_session, feeds) for _ in range(5))
    start = time.perf_counter()
    limits = Limits(normalized=ERROR, cosine=None)
    policy = mixlist.load_policy(ops_info=library)
    report = mixlist.tune(path, policy, feeds, limits=limits)
    seconds = time.perf_counter() - start
    edits = ", ".join(f"{edit.op} {edit.before} to black" for edit in report.edits) or "no edit"
    shares = " to ".join("none" if s is None else f"{s:.3f}" for s in report.low_share.values())
    summary = f"{report.verdict}: {edits}; low share {shares}"
    return {"seconds": seconds, "plain": plain, "trials": report.trials, "summary": summary}


def _run_seconds(session: Any, feeds: list[Any]) -> float:
    """Return the seconds of one run over all batches."""
    start = time.perf_counter()
    for feed in feeds:
        session.run(None, feed)
    return time.perf_counter() - start


# --- the share of the work that stays low ---


def _share(models: Mapping[str, Path]) -> None:
    """Print the share of the result of ``convert`` and of the peer's, on the first batch."""
    for name, path in models.items():
        result: dict[str, Any] = worker([__file__, "--worker", "share", name, str(path)], LIMIT)
        line = (
            f"{name}: mixlist {_percent(result['share'])} low, error {result['error']:.2g}, {result['seconds']:.0f} s"
        )
        if find_spec("onnxconverter_common") is not None:
            limit = max(ERROR, result["error"])
            try:
                peer = worker([__file__, "--worker", "occ_share", name, str(path), str(limit)], LIMIT)
                line += f"; occ {_percent(peer['share'])} low, {peer['seconds']:.0f} s"
            except subprocess.TimeoutExpired:
                line += f"; occ not done in {LIMIT:.0f} s"
            except (RuntimeError, ValueError, IndexError) as problem:
                crash = re.search(r"ended with (-\d+)", str(problem))
                line += f"; occ fails: {f'signal {crash[1]}' if crash else str(problem).strip().splitlines()[-1][:150]}"
        print(line, flush=True)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _mixlist_share(name: str, path: Path) -> dict[str, Any]:
    import mixlist
    from mixlist.checker.limits import Limits

    start, feed = time.perf_counter(), _feeds(name)[0]
    limits = Limits(normalized=ERROR, cosine=None)
    report = mixlist.convert(path, [feed], mixlist.load_policy(), limits=limits).report
    errors = [output.normalized_error or 0.0 for output in report.check.outputs]
    share = report.after.low_share if report.after is not None else None
    return {"share": share, "error": max(errors, default=0.0), "seconds": time.perf_counter() - start}


def _occ_share(name: str, path: Path, limit: float) -> dict[str, Any]:
    import numpy as np
    import onnx
    from onnxconverter_common import auto_mixed_precision

    from mixlist.targets.estimate import estimate_work

    def accepts(reference: list[Any], mixed: list[Any]) -> bool:
        for expected, actual in zip(reference, mixed, strict=True):
            if expected.dtype.kind != "f":
                continue
            error = np.linalg.norm(actual.astype(np.float64) - expected)
            if not error <= limit * np.linalg.norm(expected.astype(np.float64)):  # True for NaN too
                return False
        return True

    start, feed = time.perf_counter(), _feeds(name)[0]
    with redirect_stdout(sys.stderr):
        mixed = auto_mixed_precision.auto_convert_mixed_precision(onnx.load(path), feed, accepts, keep_io_types=True)
    work = estimate_work(mixed, None, {key: value.shape for key, value in feed.items()})
    return {"share": work.low_share, "seconds": time.perf_counter() - start}


# --- planted sets ---


def _planted() -> None:
    """Print the mean and the largest number of trials for planted sets of k among n, anywhere in the order."""
    from mixlist.search.minimal_sets import find_minimal, remove_unneeded

    rng = random.Random(0)
    for n in (16, 64, 256, 1024):
        for k in (1, 2, 3, 5):
            counts = []
            for _ in range(200):
                planted, tested = frozenset(rng.sample(range(n), k)), set()

                def passes(edits: frozenset[int], planted: Any = planted, tested: Any = tested) -> bool:
                    tested.add(edits)
                    return bool(planted <= edits)

                minimal = find_minimal(range(n), passes)
                assert minimal == planted
                assert remove_unneeded(minimal, range(n), passes) == planted
                counts.append(len(tested))
            bound = 4 * k * math.log2(n)
            line = f"{k} among {n}: mean {statistics.mean(counts):.1f} trials, at most {max(counts)}"
            print(f"{line}; 4 k log2 n = {bound:.0f} ({'met' if max(counts) <= bound else 'MISSED'})", flush=True)


def _feeds(name: str) -> list[dict[str, Any]]:
    from tests.corpus.feeds import feeds

    return list(feeds(name))


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "trial": _time_trials,
    "solve": _time_search,
    "share": _mixlist_share,
    "occ_share": lambda name, path, limit: _occ_share(name, path, float(limit)),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](sys.argv[3], Path(sys.argv[4]), *sys.argv[5:])))
    else:
        main(*sys.argv[1:])
