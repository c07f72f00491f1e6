"""A check on the terminal, and the numbers that both reports share."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from mixlist import NodeError, number_text
from mixlist.show.check_document import check_document, limits_text
from mixlist.show.document import MAX_ROWS
from mixlist.show.terminal import write_document
from tests.support.check_reports import FAILING, PASSING, SUGGESTION, finding, output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report_text(report) -> str:
    stream = io.StringIO()
    write_document(check_document(report), stream)
    return stream.getvalue()


def test_the_parts_of_the_report_have_a_fixed_order() -> None:
    text = report_text(FAILING)
    assert text.startswith("FAIL  models/melspec.onnx in float16, emulated on cpu, 5 batches\n")
    parts = ["1 of 5 batches overflowed", "First offenders", "/mel/Pow (Pow)", SUGGESTION, "Other findings"]
    parts += ["Outputs", "Nodes by error", "Time"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_pass_is_short() -> None:
    text = report_text(PASSING)
    assert text.startswith("PASS  good.onnx")
    assert "offenders" not in text
    assert "Time" not in text
    assert len(text.splitlines()) < 14


def test_a_first_offender_has_its_values_batches_reason_and_suggestion() -> None:
    lines = report_text(FAILING).splitlines()
    at = lines.index("  overflow  /mel/Pow (Pow)")
    assert [line.split(None, 1)[0] for line in lines[at + 1 : at + 5]] == ["output:", "batches:", "low", "to"]
    assert lines[at + 1].endswith("/mel/Pow_output_0: up to 3.2e9 in float32, inf in float16")
    assert lines[at + 2].endswith("1 of 5, first #2, 12 values in the first batch")
    assert lines[at + 3].endswith("white by library onnx (Pow)")
    assert lines[at + 4].endswith(SUGGESTION)


def test_saturated_nodes_come_first_and_only_once() -> None:
    text = report_text(replace(FAILING, nodes=(finding("s", "saturated", first=True), finding("u", "underflow"))))
    assert text.count("saturated") == 1
    assert text.index("saturated") < text.index("Other findings") < text.index("underflow")


def test_underflow_is_a_number_on_a_pass_and_a_row_otherwise() -> None:
    """The largest values of both models are equal there, so a row said nothing."""
    underflow, near = finding("u", "underflow", tensor="t"), finding("n", "near-limit")
    text = report_text(replace(PASSING, nodes=(underflow, near)))
    assert "  1 underflow: became zero" in text and "\nunderflow" not in text and "\nnear-limit" in text
    assert "\nunderflow" in report_text(replace(FAILING, nodes=(underflow,)))


def test_nodes_with_small_errors_are_no_advice() -> None:
    """To keep three nodes of 0.0018 high changed nothing in an error of 0.1."""
    missed = replace(FAILING.outputs[0], normalized_error=0.1, failed_limits=("normalized",))
    errors = tuple(NodeError("", name, "Conv", 0.0018, "white", SUGGESTION) for name in "abc")
    failing = replace(FAILING, nodes=(), outputs=(missed,), layerwise=errors, next_command="mixlist convert m.onnx")
    text = report_text(failing)
    small = "the 3 that add the most add 0.0054 of 0.1 together, so to keep them high changes little."
    assert small in text and "keep one after the other high" not in text
    assert text.index(small) < text.index("mixlist convert m.onnx")
    large = (replace(errors[0], normalized_error=0.05),)
    assert "keep one after the other high" in report_text(replace(failing, layerwise=large))


def test_long_lists_are_cut_with_the_number_of_missing_rows() -> None:
    nodes = tuple(finding(f"n{at}") for at in range(MAX_ROWS + 5))
    propagated = tuple(finding(f"p{at}", "propagated") for at in range(MAX_ROWS + 7))
    text = report_text(replace(FAILING, nodes=nodes + propagated))
    assert text.count("\n  overflow  ") == MAX_ROWS
    assert "... and 5 more (--format json and --html FILE have all)" in text
    assert "... and 7 more" in text
    assert f"{MAX_ROWS + 7} propagated: " in text


def test_the_report_is_complete_without_color(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "150")
    colored = Terminal()
    write_document(check_document(FAILING), colored)
    assert "\x1b[31mFAIL\x1b[0m" in colored.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    write_document(check_document(FAILING), plain)
    assert "\x1b[31m" not in plain.getvalue()
    assert "fail: normalized, cosine" in plain.getvalue()


def test_names_cannot_steer_the_terminal() -> None:
    hostile_name = "a\x1b[2J\rb\u202e"
    nodes = (
        finding(hostile_name, source=hostile_name, suggestion=hostile_name, op_type=hostile_name),
        finding(hostile_name, "propagated", tensor=hostile_name),
    )
    changes = {
        "model": hostile_name,
        "reasons": (hostile_name,),
        "nodes": nodes,
        "outputs": (output(hostile_name),),
        "seconds": {hostile_name: 1.0},
    }
    text = report_text(replace(FAILING, **changes))
    assert not set(text) & set("\x1b\r\u202e")
    assert text.count(r"a\x1b[2J\rb\u202e") >= 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (65504.0, "65504"),
        (57053.2, "57053"),
        (999.96, "1000"),
        (1.5, "1.5"),
        (0.00390625, "0.003906"),
        (1e6, "1e6"),
        (3.2e9, "3.2e9"),
        (2e-10, "2e-10"),
        (-12.5, "-12.5"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number_text.format_number(value) == text


def test_a_cosine_near_one_differs_from_one() -> None:
    assert [number_text.format_cosine(c) for c in (1.0, 1 - 2e-8, 0.998, -1.0)] == ["1", "1 - 2e-8", "0.998", "-1"]


def test_a_share_is_100_percent_only_if_it_is_1() -> None:
    assert [number_text.format_share(s) for s in (None, 0.0, 4e-5, 0.5, 0.9999, 1.0)] == [
        *("-", "0 %", "0.004 %", "50 %"),
        *("> 99.9 %", "100 %"),
    ]


def test_limits_have_the_names_of_their_options() -> None:
    from mixlist import Limits

    all_limits = {"exception_rate": 1.0, **Limits(1.0, 1.0, 1.0, 1.0, 1.0, 1.0).enabled()}
    assert limits_text(all_limits) == [
        *("--max-exception-rate 1", "--max-abs-error 1", "--max-rel-error 1", "--max-normalized-error 1"),
        *("--min-cosine 1", "--min-snr 1", "--max-mismatch 1"),
    ]
    assert limits_text({"cosine": 0.999}) == ["--min-cosine 0.999"]
