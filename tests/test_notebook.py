"""The short table of every result in a notebook: what it says, and that it is safe."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import mixlist
from mixlist import FileReport, ListDiff
from mixlist.diagnostics import warning
from mixlist.result_tables import MAX_ROWS, notebook_facts, notebook_rows
from tests.support import bench_reports, check_reports, convert_reports, train_reports, tune_reports
from tests.support.builders import model
from tests.support.check_reports import EVIL, finding
from tests.support.package import Library, Lists

MODEL = model("g (float[2] x) => (float[2] y) { [e] a = Exp(x) [s] y = Relu(a) }")
POLICY = mixlist.load_policy(ops_info="pytorch")  # Exp is black
PLAN = mixlist.resolve(MODEL, POLICY)
EVIL_FINDING = finding(EVIL, op_type=EVIL, suggestion=EVIL)
EVIL_EDIT = replace(tune_reports.CONV, op=EVIL)
LIBRARY = Library(EVIL, {EVIL: "white", "Exp": "black"})
RESULTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "check": (
        replace(check_reports.FAILING, model=EVIL, nodes=(EVIL_FINDING, finding("/mel/Pow"))),
        (": fail", "1 of 5 batches overflowed", "/mel/Pow (Pow): overflow", "mel: fail, misses normalized, cosine"),
    ),
    "check that passes": (check_reports.PASSING, (": pass", "y: pass", "emulated on cpu, batches: 4")),
    "tune": (
        replace(tune_reports.TUNED, edits=(tune_reports.EXP, EVIL_EDIT)),
        ("good.onnx: pass", "Exp: white to black", "100 % before, 95 % after", "12</td>"),
    ),
    "convert": (
        replace(convert_reports.CONVERTED, reasons=(EVIL,)),
        ("model.onnx: pass", "78 of 80", "/encoder/layer.0/attention/MatMul (MatMul): its values reach"),
    ),
    "train": (train_reports.FAILING, (": fail", "seed 0: 0.98, 0.978", "runs: 3, steps: 600")),
    "bench": (replace(bench_reports.SLOWER, notes=(EVIL,)), ("28.1 ms", "3.3; 1.06 to 4.95 (95 % confidence)")),
    "bench of three rounds": (bench_reports.INCONCLUSIVE, ("inconclusive", "28.1 ms", "rounds: 3")),
    "bench that failed": (bench_reports.NOT_TIMED, ("no kernel for Mod",)),
    "diff": (
        ListDiff(Lists(LIBRARY), Lists(Library("b", {"Exp": "gray"}))),
        ("2 op types", "<td", "black", "white", "gray"),
    ),
    "diff with a model": (
        mixlist.DiffReport(
            model=EVIL,
            mixlist=None,
            settings=(),
            nodes=(mixlist.NodeChange("", "/n", EVIL, "float16", "float32", EVIL),),
            total=30,
            base=mixlist.SideResult("a", 4),
            other=mixlist.SideResult("b", 6),
        ),
        ("1 of 30 nodes", "float16", "float32", "<td"),
    ),
    "validate": (FileReport(EVIL, "ops-info", (warning("ML108", EVIL),)), ("findings: 1", "ML108", "warning")),
    "resolve": (PLAN, ("plan of g", "black", "float32", "gray", "<td")),
    "export": (mixlist.export(MODEL, POLICY, "ort"), ("for ort", "op_block_list", "call")),
    "rewrite": (mixlist.rewrite(MODEL, PLAN), ("mixed model of g", "float32: 2", "Casts inserted")),
}


class Table(HTMLParser):
    """The tags of a table, and its text."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(table)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"style", "scope", "colspan"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_a_short_table(name: str) -> None:
    result, expected = RESULTS[name]
    html = result._repr_html_()
    table = Table(html)
    assert table.open == []
    assert set(table.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "br"}
    assert "color" not in html
    for text in expected:
        assert text in html, text
    if EVIL in repr(result) + str(getattr(result, "nodes", "")) + str(getattr(result, "notes", "")):
        assert EVIL in table.text
    assert len(html) < 6000


def test_a_program_keeps_the_indentation_of_its_lines() -> None:
    program = "model = convert(\n    model,\n    keep_io_types=True,\n)"
    html = notebook_facts("t", {"call": program.splitlines()})
    assert "model = convert(<br>    model,<br>    keep_io_types=True,<br>)" in html
    assert "white-space: pre-wrap" in html.partition("model = convert(")[0].rpartition("<td")[2]


def test_long_parts_are_cut_and_control_characters_escaped() -> None:
    rows = [(f"op{at}\u202e", "white") for at in range(MAX_ROWS + 5)]
    table = Table(notebook_rows("many\x1b[2J", ("op", "list"), rows))
    assert table.tags.count("tr") == MAX_ROWS + 2
    assert "… and 5 more" in table.text
    assert "\u202e" not in table.text and "\x1b" not in table.text
    assert r"many\x1b[2J" in table.text
    facts = Table(notebook_facts("t", {"empty": "", "none": [], "two": ["a", "b"]}))
    assert facts.tags.count("tr") == 1
    many = replace(check_reports.FAILING, nodes=tuple(finding(f"n{at}") for at in range(500)))
    assert "… and 490 more" in many._repr_html_()
