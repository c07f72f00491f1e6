"""``mixlist validate``: check list files, alone or against a library and a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import KIND, OP_NAMES, OPS_INFO, format_option
from mixlist.cli.parameters import INPUT, MODEL, PathType
from mixlist.errors import ListError, MixlistError, UsageError
from mixlist.show.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic
    from mixlist.lists.corrections import Correction
    from mixlist.lists.detect_kind import FileKind
    from mixlist.lists.finding_selection import Baseline, BaselineRun
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
    most_used=(
        "--ops-info",
        "--model",
        "--format",
        "--strict",
        "--fix",
        "--diff",
        "--select",
        "--ignore",
        "--baseline",
        "--write-baseline",
    ),
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
            "--baseline",
            "output",
            "Leave out the findings that this file of --write-baseline has.",
            metavar="FILE",
            type=INPUT,
        ),
        GroupedOption(
            "--write-baseline",
            "output",
            "Write the findings to this file, and exit with status 0.",
            metavar="FILE",
            type=PathType("writes", replaceable_input="baseline"),
        ),
        GroupedOption(
            "--fix",
            "run",
            "Correct what is safe to correct: comments, trailing commas, an op type with one near name (with"
            " --ops-info), repeated names, flags without quotes.",
            is_flag=True,
        ),
        GroupedOption("--diff show_diff", "run", "Print what --fix would change, and change nothing.", is_flag=True),
        GroupedOption(
            "--statistics", "output", "Count the findings of each code instead of listing them.", is_flag=True
        ),
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
    the .json files directly in a folder that look like ops-info are one library. With --kind, a folder means all files
    with an ending of this kind (ops-info: one library). Exit status 1 if there is an error
    (with --strict: a finding; with --diff: a difference), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate lists/ --ops-info ascend910b --model model.onnx --fix
      mixlist validate lists/ --ignore ML1,ML402 --baseline lists/baseline.json
      mixlist validate --format sarif lists/*.json > findings.sarif
    """
    from mixlist.lists.finding_selection import read_baseline
    from mixlist.validation import make_validator

    _refuse_contradictions(paths, output_format, write_baseline, fix, show_diff)
    names = op_names or "auto"
    try:
        validator = make_validator(
            kind, strict=strict, ops_info=ops_info, model=model, op_names=names, select=select, ignore=ignore
        )
    except ListError as error:  # in the library of --ops-info
        error.diagnostics = _with_hints(error.diagnostics, _LIBRARY_HINTS)
        raise
    # Read before any work: the baseline, and the file that the new baseline replaces, of which some entries stay.
    known = None if baseline is None else read_baseline(baseline)
    replaced = None
    if write_baseline is not None and Path(write_baseline).is_file():
        replaced = read_baseline(write_baseline)
    run = _ValidateRun(validator, corrects=fix or show_diff, writes_files=not show_diff)
    for path in paths:
        run.check(path)
    if show_diff:
        return _write_diffs(run)
    if write_baseline is not None:
        known = _write_baseline(run, write_baseline, replaced, quiet=quiet)
    known_count = None
    if known is not None:
        run.reports, known_count = _comparison(run, known.path).without_known(known)
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


def _write_diffs(run: _ValidateRun) -> int:
    """Write the differences that --fix would make; return the exit status."""
    from mixlist.files.list_text import shown_path
    from mixlist.show.validate_document import unified_diff

    for file in run.corrected_files:
        sys.stdout.writelines(unified_diff(shown_path(file.path), file.before.decode(), file.after.decode()))
    return 2 if run.has_unusable_path else int(bool(run.corrected_files))


def _write(output_format: str, run: _ValidateRun, known_count: int | None, statistics: bool, quiet: bool) -> None:
    from mixlist.show import json_csv, terminal, validate_document

    if output_format == "json":
        result = validate_document.validation_json(run.reports, run.skipped, run.corrections, known_count)
        counts = {"statistics": validate_document.statistics_json(run.findings)} if statistics else {}
        json_csv.write_json(result | counts, sys.stdout)
    elif output_format == "sarif":
        json_csv.write_json(validate_document.sarif(run.findings), sys.stdout)
    elif output_format == "github":
        sys.stdout.writelines(validate_document.annotation(finding) + "\n" for finding in run.findings)
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


def _write_summary(run: _ValidateRun, known_count: int | None) -> None:
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


# --- check the paths, correct their files, and compare with a baseline ---


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

    @property
    def file_count(self) -> int:
        """Return the number of list files; a library counts as one."""
        return sum(report.kind != "baseline" for report in self.reports)

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


def _write_baseline(run: _ValidateRun, path: str, replaced: Baseline | None, *, quiet: bool) -> Baseline:
    """Write a new baseline with the findings of a run, and return it. Unless ``quiet``, standard error names the file.

    ``replaced``: the baseline that the file holds so far. Its entries that the run cannot judge stay.
    """
    from mixlist.lists.finding_selection import Baseline, write_baseline
    from mixlist.show.terminal import escape_commands

    counts = _comparison(run, path).merged_with(replaced)
    write_baseline(path, counts)
    if not quiet:
        sys.stderr.write(f"wrote {escape_commands(path)}: {pluralize(sum(counts.values()), 'finding')}\n")
    return Baseline(path, counts, {})


def _comparison(run: _ValidateRun, path: str) -> BaselineRun:
    from mixlist.lists.finding_selection import BaselineRun

    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100 - resolve() would follow a link to the baseline
    validator = run.validator
    return BaselineRun(run.reports, folder, validator.selection, validator.library_paths, validator.has_model)


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
