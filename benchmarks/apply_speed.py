#!/usr/bin/env python3
"""Compare the time to apply a list to a graph of 10,000 nodes with loading and saving the graph, and with a peer.

    python benchmarks/apply_speed.py [--no-peer] [FOLDER]

The peer is ``convert_float_to_float16`` of onnxconverter-common (``pip install onnxconverter-common``). Its
``node_block_list`` names the nodes that the list keeps in float32, so that both do the same work; it runs once.
Its time with an empty ``node_block_list``, where it inserts two Casts in all, is printed too, without a goal.
If the package is missing, everything else is still measured.

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``). For each of its models, ``mixlist apply`` is compared
with ``convert_float_to_float16`` of ``onnxruntime.transformers.float16``: whole processes, with the imports.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from clock import machine, process, race, report, verdict
from generate import write_graph

NODES, ROUNDS = 10_000, 5
ORT_PROGRAM = """
import onnx, sys
from onnxruntime.transformers.float16 import convert_float_to_float16
onnx.save(convert_float_to_float16(onnx.load(sys.argv[1]), keep_io_types=True), sys.argv[2])
"""


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
        for corpus in (option for option in options if not option.startswith("--")):
            _corpus(sorted(Path(corpus).glob("*.onnx")), out)


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


def _corpus(models: Sequence[Path], out: Path) -> None:
    """Time the command and ONNX Runtime's converter on each model, both as whole processes."""
    totals = {"apply": 0.0, "ort": 0.0}
    ratios = []
    for model in models:
        seconds = race(
            {
                "apply": process(["-m", "mixlist", "apply", str(model), "-o", str(out), "--force"]),
                "ort": process(["-c", ORT_PROGRAM, str(model), str(out)]),
            },
            ROUNDS,
        )
        report(f"{model.stem}, whole", seconds["apply"], "onnxruntime.transformers.float16", seconds["ort"], goal=None)
        totals = {name: total + seconds[name] for name, total in totals.items()}
        ratios.append(seconds["apply"] / seconds["ort"])
    if ratios:
        report(f"sum of {len(ratios)} models", totals["apply"], "of the converter", totals["ort"], goal=0.8)
        median = statistics.median(ratios)
        print(f"median ratio of {len(ratios)} models: {median:.3g}{verdict(median, 0.9, 0.5)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(*sys.argv[1:])
