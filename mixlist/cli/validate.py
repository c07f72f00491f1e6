"""``mixlist validate``: check list files, alone or against a library and a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import KEEP_DTYPE, KIND, OP_NAMES, OPS_INFO, format_option
from mixlist.cli.parameters import MODEL, PathType
from mixlist.errors import ListError, MixlistError, UsageError
from mixlist.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic
    from mixlist.lists.corrections import Correction
    from mixlist.lists.detect_kind import FileKind
    from mixlist.lists.policy import OpNames
    from mixlist.lists.validate_file import FileReport
    from mixlist.validation import CorrectedFile, Validator


# --- the command ---


def _library_option() -> click.Parameter:
    """Return the option ``--ops-info``, repeatable and without its default: without it, no library is compared."""
    option = copy(OPS_INFO)
    option.multiple = True
    option.help = (
        "Also check the lists against this operator library: a file, a directory or a built-in name"
        " ('mixlist presets'). Give it once for each chip; a finding of some of them names its library."
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
        GroupedOption("--strict", "run", "Exit with status 1 for warnings, too.", is_flag=True),
        _library_option(),
        GroupedOption("--model", "lists", "Also check the names against this ONNX model.", type=MODEL),
        OP_NAMES,
        KEEP_DTYPE,
        GroupedOption(
            "--select",
            "output",
            "Only findings of these codes, or of these beginnings: ML1.",
            metavar="CODES",
            multiple=True,
        ),
        GroupedOption(
            "--ignore",
            "output",
            "No findings of these codes or beginnings. The longer beginning wins: --ignore ML1 --select ML105.",
            metavar="CODES",
            multiple=True,
        ),
        GroupedOption(
            "--fix",
            "run",
            "Correct what is safe to correct: comments, trailing commas, repeated names, flags without quotes, and a"
            " key or (with --ops-info) an op type from which one right name differs only in case, separators or one"
            " letter.",
            is_flag=True,
        ),
        GroupedOption("--diff show_diff", "run", "Print what --fix would change, and change nothing.", is_flag=True),
        GroupedOption("-q --quiet", "output", "Print findings only, no kinds and no summary.", is_flag=True),
        CONFIG,
    ],
)
def command(
    paths: tuple[str, ...],
    kind: FileKind | Literal["auto"],
    output_format: str,
    strict: bool,
    ops_info: tuple[str, ...],
    model: str | None,
    op_names: OpNames | None,
    keep_dtype: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fix: bool,
    show_diff: bool,
    quiet: bool,
) -> int:
    """Check list files: modify_mixlist, ops-info (a file or a directory), keep_dtype, customize_dtypes.

    Every finding gives its place, the fault and the remedy. A folder means the list files in it and its subfolders;
    the .json files directly in a folder that look like ops-info are one library. With --kind, a folder means all files
    with an ending of this kind (ops-info: one library). Exit status 1 if there is an error
    (with --strict: a finding; with --diff: a difference), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate lists/ --ops-info ascend910b --model model.onnx --fix
      mixlist validate lists/ --ignore ML1,ML402
      mixlist validate --format sarif lists/*.json > findings.sarif
    """
    from mixlist.validation import make_validator

    _refuse_contradictions(paths, output_format, fix, show_diff)
    names = op_names or "auto"
    try:
        validator = make_validator(
            kind,
            strict=strict,
            ops_info=ops_info,
            model=model,
            op_names=names,
            keep_dtype=keep_dtype,
            select=select,
            ignore=ignore,
        )
    except ListError as error:  # in the library of --ops-info
        error.diagnostics = _with_hints(error.diagnostics, _LIBRARY_HINTS)
        raise
    run = _ValidateRun(validator, corrects=fix or show_diff, writes_files=not show_diff)
    for path in paths:
        run.check(path)
    if show_diff:
        return _write_diffs(run)
    _write(output_format, run, quiet)
    if not quiet:
        _write_summary(run)
    failed = any(finding.severity == "error" or strict for finding in run.findings)
    return 2 if run.has_unusable_path else int(failed)


def _refuse_contradictions(paths: Sequence[str], output_format: str, fix: bool, show_diff: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if fix and not show_diff and "-" in paths:
        raise UsageError("--fix cannot correct standard input", hint="give a file, or print the changes with --diff")
    if show_diff and output_format != "text":
        message = f"--diff prints no findings, but --format {output_format} needs them"
        raise UsageError(message, hint="give one of the two")


def _write_diffs(run: _ValidateRun) -> int:
    """Write the differences that --fix would make; return the exit status."""
    from mixlist.files.list_text import shown_path
    from mixlist.show.validate_document import unified_diff

    for file in run.corrected_files:
        sys.stdout.writelines(unified_diff(shown_path(file.path), file.before.decode(), file.after.decode()))
    left = len(run.findings) - sum(correction.count for correction in run.corrections)
    if left > 0:
        sys.stderr.write(f"{pluralize(left, 'finding')} not corrected: the same command without --diff shows all\n")
    return 2 if run.has_unusable_path else int(bool(run.corrected_files))


def _write(output_format: str, run: _ValidateRun, quiet: bool) -> None:
    from mixlist.show import json_csv, terminal, validate_document

    if output_format == "json":
        result = validate_document.validation_json(run.reports, run.skipped, run.corrections)
        json_csv.write_json(result, sys.stdout)
    elif output_format == "sarif":
        json_csv.write_json(validate_document.sarif(run.findings), sys.stdout)
    elif output_format == "github":
        sys.stdout.writelines(validate_document.annotation(finding) + "\n" for finding in run.findings)
    else:
        if not quiet:
            _write_lines(validate_document.correction_lines(run.corrections))
        sys.stdout.writelines(line + "\n" for line in terminal.diagnostic_lines(run.findings, sys.stdout))
        if not quiet:
            _write_lines(validate_document.kind_lines(run.reports, run.skipped))


def _write_lines(lines: Iterable[str]) -> None:
    """Write lines that begin with the name of a file; they are not folded, so that other programs can read them."""
    from mixlist.show.terminal import escape_commands

    sys.stdout.writelines(f"{escape_commands(line)}\n" for line in lines)


def _write_summary(run: _ValidateRun) -> None:
    errors = sum(finding.severity == "error" for finding in run.findings)
    parts = [
        f"{pluralize(len(run.reports), 'file')} checked: {pluralize(errors, 'error')}",
        pluralize(len(run.findings) - errors, "warning"),
    ]
    if corrected_count := sum(correction.count for correction in run.corrections):
        parts.append(f"{corrected_count} corrected")
    sys.stderr.write(", ".join(parts) + "\n")
    if not run.validator.library_paths and any(report.kind == "modify-mixlist" for report in run.reports):
        sys.stderr.write("names were not checked against a library: give --ops-info\n")
    if any(report.skips_model for report in run.reports):
        sys.stderr.write("the errors prevented the check against the model\n")


# --- check the paths, and correct their files ---


class _ValidateRun:
    """The check of all paths: the reports, the files that are no list files, and the corrections."""

    def __init__(self, validator: Validator, *, corrects: bool, writes_files: bool) -> None:
        self.reports: list[FileReport] = []
        self.skipped: list[str] = []
        self.corrected_files: list[CorrectedFile] = []
        self.has_unusable_path = False  # a path that cannot be read, or a file that cannot be written
        self.validator = validator
        self._corrects, self._writes_files = corrects, writes_files

    @property
    def findings(self) -> list[Diagnostic]:
        """Return the findings of all reports."""
        return [finding for report in self.reports for finding in report.findings]

    @property
    def corrections(self) -> list[Correction]:
        """Return the corrections of all files."""
        return [correction for file in self.corrected_files for correction in file.corrections]

    def check(self, path: str) -> None:
        """Check a path and correct its files. An error of the path is written, and does not end the run."""
        from mixlist.cli.error_output import report_error

        try:
            report = self.validator.check(path)
            if self._corrects and self._correct(report):
                report = self.validator.check(path)
        except MixlistError as error:
            if isinstance(error, ListError):
                error.diagnostics = _with_hints(error.diagnostics)
            report_error(error)
            self.has_unusable_path = True
            return
        # A file can be named twice: by its path and by its folder.
        known_paths = {os.path.normpath(other.path) for other in self.reports}
        parts = [part for part in report.parts or [report] if os.path.normpath(part.path) not in known_paths]
        self.reports += (replace(part, findings=_with_hints(part.findings)) for part in parts)
        self.skipped += report.skipped

    def _correct(self, report: FileReport) -> bool:
        """Correct the files of a report; return True if a file was written."""
        from mixlist.files.atomic_writes import replace_unless_changed

        corrected_files = [file for part in report.parts or [report] for file in self.validator.correct(part)]
        for file in corrected_files:
            if self._writes_files:
                replace_unless_changed(file.path, file.before, file.after)
            self.corrected_files.append(file)
        return self._writes_files and bool(corrected_files)


# --- hints that suit this command ---

# The codes of a file of another kind than the expected one. Other commands would take the file by another option.
_OTHER_KIND_HINTS = {
    "ML013": "validate checks list files; --model names a model for the check of their names",
    "ML109": "leave --kind out, or give --kind ops-info",
    "ML208": "leave --kind out, or give --kind modify-mixlist",
}
_LIBRARY_HINTS = {
    "ML013": "--ops-info names a built-in library, a file or a directory; --model names a model",
    "ML208": "give this file as PATH; --ops-info names the library to check it against",
}


def _with_hints(findings: Iterable[Diagnostic], hints: Mapping[str, str] = _OTHER_KIND_HINTS) -> tuple[Diagnostic, ...]:
    """Return the findings with other hints for some codes."""
    return tuple(replace(finding, hint=hints.get(finding.code, finding.hint)) for finding in findings)
