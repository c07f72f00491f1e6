#!/usr/bin/env python3
"""Measure `mixlist check`: time against plain runs, memory against fetching every tensor, and against polygraphy.

    python benchmarks/check_speed.py [--no-times] [--no-memory] [--no-peer] FOLDER

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); models that are missing are left out. Each
model reads its first batch of the corpus. Polygraphy (requirements.txt) runs
``polygraphy run --onnxrt --onnx-outputs mark all --validate`` on the same model and batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from clock import machine, process, race, report, verdict  # noqa: E402

ROUNDS, MEMORY_ROUNDS, PEER_ROUNDS = 15, 3, 3
LARGE = ("stack", "nudenet_320n")  # models with large activations
PEERS = ("stack", "nudenet_320n", "ppocr4_rec", "paraphrase_minilm_l3")
SIZE, CHANNELS, LAYERS = 512, 16, 12  # of the generated stack of convolutions


def main(*options: str) -> None:
    """Print every ratio."""
    folder = Path(next(o for o in options if not o.startswith("--")))
    with tempfile.TemporaryDirectory() as home:
        models = {path.stem: path for path in sorted(folder.glob("*.onnx"))}
        models["stack"] = write_stack(Path(home, "stack.onnx"))
        print(machine(), flush=True)
        if "--no-times" not in options:
            _times({name: path for name, path in models.items() if name != "stack"})
        if "--no-memory" not in options:
            for name in LARGE:
                if name in models:
                    _memory(name, models[name])
        if "--no-peer" not in options:
            _peer({name: models[name] for name in PEERS if name in models}, Path(home))


# --- time ---


def _times(models: Mapping[str, Path]) -> None:
    """Time the check's two observed runs of one batch against two plain runs; the sessions exist before."""
    ratios = []
    for name, path in models.items():
        observed, plain = _contenders(path, _feed(name))
        seconds = race({"check": observed, "plain": plain}, ROUNDS)
        report(name, seconds["check"], "two plain runs", seconds["plain"], goal=None)
        ratios.append(seconds["check"] / seconds["plain"])
    if ratios:
        median = statistics.median(ratios)
        print(f"median of {len(ratios)} models: {median:.3g}{verdict(median, 3, 2)}", flush=True)


