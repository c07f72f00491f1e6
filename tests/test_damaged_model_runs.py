"""Damaged models in the commands that run models: the exit status is 0 or 1, or 2 with a message.

The status is never 3, and there is no traceback, signal or endless run. Each process has at most 6 GB of memory,
because a damaged model may ask for any amount. ``MIXLIST_MODEL_RUNS`` is the number of damaged models,
``MIXLIST_MODEL_SEED`` the seed of the first. tests/test_fuzz_models.py makes the models, and runs ``resolve`` and
``apply`` on more of them.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx
import pytest

from tests.support.command_process import CommandProcess
from tests.support.mutation import mutate
from tests.support.systems import posix_only
from tests.test_fuzz_models import folder as folder
from tests.test_fuzz_models import serialized_models

Commands: TypeAlias = Callable[[random.Random], list[list[str]]]

pytestmark = posix_only  # the limits of a process
COUNT = int(os.environ.get("MIXLIST_MODEL_RUNS", "3"))
SEED = int(os.environ.get("MIXLIST_MODEL_SEED", "0"))
SECONDS = 60  # for one command; all other models take less than five
LARGEST = 20_000  # bytes of a model before the damage
WHITE = ("Exp", "Relu", "Softmax", "Mul", "Add", "MatMul", "If", "Neg", "Identity", "Loop", "Scan", "Sum")


def inference_commands(rng: random.Random) -> list[list[str]]:
    """Return the arguments of the three commands, with most nodes low in half of the cases."""
    is_white = rng.random() < 0.5
    fp16_option = ["--precision-mode-v2", "fp16"] if is_white else []
    mixlist_option = ["--mixlist", "white.json"] if is_white else []
    return [
        ["bench", "--estimate", "m.onnx", *fp16_option],
        ["check", "m.onnx", "--random", "1", *fp16_option],
        ["tune", "m.onnx", "--random", "1", "-o", "list.json", "--force", "--jobs", "1", *mixlist_option],
    ]


@dataclass
class ModelCampaign:
    """Run commands on damaged models, count their exit statuses, and list the problems."""

    process: CommandProcess
    folder: Path
    model_count: int = 0
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def try_model(self, number: int, sources: Sequence[bytes], commands: Commands) -> None:
        """Damage one of the models, and run the commands on it."""
        rng = random.Random(number)
        model = onnx.ModelProto.FromString(rng.choice(sources))
        damage = "; ".join(mutate(model, rng) for _ in range(rng.choice((1, 1, 2))))
        (self.folder / "m.onnx").write_bytes(model.SerializeToString())
        self.model_count += 1
        for arguments in commands(rng):
            end = self.process.run(*arguments)
            self.ends[arguments[0], end.status] += 1
            if end.problem:
                self.wrong.append(f"model {number}: {' '.join(arguments)}: {end.problem}\n  damage: {damage}")
                print(self.wrong[-1], flush=True)

    def finish(self) -> None:
        """Print the counts; fail if there was a problem."""
        ends = dict(sorted(self.ends.items()))
        print(f"{self.model_count} damaged models, {len(self.wrong)} wrong; runs by exit status: {ends}")
        assert self.wrong == []


@pytest.mark.timeout(60_000)
def test_damaged_models_run_or_are_refused(folder: Path) -> None:
    (folder / "white.json").write_text(json.dumps({"white-list": {"to-add": WHITE}}))
    sources = [data for data in serialized_models() if len(data) < LARGEST]
    with CommandProcess(folder, SECONDS) as process:
        campaign = ModelCampaign(process, folder)
        for number in range(SEED, SEED + COUNT):
            campaign.try_model(number, sources, inference_commands)
    campaign.finish()
