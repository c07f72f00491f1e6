"""``mixlist validate``: checks list files, alone or against a library and a model."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import Command
from mixlist.cli.failures import tell
from mixlist.cli.options import KIND, OP_NAMES, OPS_INFO, format_option, policy_from
from mixlist.cli.parameters import CONFIG, MODEL, PATH, Given, one_standard_input
from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError, MixlistError
from mixlist.report.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.lists.detect_kind import Kind
    from mixlist.lists.policy import Policy
    from mixlist.lists.validate import FileReport


@click.command(
    "validate",
    cls=Command,
    params=[
        click.Argument(["paths"], metavar="PATH...", nargs=-1, required=True, type=PATH),
        KIND,
        format_option(
            *("text", "json", "github", "sarif"),
            description="github: annotations on a pull request; sarif: SARIF 2.1.0 for code scanning.",
            alias="--output-format",
        ),
        click.Option(["--strict"], is_flag=True, help="Warnings fail too."),
        OPS_INFO,
        click.Option(["--model"], type=MODEL, help="Check the names against this ONNX model, too."),
        OP_NAMES,
        CONFIG,
    ],
)
def command(
    paths: tuple[str, ...],
    kind: Kind | Literal["auto"],
    form: str,
    strict: bool,
    ops_info: str | None,
    model: str | None,
    op_names: str | None,
) -> int:
    """Check list files: modify_mixlist, ops-info (a file or a directory), keep_dtype, customize_dtypes.

    Every finding names its place, what is wrong and what to do. Exit status 1 if there is an error (with
    --strict: a finding), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate modify.json --ops-info ascend910b --model model.onnx
      mixlist validate --format sarif lists/*.json > findings.sarif
    """
    from mixlist.lists.load import load_library
    from mixlist.lists.options import DEFAULT_LIBRARY
    from mixlist.lists.validate import validate_file

    one_standard_input()
    if "-" in paths:
        _keep_standard_input()
    against = ops_info if ops_info is not None else DEFAULT_LIBRARY if model is not None else None
    library = load_library(against)[0] if against is not None else None
    reports = []
    unreadable = False
    for path in paths:
        try:
            report = validate_file(path, kind, strict=strict, library=library)
            reports.append(_cross_check(report, path, model, {"ops_info": ops_info, "op_names": op_names}))
        except MixlistError as error:
            tell(error)
            unreadable = True
    findings = [finding for report in reports for finding in report.findings]
    _write(form, reports, findings)
    errors = sum(finding.severity == "error" for finding in findings)
    sys.stderr.write(f"{pluralize(len(reports), 'file')} checked: {pluralize(errors, 'error')}")
    sys.stderr.write(f", {pluralize(len(findings) - errors, 'warning')}\n")
    failed = bool(findings) if strict else bool(errors)
    return 2 if unreadable else int(failed)


def _keep_standard_input() -> None:
    """Let '-' be read twice: as a file, then as part of a policy."""
    from mixlist.files.jsonc import MAX_BYTES

    sys.stdin = io.TextIOWrapper(io.BytesIO(sys.stdin.buffer.read(MAX_BYTES + 1)))


def _cross_check(report: FileReport, path: str, model: str | None, given: Given) -> FileReport:
    """Add to a report what the library's name space or the model says about a file that is valid by itself."""
    if any(f.severity == "error" for f in report.findings) or (model is None and given["ops_info"] is None):
        return report
    from mixlist.ops.crosscheck import cross_check

    if path == "-":
        sys.stdin.seek(0)
    option = "mixlist" if report.kind == "modify-mixlist" else report.kind.replace("-", "_")
    policy = policy_from(given | {option: path})
    more = cross_check(policy) if model is None else _against_model(model, policy)
    return replace(report, findings=(*report.findings, *more))


def _against_model(model: str, policy: Policy) -> Sequence[Diagnostic]:
    from mixlist import resolve

    try:
        return resolve(model, policy).warnings
    except ListError as error:
        return error.diagnostics


def _write(form: str, reports: Sequence[FileReport], findings: Sequence[Diagnostic]) -> None:
    from mixlist.report import github, json_output, sarif, terminal

    if form == "json":
        json_output.write_json(json_output.validation_json(reports), sys.stdout)
    elif form == "sarif":
        json_output.write_json(sarif.sarif(findings), sys.stdout)
    elif form == "github":
        sys.stdout.writelines(github.annotation(finding) + "\n" for finding in findings)
    else:
        sys.stdout.writelines(line + "\n" for line in terminal.diagnostic_lines(findings, sys.stdout))
        for report in reports:
            if not report.findings:
                sys.stdout.write(f"{terminal.clean(report.path)}: {report.kind}, no findings\n")
