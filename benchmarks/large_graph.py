#!/usr/bin/env python3
"""Time the application of a list to graphs of up to 100,000 nodes.

    python benchmarks/large_graph.py [--limit SECONDS]

The time is compared with that of a converter, with loading and saving the same graph, and with that of 10,000 nodes.
The graphs are blocks of ten nodes, a dense layer and its normalization from elementary operators; with the ``onnx``
lists the precision changes four times in each block. Each timing comes from a fresh process, after its imports; the
least of a few rounds counts, and the order alternates. ``in process`` is ``resolve`` + ``rewrite`` + ``save`` from
Python, ``apply`` the whole command with interpreter start and imports.

The converter is ``onnxruntime.transformers.float16.convert_float_to_float16``; its ``node_block_list`` names the nodes
that the list keeps in float32. It looks at every tensor for each of these nodes, so its time grows with the square of
the graph: it runs once at each size, at most ``--limit`` seconds (900). The processor time is printed too: on a machine
with other work it is the fairer figure for one run.
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
        seconds = best_of(
            {
                "small": partial(_seconds, "mixlist", graphs[SMALL], folder),
                "large": partial(_seconds, "mixlist", graphs[LARGE], folder),
                "copy": partial(_seconds, "copy", graphs[LARGE], folder),
                "apply": _timed(["-m", "mixlist", "apply", str(graphs[LARGE]), "-o", str(folder / "out"), "--force"]),
                "copy process": _timed([__file__, "--work", "copy", str(graphs[LARGE]), str(folder / "out")]),
            },
            ROUNDS,
        )
        report(f"{LARGE} nodes, in process", seconds["large"], "onnx-ir load + save", seconds["copy"], goal=3, aim=1.8)
        report(f"{LARGE} nodes, apply", seconds["apply"], "onnx-ir load + save, whole", seconds["copy process"], 3, 1.8)
        report(f"{LARGE} nodes, in process", seconds["large"], f"{SMALL} nodes", seconds["small"], goal=11, aim=10)
        for size in (5_000, SMALL, 20_000, MIDDLE):
            _compare_with_converter(graphs[size], size, folder, limit)


def _compare_with_converter(path: Path, size: int, folder: Path, limit: float) -> None:
    """Print the ratio of mixlist's time to the converter's, and how many times as fast mixlist is."""
    rounds = [_figures("mixlist", path, folder) for _ in range(ROUNDS)]
    mixlist_seconds, mixlist_cpu = min(r["seconds"] for r in rounds), min(r["cpu"] for r in rounds)
    converter = "onnxruntime.transformers.float16"
    goals = (1 / 15, 1 / 40) if size == MIDDLE else (None, None)
    try:
        figures = _figures("converter", path, folder, limit)
    except subprocess.TimeoutExpired:
        figures, converter = {"seconds": limit, "cpu": limit}, f"{converter}, stopped after the limit"
    report(f"{size} nodes, in process", mixlist_seconds, converter, figures["seconds"], *goals)
    speedup, cpu_speedup = figures["seconds"] / mixlist_seconds, figures["cpu"] / mixlist_cpu
    print(f"  {speedup:.3g} times as fast; by processor time {cpu_speedup:.3g} times", flush=True)


def _seconds(task: str, path: Path, folder: Path) -> float:
    return _figures(task, path, folder)["seconds"]


def _figures(task: str, path: Path, folder: Path, limit: float | None = None) -> dict[str, float]:
    """Return the seconds and the processor seconds of a task, which runs in a fresh process."""
    return worker([__file__, "--work", task, str(path), str(folder / "out")], limit)


def _timed(arguments: list[str]) -> Callable[[], float]:
    """Return a contender that returns the seconds of a whole process."""
    run = process(arguments)

    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


# --- in the fresh process ---


def work(task: str, path: str, out: str) -> None:
    """Run one task after its imports; print its seconds by the wall clock and of processor time, as JSON."""
    run = {"mixlist": _mixlist, "copy": _copy, "converter": _converter}[task](path, out)
    start, cpu = time.perf_counter(), time.process_time()
    run()
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}))


def _mixlist(path: str, out: str) -> Callable[[], None]:
    import onnx_ir  # noqa: F401  else resolve and rewrite would import it in the time that is measured

    import mixlist

    policy = mixlist.load_policy()

    def run() -> None:
        mixlist.rewrite(path, mixlist.resolve(path, policy)).save(out, force=True)

    return run


def _copy(path: str, out: str) -> Callable[[], None]:
    import onnx_ir

    return lambda: onnx_ir.save(onnx_ir.load(path), out)


def _converter(path: str, out: str) -> Callable[[], None]:
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
