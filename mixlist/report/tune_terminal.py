"""Write a search as text: the verdict, the edits with their purpose, the work in low precision, checks and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from mixlist.report import check_texts, tune_texts
from mixlist.report.number_text import format_number, format_share, pluralize
from mixlist.report.terminal import (
    MAX_ROWS,
    escape_commands,
    paint,
    verdict_color,
    write_heading,
    write_seconds,
    write_table,
    write_verdict,
)

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.tuner.result import TunedList, TuneReport
    from mixlist.tuner.trials import Trial


def write_tune(report: TuneReport, stream: TextIO) -> None:
    """Write the report, the recommended result first. Its warnings are not in this text, because they go to stderr."""
    alternative = report.alternative
    lines = tune_texts.reasons(report)
    write_verdict(report.verdict, tune_texts.headline(report), lines, stream)
    # The recommended result comes first.
    if alternative is not None and alternative.recommended:
        _write_alternative(report, alternative, stream)
    _write_edits("Edits" if alternative is None else "Lists alone", report, stream)
    _write_low_share(report.low_share.get("tuned"), report, stream)
    if alternative is not None and not alternative.recommended:
        _write_alternative(report, alternative, stream)
    for title, check in tune_texts.check_titles(report):
        _write_check(title, check, stream)
        if report.verdict != "inconclusive":  # no list changes how much can be compared
            _write_worst_nodes(check, stream)
    _write_search(report, stream)


def trial_line(number: int, trial: Trial) -> str:
    """Return a line of ``--trace``: ``3 fail  [Exp: white to black]  overflow at /a/Mul``."""
    tried = ", ".join(map(escape_commands, trial.edits)) or "no edit"
    verdict = "pass" if trial.outcome.passed else "fail"
    reason = f"  {escape_commands(trial.outcome.why)}" if trial.outcome.why else ""
    return f"{number:>4} {verdict}  [{tried}]{reason}{'  (from the state)' * trial.remembered}"


def _write_alternative(report: TuneReport, alternative: TunedList, stream: TextIO) -> None:
    """Write the result with node rules, and the command that writes its files."""
    title = "with rules of single nodes"
    _write_edits(f"Recommended: {title}" if alternative.recommended else title.capitalize(), alternative, stream)
    _write_low_share(alternative.low_share, report, stream)
    for title, check in (("final check", alternative.check), ("validation", alternative.validation)):
        if check is not None:
            verdict = paint(check.verdict, verdict_color(check.verdict), stream)
            stream.write(f"  {title}: {verdict}, {tune_texts.check_conditions(check)}\n")
    if report.next_command:
        stream.write(f"  to write this result: {escape_commands(report.next_command)}\n")


def _write_edits(title: str, report: TuneReport | TunedList, stream: TextIO) -> None:
    if not report.edits:
        return
    write_heading(title, stream)
    write_table(tune_texts.EDIT_COLUMNS, tune_texts.edit_rows(report), stream)
    stream.write(f"  {tune_texts.describe_need(report)}\n")


def _write_low_share(after: float | None, report: TuneReport, stream: TextIO) -> None:
    before = report.low_share.get("base")
    if before is None or not report.modify_mixlist:
        return
    stream.write(
        f"\nMatrix products and convolutions in low precision: {format_share(before)} of the work before,"
        f" {format_share(after)} after\n"
    )
    if not after:
        warning = paint("none of that work stays in low precision", "yellow", stream)
        stream.write(f"  {warning}: the list is safe, but gains little\n")
        if report.alternative is None and report.next_command:
            stream.write(f"  to keep the most of it: {escape_commands(report.next_command)}\n")


def _write_check(title: str, check: CheckReport, stream: TextIO) -> None:
    write_heading(title, stream)
    verdict = paint(check.verdict, verdict_color(check.verdict), stream)
    stream.write(f"  {verdict}: {tune_texts.check_conditions(check)}\n")
    # Of the outputs only the worst one, because ``mixlist check`` with the result shows all of them.
    if check.outputs:
        stream.write(f"  {escape_commands(tune_texts.describe_worst_output(check))}\n")
    if check.task is not None:
        before, after = format_share(check.task.reference), format_share(check.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(check.task.count, 'label')}\n")
    for finding in check_texts.first_offenders(check)[:MAX_ROWS]:
        node, batches = escape_commands(str(finding.ref)), check_texts.format_batches(finding, check)
        stream.write(f"  {finding.kind} at {node}, batches {batches}\n")
        if finding.low_source is not None:
            stream.write(f"    the node reads values of {escape_commands(str(finding.low_source.ref))}\n")
        if finding.suggestion:
            stream.write(f"    to keep it high: {escape_commands(finding.suggestion)}\n")


def _write_worst_nodes(check: CheckReport, stream: TextIO) -> None:
    for error in check_texts.worst_nodes(check):
        added = f"adds an error of {format_number(error.normalized_error, 2)}"
        remedy = escape_commands(error.suggestion or "-")
        stream.write(f"  {escape_commands(str(error.ref))} {added}; to keep it high: {remedy}\n")


def _write_search(report: TuneReport, stream: TextIO) -> None:
    write_heading("Search", stream)
    stream.write(f"  {tune_texts.describe_search(report)}\n")
    write_seconds(report.seconds, stream)
