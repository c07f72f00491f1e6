#!/usr/bin/env python3
"""Convert the real models of the corpus with mixlist and three other tools, and compare the results.

    python benchmarks/compare_converters.py FOLDER [--environments FOLDER] [--models NAME ...] [--limit SECONDS]

FOLDER holds ``NAME.onnx`` and one batch of data for each model, ``NAME.npz``. The other tools are
``convert_float_to_float16`` of onnxconverter-common and of ``onnxruntime.transformers.float16``, and AutoCast of NVIDIA
ModelOpt. Each of them is installed into an environment of its own in the folder ``--environments`` (``.comparison``).
All tools run with their defaults, except that inputs and outputs keep their types. AutoCast gets the batch as its
calibration data. "mixlist tune" is ``mixlist tune`` on the batch, and then ``mixlist apply`` with its list.

Every conversion is a process of its own, stopped after ``--limit`` seconds (300). Its time is that of the whole process
with the imports, and its memory is the peak resident memory of a process. Each result goes through onnx's checker (the
full check, if the original passes it) and is loaded by ONNX Runtime's CPU provider. ``mixlist check --mixed-model``
judges the outputs of the results that load on the batch, with its default limits. The tables are Markdown; the faults
are listed below them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from casts import count_casts, find_checker_fault, find_load_fault
from clock import machine

# What pip installs for each tool. mixlist runs in the environment of this script.
REQUIREMENTS = {
    "mixlist": (),
    "mixlist tune": (),
    "onnxconverter-common": ("onnxconverter-common==1.16.0", "onnx==1.23.2", "onnxruntime==1.31.1"),
    "onnxruntime": ("onnxruntime==1.31.1", "onnx==1.23.2", "sympy"),
    "ModelOpt AutoCast": ("nvidia-modelopt[onnx]==0.47.0",),
}
PACKAGES = ("onnxconverter-common", "onnxruntime", "nvidia-modelopt", "onnx", "numpy")


@dataclass(frozen=True)
class Outcome:
    """The result of one tool for one model.

    ``verdict``: "pass", "fail" or "inconclusive" of ``mixlist check``, "refused" if it cannot run the result, "not
    loaded" if ONNX Runtime does not load the result, or "none" if the tool wrote no model. ``fault``: what is wrong, ""
    for a pass. ``checker_fault``: why onnx's checker refuses the result, "" if it does not. ``error``: the largest
    normalized error of an output. ``low_share``: the share of the operations of matrix products and convolutions in low
    precision. ``casts``: the Casts inserted. ``size_ratio``: the size of the file against the original. Times are
    seconds, memory is MiB. None: not measured.
    """

    verdict: str
    fault: str = ""
    checker_fault: str = ""
    error: float | None = None
    low_share: float | None = None
    casts: int | None = None
    size_ratio: float | None = None
    seconds: float | None = None
    memory: float | None = None


def main(corpus: Path, environments: Path, models: Sequence[str], limit: float) -> None:
    """Print the summary, one table for each measure, and the faults."""
    interpreters = {tool: _make_environment(tool, environments) for tool in REQUIREMENTS}
    print(machine())
    for tool, python in interpreters.items():
        print(f"- {tool}: {_versions(python)}")
    paths = [path for path in sorted(corpus.glob("*.onnx")) if not models or path.stem in models]
    outcomes: dict[tuple[str, str], Outcome] = {}
    for path in paths:
        for tool, python in interpreters.items():
            with tempfile.TemporaryDirectory() as folder:
                outcomes[path.stem, tool] = _try_tool(tool, python, path, Path(folder) / "mixed.onnx", limit)
            print(path.stem, tool, outcomes[path.stem, tool], file=sys.stderr, flush=True)
    names = [path.stem for path in paths]
    _print_summary(outcomes, names)
    _print_tables(outcomes, names)


# --- environments ---


def _make_environment(tool: str, folder: Path) -> Path:
    """Return the interpreter of the tool's environment, which is made if it does not exist."""
    requirements = REQUIREMENTS[tool]
    if not requirements:
        return Path(sys.executable)
    home = folder.absolute() / tool.replace(" ", "-").lower()
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
        (home / "complete").touch()
    return python


