"""Write a search as text: the verdict, the edits with their purpose, the work in low precision, checks and times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

from mixlist.report import check_texts
from mixlist.report.number_text import format_cosine, format_number, format_share, pluralize
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
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.tuner.result import TunedEdit, TunedList, TuneReport
    from mixlist.tuner.trials import Trial

COLUMNS = ("edit", "from", "to", "nodes", "matrix work", "why", "without it")


def write_tune(report: TuneReport, stream: TextIO) -> None:
    """Write the report, the recommended result first. Its warnings are not in this text, because they go to stderr."""
    alternative = report.alternative
    lines = report.reasons if alternative is None else (*report.reasons, _compare_results(report, alternative))
    write_verdict(report.verdict, _headline(report), lines, stream)
    # The recommended result comes first.
    if alternative is not None and alternative.recommended:
        _write_alternative(report, alternative, stream)
    _write_edits("Edits" if alternative is None else "Lists alone", report, stream)
    _write_low_share(report.low_share.get("tuned"), report, stream)
    if alternative is not None and not alternative.recommended:
        _write_alternative(report, alternative, stream)
    # Without a final check, ``report.check`` is the check of the lists before any edit.
    first_title = "Final check" if "final check" in report.seconds else "The lists without edits"
    for title, check in ((first_title, report.check), (_validation_title(report), report.validation)):
        if check is not None:
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


def _headline(report: TuneReport) -> str:
    if not report.modify_mixlist and report.verdict == "inconclusive":
        return f"{report.model}: too little can be compared to find a list"
    if not report.modify_mixlist:
        return f"{report.model}: no list was found"
    if not report.edits:
        return f"{report.model} needs no edit"
    return f"{report.model} with {pluralize(len(report.edits), 'edit')}"


def _compare_results(report: TuneReport, alternative: TunedList) -> str:
    """Return the gain of the alternative result, and whether it is recommended."""
    by_lists, by_rules = format_share(report.low_share.get("tuned")), format_share(alternative.low_share)
    advice = "recommended" if alternative.recommended else "not recommended, because it does not pass the validation"
    return (
        f"lists alone keep {by_lists} of the matrix and convolution work in low precision,"
        f" rules of single nodes keep {by_rules} ({advice})"
    )


def _write_alternative(report: TuneReport, alternative: TunedList, stream: TextIO) -> None:
    """Write the result with node rules, and the command that writes its files."""
    title = "with rules of single nodes"
    _write_edits(f"Recommended: {title}" if alternative.recommended else title.capitalize(), alternative, stream)
    _write_low_share(alternative.low_share, report, stream)
    for title, check in (("final check", alternative.check), ("validation", alternative.validation)):
        if check is not None:
            verdict = paint(check.verdict, verdict_color(check.verdict), stream)
            stream.write(f"  {title}: {verdict}, {_conditions(check)}\n")
    if report.next_command:
        stream.write(f"  to write this result: {escape_commands(report.next_command)}\n")


def _write_edits(title: str, report: TuneReport | TunedList, stream: TextIO) -> None:
    if not report.edits:
        return
    write_heading(title, stream)
    write_table(COLUMNS, [_row(edit) for edit in report.edits], stream)
    if report.minimal:
        stream.write("  Each edit is needed: the last column shows the failure without it.\n")
    else:
        stream.write("  Some edits may not be needed: the search did not end.\n")


def _row(edit: TunedEdit) -> tuple[str, ...]:
    subject = f"{edit.node} ({edit.op})" if edit.node else edit.op
    return (
        subject,
        edit.before,
        edit.after,
        str(edit.nodes),
        _format_moved_work(edit.cost),
        edit.why or "-",
        edit.without or "-",
    )


def _format_moved_work(cost: float | None) -> str:
    """Return the matrix work that an edit moves: ``-12 %`` leaves low precision, ``+3 %`` enters low precision."""
    if cost is None:
        return "-"
    return format_share(0.0) if cost == 0 else f"{'-' if cost > 0 else '+'}{format_share(abs(cost))}"


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


def _write_check(title: str, check: CheckReport, stream: TextIO) -> None:
    write_heading(title, stream)
    verdict = paint(check.verdict, verdict_color(check.verdict), stream)
    stream.write(f"  {verdict}: {_conditions(check)}\n")
    # Of the outputs only the worst one, because ``mixlist check`` with the result shows all of them.
    if check.outputs:
        stream.write(f"  {_describe_worst_output(max(check.outputs, key=_error_rank))}\n")
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


def _validation_title(report: TuneReport) -> str:
    if not report.held_out:
        return "Validation"
    return f"Validation on {pluralize(len(report.held_out), 'batch')} that the search did not use"


def _conditions(check: CheckReport) -> str:
    return f"{check_texts.conditions(check)}, {check_texts.describe_exceptions(check)}"


def _describe_worst_output(output: OutputFinding) -> str:
    if output.normalized_error is None:
        return f"no value was compared of output {escape_commands(output.name)}"
    error = f"normalized error {format_number(output.normalized_error, 2)}, cosine {format_cosine(output.cosine)}"
    differing = f"; {format_share(output.mismatches)} of its values differ" if output.mismatches is not None else ""
    return f"worst output: {escape_commands(output.name)}, {error}{differing}"


def _error_rank(output: OutputFinding) -> tuple[bool, float]:
    """Return a key that is largest for outputs that miss a limit, then for those with the largest error."""
    error = output.normalized_error
    if error is None:
        return not output.passed, 0.0
    # NaN compares as false with every number, so it would make max() depend on the order.
    return not output.passed, math.inf if math.isnan(error) else error


def _write_search(report: TuneReport, stream: TextIO) -> None:
    write_heading("Search", stream)
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    stream.write(f"  {report.objective}: {pluralize(report.trials, 'trial')}{remembered}\n")
    write_seconds(report.seconds, stream)
