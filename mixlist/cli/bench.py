"""``mixlist bench``: time the mixed model against the original, or count the work of both from shapes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.benchmark.options import BenchOptions
from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import DataOptions, batches_of_options, parse_sizes, pop_data_options
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import (
    HTML,
    PLAN_OPTIONS,
    build_options,
    declared_options,
    format_option,
    pop_policy,
    pop_type_hints,
    resolve_with_progress,
)
from mixlist.cli.parameters import MODEL, OptionValues, options_on_command_line
from mixlist.cli.result_output import next_command, write_page_file, write_report
from mixlist.errors import ModelError, UsageError
from mixlist.show import terminal

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan
    from mixlist.diagnostics import Diagnostic
    from mixlist.model.load import LoadedModel


@click.command(
    "bench",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--precision-mode-v2",
        "--data",
        "--random",
        "--dim",
        "--provider",
        "--rounds",
        "--estimate",
        "--format",
        "--html",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        click.Argument(["other"], type=MODEL, required=False),
        *declared_options(DataOptions, BenchOptions),
        GroupedOption(
            "--estimate", "run", "Run nothing: count operations and bytes from shapes, for any machine.", is_flag=True
        ),
        format_option("text", "json"),
        HTML,
        *PLAN_OPTIONS,
        CONFIG,
    ],
)
def command(
    model: str,
    other: str | None,
    estimate: bool,
    output_format: str,
    html: str | None,
    **option_values: object,
) -> None:
    """Time MODEL against itself in mixed precision, or against the model OTHER.

    The two models run in turn, each in its own process. The ratio of their times has a confidence interval. The report
    also counts low-precision nodes with and without a kernel, and the Casts that ONNX Runtime inserts.

    \b
    Example:
      mixlist bench model.onnx --data batches/ --mixlist modify.json --html report.html
      mixlist bench model.onnx mixed.onnx --random 1 --dim batch=8 --provider cuda
      mixlist bench model.onnx --estimate --dim batch=8 --format json
    """
    from mixlist.benchmark.run import run_bench
    from mixlist.show.bench_document import bench_document
    from mixlist.show.progress_bar import bar

    data = pop_data_options(option_values)
    options = build_options(BenchOptions(), option_values)
    original, compared = _models(model, other, option_values)
    if estimate:
        _write_estimate(original, compared, data, options.provider, output_format, html)
        return
    batches = batches_of_options(data, original, options.most_batches)
    with bar("timing", "rounds") as progress:
        report = run_bench(original, compared, batches, replace(options, progress=progress))
    terminal.write_findings(report.warnings)
    write_report(report, bench_document(report, _next_commands(other, report.provider)), output_format, html)
    # A model that could not be timed is an error, but the times of the other model are written first.
    for timed_model in (report.original, report.other):
        if timed_model.failure:
            raise ModelError(f"{timed_model.name}: {timed_model.failure}")


def _next_commands(other: str | None, provider: str) -> dict[str, str]:
    """Return the command lines that the report of a benchmark can recommend."""
    from mixlist.benchmark.result import LEAST_ROUNDS

    commands = {
        "estimate": next_command("bench", "--estimate", excluded=("rounds",)),
        "rounds": next_command("bench", "--rounds", str(LEAST_ROUNDS), excluded=("rounds",)),
    }
    if other is not None:
        return commands | {"check": next_command("check", "--mixed-model", other)}
    return commands | {"check": next_command("check"), "resolve": next_command("resolve", "--target", provider)}


def _models(model: str, other: str | None, option_values: OptionValues) -> tuple[LoadedModel, Plan | LoadedModel]:
    """Return the original model, and the plan for it, or the model ``other`` if it is given."""
    if other is None:
        plan = resolve_with_progress(load_input_model(model), pop_policy(option_values), pop_type_hints(option_values))
        return plan.solution.loaded, plan
    # Only options of a policy are left. They would have no effect, so the first one on the command line is an error.
    for name in options_on_command_line(*option_values):
        raise UsageError(
            f"--{name.replace('_', '-')} decides how MODEL becomes mixed, and OTHER is compared instead of that result",
            hint="leave out the option, or OTHER",
        )
    return load_input_model(model), load_input_model(other)


def _write_estimate(
    original: LoadedModel,
    compared: Plan | LoadedModel,
    data: DataOptions,
    provider: str,
    output_format: str,
    html: str | None,
) -> None:
    from mixlist.benchmark.result import estimate_json
    from mixlist.decide.plan import Plan
    from mixlist.run.feeds import find_shapes
    from mixlist.run.inputs import model_inputs
    from mixlist.run.random_feeds import decide_shapes, expand_sizes
    from mixlist.show import json_csv
    from mixlist.show.bench_document import estimate_document
    from mixlist.targets.estimate import estimate_work
    from mixlist.write import rewrite

    warnings: tuple[Diagnostic, ...] = ()
    if isinstance(compared, Plan):
        # The mixed model is only built in memory: its shapes and types are all that the estimate needs.
        result = rewrite(original, compared)
        compared, warnings = original._replace(proto=result.proto, name=f"{original.name}, mixed"), result.warnings
    # With data, the shapes of its first batch are those of the inputs. Without data, ``--dim`` gives the open sizes, as
    # for random data.
    dims: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    if data.has_source:
        shapes = find_shapes(next(iter(batches_of_options(data, original, 1))))
    else:
        inputs = model_inputs(original.proto)
        dims = expand_sizes(inputs, parse_sizes(data.dims))
        # An input with a default has its shape, and a sequence has none.
        open_inputs = [i for i in inputs if i.shape is not None and not i.optional and not isinstance(i.type, tuple)]
        shapes, assumptions = decide_shapes(original.proto, open_inputs, dims, "the estimate")
        warnings = (*warnings, *assumptions)
    works = estimate_work(original, dims, shapes), estimate_work(compared, dims, shapes)
    terminal.write_findings(warnings)
    source = () if data.has_source else ("--random", "1")
    # Times on the CPU say nothing about an accelerator, for which an estimate is made.
    target = ("--provider", "cuda" if provider == "cpu" else provider)
    measurement = next_command("bench", *source, *target, excluded=("estimate", "provider"))
    document = estimate_document(*works, warnings, measurement)
    if html is not None:
        write_page_file(document, html)
    if output_format == "json":
        json_csv.write_json(estimate_json(*works, warnings), sys.stdout)
    else:
        terminal.write_document(document, sys.stdout)
