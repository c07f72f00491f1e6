"""The HTML page of a check, in a real browser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mixlist
from mixlist import CheckReport, NodeError
from mixlist.show.check_document import check_document
from mixlist.show.html_page import render_document, write_page
from tests.support import browser
from tests.support.builders import model
from tests.support.check_reports import EVIL, FAILING, finding, large, tensor
from tests.support.extras import needs_browser
from tests.support.page_checks import CONTRAST, HIDDEN_LABELS, PHONE_WIDTH

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def open_report(page: browser.Page, report: CheckReport, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_page(render_document(check_document(report)), path)
    page.requests.clear()
    page.messages.clear()
    page.open(path)
    return path


def test_the_graph_is_in_the_page(page: browser.Page, tmp_path: Path) -> None:
    """The policy of the report allows the script of the frame, and a reader's actions there keep the report."""
    source = model("g (float[2] x) => (float[2] y) { [e] t = Exp(x) [f] y = Neg(t) }")
    source.graph.node[0].name = EVIL
    plan = mixlist.resolve(source, mixlist.load_policy(precision_mode_v2="fp16"))
    report = replace(FAILING, nodes=(finding(EVIL, tensor="t"),), tensors=(), layerwise=(), next_command="mixlist tune")
    path = tmp_path / "report.html"
    write_page(mixlist.html(report, plan), path)
    page.requests.clear()
    page.messages.clear()
    page.open(path)
    page.ask("new Promise(done => setTimeout(done, 300))")
    graph = "document.querySelector('iframe').contentWindow"
    assert page.ask(f"{graph}.performance.getEntriesByName('graph-drawn').length") == 1
    page.ask(f"{graph}.document.getElementById('next').click()")
    assert page.ask(f"{graph}.document.querySelector('#details h2').textContent") == EVIL
    page.ask(f"{graph}.document.getElementById('toggle-details').click()")
    page.ask("new Promise(done => setTimeout(done, 200))")
    assert page.ask(f"{graph}.document.getElementById('details').hidden") is True
    page.ask("document.querySelector('.copy').click()")
    page.ask("new Promise(done => setTimeout(done, 100))")
    assert page.ask("document.querySelector('.copy').textContent") in ("Copied", "Selected")
    assert (page.requests, page.messages) == ([path.as_uri()], [])


ROWS = "document.querySelectorAll('#range-table tbody tr').length"
COUNT = "document.getElementById('range-count').textContent"


def test_the_page_loads_nothing_and_logs_no_error(page: browser.Page, tmp_path: Path) -> None:
    path = open_report(page, large(200), tmp_path)
    assert page.requests == [path.as_uri()]
    assert page.messages == []
    assert page.ask("document.title") == "FAIL: models/melspec.onnx – mixlist check"
    assert page.ask("document.querySelector('img')") is None


def test_rows_of_five_thousand_nodes_are_added_in_parts(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, large(), tmp_path)
    assert page.ask(COUNT) == "5000 of 5000 tensors"
    assert page.ask(ROWS) == 50
    assert page.ask("document.querySelectorAll('.kind tbody tr').length") == 0
    page.ask("document.getElementById('range-more').scrollIntoView()")
    page.ask("new Promise(done => setTimeout(done, 300))")
    assert 100 <= page.ask(ROWS) < 5000
    page.ask("document.getElementById('range-more').click()")
    assert page.ask(ROWS) % 50 == 0
    page.ask("document.querySelector('.kind').open = true")
    page.ask("new Promise(done => setTimeout(done, 100))")
    assert page.ask("document.querySelectorAll('.kind[open] tbody tr').length") > 0


def test_the_list_can_be_searched_filtered_and_sorted(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, large(), tmp_path)
    page.ask("document.getElementById('range-search').focus()")
    page.write("layer.3/ op_12")
    assert page.ask(COUNT) == "10 of 5000 tensors"  # op_120 to op_129
    assert page.ask("document.querySelector('#range-table tbody .name').textContent").startswith(
        "/encoder/layer.3/op_12"
    )
    page.ask("{ const s = document.getElementById('range-search'); s.value = ''; s.dispatchEvent(new Event('input')) }")
    change = "{{ const s = document.getElementById('{}'); s.value = '{}'; s.dispatchEvent(new Event('change')) }}"
    page.ask(change.format("range-show", "found"))
    page.ask(change.format("range-order", "large"))
    page.ask("new Promise(done => setTimeout(done, 200))")
    assert page.ask(COUNT) == f"{len(large().nodes)} of 5000 tensors"
    first = page.ask("document.querySelector('#range-table tbody .number').textContent")
    assert float(first) == pytest.approx(max(t.maximum for t in large().tensors), rel=1e-3)
    page.ask("document.getElementById('finding-search').focus()")
    page.write("document.title")
    evil_findings = sum(EVIL in finding.name for finding in large().nodes)
    assert page.ask("document.getElementById('finding-count').textContent").startswith(f"{evil_findings} of ")
    assert page.ask("document.querySelectorAll('.kind[open] tbody tr').length") == evil_findings > 0
    assert page.ask("document.title").startswith("FAIL")


