"""``mixlist bench``: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import parser

from mixlist.benchmark import run as bench_run
from mixlist.benchmark.timed_session import TimedSession
from mixlist.show.bench_document import bench_document
from tests.support.bench_reports import SLOWER
from tests.support.builders import model
from tests.support.package import RemoteSession, data_folder
from tests.support.workers import pid_of

SCHEMA = Draft202012Validator(json.loads((data_folder("schemas") / "bench.json").read_text("utf-8")))
QUICK = ("--rounds", 2)


def parse_valid_result(text: str) -> dict:
    """Parse the JSON of ``bench`` and check it against its schema."""
    result: dict = json.loads(text)
    SCHEMA.validate(result)
    return result


def test_the_table_shows_times_memory_and_casts(run, model_path: Path) -> None:
    completed = run("bench", model_path, "--random", 2, "--dim", "N=3", "--rounds", 10)
    assert (completed.status, completed.err) == (0, "")
    first, method, *table_lines = completed.out.splitlines()
    word, _, sentence = first.partition("  ")
    assert word in ("FASTER", "SLOWER", "NO DIFFERENCE")
    assert sentence.startswith(f"{model_path}, mixed ")
    assert "95 % confidence" in first
    # The headline has the times that its ratio compares: those of the first row.
    row = next(line for line in table_lines if line.startswith("time of a run: 10th percentile"))
    original, mixed = re.split("  +", row.strip())[1:]
    assert f"{mixed} instead of {original} in the 10th percentiles" in first
    assert method.strip().startswith("cpu: 10 rounds")
    assert "2 batches in turn; transfers not timed" in method
    table = "\n".join(table_lines)
    for text in (
        "time of a run: 10th percentile",
        "memory: peak",
        "Casts in the optimized graph",
        "low-precision nodes in the file, without Casts",
        "Time by operator",
        "MatMul",
    ):
        assert text in table
    assert "says nothing about an accelerator" in table


def test_missing_kernels_of_the_cpu_are_no_reason_to_change_the_lists() -> None:
    """Low precision is for another device, whose kernels the CPU says nothing about."""
    on_cpu, on_cuda = (
        [step.text for step in bench_document(replace(SLOWER, provider=provider), {"resolve": "r"}).steps]
        for provider in ("cpu", "cuda")
    )
    assert "5 of 8 low-precision nodes have no kernel" in on_cpu[0]
    assert on_cpu[0].endswith("If the model is to run on this CPU, use the original.")
    assert on_cpu[1].startswith("For an accelerator, measure there")
    assert not any("black-list" in text for text in on_cpu) and "black-list" in on_cuda[0]


def test_nothing_is_claimed_of_three_rounds(run, model_path: Path) -> None:
    arguments = ("bench", model_path, "--random", 1, "--rounds", 3)
    completed = run(*arguments)
    headline = f"INCONCLUSIVE  {model_path}, mixed: 3 rounds; 10 are needed to compare times"
    assert (completed.status, completed.out.splitlines()[0]) == (0, headline)
    assert "confidence" not in completed.out
    assert "time of a run: 10th percentile" in completed.out
    timing = parse_valid_result(run(*arguments, "--format", "json").out)["timing"]
    assert (timing["verdict"], timing["ratio"]) == ("inconclusive", None)


def test_json_has_the_timing_of_both_models(run, model_path: Path) -> None:
    completed = run("bench", model_path, "--random", 1, "--threads", 1, *QUICK, "--format", "json")
    assert completed.status == 0
    result = parse_valid_result(completed.out)
    assert result["model"] == str(model_path)
    assert result["estimate"] is None
    timed = result["timing"]
    assert (timed["rounds"], timed["threads"], timed["transfers"]) == (2, 1, False)
    assert timed["original"]["low_nodes"] == 0
    assert timed["other"]["low_nodes"] == 3
    assert timed["original"]["seconds"]["count"] == 2
    assert any("size N is not given: 1 is used" in warning for warning in result["warnings"])


def test_the_lists_decide_what_is_timed(run, model_path: Path, tmp_path: Path) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text('{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}')
    completed = run("bench", model_path, "--random", 1, *QUICK, "--mixlist", modify, "--format", "json")
    assert parse_valid_result(completed.out)["timing"]["other"]["low_nodes"] == 0


def test_two_models_are_timed_on_data(run, model_path: Path, tmp_path: Path) -> None:
    assert run("apply", model_path, "-o", tmp_path / "mixed.onnx").status == 0
    np.savez(tmp_path / "batch.npz", x=np.ones((2, 4), np.float32))
    mixed, data = tmp_path / "mixed.onnx", tmp_path / "batch.npz"
    completed = run("bench", model_path, mixed, "--data", data, *QUICK, "--format", "json")
    result = parse_valid_result(completed.out)
    assert result["other"] == str(tmp_path / "mixed.onnx")
    assert result["timing"]["other"]["low_nodes"] == 3
    assert result["timing"]["other"]["graph"]["casts"] >= 2


def test_an_estimate_runs_nothing(run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "RemoteSession", None)
    completed = run("bench", model_path, "--estimate", "--dim", "N=3", "--format", "json")
    assert (completed.status, completed.err) == (0, "")
    result = parse_valid_result(completed.out)
    assert result["timing"] is None
    assert result["estimate"]["original"]["matrix_flops"] == 2 * 12 * 4
    assert (result["estimate"]["original"]["low_share"], result["estimate"]["other"]["low_share"]) == (0, 1)
    assert result["other"] == f"{model_path}, mixed"


def test_an_estimate_as_a_table(run, model_path: Path) -> None:
    lines = run("bench", model_path, "--estimate", "--dim", "N=3").out.splitlines()
    assert "100 % of the operations of matrix products and convolutions are in low precision" in lines[0]
    (row,) = [line.split() for line in lines if line.startswith("MatMul")]
    assert row == ["MatMul", "1", "96", "0", "160", "bytes", "1", "96", "96", "80", "bytes"]


def test_an_estimate_assumes_one_sample_and_says_so(run, model_path: Path) -> None:
    completed = run("bench", model_path, "--estimate", "--format", "json")
    assert completed.status == 0
    assert "warning ML601: size N is not given: 1 is used" in completed.err
    result = parse_valid_result(completed.out)
    assert result["estimate"]["original"]["matrix_flops"] == 2 * 4 * 4
    assert result["warnings"] == ["ML601: size N is not given: 1 is used (set it with --dim N=N)"]


@pytest.mark.parametrize("extra", [(), ("--format", "json"), ("--dim", "H=8")])
def test_an_estimate_names_the_sizes_that_it_needs(run, tmp_path: Path, extra: tuple) -> None:
    text = "g (float[N, 3, H, W] x, float[2, 3, 1, 1] w) => (float[N, 2, H, W] y) { [conv] y = Conv (x, w) }"
    onnx.save(model(text), tmp_path / "m.onnx")
    completed = run("bench", tmp_path / "m.onnx", "--estimate", *extra)
    assert (completed.status, completed.out) == (2, "")
    names = ["W"] if "H=8" in extra else ["H", "W"]
    assert f"the estimate needs sizes that the model leaves open: {', '.join(names)}" in completed.err
    assert f"for example: {' '.join(f'--dim {name}=320' for name in names)}" in completed.err
    assert run("bench", tmp_path / "m.onnx", "--estimate", "--dim", "H=8", "--dim", "W=8").status == 0


def test_an_estimate_names_nodes_without_known_shapes(run, tmp_path: Path) -> None:
    text = "g (float[4, 4] x) => (float[A, B] y) { [i] n = NonZero (x) [f] y = Cast <to = 1> (n) }"
    onnx.save(model(text), tmp_path / "m.onnx")
    completed = run("bench", tmp_path / "m.onnx", "--estimate")
    assert completed.status == 0
    assert "2 nodes are not counted: i, f; its shapes are not known" in completed.out
    assert "there are no matrix products or convolutions" in completed.out


def test_products_that_are_not_counted_are_no_missing_products(run, tmp_path: Path) -> None:
    text = (
        "g (float[4, 4] x) => (float[A, B] y)"
        " { n = NonZero (x) f = Cast <to = 1> (n) t = Transpose (f) [m] y = MatMul (f, t) }"
    )
    onnx.save(model(text), tmp_path / "m.onnx")
    # So the Cast of the model stays as authored, and its two readers read one Cast of its output.
    (tmp_path / "modify.json").write_text('{"black-list": {"to-add": ["Cast"]}}')
    completed = run("bench", tmp_path / "m.onnx", "--estimate", "--mixlist", tmp_path / "modify.json")
    headline = completed.out.splitlines()[0]
    assert "no matrix product or convolution can be counted" in headline
    assert "the bytes cannot be compared, because 1 node cannot be counted in one model" in headline  # the Cast


def test_an_estimate_takes_the_sizes_of_data(run, model_path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", x=np.ones((5, 4), np.float32))
    completed = run("bench", model_path, "--estimate", "--data", tmp_path / "batch.npz", "--format", "json")
    assert parse_valid_result(completed.out)["estimate"]["original"]["matrix_flops"] == 2 * 20 * 4


def test_an_estimate_compares_two_files(run, model_path: Path, tmp_path: Path) -> None:
    assert run("apply", model_path, "-o", tmp_path / "mixed.onnx").status == 0
    completed = run("bench", model_path, tmp_path / "mixed.onnx", "--estimate", "--dim", "N=3", "--format", "json")
    assert parse_valid_result(completed.out)["estimate"]["other"]["low_share"] == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "there is no data to run the model on"),
        (("--estimate", "--dim", "M=3"), "no input has a size called 'M'"),
        (("--estimate", "--dim", "N"), "this is not NAME=SIZE"),
        (("--random", 1, "--rounds", 0), "--rounds"),
        (("{model}", "--random", 1, "--constants", "ieee"), "--constants decides how MODEL becomes mixed"),
        (("missing.onnx", "--random", 1), "cannot read the model missing.onnx"),
    ],
)
def test_wrong_arguments_are_refused(run, model_path: Path, arguments: tuple, message: str) -> None:
    completed = run("bench", model_path, *(str(a).format(model=model_path) for a in arguments))
    assert (completed.status, completed.out) == (2, "")
    assert message in completed.err


class CrashingSession(RemoteSession):
    """A session whose process crashes while it times the mixed model."""

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if method is TimedSession.time_runs and self._path.name == "mixed.onnx":
            os.kill(pid_of(self), signal.SIGSEGV)
        return super().call(method, *arguments)


def test_after_a_crash_the_time_of_the_other_model_is_reported(
    run, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "RemoteSession", CrashingSession)
    completed = run("bench", model_path, "--random", 1, *QUICK)
    assert completed.status == 2
    assert completed.out.startswith("NOT TIMED  There is nothing to compare: one of the two models could not be timed")
    assert "time of a run: 10th percentile" in completed.out
    assert f"ONNX Runtime died with {signal.Signals.SIGSEGV.name}" in completed.err
    assert "the model is kept at" in completed.err
    model_copy = Path(completed.err.split("the model is kept at ")[1].split()[0].rstrip(";"))
    assert onnx.load(model_copy).graph.node
    model_copy.unlink()
    model_copy.parent.rmdir()


def test_json_has_the_failure_after_a_crash(
    run, model_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(bench_run, "RemoteSession", CrashingSession)
    completed = run("bench", model_path, "--random", 1, *QUICK, "--format", "json")
    assert completed.status == 2
    result = parse_valid_result(completed.out)
    assert (result["timing"]["verdict"], result["timing"]["ratio"]) == ("not timed", None)
    assert "SIGSEGV" in result["timing"]["other"]["failure"]


def test_names_from_the_model_cannot_steer_the_terminal(run, tmp_path: Path) -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[4] x) => (float[4] y) { [own] y = mine.Thing (x) }""")
    proto.graph.node[0].name = "a\x1b[2Jb"
    onnx.save(proto, tmp_path / "m.onnx")
    completed = run("bench", tmp_path / "m.onnx", "--estimate")
    assert "\x1b" not in completed.out
    assert "a\\x1b[2Jb" in completed.out


