"""The line that a terminal shows while a search runs."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from mixlist.progress import Progress
from mixlist.search.trial_verdict import Outcome
from mixlist.search.trials import Trial
from mixlist.show.progress_bar import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_search_shows_its_trials_and_the_best_result_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = []
    with bar("tuning", "trials") as show:
        assert show is not None
        monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **fields: shown.append(fields["description"]))
        failed, nothing_low = Trial((), Outcome(False, "why"), low_nodes=9, low_share=1.0), Trial((), Outcome(True))
        some = Trial((), Outcome(True, limit_share=0.5), low_nodes=3, low_share=0.25)
        worse, counted = replace(some, low_share=0.125), Trial((), Outcome(True), low_nodes=2)
        for done, trial in enumerate([failed, nothing_low, counted, some, worse], 1):
            show(Progress(done, None, "trials", trial))
        show(Progress(6, 25, "trials", failed))
    assert shown == [
        "1 trial, none with a low node passed so far",
        "2 trials, none with a low node passed so far",
        "3 trials, the best has 2 nodes low",
        "4 trials, the best has 25 % of the matrix work low with 50 % of a limit",
        "5 trials, the best has 25 % of the matrix work low with 50 % of a limit",
        "6 of at most 25 trials, the best has 25 % of the matrix work low with 50 % of a limit",
    ]


def test_a_benchmark_says_after_its_first_round_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar("timing", "rounds") as show:
        assert show is not None
        for done in (1, 2, 3):
            show(Progress(done, 30, "rounds", 41.5))
        show(Progress(1, 10, "rounds", 9.0))
    assert terminal.getvalue().count("30 rounds of both models: about 41.5 s; rounds=10 takes less\n") == 1
    assert "10 rounds of both models: about 9 s\n" in terminal.getvalue()


def test_no_bar_is_shown_where_nobody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar("tuning", "trials") as show:
        assert show is None


def test_a_bar_of_bytes_without_their_number_waits_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = []
    with bar("scanning weights", "bytes") as show:
        assert show is not None
        monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **fields: shown.append(fields["visible"]))
        for done in (8, 2**20, 2**28):
            show(Progress(done, None, "bytes", None))
    assert shown == [False, False, True]
