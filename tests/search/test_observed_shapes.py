"""The share of matrix work in low precision where shapes depend on data."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor

# The number of rows of ``p`` is the number of nonzero elements of ``x``: it depends on data. ``x`` itself has 1 row.
ROWS = """g (float[1, 8] x, float[8, 8] w) => (float[1, 8] y, float[N, 8] z)
  <int64[1] axis = {0}, int64[2] size = {-1, 8}> {
  [small] y = MatMul(x, w)
  n = NonZero(x) nt = Transpose <perm = [1, 0]> (n) k = Shape <start = 0, end = 1> (nt)
  e = Shape <start = 1, end = 2> (x) s = Concat <axis = 0> (k, e) xe = Expand(x, s)
  [large] p = Gemm(xe, w) [out] z = Neg(p) }"""


# The numbers of rows of ``p`` and ``q`` are those of the nonzero elements in either half of ``x``.
HALVES = """g (float[1, 8] x, float[8, 8] w) => (float[1, 8] y, float[A, 8] p, float[B, 8] q)
  <int64[1] axis = {0}, int64[2] half = {4, 4}, int64[1] size = {8}> {
  [small] y = MatMul(x, w) left, right = Split <axis = 1> (x, half)
  n = NonZero(left) nt = Transpose(n) k = Shape <start = 0, end = 1> (nt) s = Concat <axis = 0> (k, size)
  xe = Expand(x, s) p = Gemm(xe, w)
  m = NonZero(right) mt = Transpose(m) j = Shape <start = 0, end = 1> (mt) r = Concat <axis = 0> (j, size)
  xf = Expand(x, r) q = Gemm(xf, w) }"""


SOME = (1, 2, 3, 0, 0, 0, 0, 300)
NONE = (0,) * 8


def tune(text: str, *rows: tuple[int, ...], **options: object) -> TuneReport:
    """Tune on one batch for each row of ``x``."""
    feeds = [{"x": np.array([row], np.float32), "w": np.eye(8, dtype=np.float32)} for row in rows or (SOME,)]
    return mixlist.tune(
        model(text),
        policy(**options),  # type: ignore[arg-type]
        feeds,
        executor=InProcessExecutor(),
    )


def test_the_numbers_of_a_conversion_are_those_of_its_trials() -> None:
    """[small], which overflows, has 1 of 5 rows; the headline and the log of the search both count them all."""
    text = ROWS.replace("[small] y = MatMul(x, w)", "b = Mul(w, w) [small] y = MatMul(x, b)")
    text = text.replace("xe = Expand(x, s)", "t = Tanh(x) xe = Expand(t, s)")
    batch = {"x": np.array([SOME], np.float32), "w": 20 * np.eye(8, dtype=np.float32)}
    report = mixlist.convert(model(text), [batch], executor=InProcessExecutor()).report
    assert report.after is not None and report.after.low_share == pytest.approx(4 / 5)
    last = report.log[-1]
    assert last.passed and (last.low_nodes, last.low_share) == (report.after.low_nodes, report.after.low_share)


@pytest.mark.parametrize("rows", ["1", "R"])
def test_the_share_counts_products_whose_shapes_a_run_has_shown(rows: str) -> None:
    """Gemm has 4 rows in this batch, and MatMul has 1, which the batch may be the first to say."""
    text = ROWS.replace("float[1, 8] x", f"float[{rows}, 8] x").replace("float[1, 8] y", f"float[{rows}, 8] y")
    report = tune(text, white=["MatMul"], black=["Gemm"])
    assert report.low_share["base"] == pytest.approx(1 / 5)
    assert not any("does not count" in warning.message for warning in report.warnings)


def test_the_report_names_the_products_that_the_share_does_not_count() -> None:
    """The shapes of a body stay unknown, and so does the number of iterations that a condition ends."""
    loop = """g (float[1, 8] x, float[8, 8] w) => (float[1, 8] y, float[M, 8] z)
      <int64 trips = {3}, bool go = {1}, float limit = {1e6}> {
      [small] y = MatMul(x, w)
      [rows] z = Loop (trips, go, x) <body = b (int64 i, bool c, float[R, 8] h) => (bool d, float[Q, 8] o) {
          t = ReduceSum <keepdims = 0> (h) d = Less(t, limit)
          [inner] q = Gemm(h, w) o = Concat <axis = 0> (q, h) }> }"""
    report = tune(loop, white=["MatMul", "Gemm"])
    (warning,) = [warning for warning in report.warnings if warning.code == "ML618"]
    assert "does not count rows/body/inner" in warning.message
    assert "rows (Loop): one iteration" in warning.message


def test_a_batch_that_leaves_a_product_empty_does_not_decide_the_share() -> None:
    """The first batch has no nonzero element, so that Gemm has no rows there; the second one gives it 4 rows."""
    report = tune(ROWS, NONE, SOME, white=["MatMul"], black=["Gemm"])
    assert report.low_share["base"] == pytest.approx(1 / 5)
    assert not any(warning.code == "ML618" for warning in report.warnings)


@pytest.mark.parametrize(("second", "gemm_rows"), [((1, 0, 0, 0, 1, 2, 0, 0), 3), ((0, 0, 0, 0, 1, 2, 3, 0), 2)])
def test_the_first_batch_that_leaves_nothing_empty_is_counted(second: tuple[int, ...], gemm_rows: int) -> None:
    """Or else the first batch, which has two rows for the left half and none for the right one."""
    report = tune(HALVES, (1, 2, 0, 0, 0, 0, 0, 0), second, white=["MatMul"], black=["Gemm"])
    assert report.low_share["base"] == pytest.approx(1 / (1 + gemm_rows))


def test_the_report_names_a_product_that_is_empty_in_every_batch() -> None:
    report = tune(ROWS, NONE, NONE, white=["MatMul"], black=["Gemm"])
    assert report.low_share["base"] == 1
    (warning,) = [warning for warning in report.warnings if warning.code == "ML618"]
    assert "does not count large (Gemm), whose outputs are empty in the counted batch" in warning.message


def test_a_branch_whose_products_have_unknown_shapes_is_named() -> None:
    """The other branch has a larger known cost, which says nothing about the product of unknown size."""
    branch = """g (float[1, 8] x, float[8, 8] w) => (float[1, 8] y, float[M, 8] z) <float limit = {0}> {
      [small] y = MatMul(x, w)
      t = ReduceMax <keepdims = 0> (x)
      c = Greater(t, limit)
      [either] z = If (c) <then_branch = a () => (float[N, 8] o) {
          n = NonZero(x) nt = Transpose <perm = [1, 0]> (n) k = Shape <start = 0, end = 1> (nt)
          e = Shape <start = 1, end = 2> (x) s = Concat <axis = 0> (k, e) xe = Expand(x, s)
          [inner] o = Gemm(xe, w) }, else_branch = b () => (float[1, 8] p) { p = Neg(x) }> }"""
    report = tune(branch, white=["MatMul"], black=["Gemm"])
    (warning,) = [warning for warning in report.warnings if warning.code == "ML618"]
    assert "does not count either/then_branch/inner" in warning.message
    assert "either (If): then_branch, of unknown cost" in warning.message


def test_one_batch_that_leaves_a_product_empty_is_counted_as_it_is() -> None:
    report = tune(ROWS, NONE, white=["MatMul"], black=["Gemm"])
    assert report.low_share["base"] == 1


def test_only_tensors_whose_shape_is_unknown_are_observed() -> None:
    """A sequence has no shape to read."""
    text = ROWS.replace("[out] z = Neg(p)", "s0 = SequenceConstruct(p, p) [out] z = Neg(p)")
    network = model(text)
    feeds = [{"x": np.array([SOME], np.float32), "w": np.eye(8, dtype=np.float32)}]
    report = mixlist.tune(network, policy(white=["MatMul"], black=["Gemm"]), feeds, executor=InProcessExecutor())
    assert report.low_share["base"] == pytest.approx(1 / 5)
    assert not any("does not count" in warning.message for warning in report.warnings)


def test_no_model_runs_if_every_shape_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("mixlist.search.observed_shapes.prune_model", fail)
    text = "g (float[1, 8] x, float[8, 8] w) => (float[1, 8] y) { [small] y = MatMul(x, w) }"
    assert tune(text, white=["MatMul"]).low_share["base"] == 1
