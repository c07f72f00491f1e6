"""Tests of each loss scaler, step by step, against tables that were written by hand from its rule."""

from __future__ import annotations

import random
from functools import partial

import pytest

from mixlist.errors import UsageError
from mixlist.option_spelling import spelled_by
from mixlist.training.scalers import make_scaler, parameter_defaults
from tests.support.extras import import_extra

# name; parameters; steps (g good, b bad); action for each step (s step, k skip, r retry); scale after each step
TABLE = [
    ("none", {}, "gbg", "sks", [1, 1, 1]),
    ("fixed", {"loss_scale": 64}, "gbbg", "skks", [64] * 4),
    ("fixed", {"loss_scale": 64, "enable_overflow_check": False}, "gb", "ss", [64] * 2),
    ("mindspore-fixed", {}, "gbg", "sks", [128] * 3),
    ("mindspore-fixed", {"drop_overflow_update": False}, "gb", "ss", [128] * 2),
    # growth at every third good step; bad steps add up over the good one between them, growth clears them
    ("npu", {"init_loss_scale": 100, "incr_every_n_steps": 3}, "gggbgb", "sssksk", [100, 100, 200, 200, 200, 160]),
    ("npu", {"init_loss_scale": 100, "incr_every_n_steps": 2}, "bggb", "kssk", [100, 100, 200, 200]),
    ("npu", {"init_loss_scale": 100, "incr_every_n_steps": 2}, "gbggbb", "sksskk", [100, 100, 100, 200, 200, 160]),
    ("npu", {"init_loss_scale": 1, "incr_every_n_steps": 9, "decr_every_n_nan_or_inf": 1}, "b", "k", [1]),
    ("npu", {"init_loss_scale": 3e38, "incr_every_n_steps": 1}, "gg", "ss", [3e38, 3e38]),
    ("npu-tf2", {"initial_scale": 8, "dynamic_growth_steps": 2}, "ggggbg", "ssssks", [8, 16, 16, 32, 16, 16]),
    ("npu-tf2", {"initial_scale": 2, "dynamic_growth_steps": 2}, "bbb", "kkk", [1, 1, 1]),
    ("npu-tf2", {"initial_scale": 64, "dynamic": "false"}, "gbg", "sks", [64] * 3),
    # the window counts from the last overflow, which was step 2: growth at 4 and 6
    ("mindspore", {"init_loss_scale": 8, "scale_window": 2}, "gbgggg", "skssss", [8, 4, 4, 8, 8, 16]),
    ("mindspore", {"init_loss_scale": 2, "scale_window": 5}, "bbb", "kkk", [1, 1, 1]),
    ("torch", {"init_scale": 8, "growth_interval": 2}, "gggbgg", "ssskss", [8, 16, 16, 8, 8, 16]),
    ("torch", {"init_scale": 1, "growth_interval": 2}, "bb", "kk", [0.5, 0.25]),
    # 2^128 is no float32 number
    ("torch", {"init_scale": 2.0**126, "growth_interval": 1}, "gggb", "sssk", [2.0**127, 2.0**127, 2.0**127, 2.0**126]),
    ("npu-tf2", {"initial_scale": 2.0**127, "dynamic_growth_steps": 2}, "gggg", "ssss", [2.0**127] * 4),
    # the first growth at good step N + 2, and then at every N + 1
    ("nnabla", {"N": 1}, "ggggggg", "s" * 7, [8, 8, 16, 16, 32, 32, 64]),
    ("nnabla", {"N": 3}, "ggggggggg", "s" * 9, [8, 8, 8, 8, 16, 16, 16, 16, 32]),
    ("nnabla", {"N": 1}, "ggbggg", "ssrsss", [8, 8, 4, 4, 4, 8]),
]


@pytest.mark.parametrize(("name", "parameters", "steps", "actions", "scales"), TABLE)
def test_each_scaler_follows_its_rule_step_by_step(
    name: str, parameters: dict, steps: str, actions: str, scales: list[float]
) -> None:
    scaler = make_scaler(name, **parameters)
    letters = {"step": "s", "skip": "k", "retry": "r"}
    results = [(letters[scaler.update(step == "g")], scaler.scale) for step in steps]
    assert "".join(letter for letter, _ in results) == actions
    assert [scale for _, scale in results] == pytest.approx(scales, rel=1e-12)


