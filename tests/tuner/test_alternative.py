"""Where lists alone keep too little work in low precision, a result with node rules is recommended (Rule S9.15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.tuner.result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import stop_at

# Twelve products, of which the first overflows where x is 300; one black MatMul costs all of them.
PRODUCTS = 12
WEIGHTS = ", ".join("300" if at == 0 else "0.25" for at in range(16))
TEXT = (
    f"g (float[2, 4] x, float[2, 4] s) => (float[2, 4] y, float[2, 4] z) <float[4, 4] w = {{{WEIGHTS}}}> {{"
    " [big] b = MatMul(x, w) [end] y = Tanh(b) [m0] t0 = MatMul(s, w) [n0] c0 = Tanh(t0) "
    + " ".join(f"[m{at}] t{at} = MatMul(c{at - 1}, w) [n{at}] c{at} = Tanh(t{at})" for at in range(1, PRODUCTS - 1))
    + f" [out] z = Identity(c{PRODUCTS - 2}) }}"
)
RULES = policy(white=["MatMul"])


def feeds(count: int = 1, last: float = 300.0) -> list[dict[str, Any]]:
    sizes = [300.0] * (count - 1) + [last]
    return [{"x": np.full((2, 4), size, np.float32), "s": np.full((2, 4), 0.1, np.float32)} for size in sizes]


def tuned(**options: Any) -> TuneReport:
    return mixlist.tune(model(TEXT), RULES, feeds(), **options)


def test_one_rule_keeps_what_the_list_gives_away(tmp_path: Path) -> None:
    report = tuned()
    assert [(edit.op, edit.node) for edit in report.edits] == [("MatMul", "")]
    assert report.low_share == {"base": 1.0, "tuned": 0.0}
    other = report.alternative
    assert other is not None and other.recommended and other.minimal and other.check.verdict == "pass"
    assert (other.objective, [edit.node for edit in other.edits]) == ("min-edits", ["big"])
    assert other.low_share == pytest.approx(1 - 1 / PRODUCTS)
    with pytest.raises(UsageError, match="no file was named"):
        other.save(tmp_path / "m.json")
    with pytest.raises(UsageError, match="both the lists and the node rules"):
        other.save(tmp_path / "m.json", tmp_path / "." / "m.json")
    other.save(tmp_path / "m.json", tmp_path / "n.txt")
    assert (tmp_path / "n.txt").read_text() == other.customize_dtypes


def test_it_is_what_the_search_with_node_rules_finds() -> None:
    other, asked = tuned().alternative, tuned(node_rules=True)
    assert other is not None and asked.alternative is None
    assert (other.edits, other.modify_mixlist, other.customize_dtypes) == (
        asked.edits,
        asked.modify_mixlist,
        asked.customize_dtypes,
    )


def test_no_second_search_where_the_lists_keep_enough() -> None:
    """The overflow is in a Mul, which is no matrix work."""
    text = "g (float[4] x, float[4, 4] s) => (float[4] y, float[4, 4] z) { [m] y = Mul(x, x) [p] z = MatMul(s, s) }"
    data = [{"x": np.full(4, 300, np.float32), "s": np.full((4, 4), 0.5, np.float32)}]
    report = mixlist.tune(model(text), policy(white=["Mul", "MatMul"]), data)
    assert [edit.op for edit in report.edits] == ["Mul"]
    assert report.low_share["tuned"] == 1
    assert report.alternative is None
    assert not any("(MatMul): float32" in str(trial["edits"]) for trial in report.log)


def test_the_validation_judges_both() -> None:
    report = mixlist.tune(model(TEXT), RULES, feeds(4))
    assert report.validation is not None and report.alternative is not None
    assert report.alternative.validation is not None
    assert (report.verdict, report.alternative.recommended) == ("pass", True)


def test_a_result_that_the_validation_fails_is_not_recommended() -> None:
    """On the held-out batch another product overflows, which the list keeps high and the rule does not."""
    data = feeds(4)
    data[3]["s"] = np.full((2, 4), 300, np.float32)
    report = mixlist.tune(model(TEXT), RULES, data)
    assert report.verdict == "pass"
    other = report.alternative
    assert other is not None and other.validation is not None
    assert (other.recommended, other.validation.verdict) == (False, "fail")


def test_ctrl_c_in_the_second_search_keeps_the_first_result() -> None:
    log = tuned().log
    (at, *_) = [at for at, trial in enumerate(log, 1) if "(MatMul): float32" in str(trial["edits"])]
    report = tuned(progress=stop_at(at))
    assert (report.verdict, report.complete, report.alternative) == ("pass", True, None)
    assert any("the search for node rules" in warning.message for warning in report.warnings)
