#!/usr/bin/env python3
"""Convert real models and exported networks with mixlist and four other tools, and compare the results.

    python benchmarks/compare_converters.py [FOLDER ...] [--models NAME ...] [--tools NAME ...] [--again NAME ...]
        [--limit SECONDS] [--rounds N] [--results FILE]

Without a FOLDER, the models are those of the tests (``tests/corpus``), which are fetched into ``.corpus``, ten
transformers that ``export_transformers.py`` exports into ``.corpus/transformers``, and sixteen more in
``.corpus/more``: seven of ``more_models.json``, and nine that ``export_networks.py`` exports. A FOLDER of your own
holds ``NAME.onnx`` and one batch of data for each model, ``NAME.npz``. Each folder has its own summary.

The other tools are ``convert_float_to_float16`` of onnxconverter-common and of ``onnxruntime.transformers.float16``,
``quantize_fp16`` of onnxsim, and AutoCast of NVIDIA ModelOpt. All tools run with their defaults, except that inputs and
outputs keep their types. AutoCast gets the batch as its calibration data. "mixlist" is ``mixlist apply`` with its
default lists, and "mixlist convert" is ``mixlist convert`` on the batch. Each other tool has an environment of its own
in the folder ``--environments`` (``.corpus/tools``), onnxruntime that of this script.

Every conversion is a process of its own, stopped after ``--limit`` seconds (300). Its time is the CPU time of the whole
process with the imports, so that another load on the machine disturbs it little. Tools without data run in
``--rounds`` (3) rounds, one tool after the other in each round, and the median counts. Its memory is the peak resident
memory. Each result goes through onnx's checker (the full check, if the original passes it) and is loaded by ONNX
Runtime's CPU provider. ``mixlist check --mixed-model`` judges the outputs of the results that load on the batch, with
its default limits. ``mixlist.resolve`` of the result as it is counts the nodes by precision, for every tool. The matrix
work and the bytes moved are those of ``mixlist bench --estimate`` in the shapes of the batch; the bytes are relative to
the float32 model. ``fused_kernels.py`` counts the fused kernels after ONNX Runtime's optimizers. The tables are
Markdown; the faults are listed below them.

A result is right if it loads and ``check`` passes. A right result of mixlist is not beaten if each right result of
another tool has no larger share of low nodes (to 1 %), at most 2 Casts fewer, at least 0.98 of its bytes, and no more
fused kernels.

``--results`` (``.corpus/comparison.json``) holds what is measured, by model and tool: the command goes on where it
ended, and measures anew what ``--again`` names. Delete the file to measure all again.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from casts import count_casts, find_checker_fault, find_load_fault
from clock import ROOT, machine
from fused_kernels import MODEL_TYPES
from result_figures import bytes_of, compare_bytes, count_low_nodes_of_result, find_original_work

CORPUS = ROOT / ".corpus"
# The environment of each tool in tests/corpus/tool_environments.py; "": that of this script.
TOOLS = {
    "mixlist": "",
    "mixlist convert": "",
    "onnxconverter-common": "onnxconverter",
    "onnxruntime": "",
    "onnxsim": "onnxsim",
    "ModelOpt AutoCast": "modelopt",
}
WITH_DATA = ("mixlist convert", "ModelOpt AutoCast")  # they take long, so they run once
PACKAGES = ("onnxconverter-common", "onnxruntime", "onnxsim", "nvidia-modelopt", "onnx", "numpy")
LARGEST_ERROR = 0.01  # the limit of mixlist check
MOST_WORK = 0.9
# The tolerances of "not beaten".
MOST_EXTRA_CASTS = 2
MOST_EXTRA_BYTES = 1.02


@dataclass(frozen=True)
class Outcome:
    """The result of one tool for one model.

    ``verdict``: "pass", "fail" or "inconclusive" of ``mixlist check``, "refused" if it cannot run the result, "not
    loaded" if ONNX Runtime does not load the result, or "none" if the tool wrote no model. ``fault``: what is wrong, ""
    for a pass. ``checker_fault``: why onnx's checker refuses the result, "" if it does not. ``error``: the largest
    normalized error of an output. ``low_nodes``: the share of the nodes that compute with floats in low precision.
    ``low_work``: the share of the operations of matrix products and convolutions. ``casts``: the Casts inserted.
    ``size_ratio``: the size of the file against the original. ``low_count`` and ``eligible``: the numbers of which
    ``low_nodes`` is the share. ``bytes_ratio``: the bytes moved against the original; ``uncounted``: the nodes whose
    bytes are not known. ``fused``: the figures of ``fused_kernels.py``, by optimizer. ``seconds``: CPU time.
    ``memory``: MiB. None: not measured.
    """

    verdict: str
    fault: str = ""
    checker_fault: str = ""
    error: float | None = None
    low_nodes: float | None = None
    low_work: float | None = None
    casts: int | None = None
    size_ratio: float | None = None
    seconds: float | None = None
    memory: float | None = None
    low_count: int | None = None
    eligible: int | None = None
    bytes_ratio: float | None = None
    uncounted: int = 0
    fused: dict[str, Any] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Return whether the result loads and ``check`` passes."""
        return self.verdict == "pass"

    def count_fused(self, optimizer: str) -> int | None:
        """Return the number of fused kernels after an optimizer; None if it failed."""
        return sum(self.fused[optimizer]["fused"].values()) if optimizer in self.fused else None

    @property
    def is_converted(self) -> bool:
        """Return whether the tool wrote a model."""
        return self.verdict != "none"

    @property
    def is_loaded(self) -> bool:
        """Return whether ONNX Runtime loads the result."""
        return self.is_converted and self.verdict != "not loaded"

    @property
    def is_accurate(self) -> bool:
        """Return whether the error is at most 1 %; outputs without an error, such as integers, are as check judges."""
        return self.verdict == "pass" if self.error is None else self.error <= LARGEST_ERROR


