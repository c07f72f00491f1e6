"""A damaged state of ``tune --state`` or ``train --state`` is refused, or it gives the result of a run without damage.

The exit status is never 3, and a state that is refused does not change. ``MIXLIST_STATES`` is the number of damaged
states, half of them for each command, ``MIXLIST_STATES_SEED`` the seed of the first. ``train`` runs as a command.
``tune`` runs as a function without worker processes, which is five times as fast; its MixlistError is exit status 2.
"""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.errors import MixlistError
from mixlist.training import state_file, train
from tests.support.command_process import CommandProcess
from tests.support.list_mutation import edit_bytes, edit_tokens
from tests.support.systems import posix_only
from tests.support.training_network import noisy, samples
from tests.training.test_train import Stop
from tests.tuner.test_search_state import search, without_run_data

pytestmark = posix_only  # the limits of a process
COUNT = int(os.environ.get("MIXLIST_STATES", "12"))
SEED = int(os.environ.get("MIXLIST_STATES_SEED", "0"))
SECONDS = 60  # for one command; an undisturbed one takes about one


@dataclass(frozen=True)
class Refused:
    """The message of a run that refused the state."""

    message: str


class StateCampaign:
    """Repeat a run that writes a state file with damaged states.

    ``run`` returns Refused, or the part of the result that a run and its continuation have in common. It raises
    AssertionError for an outcome that no state may cause.
    """

    def __init__(self, run: Callable[[], object], state: Path) -> None:
        self._run, self._state = run, state
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        state.unlink(missing_ok=True)
        self._expected = run()
        assert not isinstance(self._expected, Refused), self._expected
        self.undamaged = state.read_bytes()

    def try_state(self, number: int, data: bytes) -> None:
        """Run with a damaged state; count the outcome, and note a problem."""
        self._state.write_bytes(data)
        try:
            result = self._run()
        except AssertionError as error:
            outcome = problem = str(error)
        else:
            refused = isinstance(result, Refused)
            is_right = self._state.read_bytes() == data if refused else result == self._expected
            outcome = "refused" if refused else "same result"
            problem = "" if is_right else f"it was {outcome}, and changed" if refused else f"another result: {result}"
        self.outcomes[outcome] += 1
        if problem:
            self.wrong.append(f"state {number}: {problem[:2000]}")
            print(self.wrong[-1], flush=True)

    def finish(self, name: str) -> None:
        """Print the counts; fail if there was a problem."""
        outcomes = dict(sorted(self.outcomes.items()))
        print(f"{sum(outcomes.values())} damaged states of {name}, {len(self.wrong)} wrong: {outcomes}")
        assert self.wrong == []


# --- tune ---


def _damaged_lines(state: bytes, rng: random.Random) -> bytes:
    """Drop, repeat, swap, cut or join lines; change bytes or words of the text."""
    lines = state.splitlines(keepends=True)
    at, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    changes: list[Callable[[], bytes]] = [
        lambda: edit_bytes(state, rng),
        lambda: edit_tokens(state, rng),
        lambda: _with_a_replaced_word(state, rng),
        lambda: b"".join(lines[:at] + lines[at + 1 :]),
        lambda: b"".join([*lines[:at], lines[second], *lines[at:]]),
        lambda: b"".join([*lines[:at], lines[at].rstrip(), *lines[at + 1 :]]),
        lambda: state[: rng.randrange(len(state))],
        lambda: state + state[: rng.randrange(len(state))],
    ]
    return rng.choice(changes)()


def _with_a_replaced_word(state: bytes, rng: random.Random) -> bytes:
    """Replace a word in a line. The form of the line often stays valid, so that a reader does not notice it."""
    words = [(b"true", b"false"), (b"false", b"true"), (b"0", b"1"), (b"Mul", b"Div"), (b"e", b"a")]
    before, after = rng.choice([pair for pair in words if pair[0] in state])
    at = rng.choice([at for at in range(len(state)) if state.startswith(before, at)])
    return state[:at] + after + state[at + len(before) :]


