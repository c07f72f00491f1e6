"""``mixlist validate``: check list files, alone or against a library and a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.options import KIND, OP_NAMES, OPS_INFO, format_option
from mixlist.cli.parameters import INPUT, MODEL, PathType, refuse_second_standard_input
from mixlist.errors import UsageError
from mixlist.show.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.cli.validate_run import ValidateRun
    from mixlist.lists.detect_kind import FileKind
    from mixlist.lists.policy import OpNames


def _library_option() -> click.Parameter:
    """Return the option ``--ops-info`` without its default: without the option, no library is compared."""
    option = copy(OPS_INFO)
    option.help = (
        "Also check the lists against this operator library: a file, a directory or a built-in name"
        " ('mixlist presets')."
    )
    return option


@click.command(
    "validate",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["paths"], metavar="PATH...", nargs=-1, required=True, type=PathType("edits", allow_dash=True)),
        KIND,
        format_option(
            *("text", "json", "github", "sarif"),
            description="github: annotations on a pull request; sarif: SARIF 2.1.0 for code scanning.",
        ),
        click.Option(["--strict"], is_flag=True, help="Exit with status 1 for warnings, too."),
        _library_option(),
        click.Option(["--model"], type=MODEL, help="Also check the names against this ONNX model."),
        OP_NAMES,
        click.Option(
            ["--select"],
            metavar="CODES",
            multiple=True,
            help="Only findings of these codes, or of these beginnings: ML1.",
        ),
        click.Option(
            ["--ignore"],
            metavar="CODES",
            multiple=True,
            help="No findings of these codes or beginnings. The longer beginning wins: --ignore ML1 --select ML105.",
        ),
        click.Option(
            ["--baseline"],
            metavar="FILE",
            type=INPUT,
            help="Leave out the findings that this file of --write-baseline has.",
        ),
        click.Option(
            ["--write-baseline"],
            metavar="FILE",
            type=PathType("writes", replaceable_input="baseline"),
            help="Write the findings to this file, and exit with status 0.",
        ),
        click.Option(
            ["--fix"],
            is_flag=True,
            help="Correct what is safe to correct: comments, trailing commas, an op type with one near name (with"
            " --ops-info), repeated names, flags without quotes.",
        ),
        click.Option(["--diff", "show_diff"], is_flag=True, help="Print what --fix would change, and change nothing."),
        click.Option(["--statistics"], is_flag=True, help="Count the findings of each code instead of listing them."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print findings only, no kinds and no summary."),
        CONFIG,
    ],
)
def command(
    paths: tuple[str, ...],
    kind: FileKind | Literal["auto"],
    output_format: str,
    strict: bool,
    ops_info: str | None,
    model: str | None,
    op_names: OpNames | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    baseline: str | None,
    write_baseline: str | None,
    fix: bool,
    show_diff: bool,
    statistics: bool,
    quiet: bool,
) -> int:
    """Check list files: modify_mixlist, ops-info (a file or a directory), keep_dtype, customize_dtypes.

    Every finding gives its place, the fault and the remedy. A folder means the list files in it and its subfolders;
    the .json files directly in a folder that look like ops-info are one library. Exit status 1 if there is an error
    (with --strict: a finding; with --diff: a difference), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate lists/ --ops-info ascend910b --model model.onnx --fix
      mixlist validate lists/ --ignore ML1,ML402 --baseline lists/baseline.json
      mixlist validate --format sarif lists/*.json > findings.sarif
    """
    from mixlist.cli.validate_run import Baselines, ValidateRun, errors_of_library
    from mixlist.validation import make_validator

    refuse_second_standard_input()
    _refuse_contradictions(paths, output_format, write_baseline, fix, show_diff)
    names = op_names or "auto"
    with errors_of_library():
        validator = make_validator(
            kind, strict=strict, ops_info=ops_info, model=model, op_names=names, select=select, ignore=ignore
        )
    baselines = Baselines(baseline, write_baseline)  # read before any work
    run = ValidateRun(validator, corrects=fix or show_diff, writes_files=not show_diff)
    for path in paths:
        run.check(path)
    if show_diff:
        return _write_diffs(run)
    known_count = baselines.leave_out_known(run, quiet=quiet)
    _write(output_format, run, known_count, statistics, quiet)
    if not quiet:
        _write_summary(run, known_count)
    failed = any(finding.severity == "error" or strict for finding in run.findings)
    return 2 if run.has_unusable_path else int(failed)


def _refuse_contradictions(
    paths: Sequence[str], output_format: str, write_baseline: str | None, fix: bool, show_diff: bool
) -> None:
    """Raise UsageError for options that exclude each other."""
    if fix and not show_diff and "-" in paths:
        raise UsageError("--fix cannot correct standard input", hint="give a file, or print the changes with --diff")
    if show_diff and (write_baseline or output_format != "text"):
        option = "--write-baseline" if write_baseline else f"--format {output_format}"
        raise UsageError(f"--diff prints no findings, but {option} needs them", hint="give one of the two")


def _write_diffs(run: ValidateRun) -> int:
    """Write the differences that --fix would make; return the exit status."""
    from mixlist.files.list_text import shown_path
    from mixlist.show.text_diff import unified_diff

    for file in run.corrected_files:
        sys.stdout.writelines(unified_diff(shown_path(file.path), file.before.decode(), file.after.decode()))
    return 2 if run.has_unusable_path else int(bool(run.corrected_files))


def _write(output_format: str, run: ValidateRun, known_count: int | None, statistics: bool, quiet: bool) -> None:
    from mixlist.show import github, json_output, sarif, terminal, validate_document

    if output_format == "json":
        result = json_output.validation_json(run.reports, run.skipped, run.corrections, known_count)
        counts = {"statistics": json_output.statistics_json(run.findings)} if statistics else {}
        json_output.write_json(result | counts, sys.stdout)
    elif output_format == "sarif":
        json_output.write_json(sarif.sarif(run.findings), sys.stdout)
    elif output_format == "github":
        sys.stdout.writelines(github.annotation(finding) + "\n" for finding in run.findings)
    else:
        if not quiet:
            _write_lines(validate_document.correction_lines(run.corrections))
        if statistics:
            terminal.write_document(validate_document.statistics_document(run.findings), sys.stdout)
        else:
            sys.stdout.writelines(line + "\n" for line in terminal.diagnostic_lines(run.findings, sys.stdout))
        if not quiet:
            nothing = "no findings" if known_count is None else "no new findings"
            _write_lines(validate_document.kind_lines(run.reports, run.skipped, nothing))


def _write_lines(lines: Iterable[str]) -> None:
    """Write lines that begin with the name of a file; they are not folded, so that other programs can read them."""
    from mixlist.show.terminal import escape_commands

    sys.stdout.writelines(f"{escape_commands(line)}\n" for line in lines)


def _write_summary(run: ValidateRun, known_count: int | None) -> None:
    errors = sum(finding.severity == "error" for finding in run.findings)
    parts = [
        f"{pluralize(run.file_count, 'file')} checked: {pluralize(errors, 'error')}",
        pluralize(len(run.findings) - errors, "warning"),
    ]
    if corrected_count := sum(correction.count for correction in run.corrections):
        parts.append(f"{corrected_count} corrected")
    if known_count is not None:
        parts.append(f"{known_count} in the baseline")
    sys.stderr.write(", ".join(parts) + "\n")
