"""What holds for the page of every result: it is safe, loads nothing, can be read by everyone, and fits a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mixlist
from mixlist import ListDiff
from mixlist.show.bench_document import estimate_document
from mixlist.show.convert_document import convert_document
from mixlist.show.document import Document, Section, Table, Text, Verdict, columns_of
from mixlist.show.html_page import keep_options_whole, render_document, write_page
from tests.support import bench_reports, browser, check_reports, convert_reports, train_reports, tune_reports
from tests.support.builders import model
from tests.support.check_reports import EVIL
from tests.support.extras import needs_browser
from tests.support.package import Library, Lists
from tests.support.page_checks import CELLS_WITHOUT_TITLE, CONTRAST, HIDDEN_LABELS, PHONE_WIDTH, TagChecker

EVIL_EDIT = replace(tune_reports.CONV, op=EVIL, why=EVIL, without=EVIL)
EVIL_MODEL = replace(bench_reports.SLOWER.other, name=EVIL, failure=EVIL)
LISTS = ListDiff(
    Lists(Library(EVIL, {"Exp": "white", EVIL: "black"})), Lists(Library("b", {"Exp": "black", EVIL: "gray"}))
)
CHANGES = mixlist.DiffReport(
    model=EVIL,
    mixlist=LISTS,
    settings=(mixlist.SettingChange("gray policy", EVIL, "between"),),
    nodes=(mixlist.NodeChange(EVIL, "/n", "Exp", "float16", "float32", EVIL),) * 25,
    total=30,
    base=mixlist.SideResult(EVIL, 4, check_reports.PASSING, bench_reports.work(EVIL, False)),
    other=mixlist.SideResult("b", 6, check_reports.large(50), bench_reports.work("b", True)),
)
PAGES = {
    "check": mixlist.html(check_reports.large(50)),
    "check-passing": mixlist.html(check_reports.PASSING),
    "convert": render_document(convert_document(replace(convert_reports.CONVERTED, model=EVIL))),
    "convert-little": render_document(convert_document(convert_reports.LITTLE)),
    "convert-without-result": render_document(convert_document(convert_reports.WITHOUT_RESULT)),
    "train": mixlist.html(train_reports.FAILING),
    "train-passing": mixlist.html(train_reports.PASSING),
    "train-without-runs": mixlist.html(train_reports.NOTHING),
    "train-extreme": mixlist.html(train_reports.EXTREME),
    "tune": mixlist.html(replace(tune_reports.TUNED, edits=(EVIL_EDIT,), model=EVIL)),
    "tune-keeps-little": mixlist.html(tune_reports.KEEPS_LITTLE),
    "tune-without-list": mixlist.html(tune_reports.WITHOUT_LIST),
    "tune-interrupted": mixlist.html(replace(tune_reports.TUNED, complete=False, check=None, minimal=False)),
    "bench-slower": mixlist.html(replace(bench_reports.SLOWER, notes=(EVIL,))),
    "bench-faster": mixlist.html(bench_reports.FASTER),
    "bench-equal": mixlist.html(bench_reports.EQUAL),
    "bench-inconclusive": mixlist.html(replace(bench_reports.INCONCLUSIVE, notes=(EVIL,))),
    "bench-not-timed": mixlist.html(replace(bench_reports.NOT_TIMED, other=EVIL_MODEL)),
    "estimate": render_document(estimate_document(bench_reports.work(EVIL, False), bench_reports.work("b", True))),
    "diff": mixlist.html(LISTS),
    "diff-nodes": mixlist.html(CHANGES),
    "diff-name-spaces": mixlist.html(replace(CHANGES, mixlist=None)),
    "diff-equal": mixlist.html(ListDiff(Lists(Library("a", {})), Lists(Library("a", {})))),
}
BADGES = {
    "check": "FAIL",
    "check-passing": "PASS",
    "convert": "PASS",
    "convert-without-result": "FAIL",
    "train": "FAIL",
    "tune": "PASS",
    "tune-without-list": "FAIL",
    "bench-slower": "SLOWER",
    "bench-faster": "FASTER",
    "bench-equal": "NO DIFFERENCE",
    "bench-not-timed": "NOT TIMED",
    "estimate": "ESTIMATE",
    "diff": "DIFFERENT",
    "diff-equal": "EQUAL",
}
WITH_LISTS = ("check", "diff-nodes", "diff-name-spaces")  # pages with long lists
every_page = pytest.mark.parametrize("name", PAGES)


@every_page
def test_a_page_is_self_contained_and_escapes_names(name: str) -> None:
    page, tags = PAGES[name], TagChecker()
    tags.feed(page)
    assert tags.open == []
    # A page with long lists has a script and its data; test_check_html tests that names in them are harmless. A page
    # with a command has a script, too, which copies the command.
    has_script = name in WITH_LISTS or "<pre>mixlist " in page
    assert tags.active == ["script"] * (has_script + (name in WITH_LISTS))
    assert EVIL not in page
    assert "http" not in re.sub(r"http-equiv=|http://www.w3.org/2000/svg", "", page)
    assert not re.search(r'd="[^"]*(nan|inf)', page)
    assert not re.search(r'="-?(nan|inf)"', page)
    assert "None" not in re.sub(r"None: nothing overflowed|None of the matrix", "", page)


@every_page
def test_a_page_says_the_result_and_the_next_step(name: str) -> None:
    title = re.search("<title>(.*?): ", PAGES[name])
    assert title is not None
    assert title[1] == BADGES.get(name, title[1])
    assert "<h2>What to do next</h2>\n  <p>" in PAGES[name]


@every_page
def test_links_and_ids_belong_together(name: str) -> None:
    ids = re.findall(' id="(.*?)"', PAGES[name])
    assert len(ids) == len(set(ids))
    assert set(re.findall('href="#(.*?)"', PAGES[name])) <= set(ids)


def test_the_page_of_a_plan_shows_its_graph() -> None:
    plan = mixlist.resolve(model("g (float[2] x) => (float[2] y) { [e] y = Exp(x) }"), mixlist.load_policy())
    assert "mixlist view</title>" in mixlist.html(plan)


def test_the_templates_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a template is compiled again")

    monkeypatch.setattr("jinja2.Environment.compile", refuse)  # ``PAGES`` has compiled them
    assert mixlist.html(check_reports.PASSING) == PAGES["check-passing"]


@pytest.mark.parametrize("other", [{"black-list": {}}, None, "report.json", check_reports.finding("n")])
def test_an_object_without_a_page_is_refused(other: object) -> None:
    with pytest.raises(TypeError, match=f"result is a {type(other).__name__}: pass what mixlist.convert, check, train"):
        mixlist.html(other)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def open_page(page: browser.Page, name: str, folder: Path) -> Path:
    path = folder / "page.html"
    write_page(PAGES[name], path)
    page.requests.clear()
    page.messages.clear()
    page.open(path)
    return path


@needs_browser
@every_page
def test_a_page_can_be_read_in_both_schemes_and_on_a_phone(page: browser.Page, tmp_path: Path, name: str) -> None:
    """Every text has WCAG's contrast of 4.5 (AA) to its background, and every cell of a table has a title."""
    path = open_page(page, name, tmp_path)
    assert page.requests == [path.as_uri()]
    assert page.messages == []
    assert page.ask("document.querySelector('.verdict').getBoundingClientRect().top") < 100
    page.ask("document.querySelectorAll('details').forEach(box => { box.open = true })")
    assert page.ask(CELLS_WITHOUT_TITLE) == []
    for scheme in ("light", "dark"):
        page.show(scheme)
        worst = page.ask(CONTRAST)
        page.show()
        assert worst["checked"] >= 10
        assert worst["ratio"] >= 4.5, (scheme, worst)
    page.resize(PHONE_WIDTH, 800)
    try:
        assert page.ask("document.documentElement.scrollWidth") <= PHONE_WIDTH
        assert page.ask("[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)") is True
        assert page.ask("[...document.querySelectorAll('.plot svg')].every(s => s.clientWidth > 200)") is True
        left = "getBoundingClientRect().left"
        labels = f"[...document.querySelectorAll('.y-labels > span')].every(s => s.{left} >= s.parentElement.{left})"
        assert page.ask(labels) is True
        assert page.ask(HIDDEN_LABELS) == []
        # A cell without text would show only the title of its column.
        assert page.ask("[...document.querySelectorAll('.stack td:empty')].every(td => !td.checkVisibility())") is True
    finally:
        page.resize(1280, 900)