# --- train ---


def _damaged_npz(state: bytes, rng: random.Random) -> bytes:
    """Change bytes of the file, or change its arrays and write a valid archive."""
    changes: list[Callable[[], bytes]] = [
        lambda: edit_bytes(state, rng),
        lambda: state[: rng.randrange(len(state))],
        lambda: state + state[: rng.randrange(len(state))],
        lambda: state[rng.randrange(len(state)) :],
        lambda: _with_flipped_bits(state, rng),
        lambda: _with_changed_arrays(state, rng),
        lambda: _with_changed_arrays(state, rng),
    ]
    return rng.choice(changes)()


def _with_flipped_bits(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    for bit in rng.sample(range(8 * len(data)), rng.choice((1, 1, 8))):
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _with_changed_arrays(state: bytes, rng: random.Random) -> bytes:
    """Write the file with one member dropped, repeated, renamed, or with other content."""
    with zipfile.ZipFile(io.BytesIO(state)) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    changes: list[Callable[[], list[tuple[str, bytes]]]] = [
        list,
        lambda: [(name, content), (rng.choice(["more.npy", "../x.npy", "0", "state.json"]), content)],
        lambda: [(rng.choice(members)[0] + rng.choice(["", "x"]), content)],
        lambda: [(name, edit_bytes(content, rng))],
        lambda: [(name, _with_flipped_bits(content, rng))],
        lambda: [(name, edit_tokens(content, rng))],
        lambda: [(name, members[rng.randrange(len(members))][1])],
        lambda: [(name, _npy_bytes(rng.choice([np.zeros(0), np.array("text"), np.ones((3, 3)), np.array(None)])))],
    ]
    members[at : at + 1] = rng.choice(changes)()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for name, content in {**dict(members)}.items():
            file.writestr(name, content)
    return buffer.getvalue()


def _npy_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


# --- the tests ---


@pytest.mark.timeout(60_000)
def test_a_damaged_state_of_tune_is_refused_or_gives_the_same_result(tmp_path: Path) -> None:
    """Rule S9.11."""
    state = tmp_path / "state.jsonl"

    def run() -> object:
        try:
            return without_run_data(search(state))
        except MixlistError as error:
            return Refused(error.message)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    campaign = StateCampaign(run, state)
    for number in range(SEED, SEED + COUNT // 2):
        campaign.try_state(number, _damaged_lines(campaign.undamaged, random.Random(number)))
    campaign.finish("tune")


@pytest.mark.timeout(60_000)
def test_a_damaged_state_of_train_is_refused_or_gives_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states come from a finished training, and from an interrupted one."""
    step, data, state = tmp_path / "step.onnx", tmp_path / "train.npz", tmp_path / "state.npz"
    onnx.save(noisy(), step)
    np.savez(data, **samples(40))
    monkeypatch.setattr(state_file, "SAVE_INTERVAL", 0.0)
    options: dict[str, Any] = {"batch_size": 4, "epochs": 1}
    assert not train(step, mixlist.load_policy(), data, state=state, progress=Stop(25), **options).complete
    interrupted = state.read_bytes()
    args = ["train", "step.onnx", "--data", "train.npz", "--batch-size", "4", "--epochs", "1", "--format", "json"]
    with CommandProcess(tmp_path, SECONDS) as process:

        def run() -> object:
            end = process.run(*args, "--state", "state.npz")
            assert not end.problem, end.problem
            if end.status == 2:
                return Refused(end.err)
            report = json.loads(end.out)
            del report["seconds"]
            return end.status, report

        campaign = StateCampaign(run, state)
        assert campaign.undamaged != interrupted
        for number in range(SEED, SEED + COUNT // 2):
            rng = random.Random(number)
            campaign.try_state(number, _damaged_npz(rng.choice([campaign.undamaged, interrupted]), rng))
    campaign.finish("train")
