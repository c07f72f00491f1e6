"""State files: a search killed at any byte continues, the state of another search is refused, and runs are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import Limits
from mixlist.errors import FileError, UsageError
from mixlist.search.search_state import SearchState
from mixlist.search.trial_verdict import Outcome
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor, interrupt_at

TEXT = """g (float[1,8] x) => (float[1,8] y) <float[1] k = {0.001}, float[1] one = {1}> {
  [a] a = Mul(x, x) [b] b = Div(a, k) [c] c = Mul(b, k) [d] d = Mul(c, k) [e] e = Add(d, one) [f] f = Neg(e)
  [g] y = Tanh(f) }"""
FEEDS = [{"x": np.full((1, 8), value, np.float32)} for value in (2.0, 300.0)]
WHITE = {"white": ["Mul", "Div", "Add", "Neg", "Tanh"]}


IS_CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"


def search(state: Path | None, **changes: Any) -> TuneReport:
    defaults: dict[str, Any] = {"model": model(TEXT), "policy": policy(**WHITE), "data": FEEDS}
    options = {**defaults, "executor": InProcessExecutor(), "state": state, **changes}
    return mixlist.tune(options.pop("model"), options.pop("policy"), options.pop("data"), **options)


def without_run_data(report: TuneReport) -> dict[str, Any]:
    """Return the report without the data that may differ between runs: seconds, and which trials were remembered."""
    plain = report.to_json()
    for part in (plain, plain["check"] or {}, plain["validation"] or {}):
        part.pop("seconds", None)
    plain["log"] = [{k: v for k, v in line.items() if k != "remembered"} for line in plain["log"]]
    plain.pop("trials"), plain.pop("remembered")
    return plain


def test_a_search_continues_after_a_kill_at_any_byte(tmp_path: Path) -> None:
    """Cut the file at every 13th byte of its last line, or with MIXLIST_CAMPAIGN=1 of its last three lines.

    The ends of all lines are cut, too.
    """
    state = tmp_path / "state"
    complete = search(state)
    assert complete.verdict == "pass" and complete.trials > 3 and complete.remembered == 0
    data = state.read_bytes()
    line_ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    assert len(line_ends) == complete.trials + 1
    in_last_lines = range(line_ends[-4 if IS_CAMPAIGN else -2], len(data), 13)
    cuts = sorted({*line_ends, *in_last_lines, line_ends[0] - 1, line_ends[0] + 1, 0})
    for length in cuts:
        state.write_bytes(data[:length])
        continued = search(state)
        kept_trials = max(sum(end <= length for end in line_ends) - 1, 0)
        assert (continued.remembered, continued.trials) == (kept_trials, complete.trials - kept_trials), length
        assert without_run_data(continued) == without_run_data(complete)
        assert state.read_bytes() == data


def test_a_log_cut_at_any_byte_keeps_its_complete_lines(tmp_path: Path) -> None:
    """An incomplete last line is removed from the file."""
    path, key = tmp_path / "state", {"model": "é" * 3, "data": "d"}
    state = SearchState(path, key)
    for name in ("a", "b ü", "c; d"):
        state.put(name, Outcome(name == "a", "why", 1))
    data = path.read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        kept_lines = max(data[:length].count(b"\n") - 1, 0)
        read_state = SearchState(path, key)
        assert list(read_state.outcomes) == ["a", "b ü", "c; d"][:kept_lines]
        read_state.put("new", Outcome(True))
        assert SearchState(path, key).outcomes["new"] == Outcome(True)
        assert len(path.read_bytes().splitlines()) == kept_lines + 2


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"data": FEEDS[:1]}, "data"),
        ({"data": FEEDS[::-1]}, "data"),
        ({"policy": policy(white=["Mul"])}, "lists"),
        ({"policy": policy(**WHITE, constants="ieee")}, "lists"),
        ({"model": model(TEXT.replace("0.001", "0.002"))}, "model"),
        ({"limits": Limits(normalized=0.5)}, "limits"),
        ({"overflow_mode": "saturate"}, "limits"),
        ({"max_exception_rate": 0.9}, "limits"),
    ],
)
def test_the_state_of_another_search_is_refused(tmp_path: Path, changes: dict[str, Any], differing: str) -> None:
    state = tmp_path / "state"
    search(state)
    before = state.read_bytes()
    with pytest.raises(UsageError, match=f"another search.*{differing}"):
        search(state, **changes)
    assert state.read_bytes() == before


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"text\n", b"\xff\n", b'{"format": "mixlist.check/1"}\n'])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FileError):
        search(path)
    assert path.read_bytes() == content


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    search(state)
    lines = state.read_bytes().splitlines(keepends=True)
    state.write_bytes(b"".join([*lines[:2], lines[2][:5] + b"\n", *lines[3:]]))
    with pytest.raises(FileError, match=":3:1:"):
        search(state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0], lines[1].replace(b'"choice": "', b'"choice": ["').replace(b'", "p', b'"], "p')],
        lambda lines: [lines[0], lines[1].replace(b"false", b"0").replace(b"true", b"1")],
        lambda lines: [lines[0], lines[1].replace(b'"why": "', b'"why": 1, "x": "')],
        lambda lines: [lines[0], lines[1].replace(b'"batch": ', b'"batch": 0.5, "x": ')],
        lambda lines: [lines[1], *lines],
        lambda lines: [lines[0], b"[" * 100_000 + b"\n"],
        lambda lines: [lines[0], lines[1].replace(b"true", b"false")],
        lambda lines: [lines[0], *[line.replace(b'"batch": 1', b'"batch": 2') for line in lines[1:]]],
        lambda lines: [lines[0], lines[1].replace(b"everything", b"Everything")],
        lambda lines: [lines[0].replace(b'"format"', b'"a": 0, "format"'), *lines[1:]],
    ],
)
def test_lines_that_no_search_writes_are_refused(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    state = tmp_path / "state"
    search(state)
    written = b"".join(damage(state.read_bytes().splitlines(keepends=True)))
    state.write_bytes(written)
    with pytest.raises(FileError, match=r":[123]:1: this is no line"):
        search(state)
    assert state.read_bytes() == written


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import mixlist
from tests.support.builders import model, policy
from tests.search.test_search_state import FEEDS, TEXT, WHITE, without_run_data
report = mixlist.tune(model(TEXT), policy(**WHITE), FEEDS, jobs=int(sys.argv[2]))
print(json.dumps(without_run_data(report)))
"""


def test_runs_with_other_hash_seeds_and_processes_give_the_same_report(tmp_path: Path) -> None:
    """Run with three hash seeds, and with one process or two."""
    root = Path(__file__).parents[2]
    outputs = set()
    for seed, jobs in (("0", 1), ("1", 2), ("4242", 2)):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(root), str(jobs)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert [json.loads(line)["verdict"] for line in outputs.pop().splitlines()] == ["pass"]


def test_ctrl_c_returns_the_best_list_so_far(tmp_path: Path) -> None:
    """Press Ctrl-C at each trial in turn. A search that continues from the state gets the same result."""
    complete = search(None)
    for index in range(1, complete.trials + 1):
        state = tmp_path / f"state{index}"
        report = search(state, progress=interrupt_at(index))
        if report.complete:  # the search had ended: the last trials only explain the edits
            continue
        assert report.verdict == "fail" and not report.minimal and "interrupted" in report.reasons[0]
        if report.modify_mixlist:
            report.save(tmp_path / f"list{index}.json")
        assert without_run_data(search(state)) == without_run_data(complete)


def test_a_pipe_as_state_is_refused(tmp_path: Path) -> None:
    """Reading from the pipe would wait for a writer forever."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe"):
        search(tmp_path / "pipe")
