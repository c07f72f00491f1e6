"""The texts and figures that the terminal report and the HTML report of a search share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mixlist.report import check_texts
from mixlist.report.number_text import format_cosine, format_number, format_share, pluralize

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.tuner.result import TunedEdit, TunedList, TuneReport

EDIT_COLUMNS = ("edit", "from", "to", "nodes", "matrix work", "why", "without it")


def headline(report: TuneReport) -> str:
    """Return the model, and the number of edits or the reason why there is no list."""
    if not report.modify_mixlist and report.verdict == "inconclusive":
        return f"{report.model}: too little can be compared to find a list"
    if not report.modify_mixlist:
        return f"{report.model}: no list was found"
    if not report.edits:
        # A list without edits can still fail on the data that validates it.
        on_search_data = " on the data of the search" if report.verdict != "pass" else ""
        return f"{report.model} needs no edit{on_search_data}"
    return f"{report.model} with {pluralize(len(report.edits), 'edit')}"


def reasons(report: TuneReport) -> tuple[str, ...]:
    """Return the reasons of the verdict, what helps if held-out batches fail, and the gain of an alternative result."""
    lines = [*report.reasons]
    if report.held_out and report.complete and report.verdict == "fail":
        lines.append("the search did not use these batches: give more data, or search on all of it with --no-holdout")
    if report.alternative is not None:
        lines.append(_compare_results(report, report.alternative))
    return tuple(lines)


def keeps_no_work(report: TuneReport) -> bool:
    """Return whether the list takes all matrix and convolution work out of low precision."""
    return bool(report.modify_mixlist and report.low_share.get("base") and not report.low_share.get("tuned"))


def _compare_results(report: TuneReport, alternative: TunedList) -> str:
    """Return the gain of the alternative result, and whether it is recommended."""
    by_lists, by_rules = format_share(report.low_share.get("tuned")), format_share(alternative.low_share)
    advice = "recommended" if alternative.recommended else "not recommended, because it does not pass the validation"
    return (
        f"lists alone keep {by_lists} of the matrix and convolution work in low precision,"
        f" rules of single nodes keep {by_rules} ({advice})"
    )


def edit_rows(result: TuneReport | TunedList) -> list[tuple[str, ...]]:
    """Return the table of edits under ``EDIT_COLUMNS``."""
    return [_edit_row(edit) for edit in result.edits]


def _edit_row(edit: TunedEdit) -> tuple[str, ...]:
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


def _validation_title(report: TuneReport) -> str:
    if not report.held_out:
        return "Validation"
    return f"Validation on {pluralize(len(report.held_out), 'batch')} that the search did not use"


def check_titles(report: TuneReport) -> list[tuple[str, CheckReport]]:
    """Return the checks of the report with their titles."""
    # Without a final check, ``report.check`` is the check of the lists before any edit.
    first_title = "Final check" if "final check" in report.seconds else "The lists without edits"
    checks = ((first_title, report.check), (_validation_title(report), report.validation))
    return [(title, check) for title, check in checks if check is not None]


def check_conditions(check: CheckReport) -> str:
    """Return the conditions of a check and its exception rate."""
    return f"{check_texts.conditions(check)}, {check_texts.describe_exceptions(check)}"


def describe_worst_output(check: CheckReport) -> str:
    """Return the name and the errors of the output that is furthest from its limits."""
    output = max(check.outputs, key=_error_rank)
    if output.normalized_error is None:
        return f"no value was compared of output {output.name}"
    error = f"normalized error {format_number(output.normalized_error, 2)}, cosine {format_cosine(output.cosine)}"
    differing = f"; {format_share(output.mismatches)} of its values differ" if output.mismatches is not None else ""
    return f"worst output: {output.name}, {error}{differing}"


def _error_rank(output: OutputFinding) -> tuple[bool, float]:
    """Return a key that is largest for outputs that miss a limit, then for those with the largest error."""
    error = output.normalized_error
    if error is None:
        return not output.passed, 0.0
    # NaN compares as false with every number, so it would make max() depend on the order.
    return not output.passed, math.inf if math.isnan(error) else error


def describe_need(result: TuneReport | TunedList) -> str:
    """Say whether every edit is needed, and which nodes the table counts."""
    need = "Some edits may not be needed: the search did not end."
    if result.minimal:
        need = "Each edit is needed: the last column shows the failure without it."
    if any(edit.nodes > 1 for edit in result.edits):
        need += ' "nodes" counts the gray nodes that follow too.'
    return need


def describe_search(report: TuneReport) -> str:
    """Return the objective and the number of trials."""
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    return f"{report.objective}: {pluralize(report.trials, 'trial')}{remembered}"
