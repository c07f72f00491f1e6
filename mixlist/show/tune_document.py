"""The report of a search: verdict, edits, the files to use, work in low precision, the checks, and all trials."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mixlist.search.tune_result import NOT_NEEDED
from mixlist.show.check_document import (
    EMULATED,
    conditions,
    describe_exceptions,
    describe_task,
    first_offenders,
    judge_blocks,
    offender_facts,
    output_blocks,
    worst_nodes_facts,
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
from mixlist.show.number_text import format_cosine, format_number, format_share, pluralize
from mixlist.show.terminal import escape_commands

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport, OutputFinding
    from mixlist.search.trials import Trial
    from mixlist.search.tune_result import TunedEdit, TunedList, TuneReport

_MAX_NAMES = 5  # of batches in one line
_ABOUT = (
    "An edit moves an op type to another list, or is a rule for a single node. A trial runs the model with a set of"
    " edits on the data. “matrix work” is the share of the operations of matrix products and convolutions that an edit"
    " moves: -12 % leaves low precision, +3 % enters it. “without it” says what happened in the trial with all edits"
    " but this one."
)


def tune_document(report: TuneReport) -> Document:
    """Return the report of a search."""
    checks = _titled_checks(report)
    emulated = (EMULATED,) if checks and checks[0][1].mode == "emulated" else ()
    sections = (
        *_results(report),
        *(
            Section(f"check-{number}", title, _check_blocks(check, with_advice=report.verdict != "inconclusive"))
            for number, (title, check) in enumerate(checks, 1)
        ),
        _search(report),
        Section("about", "How to read this", (Text((_ABOUT, *emulated), on="page"),)),
    )
    word, level = report.verdict.upper(), VERDICT_LEVELS[report.verdict]
    if report.verdict == "pass" and report.keeps_nothing_low:
        word, level = "PASSES, BUT NOTHING IS LOW", "warning"
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
        on_search_data = " on the data of the search" if report.verdict != "pass" else ""
        return f"{report.model} needs no edit{on_search_data}"
    return f"{report.model} with {pluralize(len(report.edits), 'edit')}"


def _reasons(report: TuneReport) -> tuple[str, ...]:
    """Return the reasons of the verdict, what helps if held-out batches fail, and the gain of an alternative result."""
    lines = [*report.reasons]
    if report.joined:
        names = ", ".join(report.joined[:_MAX_NAMES])
        more = f" and {len(report.joined) - _MAX_NAMES} more" if len(report.joined) > _MAX_NAMES else ""
        lines.append(f"held-out batches that failed joined the search: {names}{more}")
    unseen = set(report.held_out) - set(report.joined)
    if unseen and report.complete and report.verdict == "fail":
        lines.append("the search did not use these batches: give more data, or search on all of it with --no-holdout")
    if report.alternative is not None:
        by_result, by_other = format_share(report.low_share.get("tuned")), format_share(report.alternative.low_share)
        shares, advice = f"rules of single nodes keep {by_result}", ""
        if report.has_node_rules:
            lists_share = by_other
        else:
            lists_share, shares = by_result, f"rules of single nodes keep {by_other}"
            advice = ", but do not pass the validation"
        lines.append(
            f"lists alone keep {lists_share} of the matrix and convolution work in low precision, {shares}{advice}"
        )
    return tuple(lines)


# --- edits ---


def _results(report: TuneReport) -> list[Section]:
    """Return the edits of the result, then those of the other result, if there is one."""
    alternative = report.alternative
    titles = ("With rules of single nodes", "Lists alone")
    title, other_title = titles if report.has_node_rules else titles[::-1]
    shares = _low_share(report, report.low_share.get("tuned"))
    if shares and not report.low_share.get("tuned"):
        shares = (*shares, Text(("none of that work stays in low precision: the list is safe, but gains little",)))
    explanation = "They replace the files of the same kind that were given to the search."
    sections = [
        Section("edits", "Edits" if alternative is None else title, _edit_blocks(report)),
        Section("work", "", shares),
        Section("files", "Files", _files(report) if report.modify_mixlist else (), explanation),
    ]
    if alternative is not None:
        other_title = f"Not written: {other_title[0].lower()}{other_title[1:]}"
        sections.append(Section("alternative", other_title, _alternative_blocks(report, alternative)))
    return sections


def _alternative_blocks(report: TuneReport, alternative: TunedList) -> tuple[Block, ...]:
    checks = {"final check": alternative.check, "validation": alternative.validation}
    lines = tuple(
        f"{name}: {check.verdict}, {_check_conditions(check)}" for name, check in checks.items() if check is not None
    )
    shares = _low_share(report, alternative.low_share)
    return (*_edit_blocks(alternative), *shares, Text(lines), *_files(alternative))


def _edit_blocks(result: TuneReport | TunedList) -> tuple[Block, ...]:
    if not result.edits:
        return ()
    titles = ("edit", "from", "to", "nodes", "matrix work", "why", "without it")
    columns = columns_of(*titles, names=[0], numbers=[3, 4])
    return (Table(columns, list(map(_edit_row, result.edits))), Text((_describe_need(result),)))


def _edit_row(edit: TunedEdit) -> tuple[str, ...]:
    subject = f"{edit.node} ({edit.op})" if edit.node else edit.op
    moved = _format_moved_work(edit.cost)
    return (subject, edit.before, edit.after, str(edit.nodes), moved, edit.why or "-", edit.without or "-")


def _format_moved_work(cost: float | None) -> str:
    """Return the matrix work that an edit moves: ``-12 %`` leaves low precision, ``+3 %`` enters low precision."""
    if cost is None:
        return "-"
    return format_share(0.0) if cost == 0 else f"{'-' if cost > 0 else '+'}{format_share(abs(cost))}"


def _describe_need(result: TuneReport | TunedList) -> str:
    """Say whether every edit is needed, and which nodes the table counts."""
    if any(edit.without == NOT_NEEDED for edit in result.edits):
        need = f'Any one edit with "{NOT_NEEDED}" can be left out.'
    elif not result.minimal:
        need = "Some edits may not be needed: the search did not end."
    elif any(edit.without.startswith(NOT_NEEDED) for edit in result.edits):
        need = 'Each edit is needed, for the limits or for the objective: see "without it".'
    else:
        need = 'Each edit is needed: "without it" shows the failure.'
    if any(edit.nodes > 1 for edit in result.edits):
        need += ' "nodes" counts the gray nodes that follow too.'
    return need


def _low_share(report: TuneReport, after: float | None) -> tuple[Block, ...]:
    """Return the share of the matrix work in low precision before and after; () if the model has no such work."""
    before = report.low_share.get("base")
    if before is None or not report.modify_mixlist:
        return ()
    shares = {"before the edits": before, "after": after or 0.0}
    title = "Matrix products and convolutions in low precision"
    line = f"{title}: {format_share(before)} of the work before, {format_share(after)} after"
    record = Record({name: format_share(share) for name, share in shares.items()})
    bars = Facts((record,), bars=tuple(round(100 * share, 1) for share in shares.values()), on="page", title=title)
    return (Text((line,), on="terminal"), bars)


def _files(result: TuneReport | TunedList) -> tuple[Block, ...]:
    """Return the texts of the files of a result, for a page."""
    files = {
        "modify_mixlist, for --mixlist": result.modify_mixlist,
        "Node rules, for --customize-dtypes": result.customize_dtypes,
    }
    return tuple(
        Text(tuple(text.splitlines()), is_file=True, on="page", title=title) for title, text in files.items() if text
    )


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
    lines = [f"{check.verdict}: {_check_conditions(check)}"]
    # Of the outputs only the worst one on a terminal, because ``mixlist check`` with the result shows all of them.
    worst = [_describe_worst_output(check)] if check.outputs else []
    outputs = output_blocks(check, "page") if check.outputs else ()
    worst_nodes = worst_nodes_facts(check, "Nodes that add the most error") if with_advice else None
    return (
        Text((*lines, *worst)),
        Text(describe_task(check), on="terminal"),
        *outputs,
        *judge_blocks(check, "Judge"),
        *((offender_facts(check, "First offenders"),) if first_offenders(check) else ()),
        *((Text(check.advice),) if with_advice and check.advice else ()),
        *((worst_nodes,) if worst_nodes is not None else ()),
    )


def _check_conditions(check: CheckReport) -> str:
    """Return the conditions of a check and its exception rate."""
    return f"{conditions(check)}, {describe_exceptions(check)}"


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
    """Return the objective, the number of trials, the times, and for a page every trial."""
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    line = f"{report.objective}: {pluralize(report.trials, 'trial')}{remembered}"
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


def keeps_no_work(report: TuneReport) -> bool:
    """Return whether the list takes all matrix and convolution work out of low precision."""
    return bool(report.modify_mixlist and report.low_share.get("base") and not report.low_share.get("tuned"))


def _next_steps(report: TuneReport) -> list[Step]:
    """Return what the reader should do next, which depends on the result."""
    if not report.complete:
        return [next_step(INTERRUPTED, report.next_command)]
    if report.verdict == "inconclusive":
        return [Step("Too little could be compared. Remove the cause that the reasons above name, and search again.")]
    if not report.modify_mixlist:
        limits = "Set limits that the model can keep: the check shows the nodes that break them."
        search = next_step("Search rules for single nodes, too", report.next_command)
        return [search, Step(limits)] if report.next_command else [Step(limits)]
    if report.verdict == "fail":
        return [
            Step(
                "The list keeps the limits on the data of the search, but not on the validation data. Search again"
                " with more data, and with data that is more like that of the validation."
            )
        ]
    if not keeps_no_work(report):
        return [next_step("Write the mixed model with the files of this result", report.next_command)]
    gain = "None of the matrix and convolution work stays in low precision, so the list gains little."
    if report.next_command.startswith("mixlist tune "):
        return [Step(f"{gain} This command keeps the most of it:", report.next_command)]
    return [Step(gain), next_step("Write the mixed model with the files of this result", report.next_command)]
