"""``mixlist bench``: times the mixed model against the original, or accounts for both without running them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.benchmark.options import BenchOptions
from mixlist.cli.command_files import Command, load_model
from mixlist.cli.data import DataOptions, batches_from, sizes_from, take_data
from mixlist.cli.declared import build, declared
from mixlist.cli.options import PLAN_OPTIONS, format_option, resolve_watched, take_policy, take_type_hints
from mixlist.cli.outputs import write_result
from mixlist.cli.parameters import CONFIG, MODEL, Given, on_command_line
from mixlist.errors import ModelError, UsageError
from mixlist.report import terminal

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic
    from mixlist.graph.load import LoadedModel
    from mixlist.resolver.plan import Plan


@click.command(
    "bench",
    cls=Command,
    params=[
        click.Argument(["model"], type=MODEL),
        click.Argument(["other"], type=MODEL, required=False),
        *declared(DataOptions, BenchOptions),
        click.Option(["--force"], is_flag=True, help="Replace existing profiles."),
        click.Option(
            ["--estimate"], is_flag=True, help="Run nothing: count operations and bytes from shapes, for any machine."
        ),
        format_option("text", "json"),
        *PLAN_OPTIONS,
        CONFIG,
    ],
)
def command(model: str, other: str | None, profiles: str | None, estimate: bool, form: str, **given: object) -> None:
    """Time the mixed model that the lists make of MODEL against MODEL, or OTHER against MODEL.

    The two take turns, each in a process of its own; the ratio comes with a confidence interval. What really ran is
    told too: low nodes with and without a kernel, Casts that ONNX Runtime put in.

    \b
    Example:
      mixlist bench model.onnx --data batches/ --mixlist modify.json
      mixlist bench model.onnx mixed.onnx --random 1 --dim batch=8 --provider cuda
      mixlist bench model.onnx --estimate --dim batch=8 --format json
    """
    from mixlist.benchmark.timing import run_bench
    from mixlist.report import bench_terminal
    from mixlist.report.progress import bar

    del given["force"]  # ``Command`` has compared the files
    data = take_data(given)
    options = build(BenchOptions(), given, profiles=Path(profiles) if profiles is not None else None)
    original, rival = _models(model, other, given)
    if estimate:
        _write_estimate(original, rival, data, form)
        return
    with bar("timing", "rounds") as progress:
        batches = batches_from(data, original.proto)
        report = run_bench(original, rival, batches, replace(options, progress=progress))
    terminal.warn(report.warnings)
    write_result(report, form, bench_terminal.write_report)
    for contender in (report.original, report.other):
        if contender.failure:
            raise ModelError(f"{contender.name}: {contender.failure}")


def _models(model: str, other: str | None, given: Given) -> tuple[LoadedModel, Plan | LoadedModel]:
    """Return the original, and the plan that makes it mixed, or the other model."""
    if other is None:
        plan = resolve_watched(load_model(model), take_policy(given), take_type_hints(given))
        return plan.solution.loaded, plan
    for name in on_command_line(*given):
        raise UsageError(
            f"--{name.replace('_', '-')} says how a mixed model is made, and OTHER is one already",
            hint="leave out the option, or OTHER",
        )
    return load_model(model), load_model(other)


def _write_estimate(original: LoadedModel, rival: Plan | LoadedModel, data: DataOptions, form: str) -> None:
    from mixlist.benchmark.result import estimate_json
    from mixlist.cost.estimate import estimate_work
    from mixlist.report import bench_terminal, json_output
    from mixlist.resolver.plan import Plan
    from mixlist.rewriter import rewrite
    from mixlist.runtime.inputs import model_inputs
    from mixlist.runtime.random_feeds import expand_sizes

    warnings: tuple[Diagnostic, ...] = ()
    if isinstance(rival, Plan):
        result = rewrite(original, rival)
        rival, warnings = replace(original, proto=result.proto, name=f"{original.name}, mixed"), result.warnings
    dims: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    if data.data or data.random is not None:
        feed = next(iter(batches_from(data, original.proto)))
        shapes = {name: value.shape for name, value in feed.items() if hasattr(value, "shape")}
    else:
        dims = expand_sizes(model_inputs(original.proto), sizes_from(data.dims))
    works = estimate_work(original, dims, shapes), estimate_work(rival, dims, shapes)
    terminal.warn(warnings)
    if form == "json":
        json_output.write_json(estimate_json(*works, warnings), sys.stdout)
    else:
        bench_terminal.write_estimate(*works, sys.stdout)
