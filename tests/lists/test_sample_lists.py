"""The sample lists: each is strict JSON, has no warning, and does what its README says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mixlist
from tests.support.package import data_folder

FOLDER = data_folder("sample_lists")
SAMPLES = sorted(path.name for path in FOLDER.glob("*.json"))


def libraries_of_samples() -> dict[str, str]:
    """Return the library of each sample, from the table of the README."""
    lines = (FOLDER / "README.md").read_text("utf-8").splitlines()
    cells = [line.replace("`", "").split("|") for line in lines if line.startswith("| `")]
    return {row[1].strip(): row[2].strip() for row in cells}


def test_the_readme_lists_every_sample() -> None:
    assert sorted(libraries_of_samples()) == SAMPLES
    assert len(SAMPLES) >= 5


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_strict_and_moves_all_op_types_that_it_names(name: str) -> None:
    content = json.loads((FOLDER / name).read_text("utf-8"))
    policy = mixlist.load_policy(libraries_of_samples()[name], FOLDER / name, strict=True)
    assert policy.warnings == ()
    assert policy.lists.moves.keys() == {op for part in content.values() for ops in part.values() for op in ops}


@pytest.mark.parametrize(
    ("name", "op", "before", "after"),
    [
        ("softmax-low.json", "Softmax", "gray", "white"),
        ("div-stays-float32.json", "Div", "gray", "black"),
        ("reductions-follow.json", "ReduceSum", "black", "gray"),
        ("recurrent-stays-float32.json", "LSTM", "white", "black"),
        ("one-domain.json", "com.microsoft::Attention", "white", "black"),
        ("ascend-names.json", "Conv3D", "white", "gray"),
    ],
)
def test_a_sample_moves_an_op_type_to_its_list(name: str, op: str, before: str, after: str) -> None:
    move = mixlist.load_policy(libraries_of_samples()[name], Path(FOLDER / name)).lists.moves[op]
    assert (move.before, move.after) == (before, after)


def test_a_name_with_a_domain_moves_no_other_domain() -> None:
    lists = mixlist.load_policy(mixlist=FOLDER / "one-domain.json").lists
    assert (lists.list_of("Attention"), lists.list_of("LayerNormalization")) == ("white", "gray")
