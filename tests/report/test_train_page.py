"""The report of a training on the terminal and as a page, which a real browser opens too."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mixlist.report.html_page import write_page
from mixlist.report.train_html import render
from mixlist.report.train_terminal import write_train
from mixlist.training.result import TrainReport
from tests.support import browser
from tests.support.train_reports import EXTREME, FAILING, NOTHING, PASSING

REPORTS = {"passing": PASSING, "failing": FAILING, "nothing": NOTHING, "extreme": EXTREME}
in_browser = pytest.mark.skipif(browser.find() is None, reason="no Chromium here (Debian: apt-get install chromium)")


def report_text(report: TrainReport) -> str:
    stream = io.StringIO()
    write_train(report, stream)
    return stream.getvalue()


def test_the_verdict_and_its_reasons_come_first() -> None:
    lines = report_text(FAILING).splitlines()
    assert lines[0].startswith("FAIL  models/")
    assert lines[1:3] == [f"      {reason}" for reason in FAILING.reasons]
    passing = report_text(PASSING).splitlines()
    assert passing[0] == "PASS  good_step.onnx in float16, emulated on cpu, 3 runs of 600 steps"
    assert passing[2] == "      0 of 1800 mixed steps with an exception"


def test_the_terminal_shows_metrics_offenders_and_scales() -> None:
    text = report_text(FAILING)
    for part in (
        "0.981 ± 0.001", "gradient of", "fc.weight", "15", "became zero", "12 %", "name = torch, init_scale = 65536",
        "/grad/fc/MatMul", "no loss scale helps", "best: init_scale = 1024", "to-remove",
    ):  # fmt: skip
        assert part in text, part
    assert "hint:" not in text
    extreme_text = report_text(EXTREME)
    assert "nan" in extreme_text
    assert "inf" in extreme_text


def test_options_for_more_detail_are_hints_if_they_were_not_used() -> None:
    text = report_text(replace(FAILING, trace_scale=None, offenders=(), scale_trials=(), suggestion=""))
    assert "hint: --trace-overflow" in text
    assert "hint: --tune-scale" in text
    assert "hint:" not in report_text(PASSING)


def test_a_scale_that_is_too_large_has_no_advice_to_repeat_the_search() -> None:
    report = replace(FAILING, trace_scale=1024.0)
    assert "The scale is too large." in report_text(report)
    assert "--tune-scale searches a better one" in report_text(replace(report, scale_trials=(), scale_choice={}))
    for text in (report_text(replace(report, scale_choice={})), render(replace(report, scale_choice={}))):
        assert "No setting keeps the exception rate below 0.50%." in text
        assert "--tune-scale" not in text
        assert "best:" not in text.lower()


def test_a_failure_without_exceptions_points_to_the_nodes_of_the_step() -> None:
    quiet_runs = tuple(replace(run, mixed=replace(run.mixed, exceptions=())) for run in FAILING.runs)
    report = replace(FAILING, runs=quiet_runs, exception_rate=0.0, offenders=(), trace_scale=None, underflow=None)
    hints = [line.strip() for line in report_text(replace(report, scale_trials=())).splitlines() if "hint:" in line]
    assert hints == ["hint: no gradient overflowed; --overflow-detection any-node shows overflow inside the step"]


def test_an_open_verdict_has_no_advice_on_overflow() -> None:
    report = replace(PASSING, verdict="inconclusive", reasons=("1 of at least 3 runs",), runs=PASSING.runs[:1])
    assert "hint:" not in report_text(report)


def test_no_scale_helps_if_every_scale_loses_most_gradients() -> None:
    """This is so if the forward pass overflows and the infinity does not reach the gradients."""
    trials = tuple(replace(trial, zero=0.88) for trial in FAILING.scale_trials)
    report = replace(FAILING, scale_trials=trials)
    text = "No scale helps: with each of them, at least 88 % of the gradient values become zero."
    assert text in report_text(report) and "best:" not in report_text(report)
    assert text in render(report) and text not in report_text(FAILING)


def test_no_search_for_a_scale_is_advised_if_no_scale_helps() -> None:
    assert FAILING.trace_scale == 1 and FAILING.offenders
    text = report_text(replace(FAILING, scale_trials=(), underflow=None))
    assert "no loss scale helps" in text and "--tune-scale" not in text


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


@in_browser
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


@in_browser
def test_the_page_can_be_printed(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, FAILING, tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf().startswith(b"%PDF")
    finally:
        page.show()


def test_groups_of_parameters_are_written_plainly() -> None:
    groups = ({"match": "bias", "weight_decay": 0.0, "lr": None}, {"match": "^head", "lr": 0.5, "weight_decay": None})
    optimizer = {"name": "sgd", "clip_value": None, "parameter_groups": groups}
    page = render(replace(PASSING, optimizer=optimizer))
    assert "name = sgd, parameter_groups = (match = bias, weight_decay = 0); (match = ^head, lr = 0.5)" in page


def test_the_page_draws_a_histogram_of_each_gradient_the_worst_first() -> None:
    page = render(PASSING)
    table = page[page.index('<table class="bars histograms">') :]
    assert 0 < table.index("fc.weight") < table.index("</tr>", table.index("</thead>") + 8)
    assert '<rect class="lost" x="2" y="9.5"' in table  # 1 of at most 20 values
    assert 'class="bars histograms"' not in render(replace(PASSING, underflow=None))
