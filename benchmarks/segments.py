"""Measure the memory and time of ``mixlist check`` or ``tune`` in segments on a large decoder with random weights.

python benchmarks/segments.py FOLDER [--size SMALL|LARGE] [--batches N] [--tokens N] [--whole] [--tune]

Writes the model into FOLDER, unless it is there (LARGE: 4.4 GB). With ``--tune`` it is a planted case: in one layer
the up projection is multiplied by 8e4, and the down projection divided by it. Prints the peak of the summed PSS of the
process and its children, mapped pages included, and the time against plain runs: one ONNX Runtime session that is
loaded and run over the same batches. ``--whole`` measures the command without segments too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support import llama_models

PLAIN = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for path in sys.argv[2:]:
    session.run(None, dict(numpy.load(path)))
"""


def main() -> None:
    """Print one line for each contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="LARGE", choices=("SMALL", "LARGE"))
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    size = getattr(llama_models, arguments.size)
    model = arguments.folder / ("planted.onnx" if arguments.tune else "model.onnx")
    arguments.folder.mkdir(exist_ok=True)
    if not model.exists():
        llama_models.write_llama(model, size, llama_models.PLANTED if arguments.tune else None)
    data = arguments.folder / f"batches_{arguments.batches}_{arguments.tokens}"
    data.mkdir(exist_ok=True)
    paths = [data / f"{index:03}.npz" for index in range(arguments.batches)]
    for index, path in enumerate(paths):
        np.savez(path, **llama_models.make_token_ids(size, 1, arguments.tokens, index))
    plain_seconds = measure("plain run", [sys.executable, "-c", PLAIN, str(model), *map(str, paths)], 0.0)
    name = "tune" if arguments.tune else "check"
    command = [sys.executable, "-m", "mixlist", name, str(model), "--ops-info", "onnx", "--data", str(data)]
    if arguments.tune:
        lists = arguments.folder / "lists.json"
        command += ["-o", str(lists), "--force"]
    measure(f"{name} in segments", [*command, "--segment-bytes", str(256 << 20)], plain_seconds)
    if arguments.whole:
        measure(f"{name}, whole", [*command, "--segment-bytes", str(1 << 40)], plain_seconds)
    if arguments.tune:
        print(lists.read_text())


def measure(name: str, command: list[str], plain_seconds: float) -> float:
    """Run a command, print its peak PSS and its time, and return the seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = [0]
    sampler = threading.Thread(target=sample_pss, args=(process, peak))
    sampler.start()
    process.wait()
    seconds = time.perf_counter() - start
    sampler.join()
    ratio = f", {seconds / plain_seconds:.1f} plain runs" if plain_seconds else ""
    print(
        f"{name}: exit status {process.returncode}, peak PSS {peak[0] / 1e6:.2f} GB, {seconds:.1f} s{ratio}", flush=True
    )
    return seconds


def sample_pss(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Keep the largest summed PSS of a process and its children, in kB, until the process ends."""
    while process.poll() is None:
        total = sum(read_pss(pid) for pid in [process.pid, *find_children(process.pid)])
        peak[0] = max(peak[0], total)
        time.sleep(0.05)


def find_children(pid: int) -> list[int]:
    """Return the processes below a process."""
    try:
        texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    children = [int(child) for text in texts for child in text.split()]
    return children + [below for child in children for below in find_children(child)]


def read_pss(pid: int) -> int:
    """Return the PSS of a process in kB, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