def _versions(python: Path) -> str:
    """Return the versions of the packages that decide the result, as ``pip freeze`` writes them."""
    listing = subprocess.run([str(python), "-m", "pip", "list", "--format", "json"], check=True, capture_output=True)
    installed = {
        package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listing.stdout)
    }
    return ", ".join(f"{name} {installed[name]}" for name in PACKAGES if name in installed)


# --- one tool and one model ---


def _try_tool(tool: str, python: Path, original: Path, mixed: Path, limit: float) -> Outcome:
    data = original.with_suffix(".npz")
    command = [str(python), str(Path(__file__).resolve()), "--convert", tool, str(original), str(mixed), str(data)]
    seconds, memory, failure = _run_measured(command, limit, mixed.parent)
    if failure or not mixed.exists():
        return Outcome("none", failure or "it wrote no model", seconds=seconds, memory=memory)
    import onnx

    checker_fault = find_checker_fault(onnx.load(original), onnx.load(mixed))
    verdict, error, low_share, fault = "not loaded", None, None, find_load_fault(str(mixed))
    if not fault:
        verdict, error, fault = _check(original, mixed, data)
        low_share = _low_share(original, mixed, data)
    return Outcome(
        verdict,
        fault,
        checker_fault,
        error,
        low_share,
        casts=count_casts(mixed) - count_casts(original),
        size_ratio=sum(path.stat().st_size for path in mixed.parent.glob("mixed.onnx*")) / original.stat().st_size,
        seconds=seconds,
        memory=memory,
    )


def _run_measured(command: Sequence[str], limit: float, folder: Path) -> tuple[float, float, str]:
    """Run a command in ``folder``, because some tools leave files where they run.

    Return its seconds, its peak resident memory in MiB, and its last error line, "" if it worked.
    """
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        # wait4() gives the memory of this process alone; it cannot wait with a limit.
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - start > limit:
                process.kill()
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    if seconds > limit:
        return seconds, usage.ru_maxrss / 1024, f"stopped after {limit:g} s"
    failure = (lines or ["no message"])[-1][:200] if process.returncode else ""
    return seconds, usage.ru_maxrss / 1024, failure


