#!/usr/bin/env python3
"""Apply a policy without data to each model of some folders, and judge the results quickly.

    python benchmarks/result_quality.py FOLDER [FOLDER ...] [--ops-info LIBRARY] [--mixlist FILE]
        [--precision-mode-v2 MODE] [--gray-policy POLICY] [--models NAME ...] [--jobs N]
        [--no-check] [--fused] [--save FILE] [--against FILE ...] [--kept-high] [--tool onnxruntime]

This is for work on the default lists: it takes a minute or two for the 19 models of the tests. A folder holds
``NAME.onnx`` and one batch of data for each model, ``NAME.npz``. The mixlist that is judged is the one that Python
imports (``PYTHONPATH``, or what is installed). A row of the table says:

- ``low``: the nodes in low precision, of all nodes that compute with floats, without Casts and Constants.
- ``Casts``: the Casts of the result minus those of the original.
- ``bytes``: the bytes that the result moves on the batch, relative to the original (``mixlist bench --estimate``). A
  "?" follows if nodes of the original are not counted because their shapes are not known. If the result has more such
  nodes, there is no figure.
- ``verdict`` and ``error``: of ``mixlist check`` on the batch, and the largest normalized error of an output.
- ``loads``: whether ONNX Runtime's CPU provider loads the result. "plain" means that ONNX Runtime crashes on it with
  its optimizations, and loads it without them.
- ``fused``, with ``--fused``: the fused kernels after ONNX Runtime's optimizer in Python, for the models that have a
  type in ``fused_kernels.py``.

A model that fails somewhere is a row with the fault, and the faults are listed below the table. The summary has the
medians and sums. ``--save`` writes the rows into a file. ``--against`` reads such files, of an earlier state or of
another tool, or files of results of ``compare_converters.py``, which have all other tools (``FILE:TOOL`` takes one of
them). It says in each row which right results of other tools are better, and in which figures. ``--tool onnxruntime``
judges the results of ``onnxruntime.transformers.float16`` in the same way. ``--kept-high`` counts the nodes that the
policy keeps in float32, by op type, list and rule. ``--no-check`` leaves out the verdict and the load, which takes a
third of the time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fused_kernels import MODEL_TYPES, optimize_in_python
from result_figures import (
    compare_bytes,
    count_bytes,
    count_casts_in,
    count_low_nodes,
    count_low_nodes_of_result,
    find_original_work,
)

POLICY_OPTIONS = ("ops_info", "mixlist", "precision_mode_v2", "gray_policy", "protect", "constants", "customize_dtypes")
MOST_EXTRA_CASTS = 2  # that still count as "not beaten"
MOST_EXTRA_BYTES = 1.02


@dataclass
class Row:
    """The figures of one model; None if they were not measured.

    ``bytes_ratio``: bytes moved, relative to the original. ``uncounted``: nodes whose bytes are not known.
    ``fused``: fused kernels. ``error``: a
    text like "1.2e-03", "inf" or "nan". ``loads``: "yes", "plain", or "no". ``kept_high``: the number of nodes by "op
    type, list, rule". ``seconds``: the time of the whole row.
    """

    model: str
    low: int | None = None
    eligible: int | None = None
    casts: int | None = None
    bytes_ratio: float | None = None
    uncounted: int = 0
    fused: int | None = None
    verdict: str = "none"
    error: str = ""
    loads: str = ""
    faults: list[str] = field(default_factory=list)
    kept_high: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Return whether the result loads and ``check`` passes."""
        return self.verdict == "pass" and self.loads in ("yes", "plain")

    @property
    def low_share(self) -> float | None:
        """Return the share of low nodes; None if it is not known."""
        return self.low / self.eligible if self.low is not None and self.eligible else None


Rivals = dict[str, dict[str, Row]]  # results of other tools by model and tool


