"""The report of a training on the terminal and as a page, which a real browser opens too."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mixlist.report.html_page import write_page
from mixlist.report.train_html import render
from mixlist.report.train_terminal import write_train
from mixlist.training.result import TrainReport
from tests.support import browser
from tests.support.check_reports import EVIL
from tests.support.page_checks import CONTRAST, HIDDEN_LABELS, PHONE_WIDTH
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
    assert passing[2] == "      0 of 1800 mixed steps with an exception: 0.00%, the limit is 0.50%"


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
    from dataclasses import replace

    text = report_text(replace(FAILING, trace_scale=None, offenders=(), scale_trials=(), suggestion=""))
    assert "hint: --trace-overflow" in text
    assert "hint: --tune-scale" in text
    assert "hint:" not in report_text(PASSING)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_any_report_can_be_shown_on_the_terminal(report: TrainReport) -> None:
    assert report_text(report)


class TagChecker(HTMLParser):
    """Check that tags nest, and collect the tags that can run or load something."""

    VOID = ("meta", "img", "br", "input", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "link", "iframe") or any(name.startswith("on") for name, _ in attrs):
            self.active.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_is_self_contained_and_escapes_names(report: TrainReport) -> None:
    page = render(report)
    tags = TagChecker()
    tags.feed(page)
    assert tags.open == []
    assert tags.active == []
    assert EVIL not in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert not re.search(r'd="[^"]*(nan|inf)', page)
    assert not re.search(r'="-?(nan|inf)"', page)


def test_an_existing_page_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_page(render(PASSING), path)
    assert path.read_text("utf-8") == render(PASSING)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


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


@in_browser
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_loads_nothing_and_logs_no_error(page: browser.Page, tmp_path: Path, report: TrainReport) -> None:
    path = open_report(page, report, tmp_path)
    assert page.requests == [path.as_uri()]
    assert page.messages == []
    assert page.ask("document.title").startswith("FAIL" if report.verdict == "fail" else "PASS")
    assert page.ask("document.querySelector('h1, .verdict').getBoundingClientRect().top") < 100


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
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(page: browser.Page, tmp_path: Path, scheme: str) -> None:
    page.show(scheme)
    try:
        open_report(page, FAILING, tmp_path)
        worst = page.ask(CONTRAST)
    finally:
        page.show()
    assert worst["checked"] > 50
    assert worst["ratio"] >= 4.5, worst


@in_browser
def test_charts_fit_a_phone(page: browser.Page, tmp_path: Path) -> None:
    page.resize(PHONE_WIDTH, 800)
    try:
        open_report(page, FAILING, tmp_path)
        assert page.ask("document.documentElement.scrollWidth") <= PHONE_WIDTH
        assert page.ask("[...document.querySelectorAll('svg.chart')].every(s => s.clientWidth > 250)") is True
        assert page.ask(HIDDEN_LABELS) == []
    finally:
        page.resize(1280, 900)


@in_browser
def test_the_page_can_be_printed(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, FAILING, tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf().startswith(b"%PDF")
    finally:
        page.show()