def _check(original: Path, mixed: Path, data: Path) -> tuple[str, float | None, str]:
    """Return the verdict of ``mixlist check``, the largest normalized error of an output, and the reason."""
    command = [sys.executable, "-m", "mixlist", "check", str(original), "--mixed-model", str(mixed)]
    done = subprocess.run([*command, "--data", str(data), "--format", "json"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return "refused", None, done.stderr.strip().splitlines()[0][:200]
    report = json.loads(done.stdout)
    errors = [
        float(output["normalized_error"]) for output in report["outputs"] if output["normalized_error"] is not None
    ]
    reason = "" if report["verdict"] == "pass" else "; ".join(report["reasons"])
    return report["verdict"], max(errors, default=None), reason


def _low_share(original: Path, mixed: Path, data: Path) -> float | None:
    """Return the share of matrix products and convolutions in low precision, by their operations."""
    command = [sys.executable, "-m", "mixlist", "bench", str(original), str(mixed), "--estimate", "--data", str(data)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    if done.returncode:
        return None
    share: float | None = json.loads(done.stdout)["estimate"]["other"]["low_share"]  # null without known shapes
    return share


# --- the tables ---


def _print_summary(outcomes: dict[tuple[str, str], Outcome], names: Sequence[str]) -> None:
    print(f"\n| {len(names)} models | {' | '.join(REQUIREMENTS)} |\n|---|{'---|' * len(REQUIREMENTS)}")

    def row(title: str, cell: Callable[[list[Outcome]], str]) -> None:
        cells = [cell([outcomes[name, tool] for name in names]) for tool in REQUIREMENTS]
        print(f"| {title} | {' | '.join(cells)} |")

    row("converted", lambda results: str(sum(map(_is_converted, results))))
    row(
        "accepted by onnx's checker",
        lambda results: str(sum(_is_converted(r) and not r.checker_fault for r in results)),
    )
    row(
        "loaded by ONNX Runtime",
        lambda results: str(sum(_is_converted(r) and r.verdict != "not loaded" for r in results)),
    )
    row("keeps the outputs", lambda results: str(sum(result.verdict == "pass" for result in results)))
    row("matrix work in float16, median", lambda results: _median((r.low_share for r in results), ".0%"))
    row("Casts inserted, median", lambda results: _median(result.casts for result in results))
    row("size against the original, median", lambda results: _median((r.size_ratio for r in results), ".2f"))
    row("seconds, median", lambda results: _median((result.seconds for result in results), ".1f"))
    row("peak memory in MiB, median", lambda results: _median((result.memory for result in results), ".0f"))


def _is_converted(outcome: Outcome) -> bool:
    return outcome.verdict != "none"


def _median(values: Iterable[float | None], form: str = "g") -> str:
    numbers = [value for value in values if value is not None]
    return f"{statistics.median(numbers):{form}}" if numbers else "-"


def _print_tables(outcomes: dict[tuple[str, str], Outcome], names: Sequence[str]) -> None:
    def table(title: str, cell: Callable[[Outcome], str]) -> None:
        print(f"\n{title}\n\n| model | {' | '.join(REQUIREMENTS)} |\n|---|{'---|' * len(REQUIREMENTS)}")
        for name in names:
            print(f"| {name} | {' | '.join(cell(outcomes[name, tool]) for tool in REQUIREMENTS)} |")

    table("Verdict of `mixlist check`, and the largest normalized error of an output:", _verdict_cell)
    table("Operations of matrix products and convolutions in float16:", _share_cell)
    table("Casts inserted, and the size against the original:", _size_cell)
    table("Seconds and peak memory in MiB of the conversion:", _cost_cell)
    print("\nFaults:\n")
    for (name, tool), outcome in outcomes.items():
        for fault in filter(None, (outcome.fault, outcome.checker_fault)):
            print(f"- {name}, {tool}: {outcome.verdict}: {fault}")


def _verdict_cell(outcome: Outcome) -> str:
    return outcome.verdict if outcome.error is None else f"{outcome.verdict}, {outcome.error:.1e}"


def _share_cell(outcome: Outcome) -> str:
    return "-" if outcome.low_share is None else f"{outcome.low_share:.0%}"


def _size_cell(outcome: Outcome) -> str:
    return "-" if outcome.casts is None else f"{outcome.casts}, {outcome.size_ratio:.2f}"


def _cost_cell(outcome: Outcome) -> str:
    return "-" if outcome.verdict == "none" else f"{outcome.seconds:.1f}, {outcome.memory:.0f}"


# --- in the process of a conversion ---


def convert(tool: str, original: str, mixed: str, data: str) -> None:
    """Convert one model with one tool, with the tool's defaults."""
    if tool == "mixlist":
        from mixlist.cli import main as mixlist_command

        sys.exit(mixlist_command(["apply", original, "-o", mixed]))
    if tool == "mixlist tune":
        from mixlist.cli import main as mixlist_command

        found_list = str(Path(mixed).with_name("found.json"))
        status = mixlist_command(["tune", original, "-o", found_list, "--data", data, "--no-holdout"])
        sys.exit(status or mixlist_command(["apply", original, "-o", mixed, "--mixlist", found_list]))
    import onnx

    if tool == "ModelOpt AutoCast":
        from modelopt.onnx.autocast import convert_to_mixed_precision

        converted = convert_to_mixed_precision(original, keep_io_types=True, calibration_data=data)
    elif tool == "onnxruntime":
        from onnxruntime.transformers.float16 import convert_float_to_float16
        from onnxruntime.transformers.onnx_model import OnnxModel

        converted = convert_float_to_float16(onnx.load(original), keep_io_types=True)
        OnnxModel(converted).topological_sort()  # as ONNX Runtime's own tools do after this function
    else:
        from onnxconverter_common.float16 import convert_float_to_float16

        converted = convert_float_to_float16(onnx.load(original), keep_io_types=True)
    onnx.save(converted, mixed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--convert"]:
        convert(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("corpus", type=Path)
        parser.add_argument("--environments", type=Path, default=Path(".comparison"))
        parser.add_argument("--models", nargs="*", default=[])
        parser.add_argument("--limit", type=float, default=300)
        arguments = parser.parse_args()
        main(arguments.corpus.resolve(), arguments.environments.resolve(), arguments.models, arguments.limit)
