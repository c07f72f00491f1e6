#!/usr/bin/env python3
"""Measure ``mixlist apply`` on 4 GB of weights in external data: its peak memory, and its time against a byte copy.

    python benchmarks/large_weights.py [--dir FOLDER] [--gigabytes 4] [--rounds 5]

Every run is a whole process; its peak resident memory is the kernel's figure (``ru_maxrss``). The copy is
``shutil.copyfile`` in a process of its own, from and to the same folder. As far as memory allows, all files are in the
page cache: each contender reads the input once before its time counts. No contender waits for the disk: neither syncs
its large file, and before the next run the output is deleted and the disk synced. The order alternates, and the least
time of the rounds counts.

The default policy (``--constants keep``) needs the range of every weight before it can decide, so it reads the weights
twice; with ``--constants ieee`` they are read once. Both write float16 only, half the bytes of the copy. A third run
keeps every weight in float32: then it writes as many bytes as the copy.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from clock import machine, report, verdict

COPY = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"
MIB = 2**20


def main(folder: str | None, gigabytes: float, rounds: int) -> None:
    """Print peak memory and the ratio of times for each policy."""
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as home:
        model = Path(home, "model.onnx")
        _run([str(Path(__file__).with_name("generate.py")), "weights", str(int(gigabytes * 1e9)), str(model)])
        data = model.with_suffix(".data")
        (out := Path(home, "out")).mkdir()
        black = Path(home, "black.json")
        black.write_text('{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}')
        apply = ["-m", "mixlist", "apply", str(model), "-o", str(out / "out.onnx")]
        contenders = {
            "copy": ["-c", COPY, str(data), str(out / "copy.data")],
            "apply": apply,
            "apply --constants ieee": [*apply, "--constants", "ieee"],
            "apply, all in float32": [*apply, "--mixlist", str(black)],
        }
        seconds, peak = _measure(contenders, out, rounds)
        print(f"{data.stat().st_size:,} bytes of weights, a third of them in one tensor")
    for name in list(contenders)[1:]:
        memory = peak[name] / MIB
        print(f"{name}: peak {memory:.0f} MiB{verdict(memory, 600e6 / MIB, 300e6 / MIB)}")
        report(name, seconds[name], "byte copy", seconds["copy"], goal=1.5, aim=1)
    print(f"mixlist --version: peak {peak['version'] / MIB:.0f} MiB; imports of apply: {peak['imports'] / MIB:.0f} MiB")


def _measure(contenders: dict[str, list[str]], out: Path, rounds: int) -> tuple[dict[str, float], dict[str, int]]:
    """Return the least seconds and the largest peak in bytes of each contender.

    The first round does not count for the time.
    """
    seconds: dict[str, float] = {}
    peak = {
        "version": _run(["-m", "mixlist", "--version"])[1],
        "imports": _run(["-c", "import onnx, numpy, ml_dtypes, onnxruntime, mixlist"])[1],
    }
    for count in range(rounds + 1):
        for name in sorted(contenders, key=list(contenders).index, reverse=bool(count % 2)):
            elapsed, memory = _run(contenders[name])
            peak[name] = max(memory, peak.get(name, 0))
            if count:
                seconds[name] = min(elapsed, seconds.get(name, float("inf")))
            for file in out.iterdir():
                file.unlink()
            os.sync()
    return seconds, peak


def _run(arguments: list[str]) -> tuple[float, int]:
    """Run a Python process without its output, and return its seconds and its peak resident bytes.

    The kernel's figure starts with the size of the parent, so this process must stay small: it imports no numpy and no
    onnx.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *_inherited_path()])}
    start = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    child = os.posix_spawn(sys.executable, [sys.executable, *arguments], environment, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    elapsed = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return elapsed, usage.ru_maxrss * 1024  # Linux counts it in KiB


def _inherited_path() -> list[str]:
    return [p for p in [os.environ.get("PYTHONPATH", "")] if p]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--dir", help="where the files go (three times the weights' size); the default temporary folder"
    )
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    main(options.dir, options.gigabytes, options.rounds)
