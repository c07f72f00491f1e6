"""The HTML page of a check: its text, and itself in a real browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mixlist.checker.result import CheckReport, TensorRange
from mixlist.errors import FileError
from mixlist.report import range_chart as chart
from mixlist.report.check_html import render, write_html

from . import browser
from .check_reports import EVIL, FAILING, PASSING, SUGGESTION, finding, large, output, tensor

needs_browser = pytest.mark.skipif(browser.find() is None, reason="no Chromium here (Debian: apt-get install chromium)")


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of each, scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def data_of(page: str) -> dict:
    return json.loads(Parsed(page).scripts[0])


def test_the_page_leads_with_the_verdict_and_the_first_offenders() -> None:
    text = Parsed(render(FAILING)).text
    assert 0 < text.index("FAIL") < text.index("1 of 5 batches overflowed") < text.index("/mel/Pow")
    assert text.index("/mel/Pow") < text.index("Right answers") < text.rindex("Dynamic range")
    assert SUGGESTION in text
    assert "If_0/then_branch//If/Mul" in text
    assert "✕ fail: normalized, cosine" in text
    assert "98.6 % before, 98.3 % after, of 360 labels" in re.sub(r"\s+", " ", text)
    assert "12 of 400 values of 'mel'" in text
    assert "would show no overflow there" in text


def test_a_passing_page_says_so_and_has_no_empty_sections() -> None:
    page = render(PASSING)
    text = Parsed(page).text
    assert "PASS" in text
    assert "None: nothing overflowed on this data." in text
    masked = replace(PASSING, nodes=(finding("mask", "intended"),))
    assert "nothing overflowed on this data, but for masks" in Parsed(render(masked)).text
    for title in ("Dynamic range", "All findings", "Where error is born", "Time of the check"):
        assert title not in text
    ids = {attributes["id"] for _, attributes in Parsed(page).tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in Parsed(page).tags if tag == "a"}
    assert {link.removeprefix("#") for link in links} <= ids


def test_nothing_is_fetched() -> None:
    page = render(large(50))
    for tag, attributes in Parsed(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "@import" not in page
    assert "url(" not in page


@pytest.mark.parametrize(
    "place", ["model", "reason", "warning", "node", "scope", "tensor", "op", "source", "suggestion", "output", "phase"]
)
def test_every_name_is_escaped(place: str) -> None:
    named = {
        "node": {"name": EVIL},
        "scope": {"scope": EVIL},
        "tensor": {"tensor": EVIL},
        "op": {"op_type": EVIL},
        "source": {"source": EVIL},
        "suggestion": {"suggestion": EVIL},
    }
    of_report = {
        "model": {"model": EVIL},
        "reason": {"reasons": (EVIL,)},
        "warning": {"warnings": (EVIL,)},
        "output": {"outputs": (output(EVIL),)},
        "phase": {"seconds": {EVIL: 1.0}},
    }
    report = replace(FAILING, **of_report.get(place, {}))
    if place in named:
        report = replace(report, nodes=(replace(finding("n"), **named[place]),))
        of_tensor = {key: text for key, text in named[place].items() if key in ("tensor", "scope", "op_type")}
        report = replace(report, tensors=(tensor("t", 1.0, **of_tensor),))
    evil = Parsed(render(report))
    assert EVIL in evil.text or any(
        EVIL in text for row in json.loads(evil.scripts[0])["tensors"] for text in strings(row)
    )
    assert len(evil.scripts) == 2
    assert not [tag for tag, _ in evil.tags if tag == "img"]


def strings(row: dict[str, object]) -> list[str]:
    return [value for value in row.values() if isinstance(value, str)]


def test_control_and_direction_characters_are_spelled_out() -> None:
    page = render(replace(FAILING, model="a\x1b[2Jb\u202ec\x00d", nodes=(finding("x\u202ey"),)))
    for character in "\x1b\u202e\x00":
        assert character not in page
    assert r"a\x1b[2Jb\u202ec\x00d" in Parsed(page).text


def test_the_data_holds_every_tensor_and_finding() -> None:
    report = large(5000)
    data = data_of(render(report))
    assert len(data["tensors"]) == 5000
    assert len(data["findings"]) == len(report.nodes)
    assert data["limits"] == sorted(data["limits"], reverse=True)
    assert data["tensors"][0]["kind"] == ""
    kinds = {row["tensor"]: row["kind"] for row in data["tensors"]}
    for found in report.nodes:
        assert kinds[found.tensor] == found.kind


def test_looks_go_by_the_worst_finding_of_a_tensor() -> None:
    nodes = (finding("a", "near-limit", tensor="t"), finding("a", tensor="t"), finding("a", "underflow", tensor="t"))
    page = render(replace(FAILING, nodes=nodes, tensors=(tensor("t", 1e9),)))
    assert [(row["look"], row["kind"]) for row in data_of(page)["tensors"]] == [("failing", "overflow")]


def test_many_first_offenders_fold_away() -> None:
    report = replace(FAILING, nodes=tuple(finding(f"n{at}") for at in range(300)))
    page = render(report)
    text = Parsed(page).text
    assert "295 more first offenders" in text
    assert "… and 200 more, in the list of all findings" in text
    assert page.count('class="offender"') == 100


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_both_low_types(precision: str) -> None:
    text = Parsed(render(replace(FAILING, precision=precision))).text
    assert {"float16": "65504, largest", "bfloat16": "3.39e38, largest"}[precision] in text
    assert {"float16": "2⁻¹⁴, smallest normal", "bfloat16": "2⁻¹²⁶, smallest normal"}[precision] in text


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(PASSING, path)
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="none"):
        write_html(PASSING, tmp_path / "none" / "report.html")


# --- the picture ---


def ranged(minimum: float, maximum: float, smallest: float | None = None) -> chart.Span:
    return chart.span(TensorRange("", "t", "n", "Op", True, minimum, maximum, smallest, minimum, maximum))


def test_spans_are_powers_of_two() -> None:
    assert ranged(-8.0, 4.0, 0.25) == chart.Span(-2.0, 3.0)
    assert ranged(0.0, 0.0) == chart.Span(None, None)
    assert ranged(-math.inf, 1.0, 0.5) == chart.Span(-1.0, math.inf)
    assert ranged(math.nan, 1.0) == chart.Span(None, math.inf)
    assert ranged(0.0, 5e-324) == chart.Span(None, -1074.0)


@pytest.mark.parametrize(("low", "bottom", "top"), [("float16", -28, 20), ("bfloat16", -137, 132)])
def test_the_scale_holds_the_limits_and_follows_the_values_a_little(low: str, bottom: int, top: int) -> None:
    limits = chart.FORMATS[low]
    assert chart.scale([], limits) == chart.Scale(bottom, top)
    wide = chart.scale([chart.Span(-1000.0, 1000.0), chart.Span(None, math.inf)], limits)
    assert wide == chart.Scale(bottom - 12, top + 12)
    assert wide.place(-1e6) == 0.0
    assert wide.place(math.inf) == 1.0


def test_limits_are_those_of_the_types() -> None:
    import ml_dtypes
    import numpy as np

    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        info, low = ml_dtypes.finfo(dtype), chart.FORMATS[name]
        assert low.largest == pytest.approx(math.log2(float(info.max)), abs=0.01)
        assert 2.0**low.normal == float(info.smallest_normal)
        assert 2.0**low.subnormal == float(info.smallest_subnormal)


def test_neighbours_share_a_column_and_lose_no_extreme() -> None:
    spans = [chart.Span(-1.0, 1.0)] * 5000
    spans[1234] = chart.Span(-20.0, 18.0)
    drawn = chart.scale(spans, chart.FORMATS["float16"])
    path = chart.paths(spans, ["low"] * 5000, drawn)["low"]
    assert path.count("M") <= chart.COLUMNS
    tops = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)V", path)]
    bottoms = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    assert min(tops) == pytest.approx(chart.HEIGHT * (1 - drawn.place(18.0)), abs=0.1)
    assert max(bottoms) == pytest.approx(chart.HEIGHT * (1 - drawn.place(-20.0)), abs=0.1)
    assert list(chart.paths(spans, ["high", *["failing"] * 4999], drawn)) == ["high", "failing"]  # the worst on top


# --- in a browser ---


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def shown(page: browser.Page, report: CheckReport, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_html(report, path)
    page.requests.clear()
    page.messages.clear()
    page.open(path)
    return path


ROWS = "document.querySelectorAll('#range-table tbody tr').length"
COUNT = "document.getElementById('range-count').textContent"


@needs_browser
def test_runs_alone_and_without_complaint(page: browser.Page, tmp_path: Path) -> None:
    path = shown(page, large(200), tmp_path)
    assert page.requests == [path.as_uri()]
    assert page.messages == []
    assert page.ask("document.title") == "FAIL: models/melspec.onnx – mixlist check"
    assert page.ask("document.querySelector('img')") is None


@needs_browser
def test_five_thousand_nodes_are_drawn_a_piece_at_a_time(page: browser.Page, tmp_path: Path) -> None:
    shown(page, large(), tmp_path)
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


@needs_browser
def test_search_filter_and_order(page: browser.Page, tmp_path: Path) -> None:
    shown(page, large(), tmp_path)
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
    evil = sum(EVIL in found.name for found in large().nodes)
    assert page.ask("document.getElementById('finding-count').textContent").startswith(f"{evil} of ")
    assert page.ask("document.querySelectorAll('.kind[open] tbody tr').length") == evil > 0
    assert page.ask("document.title").startswith("FAIL")


@needs_browser
def test_the_picture_leads_to_the_list(page: browser.Page, tmp_path: Path) -> None:
    shown(page, large(200), tmp_path)
    box = "const r = document.getElementById('overview').getBoundingClientRect(), k = r.width / 1300;"
    at = "{clientX: r.left + 44 * k + 1100 * k * (100.5 / 200), clientY: r.top + r.height / 2, bubbles: true}"
    send = f"{{ {box} document.getElementById('overview').dispatchEvent(new PointerEvent('%s', {at})) }}"
    page.ask(send % "pointermove")
    assert "/encoder/layer.2/op_100_output_0: " in page.ask("document.getElementById('under-cursor').textContent")
    page.ask(send % "click")
    assert page.ask("document.getElementById('range-search').value") == "/encoder/layer.2/op_100_output_0"
    assert page.ask(COUNT) == "1 of 200 tensors"


@needs_browser
def test_keyboard(page: browser.Page, tmp_path: Path) -> None:
    shown(page, large(300), tmp_path)
    seen = []
    for _ in range(40):
        page.press("Tab", 9)
        seen.append(page.ask("document.activeElement.id || document.activeElement.tagName"))
        if seen[-1] == "SUMMARY" and page.ask("document.activeElement.parentElement.className") == "kind":
            break
    assert seen[0] == "A"
    assert {"range-search", "range-show", "range-order"} <= set(seen)
    assert seen[-1] == "SUMMARY"
    page.press("Enter", 13, "\r")
    page.ask("new Promise(done => setTimeout(done, 100))")
    assert page.ask("document.querySelector('.kind').open") is True


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(page: browser.Page, tmp_path: Path, scheme: str) -> None:
    """Every kind of text keeps WCAG's contrast of 4.5 (AA) to what is behind it."""
    page.show(scheme)
    try:
        shown(page, FAILING, tmp_path)
        worst = page.ask(_CONTRAST)
    finally:
        page.show()
    assert worst["checked"] > 50
    assert worst["ratio"] >= 4.5, worst


_CONTRAST = """(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const found = {ratio: 99, checked: 0};
  for (const node of document.querySelectorAll("body *:not(script):not(svg *)")) {
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    if (!node.checkVisibility()) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    found.checked++;
    const ratio = (a + .05) / (b + .05);
    if (ratio < found.ratio) Object.assign(found, {ratio, text: node.textContent.slice(0, 60)});
  }
  return found;
})()"""


@needs_browser
def test_prints_light_and_unfolded(page: browser.Page, tmp_path: Path) -> None:
    shown(page, FAILING, tmp_path)
    page.show("dark", "print")
    try:
        assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.pdf().startswith(b"%PDF")
        assert page.ask("[...document.querySelectorAll('details')].every(box => box.open)") is True
        assert page.ask("document.querySelectorAll('.kind tbody tr').length") == len(FAILING.nodes)
    finally:
        page.show()


@needs_browser
def test_a_narrow_screen_scrolls_tables_and_not_the_page(page: browser.Page, tmp_path: Path) -> None:
    page.resize(380, 800)
    try:
        shown(page, large(20), tmp_path)
        assert page.ask("document.documentElement.scrollWidth") <= 380
    finally:
        page.resize(1280, 900)
