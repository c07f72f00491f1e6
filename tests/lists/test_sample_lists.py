"""The sample lists: each valid strict JSON that does without a warning what its README says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mixlist
from mixlist.files.package_data import data_folder

HOME = data_folder("sample_lists")
SAMPLES = sorted(path.name for path in HOME.glob("*.json"))


def rows() -> dict[str, str]:
    """The library of each file in the README's table."""
    lines = (HOME / "README.md").read_text("utf-8").splitlines()
    cells = [line.replace("`", "").split("|") for line in lines if line.startswith("| `")]
    return {row[1].strip(): row[2].strip() for row in cells}


def test_the_readme_lists_every_sample() -> None:
    assert sorted(rows()) == SAMPLES
    assert len(SAMPLES) >= 5


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_strict_and_moves_all_that_it_names(name: str) -> None:
    named = json.loads((HOME / name).read_text("utf-8"))
    policy = mixlist.load_policy(rows()[name], HOME / name, strict=True)
    assert policy.warnings == ()
    assert policy.lists.moves.keys() == {op for part in named.values() for ops in part.values() for op in ops}


@pytest.mark.parametrize(
    ("name", "op", "before", "after"),
    [
        ("softmax-low.json", "Softmax", "black", "white"),
        ("div-stays-float32.json", "Div", "gray", "black"),
        ("reductions-follow.json", "ReduceMean", "black", "gray"),
        ("recurrent-stays-float32.json", "LSTM", "white", "black"),
        ("one-domain.json", "com.microsoft::Attention", "white", "black"),
        ("ascend-names.json", "Conv3D", "white", "gray"),
    ],
)
def test_what_a_sample_does(name: str, op: str, before: str, after: str) -> None:
    move = mixlist.load_policy(rows()[name], Path(HOME / name)).lists.moves[op]
    assert (move.before, move.after) == (before, after)


def test_a_domain_is_narrowed() -> None:
    lists = mixlist.load_policy(mixlist=HOME / "one-domain.json").lists
    assert (lists.list_of("Attention"), lists.list_of("LayerNormalization")) == ("white", "black")