def test_a_click_on_the_range_chart_filters_the_list(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, large(200), tmp_path)
    box = "const r = document.getElementById('overview').getBoundingClientRect();"
    position = "{clientX: r.left + r.width * (100.5 / 200), clientY: r.top + r.height / 2, bubbles: true}"
    send = f"{{ {box} document.getElementById('overview').dispatchEvent(new PointerEvent('%s', {position})) }}"
    page.ask(send % "pointermove")
    assert "/encoder/layer.2/op_100_output_0: " in page.ask("document.getElementById('under-cursor').textContent")
    page.ask(send % "click")
    assert page.ask("document.getElementById('range-search').value") == "/encoder/layer.2/op_100_output_0"
    assert page.ask(COUNT) == "1 of 200 tensors"


def test_all_controls_can_be_used_with_the_keyboard(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, large(300), tmp_path)
    focused = []
    for _ in range(40):
        page.press("Tab", 9)
        focused.append(page.ask("document.activeElement.id || document.activeElement.tagName"))
        if focused[-1] == "SUMMARY" and page.ask("document.activeElement.parentElement.className") == "kind":
            break
    assert focused[0] == "A"
    assert {"range-search", "range-show", "range-order"} <= set(focused)
    assert focused[-1] == "SUMMARY"
    page.press("Enter", 13, "\r")
    page.ask("new Promise(done => setTimeout(done, 100))")
    assert page.ask("document.querySelector('.kind').open") is True


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(page: browser.Page, tmp_path: Path, scheme: str) -> None:
    """Every kind of text has WCAG's contrast of 4.5 (AA) to its background."""
    page.show(scheme)
    try:
        open_report(page, FAILING, tmp_path)
        worst = page.ask(CONTRAST)
    finally:
        page.show()
    assert worst["checked"] > 50
    assert worst["ratio"] >= 4.5, worst


def test_a_printed_page_is_light_and_unfolded(page: browser.Page, tmp_path: Path) -> None:
    open_report(page, FAILING, tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.pdf().startswith(b"%PDF")
        assert page.ask("[...document.querySelectorAll('details')].every(box => box.open)") is True
        assert page.ask("document.querySelectorAll('.kind tbody tr').length") == len(FAILING.nodes)
    finally:
        page.show()


@pytest.mark.parametrize("width", [PHONE_WIDTH, 1280])
def test_charts_fit_the_screen_and_labels_are_whole(page: browser.Page, tmp_path: Path, width: int) -> None:
    page.resize(width, 900)
    try:
        for report in (FAILING, large(5000)):
            open_report(page, report, tmp_path)
            assert page.ask("document.documentElement.scrollWidth") <= width
            assert page.ask("document.querySelectorAll('.plot span').length") > 10
            assert page.ask(HIDDEN_LABELS) == []
            box = "document.getElementById('overview').getBoundingClientRect()"
            left, right = page.ask(f"{box}.left"), page.ask(f"{box}.right")
            assert 0 < left < right < width and right - left > width / 2
    finally:
        page.resize(1280, 900)


def test_the_only_overflowing_tensor_of_many_can_be_seen(page: browser.Page, tmp_path: Path) -> None:
    """The tensor is infinite, so its mark is at the edge of the picture, which is small on a phone."""
    quiet = [tensor(f"t{at}", 4.0) for at in range(3000)]
    quiet[1500] = tensor("loud", math.inf, low_maximum=math.inf)
    report = replace(FAILING, tensors=tuple(quiet), nodes=(finding("loud", tensor="loud"),))
    page.resize(PHONE_WIDTH, 900)
    try:
        open_report(page, report, tmp_path)
        width, height = page.ask(
            "(() => { const r = document.querySelector('#overview path.failing').getBoundingClientRect();"
            " return [r.width, r.height]; })()"
        )
    finally:
        page.resize(1280, 900)
    assert width > 1 and height >= 5


def test_nodes_by_error_come_before_the_tensors(page: browser.Page, tmp_path: Path) -> None:
    error = NodeError("", "/mel/Pow", "Pow", 0.25, "white by library onnx (Pow)", 'add "Pow" to black-list to-add')
    open_report(page, replace(FAILING, layerwise=(error,)), tmp_path)
    sections = page.ask("[...document.querySelectorAll('section[id]')].map(s => s.id)")
    assert sections.index("next") < sections.index("offenders") < sections.index("layerwise") < sections.index("ranges")
    cells = page.ask("[...document.querySelectorAll('#layerwise tbody td')].map(cell => cell.innerText)")
    assert cells == ["Pow", "0.25", "", "white by library onnx (Pow)", 'add "Pow" to black-list to-add']
    titles = page.ask("[...document.querySelectorAll('#layerwise th[scope=col]')].map(cell => cell.textContent)")
    assert titles[-2:] == ["low by", "to keep it high"]
