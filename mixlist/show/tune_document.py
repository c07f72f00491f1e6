"""The report of a search: verdict, edits, the files to use, work in low precision, the checks, and all trials."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mixlist.number_text import format_cosine, format_number, format_share, pluralize
from mixlist.option_spelling import spell
from mixlist.search.search_result import NOT_NEEDED
from mixlist.show.check_document import (
    EMULATED,
    PASS_WITHOUT_LOW,
    conditions,
    describe_exceptions,
    first_offenders,
    inconclusive_step,
    judge_blocks,
    offender_facts,
    output_blocks,
    worst_nodes_facts,
    written_files,
)
from mixlist.show.document import (
    INTERRUPTED,
    VERDICT_LEVELS,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Mark,
    Record,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    columns_of,
    next_step,
    times,
)
from mixlist.show.terminal import escape_commands

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.search.trials import Trial
    from mixlist.search.tune_result import TunedEdit, TuneReport

_PASS_WITHOUT_MATRIX_WORK = "PASS, BUT HARDLY ANY MATRIX WORK IS LOW"
_MAX_NAMES = 5  # of batches in one line
_ABOUT = (
    "An edit moves an op type to the black list, so that all its nodes compute in float32. A trial runs the model with"
    " a set of edits on the data. “matrix work” is the share of the operations of matrix products and convolutions that"
    " leaves low precision by the edit. “without it” says what happened in the trial with all edits but this one."
)


def tune_document(report: TuneReport) -> Document:
    """Return the report of a search."""
    checks = _titled_checks(report)
    emulated = (EMULATED,) if checks and checks[0][1].mode == "emulated" else ()
    sections = (
        Section("edits", "Edits", _edit_blocks(report)),
        Section("work", "", _low_share(report)),
        Section("files", "File", _file(report), "It replaces a modify_mixlist that was given to the search."),
        *(
            Section(f"check-{number}", title, _check_blocks(check, with_advice=report.verdict != "inconclusive"))
            for number, (title, check) in enumerate(checks, 1)
        ),
        _search(report),
        Section("about", "How to read this", (Text((_ABOUT, *emulated), on="page"),)),
    )
    word, level = report.verdict.upper(), VERDICT_LEVELS[report.verdict]
    if report.keeps_nothing_low:
        word = _PASS_WITHOUT_MATRIX_WORK if report.loses_matrix_work else PASS_WITHOUT_LOW
    return Document(
        "tune",
        sections,
        verdict=Verdict(word, level, report.model, _headline(report), _reasons(report)),
        steps=tuple(_next_steps(report)),
        warnings=report.warnings,
    )


def trial_line(number: int, trial: Trial) -> str:
    """Return a line of ``--trace``: ``3 fail  [Exp: white to black]  overflow at /a/Mul``."""
    tried = ", ".join(trial.edits) or "no edit"
    verdict = "pass" if trial.outcome.passed else "fail"
    reason = f"  {trial.outcome.why}" if trial.outcome.why else ""
    remembered = "  (from the state)" * trial.remembered
    return f"{number:>4} {verdict}  {escape_commands(f'[{tried}]{reason}')}{remembered}"


def _headline(report: TuneReport) -> str:
    """Return the model, and the number of edits or the reason why there is no list."""
    if not report.modify_mixlist and report.verdict == "inconclusive":
        return f"{report.model}: too little can be compared to find a list"
    if not report.modify_mixlist:
        return f"{report.model}: no list was found"
    if not report.edits:
        # A list without edits can still fail on the data that validates it.
        on_search_data = "" if report.verdict == "pass" or report.keeps_nothing_low else " on the data of the search"
        return f"{report.model} needs no edit{on_search_data}"
    return f"{report.model} with {pluralize(len(report.edits), 'edit')}"


def _reasons(report: TuneReport) -> tuple[str, ...]:
    """Return the reasons of the verdict, and what helps if held-out batches fail."""
    lines = [*report.reasons]
    if report.joined:
        names = ", ".join(report.joined[:_MAX_NAMES])
        more = f" and {len(report.joined) - _MAX_NAMES} more" if len(report.joined) > _MAX_NAMES else ""
        lines.append(f"held-out batches that failed joined the search: {names}{more}")
    unseen = set(report.held_out) - set(report.joined)
    if unseen and report.complete and report.verdict == "fail":
        all_data = spell("holdout", False)
        lines.append(f"the search did not use these batches: give more data, or search on all of it with {all_data}")
    return tuple(lines)


# --- edits ---


def _edit_blocks(report: TuneReport) -> tuple[Block, ...]:
    if not report.edits:
        return ()
    titles = ("op type", "from", "to", "nodes", "matrix work", "why", "without it")
    columns = columns_of(*titles, names=[0], numbers=[3, 4])
    return (Table(columns, list(map(_edit_row, report.edits))), Text((_describe_need(report),)))


def _edit_row(edit: TunedEdit) -> tuple[str, ...]:
    lost_work = "-" if edit.cost is None else f"{'-' if edit.cost else ''}{format_share(edit.cost)}"
    return (edit.op, edit.before, "black", str(edit.nodes), lost_work, edit.why or "-", edit.without or "-")


def _describe_need(report: TuneReport) -> str:
    """Say whether every edit is needed, and which nodes the table counts."""
    if any(edit.without == NOT_NEEDED for edit in report.edits):
        need = f'Any one edit with "{NOT_NEEDED}" can be left out.'
    elif not report.minimal:
        need = "Some edits may not be needed: the search did not end."
    else:
        need = 'Each edit is needed: "without it" shows the failure.'
    if any(edit.nodes > 1 for edit in report.edits):
        need += ' "nodes" counts the gray nodes that follow too.'
    return need


def _low_share(report: TuneReport) -> tuple[Block, ...]:
    """Return the share of the matrix work in low precision before and after; () if the model has no such work."""
    before, after = report.low_share["base"], report.low_share["tuned"]
    if before is None or not report.modify_mixlist:
        return ()
    shares = {"before the edits": before, "after": after or 0.0}
    title = "Matrix products and convolutions in low precision"
    line = f"{title}: {format_share(before)} of the work before, {format_share(after)} after"
    record = Record({name: format_share(share) for name, share in shares.items()})
    bars = Facts((record,), bars=tuple(round(100 * share, 1) for share in shares.values()), on="page", title=title)
    return (Text((line,), on="terminal"), bars)


def _file(report: TuneReport) -> tuple[Block, ...]:
    """Return the text of the file, for a page."""
    if not report.modify_mixlist:
        return ()
    lines = tuple(report.modify_mixlist.splitlines())
    return (Text(lines, is_file=True, on="page", title="modify_mixlist"),)


# --- checks and trials ---


def _titled_checks(report: TuneReport) -> list[tuple[str, CheckReport]]:
    """Return the checks of the report with their titles."""
    # Without a final check, ``report.check`` is the check of the lists before any edit.
    first_title = "Final check" if "final check" in report.seconds else "The lists without edits"
    validation_title = "Validation"
    if report.held_out:
        validation_title = f"Validation on {pluralize(len(report.held_out), 'batch')} that the search did not use"
    checks = ((first_title, report.check), (validation_title, report.validation))
    return [(title, check) for title, check in checks if check is not None]


def _check_blocks(check: CheckReport, *, with_advice: bool) -> tuple[Block, ...]:
    """Return a check: its verdict, its outputs, where overflow starts, and the nodes that add the most error.

    ``with_advice``: False if no list changes how much can be compared, so that an edit of a node does not help.
    """
    lines = [f"{check.verdict}: {conditions(check)}, {describe_exceptions(check)}"]
    # Of the outputs only the worst one on a terminal, because ``mixlist check`` with the result shows all of them.
    worst = [_describe_worst_output(check)] if check.outputs else []
    outputs = output_blocks(check, "page") if check.outputs else ()
    worst_nodes = worst_nodes_facts(check, "Nodes that add the most error") if with_advice else None
    return (
        Text((*lines, *worst)),
        *outputs,
        *judge_blocks(check, "Judge"),
        *((offender_facts(check, "First offenders"),) if first_offenders(check) else ()),
        *((Text(check.advice),) if with_advice and check.advice else ()),
        *((worst_nodes,) if worst_nodes is not None else ()),
    )


def _describe_worst_output(check: CheckReport) -> str:
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


def _search(report: TuneReport) -> Section:
    """Return the number of trials, the times, and for a page every trial."""
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    line = f"{pluralize(report.trials, 'trial')}{remembered}"
    columns = (*columns_of("trial"), Column("outcome", "verdict"), *columns_of("edits", "why"))
    trials = Table(columns, [_trial_row(number, trial) for number, trial in enumerate(report.log, 1)], on="page")
    return Section("search", "Search", (Text((line,)), times(report.seconds), trials))


def _trial_row(number: int, trial: dict[str, object]) -> tuple[Cell, ...]:
    """Return the cells of one entry of the log: its number, the outcome, the edits, and the reason of a failure."""
    edits = trial["edits"]
    assert isinstance(edits, list)
    outcome = "pass" if trial["passed"] else "fail"
    remembered = " (from the state)" if trial["remembered"] else ""
    verdict = Mark(outcome + remembered, VERDICT_LEVELS[outcome])
    return str(number), verdict, ", ".join(edits) or "no edit", str(trial["why"])


# --- next steps ---


def _next_steps(report: TuneReport) -> list[Step]:
    """Return what the reader should do next, which depends on the result."""
    if not report.complete:
        return [next_step(INTERRUPTED, report.next_command)]
    if report.verdict == "inconclusive" and not report.keeps_nothing_low:
        return [inconclusive_step(report.reasons, "search")]
    if report.keeps_too_little_low:
        return [next_step("Let convert choose the single nodes that stay in float32", report.next_command)]
    if report.verdict == "fail":
        return [
            Step(
                "The list keeps the limits on the data of the search, but not on the validation data. Search again"
                " with more data, and with data that is more like that of the validation."
            )
        ]
    written = written_files(report.next_command)
    return [next_step(f"Write {written} with the file of this result", report.next_command)]
