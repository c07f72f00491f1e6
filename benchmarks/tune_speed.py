#!/usr/bin/env python3
"""What `mixlist tune` costs and what it leaves low: trials per second, seconds per model, share of the work, trials.

    python benchmarks/tune_speed.py [--only trials|solve|share|planted] FOLDER [MODEL ...]

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); data are the corpus's own batches.

trials   seconds by the number of trials, of two kinds: ``random``, choices at random, each far from the one before
         it (deciding, flags, runs in the default executor, judging); and ``search``, a whole search, with its choosing
         and what it makes but once. The limit is half the error that the list has, 1e-2 where the list overflows;
         node rules are allowed. Against a new session per trial, for some of the same choices: ``occ`` as
         onnxconverter_common's auto_mixed_precision does it (copy, convert_float_to_float16 with the nodes that the
         choice keeps high as node_block_list, InferenceSession, run), and ``session``: resolve, rewrite and emulate by
         mixlist, InferenceSession, run, without judging. Where what occ converts does not load, its session and run are
         those of the original (so too for recurrent models, of which the CPU provider may crash in float16), and
         ``until`` is what it took until it failed. Where the conversion fails, that is all. One batch, and 16.
solve    seconds of ``mixlist.tune`` from the libraries onnx and mindspore-o3, at most 1e-2 normalised error.
share    work of matrix products and convolutions left low, by ``mixlist.cost.estimate.estimate_work``, against
         ``auto_convert_mixed_precision`` with the same data. It is given a ``validate_fn`` that takes a result whose
         normalised error is at most what mixlist's result has by the check, or 1e-2 where that is more, and LIMIT
         seconds. It is judged by what ONNX Runtime's CPU provider computes, which hides the overflows of float16.
planted  trials for planted sets of k among n, anywhere in the order, against 4 k log2 n.
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

ROUNDS, SEARCHES, BATCHES = {1: 40, 16: 10}, 3, 16  # trials of choices at random, by the number of batches
LIMIT = 180.0  # seconds for either, per model
ERROR = 1e-2
LIBRARIES = ("onnx", "mindspore-o3")
KINDS = ("random", "search")  # of trials


def main(*arguments: str) -> None:
    """Print every figure asked for."""
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
    """One line per model, and the medians of the ratios."""
    ratios: dict[str, list[float]] = {}
    for name, path in models.items():
        line = name
        for way in ("one", "many"):
            told = worker([__file__, "--worker", "trial", name, str(path), way], LIMIT)
            line += f"; {BATCHES if way == 'many' else 1} batches"
            for kind in KINDS:
                ours = told[kind]
                line += f"; {kind}: {_ms(ours)}"
                for other in ("session", "occ", "until"):
                    theirs = told.get(f"{other}, {kind}")
                    if theirs:
                        ratios.setdefault(f"{other}, {kind}, {way}", []).append(theirs / ours)
                        line += f", {other} {_ms(theirs)}, {theirs / ours:.1f} times"
            line += f"; a plain run {_ms(told['run'])}; a search has {told['count']} trials"
            line += f", occ: {told['failure']}" if told.get("failure") else ""
        print(line, flush=True)
    for way, found in sorted(ratios.items()):
        print(f"median against {way}, {len(found)} models: {statistics.median(found):.1f} times (goal 20, aim 50)")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _trial(name: str, path: Path, way: str) -> dict[str, Any]:
    """Medians of SEARCHES rounds of both kinds, and of some trials by each peer; ``failure``: what stops occ."""
    import mixlist
    from mixlist.emulation.emulate import emulate
    from mixlist.graph.load import load_model
    from mixlist.resolver import Resolver
    from mixlist.tuner.candidates import edit_policy

    feeds = _feeds(name)[:1] * (BATCHES if way == "many" else 1)
    policy = mixlist.load_policy(ops_info=LIBRARIES[0])
    resolver = Resolver(path)
    if not resolver.plan(policy).counts.get("float16"):  # nothing to search in
        policy = mixlist.load_policy(ops_info=LIBRARIES[1])
    peer = _Peer(path, feeds[0]) if find_spec("onnxconverter_common") is not None else None
    plain = _session(path.read_bytes())
    times: dict[str, list[float]] = {}

    def took(what: str, start: float) -> None:
        times.setdefault(what, []).append(time.perf_counter() - start)

    for _ in range(SEARCHES):
        found = _search(resolver, policy, feeds)
        times.setdefault("search", []).append(found["seconds"] / found["count"])
        times.setdefault("random", []).append(statistics.mean(found["times"]))
        for kind, choice, low in found["choices"]:
            start = time.perf_counter()
            mixed = mixlist.rewrite(resolver.loaded, resolver.plan(edit_policy(policy, choice))).model
            _run(emulate(load_model(mixed)).SerializeToString(), feeds)
            took(f"session, {kind}", start)
            for what, seconds in (peer.attempt(low, feeds) if peer is not None else {}).items():
                times.setdefault(f"{what}, {kind}", []).append(seconds)
            start = time.perf_counter()
            for feed in feeds:
                plain.run(None, feed)
            took("run", start)
    told: dict[str, Any] = {what: statistics.median(seconds) for what, seconds in times.items()}
    return told | {"count": found["count"], "failure": peer.failure if peer is not None else "not installed"}


def _search(resolver: Any, policy: Any, feeds: list[Any]) -> dict[str, Any]:
    """One search: seconds and count; seconds of random trials; some choices of either kind, and what each has low."""
    import mixlist
    from mixlist.checker.limits import Limits
    from mixlist.runtime.executors import open_workers
    from mixlist.tuner.candidate_ranking import CandidateRanking
    from mixlist.tuner.candidates import find_list_candidates, find_node_candidates
    from mixlist.tuner.cost_model import CostModel
    from mixlist.tuner.strategy import Strategy
    from mixlist.tuner.trial_compiler import TrialCompiler
    from mixlist.tuner.trial_log import TrialLog
    from mixlist.tuner.trial_verdict import TrialLimits
    from mixlist.tuner.trials import Trials

    anything = Limits(normalized=math.inf, cosine=None)
    base = mixlist.check(resolver.loaded, policy, feeds, per_tensor=True, layerwise=True, limits=anything)
    error = max((o.normalized_error or 0.0 for o in base.outputs), default=0.0)
    trial_limits = TrialLimits(
        Limits(normalized=error / 2 if base.verdict == "pass" and error else ERROR, cosine=None), 0.005
    )
    with open_workers(None, None, None, 1) as crew:  # one process, on two cores the default
        compiler = TrialCompiler(resolver, policy, feeds, base.tensors, threads=crew.threads, limits=trial_limits)
        compiler.add_gates(frozenset())
        trials = Trials(compiler, trial_limits, crew, TrialLog(None, {}))
        trials.try_reference()
        ranking = CandidateRanking(base, compiler.low_type, compiler.costs)
        strategy = Strategy(trials, ranking, CostModel(compiler, "cpu"), node_rules=True)
        start = time.perf_counter()
        strategy.run("min-edits")
        seconds = time.perf_counter() - start
        tried = list(trials.outcomes)
        low = compiler.low_nodes(frozenset())
        main = compiler.solution(frozenset())
        units = (*find_list_candidates(main, policy, "black", low), *find_node_candidates(main, low))
        rng, times, at_random = random.Random(0), [], []
        rounds = ROUNDS[len(feeds)]
        for _ in range(100 * rounds):
            choice = frozenset(unit.edit for unit in units if rng.random() < 0.5)
            if choice not in trials.outcomes and len(times) < rounds:  # else it would be remembered
                at_random.append(choice)
                begin = time.perf_counter()
                trials.try_edits(choice)
                times.append(time.perf_counter() - begin)
        some = [("search", choice) for choice in tried[:: max(1, len(tried) // 2)][:2]]
        some += [("random", choice) for choice in at_random[:2]]
        choices = [(kind, choice, compiler.low_nodes(choice)) for kind, choice in some]
        compiler.close()
    return {"seconds": seconds, "count": len(tried), "times": times, "choices": choices}


class _Peer:
    """Trials in the way of auto_mixed_precision: copy, convert, new session, run."""

    def __init__(self, path: Path, feed: Mapping[str, Any]) -> None:
        import onnx
        from onnxconverter_common.auto_mixed_precision import add_missing_dtypes_using_ort

        self.failure, self.original = "", path.read_bytes()
        with redirect_stdout(sys.stderr):
            self.model = add_missing_dtypes_using_ort(onnx.shape_inference.infer_shapes(onnx.load(path)), feed)

    def attempt(self, low: set[tuple[str, str]], feeds: list[Mapping[str, Any]]) -> dict[str, float]:
        """Seconds of one trial, in which nodes that mixlist's trial has high are blocked, and until it failed."""
        from onnxconverter_common import float16

        kept = {node for _, node in low}
        block = [node.name for node in self.model.graph.node if node.name not in kept]
        start = time.perf_counter()
        try:
            made = float16.convert_float_to_float16(
                copy.deepcopy(self.model), node_block_list=block, keep_io_types=True, disable_shape_infer=False
            )
        except Exception as problem:
            return self._failed(problem, start)
        converted = time.perf_counter()
        try:
            if _is_recurrent(made):
                raise RuntimeError("not run: the CPU provider may crash")
            _run(made.SerializeToString(), feeds)
        except Exception as problem:
            failed = self._failed(problem, start)
            begin = time.perf_counter()
            _run(self.original, feeds)
            return failed | {"occ": converted - start + time.perf_counter() - begin}
        return {"occ": time.perf_counter() - start}

    def _failed(self, problem: Exception, start: float) -> dict[str, float]:
        seconds = time.perf_counter() - start
        self.failure = (str(problem).splitlines() or [type(problem).__name__])[0][:100]
        return {"occ": seconds, "until": seconds}


