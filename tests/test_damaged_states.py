"""A damaged state of ``tune --state`` is refused, or it gives the result of a run without damage.

The exit status is never 3, and a state that is refused does not change. ``MIXLIST_STATES`` is the number of damaged
states, ``MIXLIST_STATES_SEED`` the seed of the first. ``tune`` runs as a function
without worker processes, which is five times as fast; its MixlistError is exit status 2.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mixlist.errors import MixlistError
from tests.search.test_search_state import search, without_run_data
from tests.support.list_mutation import edit_bytes, edit_tokens

COUNT = int(os.environ.get("MIXLIST_STATES", "2"))
SEED = int(os.environ.get("MIXLIST_STATES_SEED", "0"))


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


@pytest.mark.timeout(60_000)
def test_a_damaged_state_of_tune_is_refused_or_gives_the_same_result(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"

    def run() -> object:
        try:
            return without_run_data(search(state))
        except MixlistError as error:
            return Refused(error.message)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    campaign = StateCampaign(run, state)
    for number in range(SEED, SEED + COUNT):
        campaign.try_state(number, _damaged_lines(campaign.undamaged, random.Random(number)))
    campaign.finish("tune")
