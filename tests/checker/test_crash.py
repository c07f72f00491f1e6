"""Test the check of a session that dies: its verdict is fail, and the model is kept for a bug report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.checker.result import CheckReport
from tests.support.builders import model, policy
from tests.support.workers import DIE, patch_workers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
TEXT = "g (float[2] bad) => (float[2] y) { [m] m = Mul(bad, bad) [n] y = Neg(m) }"
FEEDS = [{"bad": np.array(values, np.float32)} for values in ([300.0, 1.0], [1.0, 2.0], [3.0, 4.0])]


@pytest.fixture(autouse=True)
def use_tmp_path_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def checked(**options: object) -> CheckReport:
    return mixlist.check(model(TEXT), policy(white=["Mul", "Neg"]), FEEDS, **options)


def kill_runs_if(monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    """Let the runs of this model die for which ``condition`` of the input ``bad`` is true."""
    dies = f"({DIE})() if 'bad' in feed and (lambda bad: {condition})(feed['bad']) else run(self, names, feed)"
    patch_workers(
        monkeypatch,
        f"run = local_session.LocalSession.run\nlocal_session.LocalSession.run = lambda self, names, feed: {dies}",
    )


@pytest.mark.parametrize("options", [{}, {"inner_type": "low"}, {"layerwise": True}])
def test_a_run_that_dies_fails_the_check(monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]) -> None:
    """Rule S8.20: Pass or fail."""
    kill_runs_if(monkeypatch, "True")
    report = checked(**options)
    assert (report.verdict, report.batches, report.nodes) == ("fail", 0, ())
    assert "ONNX Runtime died with SIGSEGV" in report.reasons[0] and "the model is kept at" in report.reasons[0]


def test_findings_before_a_crash_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_runs_if(monkeypatch, "bad[0] == 3")
    report = checked()
    assert (report.verdict, report.batches, report.exception_rate) == ("fail", 2, 0.5)
    assert [(n.name, n.kind) for n in report.nodes] == [("m", "overflow"), ("n", "propagated")]
    assert "died with SIGSEGV" in report.reasons[0] and "1 of 2 batches overflow" in report.reasons[1]


def test_a_crash_while_findings_are_analyzed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_runs_if(monkeypatch, "not any('minimum' in name for name in names)")  # the second look
    report = checked()
    assert (report.batches, report.nodes[0].count) == (3, None)
    assert any("not complete" in warning.message and "SIGSEGV" in warning.message for warning in report.warnings)


def test_a_file_on_which_the_runtime_dies_at_its_defaults_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ML614: The emulation runs with other settings, so that the check passes. No copy of the model is kept."""
    patch_workers(
        monkeypatch,
        "load = local_session.LocalSession.open.__func__\n"
        "local_session.LocalSession.open = classmethod(lambda kind, model, options, folder:"
        f" load(kind, model, options=options, folder=folder) if options.lean else ({DIE})())",
    )
    feeds = [{"bad": np.ones(2, np.float32)}]
    lists = policy(white=["Mul", "Neg"])
    mixed = mixlist.rewrite(model(TEXT), mixlist.resolve(model(TEXT), lists)).model
    for report in (
        mixlist.check(model(TEXT), lists, feeds, mixed_model=mixed),
        mixlist.convert(model(TEXT), feeds).report,
        mixlist.repair(mixed, feeds),
    ):
        assert report.verdict == "pass"
        (message,) = [item.message for item in report.warnings if item.code == "ML614"]
        assert "CPU provider dies with SIGSEGV while it loads" in message
    assert not list(tmp_path.rglob("*.onnx"))


def test_a_real_crash() -> None:
    """ONNX Runtime 1.31.1 aborts if it is built with the assertions of the C++ library; else it computes a constant."""
    text = "g (float[2] x) => (float[2] y) { [r] r = RandomNormalLike<scale=0.0>(x) [a] y = Add(x, r) }"
    report = mixlist.check(model(text.replace("x", "bad")), policy(), FEEDS)
    crash_reasons = [reason for reason in report.reasons if "died with SIGABRT" in reason]
    assert (report.batches == 0) if crash_reasons else (report.batches == 3)


def test_a_load_that_dies_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(monkeypatch, f"local_session.open_session = {DIE}")
    report = checked()
    assert (report.verdict, report.batches, report.outputs) == ("fail", 0, ())
    assert "died with SIGSEGV" in report.reasons[0] and "while it loaded" in report.reasons[0]


def test_a_crash_in_segments_names_the_batches_that_ran_together(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_runs_if(monkeypatch, "bad[0] == 1")
    report = checked(segment_bytes=1)
    assert (report.verdict, report.batches) == ("fail", 0)
    assert report.reasons[0].startswith("batch 0 to batch 2, which ran together: ONNX Runtime died with SIGSEGV")
    assert checked().reasons[0].startswith("batch 1: ONNX Runtime died with SIGSEGV")


# --- batches with empty arrays ---

NEG = "g (float[N, 2] x) => (float[N, 2] y) { [n] y = Neg (x) }"
ONES, EMPTY = np.ones((2, 2), np.float32), np.ones((0, 2), np.float32)


@pytest.mark.parametrize("options", [{}, {"inner_type": "low", "layerwise": True}])
def test_a_check_runs_empty_batches(options: dict[str, Any]) -> None:
    report = mixlist.check(model(NEG), policy(white=["Neg"]), [{"x": EMPTY}, {"x": ONES}, {"x": EMPTY}], **options)
    assert (report.verdict, report.batches) == ("pass", 3)
    assert mixlist.check(model(NEG), policy(white=["Neg"]), [{"x": EMPTY}], **options).verdict == "inconclusive"


def test_a_crash_on_an_empty_batch_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S8.20: the crash is the reason of the verdict, and the process of the caller continues."""
    dies = f"({DIE})() if 'x' in feed and not len(feed['x']) else run(self, names, feed)"
    patch_workers(
        monkeypatch,
        f"run = local_session.LocalSession.run\nlocal_session.LocalSession.run = lambda self, names, feed: {dies}",
    )
    report = mixlist.check(model(NEG), policy(white=["Neg"]), [{"x": ONES}, {"x": EMPTY}])
    assert (report.verdict, report.batches) == ("fail", 1)
    assert report.reasons[0].startswith("batch 1, whose input 'x' has no elements: ONNX Runtime died with SIGSEGV")


GRU = """g (float[T, N, 1] x) => (float[T, 1, N, 1] y)
<float[1, 3, 1] w = {1, 1, 1}, float[1, 3, 1] r = {1, 1, 1}> { [gru] y = GRU<hidden_size = 1> (x, w, r) }"""
SCRIPT = """
import sys, numpy, mixlist
feeds = [{'x': numpy.ones((3, n, 1), numpy.float32)} for n in (1, 0)]
# There is no `if __name__ == "__main__"`: the other process must not run this module again.
report = mixlist.check(sys.argv[1], mixlist.load_policy(), feeds)
print(report.verdict, report.batches, *report.reasons)
"""


def test_an_empty_batch_of_a_gru_does_not_kill_the_caller(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 aborts on this batch. A version that does not abort yields outputs without values."""
    onnx.save(model(GRU, check=False), tmp_path / "gru.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "gru.onnx")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(
        ("fail 1 batch 1, whose input 'x' has no elements: ONNX Runtime died with SIGABRT", "pass 2 ")
    ), process.stdout
