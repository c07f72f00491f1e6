"""The report of a conversion: its headline, its numbers, and the table of other limits."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

import mixlist
from mixlist import HighNode
from mixlist.checker.result import JudgeResult, LargestDifference
from mixlist.search.convert_result import INTEGER_PRODUCTS
from mixlist.show.convert_document import convert_document, find_frontier
from mixlist.show.terminal import write_document
from tests.support.builders import model
from tests.support.convert_reports import CONVERTED, HIGH, KEPT, LITTLE, NOTHING_LOW, WITHOUT_RESULT
from tests.support.local_workers import InProcessExecutor


def text_of(report: mixlist.ConvertReport) -> str:
    stream = io.StringIO()
    write_document(convert_document(report), stream)
    return stream.getvalue()


def test_a_result_has_its_numbers_and_its_nodes() -> None:
    text = text_of(CONVERTED)
    assert text.startswith("PASS  model.onnx: 78 of 80 nodes in float16\n")
    for line in (
        "nodes in float16        0 of 80  78 of 80",
        "matrix work in float16  0 %      97.6 %",
        "bytes moved in a batch  61 MB    31.5 MB",
        "file size               12 MB    6.1 MB",
        "Casts                   2        6",
        "held-out batches that failed joined the search: batches/3.npz",
        "2 trials",
        "mixlist apply model.onnx --customize-dtypes keep.txt -o mixed.onnx",
    ):
        assert line in text
    assert "the search  its values reach 2.88e+08, beyond the range of float16" in text
    assert "What other limits would give" not in text


def test_nodes_with_one_reason_share_a_row() -> None:
    again = replace(KEPT, name="norm2", op_type="Mul")
    text = text_of(replace(CONVERTED, high_nodes=(HIGH, KEPT, again)))
    assert "loop/body/norm                     2      ReduceSum 1, Mul 1  the lists" in text
    assert "norm2" not in text
    cast = HighNode("", "c", "Cast", False, "an attribute of Cast sets its output type (S4.13)")
    assert "c           1      Cast       the model  an attribute" in text_of(replace(CONVERTED, high_nodes=(cast,)))
    assert "Nodes in float32\n  none\n" in text_of(replace(CONVERTED, high_nodes=()))


def test_a_small_gain_is_in_the_headline() -> None:
    text = text_of(LITTLE)
    assert text.startswith(
        "PASS  model.onnx: 20 of 80 nodes in float16, but only 7 % of the matrix work is low, the moved bytes fall by"
        " 1.48 %, and 7 more Casts run\n"
    )
    assert "What other limits would give" in text
    assert "0.0085            78 of 80          97.6 %" in text
    assert "With another max_normalized_error=..., convert searches again" in text
    assert "no data was given: the values are random" in text
    assert "Values overflow behind input 'x'" in text
    assert "Convert again with real data (data=...)" in text
    more_bytes = replace(LITTLE, after=replace(LITTLE.after or LITTLE.before, bytes=62_000_000, low_share=0.9))
    assert "nodes in float16, but the moved bytes rise by 1.64 % and 7 more Casts run\n" in text_of(more_bytes)


def test_a_result_that_saves_nothing_says_so_in_the_headline() -> None:
    """Of a model that is low already, more nodes are low, and the new Casts move more bytes than that saves."""
    before, after = replace(LITTLE.before, low_share=0.98), replace(LITTLE.before, low_share=0.97, bytes=64_000_000)
    worse = replace(LITTLE, before=before, after=replace(after, low_nodes=78), advice=())
    text = text_of(worse)
    assert "78 of 80 nodes in float16, but the moved bytes rise by 4.92 %: keep the given model\n" in text
    assert "The result saves nothing: keep the given model. For a larger gain, try" in text
    more_low = text_of(replace(worse, after=replace(after, low_share=0.99)))
    assert "rise by 4.92 %\n" in more_low and "keep the given model" not in more_low


def test_a_small_gain_has_a_step_that_fits() -> None:
    for advice in ((), ("divide the samples",)):
        assert "low_type='bfloat16', which holds larger values" in text_of(replace(LITTLE, advice=advice))
    assert "no other choice saves more: if that is too little, keep the given model" in text_of(
        replace(LITTLE, advice=(), log=())
    )
    later = text_of(
        replace(LITTLE, advice=(), log=(), later_opset=22, next_command="mixlist convert m.onnx --opset 22")
    )
    assert "Convert again at opset 22, which allows float16 for more nodes:\n    mixlist convert m.onnx" in later
    assert "keep the given" not in later and "For a larger gain" not in later
    for report in (LITTLE, WITHOUT_RESULT):
        text = text_of(replace(report, advice=(INTEGER_PRODUCTS,)))
        assert "Keep the file as it is: most matrix products" in text and "Set limits" not in text
    assert "Keep the file" not in text_of(replace(CONVERTED, advice=(INTEGER_PRODUCTS,)))


@pytest.mark.parametrize(
    ("shape", "judge", "is_named"),
    [
        ((1, 84, 8400), (), True),
        ((1, 25200, 85), (), True),
        ((1, 128, 768), (), False),
        ((1, 84, 8400), (JudgeResult("boxes_lost", 0.0, 0, 0.02, True),), False),
    ],
)
def test_raw_detections_have_a_judge(shape: tuple[int, ...], judge: tuple[Any, ...], is_named: bool) -> None:
    difference = LargestDifference(0, (0, 0, 0), shape, 1.0, 1.1)
    output = replace(CONVERTED.check.outputs[0], largest_difference=difference)
    text = text_of(replace(CONVERTED, check=replace(CONVERTED.check, outputs=(output,), judge=judge)))
    assert ("looks like boxes with scores" in text) == is_named
    assert ("1 became 1.1; these look like boxes with scores: judge='boxes' compares" in text) == is_named
    assert ("what the result detects on images with objects, with check and judge='boxes'" in text) == is_named


def test_nothing_low_is_no_pass() -> None:
    text = text_of(replace(NOTHING_LOW, customize_dtypes=""))
    assert text.startswith("PASS, BUT NOTHING IS LOW  model.onnx: 0 of 80 nodes in float16\n")
    assert "no search: the lists keep the limits" in text
    assert "Other lists may keep fewer" in text and "Too little could be compared" not in text


def test_without_a_result_the_limits_are_named() -> None:
    text = text_of(WITHOUT_RESULT)
    assert text.startswith("FAIL  model.onnx: no mixed model was found\n")
    assert "Set limits that the model can keep" in text
    assert "What other limits would give" in text


def test_the_frontier_has_the_cheapest_choice_for_each_limit() -> None:
    def trial(kept_limit: float | None, cost: int) -> mixlist.ConvertTrial:
        return mixlist.ConvertTrial(1, 0.5, cost, False, "", kept_limit)

    log = (trial(0.04, 10), trial(0.01, 50), trial(0.02, 60), trial(None, 1), trial(float("inf"), 1), trial(0.03, 20))
    assert [entry.kept_limit for entry in find_frontier(log)] == [0.01, 0.03, 0.04]


def test_the_page_is_the_report_with_the_graph() -> None:
    source = model("g (float[2, 2] x) => (float[2, 2] y) { [m] y = MatMul(x, x) }")
    result = mixlist.convert(source, None, executor=InProcessExecutor())
    page = mixlist.html(result)
    assert "g: 1 of 1 node in float16" in page and "What to do next" in page and "limits: " in page
    assert page.index("bytes moved in a batch") < page.index("<iframe") < page.rindex("Nodes in float32")
    assert "<iframe" not in mixlist.html(replace(result, report=WITHOUT_RESULT, rewritten=None))


def test_what_is_not_counted_and_a_file_that_grows_are_said() -> None:
    before, after = CONVERTED.before, CONVERTED.after
    assert after is not None
    assert "of unknown shape" not in text_of(CONVERTED) and "grows" not in text_of(CONVERTED)
    text = text_of(replace(CONVERTED, before=replace(before, uncounted=3), advice=(INTEGER_PRODUCTS,)))
    assert "matrix work and moved bytes: without 3 nodes of unknown shape\n" in text
    assert "matrix work on floats in float16" in text
    grown = replace(after, file_bytes=2 * before.file_bytes)
    assert "the file grows: it has more Casts, and weights" in text_of(replace(CONVERTED, after=grown))


def test_errors_of_several_sizes_share_a_row() -> None:
    node = replace(CONVERTED.high_nodes[0], raised=True)
    errors = [replace(node, reason=f"adds an error of {error} by itself") for error in ("0.003", "0.001")]
    text = text_of(replace(CONVERTED, high_nodes=tuple(errors)))
    assert "adds an error of up to 0.003 by itself" in text and "0.001" not in text
    assert "adds an error of 0.003 by itself" in text_of(replace(CONVERTED, high_nodes=(errors[0], errors[0])))


def test_the_numbers_of_a_judge_are_shown() -> None:
    check = replace(CONVERTED.check, judge=(JudgeResult("boxes_lost", 0.125, 1, 0.25, passed=True),))
    text = text_of(replace(CONVERTED, check=check))
    assert "Judge\n" in text and "boxes_lost" in text and "0.125" in text


def test_larger_limits_are_no_advice_against_overflow() -> None:
    node = replace(LITTLE.high_nodes[0], raised=True, reason="its values reach 1e+06, beyond the range of float16")
    text = text_of(replace(LITTLE, advice=(), high_nodes=(node,)))
    assert "For a larger gain, try low_type='bfloat16'" in text


def test_one_batch_of_data_is_little() -> None:
    sentence = "one batch judges the result: check it on others, too"
    one = replace(CONVERTED, batches=1, random_data=False)
    assert sentence in text_of(one)
    for report in (replace(one, batches=2), replace(one, random_data=True), replace(one, after=None)):
        assert sentence not in text_of(report)
