#!/usr/bin/env python3
"""How long applying a list takes on a graph of 10,000 nodes, against loading and saving it and against a peer.

    python benchmarks/apply_speed.py [--no-peer]

The peer is ``convert_float_to_float16`` of onnxconverter-common (``pip install onnxconverter-common``). It is told
to keep the same nodes high that the list keeps high (``node_block_list``), so both do the same work; it runs once.
Its time with nothing kept high, where it inserts two Casts in all, is printed beside it, without a goal.
Where the package is missing the rest is measured all the same.
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
    """Print each ratio; in-process figures leave out interpreter start and imports, whole ones do not."""
    with tempfile.TemporaryDirectory() as folder:
        one = write_graph(Path(folder, "one.onnx"), NODES)
        two = write_graph(Path(folder, "two.onnx"), 2 * NODES)
        out = Path(folder, "out.onnx")
        inside = race({"apply": _apply(one, out), "twice": _apply(two, out), "copy": _copy(one, out)}, ROUNDS)
        copying = "import onnx_ir, sys; onnx_ir.save(onnx_ir.load(sys.argv[1]), sys.argv[2])"
        whole = race(
            {
                "apply": process(["-m", "mixlist", "apply", str(one), "-o", str(out), "--force"]),
                "copy": process(["-c", copying, str(one), str(out)]),
            },
            ROUNDS,
        )
        print(machine())
        report(f"apply, {NODES} nodes, in process", inside["apply"], "onnx-ir load + save", inside["copy"], goal=3)
        report(f"apply, {NODES} nodes, whole", whole["apply"], "onnx-ir load + save, whole", whole["copy"], goal=3)
        report(f"apply, {2 * NODES} nodes, in process", inside["twice"], f"{NODES} nodes", inside["apply"], goal=2.3)
        if "--no-peer" not in options:
            _peer(one, out, inside["apply"])


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


def _peer(path: Path, out: Path, ours: float) -> None:
    """Time the peer's load, conversion and save, once for the same decisions and once for everything low."""
    import onnx

    import mixlist

    try:
        from onnxconverter_common.float16 import convert_float_to_float16
    except ImportError:
        print("onnxconverter-common is not installed: not compared")
        return
    nodes = mixlist.resolve(path, mixlist.load_policy()).nodes
    high = [node.name for node in nodes if node.precision == "float32"]
    for what, kept, goal in (("same nodes low", high, 1 / 20), ("all nodes low", [], None)):
        start = time.perf_counter()
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True, node_block_list=kept), out)
        report("apply, in process", ours, f"onnxconverter-common, {what}, once", time.perf_counter() - start, goal)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(*sys.argv[1:])