def _contenders(path: Path, feed: Mapping[str, Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what a check does with each batch, with all tensors observed, and two runs of the original model."""
    import mixlist
    from mixlist.checker.check_sessions import CheckSessions
    from mixlist.checker.finding_rules import BatchRanges, classify_operands, classify_outputs
    from mixlist.checker.model_pair import make_model_pair
    from mixlist.model.load import load_model
    from mixlist.run.executors import Workers

    # In this process, as the plain runs: the pipes are not compared.
    in_this_process = Workers(ThreadPoolExecutor(1), 1, None, str)
    sessions = CheckSessions("cpu", in_this_process, False, skip_optimization=True)
    pair = make_model_pair(load_model(path), mixlist.load_policy(), None, sessions)
    session = _session(path.read_bytes())

    def observed() -> None:
        _, reference = pair.reference_observer.run(feed)
        _, mixed = pair.mixed_observer.run(feed)
        batch = BatchRanges(
            0, reference, mixed, pair.low_type_of, False, conversion_ranges=pair.conversion_ranges(reference, mixed)
        )
        classify_outputs(batch, pair.nodes, {})
        classify_operands(batch, pair.conversion_readers, {})

    def plain() -> None:
        session.run(None, feed)
        session.run(None, feed)

    return observed, plain


def _session(model: bytes) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


# --- memory ---


def _memory(name: str, path: Path) -> None:
    """Compare the peak resident memory of whole processes, minus that of ``idle``: the same imports, and the model."""
    peaks = {task: statistics.median(_peak(task, name, path) for _ in range(MEMORY_ROUNDS)) for task in WORKERS}
    for task, peak in peaks.items():
        print(f"{name}: peak of {task}: {peak / 2**20:.0f} MiB", flush=True)
    check, fetch = peaks["check"] - peaks["idle"], peaks["fetch"] - peaks["idle"]
    line = f"{name}: memory above an idle process: check {check / 2**20:.0f} MiB; every tensor an output"
    print(f"{line} {fetch / 2**20:.0f} MiB; ratio {check / fetch:.3g}{verdict(check / fetch, 0.25)}")
    to_fetch, to_plain = peaks["check"] / peaks["fetch"], peaks["check"] / peaks["plain"]
    print(f"{name}: whole peaks: check / every tensor an output {to_fetch:.3g}; check / plain {to_plain:.3g}", end="")
    print(verdict(to_plain, None, 1.1), flush=True)


def _peak(task: str, name: str, path: Path) -> int:
    """Return the peak resident memory in bytes of a process that runs one task of WORKERS."""
    command = [sys.executable, __file__, "--worker", task, name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def worker(task: str, name: str, path: str) -> None:
    """Run one task in this process, and print the peak resident memory in bytes."""
    import mixlist.checker.run  # noqa: F401 - every task has the same imports

    feed = _feed(name)
    WORKERS[task](Path(path), feed)
    print(_own_peak())


def _own_peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    import resource

    # On Linux not by getrusage: there a new program inherits the peak of the process that started it.
    status = Path("/proc/self/status")
    for line in status.read_text("ascii", "replace").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _check(path: Path, feed: Mapping[str, Any]) -> None:
    import mixlist

    mixlist.check(path, mixlist.load_policy(), [feed])


def _plain(path: Path, feed: Mapping[str, Any]) -> None:
    _session(path.read_bytes()).run(None, feed)


def _idle(path: Path, feed: Mapping[str, Any]) -> None:
    import onnx
    import onnxruntime  # noqa: F401

    onnx.load(path)


def _fetch(path: Path, feed: Mapping[str, Any]) -> None:
    """Run both models of a check by the plain method: every tensor of each of them is an output."""
    import mixlist
    from mixlist.checker.emulation import emulate
    from mixlist.model.load import load_model

    loaded = load_model(path)
    plan = mixlist.resolve(loaded, mixlist.load_policy())
    mixed = mixlist.rewrite(loaded, plan).model
    reference_values = _session(_all_outputs(loaded.proto)).run(None, feed)
    mixed_values = _session(_all_outputs(emulate(load_model(mixed)))).run(None, feed)
    assert len(reference_values) and len(mixed_values)  # a check compares them, so both stay in memory


def _all_outputs(proto: Any) -> bytes:
    """Return the model with every tensor of the main graph as an output, serialized."""
    from onnx import ValueInfoProto, shape_inference

    copy = shape_inference.infer_shapes(proto)
    declared = {output.name for output in copy.graph.output}
    for node in copy.graph.node:
        copy.graph.output.extend(ValueInfoProto(name=n) for n in node.output if n and n not in declared)
    return bytes(copy.SerializeToString())


WORKERS: dict[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "idle": _idle,
    "plain": _plain,
    "check": _check,
    "fetch": _fetch,
}


# --- the peer ---


def _peer(models: Mapping[str, Path], home: Path) -> None:
    """Time whole processes, from start to verdict, on the same model and batch."""
    import numpy as np

    if find_spec("polygraphy") is None:
        print("polygraphy is not installed: not compared")
        return
    for name, path in models.items():
        feed = _feed(name)
        data, inputs = home / f"{name}.npz", home / f"{name}.json"
        np.savez(data, **feed)
        saving = "import sys; from polygraphy.json import save_json; import numpy as np; "
        saving += "save_json([dict(np.load(sys.argv[1]))], sys.argv[2])"
        process(["-c", saving, str(data), str(inputs)])()
        run = "import sys; from polygraphy.tools import main; sys.exit(main())"
        arguments = ["run", str(path), "--onnxrt", "--onnx-outputs", "mark", "all", "--validate"]
        # Both must exit with 0. Polygraphy's 1 means an output that is not finite, but also a run that failed early;
        # mixlist's 1 may be a crash. These models are finite and pass, so 0 proves that the work was done.
        contenders = {
            "check": process(["-m", "mixlist", "check", str(path), "--data", str(data)]),
            "peer": process(["-c", run, *arguments, "--load-inputs", str(inputs)]),
        }
        seconds = race(contenders, PEER_ROUNDS)
        report(f"{name}, mixlist check", seconds["check"], "polygraphy", seconds["peer"], goal=1 / 3, aim=1 / 10)


# --- models and data ---


def _feed(name: str) -> dict[str, Any]:
    import numpy as np

    if name == "stack":
        return {"x": np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)}
    from tests.corpus.feeds import feeds

    return dict(feeds(name)[0])


def write_stack(path: Path) -> Path:
    """Write LAYERS convolutions and Relus on pictures of SIZE x SIZE; each tensor takes 16 MiB. Return the path."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "x", 3
    for k in range(LAYERS):
        kernel = rng.standard_normal((CHANNELS, channels, 3, 3)) * np.sqrt(2 / (9 * channels))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], name=f"Conv_{k}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"Relu_{k}"))
        last, channels = f"r{k}", CHANNELS
    shapes = ([1, 3, SIZE, SIZE], [1, CHANNELS, SIZE, SIZE])
    graph_input, output = (helper.make_tensor_value_info(n, 1, s) for n, s in zip(("x", last), shapes, strict=True))
    graph = helper.make_graph(nodes, "stack", [graph_input], [output], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
