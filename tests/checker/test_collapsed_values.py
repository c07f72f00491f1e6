"""Test that a part of an output that became one value fails (Rule S8.33)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import numpy_helper

import mixlist
from mixlist.checker import collapsed_values
from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.collapsed_values import CollapseFinder
from mixlist.checker.limits import Limits, describe_broken_limit, describe_failed_limits
from mixlist.checker.result import IndexFinding, OutputFinding
from mixlist.model import dtypes
from tests.support.builders import policy
from tests.support.exact_operators import certain_tensor
from tests.support.exact_verdict import is_collapse, parts_of

Floats = NDArray[np.floating]
RNG = np.random.default_rng(0)
# A detector's output: boxes of up to 500 in the rows 0 to 3, and the scores of three classes in the rows 4 to 6. The
# scores are near 1 / 2, after a sum in which float16 cannot hold their differences.
DETECTOR = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 4, 64] boxes, float[1, 3, 64] logits) => (float[1, 7, 64] y) <float offset = {4096}> {
    [box] scaled = Mul(boxes, offset)
    [back] b = Div(scaled, offset)
    [add] far = Add(logits, offset)
    [subtract] near = Sub(far, offset)
    [score] s = Sigmoid(near)
    [join] y = Concat <axis = 1> (b, s)
}
"""
SCORES = policy(white=["Add", "Sub", "Sigmoid"], black=["Mul", "Div", "Concat"])


def detector() -> onnx.ModelProto:
    return onnx.parser.parse_model(DETECTOR)