def main(options: argparse.Namespace) -> None:
    """Print the table and its summary."""
    import mixlist

    paths = [path for folder in options.folders for path in sorted(folder.glob("*.onnx"))]
    if options.models:
        paths = [path for path in paths if path.stem in options.models]
    policy = {name: value for name in POLICY_OPTIONS if (value := getattr(options, name)) is not None}
    rivals = _read_rivals(options.against)
    print(f"mixlist of {Path(mixlist.__file__).parent}, {options.tool}, {policy or 'default policy'}")
    print(_header(options.fused, rivals))
    start, rows = time.perf_counter(), []
    steps = [measure for measure in MEASURES if not (options.no_check and measure == "check")]
    steps = [measure for measure in steps if options.fused or measure != "fused"]
    for row in _evaluate_all(paths, options.tool, policy, steps, options.jobs):
        rows.append(row)
        if options.save:  # after each row, so that a run that is stopped keeps its rows
            options.save.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
        print(_line(row, options.fused, rivals), flush=True)
    _print_summary(rows, rivals, time.perf_counter() - start)
    if options.kept_high:
        _print_kept_high(rows)


def _read_rivals(texts: Sequence[str]) -> Rivals:
    """Return the rows of the files by model and name: that of the tool, or that of the file."""
    rivals: Rivals = {}
    for text in texts:
        path, _, chosen = text.partition(":")
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(stored, list):
            for row in stored:
                rivals.setdefault(row["model"], {})[Path(path).stem] = Row(**row)
            continue
        for model, outcomes in stored.items():
            for tool, outcome in outcomes.items():
                if tool == chosen or not (chosen or tool.startswith("mixlist")):
                    rivals.setdefault(model, {})[tool] = _row_of_outcome(model, outcome)
    return rivals


def _row_of_outcome(model: str, outcome: dict[str, Any]) -> Row:
    """Return the row of an outcome of ``compare_converters.py``."""
    fused = outcome["fused"].get("transformers")
    return Row(
        model,
        low=outcome["low_count"],
        eligible=outcome["eligible"],
        casts=outcome["casts"],
        bytes_ratio=outcome["bytes_ratio"],
        uncounted=outcome["uncounted"],
        fused=sum(fused["fused"].values()) if fused else None,
        verdict=outcome["verdict"],
        error="" if outcome["error"] is None else f"{outcome['error']:.1e}",
        loads="no" if outcome["verdict"] in ("none", "not loaded") else "yes",
    )


# --- one model ---


def _evaluate_all(
    paths: Sequence[Path], tool: str, policy: dict[str, str], steps: list[str], jobs: int
) -> Iterator[Row]:
    """Yield the row of each model in order; several jobs are as many processes."""
    if jobs == 1:
        yield from (evaluate(path, tool, policy, steps) for path in paths)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        rows: list[Future[Row]] = [pool.submit(evaluate, path, tool, policy, steps) for path in paths]
        for path, row in zip(paths, rows, strict=True):
            try:
                yield row.result()
            except BrokenProcessPool:
                yield Row(path.stem, faults=["the process of this row died"])


def evaluate(path: Path, tool: str, policy: dict[str, str], steps: Sequence[str]) -> Row:
    """Convert one model in this process and judge the result. An error of any step becomes a fault of the row."""
    row, start = Row(path.stem), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _evaluate(path, tool, policy, steps, Path(folder) / "mixed.onnx", row)
    except Exception as error:  # a model that fails must not end the run
        row.faults.append(_describe(error))
    row.seconds = time.perf_counter() - start
    return row


def _evaluate(path: Path, tool: str, options: dict[str, str], steps: Sequence[str], mixed: Path, row: Row) -> None:
    import numpy as np

    from mixlist.lists.load import load_policy

    with np.load(path.with_suffix(".npz")) as arrays:
        feed = dict(arrays)
    policy = load_policy(**options)
    if tool == "mixlist":
        _apply(path, policy, mixed, row)
    else:
        convert_with_onnxruntime(path, mixed)
        row.low, row.eligible = count_low_nodes_of_result(str(mixed))
    loading = _LOADER.start(str(mixed)) if "check" in steps else None
    for step in steps:
        try:
            MEASURES[step](path, mixed, policy if tool == "mixlist" else None, feed, row)
        except Exception as error:  # one figure may fail, and the rivals still tell something
            row.faults.append(_describe(error))
    if loading is not None:
        row.loads, fault = _LOADER.wait(str(mixed), loading)
        row.faults += [fault] if fault else []


def _apply(path: Path, policy: Any, mixed: Path, row: Row) -> None:
    """Write the mixed model as ``mixlist apply`` does, and count its nodes."""
    import mixlist

    plan = mixlist.resolve(str(path), policy)
    mixlist.rewrite(str(path), plan).save(mixed)
    row.low, row.eligible = count_low_nodes(plan)
    row.kept_high = dict(
        Counter(
            f"{node.op_type}, {node.list}, {node.rule}"
            for node in plan.nodes
            if node.precision == "float32" and node.op_type not in ("Cast", "Constant")
        )
    )


