"""``mixlist convert``: write a mixed model that keeps the limits on data, at the least cost."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import judging_options, pop_data_options, read_run
from mixlist.cli.options import (
    HTML,
    MODES,
    OPSET,
    PLAN_OPTIONS,
    POLICY_OPTIONS,
    format_option,
    output_options,
    pop_policy,
    target_option,
    with_opset,
)
from mixlist.cli.parameters import MODEL, OptionValues, options_on_command_line
from mixlist.cli.result_output import next_command, write_report, writing_command
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.search.options import ConvertOptions

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy
    from mixlist.search.convert_result import ConvertResult


@click.command(
    "convert",
    cls=FileCheckingCommand,
    most_used=(
        "--output",
        "--rules",
        "--data",
        "--random",
        "--dim",
        "--type",
        "--target",
        "--max-normalized-error",
        "--judge",
        "--keep-dtype",
        "--force",
        "--html",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        *output_options(
            "The mixed model to write.",
            required=False,
            rules_help="Write the choice as a customize_dtypes file, with which 'mixlist apply' writes the same model.",
        ),
        *PLAN_OPTIONS,
        *judging_options(ConvertOptions),
        OPSET,
        target_option("Keep nodes in float32 for which this target has no kernel in the low type. FILE is a table."),
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(
    model: str,
    output: str | None,
    rules: str | None,
    force: bool,
    opset: int | None,
    output_format: str,
    html: str | None,
    **option_values: object,
) -> int:
    """Write MODEL to OUT in mixed precision, with as much in low precision as the limits on the data allow.

    The model is checked under the lists. If that passes, it is written. If not, the nodes that overflow are raised to
    float32, then those that add most error, and others are low again if that costs less: the cost counts the bytes that
    the nodes move, with weights and Casts, and the matrix work. A check of the written nodes on all of the data decides
    the verdict. Without --data, --loader and --random the data is random. With four batches or more, the search does
    not see the last quarter; batches of it that fail join the search.

    Nothing is written if no choice of nodes keeps the limits, or after Ctrl-C.
    Exit status 0: pass, 1: fail, or inconclusive if too little could be compared or nothing is low; also if the target
    refuses OUT.

    \b
    Example:
      mixlist convert model.onnx -o fp16.onnx --data batches/
      mixlist convert model.onnx -o fp16.onnx --data batches/ --rules keep.txt --html page.html
      mixlist convert model.onnx -o bf16.onnx --random 4 --type bfloat16 --target tensorrt --opset 22
    """
    from mixlist.search.convert import RANDOM_BATCHES, run_convert
    from mixlist.show import terminal
    from mixlist.show.convert_document import convert_document, result_frame
    from mixlist.show.progress_bar import bar

    # These checks are cheap, so they come before the lists and the model are read.
    if output is None and rules is None:
        raise UsageError("there is nothing to write", hint="name the model with -o OUT, the rules with --rules FILE")
    data = pop_data_options(option_values)
    is_random = not data.has_source
    if is_random:
        data = replace(data, random=cast("int | None", option_values["max_batches"]) or RANDOM_BATCHES)
    policy = _pop_policy(option_values)
    target = cast("str | None", option_values.pop("target"))
    source, batches, options = read_run(
        model, data, ConvertOptions(target=target), option_values, lambda source, _: with_opset(source, opset)
    )
    if is_random:
        sys.stderr.write(f"no data was given: {len(batches)} batches of random data judge the model\n")
    try:
        with bar("trials", "trials") as progress:
            result = run_convert(source, batches, policy, replace(options, progress=progress))
    except KeyboardInterrupt:
        sys.stderr.write("\nnothing was written")
        raise
    report = replace(
        result.report,
        random_data=is_random,
        next_command=_next_command(result, output, rules),
        judge_command=_judge_command(result, output, len(batches) if is_random else 0),
        warnings=(*result.report.warnings, *_warn_about_bfloat16(result, output, target)),
    )
    result = replace(result, report=report)
    terminal.write_findings(report.warnings)
    try:
        sys.stderr.write(f"{terminal.escape_commands(_save(result, output, rules, force))}\n")
        is_accepted = _report_target(result, target)
    finally:  # the report is written even if a file cannot be written
        document = convert_document(report, result_frame(result) if html is not None else None)
        write_report(report, document, output_format, html)
    return int(report.verdict != "pass" or not is_accepted)


def _report_target(result: ConvertResult, target: str | None) -> bool:
    """Write to standard error what ``apply --target`` says about the model; return False if the target refuses it."""
    if target is None or result.rewritten is None:
        return True
    from mixlist.decide import resolver_of
    from mixlist.lists.load import replace_rules
    from mixlist.show import terminal
    from mixlist.show.apply_document import describe_target
    from mixlist.targets.target_plan import plan_for_target

    policy = result.plan.policy
    # Without the rules of the target, to name all nodes that it keeps.
    rules = tuple(rule for rule in policy.rules if rule.place.line)
    use = plan_for_target(resolver_of(result.plan).plan(replace_rules(policy, rules)), target)
    check = use.check_model(result.rewritten.loaded._replace(proto=result.rewritten.proto))
    for line in describe_target(use, check):
        sys.stderr.write(f"{terminal.escape_commands(line)}\n")
    return not use.refused and (check is None or check.is_accepted)


def _pop_policy(option_values: OptionValues) -> Policy:
    """Return the policy of the command; ``--type`` chooses a mode if no other option does."""
    low_type = option_values["low_type"]
    if low_type is not None:
        if explicit := options_on_command_line(*MODES):
            flag = f"--{explicit[0].replace('_', '-')}"
            raise UsageError(f"--type and {flag} both choose the low type", hint=f"leave out --type, or {flag}")
        option_values["precision_mode"], option_values["precision_mode_v2"] = None, f"mixed_{low_type}"
    return pop_policy(option_values)


def _warn_about_bfloat16(result: ConvertResult, output: str | None, target: str | None) -> list[Diagnostic]:
    """Return a warning if ONNX Runtime's CPU provider does not load the model, and the user names no target."""
    if result.rewritten is None or result.report.precision != "bfloat16" or target is not None:
        return []
    from mixlist.targets.target import describe_refused_bfloat16

    loaded = result.rewritten.loaded
    refusal = describe_refused_bfloat16(loaded._replace(proto=result.rewritten.proto, name=output or loaded.name))
    hint = "for this provider, write a float16 model, or give --target cpu"
    return [warning("ML614", refusal, hint=hint)] if refusal else []