def detector_batch(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    logits = rng.uniform(-0.9, 0.9, (1, 3, 64)).astype(np.float32)
    return {"boxes": rng.uniform(0, 500, (1, 4, 64)).astype(np.float32), "logits": logits}


def find(*batches: tuple[Floats, Floats], low: int = dtypes.FLOAT16, max_error: float = 0.01) -> list[str]:
    finder = CollapseFinder(low)
    for reference, mixed in batches:
        finder.add(reference, mixed)
    return [str(collapse) for collapse in finder.collapses(max_error)]


def test_scores_beside_boxes_that_became_one_value_fail() -> None:
    """Rule S8.33: the boxes hide the error of the scores, and each row of scores is named."""
    report = mixlist.check(detector(), SCORES, [detector_batch()])
    (output,) = report.outputs
    assert report.verdict == "fail" and output.failed_limits == ("collapse",)
    assert output.cosine is not None and output.cosine > 0.999
    assert [(c.axis, c.index, c.values, c.value) for c in output.collapses] == [(1, i, 64, 0.5) for i in (4, 5, 6)]
    text = "output 'y', index 4 of axis 1: 64 values became 0.5, and 2 other indices became one value each"
    assert report.reasons == (text,)
    assert report.to_json()["outputs"][0]["collapses"][0] == {"axis": 1, "index": 4, "values": 64, "value": 0.5}


def test_trials_judge_a_collapse() -> None:
    report = mixlist.tune(detector(), SCORES, [detector_batch(seed) for seed in range(2)])
    assert report.verdict == "pass" and report.check is not None
    assert any("became 0.5" in str(trial) for trial in report.log)
    assert report.check.outputs[0].collapses == ()


def test_an_index_counts_over_all_batches() -> None:
    """One value in each of eight batches is enough, and a second value of the mixed model clears the index."""
    reference = np.arange(1, 9, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    mixed = np.full((8, 3), 0.5, np.float32)
    mixed[:, 1] = reference[:, 1]
    batches = [(reference[i : i + 1], mixed[i : i + 1]) for i in range(8)]
    assert find(*batches[:7]) == []
    assert find(*batches) == [f"index {i} of axis 1: 8 values became 0.5" for i in (0, 2)]
    assert find(*batches, (reference[:1], mixed[:1] + 1)) == []


def test_an_index_counts_in_the_batches_that_have_it() -> None:
    reference, mixed = RNG.uniform(1, 2, (3, 8)).astype(np.float32), RNG.uniform(1, 2, (3, 8)).astype(np.float32)
    mixed[2] = 7
    rows = (0, 1, 3, 2)  # the first batch is empty
    collapsed = find(*((reference[:count], mixed[:count]) for count in rows))
    assert collapsed == ["index 2 of axis 0: 8 values became 7"]


@pytest.mark.parametrize(
    ("title", "reference", "mixed"),
    [
        ("seven different values", np.repeat(np.arange(1, 8), 9), np.full(63, 2)),
        ("different only below the smallest normal number", np.linspace(-6e-5, 6e-5, 64), np.zeros(64)),
        ("different only in float32", 1 + np.linspace(0, 2**-13, 64), np.full(64, 9)),
        ("within the limit of the error", np.linspace(0.5, 0.505, 64), np.full(64, 0.5)),
        ("one value in both", np.full(64, 3), np.full(64, 4)),
        ("NaN in the reference", np.where(np.arange(64) < 57, np.nan, np.arange(64)), np.full(64, 9)),
        ("an infinity", np.arange(64), np.full(64, np.inf)),
        ("NaN in the mixed model", np.arange(64), np.full(64, np.nan)),
    ],
)
def test_no_collapse(title: str, reference: Floats, mixed: Floats) -> None:
    assert find((reference.astype(np.float32), mixed.astype(np.float32))) == [], title


def test_too_long_an_axis_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapsed_values, "MOST_PARTS", 2)
    reference, mixed = (RNG.uniform(1, 2, (3, 8)).astype(np.float32) for _ in range(2))
    mixed[0] = 7
    assert find((reference[:2], mixed[:2])) == ["index 0 of axis 0: 8 values became 7"]
    assert find((reference, mixed)) == []


def test_values_of_nan_do_not_count() -> None:
    reference = np.concatenate([[np.nan], np.arange(1, 9)]).astype(np.float32)
    mixed = np.concatenate([[3], np.full(8, 0.5)]).astype(np.float32)
    assert find((reference, mixed)) == ["as a whole: 8 values became 0.5"]


def test_values_differ_in_the_low_type() -> None:
    """Bfloat16 has 3 fewer bits than float16, and numbers of 1e-30."""
    close, tiny = np.linspace(1, 1.02, 64, dtype=np.float32), np.linspace(1e-30, 2e-30, 64, dtype=np.float32)
    far = np.full(64, 0.25, np.float32)
    assert find((close, far)) and not find((close, far), low=dtypes.BFLOAT16)
    assert find((tiny, far), low=dtypes.BFLOAT16) and not find((tiny, far))


@pytest.mark.parametrize(("low", "smallest"), [(dtypes.FLOAT16, 2.0**-14), (dtypes.BFLOAT16, 2.0**-126)])
def test_the_smallest_normal_number_differs_from_zero(low: int, smallest: float) -> None:
    """These are eight different values, of which the second is the smallest normal number or becomes zero."""
    for second, count in ((smallest, 1), (smallest * 0.99, 0)):
        reference = np.array([0, second, 1, 2, 3, 4, 5, 6], np.float32)
        assert len(find((reference, np.full(8, 9, np.float32)), low=low)) == count


def test_bfloat16_rounds_ties_to_even() -> None:
    """13 values half-way between two numbers of bfloat16 become 7 of them, which are too few for a collapse."""
    ties = (1 + np.arange(13) * 2.0**-7 + 2.0**-8).astype(np.float32)
    far = np.full(13, 0.25, np.float32)
    assert not find((ties, far), low=dtypes.BFLOAT16)
    assert find((ties[::2] + np.float32(2.0**-8), far[::2]), (ties[:1] + np.float32(0.5), far[:1]), low=dtypes.BFLOAT16)


def test_an_error_at_the_limit_is_no_collapse() -> None:
    reference, mixed = np.arange(1, 9, dtype=np.float32), np.zeros(8, np.float32)
    assert find((reference, mixed), max_error=0.99) and not find((reference, mixed), max_error=1.0)
    near, far = reference + 100, mixed + 100  # the error is 0.048
    assert find((near, far), max_error=0.04) and not find((near, far), max_error=0.05)


few_values = st.sampled_from([0.0, 0.5, 1.0, 1e-6, 3.0, np.nan, 7.0, 9.0, 11.0, 13.0, 15.0])


@given(
    st.lists(
        st.tuples(*[hnp.arrays(np.float32, (2, 9), elements=few_values)] * 2, st.booleans()), min_size=1, max_size=3
    )
)
def test_the_finder_agrees_with_the_reference(batches: list[tuple[Floats, Floats, bool]]) -> None:
    """Compare with tests/support/exact_verdict.py, in blocks of one part and of three values, added and merged."""
    pairs = [(x, np.where(one_value, np.float32(0.5), y)) for x, y, one_value in batches]
    for _, mixed in pairs:
        mixed[0] = 0.5
    parts = list(parts_of([(certain_tensor(x), certain_tensor(y)) for x, y in pairs]))
    expected = [is_collapse(part, "float16") for part in parts]
    finder, merged = CollapseFinder(dtypes.FLOAT16), CollapseFinder(dtypes.FLOAT16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collapsed_values, "_BLOCK_SIZE", 3)
        for x, y in pairs:
            finder.add(x, y)
            batch = CollapseFinder(dtypes.FLOAT16)
            batch.add(x, y)
            merged.merge(batch)
    places = [(None, None), *((axis, index) for axis, size in enumerate((2, 9)) for index in range(size))]
    shown = [place for place, is_expected in zip(places, expected, strict=True) if is_expected]
    shown = shown[:1] if expected[0] else shown
    assert [(c.axis, c.index) for c in finder.collapses(0.01)] == shown
    assert merged.collapses(0.01) == finder.collapses(0.01)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["softmax of 1000 classes", "saturated sigmoids", "nearly constant channels"])