def convert_with_onnxruntime(path: Path, mixed: Path) -> None:
    """Write the model that ONNX Runtime's float16 converter makes with its defaults."""
    import warnings

    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that it cuts off
        converted = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    OnnxModel(converted).topological_sort()  # as ONNX Runtime's own tools do after this function
    onnx.save(converted, mixed)


def _measure_graph(path: Path, mixed: Path, policy: Any, feed: dict[str, Any], row: Row) -> None:
    """Count the Casts and the bytes."""
    from mixlist.model.load import load_model

    original, result = load_model(str(path)), load_model(str(mixed))
    row.casts = count_casts_in(result.proto) - count_casts_in(original.proto)
    shapes, before = find_original_work(original, feed)
    row.bytes_ratio, row.uncounted = compare_bytes(before, count_bytes(result, shapes)), before.uncounted


def _check(path: Path, mixed: Path, policy: Any, feed: dict[str, Any], row: Row) -> None:
    """Judge the outputs as ``mixlist check`` does, without the ranking of nodes."""
    from mixlist.checker.options import CheckOptions
    from mixlist.checker.run import run_check
    from mixlist.lists.load import load_policy

    given_model = str(mixed) if policy is None else None  # mixlist's own result is made again from the policy
    report = run_check(
        str(path),
        policy or load_policy(),
        [feed],
        CheckOptions(mixed_model=given_model),
        rank_if=lambda _: False,
    )
    errors = [output.normalized_error for output in report.outputs if output.normalized_error is not None]
    row.verdict = report.verdict
    # NaN is the largest error.
    row.error = f"{max(errors, key=lambda error: (math.isnan(error), error)):.1e}" if errors else ""
    row.faults += report.reasons if report.verdict != "pass" else ()


def _count_fused(path: Path, mixed: Path, policy: Any, feed: dict[str, Any], row: Row) -> None:
    """Count the fused kernels after ONNX Runtime's optimizer in Python, whose messages are not shown."""
    if path.stem in MODEL_TYPES:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            figures = optimize_in_python(str(mixed), MODEL_TYPES[path.stem])
        row.fused = sum(figures["fused"].values())


MEASURES = {"graph": _measure_graph, "fused": _count_fused, "check": _check}


def _describe(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


class _Loader:
    """Loads models with ONNX Runtime in another process, which may crash."""

    pool: ProcessPoolExecutor | None = None

    def start(self, path: str, *, optimized: bool = True) -> Future[str]:
        """Start to load a model; the result is the fault, or ""."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self.pool.submit(_load, path, optimized)

    def wait(self, path: str, loading: Future[str]) -> tuple[str, str]:
        """Return "yes", "plain" or "no", and the fault."""
        with suppress(BrokenProcessPool):
            fault = loading.result()
            return ("no", fault) if fault else ("yes", "")
        self.pool = None
        try:
            fault = self.start(path, optimized=False).result()
        except BrokenProcessPool:
            self.pool = None
            return "no", "ONNX Runtime crashes when it loads the result"
        return ("no", fault) if fault else ("plain", "")


_LOADER = _Loader()


def _load(path: str, optimized: bool) -> str:
    """Load a model in the process of the loader; return the fault, "" if there is none."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "ONNX Runtime refuses it: " + str(error).replace(f"Load model from {path} failed:", "")[:200]
    return ""


# --- the table ---


def _header(has_fused: bool, rivals: Rivals) -> str:
    columns = ["model", "low", "Casts", "bytes", *(["fused"] if has_fused else []), "verdict", "error", "loads", "s"]
    columns += ["better right results"] if rivals else []
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def _line(row: Row, has_fused: bool, rivals: Rivals) -> str:
    cells = [row.model, *_figures(row), *(["-" if row.fused is None else str(row.fused)] if has_fused else [])]
    cells += [row.verdict, row.error, row.loads, f"{row.seconds:.1f}"]
    cells += [_describe_comparison(row, rivals.get(row.model, {}))] if rivals else []
    return f"| {' | '.join(cells)} |"


def _figures(row: Row) -> list[str]:
    low = "-" if row.low is None else f"{row.low} of {row.eligible}"
    moved = "-" if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}{'?' if row.uncounted else ''}"
    return [low, "-" if row.casts is None else str(row.casts), moved]


