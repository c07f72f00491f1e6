"""Precision modes: their names, and options that contradict each other (Rules S3.1 to S3.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.decide import Resolver
from mixlist.errors import UsageError
from mixlist.files.package_data import data_folder
from mixlist.lists.load import load_policy
from mixlist.lists.policy import find_mode

OLD_MODES = {
    "force_fp16": ("force", "float16"),
    "force_fp32": ("raise", "float16"),
    "cube_fp16in_fp32out": ("raise", "float16"),
    "allow_fp32_to_fp16": ("cube", "float16"),
    "allow_fp32_to_bf16": ("origin", "bfloat16"),
    "must_keep_origin_dtype": ("origin", "float16"),
    "allow_mix_precision": ("lists", "float16"),
    "allow_mix_precision_fp16": ("lists", "float16"),
    "allow_mix_precision_bf16": ("lists", "bfloat16"),
}
NEW_MODES = {
    "fp16": ("force", "float16"),
    "origin": ("origin", "float16"),
    "cube_fp16in_fp32out": ("raise", "float16"),
    "mixed_float16": ("lists", "float16"),
    "mixed_bfloat16": ("lists", "bfloat16"),
    "mixed_hif8": ("lists", "hifloat8"),
    "cube_hif8": ("cube", "hifloat8"),
}


def test_the_default_mode_is_mixed_float16() -> None:
    assert find_mode().name == "mixed_float16"
    assert find_mode() == find_mode(precision_mode_v2="mixed_float16")


@pytest.mark.parametrize(("name", "action_and_type"), OLD_MODES.items())
def test_an_old_name_selects_its_mode(name: str, action_and_type: tuple[str, str]) -> None:
    """Rule S3.1: One mode, by its new or its old name."""
    mode = find_mode(precision_mode=name)
    assert (mode.name, mode.action, mode.low) == (name, *action_and_type)


@pytest.mark.parametrize(("name", "action_and_type"), NEW_MODES.items())
def test_a_new_name_selects_its_mode(name: str, action_and_type: tuple[str, str]) -> None:
    mode = find_mode(precision_mode_v2=name)
    assert (mode.name, mode.action, mode.low) == (name, *action_and_type)


def test_both_options_together_are_an_error() -> None:
    """Rule S3.1: One mode, by its new or its old name."""
    with pytest.raises(UsageError, match=r"precision_mode='force_fp16' and precision_mode_v2='fp16'"):
        find_mode("force_fp16", "fp16")


@pytest.mark.parametrize("name", sorted(OLD_MODES))
def test_a_mixlist_needs_a_mode_with_lists(name: str) -> None:
    if OLD_MODES[name][0] == "lists":
        assert find_mode(name, has_mixlist=True).name == name
        return
    with pytest.raises(UsageError, match=rf"mixlist=... is given, but the precision mode {name} has no lists") as error:
        find_mode(name, has_mixlist=True)
    assert "mixed_float16" in str(error.value.hint)


def test_hifloat8_needs_the_library_of_its_chip(tmp_path: Path) -> None:
    """Rule S3.9: The modes in HiFloat8 have lists, but no plan."""
    text = (data_folder("sample_lists") / "presets" / "ascend910b.json").read_text("utf-8")
    for name in ("aic-ascend950-ops-info.json", "aic-ascend950pr_9599-ops-info.json", "mine.json"):
        (tmp_path / name).write_text(text, "utf-8")
        lists = load_policy(ops_info=tmp_path / name, precision_mode_v2="mixed_hif8").lists
        assert lists.list_of("MatMulV2") == "white"
    other = tmp_path / "aic-ascend910-ops-info.json"
    other.write_text(text, "utf-8")
    for library, chip in ((other, "ascend910"), ("ascend310p", "ascend310p")):
        with pytest.raises(UsageError, match=f"needs an Ascend 950PR or 950DT; .* is the library of {chip}\\n"):
            load_policy(ops_info=library, precision_mode_v2="mixed_hif8")


@pytest.mark.parametrize("name", ["mixed_hif8", "cube_hif8"])
def test_no_model_follows_hifloat8(name: str) -> None:
    """Rule S3.9: The modes in HiFloat8 have lists, but no plan."""
    policy = load_policy(precision_mode_v2=name)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Exp(x) }'
    )
    batches = [{"x": np.zeros(4, np.float32)}]
    calls: list[Callable[[], object]] = [
        lambda: mixlist.resolve(model, policy),
        lambda: mixlist.check(model, policy, batches),
        lambda: mixlist.tune(model, policy, batches),
        lambda: mixlist.bench(model, policy, batches),
        lambda: mixlist.export(model, policy, "ort"),
        lambda: Resolver(model).plan(policy),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=f"{name}' makes nodes hifloat8, and ONNX has no such type"):
            call()


@pytest.mark.parametrize("name", ["force_lowerprecision", "allow_fp32_to_lowprecision"])
def test_internal_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="internal"):
        find_mode(precision_mode=name)


@pytest.mark.parametrize(
    ("old_name", "new_name", "hint_part"),
    [
        ("allow_mix_precison", None, "did you mean allow_mix_precision "),
        (None, "Mixed_Float16", "did you mean mixed_float16"),
        (None, "bf16", "did you mean mixed_bfloat16? "),
        ("bf16", None, "did you mean allow_mix_precision_bf16 or "),
        (None, "fp61", "fp16"),
        (None, "", "mixed_bfloat16"),
    ],
)
def test_an_unknown_name_has_a_hint_with_similar_names(
    old_name: str | None, new_name: str | None, hint_part: str
) -> None:
    with pytest.raises(UsageError, match="there is no such mode") as error:
        find_mode(old_name, new_name)
    assert hint_part in str(error.value.hint)


def test_a_name_of_the_other_option_has_a_hint() -> None:
    with pytest.raises(UsageError) as error:
        find_mode(precision_mode="mixed_float16")
    assert "write precision_mode_v2='mixed_float16'" in str(error.value.hint)
    with pytest.raises(UsageError) as error:
        find_mode(precision_mode_v2="force_fp16")
    assert "write precision_mode='force_fp16'" in str(error.value.hint)
