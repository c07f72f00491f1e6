"""``mixlist check``: find overflow in the mixed model, and compare its outputs with the original's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.checker.options import CheckOptions
from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import advise_real_values, judging_options, pop_data_options, read_run
from mixlist.cli.options import HTML, MODES, PLAN_OPTIONS, format_option, pop_policy
from mixlist.cli.parameters import MODEL, options_on_command_line
from mixlist.cli.result_output import next_command, unused_path, write_report, writing_command
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mixlist.checker.result import CheckReport
    from mixlist.diagnostics import Diagnostic
    from mixlist.lists.policy import Policy
    from mixlist.model.load import LoadedModel
    from mixlist.show.document import Frame


# The searches have no such option: their trials observe no inner sums.
_INNER_TYPE_ADVICE = "the search judges without --inner-type low: check its result with this option"


@click.command(
    "check",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--precision-mode-v2",
        "--data",
        "--random",
        "--dim",
        "--range",
        "--max-normalized-error",
        "--mixed-model",
        "--provider",
        "--format",
        "--html",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        click.Argument(["mixed"], type=MODEL, required=False),
        *PLAN_OPTIONS,
        *judging_options(CheckOptions),
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(model: str, mixed: str | None, output_format: str, html: str | None, **option_values: object) -> int:
    """Check a mixed model for overflow and accuracy on data. This writes nothing except the report.

    MODEL runs in float32 and in the mixed precision of the lists, batch by batch. An overflow is a value that is finite
    in float32 and not finite in low precision. The report begins with the nodes where overflow starts. It names the
    list entry that puts each of them in low precision, and the edit that keeps it in float32. Limits judge the outputs.
    Exit status 0: pass, 1: fail, or inconclusive if too little could be compared or nothing is low.

    On a CPU the mixed model is emulated: a float32 model runs that rounds every low-precision value to the low type.
    The mixed model itself would show no overflow there, because ONNX Runtime's CPU provider computes most float16 nodes
    in float32 and removes the Casts between them. With --provider cuda the mixed model itself runs.

    MIXED is a mixed model of MODEL that another tool wrote, as with --mixed-model.

    \b
    Example:
      mixlist check model.onnx --data batches/ --mixlist modify.json
      mixlist check model.onnx --random 4 --dim batch=8 --html report.html
      mixlist check model.onnx mixed.onnx --data batches/
    """
    from mixlist.checker.run import run_check
    from mixlist.run.executors import start_process
    from mixlist.show import terminal
    from mixlist.show.check_document import check_document, describe_small_errors
    from mixlist.show.progress_bar import bar

    if mixed is not None:
        if options_on_command_line("mixed_model"):
            raise UsageError("MIXED and --mixed-model are two mixed models", hint="give one of them")
        option_values["mixed_model"] = mixed
    data = pop_data_options(option_values)
    # Start the process of the sessions now, so that it imports ONNX Runtime while this process reads the model. With
    # --jobs or --scheduler, ``run_check`` starts workers.
    if option_values["jobs"] is None and option_values["scheduler"] is None:
        start_process()
    policy = pop_policy(option_values)
    # The page shows the ranges of all tensors.
    option_values["per_tensor"] = option_values["per_tensor"] or html is not None
    source, batches, options = read_run(model, data, CheckOptions(), option_values)
    with bar("checking", "batches") as progress:
        report = run_check(source, policy, batches, replace(options, progress=progress))
    if options.mixed_model is None:  # the lists of the policy made the mixed model
        if not report.compares_low_with_low:
            report = replace(report, next_command=_next_command(report.verdict, policy, source, options))
        if report.verdict == "fail" and report.next_command and options.inner_type == "low":
            report = replace(report, advice=(*report.advice, _INNER_TYPE_ADVICE))
    elif report.verdict == "fail" and describe_small_errors(report):
        mode = () if report.precision == "float16" else ("--type", report.precision)
        command = next_command("convert", *mode, "-o", unused_path("mixed.onnx"), excluded=MODES if mode else ())
        report = replace(report, next_command=command)
    if report.verdict == "pass":
        report = replace(report, advice=advise_real_values(data, batches.inputs))
    terminal.write_findings(report.warnings)
    graph = _graph_frame(report, policy, source, options) if html is not None else None
    page_command = next_command("check", "--html", unused_path("check.html")) if html is None else ""
    document = check_document(report, graph, page_command, _validate_command(policy, report.warnings, model))
    write_report(report, document, output_format, html)
    return int(report.verdict != "pass")


def _validate_command(policy: Policy, warnings: Sequence[Diagnostic], model: str) -> str:
    """Return the command line that shows the misspelled op types of the list as errors; "" if there are none.

    A misspelled op type is similar to one of the library, and neither the library nor the model has it.
    """
    unused = {(item.path, item.line, item.column) for item in warnings if item.code == "ML406"}
    misspelled = [item for item in policy.warnings if item.code == "ML108" and "did you mean" in (item.hint or "")]
    if unused.isdisjoint((item.path, item.line, item.column) for item in misspelled):
        return ""
    return next_command("validate", str(click.get_current_context().params["mixlist"]), "--model", model)


def _graph_frame(report: CheckReport, policy: Policy, source: LoadedModel, options: CheckOptions) -> Frame | None:
    """Return the graph with the findings: that of the lists, or that of the mixed model which was given.

    Return None if the names of the report are not in this graph: the tool that made the mixed model gave new ones.
    """
    from mixlist.decide import Resolver
    from mixlist.lists.load import load_policy
    from mixlist.model.load import load_model
    from mixlist.show.graph_page import graph_frame

    if options.mixed_model is not None:
        source, policy = load_model(options.mixed_model), load_policy(precision_mode_v2="origin")
    plan = Resolver(source, type_hints=options.type_hints).plan(policy)
    try:
        return graph_frame(plan, report.to_json())
    except UsageError:
        return None


def _next_command(verdict: str, policy: Policy, source: LoadedModel, options: CheckOptions) -> str:
    """Return the command line that writes a model that passes, or that searches one that does; "" if there is none.

    A model that has low types itself is repaired: lists never raise an authored type, and only node rules do. Of the
    lists of a compiler, and of lists that the user edits, it searches better ones.
    """
    from mixlist.checker.emulation import has_low_types
    from mixlist.lists.policy import DEFAULT_LIBRARY, DEFAULT_MODE

    if verdict == "pass":
        return writing_command(policy)
    is_against_float32 = options.reference_type != "authored"  # only then the author's own low nodes can fail
    if (
        verdict == "fail"
        and is_against_float32
        and has_low_types(source.proto)
        and policy.mode.action in ("lists", "origin")
    ):
        return next_command("repair", "-o", unused_path("repaired.onnx"))
    has_own_lists = policy.lists.library.name != DEFAULT_LIBRARY or bool(policy.lists.moves)
    if verdict == "fail" and policy.mode.action in ("lists", "force") and not has_own_lists:
        return next_command("convert", "-o", unused_path("mixed.onnx"))
    # ``tune`` edits lists, so it can help only in a mode that reads them. The modes that make all nodes float16 do not
    # read lists: then the command names the mode that does.
    if verdict == "inconclusive" or policy.mode.action not in ("lists", "force"):
        return ""
    with_lists = policy.mode.action == "lists"
    mode = () if with_lists else ("--precision-mode-v2", DEFAULT_MODE)
    excluded = () if with_lists else ("precision_mode", "precision_mode_v2")
    return next_command("tune", *mode, "-o", unused_path("modify.json"), excluded=excluded)
