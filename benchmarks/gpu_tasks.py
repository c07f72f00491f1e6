"""Run tasks on a GPU within a time budget: each task in a process of its own, each result written at once.

A task is a tuple of words. Its script, started with ``--one`` and these words, runs the task and prints a JSON object
as its last line. No task starts after the budget is spent; the tasks that did not start are named at the end.
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
    script: str,
    tasks: Sequence[Task],
    out: Path,
    format_result: Callable[[Any], str],
    budget: float,
    jobs: int,
    limit: float,
) -> None:
    """Run the tasks of ``script`` in order, ``jobs`` at a time.

    Each result is printed as the text that ``format_result`` returns, and appended to ``out`` as a line of JSON.
    ``budget`` (of all tasks) and ``limit`` (of one task) are seconds.
    """
    start, skipped, lock = time.monotonic(), [], Lock()

    def run(task: Task) -> None:
        remaining = budget - (time.monotonic() - start)
        if remaining <= 0:
            skipped.append(" ".join(task))
            return
        began = time.monotonic()
        record = {"task": list(task), **_run_task(script, task, min(limit, remaining + 30))}
        record["seconds"] = round(time.monotonic() - began, 1)
        with lock:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(format_result(record["result"]) if "result" in record else _failed(record), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, tasks))
    print(f"\n{len(tasks) - len(skipped)} of {len(tasks)} tasks in {time.monotonic() - start:.0f} s of {budget:.0f} s")
    if skipped:
        print(f"left out for want of time: {', '.join(skipped)}", flush=True)


def _failed(record: Any) -> str:
    """Return the last line of a task's error; the file has the whole error."""
    return f"{' '.join(record['task'])}: FAILED: {record['error'].strip().splitlines()[-1][:300]}"


def _run_task(script: str, task: Task, limit: float) -> dict[str, Any]:
    """Run one task; return its ``result``, or its ``error``."""
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


def require_provider(provider: str) -> None:
    """End the script with one sentence if the installed ONNX Runtime does not have the provider."""
    from mixlist.targets.providers import available_providers

    if provider not in available_providers():
        sys.exit(
            f"the installed ONNX Runtime does not have the provider {provider}: install onnxruntime-gpu, or try the"
            " script on a CPU with --provider cpu"
        )


def card() -> str:
    """Return the GPU's name, driver and memory, as nvidia-smi prints them, and ONNX Runtime's build."""
    import onnxruntime

    build = f"{onnxruntime.package_name} {onnxruntime.__version__}"
    build += f" (CUDA {onnxruntime.cuda_version})" if onnxruntime.cuda_version else ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        name = "no NVIDIA GPU"
    return f"{name}; {build}"