def _is_recurrent(model: Any) -> bool:
    """Whether ONNX Runtime's CPU provider may crash on a float16 model: one with a GRU or LSTM."""
    return any(node.op_type in ("GRU", "LSTM", "RNN") for node in model.graph.node)


def _run(model: bytes, feeds: list[Mapping[str, Any]]) -> None:
    made = _session(model)
    for feed in feeds:
        made.run(None, feed)


def _session(model: bytes) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


# --- whole searches ---


def _solve(models: Mapping[str, Path]) -> None:
    """Each model from each library, in a process of its own."""
    for library in LIBRARIES:
        for name, path in models.items():
            told: dict[str, Any] = worker([__file__, "--worker", "solve", name, str(path), library], LIMIT)
            print(f"{library}, {name}: {told['seconds']:.1f} s, {told['trials']} trials, {told['said']}", flush=True)


def _solved(name: str, path: Path, library: str) -> dict[str, Any]:
    import mixlist
    from mixlist.checker.limits import Limits

    start = time.perf_counter()
    limits = Limits(normalized=ERROR, cosine=None)
    policy = mixlist.load_policy(ops_info=library)
    report = mixlist.tune(path, policy, _feeds(name), limits=limits, node_rules=True)
    edits = ", ".join(edit.node or f"{edit.op} {edit.before} to {edit.after}" for edit in report.edits) or "no edit"
    shares = " to ".join("none" if s is None else f"{s:.3f}" for s in report.low_share.values())
    said = f"{report.verdict}: {edits}; low share {shares}"
    return {"seconds": time.perf_counter() - start, "trials": report.trials, "said": said}