def test_defaults_are_those_of_the_frameworks() -> None:
    first_scales = {"mindspore": 2.0**24, "mindspore-fixed": 128.0, "torch": 2.0**16, "nnabla": 8.0, "none": 1.0}
    assert {name: make_scaler(name).scale for name in first_scales} == first_scales
    npu, mindspore, pytorch = map(parameter_defaults, ("npu", "mindspore", "torch"))
    assert (npu["decr_ratio"], npu["decr_every_n_nan_or_inf"]) == (0.8, 2)
    assert mindspore["scale_window"] == pytorch["growth_interval"] == 2000


@pytest.mark.parametrize("name", ["nnabla", "mindspore"])
def test_no_scaler_ends_a_training(name: str) -> None:
    """nnabla's loop goes on after its last halving, and MindSpore's DynamicLossScaleUpdateCell never ends."""
    scaler = make_scaler(name)
    assert {scaler.update(False) for _ in range(1500)} == {"retry" if name == "nnabla" else "skip"}


@pytest.mark.parametrize("seed", range(40))
def test_the_scaler_torch_is_that_of_pytorch_in_any_sequence(seed: int) -> None:
    """Its scale is a float32 number, which runs to 0 and does not grow beyond the range."""
    torch = import_extra("torch")
    rng = random.Random(seed)
    share, factors = rng.choice([0.02, 0.5, 0.98]), (rng.choice([2.0, 3.7, 1e9]), rng.choice([0.5, 0.3, 1e-9]))
    scaler = make_scaler(
        "torch", init_scale=65536, growth_factor=factors[0], backoff_factor=factors[1], growth_interval=3
    )
    theirs, tracker = torch.full((), 65536.0), torch.zeros((), dtype=torch.int32)
    for _ in range(300):
        finite = rng.random() > share
        scaler.update(finite)
        torch._amp_update_scale_(theirs, tracker, torch.full((), 0.0 if finite else 1.0), *factors, 3)
        assert scaler.scale == float(theirs)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("amp", {}, "no loss scaler 'amp'"),
        ("torch", {"growth": 2}, "no parameter 'growth'"),
        ("torch", {"tracker": 2}, "no parameter 'tracker'"),
        ("none", {"scale": 2}, "no parameter 'scale'"),
        ("npu", {"init_loss_scale": 4}, "needs incr_every_n_steps"),
        # the constructor of Keras
        ("npu-tf2", {"dynamic": False}, "needs initial_scale"),
        ("npu-tf2", {"dynamic": "no", "initial_scale": 8, "dynamic_growth_steps": 9}, "has no dynamic_growth_steps"),
        ("npu-tf2", {"multiplier": 4}, "no parameter 'multiplier'"),
        ("fixed", {"loss_scale": 0.5}, "at least 1"),
        ("torch", {"backoff_factor": 1}, "between 0 and 1"),
        ("torch", {"growth_interval": "soon"}, "a whole number"),
        ("mindspore-fixed", {"drop_overflow_update": "maybe"}, "true or false"),
        ("nnabla", {"scale": float("nan")}, "above 0"),
    ],
)
def test_wrong_parameters_are_refused(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_scaler(name, **parameters)


def test_a_missing_parameter_has_the_option_that_gives_it() -> None:
    from mixlist.cli.options import spell_flag
    from mixlist.cli.train import command

    def hint_of(**parameters: float) -> str:
        with pytest.raises(UsageError) as error:
            make_scaler("npu", **parameters)
        return str(error.value.hint)

    assert hint_of() == "give it as a parameter"
    with spelled_by(partial(spell_flag, command)):
        assert hint_of() == "give --loss-scale S"
        assert hint_of(init_loss_scale=4) == "give --scaler-arg incr_every_n_steps=VALUE"


def test_parameters_may_be_texts_of_the_command_line() -> None:
    scaler = make_scaler("mindspore-fixed", loss_scale="2e3", drop_overflow_update="false")
    assert (scaler.scale, scaler.update(False)) == (2000.0, "step")


def test_only_fixed_scalers_without_an_overflow_check_apply_bad_steps() -> None:
    for name, parameters in (
        ("fixed", {"loss_scale": 8, "enable_overflow_check": False}),
        ("mindspore-fixed", {"drop_overflow_update": False}),
    ):
        assert not make_scaler(name, **parameters).skips_bad_steps
    assert make_scaler("fixed", loss_scale=8).skips_bad_steps and make_scaler("torch").skips_bad_steps
