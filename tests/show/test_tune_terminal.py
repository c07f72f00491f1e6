"""The report of a search on the terminal: the order of its parts, the cost of edits, and warnings."""

from __future__ import annotations

import io
from dataclasses import replace

from mixlist import TunedEdit, TuneReport
from mixlist.checker.result import NOTHING_LOW_REASON, JudgeResult
from mixlist.search.trial_verdict import Outcome
from mixlist.search.trials import Trial
from mixlist.show.terminal import write_document
from mixlist.show.tune_document import trial_line, tune_document
from tests.support.check_reports import FAILING, PASSING, output
from tests.support.tune_reports import CONV, EXP, KEEPS_LITTLE, TUNED, WITHOUT_LIST


def report_text(report: TuneReport) -> str:
    stream = io.StringIO()
    write_document(tune_document(report), stream)
    return stream.getvalue()


def test_the_parts_of_the_report_have_a_fixed_order() -> None:
    text = report_text(replace(TUNED, validation=PASSING))
    assert text.startswith("PASS  good.onnx with 2 edits\n      the lists keep every limit\n")
    parts = ["\nEdits\n", "Exp ", "Conv ", "Each edit is needed", "Matrix products", "Final check"]
    parts += [
        "pass: float16, emulated on cpu, 4 batches, exception rate 0 %",
        "worst output: y",
        "Validation",
        "Search",
    ]
    parts += ["12 trials, 5 more read from the state", "final check", "0.25 s"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_an_edit_has_its_lists_its_cost_and_its_reason() -> None:
    lines = report_text(TUNED).splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith(("Exp", "Conv"))}
    assert rows["Exp"].split()[1:6] == ["white", "black", "3", "0", "%"]
    assert rows["Conv"].split()[1:6] == ["gray", "black", "1", "-12.5", "%"]
    assert rows["Exp"].endswith("overflow at /a/Exp, in 1 or more of 4 batches")


def test_the_table_says_that_nodes_counts_those_that_follow() -> None:
    text = '"nodes" counts the gray nodes that follow too.'
    assert text in report_text(TUNED)
    assert text not in report_text(replace(TUNED, edits=(CONV,)))


def test_the_numbers_of_a_judge_stand_under_their_title() -> None:
    judged = replace(PASSING, judge=(JudgeResult("boxes_lost", 0.005, 2, 0.01, True),))
    lines = report_text(replace(TUNED, check=judged)).splitlines()
    at = lines.index("  Judge")
    assert lines[at - 1] == "" and lines[at - 2].startswith("  worst output: y")
    assert lines[at + 1].split()[:2] == ["name", "worst"] and lines[at + 3].startswith("boxes_lost")


def test_the_table_says_which_edits_can_be_left_out() -> None:
    unneeded = replace(CONV, without="keeps the limits too")
    text = report_text(replace(TUNED, minimal=False, edits=(EXP, unneeded)))
    assert 'Any one edit with "keeps the limits too" can be left out.' in text and "did not end" not in text


def test_an_interrupted_search_is_reported() -> None:
    text = report_text(
        replace(TUNED, verdict="fail", complete=False, minimal=False, check=None, reasons=("interrupted",))
    )
    assert text.startswith("FAIL  good.onnx with 2 edits\n      interrupted\n")
    assert "Some edits may not be needed" in text
    assert "Final check" not in text


def test_a_list_that_keeps_too_little_low_is_followed_by_convert() -> None:
    advice = "Let convert choose the single nodes that stay in float32:\n    mixlist convert good.onnx -o mixed.onnx\n"
    text = report_text(KEEPS_LITTLE)
    assert text.startswith("PASS  ") and "100 % of the work before, 12.5 % after" in text and advice in text
    command = "mixlist apply good.onnx --mixlist modify.json -o mixed.onnx"
    enough = report_text(replace(TUNED, next_command=command))
    assert f"Write the mixed model with the file of this result:\n    {command}\n" in enough
    without_matrix_work = replace(TUNED, low_share={"base": None, "tuned": None})
    assert "Matrix products" not in report_text(without_matrix_work)
    assert advice in report_text(replace(WITHOUT_LIST, next_command="mixlist convert good.onnx -o mixed.onnx"))