def _describe_comparison(row: Row, rivals: dict[str, Row]) -> str:
    """Return "none", or the tools whose right results are better, each with the figures of both."""
    right = {name: rival for name, rival in rivals.items() if rival.is_right}
    if row.loads and not row.is_right:
        return f"NOT RIGHT; right: {', '.join(right) or 'none'}"
    losses = {name: found for name, rival in right.items() if (found := find_losses(row, rival))}
    return "; ".join(f"{name}: {', '.join(found.values())}" for name, found in losses.items()) or "none"


def find_losses(row: Row, rival: Row) -> dict[str, str]:
    """Return the figures in which another result is better, beyond the tolerances, each with a text."""
    losses = {}
    if (rival.low_share or 0) > (row.low_share or 0) + 0.005:
        losses["low"] = f"low {rival.low} of {rival.eligible}"
    if rival.casts is not None and (row.casts is None or row.casts > rival.casts + MOST_EXTRA_CASTS):
        losses["Casts"] = f"{rival.casts} Casts"
    if rival.bytes_ratio and row.bytes_ratio and row.bytes_ratio > MOST_EXTRA_BYTES * rival.bytes_ratio:
        losses["bytes"] = f"bytes {rival.bytes_ratio:.3f}"
    if rival.fused is not None and row.fused is not None and rival.fused > row.fused:
        losses["fused"] = f"{rival.fused} fused"
    return losses


def _print_summary(rows: Sequence[Row], rivals: Rivals, seconds: float) -> None:
    def summarize(title: str, of: Sequence[Row]) -> None:
        shares = [row.low_share for row in of if row.low_share is not None]
        casts = [row.casts for row in of if row.casts is not None]
        moved = [row.bytes_ratio for row in of if row.bytes_ratio is not None]
        nodes = sum(row.low or 0 for row in of), sum(row.eligible or 0 for row in of)
        print(
            f"- {title}: right {sum(row.is_right for row in of)} of {len(of)};"
            f" low: median {_median(shares, '.1%')}, {nodes[0]} of {nodes[1]} nodes;"
            f" Casts: median {_median(casts, 'g')}, sum {sum(casts)};"
            f" bytes: median {_median(moved, '.3f')}, mean {statistics.fmean(moved) if moved else math.nan:.3f}"
        )

    print()
    summarize("this run", rows)
    for name in dict.fromkeys(name for by_name in rivals.values() for name in by_name):
        same = [(row, rivals[row.model][name]) for row in rows if name in rivals.get(row.model, {})]
        summarize(name, [rival for _, rival in same])
        losses = Counter(figure for row, rival in same if rival.is_right for figure in find_losses(row, rival))
        missed = [row.model for row, rival in same if row.loads and not row.is_right and rival.is_right]
        print(f"  - better in {dict(losses)}; right where this run is not: {', '.join(missed) or 'none'}")
    if rivals:
        texts = [_describe_comparison(row, rivals.get(row.model, {})) for row in rows]
        print(f"- not beaten: {texts.count('none')} of {len(rows)}")
    print(f"- {seconds:.0f} s")
    for row in rows:
        for fault in row.faults:
            print(f"- {row.model}: {fault}")


def _median(numbers: Sequence[float], form: str) -> str:
    return f"{statistics.median(numbers):{form}}" if numbers else "-"


def _print_kept_high(rows: Sequence[Row]) -> None:
    """Print the nodes that stay in float32 by op type, list and rule, and the models with most of them."""
    print("\n| nodes in float32 | op type, list, rule | models |\n|---|---|---|")
    counts = Counter[str]()
    for row in rows:
        counts.update(row.kept_high)
    for kind, count in counts.most_common(60):
        models = sorted((-row.kept_high.get(kind, 0), row.model) for row in rows if kind in row.kept_high)
        print(f"| {count} | {kind} | {', '.join(f'{name} {-number}' for number, name in models[:4])} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    for name in POLICY_OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", help="as for mixlist apply")
    parser.add_argument("--tool", choices=["mixlist", "onnxruntime"], default="mixlist")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", nargs="*", default=[], metavar="FILE[:TOOL]")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--kept-high", action="store_true")
    main(parser.parse_args())