Outcomes = dict[str, dict[str, Outcome]]  # by model and tool


def main(folders: Sequence[Path], arguments: argparse.Namespace) -> None:
    """Print a summary for each folder, then one table for each measure, and the faults."""
    environments: Path = arguments.environments.resolve()
    folders = folders or _prepare_models(environments)
    interpreters = {tool: _interpreter(TOOLS[tool], environments) for tool in arguments.tools}
    print(machine())
    for tool, python in interpreters.items():
        print(f"- {tool}: {_versions(python)}")
    outcomes: dict[Path, Outcomes] = {folder: {} for folder in folders}
    for folder in folders:
        for path in sorted(folder.glob("*.onnx")):
            if not arguments.models or path.stem in arguments.models:
                outcomes[folder][path.stem] = _stored_outcomes(path, interpreters, arguments)
    for folder, of_folder in outcomes.items():
        _print_summary(folder.name, of_folder)
    _print_tables({name: row for of_folder in outcomes.values() for name, row in of_folder.items()})


# --- models and environments ---


def _prepare_models(environments: Path) -> list[Path]:
    """Fetch the models of wheels and export the others, unless they are there; return their folders."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from tests.corpus.feeds import feeds
    from tests.corpus.fetch import MODELS, fetch, rows

    more = CORPUS / "more"
    for folder, listed in ((CORPUS, MODELS), (more, ROOT / "benchmarks/more_models.json")):
        if missing := fetch(folder, {model["id"] for model in rows(listed)}, listed):
            sys.exit(f"models are missing: {missing}")
        for model in rows(listed):
            np.savez(folder / f"{model['id']}.npz", **feeds(model["id"])[0])
    transformers = CORPUS / "transformers"
    for folder, script, last in (
        (transformers, "export_transformers.py", "swin"),
        (more, "export_networks.py", "llama_genai"),
    ):
        if not (folder / f"{last}.npz").exists():
            python = _interpreter("transformers" if folder == transformers else "networks", environments)
            exporter = [python, str(ROOT / "benchmarks" / script), str(folder)]
            subprocess.run(exporter, check=True, stdout=sys.stderr)  # the tables alone go to standard output
    return [CORPUS, transformers, more]


def _interpreter(name: str, folder: Path) -> str:
    """Return the Python of an environment, which is made if it does not exist."""
    if not name:
        return sys.executable
    sys.path.insert(0, str(ROOT))
    from tests.corpus.tool_environments import make_environment

    return make_environment(name, folder / name)


def _versions(python: str) -> str:
    """Return the versions of the packages that decide the result."""
    listing = subprocess.run([python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True)
    installed = {
        package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listing.stdout)
    }
    return ", ".join(f"{name} {installed[name]}" for name in PACKAGES if name in installed)


# --- one model ---


def _stored_outcomes(path: Path, interpreters: dict[str, str], arguments: argparse.Namespace) -> dict[str, Outcome]:
    """Return the outcomes of the tools for a model from the file of results; measure those that are not there."""
    results: Path = arguments.results
    stored = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    of_model = stored.setdefault(path.stem, {})
    missing = {tool: p for tool, p in interpreters.items() if tool not in of_model or tool in arguments.again}
    if missing:
        outcomes = _try_tools(path, missing, arguments.limit, arguments.rounds)
        of_model |= {tool: asdict(outcome) for tool, outcome in outcomes.items()}
        results.write_text(json.dumps(stored, indent=1), encoding="utf-8")
        print(path.stem, *missing, sep=", ", file=sys.stderr, flush=True)
    return {tool: Outcome(**of_model[tool]) for tool in interpreters}


def _try_tools(original: Path, interpreters: dict[str, str], limit: float, rounds: int) -> dict[str, Outcome]:
    """Convert one model with every tool in turn, and judge each result."""
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, list[float]] = {tool: [] for tool in interpreters}
    for count in range(rounds):
        for tool, python in interpreters.items():
            if count and (tool in WITH_DATA or not outcomes[tool].is_converted):
                continue
            with tempfile.TemporaryDirectory() as folder:
                mixed = Path(folder) / "mixed.onnx"
                outcome = _convert(tool, python, original, mixed, limit)
                seconds[tool].append(outcome.seconds or 0)
                if not count:
                    outcomes[tool] = _judge(outcome, original, mixed) if outcome.is_converted else outcome
    return {tool: replace(outcome, seconds=statistics.median(seconds[tool])) for tool, outcome in outcomes.items()}


def _convert(tool: str, python: str, original: Path, mixed: Path, limit: float) -> Outcome:
    """Convert a model in a process and a folder of its own, because some tools leave files where they run."""
    data = original.with_suffix(".npz")
    command = [python, str(Path(__file__).resolve()), "--convert", tool, str(original), str(mixed), str(data)]
    # Bytecode is cached as in an installed package: without it, every process would compile mixlist again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=mixed.parent,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        # wait4() gives the time and memory of this process and of those that it waited for; it has no limit.
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.perf_counter() - start > limit:
                process.kill()
            time.sleep(0.005)
        is_late = time.perf_counter() - start > limit
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    fault = "" if mixed.exists() else "it wrote no model"
    if process.returncode:
        fault = f"stopped after {limit:g} s" if is_late else (lines or ["no message"])[-1][:200]
    return Outcome(
        "none" if fault else "converted", fault, seconds=usage.ru_utime + usage.ru_stime, memory=usage.ru_maxrss / 1024
    )


# --- one result ---


def _judge(outcome: Outcome, original: Path, mixed: Path) -> Outcome:
    """Add what is measured of a result.

    A process of its own loads the models. In this one they would count as memory of the conversions: a new process
    starts with the peak of the process that started it.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--judge", str(original), str(mixed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_mixlist_environment())
    judged = replace(outcome, **json.loads(done.stdout.splitlines()[-1]))
    return replace(judged, fused=_count_fused(original.stem, mixed)) if judged.is_loaded else judged


