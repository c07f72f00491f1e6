"""``mixlist bench``: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import parser

from mixlist.benchmark import run as bench_run
from mixlist.files.package_data import data_folder
from mixlist.runtime.timed_session import TimedSession

SCHEMA = Draft202012Validator(json.loads((data_folder("schemas") / "bench.json").read_text("utf-8")))
QUICK = ("--rounds", 2, "--warmup", 1)


def valid(text: str) -> dict:
    told: dict = json.loads(text)
    SCHEMA.validate(told)
    return told


def test_a_table(run, model_path: Path) -> None:
    ran = run("bench", model_path, "--random", 2, "--dim", "N=3", *QUICK)
    assert (ran.status, ran.err) == (0, "")
    first, how, *rest = ran.out.splitlines()
    assert first.startswith(f"{model_path}, mixed ")
    assert "95 % confidence" in first
    assert how.startswith("cpu: 2 rounds")
    assert "2 batches in turn; transfers not timed" in how
    shown = "\n".join(rest)
    for text in ("median time of a run", "memory: peak", "Casts in the optimized graph", "Time by operator", "MatMul"):
        assert text in shown
    assert "says nothing about an accelerator" in shown


def test_json(run, model_path: Path) -> None:
    ran = run("bench", model_path, "--random", 1, "--threads", 1, "--transfers", *QUICK, "--format", "json")
    assert ran.status == 0
    told = valid(ran.out)
    assert told["model"] == str(model_path)
    assert told["estimate"] is None
    timed = told["timing"]
    assert (timed["rounds"], timed["threads"], timed["transfers"]) == (2, 1, True)
    assert timed["original"]["low_nodes"] == 0
    assert timed["other"]["low_nodes"] == 2
    assert timed["original"]["seconds"]["count"] == 2
    assert any("size N is not given: 1 is used" in warning for warning in told["warnings"])


def test_the_lists_decide_what_is_timed(run, model_path: Path, tmp_path: Path) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text('{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}')
    ran = run("bench", model_path, "--random", 1, *QUICK, "--mixlist", modify, "--format", "json")
    assert valid(ran.out)["timing"]["other"]["low_nodes"] == 0


def test_two_models_and_data(run, model_path: Path, tmp_path: Path) -> None:
    assert run("apply", model_path, "-o", tmp_path / "mixed.onnx").status == 0
    np.savez(tmp_path / "batch.npz", x=np.ones((2, 4), np.float32))
    mixed, data = tmp_path / "mixed.onnx", tmp_path / "batch.npz"
    ran = run("bench", model_path, mixed, "--data", data, *QUICK, "--format", "json")
    told = valid(ran.out)
    assert told["other"] == str(tmp_path / "mixed.onnx")
    assert told["timing"]["other"]["low_nodes"] == 2
    assert told["timing"]["other"]["graph"]["casts"] >= 2


def test_profiles_are_kept(run, model_path: Path, tmp_path: Path) -> None:
    assert run("bench", model_path, "--random", 1, *QUICK, "--profile", tmp_path / "kept").status == 0
    events = json.loads((tmp_path / "kept" / "other.json").read_text())
    assert any(event["name"] == "model_run" for event in events)


def test_an_estimate_runs_nothing(run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "TimedSession", None)
    ran = run("bench", model_path, "--estimate", "--dim", "N=3", "--format", "json")
    assert (ran.status, ran.err) == (0, "")
    told = valid(ran.out)
    assert told["timing"] is None
    assert told["estimate"]["original"]["matrix_flops"] == 2 * 12 * 4
    assert (told["estimate"]["original"]["low_share"], told["estimate"]["other"]["low_share"]) == (0, 1)
    assert told["other"] == f"{model_path}, mixed"


def test_an_estimate_as_a_table(run, model_path: Path) -> None:
    lines = run("bench", model_path, "--estimate", "--dim", "N=3").out.splitlines()
    assert "100 % of the operations of matrix products and convolutions are in low precision" in lines[0]
    (row,) = [line.split() for line in lines if line.startswith("MatMul")]
    assert row == ["MatMul", "1", "96", "0", "160", "bytes", "1", "96", "96", "80", "bytes"]


def test_an_estimate_names_what_it_cannot_tell(run, model_path: Path) -> None:
    ran = run("bench", model_path, "--estimate")
    assert ran.status == 0
    assert "3 nodes are not counted: first, second, third; its shapes are not known" in ran.out


def test_an_estimate_takes_the_sizes_of_data(run, model_path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", x=np.ones((5, 4), np.float32))
    ran = run("bench", model_path, "--estimate", "--data", tmp_path / "batch.npz", "--format", "json")
    assert valid(ran.out)["estimate"]["original"]["matrix_flops"] == 2 * 20 * 4


def test_an_estimate_of_two_files(run, model_path: Path, tmp_path: Path) -> None:
    assert run("apply", model_path, "-o", tmp_path / "mixed.onnx").status == 0
    ran = run("bench", model_path, tmp_path / "mixed.onnx", "--estimate", "--dim", "N=3", "--format", "json")
    assert valid(ran.out)["estimate"]["other"]["low_share"] == 1


@pytest.mark.parametrize(
    "arguments, told",
    [
        ((), "there is no data to run the model on"),
        (("--estimate", "--dim", "M=3"), "no input has a size called 'M'"),
        (("--estimate", "--dim", "N"), "this is not NAME=SIZE"),
        (("--random", 1, "--rounds", 0), "--rounds"),
        (("{model}", "--random", 1, "--constants", "ieee"), "--constants decides how MODEL becomes mixed"),
        (("missing.onnx", "--random", 1), "cannot read the model missing.onnx"),
    ],
)
def test_wrong_use(run, model_path: Path, arguments: tuple, told: str) -> None:
    ran = run("bench", model_path, *(str(a).format(model=model_path) for a in arguments))
    assert (ran.status, ran.out) == (2, "")
    assert told in ran.err


class Dies(TimedSession):
    def time_runs(self, batch: int, runs: int) -> float:
        if self._context.model.is_relative_to(self._process.home):  # the mixed model, which has no file of its own
            os.kill(self.pid, signal.SIGSEGV)
        return super().time_runs(batch, runs)


def test_a_crash_is_reported_with_what_could_be_timed(run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "TimedSession", Dies)
    ran = run("bench", model_path, "--random", 1, *QUICK)
    assert ran.status == 2
    assert ran.out.startswith("There is nothing to compare: one of the two models could not be timed")
    assert "median time of a run" in ran.out
    assert f"ONNX Runtime died with {signal.Signals.SIGSEGV.name}" in ran.err
    assert "the model is kept at" in ran.err
    kept = Path(ran.err.split("the model is kept at ")[1].split()[0].rstrip(";"))
    assert onnx.load(kept).graph.node
    kept.unlink()
    kept.parent.rmdir()


def test_a_crash_in_json(run, model_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(bench_run, "TimedSession", Dies)
    ran = run("bench", model_path, "--random", 1, *QUICK, "--format", "json")
    assert ran.status == 2
    told = valid(ran.out)
    assert told["timing"]["ratio"] is None
    assert "SIGSEGV" in told["timing"]["other"]["failure"]


def test_names_from_the_model_cannot_steer_the_terminal(run, tmp_path: Path) -> None:
    made = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[4] x) => (float[4] y) { [own] y = mine.Thing (x) }""")
    made.graph.node[0].name = "a\x1b[2Jb"
    onnx.save(made, tmp_path / "m.onnx")
    ran = run("bench", tmp_path / "m.onnx", "--estimate")
    assert "\x1b" not in ran.out
    assert "a\\x1b[2Jb" in ran.out
