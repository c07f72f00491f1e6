"""The report of a training on the terminal and as a page, which a real browser opens too."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mixlist import TrainReport
from mixlist.show.html_page import render_document, write_page
from mixlist.show.terminal import write_document
from mixlist.show.train_document import train_document
from mixlist.training.result import Comparison, GradientUnderflow, ModuleHeadroom, ScaleExceptions
from tests.support import browser
from tests.support.extras import needs_browser
from tests.support.train_reports import EXTREME, FAILING, NOTHING, PASSING

REPORTS = {"passing": PASSING, "failing": FAILING, "nothing": NOTHING, "extreme": EXTREME}


def render(report: TrainReport) -> str:
    return render_document(train_document(report))


def report_text(report: TrainReport) -> str:
    stream = io.StringIO()
    write_document(train_document(report), stream)
    return stream.getvalue()


def test_the_verdict_and_its_reasons_come_first() -> None:
    lines = report_text(FAILING).splitlines()
    assert lines[0].startswith("FAIL  ")
    assert lines[1:3] == [f"      {reason}" for reason in FAILING.reasons]
    passing = report_text(PASSING).splitlines()
    assert passing[0] == "PASS  train.py:run in float16 on cpu, 3 runs of 600 steps"
    assert passing[3] == "      0 of 1800 mixed steps with an exception"


def test_the_terminal_shows_metrics_findings_and_scales() -> None:
    text = report_text(FAILING)
    for part in (
        "15 of 1800 mixed steps with an exception, 12 that no loss scale prevents", "0.981 ± 0.001", "gradient of",
        "became zero", "25 %", "name = torch, init_scale = 65536", "decoder/fc", "seed 0, step 3",
        "white, in float32", "bfloat16 has the range of float32", "to-remove", "nnabla tries",
    ):  # fmt: skip
        assert part in text, part
    # On a phone, a row is a record below its first cell: no number.
    assert "\ndecoder/fc  " in text[text.index("Where overflow starts") :]
    assert 'class="short">seed 0</th>' in render(FAILING) and "\nseed 0  0.1" in text
    extreme_text = report_text(EXTREME)
    assert "nan" in extreme_text
    assert "inf" in extreme_text


def test_findings_say_what_keeps_their_operators_in_float32() -> None:
    assert "A modify_mixlist file with this content, such as modify.json, keeps them in float32:" in report_text(
        FAILING
    )
    kept = report_text(replace(FAILING, keep_dtype="decoder/fc\n", suggestion=""))
    assert "A keep_dtype file with this content, such as keep.txt, keeps them in float32:\n    decoder/fc\n" in kept
    ruled = report_text(replace(FAILING, suggestion=""))
    assert "Node rules or the mode put them in low precision" in ruled
    high = report_text(replace(FAILING, suggestion="", findings=FAILING.findings[2:]))
    assert "They are in float32: low-precision operators before them" in high


def test_a_failure_without_exceptions_points_to_the_operators() -> None:
    quiet_runs = tuple(replace(run, mixed=replace(run.mixed, exceptions=[])) for run in FAILING.runs)
    report = replace(FAILING, runs=quiet_runs, exception_rate=0.0, scale_exceptions=None, underflow=None)
    assert "  No gradient shows an overflow. See whether there is one inside the step.\n" in report_text(report)
    stream = io.StringIO()
    write_document(train_document(report, lambda *options: " ".join(["mixlist train train.py:run", *options])), stream)
    assert "    mixlist train train.py:run --overflow-detection any-node\n" in stream.getvalue()


def test_a_pass_whose_forward_pass_overflows_leads_to_the_place() -> None:
    module = ModuleHeadroom("energy", 0.39, 167690.0, 167690.0, 167690.0, None, None, None)
    text = report_text(replace(PASSING, headroom=(module,)))
    assert "Values overflow, without harm in these runs. Before a long training, see where" in text
    assert "can be trained as it is" not in text and "Train with these lists" not in text


def test_runs_that_differ_although_the_mean_is_kept_lead_to_a_tolerance() -> None:
    comparison = Comparison("pass", 0.0, -0.001, 0.001, 0.005, 0.0, 0.0088, 0.008, 0.005, None, True)
    report = replace(PASSING, verdict="fail", comparison=comparison)
    steps = train_document(report, lambda *options: " ".join(("train", *options))).steps
    assert [step.command for step in steps if "--tolerance" in step.command] == ["train --tolerance 0.0097"]


def test_an_interrupted_training_is_trained_again_and_nothing_else() -> None:
    """The exceptions of the steps so far decide nothing."""
    report = replace(FAILING, complete=False, verdict="inconclusive", reasons=("interrupted after 1 of 4 runs",))
    for interrupted in (report, replace(report, verdict="fail")):
        stream = io.StringIO()
        write_document(
            train_document(interrupted, lambda *options: " ".join(["mixlist train a.py:run", *options])), stream
        )
        text = stream.getvalue()
        steps = text[text.index("What to do next\n") :]
        assert steps == "What to do next\n  Train again, to the end:\n    mixlist train a.py:run\n"
        assert "on cpu, interrupted runs of 600 steps" in text.splitlines()[0]


def test_lost_gradients_without_a_scale_need_a_scaler() -> None:
    lost = GradientUnderflow(0.999, 24, {"float32": 0.0, "mixed": 0.999}, {"fc.weight": 1.0})
    report = replace(PASSING, verdict="fail", underflow=lost, scaler={"name": "none"})
    stream = io.StringIO()
    write_document(train_document(report, lambda *options: " ".join(["mixlist train a.py:run", *options])), stream)
    text = stream.getvalue()
    scaler = (
        "a torch.amp.GradScaler in the loop, without loss_scaler='none', keeps them, or their modules in float32.\n"
    )
    assert scaler in text and "    mixlist train" not in text.partition(scaler)[2].partition("\n")[0]


def test_gradients_with_exceptions_show_an_overflow() -> None:
    over = ModuleHeadroom("head", 0.01, 6.5e6, 6.5e6, 6.5e6, None, None, None)
    report = replace(FAILING, headroom=(over,), findings=(), keep_dtype="", suggestion="")
    assert "  The overflow does not reach the gradients. See where it starts inside the step.\n" in report_text(report)


def test_an_open_verdict_has_no_advice() -> None:
    report = replace(FAILING, verdict="inconclusive")
    assert "bfloat16 has the range" in report_text(FAILING)
    assert "bfloat16 has the range" not in report_text(report)


def test_the_page_has_the_next_step() -> None:
    assert "Train with these lists, with this loss scaler: name = torch" in render(PASSING)
    autocast = replace(PASSING, notes=("lists: pytorch, gray policy promote",), scaler={"name": "none"})
    text = "Your loop can be trained as it is, under torch.autocast in float16, without loss scaling."
    assert text in render(autocast)
    assert "Save what is under Where overflow starts, and train with it" in render(FAILING)
    lower = replace(PASSING, scale_exceptions=ScaleExceptions(1, 8192.0))
    assert "this loss scaler: name = torch, init_scale = 8192, growth_interval" in render(lower)


def test_advice_agrees_with_the_exceptions() -> None:
    """No first scale where the network has exceptions of its own; bfloat16 where values leave the range of float16."""
    own = replace(FAILING, scale_exceptions=ScaleExceptions(9, None))
    assert "loss scale" not in report_text(own)[report_text(own).index("What to do next") :]
    assert "bfloat16 has the range of float32" in report_text(own)
    for report in (replace(own, precision="bfloat16"), replace(own, findings=own.findings[2:])):
        assert "bfloat16 has the range" not in report_text(report)


def test_the_measured_gradients_give_the_scale_of_a_scaler_that_keeps_it() -> None:
    """The largest measured gradient is 0.5: times 2^15, it is below half of the largest number."""
    scaler = {"name": "fixed", "loss_scale": 1e6}
    runs = tuple(replace(run, mixed=replace(run.mixed, scale=[1e6] * 600)) for run in FAILING.runs)
    fixed = replace(FAILING, runs=runs, scaler=scaler, scale_exceptions=ScaleExceptions(9, None))

    def printed(report: TrainReport) -> str:
        stream = io.StringIO()
        document = train_document(report, lambda *options: " ".join(["mixlist train train.py:run", *options]))
        write_document(document, stream)
        return stream.getvalue()

    assert "    mixlist train train.py:run --loss-scale 32768\n" in printed(replace(fixed, headroom=PASSING.headroom))
    # A scale as large as the one that overflows is not proposed.
    small = tuple(replace(found, gradient=1e-6) for found in PASSING.headroom)
    text = printed(replace(fixed, headroom=small))
    assert "Train with a smaller loss scale" in text and "--loss-scale " not in text


def test_a_forward_overflow_is_shown_before_the_gradients_that_it_loses() -> None:
    lost = GradientUnderflow(0.9, 24, {"float32": 0.0, "mixed": 0.9}, {"fc.weight": 0.9})
    over = ModuleHeadroom("head", 0.01, 6.5e6, 6.5e6, 6.5e6, None, None, None)
    report = replace(FAILING, underflow=lost, headroom=(over,), findings=(), keep_dtype="", suggestion="")
    text = report_text(report)
    assert "See where it starts inside the step" in text and "a larger loss scale" not in text


def test_zero_gradients_lead_to_a_wider_range_and_no_smaller_scale() -> None:
    """The parameters are named, and so is a training that is at its end."""
    lost = GradientUnderflow(0.3, 24, {"float32": 0.2, "mixed": 0.4}, {"fc.weight": 0.5, "conv.bias": 0.0})
    failing = replace(FAILING, underflow=lost, findings=(), keep_dtype="", suggestion="")
    text = report_text(failing)
    steps = text[text.index("What to do next") :]
    assert "Gradients become zero, most of fc.weight: a larger loss scale keeps them" in steps
    assert "bfloat16 has the range of float32" in steps and "smaller loss scale" not in steps
    assert "judge fewer steps" not in steps
    learned = replace(failing.runs[0], float32=replace(failing.runs[0].float32, loss=[1.0] * 50 + [1e-6] * 50))
    assert "near 0 at the end" in report_text(replace(failing, runs=(learned,)))


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_any_report_can_be_shown_on_the_terminal(report: TrainReport) -> None:
    assert report_text(report)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def open_report(page: browser.Page, report: TrainReport, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_page(render(report), path)
    page.requests.clear()
    page.messages.clear()
    page.open(path)
    return path


BOX = "(() => {{ const b = document.querySelector('{}').getBBox(); return [b.x, b.y, b.width, b.height]; }})()"


@needs_browser
def test_curves_are_inside_their_charts(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, FAILING, tmp_path)
    for name in ("#loss path.float32", "#loss path.band.mixed", "#scale path.scale"):
        x, y, width, height = page.ask(BOX.format(name))
        assert -1 <= x < 50, name
        assert 900 < x + width <= 1001, name
        assert y >= -1, name
        assert y + height <= 261, name
        assert height > 50, name
    assert page.ask("document.querySelectorAll('#loss path').length") == 4
    assert page.ask("document.querySelectorAll('#scale path.scale').length") == 3
    marks = page.ask(
        "[...document.querySelectorAll('#scale .skipped[d]')].map(p => p.getAttribute('d').match(/M/g).length)"
    )
    assert marks == [len(run.mixed.skipped) for run in FAILING.runs]
    assert page.ask("document.querySelectorAll('#metrics .dot').length") == 6
    ends = "document.querySelector('#scale path.scale').getAttribute('d')"
    drops = page.ask(ends).count("V")
    changes = FAILING.runs[0].mixed.scale
    assert drops == sum(a != b for a, b in itertools.pairwise(changes))


@needs_browser
def test_the_page_can_be_printed(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, FAILING, tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf().startswith(b"%PDF")
    finally:
        page.show()


def test_the_page_names_operators_without_a_name_in_the_lists() -> None:
    assert "aten::_cdist_forward 12" in render(FAILING)
    assert "without a name in the lists" not in render(PASSING)


def test_gradients_that_become_zero_are_listed_by_parameter() -> None:
    text = report_text(PASSING)
    table = text[
        text.index("0 % of the gradient values that are not zero in float32 became zero (24 steps examined).") :
    ]
    assert "25 %" in table and "fc.weight" not in table  # it lost none
    assert "became zero" not in report_text(replace(PASSING, underflow=None))
