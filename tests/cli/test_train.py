"""``mixlist train``: options, exit status, inputs that do not fit, files that it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from mixlist.errors import FileError
from mixlist.files.package_data import data_folder
from tests.support.training_network import classifier, clusters, noisy, samples, squares

ROOT = Path(__file__).parents[2]
SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)


@pytest.fixture
def step(tmp_path: Path) -> tuple[str, ...]:
    """A short training that passes, in a folder of its own."""
    onnx.save(classifier(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **clusters())
    np.savez(tmp_path / "test.npz", **clusters(120, seed=1))
    given = (tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--eval-data", tmp_path / "test.npz")
    return ("train", *map(str, given), "--batch-size", "16", "--epochs", "5", "--lr", "0.01")


def told(text: str) -> dict[str, Any]:
    """The result, held to its schema, field by field."""
    result: dict[str, Any] = json.loads(text)
    schema = next(each for each in SCHEMAS if each["$id"] == "urn:mixlist:schema:train:1")
    Draft202012Validator(schema, registry=REGISTRY).validate(result)
    assert set(result) == set(schema["properties"])
    assert next(iter(result)) == "format"
    for run in result["runs"]:
        assert {"loss", "metric"} <= set(run["float32"])
        assert {"loss", "metric", "scale", "skipped"} <= set(run["mixed"])
    return result


def test_a_pass(run, step: tuple[str, ...]) -> None:
    ran = run(*step)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"PASS  {step[1]} in float16, emulated on cpu, 3 runs of 75 steps\n")
    assert "0 of 225 mixed steps with an exception: 0.00%, the limit is 0.50%" in ran.out


def test_json(run, step: tuple[str, ...]) -> None:
    result = told(run(*step, "--format", "json").out)
    assert (result["format"], result["verdict"], result["exception_rate"]) == ("mixlist.train/1", "pass", 0.0)
    assert (result["limit"], result["steps"], len(result["runs"])) == (0.005, 75, 3)
    assert result["scaler"] == {
        "name": "torch", "init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
    }  # fmt: skip
    assert result["runs"][0]["mixed"]["scale"] == [65536.0] * 75


def test_every_option_reaches_the_training(run, step: tuple[str, ...]) -> None:
    more = "--optimizer momentum --momentum 0.8 --nesterov --weight-decay 0.001 --lr-schedule step --warmup-steps 3"
    more += " --lr-decay 0.5 --lr-decay-steps 20 --beta1 0.8 --beta2 0.9 --eps 1e-6 --seed 4 --runs 2 --loss-scaler npu"
    more += " --loss-scale 512 --scaler-arg incr_every_n_steps=10 --scaler-arg decr_ratio=0.5 --large-batch"
    more += " --tolerance 0.1 --metric loss --advance-on-skip --precision-mode-v2 mixed_bfloat16 --format json"
    result = told(run(*step, *more.split()).out)
    assert result["optimizer"] == {
        "name": "momentum", "lr": 0.01, "momentum": 0.8, "nesterov": True, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6,
        "weight_decay": 0.001, "schedule": "step", "warmup_steps": 3, "decay": 0.5, "decay_steps": 20,
    }  # fmt: skip
    assert result["scaler"] == {
        "name": "npu", "init_loss_scale": 512.0, "incr_every_n_steps": 10, "decr_every_n_nan_or_inf": 2,
        "incr_ratio": 2.0, "decr_ratio": 0.5,
    }  # fmt: skip
    assert [each["seed"] for each in result["runs"]] == [4, 5]
    assert result["runs"][0]["mixed"]["scale"][::10] == [512.0 * 2**k for k in range(8)]
    assert (result["limit"], result["tolerance"], result["metric"]) == (0.001, 0.1, "loss")
    assert result["precision"] == "bfloat16"


def test_a_failure(run, step: tuple[str, ...]) -> None:
    extra = ("--loss-scaler", "mindspore-fixed", "--loss-scale", str(2**40), "--trace-overflow", "--tune-scale")
    ran = run(*step, *extra, "--format", "json")
    assert ran.status == 1
    result = told(ran.out)
    assert result["verdict"] == "fail"
    assert result["offenders"]
    assert result["scale_choice"]["loss_scale"] < 2**20
    text = run(*step, *extra).out
    assert text.startswith("FAIL  ")
    assert "best: loss_scale = " in text
    assert "225 of 225 steps have an exception" in text


def test_a_step_without_loss_scale_is_refused_with_the_remedy(run, step: tuple[str, ...], tmp_path: Path) -> None:
    model = classifier(replace={"Mul (d, loss_scale)": "Identity (d)"})
    del model.graph.input[next(k for k, i in enumerate(model.graph.input) if i.name == "loss_scale")]
    onnx.save(model, tmp_path / "step.onnx")
    ran = run(*step)
    assert ran.status == 2
    assert "has no input 'loss_scale'" in ran.err
    assert "hint: add a float32 scalar input" in ran.err


def with_nan() -> dict[str, Any]:
    made = clusters()
    made["x"][3, 1] = np.nan
    return made


@pytest.mark.parametrize(
    ("file", "arrays", "message"),
    [("train.npz", with_nan, "train.npz: x holds a value that is not finite, first in row 3"),
     ("test.npz", lambda: {n: v[:0] for n, v in clusters().items()}, "test.npz holds no samples"),
     ("train.npz", lambda: {"x": np.zeros((9, 3)), "y": np.zeros(9, int)}, "expects 4 along axis 1"),
     ("train.npz", lambda: {"y": np.zeros(9, int)}, "no data for input 'x'"),
     ("train.npz", lambda: {n: v[:9] for n, v in clusters().items()}, "a batch has 16 samples")],
)  # fmt: skip
def test_data_that_does_not_fit(
    run, step: tuple[str, ...], tmp_path: Path, file: str, arrays: Any, message: str
) -> None:
    np.savez(tmp_path / file, **arrays())
    ran = run(*step)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


WRONG = [
    ("--steps 5", "--steps and --epochs both set the length"),
    ("--loss-scaler none --loss-scale 2", "has no scale to set"),
    ("--loss-scaler fixed", "needs loss_scale"),
    ("--loss-scale 4 --scaler-arg init_scale=8", "--loss-scale is the parameter init_scale"),
    ("--scaler-arg growth_interval", "not NAME=VALUE"),
    ("--scaler-arg growth_interval=often", "must be a whole number"),
    ("--scaler-arg window=3", "no parameter 'window'"),
    ("--scaler-arg growth_interval=3 --scaler-arg growth_interval=4", "given twice"),
    ("--loss-scale nan", "above 0 and finite"),
    ("--loss-scaler apex", "'apex'"),
    ("--optimizer lamb", "'lamb'"),
    ("--lr 0", "lr and eps must be above 0"),
    ("--runs 0", "0"),
    ("--metric f1", "no output 'f1'"),
    ("--init nothing.npz", "nothing.npz"),
    ("--large-batch --max-exception-rate 0.1", "both set the exception rate"),
    ("--html nowhere/report.html", "its folder does not exist"),
    ("--mixlist - --keep-dtype -", "standard input"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[options for options, _ in WRONG])
def test_wrong_options(run, step: tuple[str, ...], options: str, message: str) -> None:
    ran = run(*step, *options.split())
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("option", ["--html", "--state"])
@pytest.mark.parametrize("name", ["step.onnx", "train.npz", "test.npz"])
def test_inputs_are_never_replaced(run, step: tuple[str, ...], tmp_path: Path, option: str, name: str) -> None:
    before = (tmp_path / name).read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / name)
    for path in (tmp_path / name, tmp_path / "link"):
        ran = run(*step, option, path)
        assert ran.status == 2
        assert "is an input" in ran.err
    assert (tmp_path / name).read_bytes() == before


def test_the_state_and_the_page_are_two_files(run, step: tuple[str, ...], tmp_path: Path) -> None:
    ran = run(*step, "--html", tmp_path / "a", "--state", tmp_path / "a")
    assert (ran.status, "would write the same file" in ran.err) == (2, True)


def test_the_page_and_the_state_are_written(run, step: tuple[str, ...], tmp_path: Path) -> None:
    page, state = tmp_path / "report.html", tmp_path / "state.npz"
    ran = run(*step, "--html", page, "--state", state)
    assert ran.status == 0
    assert ran.err == f"wrote {page}\n"
    assert "step.onnx" in page.read_text("utf-8")
    again = run(*step, "--state", state, "--format", "json")
    assert told(again.out)["verdict"] == "pass"
    other = run(*step, "--state", state, "--lr-schedule", "cosine")
    assert other.status == 2
    assert "is the state of another training: options differs" in other.err


def test_a_configuration(run, step: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mixlist.toml").write_text(
        'ops-info = "mindspore-o2"\n[train]\nsteps = 7\nruns = 1\nloss-scale = 256.0\noptimizer = "sgd"\n'
    )
    ran = run(*step, "--config", tmp_path / "mixlist.toml", "--format", "json")
    result = told(ran.out)
    assert result["steps"] == 75  # the command line's --epochs wins
    assert len(result["runs"]) == 1
    assert result["scaler"]["init_scale"] == 256
    assert result["optimizer"]["name"] == "sgd"


def test_ctrl_c_gives_a_partial_report(tmp_path: Path) -> None:
    onnx.save(noisy(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **samples(40))
    given = ("train", "step.onnx", "--data", "train.npz", "--batch-size", "4", "--steps", "1000000", "--format", "json")
    with subprocess.Popen(
        [sys.executable, "-m", "mixlist", *given, "--state", "state.npz"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not (tmp_path / "state.npz").exists():  # it runs
                assert process.poll() is None
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, err
    result = told(out)
    assert result["complete"] is False
    assert result["reasons"] == ["interrupted after 0 of 3 runs"]
    assert result["runs"][0]["float32"]["loss"]
    assert result["runs"][0]["mixed"]["loss"] == []


def test_progress_is_shown_on_a_terminal_alone(step: tuple[str, ...]) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "mixlist", *step, "--format", "json"]
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        with suppress(OSError):  # how the end of a terminal is told
            while piece := os.read(ours, 2**16):
                shown += piece
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert b"training" in shown or b"seed 0" in shown
    assert told(out)["verdict"] == "pass"


def test_text_that_would_steer_a_terminal(run, tmp_path: Path) -> None:
    model = squares()
    for graph in (model.graph,):
        for value in (*graph.input, *graph.output):
            value.name = value.name.replace("b2", "b2\x1b[2J")
        for node in graph.node:
            node.input[:] = [name.replace("b2", "b2\x1b[2J") for name in node.input]
            node.output[:] = [name.replace("b2", "b2\x1b[2J") for name in node.output]
    onnx.save(model, tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", x=np.ones((8, 2)), t=np.full((8, 2), 1e38))
    ran = run("train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--batch-size", "4", "--epochs", "1")
    assert ran.status == 1
    assert "\x1b" not in ran.out + ran.err
    assert "b2\\x1b[2J" in ran.out


def test_a_page_that_cannot_be_written_does_not_take_the_report_with_it(
    run, step: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once the run is over."""

    def refuse(path: str, data: bytes) -> None:
        raise FileError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("mixlist.report.html_page.write_atomically", refuse)
    ran = run(*step, "--runs", "1", "--epochs", "1", "--html", tmp_path / "report.html", "--format", "json")
    assert ran.status == 2
    assert "report.html: cannot be written: No space" in ran.err
    assert told(ran.out)["verdict"] == "fail"
