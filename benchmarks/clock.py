"""Time things side by side: each round runs every contender once, so that a slow moment hits them all."""

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
    """Median seconds of each contender over ``rounds`` rounds, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for count in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if count:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def process(arguments: Sequence[str], allowed: tuple[int, ...] = (0,)) -> Callable[[], None]:
    """A contender that is a whole Python process: interpreter start, imports, work, exit."""
    command = [sys.executable, *arguments]

    def run() -> None:
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode not in allowed:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")

    return run


def best_of(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Least seconds of each contender that tells its own time; odd rounds run them in the reverse order."""
    times: dict[str, float] = {}
    for count in range(rounds):
        for name in sorted(contenders, key=list(contenders).index, reverse=bool(count % 2)):
            times[name] = min(contenders[name](), times.get(name, float("inf")))
    return times


def worker(arguments: Sequence[str], limit: float | None = None) -> dict[str, float]:
    """What a fresh Python process printed as a JSON object: its own figures, without start and imports.

    Raises subprocess.TimeoutExpired after ``limit`` seconds.
    """
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=_environment(), timeout=limit
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(
    what: str, seconds: float, base: str, base_seconds: float, goal: float | None, aim: float | None = None
) -> None:
    """Print one ratio and, where it has a goal (the ratio that must not be passed) or an aim, whether it meets it."""
    told = f"{what}: {_time(seconds)}; {base}: {_time(base_seconds)}; ratio {seconds / base_seconds:.3g}"
    print(told + verdict(seconds / base_seconds, goal, aim), flush=True)


def verdict(figure: float, goal: float | None, aim: float | None = None) -> str:
    """`` (goal <= 3: met; aim <= 1.8: missed)``; nothing where there is neither."""
    told = [] if goal is None else [f"goal <= {goal:.3g}: {'met' if figure <= goal else 'MISSED'}"]
    told += [] if aim is None else [f"aim <= {aim:.3g}: {'met' if figure <= aim else 'missed'}"]
    return f" ({'; '.join(told)})" if told else ""


def _environment() -> dict[str, str]:
    """That of this process, with the checkout's mixlist; bytecode is kept, as that of installed packages is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**kept, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "mixlist-bytecode"))}


def machine() -> str:
    """The processor, the cores and the versions that figures depend on; no names of hosts."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"{package} absent"

    packages = ", ".join(
        map(installed, ("onnx", "onnx-ir", "onnxruntime", "onnxconverter-common", "polygraphy", "numpy"))
    )
    return f"{_processor()}, {os.cpu_count()} cores; Python {platform.python_version()}; {packages}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