# --- the share of the work that stays low ---


def _share(models: Mapping[str, Path]) -> None:
    """mixlist's result with node rules against the peer's, on the first batch."""
    for name, path in models.items():
        ours: dict[str, Any] = worker([__file__, "--worker", "share", name, str(path)], LIMIT)
        line = f"{name}: mixlist {_percent(ours['share'])} low, error {ours['error']:.2g}, {ours['seconds']:.0f} s"
        if find_spec("onnxconverter_common") is not None:
            limit = max(ERROR, ours["error"])
            try:
                theirs = worker([__file__, "--worker", "occ_share", name, str(path), str(limit)], LIMIT)
                line += f"; occ {_percent(theirs['share'])} low, {theirs['seconds']:.0f} s"
            except subprocess.TimeoutExpired:
                line += f"; occ not done in {LIMIT:.0f} s"
            except (RuntimeError, ValueError, IndexError) as problem:
                crash = re.search(r"ended with (-\d+)", str(problem))
                line += f"; occ fails: {f'signal {crash[1]}' if crash else str(problem).strip().splitlines()[-1][:150]}"
        print(line, flush=True)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _ours_share(name: str, path: Path) -> dict[str, Any]:
    import mixlist
    from mixlist.checker.limits import Limits

    start, feed = time.perf_counter(), _feeds(name)[0]
    limits = Limits(normalized=ERROR, cosine=None)
    policy = mixlist.load_policy()
    report = mixlist.tune(path, policy, [feed], objective="max-low", limits=limits, node_rules=True)
    errors = [o.normalized_error or 0.0 for o in report.check.outputs] if report.check is not None else [math.inf]
    seconds = time.perf_counter() - start
    return {"share": report.low_share["tuned"], "error": max(errors, default=0.0), "seconds": seconds}