@pytest.mark.parametrize(("options", "badge"), [(QUICK, "[A-Z ]+"), (("--estimate",), "ESTIMATE")])
def test_the_page_has_the_result_too(run, model_path: Path, tmp_path: Path, options: tuple, badge: str) -> None:
    page = tmp_path / "page.html"
    completed = run("bench", model_path, "--random", 1, "--dim", "N=2", *options, "--html", page)
    assert completed.status == 0
    assert f"wrote {page}\n" in completed.err
    text = page.read_text("utf-8")
    assert re.search(f"<title>{badge}: {re.escape(str(model_path))}, mixed", text)
    assert completed.out.splitlines()[0].partition(" ")[0] in text
    assert "MatMul" in text


def test_a_bfloat16_model_that_the_cpu_provider_refuses_is_explained(run, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 22]> g (bfloat16[2,2] x) => (bfloat16[2,2] y) { [m] y = MatMul(x, x) }'
    path = tmp_path / "b.onnx"
    onnx.save(parser.parse_model(text), path)
    completed = run("bench", path, "--random", 1, *QUICK)
    assert completed.status == 2
    reason = f"ONNX Runtime's CPU provider does not load {path}: it has no kernel for 1 of its 1 bfloat16 nodes"
    assert reason in completed.err and reason in completed.out
