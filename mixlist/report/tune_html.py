"""Render a search as an HTML page: verdict, next step, edits, the files to use, the checks, and all trials."""

from __future__ import annotations

from mixlist.report import check_texts, tune_texts
from mixlist.report.check_html import node_error_rows
from mixlist.report.html_page import VERDICT_BADGES, Bar, PageHead, Step, bars, model_argument, render_page
from mixlist.report.number_text import format_share
from mixlist.tuner.result import TunedList, TuneReport

# The number of trials in the folded table.
_MAX_TRIALS = 500


def render(report: TuneReport) -> str:
    """Return the page. The template calls ``tune_texts`` and ``check_texts`` for its texts."""
    head = PageHead("tune", VERDICT_BADGES[report.verdict], report.model, tune_texts.reasons(report), report.warnings)
    values = {
        "report": report,
        "check_texts": check_texts,
        "tune_texts": tune_texts,
        "steps": _next_steps(report),
        "results": _results(report),
        "low_share_bars": _low_share_bars,
        "error_rows": {
            # No list changes how much can be compared, so an inconclusive result has no advice.
            title: node_error_rows(check_texts.worst_nodes(check)) if report.verdict != "inconclusive" else []
            for title, check in tune_texts.check_titles(report)
        },
        "trials": [_trial_row(number, trial) for number, trial in enumerate(report.log[:_MAX_TRIALS], 1)],
        "time_bars": bars(report.seconds, "{:.2f} s"),
    }
    return render_page("tune.html", head, values)


def _results(report: TuneReport) -> list[tuple[str, TuneReport | TunedList, float | None]]:
    """Return the results that have edits: the title, the result, its low share. The recommended result comes first."""
    alternative, low_share = report.alternative, report.low_share.get("tuned")
    if alternative is None:
        return [("Edits", report, low_share)] if report.edits else []
    lists_alone = ("Lists alone", report, low_share)
    title = "Recommended: with rules of single nodes" if alternative.recommended else "With rules of single nodes"
    with_rules = (title, alternative, alternative.low_share)
    return [with_rules, lists_alone] if alternative.recommended else [lists_alone, with_rules]


def _low_share_bars(report: TuneReport, after: float | None) -> list[Bar]:
    """Return the shares of the matrix work in low precision before and after; [] if the model has no such work."""
    before = report.low_share.get("base")
    if before is None:
        return []
    shares = {"before the edits": before, "after": after or 0.0}
    return [Bar(title, format_share(share), round(100 * share, 1)) for title, share in shares.items()]


def _trial_row(number: int, trial: dict[str, object]) -> tuple[str, ...]:
    """Return the cells of one entry of the log: its number, the outcome, the edits, and the reason of a failure."""
    edits = trial["edits"]
    assert isinstance(edits, list)
    outcome = "pass" if trial["passed"] else "fail"
    remembered = " (from the state)" if trial["remembered"] else ""
    return str(number), outcome + remembered, ", ".join(edits) or "no edit", str(trial["why"])


def _next_steps(report: TuneReport) -> list[Step]:
    """Return what the reader should do next, which depends on the result."""
    if not report.complete:
        return [Step("The search was interrupted. Run the command again with --state FILE to keep what it learns.")]
    if report.verdict == "inconclusive":
        return [Step("Too little could be compared. Remove the cause that the reasons above name, and search again.")]
    if not report.modify_mixlist:
        return [
            Step(
                "Look at the nodes below that break the limits. Search rules for single nodes too (--node-rules FILE),"
                " or set limits that the model can keep."
            )
        ]
    steps, apply = [], f"mixlist apply {model_argument(report.model)}"
    if report.next_command and report.alternative is not None:
        steps.append(Step("Recommended: write the result with rules of single nodes.", report.next_command))
    if report.verdict == "fail":
        steps.append(
            Step(
                "The list keeps the limits on the data of the search, but not on the validation data. Search again"
                " with more data, and with data that is more like that of the validation."
            )
        )
    elif not report.edits:
        steps.append(
            Step("The lists need no edit. To write the mixed model, with the same options:", f"{apply} -o mixed.onnx")
        )
    else:
        rules = " --customize-dtypes RULES" if any(edit.node for edit in report.edits) else ""
        steps.append(
            Step(
                "To write the mixed model, give the files below, and keep the other options of the policy:",
                f"{apply} --mixlist FILE{rules} -o mixed.onnx",
            )
        )
    has_rules = report.alternative is not None or any(edit.node for edit in report.edits)
    if tune_texts.keeps_no_work(report):
        gain = "None of the matrix and convolution work stays in low precision, so the list gains little."
        if report.alternative is None and report.next_command:
            steps.append(Step(f"{gain} This command keeps the most of it:", report.next_command))
        elif not has_rules:
            steps.append(Step(f"{gain} Rules for single nodes may keep more of it: --node-rules FILE."))
    return steps
