"""The public functions take every option as a keyword argument with its default, and ``help`` shows it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import mixlist

JUDGING = {
    "provider": "cpu", "overflow_mode": "inf", "max_batches": None, "max_exception_rate": 0.005,
    "max_ignored": 0.5, "limits": None, "jobs": None, "scheduler": None, "executor": None,
    "segment_bytes": None, "type_hints": None, "judge": None, "judge_limits": None,
}  # fmt: skip
CHECK = {
    "mixed_model": None, "reference_type": "authored", "inner_type": "float32",
    "layerwise": False, "per_tensor": False, "progress": None,
}  # fmt: skip
TUNE = {
    "validate_on": None,
    "holdout": True, "state": None, "progress": None, "reference_type": "authored",
}  # fmt: skip
TRAIN = {
    "loss_scaler": "torch", "scaler_parameters": None, "runs": 4, "float32": True, "tensorboard": None, "first_seed": 0,
    "metric": None, "better": None,
    "tolerance": 0.005, "max_exception_rate": 0.005, "overflow_mode": None,
    "overflow_detection": None, "progress": None,
}  # fmt: skip
LEADING = {"bench": ["model", "policy_or_other", "batches"], "train": ["run", "policy"]}
BENCH = {
    "provider": "cpu", "rounds": None, "threads": None,
    "progress": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (mixlist.check, JUDGING | CHECK),
        (mixlist.tune, JUDGING | TUNE),
        (mixlist.train, TRAIN),
        (mixlist.bench, BENCH),
    ],
)
def test_every_option_is_a_keyword_with_its_default(function: Any, keywords: dict[str, object]) -> None:
    leading, keyword_only = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            keyword_only[name] = parameter.default
        else:
            leading.append(name)
    assert keyword_only == keywords
    assert leading == LEADING.get(function.__name__, ["model", "policy", "data"])
    arguments = [None] * len(leading)
    *_, similar = keywords
    with pytest.raises(TypeError) as refused:
        function(*arguments, **{f"{similar}s": 1})
    message = f"{function.__name__}() got an unexpected keyword argument '{similar}s': did you mean {similar}?"
    assert str(refused.value) == message
    with pytest.raises(TypeError, match=r"^\w+\(\) got an unexpected keyword argument 'zzz'$"):
        function(*arguments, zzz=1)
    with pytest.raises(TypeError, match="positional argument"):
        function(*arguments, "cpu")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(mixlist.check, 3), (mixlist.tune, 3), (mixlist.repair, 2), (mixlist.diff, 4), (mixlist.convert, 3)],
)
@pytest.mark.parametrize(
    ("keyword", "name"), [("max_normalized_error", "normalized"), ("normalized", "normalized"), ("min_snr", "snr")]
)
def test_a_limit_as_a_keyword_is_refused_with_its_place(function: Any, arguments: int, keyword: str, name: str) -> None:
    with pytest.raises(TypeError) as refused:
        function(*[None] * arguments, **{keyword: 0.05})
    assert str(refused.value) == (
        f"{function.__name__}() got an unexpected keyword argument {keyword!r}: write limits=mixlist.Limits({name}=...)"
    )


def test_limits_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="limits is a float"):
        mixlist.convert("m.onnx", "data", limits=0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"normalized": "0.1"}, "normalized must be a number, not '0.1'"),
        ({"per_index": 0.5}, "per_index must be an integer, not 0.5"),
        ({"normalised": 0.1}, r"Limits\(\) got an unexpected keyword argument 'normalised': did you mean normalized\?"),
    ],
)
def test_wrong_types_and_names_of_limits_are_refused(limits: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        mixlist.Limits(**limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"normalized": -1}, "normalized must be at least 0, not -1"),
        ({"cosine": 2}, "cosine must be at most 1, not 2"),
        ({"snr": float("nan")}, "snr is NaN"),
    ],
)
def test_limits_have_the_bounds_of_the_command_line(limits: Any, message: str) -> None:
    with pytest.raises(mixlist.MixlistError, match=message):
        mixlist.Limits(**limits)
    assert mixlist.Limits(normalized=float("inf"), mismatch=1, per_index=-1).normalized == float("inf")
    with pytest.raises(mixlist.MixlistError, match="max_exception_rate must be at most 1, not 3"):
        mixlist.check("m.onnx", mixlist.load_policy(), [], max_exception_rate=3)


def test_model_policy_and_data_can_be_keywords() -> None:
    with pytest.raises(mixlist.MixlistError, match=r"nothing\.onnx"):
        mixlist.check(data="batches/", policy=mixlist.load_policy(), model="nothing.onnx")
