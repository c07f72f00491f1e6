"""``mixlist validate``: check list files, alone or against a library and a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.error_output import report_error
from mixlist.cli.options import KIND, OP_NAMES, OPS_INFO, format_option
from mixlist.cli.parameters import CONFIG, INPUT_OR_DASH, MODEL, refuse_second_standard_input
from mixlist.diagnostics import Diagnostic
from mixlist.errors import MixlistError
from mixlist.report.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.lists.detect_kind import FileKind
    from mixlist.lists.validate_file import FileReport


@click.command(
    "validate",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["paths"], metavar="PATH...", nargs=-1, required=True, type=INPUT_OR_DASH),
        KIND,
        format_option(
            *("text", "json", "github", "sarif"),
            description="github: annotations on a pull request; sarif: SARIF 2.1.0 for code scanning.",
            alias="--output-format",
        ),
        click.Option(["--strict"], is_flag=True, help="Exit with status 1 for warnings, too."),
        OPS_INFO,
        click.Option(["--model"], type=MODEL, help="Also check the names against this ONNX model."),
        OP_NAMES,
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
    op_names: str | None,
) -> int:
    """Check list files: modify_mixlist, ops-info (a file or a directory), keep_dtype, customize_dtypes.

    Every finding gives its place, the fault and the remedy. Exit status 1 if there is an error (with --strict: a
    finding), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate modify.json --ops-info ascend910b --model model.onnx
      mixlist validate --format sarif lists/*.json > findings.sarif
    """
    from mixlist.validation import make_validator

    refuse_second_standard_input()
    check = make_validator(kind, strict=strict, ops_info=ops_info, model=model, op_names=op_names or "auto")
    reports, unreadable = [], False
    # A file that cannot be read does not stop the check of the others.
    for path in paths:
        try:
            reports.append(check(path))
        except MixlistError as error:
            report_error(error)
            unreadable = True
    findings = [finding for report in reports for finding in report.findings]
    _write(output_format, reports, findings)
    errors = sum(finding.severity == "error" for finding in findings)
    sys.stderr.write(f"{pluralize(len(reports), 'file')} checked: {pluralize(errors, 'error')}")
    sys.stderr.write(f", {pluralize(len(findings) - errors, 'warning')}\n")
    # Exit status 1 would say that all files were checked, so a file that could not be read wins.
    failed = bool(findings) if strict else bool(errors)
    return 2 if unreadable else int(failed)


def _write(output_format: str, reports: Sequence[FileReport], findings: Sequence[Diagnostic]) -> None:
    from mixlist.report import github, json_output, sarif, terminal

    if output_format == "json":
        json_output.write_json(json_output.validation_json(reports), sys.stdout)
    elif output_format == "sarif":
        json_output.write_json(sarif.sarif(findings), sys.stdout)
    elif output_format == "github":
        sys.stdout.writelines(github.annotation(finding) + "\n" for finding in findings)
    else:
        sys.stdout.writelines(line + "\n" for line in terminal.diagnostic_lines(findings, sys.stdout))
        for report in reports:
            if not report.findings:
                sys.stdout.write(f"{terminal.escape_commands(report.path)}: {report.kind}, no findings\n")