def test_a_result_with_nothing_low_is_no_pass() -> None:
    check = replace(PASSING, verdict="inconclusive", reasons=(NOTHING_LOW_REASON,))
    report = replace(TUNED, verdict="inconclusive", reasons=check.reasons, check=check)
    text = report_text(report)
    first, second, *_ = text.splitlines()
    assert first == "PASS, BUT NOTHING IS LOW  good.onnx with 2 edits"
    assert second.strip() == "every limit is kept, because nothing is low"
    assert "Let convert choose" in text and "Too little could be compared" not in text


def test_a_search_without_a_list_shows_the_base_check() -> None:
    text = report_text(WITHOUT_LIST)
    assert text.startswith("FAIL  good.onnx: no list was found\n      no list of op types keeps the limits\n")
    assert "Edits" not in text
    assert "Matrix products" not in text
    assert "Final check" not in text
    assert "The lists without edits\n  fail: float16" in text
    assert "overflow  /mel/Pow (Pow)" in text
    assert "batches:         1 of 5, first #2" in text


def test_lists_that_need_no_edit_have_no_table_of_edits() -> None:
    text = report_text(replace(TUNED, edits=(), modify_mixlist="{}\n"))
    assert text.startswith("PASS  good.onnx needs no edit\n")
    assert "Edits" not in text


def test_the_worst_output_is_one_that_fails() -> None:
    outputs = (output("far", normalized_error=0.5), output("bad", passed=False, normalized_error=0.02), output("near"))
    assert "worst output: bad, normalized error 0.02" in report_text(
        replace(TUNED, check=replace(FAILING, outputs=outputs))
    )
    outputs = (output("near"), output("nan", normalized_error=float("nan")))
    assert "worst output: nan" in report_text(replace(TUNED, check=replace(PASSING, outputs=outputs)))
    ids = output("ids", mismatches=0.004)
    assert "0.4 % of its values differ" in report_text(replace(TUNED, check=replace(PASSING, outputs=(ids,))))


def test_names_cannot_steer_the_terminal() -> None:
    hostile_name = "a\x1b[2J\r"
    edit = TunedEdit(hostile_name, "white", hostile_name, 1, None, hostile_name)
    changes = {
        "model": hostile_name,
        "reasons": (hostile_name,),
        "edits": (edit,),
        "seconds": {hostile_name: 1.0},
        "check": None,
    }
    text = report_text(replace(TUNED, **changes)) + trial_line(1, Trial((hostile_name,), Outcome(False, hostile_name)))
    assert not set(text) & set("\x1b\r")
    assert text.count(r"a\x1b[2J\r") >= 8


def test_each_trial_has_one_line_in_the_log() -> None:
    assert trial_line(1, Trial((), Outcome(True))) == "   1 pass  [no edit]"
    failed = Trial(("Exp: white to black", "Mul: white to black"), Outcome(False, "overflow at m"), remembered=True)
    line = "  12 fail  [Exp: white to black, Mul: white to black]  overflow at m  (from the state)"
    assert trial_line(12, failed) == line


def test_the_report_names_the_batches_that_joined_and_those_that_the_search_did_not_use() -> None:
    """Of the batches that joined, five are named."""
    advice = "the search did not use these batches: give more data, or search on all of it with holdout=False"
    names = tuple(f"{index}.npz" for index in range(7))
    text = report_text(replace(TUNED, verdict="fail", held_out=("x.npz",), joined=names))
    assert advice in text
    assert "failed joined the search: 0.npz, 1.npz, 2.npz, 3.npz, 4.npz and 2 more\n" in text
    # The search used the batches that joined, so this advice would not help.
    assert advice not in report_text(replace(TUNED, verdict="fail", held_out=names[:1], joined=names[:1]))
