"""The HTML page of a check, as text, and the geometry of its range chart."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlist import CheckReport, TensorRange
from mixlist.diagnostics import warning
from mixlist.errors import FileError
from mixlist.show import range_chart as chart
from mixlist.show.check_document import check_document
from mixlist.show.html_page import render_document, write_page
from mixlist.show.terminal import escape_commands
from tests.support.check_reports import EVIL, FAILING, PASSING, SUGGESTION, finding, large, output, tensor


class ParsedPage(HTMLParser):
    """The tags of a page with their attributes, its text, and its scripts."""

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


def render(report: CheckReport) -> str:
    return render_document(check_document(report))


def lists_of(page: str) -> dict[str, list[dict]]:
    """Return the rows of each list of a page, by the id of the list: the text of each cell by the title of its column.

    ``row`` is the row as the page has it, with its group and filters.
    """
    scripts = ParsedPage(page).scripts
    return {
        data["id"]: [
            {
                column["title"]: cell[0] if isinstance(cell, list) else cell
                for column, cell in zip(data["columns"], row["cells"], strict=True)
            }
            | {"row": row}
            for row in data["rows"]
        ]
        for data in (json.loads(scripts[0]) if scripts else [])
    }


def test_the_page_starts_with_the_verdict_and_the_first_offenders() -> None:
    text = ParsedPage(render(FAILING)).text
    assert 0 < text.index("FAIL") < text.index("1 of 5 batches overflowed") < text.index("/mel/Pow")
    assert text.index("/mel/Pow") < text.index("--max-normalized-error") < text.rindex("Dynamic range")
    assert SUGGESTION in text
    assert "If_0/then_branch//If/Mul" in text
    assert "✕ fail: normalized, cosine" in text
    assert "12 of 400 values of 'mel'" in text
    assert "would show no overflow" in text


def test_the_page_of_a_pass_has_no_empty_sections() -> None:
    page = render(PASSING)
    text = ParsedPage(page).text
    assert "PASS" in text
    assert "None: nothing overflowed on this data." in text
    masked = replace(PASSING, nodes=(finding("mask", "intended"),))
    assert "nothing overflowed on this data, except by design" in ParsedPage(render(masked)).text
    for title in ("Dynamic range", "All findings", "Nodes by error", "The duration of the check"):
        assert title not in text
    ids = {attributes["id"] for _, attributes in ParsedPage(page).tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in ParsedPage(page).tags if tag == "a"}
    assert {link.removeprefix("#") for link in links} <= ids


def test_the_page_loads_nothing() -> None:
    page = render(large(50))
    for tag, attributes in ParsedPage(page).tags:
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
    node_changes = {
        "node": {"name": EVIL},
        "scope": {"scope": EVIL},
        "tensor": {"tensor": EVIL},
        "op": {"op_type": EVIL},
        "source": {"source": EVIL},
        "suggestion": {"suggestion": EVIL},
    }
    report_changes = {
        "model": {"model": EVIL},
        "reason": {"reasons": (EVIL,)},
        "warning": {"warnings": (warning("ML603", EVIL),)},
        "output": {"outputs": (output(EVIL),)},
        "phase": {"seconds": {EVIL: 1.0}},
    }
    report = replace(FAILING, **report_changes.get(place, {}))
    if place in node_changes:
        report = replace(report, nodes=(replace(finding("n"), **node_changes[place]),))
        tensor_changes = {
            key: text for key, text in node_changes[place].items() if key in ("tensor", "scope", "op_type")
        }
        report = replace(report, tensors=(tensor("t", 1.0, **tensor_changes),))
    parsed = ParsedPage(render(report))
    assert EVIL in parsed.text or any(
        EVIL in text for row in lists_of(render(report))["range"] for text in strings(row)
    )
    assert len(parsed.scripts) == 2
    assert not [tag for tag, _ in parsed.tags if tag == "img"]


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40))
def test_any_text_leaves_the_tags_unchanged(text: str) -> None:
    nodes = (finding("n", source=text, suggestion=text, op_type=text, tensor=text),)
    report = replace(FAILING, nodes=nodes, model=text, tensors=(tensor(text, 1.0),), outputs=(output(text),))
    usual_report = replace(FAILING, nodes=(finding("n"),), tensors=(tensor("t", 1.0),), outputs=(output("o"),))
    tags = [tag for tag, _ in ParsedPage(render(report)).tags]
    expected = [tag for tag, _ in ParsedPage(render(usual_report)).tags]
    if not text:  # an empty suggestion has no line
        expected = [tag for tag in expected if tag not in ("dt", "dd")]
        tags = [tag for tag in tags if tag not in ("dt", "dd")]
    assert tags == expected
    assert lists_of(render(report))["range"][0]["tensor"] == escape_commands(text)


def strings(row: dict[str, object]) -> list[str]:
    return [value for value in row.values() if isinstance(value, str)]


def test_control_and_direction_characters_are_escaped() -> None:
    page = render(replace(FAILING, model="a\x1b[2Jb\u202ec\x00d", nodes=(finding("x\u202ey"),)))
    for character in "\x1b\u202e\x00":
        assert character not in page
    assert r"a\x1b[2Jb\u202ec\x00d" in ParsedPage(page).text


def test_the_data_contains_every_tensor_and_finding() -> None:
    report = large(5000)
    page = render(report)
    lists = lists_of(page)
    assert len(lists["range"]) == 5000
    assert len(lists["finding"]) == len(report.nodes)
    (guides,) = (data["columns"][-1]["guides"] for data in json.loads(ParsedPage(page).scripts[0])[:1])
    assert len(guides) == 3 and guides == sorted(guides, reverse=True)
    assert lists["range"][0]["finding"] == ""
    kinds = {row["tensor"]: row["finding"] for row in lists["range"]}
    for node_finding in report.nodes:
        assert kinds[node_finding.tensor] == node_finding.kind


def test_the_style_of_a_tensor_follows_its_worst_finding() -> None:
    nodes = (finding("a", "near-limit", tensor="t"), finding("a", tensor="t"), finding("a", "underflow", tensor="t"))
    page = render(replace(FAILING, nodes=nodes, tensors=(tensor("t", 1e9),)))
    (row,) = lists_of(page)["range"]
    assert (row["range"]["shapes"][0][0], row["finding"]) == ("failing open", "overflow")


def test_many_first_offenders_are_folded() -> None:
    report = replace(FAILING, nodes=tuple(finding(f"n{at}") for at in range(300)))
    page = render(report)
    text = ParsedPage(page).text
    assert "295 more first offenders" in text
    assert "… and 200 more: --format json has all" in text
    assert page.count('<article class="record') == 100


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_limits_of_both_low_types_are_shown(precision: str) -> None:
    text = ParsedPage(render(replace(FAILING, precision=precision))).text
    assert {"float16": "65504, largest", "bfloat16": "3.39e38, largest"}[precision] in text
    assert {"float16": "2⁻¹⁴, smallest normal", "bfloat16": "2⁻¹²⁶, smallest normal"}[precision] in text


def test_a_page_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_page(render(PASSING), path)
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="none"):
        write_page(render(PASSING), tmp_path / "none" / "report.html")


# --- the range chart ---


@pytest.mark.parametrize(
    ("minimum", "maximum", "power"),
    [(-8, 4, 3), (0, 0, None), (-math.inf, 1, math.inf), (math.nan, math.nan, math.inf), (0, 5e-324, -1074)],
)
def test_the_largest_magnitude_is_a_power_of_two(minimum: float, maximum: float, power: float | None) -> None:
    assert chart.find_power(TensorRange("", "t", "n", "Op", True, minimum, maximum, minimum, maximum)) == power


@pytest.mark.parametrize(("low", "bottom", "top"), [("float16", -28, 20), ("bfloat16", -137, 132)])
def test_the_scale_contains_the_limits_and_extends_a_little_to_values(low: str, bottom: int, top: int) -> None:
    limits = chart.LOW_TYPE_LIMITS[low]
    assert chart.make_scale([], limits) == chart.Scale(bottom, top)
    wide = chart.make_scale([-1000.0, 1000.0, None, math.inf], limits)
    assert wide == chart.Scale(bottom - 12, top + 12)
    assert wide.place(-1e6) == 0.0
    assert wide.place(math.inf) == 1.0


def test_limits_agree_with_ml_dtypes() -> None:
    import ml_dtypes
    import numpy as np

    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        type_info, limits = ml_dtypes.finfo(dtype), chart.LOW_TYPE_LIMITS[name]
        largest, normal, subnormal = limits.values()
        assert largest == pytest.approx(math.log2(float(type_info.max)), abs=0.01)
        assert 2.0**normal == float(type_info.smallest_normal)
        assert 2.0**subnormal == float(type_info.smallest_subnormal)


def rectangles(path: str) -> list[tuple[float, ...]]:
    """Return the left edge, the top, the width and the bottom of each rectangle of an SVG path."""
    pattern = r"M([\d.]+) ([\d.]+)h([\d.]+)V([\d.]+)h-[\d.]+z"
    return [tuple(map(float, groups)) for groups in re.findall(pattern, path)]


def test_powers_in_one_column_keep_their_extremes() -> None:
    powers: list[float | None] = [1.0] * 5000
    powers[1234], powers[1235] = -20.0, 18.0
    scale = chart.make_scale(powers, chart.LOW_TYPE_LIMITS["float16"])
    below, marks = (rectangles(shape.path) for shape in chart.marks(powers, ["low"] * 5000, scale))
    assert 0 < len(marks) == len(below) <= chart.MAX_COLUMNS
    assert min(top for _, top, _, _ in marks) == pytest.approx(chart.HEIGHT * (1 - scale.place(18.0)), abs=0.1)
    assert max(bottom for *_, bottom in marks) == pytest.approx(chart.HEIGHT * (1 - scale.place(-20.0)), abs=0.1)
    assert {bottom for *_, bottom in below} == {chart.HEIGHT}
    both = chart.marks(powers, ["high", *["failing"] * 4999], scale)
    assert [shape.style for shape in both] == ["high open", "failing open", "high", "failing"]  # the worst on top


@pytest.mark.parametrize("power", [math.inf, -300.0, 3.0])
@pytest.mark.parametrize("position", [0, 2500, 4999])
def test_a_failing_tensor_can_be_seen_wherever_it_is(power: float, position: int) -> None:
    """The mark of one tensor of 5,000 is some units wide and high, also at the edges of the picture."""
    powers: list[float | None] = [1.0] * 5000
    powers[position] = power
    styles: list[chart.Style] = ["low"] * 5000
    styles[position] = "failing"
    shapes = chart.marks(powers, styles, chart.make_scale(powers, chart.LOW_TYPE_LIMITS["float16"]))
    marks = {shape.style: shape.path for shape in shapes}
    ((left, top, width, bottom),) = rectangles(marks["failing"])
    assert left >= 0 and left + width <= chart.WIDTH and width >= 6
    assert top >= 0 and bottom <= chart.HEIGHT and bottom - top >= chart.MIN_HEIGHT


@settings(max_examples=100, deadline=None)
@given(st.floats(-40, 0), st.floats(0, 40), st.sampled_from(["float16", "bfloat16"]))
def test_labels_of_the_picture_never_cover_one_another(low: float, high: float, name: str) -> None:
    limits = chart.LOW_TYPE_LIMITS[name]
    placed = [label.y for label in chart.labels(chart.make_scale([low, high], limits), limits)]
    assert placed == sorted(placed)
    assert all(below - above >= 12 for above, below in itertools.pairwise(placed))
    assert placed[0] >= 0 and placed[-1] <= chart.HEIGHT
