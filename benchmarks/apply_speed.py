#!/usr/bin/env python3
"""Compare the time to apply a list to a graph of 10,000 nodes with loading and saving the graph, and with a peer.

    python benchmarks/apply_speed.py [--no-peer]

The peer is ``convert_float_to_float16`` of onnxconverter-common (``pip install onnxconverter-common``). Its
``node_block_list`` names the nodes that the list keeps in float32, so that both do the same work; it runs once.
Its time with an empty ``node_block_list``, where it inserts two Casts in all, is printed too, without a goal.
If the package is missing, everything else is still measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clock import machine, process, race, report
from generate import write_graph

NODES, ROUNDS = 10_000, 5


def main(*options: str) -> None:
    """Print each ratio: in process, without interpreter start and imports, and of whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        graph = write_graph(Path(folder, "one.onnx"), NODES)
        double = write_graph(Path(folder, "two.onnx"), 2 * NODES)
        out = Path(folder, "out.onnx")
        in_process = race(
            {"apply": _apply(graph, out), "double": _apply(double, out), "copy": _copy(graph, out)}, ROUNDS
        )
        copy_program = "import onnx_ir, sys; onnx_ir.save(onnx_ir.load(sys.argv[1]), sys.argv[2])"
        processes = race(
            {
                "apply": process(["-m", "mixlist", "apply", str(graph), "-o", str(out), "--force"]),
                "copy": process(["-c", copy_program, str(graph), str(out)]),
            },
            ROUNDS,
        )
        print(machine())
        report(
            f"apply, {NODES} nodes, in process", in_process["apply"], "onnx-ir load + save", in_process["copy"], goal=3
        )
        report(
            f"apply, {NODES} nodes, whole", processes["apply"], "onnx-ir load + save, whole", processes["copy"], goal=3
        )
        report(
            f"apply, {2 * NODES} nodes, in process",
            in_process["double"],
            f"{NODES} nodes",
            in_process["apply"],
            goal=2.3,
        )
        if "--no-peer" not in options:
            _peer(graph, out, in_process["apply"])


def _apply(path: Path, out: Path) -> Callable[[], object]:
    import mixlist

    policy = mixlist.load_policy()

    def run() -> None:
        plan = mixlist.resolve(path, policy)
        mixlist.rewrite(path, plan).save(out, force=True)

    return run


def _copy(path: Path, out: Path) -> Callable[[], object]:
    import onnx_ir

    return lambda: onnx_ir.save(onnx_ir.load(path), out)


def _peer(path: Path, out: Path, mixlist_seconds: float) -> None:
    """Time the peer's load, conversion and save: once with the list's decisions, once with every node low."""
    import onnx

    import mixlist

    try:
        from onnxconverter_common.float16 import convert_float_to_float16
    except ImportError:
        print("onnxconverter-common is not installed: not compared")
        return
    nodes = mixlist.resolve(path, mixlist.load_policy()).nodes
    high = [node.name for node in nodes if node.precision == "float32"]
    for decisions, blocked, goal in (("same nodes low", high, 1 / 20), ("all nodes low", [], None)):
        start = time.perf_counter()
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True, node_block_list=blocked), out)
        seconds = time.perf_counter() - start
        report("apply, in process", mixlist_seconds, f"onnxconverter-common, {decisions}, once", seconds, goal)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(*sys.argv[1:])
