#!/usr/bin/env python3
"""Applying a list to graphs of up to 100,000 nodes: against a converter, against load and save, against 10,000 nodes.

    python benchmarks/large_graph.py [--limit SECONDS]

The graphs are blocks of ten nodes, a dense layer and its normalisation spelled out; with the ``onnx`` lists the
precision changes four times in each. Every timing is a fresh process that has imported what it needs; the least of
a few rounds counts, the order alternates. ``in process`` is ``resolve`` + ``rewrite`` + ``save`` from Python, ``apply``
the whole command with interpreter start and imports.

The converter is ``onnxruntime.transformers.float16.convert_float_to_float16``, told to keep the nodes high that the
list keeps high. It looks at every tensor for every such node, so its time grows with the square of the graph: it runs
once at each size, at most ``--limit`` seconds (900). The time of the processor is told too: on a machine with other
work it is the fairer figure for one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clock import best_of, machine, process, report, worker
from generate import write_graph

ROUNDS = 4
SMALL, MIDDLE, LARGE = 10_000, 50_000, 100_000


def main(limit: float) -> None:
    """Print each ratio."""
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graphs = {n: write_graph(folder / f"{n}.onnx", n) for n in (5_000, SMALL, 20_000, MIDDLE, LARGE)}
        found = best_of(
            {
                "small": partial(_seconds, "mixlist", graphs[SMALL], folder),
                "large": partial(_seconds, "mixlist", graphs[LARGE], folder),
                "copy": partial(_seconds, "copy", graphs[LARGE], folder),
                "apply": _timed(["-m", "mixlist", "apply", str(graphs[LARGE]), "-o", str(folder / "out"), "--force"]),
                "copying": _timed([__file__, "--work", "copy", str(graphs[LARGE]), str(folder / "out")]),
            },
            ROUNDS,
        )
        report(f"{LARGE} nodes, in process", found["large"], "onnx-ir load + save", found["copy"], goal=3, aim=1.8)
        report(f"{LARGE} nodes, apply", found["apply"], "onnx-ir load + save, whole", found["copying"], 3, 1.8)
        report(f"{LARGE} nodes, in process", found["large"], f"{SMALL} nodes", found["small"], goal=11, aim=10)
        for size in (5_000, SMALL, 20_000, MIDDLE):
            _peer(graphs[size], size, folder, limit)


def _peer(path: Path, size: int, folder: Path, limit: float) -> None:
    rounds = [_figures("mixlist", path, folder) for _ in range(ROUNDS)]
    ours, ours_cpu = min(r["seconds"] for r in rounds), min(r["cpu"] for r in rounds)
    peer = "onnxruntime.transformers.float16"
    goals = (1 / 15, 1 / 40) if size == MIDDLE else (None, None)
    try:
        figures = _figures("peer", path, folder, limit)
    except subprocess.TimeoutExpired:
        figures, peer = {"seconds": limit, "cpu": limit}, f"{peer}, stopped after the limit"
    theirs, theirs_cpu = figures["seconds"], figures["cpu"]
    report(f"{size} nodes, in process", ours, peer, theirs, *goals)
    print(f"  {theirs / ours:.3g} times as fast; by processor time {theirs_cpu / ours_cpu:.3g} times", flush=True)


def _seconds(what: str, path: Path, folder: Path) -> float:
    return _figures(what, path, folder)["seconds"]


def _figures(what: str, path: Path, folder: Path, limit: float | None = None) -> dict[str, float]:
    return worker([__file__, "--work", what, str(path), str(folder / "out")], limit)


def _timed(arguments: list[str]) -> Callable[[], float]:
    run = process(arguments)

    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


# --- in the fresh process ---


def work(what: str, path: str, out: str) -> None:
    """Do one thing after its imports and print its seconds, by the clock and of the processor."""
    run = {"mixlist": _mixlist, "copy": _copy, "peer": _peer_run}[what](path, out)
    start, cpu = time.perf_counter(), time.process_time()
    run()
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}))


def _mixlist(path: str, out: str) -> Callable[[], None]:
    import onnx_ir  # noqa: F401  what resolve and rewrite would import in the time measured

    import mixlist

    policy = mixlist.load_policy()

    def run() -> None:
        mixlist.rewrite(path, mixlist.resolve(path, policy)).save(out, force=True)

    return run


def _copy(path: str, out: str) -> Callable[[], None]:
    import onnx_ir

    return lambda: onnx_ir.save(onnx_ir.load(path), out)


def _peer_run(path: str, out: str) -> Callable[[], None]:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    import mixlist

    plan = mixlist.resolve(path, mixlist.load_policy())
    high = [node.name for node in plan.nodes if node.precision == "float32"]

    def run() -> None:
        model = onnx.load(path)
        onnx.save(convert_float_to_float16(model, keep_io_types=True, op_block_list=[], node_block_list=high), out)

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--limit", type=float, default=900)
        main(parser.parse_args().limit)
