"""``mixlist bench``: times the mixed model against the original, or accounts for both without running them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.data import DATA_OPTIONS, batches_from, sizes_from, take_data
from mixlist.cli.options import (
    FILE,
    POLICY_OPTIONS,
    TYPE_HINTS,
    one_standard_input,
    options,
    policy_from,
    resolve_watched,
)
from mixlist.errors import ModelError, UsageError
from mixlist.report import terminal

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic
    from mixlist.graph.io import Loaded
    from mixlist.resolver.plan import Plan


@click.command("bench", short_help="Time the mixed model against the original.")
@click.argument("model", type=FILE)
@click.argument("other", type=FILE, required=False)
@options(
    *DATA_OPTIONS,
    click.option(
        "--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Pairs of turns that are timed."
    ),
    click.option(
        "--warmup", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each batch before."
    ),
    click.option("--transfers", is_flag=True, help="Time inputs and outputs on their way to and from the device too."),
    click.option(
        "--threads", type=click.IntRange(min=1), help="Threads within an operator.  [default: ONNX Runtime's choice]"
    ),
    click.option(
        "--estimate", is_flag=True, help="Run nothing: count operations and bytes from shapes, for any machine."
    ),
    click.option("--profile", metavar="DIR", type=FILE, help="Keep ONNX Runtime's profiles in this folder."),
    click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True),
    *POLICY_OPTIONS,
    TYPE_HINTS,
)
def command(
    model: str,
    other: str | None,
    provider: str,
    rounds: int,
    warmup: int,
    transfers: bool,
    threads: int | None,
    estimate: bool,
    profile: str | None,
    form: str,
    type_hints: str | None,
    **given: Any,
) -> None:
    """Time the mixed model that the lists make of MODEL against MODEL, or OTHER against MODEL.

    The two take turns, each in a process of its own; the ratio comes with a confidence interval. What really ran is
    told too: low nodes with and without a kernel, Casts that ONNX Runtime put in.

    \b
    Example:
      mixlist bench model.onnx --data batches/ --mixlist modify.json
      mixlist bench model.onnx mixed.onnx --random 1 --dim batch=8 --provider cuda
      mixlist bench model.onnx --estimate --dim batch=8 --format json
    """
    from mixlist.benchmark.timing import bench
    from mixlist.report import bench_terminal, json_output
    from mixlist.report.progress import count_bar

    data = take_data(given)
    original, rival = _models(model, other, type_hints, given)
    if estimate:
        _write_estimate(original, rival, data, form)
        return
    with count_bar("timing", rounds) as told:
        report = bench(
            original,
            rival,
            batches_from(data, original.proto),
            provider=provider,
            rounds=rounds,
            warmup=warmup,
            transfers=transfers,
            threads=threads,
            profiles=Path(profile) if profile is not None else None,
            progress=told,
        )
    _warn(report.warnings)
    if form == "json":
        json_output.write_json(report.to_json(), sys.stdout)
    else:
        bench_terminal.write_report(report, sys.stdout)
    for contender in (report.original, report.other):
        if contender.failure:
            raise ModelError(f"{contender.name}: {contender.failure}")


def _models(
    model: str, other: str | None, type_hints: str | None, given: dict[str, Any]
) -> tuple[Loaded, Plan | Loaded]:
    """The original, and the plan that makes it mixed, or the other model."""
    from mixlist.graph.io import load

    one_standard_input((type_hints, *given.values()))
    if other is None:
        plan = resolve_watched(model, policy_from(given), type_hints)
        return plan.solution.loaded, plan
    context = click.get_current_context()
    for name in (*given, "type_hints"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{name.replace('_', '-')} says how a mixed model is made, and OTHER is one already",
                hint="leave out the option, or OTHER",
            )
    return load(model), load(other)


def _write_estimate(original: Loaded, rival: Plan | Loaded, data: dict[str, Any], form: str) -> None:
    from mixlist.benchmark.result import estimate_json
    from mixlist.cost.estimate import estimate
    from mixlist.report import bench_terminal, json_output
    from mixlist.resolver.plan import Plan
    from mixlist.rewriter import rewrite
    from mixlist.runtime.inputs import model_inputs
    from mixlist.runtime.random_feeds import check_names

    warnings: tuple[Diagnostic, ...] = ()
    if isinstance(rival, Plan):
        result = rewrite(original, rival)
        rival, warnings = replace(original, proto=result.proto, name=f"{original.name}, mixed"), result.warnings
    dims, shapes = {}, {}
    if data["data"] or data["random"] is not None:
        feed = next(iter(batches_from(data, original.proto)))
        shapes = {name: value.shape for name, value in feed.items() if hasattr(value, "shape")}
    else:
        dims = sizes_from(data["dims"])
        check_names(model_inputs(original.proto), dims, {})
    told = estimate(original, rival, dims, shapes)
    terminal.warn(warnings)
    if form == "json":
        json_output.write_json(estimate_json(told, tuple(map(str, warnings))), sys.stdout)
    else:
        bench_terminal.write_estimate(told, sys.stdout)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        sys.stderr.write(f"{terminal.clean(warning)}\n")
