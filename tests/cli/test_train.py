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
from tests.support.training_network import classifier, clusters, noisy, samples, squares

from mixlist.errors import FileError
from mixlist.files.package_data import data_folder

ROOT = Path(__file__).parents[2]
SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)


@pytest.fixture
def step(tmp_path: Path) -> tuple[str, ...]:
    """Write a step and its data; return the arguments of a short training that passes."""
    onnx.save(classifier(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **clusters())
    np.savez(tmp_path / "test.npz", **clusters(120, seed=1))
    arguments = (tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--eval-data", tmp_path / "test.npz")
    return ("train", *map(str, arguments), "--batch-size", "16", "--epochs", "5", "--lr", "0.01")


def parse_valid_report(text: str) -> dict[str, Any]:
    """Parse the JSON of ``train``, and check it against its schema and for all fields."""
    result: dict[str, Any] = json.loads(text)
    schema = next(schema for schema in SCHEMAS if schema["$id"] == "urn:mixlist:schema:train:1")
    Draft202012Validator(schema, registry=REGISTRY).validate(result)
    assert set(result) == set(schema["properties"])
    assert next(iter(result)) == "format"
    for run in result["runs"]:
        assert {"loss", "metric"} <= set(run["float32"])
        assert {"loss", "metric", "scale", "skipped"} <= set(run["mixed"])
    return result


def test_a_training_that_passes_has_status_0(run, step: tuple[str, ...]) -> None:
    completed = run(*step)
    assert (completed.status, completed.err) == (0, "")
    assert completed.out.startswith(f"PASS  {step[1]} in float16, emulated on cpu, 3 runs of 75 steps\n")
    assert "0 of 225 mixed steps with an exception\n" in completed.out


def test_json_has_the_verdict_and_the_scaler(run, step: tuple[str, ...]) -> None:
    result = parse_valid_report(run(*step, "--format", "json").out)
    assert (result["format"], result["verdict"], result["exception_rate"]) == ("mixlist.train/1", "pass", 0.0)
    assert (result["limit"], result["steps"], len(result["runs"])) == (0.005, 75, 3)
    assert result["scaler"] == {
        "name": "torch", "init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
    }  # fmt: skip
    assert result["runs"][0]["mixed"]["scale"] == [65536.0] * 75


def test_every_option_reaches_the_training(run, step: tuple[str, ...], tmp_path) -> None:
    (tmp_path / "groups.json").write_text('[{"match": "^b", "weight_decay": 0}]')
    options = "--optimizer momentum --momentum 0.8 --nesterov --weight-decay 0.001 --lr-schedule step --warmup-steps 3"
    options += (
        " --lr-decay 0.5 --lr-decay-steps 20 --beta1 0.8 --beta2 0.9 --eps 1e-6 --seed 4 --runs 2 --loss-scaler npu"
    )
    options += " --loss-scale 512 --scaler-arg incr_every_n_steps=10 --scaler-arg decr_ratio=0.5 --large-batch"
    options += " --tolerance 0.1 --metric loss --advance-on-skip --precision-mode-v2 mixed_bfloat16 --format json"
    groups = ("--clip-norm", "0.9", "--param-groups", tmp_path / "groups.json")
    result = parse_valid_report(run(*step, *options.split(), *groups).out)
    assert result["optimizer"] == {
        "name": "momentum", "lr": 0.01, "momentum": 0.8, "nesterov": True, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6,
        "weight_decay": 0.001, "schedule": "step", "warmup_steps": 3, "decay": 0.5, "decay_steps": 20,
        "clip_norm": 0.9, "clip_value": None, "accumulate": 1,
        "parameter_groups": [{"match": "^b", "lr": None, "weight_decay": 0}],
    }  # fmt: skip
    assert result["scaler"] == {
        "name": "npu", "init_loss_scale": 512.0, "incr_every_n_steps": 10, "decr_every_n_nan_or_inf": 2,
        "incr_ratio": 2.0, "decr_ratio": 0.5,
    }  # fmt: skip
    assert [run["seed"] for run in result["runs"]] == [4, 5]
    assert result["runs"][0]["mixed"]["scale"][::10] == [512.0 * 2**k for k in range(8)]
    assert (result["limit"], result["tolerance"], result["metric"]) == (0.001, 0.1, "loss")
    assert result["precision"] == "bfloat16"


def test_a_failure_names_offenders_and_a_better_scale(run, step: tuple[str, ...]) -> None:
    options = ("--loss-scaler", "mindspore-fixed", "--loss-scale", str(2**40), "--trace-overflow", "--tune-scale")
    completed = run(*step, *options, "--format", "json")
    assert completed.status == 1
    result = parse_valid_report(completed.out)
    assert result["verdict"] == "fail"
    assert result["offenders"]
    assert result["scale_choice"]["loss_scale"] < 2**20
    text = run(*step, *options).out
    assert text.startswith("FAIL  ")
    assert "best: loss_scale = " in text
    assert "225 of 225 steps have an exception" in text


def test_a_step_without_loss_scale_is_refused_with_a_hint(run, step: tuple[str, ...], tmp_path: Path) -> None:
    model = classifier(replace={"Mul (d, loss_scale)": "Identity (d)"})
    del model.graph.input[next(k for k, i in enumerate(model.graph.input) if i.name == "loss_scale")]
    onnx.save(model, tmp_path / "step.onnx")
    completed = run(*step)
    assert completed.status == 2
    assert "has no input 'loss_scale'" in completed.err
    assert "hint: add a float32 scalar input" in completed.err


def data_with_nan() -> dict[str, Any]:
    data = clusters()
    data["x"][3, 1] = np.nan
    return data


@pytest.mark.parametrize(
    ("file", "arrays", "message"),
    [("train.npz", data_with_nan, "train.npz: x holds a value that is not finite, first in row 3"),
     ("test.npz", lambda: {n: v[:0] for n, v in clusters().items()}, "test.npz holds no samples"),
     ("train.npz", lambda: {"x": np.zeros((9, 3)), "y": np.zeros(9, int)}, "expects 4 along axis 1"),
     ("train.npz", lambda: {"y": np.zeros(9, int)}, "no data for input 'x'"),
     ("train.npz", lambda: {n: v[:9] for n, v in clusters().items()}, "a batch has 16 samples")],
)  # fmt: skip
def test_unusable_data_is_refused(
    run, step: tuple[str, ...], tmp_path: Path, file: str, arrays: Any, message: str
) -> None:
    np.savez(tmp_path / file, **arrays())
    completed = run(*step)
    assert (completed.status, completed.out) == (2, "")
    assert message in completed.err


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
def test_wrong_options_are_refused(run, step: tuple[str, ...], options: str, message: str) -> None:
    completed = run(*step, *options.split())
    assert (completed.status, completed.out) == (2, "")
    assert message in completed.err


@pytest.mark.parametrize("option", ["--html", "--state"])
@pytest.mark.parametrize("name", ["step.onnx", "train.npz", "test.npz"])
def test_inputs_are_never_replaced(run, step: tuple[str, ...], tmp_path: Path, option: str, name: str) -> None:
    before = (tmp_path / name).read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / name)
    for path in (tmp_path / name, tmp_path / "link"):
        completed = run(*step, option, path)
        assert completed.status == 2
        assert "is an input" in completed.err
    assert (tmp_path / name).read_bytes() == before


def test_the_state_and_the_page_in_one_file_are_refused(run, step: tuple[str, ...], tmp_path: Path) -> None:
    completed = run(*step, "--html", tmp_path / "a", "--state", tmp_path / "a")
    assert (completed.status, "would write the same file" in completed.err) == (2, True)


def test_the_page_and_the_state_are_written(run, step: tuple[str, ...], tmp_path: Path) -> None:
    page, state = tmp_path / "report.html", tmp_path / "state.npz"
    completed = run(*step, "--html", page, "--state", state)
    assert completed.status == 0
    assert completed.err == f"wrote {page}\n"
    assert "step.onnx" in page.read_text("utf-8")
    second_run = run(*step, "--state", state, "--format", "json")
    assert parse_valid_report(second_run.out)["verdict"] == "pass"
    different_options = run(*step, "--state", state, "--lr-schedule", "cosine")
    assert different_options.status == 2
    assert "is the state of another training: options differs" in different_options.err


def test_a_configuration_sets_options(run, step: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mixlist.toml").write_text(
        'ops-info = "mindspore-o2"\n[train]\nsteps = 7\nruns = 1\nloss-scale = 256.0\noptimizer = "sgd"\n'
    )
    completed = run(*step, "--config", tmp_path / "mixlist.toml", "--format", "json")
    result = parse_valid_report(completed.out)
    assert result["steps"] == 75  # the command line's --epochs wins
    assert len(result["runs"]) == 1
    assert result["scaler"]["init_scale"] == 256
    assert result["optimizer"]["name"] == "sgd"


def test_ctrl_c_gives_a_partial_report(tmp_path: Path) -> None:
    onnx.save(noisy(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **samples(40))
    arguments = (
        "train",
        "step.onnx",
        "--data",
        "train.npz",
        "--batch-size",
        "4",
        "--steps",
        "1000000",
        "--format",
        "json",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "mixlist", *arguments, "--state", "state.npz"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not (tmp_path / "state.npz").exists():  # until the training runs
                assert process.poll() is None
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, err
    result = parse_valid_report(out)
    assert result["complete"] is False
    assert result["reasons"] == ["interrupted after 0 of 3 runs"]
    assert result["runs"][0]["float32"]["loss"]
    assert result["runs"][0]["mixed"]["loss"] == []


def test_progress_is_shown_on_a_terminal(step: tuple[str, ...]) -> None:
    master, terminal = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "mixlist", *step, "--format", "json"]
    terminal_output = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True, env=environment) as process:
        os.close(terminal)
        with suppress(OSError):  # reading the end of a terminal is an error
            while piece := os.read(master, 2**16):
                terminal_output += piece
        out, _ = process.communicate(timeout=60)
    os.close(master)
    assert b"training" in terminal_output or b"seed 0" in terminal_output
    assert parse_valid_report(out)["verdict"] == "pass"


def test_names_cannot_steer_the_terminal(run, tmp_path: Path) -> None:
    model = squares()
    for graph in (model.graph,):
        for value in (*graph.input, *graph.output):
            value.name = value.name.replace("b2", "b2\x1b[2J")
        for node in graph.node:
            node.input[:] = [name.replace("b2", "b2\x1b[2J") for name in node.input]
            node.output[:] = [name.replace("b2", "b2\x1b[2J") for name in node.output]
    onnx.save(model, tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", x=np.ones((8, 2)), t=np.full((8, 2), 1e38))
    completed = run(
        "train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--batch-size", "4", "--epochs", "1"
    )
    assert completed.status == 1
    assert "\x1b" not in completed.out + completed.err
    assert "b2\\x1b[2J" in completed.out


def test_the_report_is_printed_although_the_page_cannot_be_written(
    run, step: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once the run is over."""

    def refuse(path: str, data: bytes) -> None:
        raise FileError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("mixlist.report.html_page.write_atomically", refuse)
    completed = run(*step, "--runs", "1", "--epochs", "1", "--html", tmp_path / "report.html", "--format", "json")
    assert completed.status == 2
    assert "report.html: cannot be written: No space" in completed.err
    assert parse_valid_report(completed.out)["verdict"] == "inconclusive"
