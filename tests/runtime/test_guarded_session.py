"""Test that batches with empty arrays run in another process, because ONNX Runtime may crash on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.runtime import guarded_session
from mixlist.runtime.guarded_session import GuardedSession
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import DEFAULT_OPTIONS
from tests.runtime.test_subprocess_session import DIE, patch_workers
from tests.support.builders import model, policy
from tests.support.systems import posix_only

TEXT = "g (float[N, 2] x) => (float[N, 2] y) { [n] y = Neg (x) }"
GRU = """g (float[T, N, 1] x) => (float[T, D, N, 1] y)
<float[1, 3, 1] w = {1, 1, 1}, float[1, 3, 1] r = {1, 1, 1}> { [gru] y = GRU<hidden_size = 1> (x, w, r) }"""
ONES, EMPTY = np.ones((2, 2), np.float32), np.ones((0, 2), np.float32)


def open_guarded(text: str = TEXT) -> GuardedSession:
    return GuardedSession(model(text), DEFAULT_OPTIONS, None)


class NoEmptyArrays(LocalSession):
    """A session that fails the test if it runs an empty array in this process."""

    def run(self, output_names: Any, feed: Any) -> Any:
        assert all(np.size(array) for array in feed.values()), "an empty array in this process"
        return super().run(output_names, feed)


def forbid_empty_arrays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_session, "LocalSession", NoEmptyArrays)


def test_only_a_batch_with_an_empty_array_starts_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_empty_arrays_here(monkeypatch)
    with open_guarded() as session:
        np.testing.assert_array_equal(session.run(None, {"x": ONES})[0], -ONES)
        assert session._subprocess is None
        assert session.run(None, {"x": EMPTY})[0].shape == (0, 2)
        first = session._subprocess
        assert session.run(["y"], {"x": EMPTY})[0].shape == (0, 2)
        assert session._subprocess is first is not None and first.pid != os.getpid()


def test_an_empty_array_in_a_sequence_counts() -> None:
    text = "g (seq(float[N]) s) => (int64 n) { n = SequenceLength (s) }"
    with open_guarded(text) as session:
        assert session.run(None, {"s": [ONES[0], EMPTY[:, 0]]})[0] == 2
        assert session._subprocess is not None


@pytest.mark.parametrize("options", [{}, {"full_statistics": True, "layerwise": True}, {"baseline": "float64"}])
def test_a_check_runs_no_empty_batch_in_this_process(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    forbid_empty_arrays_here(monkeypatch)
    report = mixlist.check(model(TEXT), policy(white=["Neg"]), [{"x": EMPTY}, {"x": ONES}, {"x": EMPTY}], **options)
    assert (report.verdict, report.batches) == ("pass", 3)
    assert mixlist.check(model(TEXT), policy(white=["Neg"]), [{"x": EMPTY}], **options).verdict == "inconclusive"


@posix_only
@pytest.mark.usefixtures("temporary")  # the kept model of the crash goes there
def test_a_crash_on_an_empty_batch_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S8.20: the crash is the reason of the verdict, and the process of the caller continues."""
    patch_workers(monkeypatch, f"local_session.LocalSession.run = {DIE}")
    report = mixlist.check(model(TEXT), policy(white=["Neg"]), [{"x": ONES}, {"x": EMPTY}])
    assert (report.verdict, report.batches) == ("fail", 1)
    assert report.reasons[0].startswith("batch 1, whose input 'x' has no elements: ONNX Runtime died with SIGSEGV")


def test_an_empty_batch_of_a_gru_does_not_kill_the_caller(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 aborts on this batch. A version that does not abort yields outputs without values."""
    onnx.save(model(GRU.replace("float[T, D, N, 1] y", "float[T, 1, N, 1] y"), check=False), tmp_path / "gru.onnx")
    code = (
        "import sys, numpy, mixlist\n"
        "feeds = [{'x': numpy.ones((3, n, 1), numpy.float32)} for n in (1, 0)]\n"
        "report = mixlist.check(sys.argv[1], mixlist.load_policy(), feeds)\n"
        "print(report.verdict, report.batches, *report.reasons)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "gru.onnx")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(
        ("fail 1 batch 1, whose input 'x' has no elements: ONNX Runtime died with SIGABRT", "pass 2 ")
    ), process.stdout