def _save(result: ConvertResult, output: str | None, rules: str | None, force: bool) -> str:
    """Write the files if there is a result; return a sentence that names the written files."""
    if result.rewritten is None:
        return "nothing was written"
    if output is not None:
        result.save(output, rules=rules, force=force)
    elif rules is not None:
        result.save_rules(rules, force=force)
    return f"wrote {' and '.join(filter(None, [output, rules]))}"


def _next_command(result: ConvertResult, output: str | None, rules: str | None) -> str:
    """Return the command line that converts at a later opset, or else writes the same choice from the rules, or ""."""
    if result.report.later_opset is not None:
        arguments = ("--opset", str(result.report.later_opset), *(("--force",) if result.rewritten is not None else ()))
        return next_command("convert", *arguments, excluded=("opset", "force"))
    if result.rewritten is None or rules is None:
        return ""
    from mixlist.lists.policy import DEFAULT_MODE

    policy = result.plan.policy
    mode = () if policy.mode.name == DEFAULT_MODE else ("--precision-mode-v2", policy.mode.name)
    excluded = ("output", "force", "customize_dtypes", "low_type", *MODES)
    return writing_command(policy, *mode, "--customize-dtypes", rules, excluded=excluded)


def _judge_command(result: ConvertResult, output: str | None, random: int) -> str:
    """Return the command line that compares the detections of the result with those of the model; "" without OUT.

    ``random``: the number of batches of random data, 0 if the user gave data.
    """
    if result.rewritten is None or output is None:
        return ""
    data = ("--random", str(random)) if random else ()
    excluded = {str(option.name) for option in POLICY_OPTIONS} | {"output", "force", "judge", "low_type"}
    return next_command("check", output, *data, "--judge", "boxes", excluded=excluded)
