"""Work for a GPU that is lent for minutes: each task in a process of its own, results written as they come.

A task is a line of words; the script that it belongs to runs it when it is started with ``--one`` and those words, and
prints a JSON object as its last line. No task is started after the budget is spent, and those left out are named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).parent.parent
Task = tuple[str, ...]


def run_all(
    script: str, tasks: Sequence[Task], out: Path, tell: Callable[[Any], str], budget: float, jobs: int, limit: float
) -> None:
    """Run the tasks in order, ``jobs`` at a time; ``tell`` makes text of a result, ``out`` gets a JSON line each.

    ``budget`` and ``limit`` (of one task) are seconds.
    """
    start, left, lock = time.monotonic(), [], Lock()

    def run(task: Task) -> None:
        rest = budget - (time.monotonic() - start)
        if rest <= 0:
            left.append(" ".join(task))
            return
        began = time.monotonic()
        record = {"task": list(task), **_one(script, task, min(limit, rest + 30))}
        record["seconds"] = round(time.monotonic() - began, 1)
        with lock:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(tell(record["result"]) if "result" in record else _failed(record), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, tasks))
    print(f"\n{len(tasks) - len(left)} of {len(tasks)} tasks in {time.monotonic() - start:.0f} s of {budget:.0f} s")
    if left:
        print(f"left out for want of time: {', '.join(left)}", flush=True)


def _failed(record: Any) -> str:
    """The last line of what went wrong; the file has all."""
    return f"{' '.join(record['task'])}: FAILED: {record['error'].strip().splitlines()[-1][:300]}"


def _one(script: str, task: Task, limit: float) -> dict[str, Any]:
    command = [sys.executable, "-X", "faulthandler", script, "--one", *task]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env={**os.environ, "PYTHONPATH": path}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:.0f} s"}
    if done.returncode:
        return {"error": f"ended with {done.returncode}: {(done.stderr or done.stdout)[-3000:]}"}
    return {"result": json.loads(done.stdout.splitlines()[-1])}


def card() -> str:
    """The name of the GPU, its driver and memory, as nvidia-smi tells them, and ONNX Runtime's build."""
    import onnxruntime

    build = f"{onnxruntime.package_name} {onnxruntime.__version__}"
    build += f" (CUDA {onnxruntime.cuda_version})" if onnxruntime.cuda_version else ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        name = "no NVIDIA GPU"
    return f"{name}; {build}"
