"""Time contenders side by side: each round runs every contender once, so that a slow moment hits all of them."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def race(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender over ``rounds`` rounds, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for count in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if count:  # the first round warms up caches
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def process(arguments: Sequence[str], allowed: tuple[int, ...] = (0,)) -> Callable[[], None]:
    """Return a contender that runs a whole Python process: interpreter start, imports, work, exit.

    The contender raises RuntimeError if the exit status is not one of ``allowed``.
    """
    command = [sys.executable, *arguments]

    def run() -> None:
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode not in allowed:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")

    return run


def best_of(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the least seconds of each contender over ``rounds`` rounds. A contender returns its own seconds.

    Every other round runs the contenders in the reverse order, so that no contender always follows the same one.
    """
    times: dict[str, float] = {}
    for count in range(rounds):
        for name in sorted(contenders, key=list(contenders).index, reverse=bool(count % 2)):
            times[name] = min(contenders[name](), times.get(name, float("inf")))
    return times


def worker(arguments: Sequence[str], limit: float | None = None) -> dict[str, float]:
    """Run a fresh Python process and return the JSON object of its last line: figures that it measured itself.

    These figures leave out interpreter start and imports. Raises subprocess.TimeoutExpired after ``limit`` seconds.
    """
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=_environment(), timeout=limit
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(
    subject: str, seconds: float, base: str, base_seconds: float, goal: float | None, aim: float | None = None
) -> None:
    """Print the ratio of two times, and whether it meets its goal and its aim.

    The ratio must not be above the goal; the aim is the ratio to strive for. None: there is no such bound.
    """
    line = f"{subject}: {_time(seconds)}; {base}: {_time(base_seconds)}; ratio {seconds / base_seconds:.3g}"
    print(line + verdict(seconds / base_seconds, goal, aim), flush=True)


def verdict(figure: float, goal: float | None, aim: float | None = None) -> str:
    """Return a text like `` (goal <= 3: met; aim <= 1.8: missed)``, or "" if there is neither goal nor aim."""
    bounds = [] if goal is None else [f"goal <= {goal:.3g}: {'met' if figure <= goal else 'MISSED'}"]
    bounds += [] if aim is None else [f"aim <= {aim:.3g}: {'met' if figure <= aim else 'missed'}"]
    return f" ({'; '.join(bounds)})" if bounds else ""


def _environment() -> dict[str, str]:
    """Return this process's environment, changed so that it imports mixlist from the checkout and caches bytecode."""
    # An installed package has its bytecode cached: without a cache every process would compile mixlist again.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {
        **variables,
        "PYTHONPATH": path,
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "mixlist-bytecode")),
    }


def machine() -> str:
    """Return the processor, the cores and the versions that figures depend on, without the name of the host."""
    from importlib.metadata import PackageNotFoundError, version

    def name_and_version(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"{package} absent"

    packages = ", ".join(
        map(name_and_version, ("onnx", "onnx-ir", "onnxruntime", "onnxconverter-common", "polygraphy", "numpy"))
    )
    return f"{_processor()}, {os.cpu_count()} cores; Python {platform.python_version()}; {packages}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
