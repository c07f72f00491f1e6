"""``mixlist.diff``: the settings, nodes, Casts, accuracy and cost in which two policies differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.lists.diff import find_setting_changes
from tests.support.builders import model

# Exp overflows in float16 for x > 11.1, and is black in the library pytorch.
MODEL = model(
    """g (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}>
    { [m] a = MatMul(x, w) [e] b = Exp(a) [r] y = Relu(b) }"""
)
DATA = [{"x": np.full((2, 4), value, np.float32)} for value in (1, 12)]


def edited(tmp_path: Path, text: str, **options: Any) -> mixlist.Policy:
    """Return a policy with a modify_mixlist file of this text."""
    path = tmp_path / "modify.json"
    path.write_text(text)
    return mixlist.load_policy(mixlist=path, **options)


def test_the_totals_count_nodes_and_casts(tmp_path: Path) -> None:
    text = '{"white-list": {"to-add": ["Exp"]}, "black-list": {"to-remove": ["Exp"]}}'
    base, other = mixlist.load_policy("pytorch"), edited(tmp_path, text, ops_info="pytorch")
    report = mixlist.diff(base, other, MODEL)
    # Exp and the gray Relu behind it become float16. Before: a Cast of x and one after MatMul; then: of x and of y.
    assert [(node.name, node.base, node.other) for node in report.nodes] == [
        ("e", "float32", "float16"),
        ("r", "float32", "float16"),
    ]
    assert [(row["name"], row["op_type"], row["other"]) for row in report.to_rows()] == [
        ("e", "Exp", "float16"),
        ("r", "Relu", "float16"),
    ]
    assert report.count_changes() == {("float32", "float16"): Counter({"Exp": 1, "Relu": 1})}
    assert (report.total, report.base.casts, report.other.casts) == (3, 2, 2)
    assert report.base.casts == mixlist.rewrite(MODEL, mixlist.resolve(MODEL, base)).casts_inserted
    assert report.mixlist == {"white-list": {"to-add": ["Exp"]}, "black-list": {"to-remove": ["Exp"]}}
    assert (report.settings, report.base.check, report.other.work) == ((), None, None)


def test_equal_policies_change_nothing() -> None:
    policy = mixlist.load_policy()
    report = mixlist.diff(policy, mixlist.load_policy(), MODEL)
    assert (report.nodes, report.settings, report.mixlist) == ((), (), {})
    assert report.base == report.other


def test_data_judge_both_sides_on_the_same_batches(tmp_path: Path) -> None:
    text = '{"white-list": {"to-add": ["Exp"]}, "black-list": {"to-remove": ["Exp"]}}'
    base, other = mixlist.load_policy("pytorch"), edited(tmp_path, text, ops_info="pytorch")
    report = mixlist.diff(base, other, MODEL, DATA)
    base_check, other_check = report.base.check, report.other.check
    assert base_check is not None
    assert other_check is not None
    assert (base_check.verdict, base_check.exception_rate, base_check.batches) == ("pass", 0, 2)
    assert (other_check.verdict, other_check.exception_rate, other_check.batches) == ("fail", 0.5, 2)
    assert other_check.outputs == mixlist.check(MODEL, other, DATA).outputs
    assert report.base.work is not None
    assert report.other.work is not None
    assert report.base.work.low_flops < report.other.work.low_flops  # Exp and Relu are low too
    assert report.base.work.bytes > report.other.work.bytes


def test_a_generator_of_batches_serves_both_sides() -> None:
    report = mixlist.diff(mixlist.load_policy(), mixlist.load_policy(), MODEL, (feed for feed in DATA), max_batches=1)
    checks = report.base.check, report.other.check
    assert [check.batches for check in checks if check] == [1, 1]


def test_libraries_of_two_name_spaces_are_compared_with_a_model() -> None:
    base, other = mixlist.load_policy(), mixlist.load_policy(ops_info="ascend910b")
    report = mixlist.diff(base, other, MODEL)
    assert report.mixlist is None
    assert ("name space", "onnx", "ascend") in [(s.setting, s.base, s.other) for s in report.settings]


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        ({"gray_policy": "ascend"}, {"gray_policy": "between"}, "gray policy (ascend -> between)"),
        ({"constants": "keep"}, {"constants": "clamp"}, "constants (keep -> clamp)"),
        ({}, {"protect": "none"}, "protections (masks,norms,positions,quantized -> none)"),
        ({}, {"precision_mode_v2": "mixed_bfloat16"}, "precision mode (mixed_float16 -> mixed_bfloat16)"),
    ],
)
def test_each_setting_that_differs_is_named(base: dict[str, str], other: dict[str, str], expected: str) -> None:
    changes = find_setting_changes(mixlist.load_policy(**base), mixlist.load_policy(**other))  # type: ignore[arg-type]
    assert [str(change) for change in changes] == [expected]


def test_two_names_of_a_mode_and_settings_without_effect_do_not_differ() -> None:
    old = mixlist.load_policy(precision_mode="allow_mix_precision")
    new = mixlist.load_policy(precision_mode_v2="mixed_float16")
    assert find_setting_changes(old, new) == ()
    # No list decides under origin, so nodes of the gray list do not follow anything.
    origin = [mixlist.load_policy(precision_mode_v2="origin", gray_policy=name) for name in ("ascend", "between")]
    assert find_setting_changes(*origin) == ()


def test_node_rules_are_compared_by_their_meaning(tmp_path: Path) -> None:
    texts = {
        "a.cfg": "first\nsecond\n",
        "b.cfg": "# comment\nfirst\nsecond\n",
        "c.cfg": "first\nthird\n",
        "d.cfg": "second\nfirst\n",
    }
    policies = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        policies[name] = mixlist.load_policy(keep_dtype=tmp_path / name)
    assert find_setting_changes(policies["a.cfg"], policies["b.cfg"]) == ()
    changes = find_setting_changes(policies["a.cfg"], policies["c.cfg"])
    assert [str(change) for change in changes] == ["node rules (2, 1 of them only here -> 2, 1 of them only here)"]
    (change,) = find_setting_changes(policies["a.cfg"], policies["d.cfg"])
    assert change.base == "2 in another order"
    (change,) = find_setting_changes(mixlist.load_policy(), policies["a.cfg"])
    assert (change.base, change.other) == ("none", "2, 2 of them only here")


def test_data_without_a_model_and_another_mixed_model_are_refused() -> None:
    policy = mixlist.load_policy()
    with pytest.raises(mixlist.MixlistError, match="need a model"):
        mixlist.diff(policy, policy, data=DATA)  # type: ignore[call-overload]
    with pytest.raises(mixlist.MixlistError, match="no other model"):
        mixlist.diff(policy, policy, MODEL, DATA, mixed_model=MODEL)
    with pytest.raises(TypeError, match="pass a Policy"):
        mixlist.diff(policy, "modify.json", MODEL)  # type: ignore[call-overload]
