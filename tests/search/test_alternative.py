"""If lists alone keep too little work in low precision, a result with node rules is recommended (Rule S9.15)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import FileError, UsageError
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import interrupt_at

# Twelve matrix products. Only the first overflows, if x is 300, but a black MatMul makes all of them high.
PRODUCTS = 12
WEIGHTS = ", ".join("300" if at == 0 else "0.25" for at in range(16))
TEXT = (
    f"g (float[2, 4] x, float[2, 4] s) => (float[2, 4] y, float[2, 4] z) <float[4, 4] w = {{{WEIGHTS}}}> {{"
    " [big] b = MatMul(x, w) [end] y = Tanh(b) [m0] t0 = MatMul(s, w) [n0] c0 = Tanh(t0) "
    + " ".join(f"[m{at}] t{at} = MatMul(c{at - 1}, w) [n{at}] c{at} = Tanh(t{at})" for at in range(1, PRODUCTS - 1))
    + f" [out] z = Identity(c{PRODUCTS - 2}) }}"
)
POLICY = policy(white=["MatMul"])


def feeds(count: int = 1, last: float = 300.0) -> list[dict[str, Any]]:
    sizes = [300.0] * (count - 1) + [last]
    return [{"x": np.full((2, 4), size, np.float32), "s": np.full((2, 4), 0.1, np.float32)} for size in sizes]


def tune(**options: Any) -> TuneReport:
    return mixlist.tune(model(TEXT), POLICY, feeds(), **options)


@cache
def default_result() -> TuneReport:
    """Return the result without options, which several tests read."""
    return tune()


def test_a_rule_for_one_node_keeps_the_work_that_the_list_loses(tmp_path: Path) -> None:
    report = default_result()
    assert (report.verdict, report.objective, report.minimal) == ("pass", "min-edits", True)
    assert [edit.node for edit in report.edits] == ["big"] and report.has_node_rules
    assert report.low_share == {"base": 1.0, "tuned": pytest.approx(1 - 1 / PRODUCTS)}
    assert report.check is not None and report.check.verdict == "pass"
    lists_alone = report.alternative
    assert lists_alone is not None and lists_alone.minimal and lists_alone.check.verdict == "pass"
    assert [(edit.op, edit.node) for edit in lists_alone.edits] == [("MatMul", "")]
    assert (lists_alone.objective, lists_alone.low_share, lists_alone.customize_dtypes) == ("min-edits", 0.0, "")
    # Nothing is low under the lists alone, but much is low under the result.
    assert not report.keeps_nothing_low and not [item for item in report.warnings if item.code == "ML605"]
    with pytest.raises(UsageError, match="both the lists and the node rules"):
        report.save(tmp_path / "m.json", tmp_path / "." / "m.json")
    report.save(tmp_path / "m.json", tmp_path / "n.txt")
    assert (tmp_path / "n.txt").read_text() == report.customize_dtypes
    lists_alone.save(tmp_path / "other.json")
    assert {path.name for path in tmp_path.iterdir()} == {"m.json", "n.txt", "other.json"}


def test_node_rules_go_beside_the_list_without_a_file_for_them(tmp_path: Path) -> None:
    report = default_result()
    report.save(tmp_path / "m.json")
    assert (tmp_path / "m.rules.txt").read_text() == report.customize_dtypes
    (tmp_path / "m.json").unlink()
    with pytest.raises(FileError, match=r"m\.rules\.txt exists"):
        report.save(tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()


def test_the_recommended_result_is_that_of_a_search_with_node_rules() -> None:
    report, with_node_rules = default_result(), tune(node_rules=True)
    assert report.alternative is not None and with_node_rules.alternative is None
    assert (report.edits, report.modify_mixlist, report.customize_dtypes) == (
        with_node_rules.edits,
        with_node_rules.modify_mixlist,
        with_node_rules.customize_dtypes,
    )


def test_there_is_no_second_search_if_lists_keep_enough_work_low() -> None:
    """Only a Mul overflows, and an elementwise operator is no matrix work."""
    text = "g (float[4] x, float[4, 4] s) => (float[4] y, float[4, 4] z) { [m] y = Mul(x, x) [p] z = MatMul(s, s) }"
    data = [{"x": np.full(4, 300, np.float32), "s": np.full((4, 4), 0.5, np.float32)}]
    report = mixlist.tune(model(text), policy(white=["Mul", "MatMul"]), data)
    assert [edit.op for edit in report.edits] == ["Mul"]
    assert report.low_share["tuned"] == 1
    assert report.alternative is None
    assert not any("(MatMul): float32" in str(trial["edits"]) for trial in report.log)


def test_the_validation_judges_both_results() -> None:
    report = mixlist.tune(model(TEXT), POLICY, feeds(4))
    assert report.validation is not None and report.alternative is not None
    assert report.alternative.validation is not None
    assert (report.verdict, report.has_node_rules, report.validation.verdict) == ("pass", True, "pass")


def test_rules_that_fail_the_validation_are_not_the_result() -> None:
    """On the held-out batch another product overflows. The list keeps it high, the rule does not."""
    data = feeds(4)
    data[3]["s"] = np.full((2, 4), 300, np.float32)
    report = mixlist.tune(model(TEXT), POLICY, data)
    assert report.verdict == "pass"
    assert [(edit.op, edit.node) for edit in report.edits] == [("MatMul", "")]
    alternative = report.alternative
    assert alternative is not None and alternative.validation is not None
    assert ([edit.node for edit in alternative.edits], alternative.validation.verdict) == (["big"], "fail")


def test_ctrl_c_in_the_second_search_keeps_the_result_of_the_first() -> None:
    log = default_result().log
    (at, *_) = [at for at, trial in enumerate(log, 1) if "(MatMul): float32" in str(trial["edits"])]
    report = tune(progress=interrupt_at(at))
    assert (report.verdict, report.complete, report.alternative) == ("pass", True, None)
    assert any("the search for node rules" in warning.message for warning in report.warnings)
