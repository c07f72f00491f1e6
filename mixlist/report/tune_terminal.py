"""A search for people at a terminal: the verdict, the edits and what each is for, what stays low, the checks, time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

from mixlist.report import check_view as words
from mixlist.report.number_text import cosine, figure, pluralize, share
from mixlist.report.terminal import MOST, clean, heading, paint, table, verdict_color, write_seconds, write_verdict

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.tuner.result import TunedEdit, TuneReport
    from mixlist.tuner.trials import Trial

COLUMNS = ("edit", "from", "to", "nodes", "matrix work", "why", "without it")


def write_tune(report: TuneReport, stream: TextIO) -> None:
    """Write the whole report. Warnings are not part of it: they go to stderr."""
    write_verdict(report.verdict, _headline(report), report.reasons, stream)
    _write_edits(report, stream)
    _write_share(report, stream)
    first = "Final check" if "final check" in report.seconds else "The lists as they were"
    for title, held in ((first, report.check), (_validation_title(report), report.validation)):
        if held is not None:
            _write_check(title, held, stream)
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


def _write_edits(report: TuneReport, stream: TextIO) -> None:
    if not report.edits:
        return
    heading("Edits", stream)
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


def _write_share(report: TuneReport, stream: TextIO) -> None:
    before, after = report.low_share.get("base"), report.low_share.get("tuned")
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
    stream.write(f"  {verdict}: {words.conditions(held)}, {words.exceptions(held)}\n")
    if held.outputs:
        worst = max(held.outputs, key=_badness)
        other = f"; {share(worst.mismatches)} of it differs" if worst.mismatches is not None else ""
        stream.write(
            f"  worst output: {clean(worst.name)}, normalized error {figure(worst.normalized_error, 2)},"
            f" cosine {cosine(worst.cosine)}{other}\n"
        )
    if held.task is not None:
        before, after = share(held.task.reference), share(held.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(held.task.count, 'label')}\n")
    for found in words.first_offenders(held)[:MOST]:
        stream.write(f"  {found.kind} at {clean(str(found.ref))}, batches {words.in_batches(found, held)}\n")


def _validation_title(report: TuneReport) -> str:
    if not report.held_out:
        return "Validation"
    return f"Validation on {pluralize(len(report.held_out), 'batch')} that the search did not see"


def _badness(output: OutputFinding) -> tuple[bool, float]:
    """Outputs that miss a limit first, then those that are farthest off."""
    error = output.normalized_error
    return not output.passed, math.inf if math.isnan(error) else error


def _write_search(report: TuneReport, stream: TextIO) -> None:
    heading("Search", stream)
    known = f", {report.remembered} more known from the state" if report.remembered else ""
    stream.write(f"  {report.objective}: {pluralize(report.trials, 'trial')}{known}\n")
    write_seconds(report.seconds, stream)
