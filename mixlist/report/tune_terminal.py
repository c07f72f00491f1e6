"""A search for people at a terminal: the verdict, the edits and what each is for, what stays low, the checks, time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

from mixlist.report import check_view as words
from mixlist.report.number_text import cosine, figure, pluralize, share
from mixlist.report.terminal import MOST, clean, heading, paint, table, verdict_color, write_seconds, write_verdict

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.tuner.result import TunedEdit, TunedList, TuneReport
    from mixlist.tuner.trials import Trial

COLUMNS = ("edit", "from", "to", "nodes", "matrix work", "why", "without it")


def write_tune(report: TuneReport, stream: TextIO) -> None:
    """Write the whole report, the recommended result first. Warnings are not part of it: they go to stderr."""
    other = report.alternative
    lines = report.reasons if other is None else (*report.reasons, _comparison(report, other))
    write_verdict(report.verdict, _headline(report), lines, stream)
    if other is not None and other.recommended:
        _write_alternative(report, other, stream)
    _write_edits("Edits" if other is None else "Lists alone", report, stream)
    _write_share(report.low_share.get("tuned"), report, stream)
    if other is not None and not other.recommended:
        _write_alternative(report, other, stream)
    first = "Final check" if "final check" in report.seconds else "The lists as they were"
    for title, held in ((first, report.check), (_validation_title(report), report.validation)):
        if held is not None:
            _write_check(title, held, stream)
            if report.verdict != "inconclusive":  # no list changes how much can be compared
                _write_worst_nodes(held, stream)
    _write_search(report, stream)


def trial_line(number: int, trial: Trial) -> str:
    """One line of ``--trace``: ``3 fail  [Exp: white to black]  overflow at /a/Mul``."""
    tried = ", ".join(map(clean, trial.edits)) or "no edit"
    verdict = "pass" if trial.outcome.passed else "fail"
    told = f"  {clean(trial.outcome.why)}" if trial.outcome.why else ""
    return f"{number:>4} {verdict}  [{tried}]{told}{'  (from the state)' * trial.remembered}"


def _headline(report: TuneReport) -> str:
    if not report.modify_mixlist and report.verdict == "inconclusive":
        return f"{report.model}: too little can be compared to find a list"
    if not report.modify_mixlist:
        return f"{report.model}: no list was found"
    if not report.edits:
        return f"{report.model} needs no edit"
    return f"{report.model} with {pluralize(len(report.edits), 'edit')}"


def _comparison(report: TuneReport, other: TunedList) -> str:
    """Return what the other result gains, and whether it is recommended."""
    kept, kept_by_rules = share(report.low_share.get("tuned")), share(other.low_share)
    advice = "recommended" if other.recommended else "not recommended, since it does not pass the validation"
    return (
        f"lists alone keep {kept} of the matrix and convolution work in low precision,"
        f" rules of single nodes {kept_by_rules} ({advice})"
    )


def _write_alternative(report: TuneReport, other: TunedList, stream: TextIO) -> None:
    """Write the result with node rules, and the command that writes its files."""
    title = "with rules of single nodes"
    _write_edits(f"Recommended: {title}" if other.recommended else title.capitalize(), other, stream)
    _write_share(other.low_share, report, stream)
    for title, held in (("final check", other.check), ("validation", other.validation)):
        if held is not None:
            verdict = paint(held.verdict, verdict_color(held.verdict), stream)
            stream.write(f"  {title}: {verdict}, {_conditions(held)}\n")
    if report.next_command:
        stream.write(f"  to write it: {clean(report.next_command)}\n")


def _write_edits(title: str, report: TuneReport | TunedList, stream: TextIO) -> None:
    if not report.edits:
        return
    heading(title, stream)
    table(COLUMNS, [_row(edit) for edit in report.edits], stream)
    if report.minimal:
        stream.write("  Each was left out once; the last column is what broke then.\n")
    else:
        stream.write("  Some of them may not be needed: the search did not come to its end.\n")


def _row(edit: TunedEdit) -> tuple[str, ...]:
    what = f"{edit.node} ({edit.op})" if edit.node else edit.op
    return what, edit.before, edit.after, str(edit.nodes), _work(edit.cost), edit.why or "-", edit.without or "-"


def _work(cost: float | None) -> str:
    """The matrix work that an edit moves: ``-12 %`` leaves low precision, ``+3 %`` comes to it."""
    if cost is None:
        return "-"
    return share(0.0) if cost == 0 else f"{'-' if cost > 0 else '+'}{share(abs(cost))}"


def _write_share(after: float | None, report: TuneReport, stream: TextIO) -> None:
    before = report.low_share.get("base")
    if before is None or not report.modify_mixlist:
        return
    stream.write(
        f"\nMatrix products and convolutions in low precision: {share(before)} of the work before,"
        f" {share(after)} after\n"
    )
    if not after:
        warning = paint("none of that work stays in low precision", "yellow", stream)
        stream.write(f"  {warning}: the list is safe, but brings little\n")


def _write_check(title: str, held: CheckReport, stream: TextIO) -> None:
    heading(title, stream)
    verdict = paint(held.verdict, verdict_color(held.verdict), stream)
    stream.write(f"  {verdict}: {_conditions(held)}\n")
    if held.outputs:
        stream.write(f"  {_worst_output(max(held.outputs, key=_badness))}\n")
    if held.task is not None:
        before, after = share(held.task.reference), share(held.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(held.task.count, 'label')}\n")
    for found in words.first_offenders(held)[:MOST]:
        stream.write(f"  {found.kind} at {clean(str(found.ref))}, batches {words.in_batches(found, held)}\n")
        if found.low_source is not None:
            stream.write(f"    it computes with values of {clean(str(found.low_source.ref))}\n")
        if found.suggestion:
            stream.write(f"    to keep it high: {clean(found.suggestion)}\n")


def _write_worst_nodes(held: CheckReport, stream: TextIO) -> None:
    for error in words.worst_nodes(held):
        added = f"adds an error of {figure(error.normalized_error, 2)}"
        stream.write(f"  {clean(str(error.ref))} {added}; to keep it high: {clean(error.suggestion or '-')}\n")


def _validation_title(report: TuneReport) -> str:
    if not report.held_out:
        return "Validation"
    return f"Validation on {pluralize(len(report.held_out), 'batch')} that the search did not see"


def _conditions(held: CheckReport) -> str:
    return f"{words.conditions(held)}, {words.exceptions(held)}"


def _worst_output(output: OutputFinding) -> str:
    if output.normalized_error is None:
        return f"no value was compared of output {clean(output.name)}"
    error = f"normalized error {figure(output.normalized_error, 2)}, cosine {cosine(output.cosine)}"
    other = f"; {share(output.mismatches)} of it differs" if output.mismatches is not None else ""
    return f"worst output: {clean(output.name)}, {error}{other}"


def _badness(output: OutputFinding) -> tuple[bool, float]:
    """Outputs that miss a limit first, then those that are farthest off."""
    error = output.normalized_error
    if error is None:
        return not output.passed, 0.0
    return not output.passed, math.inf if math.isnan(error) else error


def _write_search(report: TuneReport, stream: TextIO) -> None:
    heading("Search", stream)
    known = f", {report.remembered} more known from the state" if report.remembered else ""
    stream.write(f"  {report.objective}: {pluralize(report.trials, 'trial')}{known}\n")
    write_seconds(report.seconds, stream)