@needs_browser
def test_the_page_of_a_diff_has_all_nodes_and_a_search(page: browser.Page, tmp_path: Path) -> None:
    changes = [
        mixlist.NodeChange("", f"/layer.{at}/n", "Exp", "float16", "float32", f"black by {EVIL}") for at in range(3000)
    ]
    path = tmp_path / "page.html"
    write_page(mixlist.html(replace(CHANGES, nodes=tuple(changes), total=4000)), path)
    page.open(path)
    count, rows = (
        "document.getElementById('node-count').textContent",
        "document.querySelectorAll('#node-table tbody tr')",
    )
    assert page.ask(count) == "3000 of 3000 nodes"
    assert page.ask(f"{rows}.length") == 50
    page.ask("document.getElementById('node-search').focus()")
    page.write("LAYER.2999 black")
    assert page.ask(count) == "1 of 3000 nodes"
    shown = page.ask(f"[...{rows}].map(row => [...row.children].map(cell => cell.textContent))")
    assert shown == [["/layer.2999/n", "Exp", "float16", "float32", f"black by {EVIL}"]]
    sections = page.ask("[...document.querySelectorAll('section[id]')].map(section => section.id)")
    assert sections == ["next", "sides", "nodes", "lists", "settings", "file", "about"]


def test_no_line_breaks_inside_an_option() -> None:
    assert keep_options_whole("give --validate-on <b>") == ('give <span class="option">--validate-on</span> &lt;b&gt;')
    assert keep_options_whole("apply x-a.onnx -o y") == 'apply x-a.onnx <span class="option">-o</span> y'


def test_a_long_file_is_folded_and_a_number_has_its_title() -> None:
    table = Table(columns_of("trial", "edits"), [("1", "none"), ("mean", "")])
    files = [Text(("{",) * lines, is_file=True) for lines in (40, 41)]
    sections = (Section("a", "A", (*files, table)),)
    page = render_document(Document("tune", sections, verdict=Verdict("PASS", "passing", "m", "m")))
    assert page.count("<details><summary>") == 1 and "<summary>41 lines</summary>" in page
    assert page.count('data-label="trial "') == 1


@needs_browser
def test_a_printed_page_is_light(page: browser.Page, tmp_path: Path) -> None:
    open_page(page, "tune-keeps-little", tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        page.show()
