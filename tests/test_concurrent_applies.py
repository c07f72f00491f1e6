"""Many ``apply`` runs at once into one folder: each model has the weights of its input, and no other file remains."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.external_models import has_weights_of, write_external
from tests.support.killed_runs import CommandServer
from tests.support.systems import posix_only

pytestmark = posix_only  # the server of commands forks
RUNS = int(os.environ.get("MIXLIST_CONCURRENT", "24"))
_RUNS_AT_ONCE = 12
_INPUTS = 4


@dataclass
class Counts:
    """Count the runs and models of a campaign, and list its problems."""

    runs: int = 0
    models: int = 0  # that were read and compared
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.runs} concurrent applies, {self.models} models compared, {len(self.wrong)} wrong"


def test_concurrent_applies_into_one_folder_do_not_mix_up_weights(tmp_path: Path) -> None:
    """Rule S7.16: A data file is named after its model and its content."""
    for seed in range(_INPUTS):
        write_external(tmp_path / f"in{seed}.onnx", seed)
    (tmp_path / "lists.json").write_text('{"black-list": {"to-add": ["Softmax"]}}')  # B of each input stays float32
    out = tmp_path / "out"
    out.mkdir()
    rng, counts = random.Random(0), Counts()
    with CommandServer() as server:
        while counts.runs < RUNS:
            # Some runs have an output of their own. Others share one, and any of them may be the last.
            runs = [(rng.randrange(_INPUTS), rng.choice([f"own{k}", "a", "b"])) for k in range(_RUNS_AT_ONCE)]
            _apply_at_once(server, out, runs, counts)
    print(counts)
    assert counts.wrong == []


def _apply_at_once(server: CommandServer, out: Path, runs: list[tuple[int, str]], counts: Counts) -> None:
    """Apply inputs to outputs at the same time, then compare each output with the weights of its inputs."""
    options = ["--mixlist", "../lists.json", "--force"]
    commands = [["apply", f"../in{seed}.onnx", "-o", f"{name}.onnx", *options] for seed, name in runs]
    ends = server.run_all([(command, out) for command in commands])
    counts.runs += len(ends)
    counts.wrong += [end.output for end in ends if end.status != 0]
    for name in {name for _, name in runs}:
        seeds = {seed for seed, output in runs if output == name}
        counts.models += 1
        if not any(has_weights_of(out / f"{name}.onnx", seed) for seed in seeds):
            counts.wrong.append(f"{name}.onnx has the weights of none of its inputs {seeds}")
    # The data files of replaced models stay (Rule S7.17).
    left = sorted(
        path.name for path in out.iterdir() if path.suffix not in (".onnx", ".data") or "mixlist" in path.name
    )
    if left:
        counts.wrong.append(f"these files are left over: {left}")
