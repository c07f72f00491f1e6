"""Precision modes: names, equivalences and what contradicts (rules S3.1 to S3.3)."""

from __future__ import annotations

import pytest

from mixlist.errors import UsageError
from mixlist.lists.modes import find_mode

OLD = {
    "force_fp16": ("force", "float16"),
    "force_fp32": ("raise", "float16"),
    "cube_fp16in_fp32out": ("raise", "float16"),
    "allow_fp32_to_fp16": ("cube", "float16"),
    "allow_fp32_to_bf16": ("cube", "bfloat16"),
    "must_keep_origin_dtype": ("origin", "float16"),
    "allow_mix_precision": ("lists", "float16"),
    "allow_mix_precision_fp16": ("lists", "float16"),
    "allow_mix_precision_bf16": ("lists", "bfloat16"),
}
NEW = {
    "fp16": ("force", "float16"),
    "origin": ("origin", "float16"),
    "cube_fp16in_fp32out": ("raise", "float16"),
    "mixed_float16": ("lists", "float16"),
    "mixed_bfloat16": ("lists", "bfloat16"),
}


def test_default() -> None:
    assert find_mode().name == "mixed_float16"
    assert find_mode() == find_mode(precision_mode_v2="mixed_float16")


@pytest.mark.parametrize(("name", "means"), OLD.items())
def test_older_names(name: str, means: tuple[str, str]) -> None:
    """Rule S3.1: One mode, by its new or its old name."""
    mode = find_mode(precision_mode=name)
    assert (mode.name, mode.action, mode.low) == (name, *means)


@pytest.mark.parametrize(("name", "means"), NEW.items())
def test_newer_names(name: str, means: tuple[str, str]) -> None:
    mode = find_mode(precision_mode_v2=name)
    assert (mode.name, mode.action, mode.low) == (name, *means)


def test_both_options_contradict() -> None:
    """Rule S3.1: One mode, by its new or its old name."""
    with pytest.raises(UsageError, match=r"--precision-mode force_fp16 and --precision-mode-v2 fp16"):
        find_mode("force_fp16", "fp16")


@pytest.mark.parametrize("name", sorted(OLD))
def test_a_mixlist_needs_a_mode_with_lists(name: str) -> None:
    if OLD[name][0] == "lists":
        assert find_mode(name, has_mixlist=True).name == name
        return
    with pytest.raises(UsageError, match=rf"--mixlist is given, but the precision mode {name} has no lists") as error:
        find_mode(name, has_mixlist=True)
    assert "mixed_float16" in str(error.value.hint)


@pytest.mark.parametrize("name", ["mixed_hif8", "cube_hif8"])
def test_hif8_is_no_onnx_type(name: str) -> None:
    """Rule S3.1: One mode, by its new or its old name."""
    with pytest.raises(UsageError, match="ONNX has no such type"):
        find_mode(precision_mode_v2=name)


@pytest.mark.parametrize("name", ["force_lowerprecision", "allow_fp32_to_lowprecision"])
def test_internal_names(name: str) -> None:
    with pytest.raises(UsageError, match="internal"):
        find_mode(precision_mode=name)


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("allow_mix_precison", None, "did you mean allow_mix_precision "),
        (None, "Mixed_Float16", "did you mean mixed_float16"),
        (None, "fp61", "fp16"),
        (None, "", "mixed_bfloat16"),
    ],
)
def test_unknown_names_get_the_nearest(old: str | None, new: str | None, meant: str) -> None:
    with pytest.raises(UsageError, match="has no mode") as error:
        find_mode(old, new)
    assert meant in str(error.value.hint)


def test_a_name_of_the_other_option() -> None:
    with pytest.raises(UsageError) as error:
        find_mode(precision_mode="mixed_float16")
    assert "write --precision-mode-v2 mixed_float16" in str(error.value.hint)
    with pytest.raises(UsageError) as error:
        find_mode(precision_mode_v2="force_fp16")
    assert "write --precision-mode force_fp16" in str(error.value.hint)
