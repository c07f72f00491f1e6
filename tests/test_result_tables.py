"""``to_rows`` of every result: flat rows with stable keys, which pandas and polars read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.result_tables import Row
from tests.support.builders import model

MODEL = model("g (float[2] x) => (float[2] y) { [e] a = Exp (x) [m] b = Mul (a, a) [s] y = Sigmoid (b) }")
DATA = [{"x": np.array([8, 9], np.float32)}]  # exp(9) squared is beyond float16
PLAN_KEYS = [
    *("scope", "name", "op_type", "domain", "list", "precision", "changed", "rule", "follows", "outputs", "reason"),
]
FINDING_KEYS = [
    *("scope", "name", "op_type", "tensor", "kind", "first", "count", "batches", "max_abs_fp32", "max_abs_low", "list"),
    *("source", "suggestion", "low_source_scope", "low_source_name", "low_source_op_type", "low_source_source"),
    *("low_source_suggestion", "input", "inside"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> mixlist.Policy:
    lists = tmp_path_factory.mktemp("lists") / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["Exp", "Mul"]}, "black-list": {"to-remove": ["Exp", "Mul"]}}')
    return mixlist.load_policy(mixlist=lists)


@pytest.fixture(scope="module")
def report(policy: mixlist.Policy) -> mixlist.CheckReport:
    return mixlist.check(MODEL, policy, DATA, per_tensor=True, layerwise=True)


def assert_flat(rows: list[Row], keys: list[str] | None = None) -> None:
    assert rows
    for row in rows:
        assert list(row) == (keys or list(rows[0]))
        for key, value in row.items():
            assert value is None or type(value) in (str, int, float, bool), (key, value)


def test_rows_of_a_plan(policy: mixlist.Policy) -> None:
    plan = mixlist.resolve(MODEL, policy)
    rows = plan.to_rows()
    assert_flat(rows, PLAN_KEYS)
    assert [row["name"] for row in rows] == ["e", "m", "s"]
    assert [row["precision"] for row in rows] == [node.precision for node in plan.nodes]
    assert rows[2]["outputs"] == f"y:{plan.nodes[2].outputs['y']}"


def test_rows_of_a_check(report: mixlist.CheckReport) -> None:
    assert_flat(report.to_rows(), FINDING_KEYS)
    first = report.to_rows()[0]
    assert (first["name"], first["kind"], first["batches"], first["low_source_name"]) == ("m", "overflow", "0", "")
    assert first["max_abs_low"] == float("inf")
    for table, count in (("outputs", 1), ("tensors", len(report.tensors)), ("layerwise", len(report.layerwise))):
        rows = report.to_rows(table)
        assert len(rows) == count > 0
        assert_flat(rows)
    with pytest.raises(UsageError, match="there is no table 'nodez'") as caught:
        report.to_rows("nodez")
    assert caught.value.hint == "the tables are nodes, outputs, tensors, layerwise, judge"


def test_rows_of_tune_and_bench(policy: mixlist.Policy) -> None:
    tuned = mixlist.tune(MODEL, policy, DATA)
    assert_flat(tuned.to_rows(), ["op", "before", "why", "nodes", "cost", "without"])
    assert_flat(tuned.to_rows("trials"), ["edits", "passed", "why", "remembered"])
    assert len(tuned.to_rows("trials")) == len(tuned.log)
    timed = mixlist.bench(MODEL, policy, DATA, rounds=10)
    rows = timed.to_rows()
    assert_flat(rows)
    assert [row["role"] for row in rows] == ["original", "other"]
    assert rows[1]["ratio_value"] == timed.ratio.value  # type: ignore[union-attr]
    assert isinstance(rows[0]["seconds_median"], float) and rows[0]["ratio_value"] is None
    assert_flat(timed.to_rows("operators"), ["role", "model", "op_type", "calls", "seconds"])


def test_rows_of_findings_and_of_differences(tmp_path: Path) -> None:
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["MatMull"]}}')
    rows = mixlist.validate(lists, ops_info="onnx").to_rows()
    assert_flat(rows, ["code", "severity", "message", "path", "line", "column", "hint"])
    assert (rows[0]["code"], rows[0]["line"]) == ("ML108", 1)
    before, after = (mixlist.load_policy(ops_info=name) for name in ("ascend910", "ascend910b"))
    edits = mixlist.diff(before, after)
    assert_flat(edits.to_rows(), ["op", "before", "after"])
    assert all(row["before"] != row["after"] for row in edits.to_rows())
    added = set(edits["white-list"].get("to-add", []))
    assert {row["op"] for row in edits.to_rows() if row["after"] == "white"} == added
    assert mixlist.diff(before, before).to_rows() == []


def all_rows(policy: mixlist.Policy, report: mixlist.CheckReport) -> list[list[Row]]:
    tables = [report.to_rows(table) for table in ("nodes", "outputs", "tensors", "layerwise")]
    return [mixlist.resolve(MODEL, policy).to_rows(), *tables]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames_have_one_column_for_each_key(
    package: str, policy: mixlist.Policy, report: mixlist.CheckReport
) -> None:
    frames: Any = pytest.importorskip(package, reason=f"{package} is not installed")
    options = {"infer_schema_length": None} if package == "polars" else {}
    for rows in all_rows(policy, report):
        frame = frames.DataFrame(rows, **options)
        assert list(frame.columns) == list(rows[0])
        assert len(frame) == len(rows)