def _occ_share(name: str, path: Path, limit: float) -> dict[str, Any]:
    import numpy as np
    import onnx
    from onnxconverter_common import auto_mixed_precision

    from mixlist.cost.estimate import estimate_work

    def accepts(exact: list[Any], ours: list[Any]) -> bool:
        for one, other in zip(exact, ours, strict=True):
            if one.dtype.kind != "f":
                continue
            gap = np.linalg.norm(other.astype(np.float64) - one)
            if not gap <= limit * np.linalg.norm(one.astype(np.float64)):
                return False
        return True

    start, feed = time.perf_counter(), _feeds(name)[0]
    with redirect_stdout(sys.stderr):
        made = auto_mixed_precision.auto_convert_mixed_precision(onnx.load(path), feed, accepts, keep_io_types=True)
    account = estimate_work(made, None, {key: value.shape for key, value in feed.items()})
    return {"share": account.low_share, "seconds": time.perf_counter() - start}


# --- planted sets ---


def _planted() -> None:
    """The worst and the mean number of tests for k culprits among n, anywhere in the order."""
    from mixlist.tuner.search import find_minimal, remove_unneeded

    rng = random.Random(0)
    for n in (16, 64, 256, 1024):
        for k in (1, 2, 3, 5):
            counts = []
            for _ in range(200):
                planted, tested = frozenset(rng.sample(range(n), k)), set()

                def passes(chosen: frozenset[int], planted: Any = planted, tested: Any = tested) -> bool:
                    tested.add(chosen)
                    return bool(planted <= chosen)

                found = find_minimal(range(n), passes)
                assert found == planted
                assert remove_unneeded(found, range(n), passes) == planted
                counts.append(len(tested))
            bound = 4 * k * math.log2(n)
            told = f"{k} among {n}: mean {statistics.mean(counts):.1f} trials, at most {max(counts)}"
            print(f"{told}; 4 k log2 n = {bound:.0f} ({'met' if max(counts) <= bound else 'MISSED'})", flush=True)


def _feeds(name: str) -> list[dict[str, Any]]:
    from tests.corpus.feeds import feeds

    return list(feeds(name))


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "trial": _trial,
    "solve": _solved,
    "share": _ours_share,
    "occ_share": lambda name, path, limit: _occ_share(name, path, float(limit)),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        told = WORKERS[sys.argv[2]](sys.argv[3], Path(sys.argv[4]), *sys.argv[5:])
        print(json.dumps(told))
    else:
        main(*sys.argv[1:])