def _count_fused(name: str, mixed: Path) -> dict[str, Any]:
    """Return what ``fused_kernels.py`` prints, by optimizer; an optimizer that fails is left out."""
    script = str(Path(__file__).with_name("fused_kernels.py"))
    command = [sys.executable, script, str(mixed), *([MODEL_TYPES[name]] if name in MODEL_TYPES else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    figures: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        figures |= json.loads(line) if line.startswith("{") else {}
    return figures


def judge(original: Path, mixed: Path) -> dict[str, Any]:
    """Return the fields of an Outcome that follow from the result."""
    import onnx

    fields: dict[str, Any] = {
        "checker_fault": find_checker_fault(onnx.load(original), onnx.load(mixed)),
        "casts": count_casts(mixed) - count_casts(original),
        "size_ratio": sum(path.stat().st_size for path in mixed.parent.glob("mixed.onnx*")) / original.stat().st_size,
        "fault": find_load_fault(str(mixed)),
    }
    if fields["fault"]:
        return {**fields, "verdict": "not loaded"}
    data = original.with_suffix(".npz")
    low, eligible = count_low_nodes_of_result(str(mixed))
    fields |= {"low_count": low, "eligible": eligible, "low_nodes": low / eligible if eligible else None}
    return {**fields, **_check(original, mixed, data), **_estimate(original, mixed, data)}


def _check(original: Path, mixed: Path, data: Path) -> dict[str, Any]:
    """Return the verdict of ``mixlist check``, the largest normalized error of an output, and the reason."""
    command = [sys.executable, "-m", "mixlist", "check", str(original), "--mixed-model", str(mixed)]
    done = subprocess.run(
        [*command, "--data", str(data), "--format", "json"], capture_output=True, text=True, env=_mixlist_environment()
    )
    if done.returncode not in (0, 1):
        return {"verdict": "refused", "fault": done.stderr.strip().splitlines()[0][:200]}
    report = json.loads(done.stdout)
    errors = [
        float(output["normalized_error"]) for output in report["outputs"] if output["normalized_error"] is not None
    ]
    return {
        "verdict": report["verdict"],
        "error": max(errors, default=None, key=lambda error: (error != error, error)),  # NaN is the largest
        "fault": "" if report["verdict"] == "pass" else "; ".join(report["reasons"]),
    }


def _estimate(original: Path, mixed: Path, data: Path) -> dict[str, Any]:
    """Return the share of matrix work in low precision, and the bytes moved, in the shapes of the batch."""
    import numpy as np

    from mixlist.targets.estimate import estimate_work

    with np.load(data) as arrays:
        shapes, before = find_original_work(str(original), dict(arrays))
    work = estimate_work(str(mixed), None, shapes)
    after = bytes_of(work)
    return {
        "low_work": work.low_share,  # None without known shapes
        "bytes_ratio": compare_bytes(before, after),
        "uncounted": before.uncounted,
    }


def _mixlist_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


# --- the tables ---


def _print_summary(title: str, outcomes: Outcomes) -> None:
    """Print one row for each measure, with the tools that have the best figure."""
    tools = _tools_of(outcomes)
    print(f"\n| {title}: {len(outcomes)} models | {' | '.join(tools)} | best |\n|---|{'---|' * (len(tools) + 1)}")

    def row(
        measure: str, figure: Callable[[list[Outcome]], float | None], form: str = "g", *, least: bool = False
    ) -> None:
        figures = {tool: figure([by_tool[tool] for by_tool in outcomes.values()]) for tool in tools}
        texts = {tool: "-" if number is None else f"{number:{form}}" for tool, number in figures.items()}
        numbers = [number for number in figures.values() if number is not None]
        best = f"{(min if least else max)(numbers):{form}}" if numbers else ""
        winners = [tool for tool in tools if texts[tool] == best]
        winners = ["all"] if len(winners) == len(tools) else winners
        print(f"| {measure} | {' | '.join(texts.values())} | {', '.join(winners)} |")

    def count(measure: str, condition: Callable[[Outcome], bool]) -> None:
        row(measure, lambda results: sum(map(condition, results)))

    count("converted", lambda r: r.is_converted)
    count("accepted by onnx's checker", lambda r: r.is_converted and not r.checker_fault)
    count("loaded by ONNX Runtime", lambda r: r.is_loaded)
    count("error at most 1 %", lambda r: r.is_accurate)
    count("`check` passes", lambda r: r.verdict == "pass")
    count(
        f"error at most 1 %, {MOST_WORK:.0%} of matrix work low",
        lambda r: r.is_accurate and (r.low_work or 0) >= MOST_WORK,
    )
    leaders = [_most_nodes_low(by_tool) for by_tool in outcomes.values()]
    most = {id(outcomes[name][tool]) for name, tools in zip(outcomes, leaders, strict=True) for tool in tools}
    count("most nodes low with error at most 1 %", lambda r: id(r) in most)
    row("nodes low, median of the loaded", _median("low_nodes"), ".0%")
    row("matrix work low, median of the loaded", _median("low_work"), ".0%")
    row("Casts inserted, median", _median("casts"), least=True)
    row("bytes moved against float32, median of the loaded", _median("bytes_ratio"), ".2f", least=True)
    row("size against the original, median", _median("size_ratio"), ".2f", least=True)
    row("CPU seconds, median", _median("seconds"), ".2f", least=True)
    row("peak memory in MiB, median", _median("memory"), ".0f", least=True)
    for tool in filter(_is_mixlist, tools):
        verdicts = [_describe_comparison(tool, name, by_tool) for name, by_tool in outcomes.items()]
        print(f"\n{tool} is not beaten on {verdicts.count('yes')} of {len(outcomes)} models.")


def _tools_of(outcomes: Outcomes) -> list[str]:
    return list(next(iter(outcomes.values()), {}))


def _is_mixlist(tool: str) -> bool:
    return tool.startswith("mixlist")


def _describe_comparison(tool: str, name: str, by_tool: dict[str, Outcome]) -> str:
    """Return "yes" if no other tool has a better right result, else the tools with the figures in which they do."""
    rivals = {rival: outcome for rival, outcome in by_tool.items() if not _is_mixlist(rival) and outcome.is_right}
    own = by_tool[tool]
    if not own.is_right:
        return f"not right; right: {', '.join(rivals) or 'none'}"
    losses = {rival: figures for rival, outcome in rivals.items() if (figures := _find_losses(own, outcome, name))}
    return "; ".join(f"{rival}: {', '.join(figures)}" for rival, figures in losses.items()) or "yes"


def _find_losses(own: Outcome, rival: Outcome, name: str) -> list[str]:
    """Return the figures in which the result of another tool is better, beyond the tolerances."""
    losses = []
    if rival.low_nodes is not None and round(rival.low_nodes, 2) > round(own.low_nodes or 0, 2):
        losses.append("low nodes")
    if rival.casts is not None and own.casts is not None and own.casts > rival.casts + MOST_EXTRA_CASTS:
        losses.append("Casts")
    if rival.bytes_ratio and own.bytes_ratio and own.bytes_ratio > MOST_EXTRA_BYTES * rival.bytes_ratio:
        losses.append("bytes")
    optimizer = _optimizer_of(name)
    if (rival.count_fused(optimizer) or 0) > (own.count_fused(optimizer) or 0):
        losses.append("fused kernels")
    return losses


def _optimizer_of(name: str) -> str:
    """Return the optimizer whose fused kernels are compared for a model."""
    return "transformers" if name in MODEL_TYPES else "extended"


def _most_nodes_low(by_tool: dict[str, Outcome]) -> list[str]:
    """Return the tools with the largest share of low nodes among those whose error is at most 1 %, to 1 %."""
    shares = {tool: round(o.low_nodes, 2) for tool, o in by_tool.items() if o.is_accurate and o.low_nodes is not None}
    return [tool for tool, share in shares.items() if share == max(shares.values()) and share > 0]


def _median(field: str) -> Callable[[Iterable[Outcome]], float | None]:
    """Return a function that takes the median of a field over the results in which it was measured."""

    def compute(results: Iterable[Outcome]) -> float | None:
        numbers = [getattr(result, field) for result in results if result.is_converted]
        numbers = [number for number in numbers if number is not None]
        return statistics.median(numbers) if numbers else None

    return compute


def _print_tables(outcomes: Outcomes) -> None:
    tools = _tools_of(outcomes)

    def table(title: str, cell: Callable[[Outcome], str]) -> None:
        print(f"\n{title}\n\n| model | {' | '.join(tools)} |\n|---|{'---|' * len(tools)}")
        for name, by_tool in outcomes.items():
            print(f"| {name} | {' | '.join(cell(outcome) for outcome in by_tool.values())} |")

    _print_right_results(outcomes)
    table("Nodes in float16, and operations of matrix products and convolutions in float16:", _share_cell)
    table("Casts inserted, and the size against the original:", _size_cell)
    table("CPU seconds and peak memory in MiB of the conversion:", _cost_cell)
    print("\nFaults:\n")
    for name, by_tool in outcomes.items():
        for tool, outcome in by_tool.items():
            for fault in filter(None, (outcome.fault, outcome.checker_fault)):
                print(f"- {name}, {tool}: {outcome.verdict}: {fault}")


def _print_right_results(outcomes: Outcomes) -> None:
    """Print the figures of right results and the verdicts on others, and which of mixlist's results are not beaten."""
    tools = _tools_of(outcomes)
    print("\nRight results: nodes in float16, Casts inserted, bytes moved against float32, and fused kernels. Of")
    print("other results: the verdict of `mixlist check`, and the largest normalized error of an output.\n")
    print(f"| model | {' | '.join(tools)} |\n|---|{'---|' * len(tools)}")
    for name, by_tool in outcomes.items():
        print(f"| {name} | {' | '.join(_right_cell(outcome, name) for outcome in by_tool.values())} |")
    own = [tool for tool in tools if _is_mixlist(tool)]
    print(f"\nNot beaten:\n\n| model | {' | '.join(own)} |\n|---|{'---|' * len(own)}")
    for name, by_tool in outcomes.items():
        print(f"| {name} | {' | '.join(_describe_comparison(tool, name, by_tool) for tool in own)} |")


def _right_cell(outcome: Outcome, name: str) -> str:
    if not outcome.is_right:
        return _verdict_cell(outcome)
    low = "-" if outcome.low_nodes is None else f"{outcome.low_nodes:.0%}"
    moved = "-" if outcome.bytes_ratio is None else f"{outcome.bytes_ratio:.2f}"
    fused = outcome.count_fused(_optimizer_of(name))
    return f"{low}, {outcome.casts}, {moved}, {'-' if fused is None else fused}"


def _verdict_cell(outcome: Outcome) -> str:
    return outcome.verdict if outcome.error is None else f"{outcome.verdict}, {outcome.error:.1e}"


def _share_cell(outcome: Outcome) -> str:
    shares = (outcome.low_nodes, outcome.low_work)
    return ", ".join("-" if share is None else f"{share:.0%}" for share in shares) if outcome.is_loaded else "-"


def _size_cell(outcome: Outcome) -> str:
    return "-" if outcome.casts is None else f"{outcome.casts}, {outcome.size_ratio:.2f}"


def _cost_cell(outcome: Outcome) -> str:
    return f"{outcome.seconds:.2f}, {outcome.memory:.0f}" if outcome.is_converted else "-"


# --- in the process of a conversion ---


def convert(tool: str, original: str, mixed: str, data: str) -> None:
    """Convert one model with one tool, with the tool's defaults."""
    if tool in ("mixlist", "mixlist convert"):
        from mixlist.cli import main as mixlist_command

        command = ["convert", "--data", data] if tool == "mixlist convert" else ["apply"]
        sys.exit(mixlist_command([*command, original, "-o", mixed]))
    import onnx

    if tool == "ModelOpt AutoCast":
        from modelopt.onnx.autocast import convert_to_mixed_precision

        converted = convert_to_mixed_precision(original, keep_io_types=True, calibration_data=data)
    elif tool == "onnxruntime":
        from onnxruntime.transformers.float16 import convert_float_to_float16
        from onnxruntime.transformers.onnx_model import OnnxModel

        converted = convert_float_to_float16(onnx.load(original), keep_io_types=True)
        OnnxModel(converted).topological_sort()  # as ONNX Runtime's own tools do after this function
    elif tool == "onnxsim":
        from onnxsim import quantize_fp16

        converted = quantize_fp16(onnx.load(original), keep_io_types=True)
    else:
        from onnxconverter_common.float16 import convert_float_to_float16

        converted = convert_float_to_float16(onnx.load(original), keep_io_types=True)
    onnx.save(converted, mixed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--convert"]:
        convert(*sys.argv[2:])
    elif sys.argv[1:2] == ["--judge"]:
        print(json.dumps(judge(*map(Path, sys.argv[2:]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
        parser.add_argument("--environments", type=Path, default=CORPUS / "tools")
        parser.add_argument("--models", nargs="*", default=[])
        parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS), metavar="NAME")
        parser.add_argument("--again", nargs="*", default=[], choices=list(TOOLS), metavar="NAME")
        parser.add_argument("--limit", type=float, default=300)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--results", type=Path, default=CORPUS / "comparison.json")
        options = parser.parse_args()
        main([folder.resolve() for folder in options.folders], options)
