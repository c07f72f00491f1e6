"""Rule S4.50: a library of a chip says in which types the chip has kernels, and a node has one of these types.

The source is ``op_dtype_selection_strategy_allow_mix_precision_base.cc`` of hicann/ge.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mixlist
from mixlist.lists.ops_info import load_ops_info
from tests.support.builders import model
from tests.support.reference import Reference
from tests.support.reference_compare import differences

CHAIN = "g (float[4] x) => (float[4] y) { [e] h = Exp(x) [n] y = Neg(h) }"


def tensor(*types: str) -> dict[str, str]:
    return {"dtype": ",".join(types), "format": ",".join(["ND"] * len(types))}


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    """Write a library as an installed one has it, with Exp in float16 alone and Sqrt in float32 alone."""
    both = {"input0": tensor("float16", "float"), "output0": tensor("float16", "float")}
    ops = {
        "Exp": {"input0": tensor("float16"), "output0": tensor("float16")},
        "Sqrt": {"input0": tensor("float"), "output0": tensor("float")},
        "Neg": both,
        "Conv2D": {**both, "precision_reduce": {"flag": "true"}},
        "Select": {"input0": tensor("bool", "bool"), "input1": tensor("float16", "float16")},
    }
    (tmp_path / "aic-chip-ops-info.json").write_text(json.dumps(ops))
    return tmp_path / "aic-chip-ops-info.json"


def write_edits(folder: Path, **edits: str) -> Path:
    lists = {f"{name}-list": {"to-add": [op]} for op, name in edits.items()}
    (folder / "mix.json").write_text(json.dumps(lists))
    return folder / "mix.json"


def test_a_library_tells_the_types_of_the_first_tensor_with_floats(chip: Path) -> None:
    library, warnings = load_ops_info(chip)
    assert not warnings
    assert library.kernels["Exp"] == library.kernels["Select"] == {"float16"}
    assert library.kernels["Sqrt"] == {"float32"} and library.kernels["Neg"] == {"float16", "float32"}


@pytest.mark.parametrize(
    ("text", "edits", "precisions"),
    [
        (CHAIN, {}, {"e": "float16", "n": "float16"}),
        (CHAIN.replace("Exp", "Neg"), {}, {"e": "float32", "n": "float32"}),
        (CHAIN.replace("Neg", "Sqrt"), {}, {"e": "float16", "n": "float32"}),
        (CHAIN.replace("Neg", "Sqrt"), {"Sqrt": "white"}, {"e": "float16", "n": "float32"}),
        (CHAIN.replace("Exp", "Abs"), {}, {"e": "float32", "n": "float32"}),
    ],
)
def test_a_node_has_a_type_with_a_kernel(
    chip: Path, text: str, edits: dict[str, str], precisions: dict[str, str]
) -> None:
    edits_file = write_edits(chip.parent, **edits) if edits else None
    policy = mixlist.load_policy(chip, mixlist=edits_file, op_names="ascend")
    plan = mixlist.resolve(model(text), policy)
    assert {decision.name: decision.precision for decision in plan.nodes} == precisions
    reference = Reference(model(text), policy)
    reference.solve()
    assert not differences(plan, {node: reference.decided(node) for node in reference.nodes})


@pytest.mark.parametrize(
    ("op", "precision"),
    [("Exp", "float16"), ("Neg", "float32"), ("Sqrt", "float32"), ("Abs", "float32")],
)
def test_without_lists_a_node_without_a_float32_kernel_is_low(chip: Path, op: str, precision: str) -> None:
    """``op_dtype_selection_strategy_allow_fp32_to_fp16.cc`` reduces what it cannot raise."""
    network = model(CHAIN.replace("Exp", op))
    policy = mixlist.load_policy(chip, op_names="ascend", precision_mode="allow_fp32_to_fp16")
    assert not policy.warnings
    plan = mixlist.resolve(network, policy)
    assert plan.nodes[0].precision == precision
    assert (plan.nodes[0].rule == "kernel") == (op == "Exp")
    reference = Reference(network, policy)
    reference.solve()
    assert not differences(plan, {node: reference.decided(node) for node in reference.nodes})
    other = mixlist.load_policy("ascend910b", precision_mode="allow_fp32_to_fp16")
    assert other.digest != policy.digest and [warning.code for warning in other.warnings] == ["ML401"]


def test_the_reason_and_the_verdict_name_the_kernel(chip: Path) -> None:
    """Exp overflows float16 above 11.09, also if no list makes it low."""
    policy = mixlist.load_policy(chip, op_names="ascend")
    decision = mixlist.resolve(model(CHAIN), policy).nodes[0]
    assert (decision.list, decision.rule) == ("gray", "kernel")
    assert "the chip has no float32 kernel: computed in float16 (S4.50)" in decision.reason
    data = [{"x": np.linspace(0, 20, 4, dtype=np.float32)}]
    report = mixlist.check(model(CHAIN), policy, data=data)
    assert report.verdict == "fail" and report.nodes[0].name == "e"


def test_a_black_op_type_without_a_kernel_is_reported(chip: Path) -> None:
    """``RunForOpInBlackList``: "should not be configured as blacklist op"."""
    edits = write_edits(chip.parent, Exp="black")
    plan = mixlist.resolve(model(CHAIN), mixlist.load_policy(chip, mixlist=edits, op_names="ascend"))
    assert [(warning.code, warning.severity) for warning in plan.warnings] == [("ML412", "warning")]
    findings = mixlist.validate(edits, ops_info=chip, op_names="ascend").findings
    assert [(finding.code, finding.severity) for finding in findings] == [("ML412", "error")]


def test_the_kernels_are_part_of_the_digest(chip: Path) -> None:
    policy = mixlist.load_policy(chip, op_names="ascend")
    chip.write_text(chip.read_text().replace('"dtype": "float16", ', '"dtype": "float", '))
    assert mixlist.load_policy(chip, op_names="ascend").digest != policy.digest
