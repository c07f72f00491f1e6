"""The renderers: GitHub annotations, SARIF, JSON lines, CSV, terminal."""

from __future__ import annotations

import csv
import io
import json

import pytest

from mixlist.diagnostics import Diagnostic
from mixlist.show import json_csv, terminal
from mixlist.show.document import Column, Document, Section, Table, columns_of
from mixlist.show.validate_document import annotation, sarif


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def write_table(titles: tuple[str, ...], rows: list[tuple[str, ...]], stream: io.StringIO) -> None:
    section = Section("rows", "", (Table(columns_of(*titles), rows),))
    terminal.write_document(Document("test", (section,)), stream)


FINDING = Diagnostic("ML106", "warning", "a: b, 100%\nnext", "lists/a,b:c.json", 3, 9, "do, this")


def test_annotations_are_escaped_for_the_runner() -> None:
    assert annotation(FINDING) == (
        "::warning file=lists/a%2Cb%3Ac.json,line=3,col=9,title=mixlist ML106::a: b, 100%25%0Anext (do, this)"
    )
    assert annotation(Diagnostic("ML001", "error", "m")) == "::error title=mixlist ML001::m"


def test_sarif_has_the_location_of_each_finding() -> None:
    finding = Diagnostic("ML106", "warning", "m", "lists/ä b.json", 3)
    absolute = Diagnostic("ML001", "error", "m", "/lists/a.json")
    nowhere = Diagnostic("ML401", "warning", "m")
    (run,) = sarif([FINDING, finding, absolute, nowhere])["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["ML001", "ML106", "ML401"]
    assert [result["ruleIndex"] for result in run["results"]] == [1, 1, 0, 2]
    places = [result.get("locations") for result in run["results"]]
    assert places[0] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "lists/a%2Cb%3Ac.json"},
                "region": {"startLine": 3, "startColumn": 9},
            }
        }
    ]
    assert places[1][0]["physicalLocation"]["artifactLocation"]["uri"] == "lists/%C3%A4%20b.json"
    assert places[1][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert places[2] == [{"physicalLocation": {"artifactLocation": {"uri": "file:///lists/a.json"}}}]
    assert places[3] is None
    assert run["results"][0]["message"]["text"] == "a: b, 100%\nnext (do, this)"


def test_sarif_without_findings_has_a_run_without_results() -> None:
    (run,) = sarif([])["runs"]
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []


@pytest.mark.parametrize(
    "result",
    [{}, {"a": 1, "b": []}, {"nodes": [{"x": "ä\n"}, {"x": None}], "counts": {"float16": 1}}, {"l": ["a", "b"]}],
)
def test_json_can_be_read_again(result: dict[str, object]) -> None:
    stream = io.StringIO()
    json_csv.write_json(result, stream)
    assert json.loads(stream.getvalue()) == result
    assert stream.getvalue().endswith("\n")


def test_json_has_a_line_for_each_element() -> None:
    stream = io.StringIO()
    json_csv.write_json({"format": "f", "nodes": [{"x": 1}, {"x": 2}]}, stream)
    assert stream.getvalue() == '{\n "format": "f",\n "nodes": [\n  {"x": 1},\n  {"x": 2}\n ]\n}\n'


def test_json_is_ascii_for_an_ascii_stream() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    json_csv.write_json({"a": "é\U0001f600"}, stream)
    stream.seek(0)
    assert json.loads(stream.read()) == {"a": "é\U0001f600"}


def test_csv_quotes_special_characters() -> None:
    stream = io.StringIO()
    json_csv.write_csv(("a", "b"), [('x,"y"', "z\n")], stream)
    assert stream.getvalue() == 'a,b\n"x,""y""",z\\n\n'  # the line end in a name is spelled out


def test_no_cell_of_a_csv_is_a_formula() -> None:
    """A spreadsheet would compute a node name that begins like a formula."""
    stream = io.StringIO()
    names = ("=1+1", "@f", "+x", "-2+3", "=", "a=b")
    numbers = ("-", "-0.5", "+3e-05", "-inf", "-1.", "")
    json_csv.write_csv(("a",), [(cell,) for cell in (*names, *numbers)], stream)
    assert [row[0] for row in csv.reader(stream.getvalue().splitlines()[1:])] == [
        *("'=1+1", "'@f", "'+x", "'-2+3", "'=", "a=b"),
        *numbers,
    ]


def test_color_depends_on_the_stream_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.paint("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert terminal.paint("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("x", "red", Terminal()) == "x"
    stream = Terminal()
    write_table(("a", "list"), [("1", "white")], stream)
    assert "\x1b" not in stream.getvalue()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.paint("x", "red", Terminal()) == "x"


def test_diagnostics_have_a_line_and_a_hint() -> None:
    lines = list(terminal.diagnostic_lines([FINDING], io.StringIO()))
    assert lines == ["lists/a,b:c.json:3:9: warning ML106: a: b, 100%\\nnext", "    hint: do, this"]


def test_a_plain_table_is_aligned_and_not_cut() -> None:
    stream = io.StringIO()
    write_table(("name", "x"), [("a" * 300, "1"), ("b", "")], stream)
    assert stream.getvalue().splitlines() == [
        "name" + " " * 298 + "x",
        "-" * 300 + "  -",
        "a" * 300 + "  1",
        "b",
    ]


def test_a_table_that_fits_the_terminal_folds_its_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    write_table(("name", "why"), [("/a/MatMul", "white by library onnx, and so in low precision"), ("b", "-")], stream)
    assert stream.getvalue().splitlines() == [
        "name       why",
        "---------  ---------------------------------",
        "/a/MatMul  white by library onnx, and so in",
        "           low precision",
        "b          -",
    ]


def test_a_table_that_does_not_fit_becomes_a_record_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    stream, name = Terminal(), "/encoder/" + "long_layer/" * 6 + "MatMul"
    columns = (*columns_of("output", "max abs", "cosine", "empty", "why"), Column("verdict", "verdict"))
    reason = "the values of the node are beyond the range"
    rows = [(name, "3.2e9", "1 - 0.00011", "", reason, "fail: cosine"), ("y", "0", "1", "", "-", "pass")]
    terminal.write_document(Document("test", (Section("rows", "", (Table(columns, rows),)),)), stream)
    assert stream.getvalue().splitlines() == [
        f"verdict: fail: cosine   output: {name}",
        "    max abs: 3.2e9   cosine: 1 - 0.00011",
        "    empty: -",
        "    why: the values of the node are",
        "    beyond the range",
        "verdict: pass   output: y",
        "    max abs: 0   cosine: 1   empty: -",
        "    why: -",
    ]
