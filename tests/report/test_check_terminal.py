"""A check on the terminal, and the figures that both reports share."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from mixlist.checker.result import ValueCounts
from mixlist.report import check_texts, number_text
from mixlist.report.check_terminal import MAX_ROWS, write_check
from tests.support.check_reports import FAILING, PASSING, SUGGESTION, finding, output, tensor


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(report) -> str:
    stream = io.StringIO()
    write_check(report, stream)
    return stream.getvalue()


def test_the_order_of_the_report() -> None:
    text = told(FAILING)
    assert text.startswith("FAIL  models/melspec.onnx in float16, emulated on cpu, 5 batches\n")
    parts = ["1 of 5 batches overflowed", "First offenders", "/mel/Pow (Pow)", SUGGESTION, "Other findings"]
    parts += ["Outputs", "right answers: 98.6 % before, 98.3 % after, of 360 labels", "Nodes by error", "Time"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_pass_is_short() -> None:
    text = told(PASSING)
    assert text.startswith("PASS  good.onnx")
    assert "offenders" not in text
    assert "Time" not in text
    assert len(text.splitlines()) < 12


def test_an_offender_tells_where_how_far_why_and_what_to_do() -> None:
    lines = told(FAILING).splitlines()
    at = lines.index("  overflow  /mel/Pow (Pow)")
    assert [line.split(None, 1)[0] for line in lines[at + 1 : at + 5]] == ["output:", "batches:", "low", "to"]
    assert lines[at + 1].endswith("/mel/Pow_output_0: up to 3.2e9 in float32, inf in float16")
    assert lines[at + 2].endswith("1 of 5, first #2, 12 values in the worst batch")
    assert lines[at + 3].endswith("white by library onnx (Pow)")
    assert lines[at + 4].endswith(SUGGESTION)


def test_saturated_nodes_lead_and_are_not_told_twice() -> None:
    text = told(replace(FAILING, nodes=(finding("s", "saturated", first=True), finding("u", "underflow"))))
    assert text.count("saturated") == 1
    assert text.index("saturated") < text.index("Other findings") < text.index("underflow")


def test_long_lists_are_cut_and_say_so() -> None:
    nodes = tuple(finding(f"n{at}") for at in range(MAX_ROWS + 5))
    more = tuple(finding(f"p{at}", "propagated") for at in range(MAX_ROWS + 7))
    text = told(replace(FAILING, nodes=nodes + more))
    assert text.count("\n  overflow  ") == MAX_ROWS
    assert "... and 5 more (--format json and --html FILE have all)" in text
    assert "... and 7 more" in text
    assert f"{MAX_ROWS + 7} propagated: " in text


def test_nothing_depends_on_colour(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "150")
    coloured = Terminal()
    write_check(FAILING, coloured)
    assert "\x1b[31mFAIL\x1b[0m" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    write_check(FAILING, plain)
    assert "\x1b[31m" not in plain.getvalue()
    assert "fail: normalized, cosine" in plain.getvalue()


def test_names_do_not_steer_the_terminal() -> None:
    evil = "a\x1b[2J\rb\u202e"
    nodes = (finding(evil, source=evil, suggestion=evil, op_type=evil), finding(evil, "propagated", tensor=evil))
    changed = {"model": evil, "reasons": (evil,), "nodes": nodes, "outputs": (output(evil),), "seconds": {evil: 1.0}}
    text = told(replace(FAILING, **changed))
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
def test_figures(value: float | None, text: str) -> None:
    assert number_text.format_number(value) == text


def test_a_cosine_can_be_told_from_one() -> None:
    assert [number_text.format_cosine(c) for c in (1.0, 1 - 2e-8, 0.998, -1.0)] == ["1", "1 - 2e-8", "0.998", "-1"]


def test_a_share_is_whole_only_where_it_is() -> None:
    assert [number_text.format_share(s) for s in (None, 0.0, 4e-5, 0.5, 0.9999, 1.0)] == [
        *("-", "0 %", "0.004 %", "50 %"),
        *("> 99.9 %", "100 %"),
    ]


def test_limits_are_told_as_the_options_that_set_them() -> None:
    from mixlist.checker.limits import Limits

    every = {"exception_rate": 1.0, **Limits(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0).enabled()}
    assert check_texts.limits_text(every) == [
        *("--max-exception-rate 1", "--max-abs-error 1", "--max-rel-error 1", "--max-normalized-error 1"),
        *("--min-cosine 1", "--min-snr 1", "--max-mismatch 1", "--min-top1 1"),
    ]
    assert check_texts.limits_text({"cosine": 0.999}) == ["--min-cosine 0.999"]


def test_counts_are_told_worst_first() -> None:
    clean, some = ValueCounts(10, 10, 0, 0, 0, 0), ValueCounts(1000, 1000, 0, 5, 0, 0)
    tensors = (tensor("clean", 1.0, counts=clean), tensor("some", 1.0, counts=some), tensor("high", 1.0, low=False))
    text = told(replace(FAILING, tensors=(*FAILING.tensors, *tensors)))
    lines = text[text.index("Values held in float16") :].splitlines()
    assert lines[1] == "  2010 values in 3 tensors: 2.62 % became zero, 42.5 % subnormal"
    assert "/tiny/Mul_output_0" in lines[4] and "1e-9" in lines[4] and "5 % became zero, 85.5 % subnormal" in lines[4]
    assert lines[5].startswith("some") and lines[5].endswith("0.5 % became zero")
    assert "clean" not in "".join(lines[3:8])
    assert "all within its range" in told(replace(PASSING, tensors=(tensor("clean", 1.0, counts=clean),)))


def test_without_counts_there_is_no_such_table() -> None:
    assert "Values held" not in told(replace(FAILING, tensors=(tensor("some", 1.0),)))
