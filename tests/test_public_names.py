"""The Python names that users import, their errors for a wrong argument, and how results print (docs/stability.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.training_loops import load_loop

TEXT = "g (float[2] x) => (float[2] y) { [e] a = Exp(x) [s] y = Sigmoid(a) }"
DATA = [{"x": np.array([1, 2], np.float32)}]
MODEL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "resolve": lambda policy: mixlist.resolve(model(TEXT), policy),
    "check": lambda policy: mixlist.check(model(TEXT), policy, DATA),
    "export": lambda policy: mixlist.export(model(TEXT), policy, "ort"),
    "tune": lambda policy: mixlist.tune(model(TEXT), policy, DATA),
    "train": lambda policy: mixlist.train(lambda seed, scaler: 0.0, policy),
}


def test_every_public_name_can_be_imported() -> None:
    for name in mixlist.__all__:
        assert getattr(mixlist, name) is not None
    assert {"train", "validate", "diff", "Limits", "Diagnostic", "Progress"} <= set(mixlist.__all__)


@pytest.mark.parametrize("name", sorted(MODEL_FUNCTIONS))
@pytest.mark.parametrize("argument", ["modify.json", Path("modify.json"), {"black-list": {}}])
def test_an_argument_that_is_no_policy_is_refused_with_advice(name: str, argument: object) -> None:
    with pytest.raises(TypeError, match=r"pass a Policy, such as mixlist\.load_policy\(mixlist='modify\.json'\)"):
        MODEL_FUNCTIONS[name](argument)


def test_an_argument_that_is_no_plan_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"plan is a Policy: pass the Plan that mixlist\.resolve"):
        mixlist.rewrite(model(TEXT), mixlist.load_policy())  # type: ignore[arg-type]


def test_results_print_as_one_line(tmp_path: Path) -> None:
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["Exp", "NoSuchOp"]}}')
    onnx.save(model(TEXT), tmp_path / "m.onnx")
    path, policy = str(tmp_path / "m.onnx"), mixlist.load_policy(mixlist=lists)
    plan = mixlist.resolve(path, policy)
    results = [
        *(policy, plan, mixlist.rewrite(path, plan), mixlist.check(path, policy, DATA), mixlist.validate(lists)),
        *(mixlist.tune(path, policy, DATA), mixlist.bench(path, policy, DATA, rounds=2)),
        mixlist.train(load_loop(), policy, runs=1),
        *(mixlist.export(path, policy, tool) for tool in ("ort", "modelopt", "atc")),
    ]
    for result in results:
        text = repr(result).replace(str(tmp_path), "")
        assert text.startswith(f"<{type(result).__name__} ")
        assert "\n" not in text and len(text) <= 120, text


def test_warnings_of_every_result_are_diagnostics_in_python_and_text_in_json(tmp_path: Path) -> None:
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["NoSuchOp"]}}')
    policy = mixlist.load_policy(mixlist=lists)
    results = [
        *(mixlist.check(model(TEXT), policy, DATA), mixlist.tune(model(TEXT), policy, DATA)),
        mixlist.bench(model(TEXT), policy, DATA, rounds=2),
        mixlist.train(load_loop(), policy, runs=1),
    ]
    for result in results:
        assert all(isinstance(warning, mixlist.Diagnostic) for warning in result.warnings)
        assert "ML406" in [warning.code for warning in result.warnings]
        texts = result.to_json()["warnings"]
        assert isinstance(texts, list) and len(texts) == len(result.warnings)
        assert any("ML406: " in text for text in texts)


def test_validate_reports_op_types_that_a_library_does_not_have(tmp_path: Path) -> None:
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["Exp", "NoSuchOp"]}}')
    assert mixlist.validate(lists).findings == ()
    (finding,) = mixlist.validate(lists, ops_info="onnx").findings
    assert isinstance(finding, mixlist.Diagnostic)
    assert (finding.code, finding.severity, finding.line) == ("ML108", "warning", 1)
    model_findings = mixlist.validate(lists, model=model(TEXT)).findings
    assert {finding.code for finding in model_findings} >= {"ML108"}
    assert len(model_findings) > 1  # the model has no such operator either


def test_diff_gives_the_edits_that_turn_one_policy_into_another(tmp_path: Path) -> None:
    base, other = mixlist.load_policy(ops_info="ascend910"), mixlist.load_policy(ops_info="ascend910b")
    edits = tmp_path / "modify.json"
    edits.write_text(json.dumps(mixlist.diff(base, other)))
    edited = mixlist.load_policy(ops_info="ascend910", mixlist=edits)
    names = base.lists.library.lists.keys() | other.lists.library.lists.keys()
    assert {op: edited.lists.list_of(op) for op in names} == {op: other.lists.list_of(op) for op in names}
    assert mixlist.diff(base, base) == {}
    with pytest.raises(mixlist.MixlistError, match="has onnx names, but ascend910 has ascend names"):
        mixlist.diff(mixlist.load_policy(), base)


def test_progress_of_resolve_and_save_counts_bytes(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    proto = model("g (float[2, 64] x, float[64, 64] w) => (float[2, 64] y) { y = MatMul(x, w) }")
    del proto.graph.input[1]
    proto.graph.initializer.append(weights)
    reports: list[mixlist.Progress] = []
    plan = mixlist.resolve(proto, mixlist.load_policy(), progress=reports.append)
    assert [(report.done, report.total, report.unit) for report in reports] == [(4 * 64 * 64, None, "bytes")]
    reports.clear()
    mixlist.rewrite(proto, plan).save(tmp_path / "out.onnx", external_data="yes", progress=reports.append)
    assert [(report.done, report.total, report.unit) for report in reports] == [(2 * 64 * 64, 2 * 64 * 64, "bytes")]