def test_outputs_that_only_round_are_no_collapse(case: str, low: str) -> None:
    """Rule S8.33 raises no false alarm where rounding alone makes values equal."""
    gain, bias, last = {
        "softmax of 1000 classes": (4.0, 0.0, "Softmax <axis = -1>"),
        "saturated sigmoids": (0.3, 20.0, "Sigmoid"),
        "nearly constant channels": (0.003, 0.0, "Sigmoid"),
    }[case]
    text = f"""
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[64, 32] x) => (float[64, 1000] y) <float offset = {{30}}> {{
        h = MatMul(x, w)
        far = Add(h, offset)
        near = Sub(far, offset)
        k = Add(near, b)
        y = {last} (k)
    }}
    """
    model = onnx.parser.parse_model(text)
    weights = (RNG.standard_normal((32, 1000)) / 5 * gain, np.linspace(-bias, bias, 1000))
    for name, array in zip("wb", weights, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    white = ["MatMul", "Add", "Sub", "Sigmoid", "Softmax"]
    batches = [{"x": RNG.standard_normal((64, 32)).astype(np.float32)} for _ in range(2)]
    limits = Limits(cosine=None)
    report = mixlist.check(model, policy(white=white, mode=f"mixed_{low}"), batches, limits=limits)
    assert report.precision == low and report.outputs[0].collapses == ()


# --- --per-index ---


def test_each_index_of_an_axis_keeps_the_limits() -> None:
    reference = np.stack([np.full((8, 5), 500.0), np.ones((8, 5)), np.ones((8, 5))], axis=1).astype(np.float32)
    mixed = reference.copy()
    mixed[:, 1] *= 1.05
    mixed[:4, 2] *= 1.02
    for axis, failed in ((None, ()), (1, ("normalized",)), (-2, ("normalized",)), (0, ()), (2, ()), (5, ())):
        output = OutputAccuracy("y", per_index=axis)
        output.add(reference, mixed)
        finding = output.finding(Limits(per_index=axis))
        assert finding.failed_limits == failed, axis
        assert (finding.worst_index is None) == (axis in (None, 5))
        if failed:
            assert finding.worst_index is not None and finding.worst_index.index == 1
            assert finding.worst_index.normalized_error == pytest.approx(0.05, rel=1e-4)
            assert output.cannot_pass(Limits(per_index=axis))


def test_the_worst_index_is_named() -> None:
    batch = detector_batch()
    batch["logits"] *= 4
    report = mixlist.check(detector(), SCORES, [batch], limits=Limits(per_index=1))
    (output,) = report.outputs
    assert report.verdict == "fail" and "normalized" in output.failed_limits
    assert output.worst_index is not None and output.worst_index.index in (4, 5, 6)
    assert output.normalized_error is not None and output.normalized_error < 0.01
    worst = output.worst_index
    measures = f"normalized {worst.normalized_error:.3g} (limit 0.01), cosine {worst.cosine:.3g} (limit 0.999)"
    assert report.reasons[0] == f"output 'y' misses {measures} at index {worst.index} of axis 1"


def test_a_limit_that_the_worst_index_keeps_has_the_measure_of_the_whole_output() -> None:
    """The limits that an output breaks are those of the whole output and those of its worst index."""
    broken = ("max_abs", "normalized")
    whole = OutputFinding("y", 3.0, 0.0, 0.02, 1.0, 34.0, None, None, passed=False, failed_limits=broken)
    worst = IndexFinding(1, 2, 1.0, 0.0, 0.5, 1.0, 6.0, None, failed_limits=("normalized",))
    text = describe_failed_limits(replace(whole, worst_index=worst), Limits(max_abs=2.0))
    assert text == "max_abs 3 (limit 2), normalized 0.5 (limit 0.01)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99897, "cosine 0.99897 (limit 0.999)"),
        (0.95, "cosine 0.95 (limit 0.999)"),
        (np.nan, "cosine nan (limit 0.999)"),
    ],
)
def test_a_value_near_its_limit_has_the_digits_that_differ(value: float, text: str) -> None:
    assert describe_broken_limit("cosine", value, 0.999) == text
