"""No model file makes a command that runs models fail by itself: status 0 or 1, or 2 with a message.

Never 3, a traceback, a signal, or a run without end; at most 6 GB for each process, because a damaged model may ask
for any amount. ``MIXLIST_MODEL_RUNS`` is the number of damaged models, ``MIXLIST_MODEL_SEED`` that of the first.
tests/test_fuzz_models.py has the models, and puts more of them through ``resolve`` and ``apply``.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import onnx
import pytest

from tests.support.command_process import CommandProcess
from tests.support.mutation import mutate
from tests.support.systems import posix_only
from tests.test_fuzz_models import bases
from tests.test_fuzz_models import folder as folder

pytestmark = posix_only  # the limits of a process
COUNT = int(os.environ.get("MIXLIST_MODEL_RUNS", "3"))
SEED = int(os.environ.get("MIXLIST_MODEL_SEED", "0"))
SECONDS = 60  # for one command; all other models take less than five
LARGEST = 20_000  # bytes of a model before the damage
WHITE = ("Exp", "Relu", "Softmax", "Mul", "Add", "MatMul", "If", "Neg", "Identity", "Loop", "Scan", "Sum")


def commands(rng: random.Random) -> list[list[str]]:
    """Return the arguments of the three commands, with most nodes low in half of the cases."""
    is_white = rng.random() < 0.5
    everything_low = ["--precision-mode-v2", "fp16"] if is_white else []
    policy = ["--mixlist", "white.json"] if is_white else []
    return [
        ["bench", "--estimate", "m.onnx", *everything_low],
        ["check", "m.onnx", "--random", "1", *everything_low],
        ["tune", "m.onnx", "--random", "1", "-o", "list.json", "--force", "--jobs", "1", *policy],
    ]


@pytest.mark.timeout(60_000)
def test_damaged_models_run_or_are_refused(folder: Path) -> None:
    (folder / "white.json").write_text(json.dumps({"white-list": {"to-add": WHITE}}))
    sources = [data for data in bases() if len(data) < LARGEST]
    ends: Counter[tuple[str, int]] = Counter()
    wrong = []
    with CommandProcess(folder, SECONDS) as process:
        for number in range(SEED, SEED + COUNT):
            rng = random.Random(number)
            model = onnx.ModelProto.FromString(rng.choice(sources))
            damage = "; ".join(mutate(model, rng) for _ in range(rng.choice((1, 1, 2))))
            (folder / "m.onnx").write_bytes(model.SerializeToString())
            for arguments in commands(rng):
                end = process.run(*arguments)
                ends[arguments[0], end.status] += 1
                if end.problem:
                    wrong.append(f"model {number}: {' '.join(arguments)}: {end.problem}\n  damage: {damage}")
                    print(wrong[-1], flush=True)
    print(f"{COUNT} damaged models, {len(wrong)} wrong; runs by exit status:", dict(sorted(ends.items())))
    assert wrong == []
