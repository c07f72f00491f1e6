"""``mixlist train``: options, exit status, loops that cannot be used, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, TextIO

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import mixlist
from mixlist.errors import FileError
from mixlist.training.options import TrainOptions
from tests.cli.conftest import CompletedCommand, Run
from tests.support.extras import import_extra
from tests.support.package import data_folder
from tests.support.pseudo_terminal import written_to_terminal
from tests.support.training_loops import LOOP, OVERFLOWING_LOSS, write_loop

import_extra("torch")

ROOT = Path(__file__).parents[2]
SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)


@pytest.fixture
def loop(tmp_path: Path) -> str:
    """Write a loop that passes; return the argument that names its function."""
    return f"{write_loop(tmp_path)}:run"


def parse_valid_report(text: str) -> dict[str, Any]:
    """Parse the JSON of ``train``, and check it against its schema and for all fields."""
    result: dict[str, Any] = json.loads(text)
    schema = next(schema for schema in SCHEMAS if schema["$id"] == "urn:mixlist:schema:train:1")
    Draft202012Validator(schema, registry=REGISTRY).validate(result)
    assert set(result) == set(schema["properties"])
    assert next(iter(result)) == "format"
    return result


def test_a_training_that_passes_has_status_0(run: Run, loop: str) -> None:
    completed = run("train", loop)
    assert (completed.status, completed.err) == (0, "")
    assert completed.out.startswith(f"PASS  {loop} in float16 on cpu, 4 runs of 30 steps\n")
    assert "0 of 120 mixed steps with an exception" in completed.out


def test_json_has_the_courses_of_the_trainings(run: Run, loop: str) -> None:
    result = parse_valid_report(run("train", loop, "--format", "json").out)
    assert (result["verdict"], result["loop"], result["metric"]) == ("pass", loop, "accuracy")
    assert [run["seed"] for run in result["runs"]] == [0, 1, 2, 3]
    for training in (result["runs"][0][kind] for kind in ("mixed", "float32", "twin")):
        assert len(training["loss"]) == len(training["scale"]) == result["steps"] == 30
    assert result["scaler"]["name"] == "torch" and result["scaler"]["init_scale"] == 65536
    assert result["underflow"]["by_parameter"].keys() >= {"0.weight", "2.bias"}


def test_a_failure_names_operators_and_the_edit_that_keeps_them_high(run: Run, tmp_path: Path) -> None:
    """The edit makes the training pass."""
    loop = f"{write_loop(tmp_path, OVERFLOWING_LOSS)}:run"
    mixlist = tmp_path / "modify.json"
    mixlist.write_text('{"white-list": {"to-add": ["Exp", "Gemm"]}}')
    arguments = ("train", loop, "--ops-info", "onnx", "--mixlist", mixlist)
    completed = run(*arguments, "--format", "json")
    assert completed.status == 1
    result = parse_valid_report(completed.out)
    assert result["verdict"] == "fail"
    assert "exception that no loss scale prevents" in result["reasons"][0]
    (finding,) = result["findings"]
    operator = finding["operator"]
    assert (operator["op_type"], operator["is_low"], operator["is_gradient"]) == ("Exp", True, False)
    assert len(result["replays"]) == 4 and all(replay["repeats"] for replay in result["replays"])
    text = run(*arguments)
    assert (
        "Where overflow starts" in text.out
        and "A modify_mixlist file with this content, such as modify.json, keeps them in float32" in text.out
    )
    mixlist.write_text(result["suggestion"])
    assert run(*arguments).status == 0


def test_every_option_reaches_the_training(run: Run, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run_train(loop: Any, policy: Any, options: TrainOptions, name: str) -> None:
        seen.update(vars(options), policy=policy, name=name)
        raise KeyboardInterrupt

    monkeypatch.setattr("mixlist.training.run.run_train", run_train)
    arguments = (
        "--ops-info mindspore-o2 --precision-mode-v2 mixed_bfloat16 --gray-policy promote --loss-scaler mindspore"
        " --loss-scale 1024 --scaler-arg scale_window=50 --runs 5 --first-seed 7 --metric top1 --better lower"
        " --tolerance 0.01 --overflow-mode saturate --overflow-detection gradients --large-batch"
        " --no-float32 --tensorboard runs"
    )
    assert run("train", loop, *arguments.split()).status == 130
    policy, _ = seen.pop("policy"), seen.pop("progress")
    assert (policy.mode.low, policy.gray_policy) == ("bfloat16", "promote")
    assert seen == {
        "name": loop, "loss_scaler": "mindspore", "runs": 5, "first_seed": 7, "metric": "top1", "better": "lower",
        "scaler_parameters": {"init_loss_scale": 1024, "scale_window": "50"}, "tolerance": 0.01,
        "max_exception_rate": 0.001, "overflow_mode": "saturate", "overflow_detection": "gradients",
        "float32": False, "tensorboard": "runs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "library", "gray_policy"),
    [
        ("", "pytorch", "promote"),
        ("--loss-scaler mindspore", "pytorch", "promote"),
        ("--ops-info onnx", "onnx", "ascend"),
        ("--loss-scaler none", "pytorch", "promote"),
        ("--gray-policy ascend", "pytorch", "ascend"),
    ],
)
def test_the_lists_of_the_scaler_torch_are_those_of_autocast(
    run: Run, loop: str, monkeypatch: pytest.MonkeyPatch, options: str, library: str, gray_policy: str
) -> None:
    """Unless the user gives a library."""
    seen: list[Any] = []

    def run_train(loop: Any, policy: Any, *_: Any) -> None:
        seen.append(policy)
        raise KeyboardInterrupt

    monkeypatch.setattr("mixlist.training.run.run_train", run_train)
    assert run("train", loop, *options.split()).status == 130
    (policy,) = seen
    assert policy.gray_policy == gray_policy
    expected = mixlist.load_policy(ops_info=library, gray_policy=gray_policy)
    assert policy.digest == expected.digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--loss-scaler npu2", "'npu2' is not one of"),
        ("--loss-scaler none --loss-scale 2", "the loss scaler none has no scale to set"),
        ("--loss-scale 2 --scaler-arg init_scale=4", "--loss-scale is the parameter init_scale"),
        ("--scaler-arg growth_interval=1 --scaler-arg growth_interval=2", "growth_interval is given twice"),
        ("--scaler-arg growth", "--scaler-arg growth: this is not NAME=VALUE"),
        ("--scaler-arg window=3", "window"),
        ("--loss-scale -1", "init_scale"),
        ("--loss-scaler none --loss-scale 2", "leave --loss-scale out, or --loss-scaler none"),
        ("--runs 0", "--runs"),
        ("--metric f1", "returned no metric 'f1': it has accuracy"),
        ("--precision-mode must_keep_origin_dtype", "leaves every operator in float32"),
        ("--gray-policy between", "the gray policy between reads operators that have not run yet"),
        ("--constants black", "No such option"),
    ],
)
def test_wrong_options_are_refused(run: Run, loop: str, options: str, message: str) -> None:
    completed = run("train", loop, *options.split())
    assert (completed.status, completed.out) == (2, "")
    assert message in completed.err and "Traceback" not in completed.err


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("train.py", "train.py"),
        ("train.py:go", "train.py has no 'go'"),
        ("train.py:STEPS", "is an object of the type int, and not a function"),
        ("train.py:batches", "cannot be called with a seed, or with a seed and a scaler"),
        ("other.py:run", "other.py"),
        ("no_such_module:run", "there is no module no_such_module"),
        ("train.py:idle", "never calls scaler.update()"),
        ("train.py:silent", "returned None, and not a metric"),
        ("train.py:both", "returned 2 metrics: a, b"),
        ("train.py:half", "Linear: addmm reads a float16 tensor"),
    ],
)
def test_loops_that_cannot_be_used_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    more = """

def idle(seed, scaler):
    return 0.0


def silent(seed, scaler):
    run(seed, scaler)


def both(seed, scaler):
    run(seed, scaler)
    return {"a": 1.0, "b": 2.0}


def half(seed, scaler):
    nn.Linear(2, 2).half()(torch.ones(1, 2).half())
"""
    write_loop(tmp_path, more)
    completed = run("train", function, "--runs", "1")
    assert (completed.status, completed.out) == (2, "")
    assert message in completed.err and "Traceback" not in completed.err


@pytest.mark.parametrize(
    ("body", "last_frame", "error"),
    [
        ("missing = {}['key']", "missing = {}['key']", "KeyError: 'key'"),
        ("torch.ones(2, 3) @ torch.ones(2, 3)", "torch.ones(2, 3) @ torch.ones(2, 3)", "RuntimeError: mat1 and mat2"),
        ("torch.ones(2, requires_grad=True).backward()", ".backward()", "RuntimeError: grad can be implicitly created"),
        ("import sys; sys.exit('stop')", "sys.exit('stop')", "SystemExit: stop"),
    ],
)
def test_an_error_of_the_loop_shows_its_own_traceback(
    run: Run, tmp_path: Path, body: str, last_frame: str, error: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n\ndef run(seed, scaler):\n    work()\n\ndef work():\n    {body}\n")
    completed = run("train", f"{path}:run")
    assert (completed.status, completed.out) == (2, "")
    assert completed.err.startswith("Traceback (most recent call last):\n")
    assert f'File "{path}", line 4, in run' in completed.err and last_frame in completed.err
    assert error in completed.err
    assert "mixlist: in the mixed training of seed 0, after 0 steps" in completed.err
    assert str(ROOT / "mixlist") not in completed.err


def test_an_error_on_import_shows_its_own_traceback(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nraise ValueError('no data folder')\n")
    completed = run("train", f"{path}:run")
    assert completed.status == 2
    assert f'File "{path}", line 2' in completed.err
    assert "ValueError: no data folder" in completed.err
    assert "python_function" not in completed.err


def test_what_the_loop_prints_goes_to_standard_error(run: Run, tmp_path: Path) -> None:
    loop = f"{write_loop(tmp_path, 'print(chr(104) + chr(105))' + chr(10))}:run"
    completed = run("train", loop, "--runs", "1", "--format", "json")
    assert completed.err.count("hi\n") == 1
    parse_valid_report(completed.out)


def test_one_run_is_inconclusive_with_status_1(run: Run, loop: str) -> None:
    completed = run("train", loop, "--runs", "1")
    assert completed.status == 1
    assert completed.out.startswith("INCONCLUSIVE  ")
    assert completed.err.startswith("note: fewer than 3 runs can fail, and never pass: --runs 4\n")
    assert "1 of at least 3 runs" in completed.out
    assert f"mixlist train {loop} --runs 4\n" in completed.out  # and not --runs 1 --runs 4


def test_a_name_that_no_operator_has_warns(run: Run, loop: str, tmp_path: Path) -> None:
    """Rule S5.6."""
    mixlist = tmp_path / "modify.json"
    mixlist.write_text('{"black-list": {"to-add": ["Gem"]}}')
    completed = run("train", loop, "--runs", "1", "--mixlist", mixlist)
    assert "warning ML406: no node of the model is of op type Gem" in completed.err


def test_a_configuration_sets_options(run: Run, loop: str, tmp_path: Path) -> None:
    (tmp_path / "mixlist.toml").write_text(
        'ops-info = "mindspore-o2"\n[train]\nruns = 2\nloss-scale = 256.0\ntolerance = 0.1\n'
    )
    completed = run("train", loop, "--runs", "1", "--config", tmp_path / "mixlist.toml", "--format", "json")
    result = parse_valid_report(completed.out)
    assert len(result["runs"]) == 1  # the command line wins
    assert result["scaler"]["init_scale"] == 256


def test_the_page_is_written(run: Run, loop: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    completed = run("train", loop, "--html", page)
    assert completed.status == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_the_report_is_printed_although_the_page_cannot_be_written(
    run: Run, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once the run is over."""

    def refuse(path: str, data: bytes) -> None:
        raise FileError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("mixlist.show.html_page.write_atomically", refuse)
    completed = run("train", loop, "--runs", "1", "--html", tmp_path / "report.html", "--format", "json")
    assert completed.status == 2
    assert "report.html: cannot be written: No space" in completed.err
    assert parse_valid_report(completed.out)["verdict"] == "inconclusive"


def test_without_torch_the_error_names_the_extra(run: Run, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type] # an import raises ImportError
    completed = run("train", loop)
    assert (completed.status, completed.out) == (2, "")
    assert "pip install torch scipy" in completed.err


def test_ctrl_c_gives_a_partial_report(tmp_path: Path) -> None:
    """The loop says when it trains, and goes on for ever."""
    # A shell starts its background jobs without SIGINT, and a program inherits this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    text = LOOP.replace("STEPS = 30", "STEPS = 10**9").replace(
        "        scaler.update()", "        scaler.update(); say()"
    )
    (tmp_path / "train.py").write_text(f"{text}\n\ndef say():\n    open('trains', 'w').close()\n")
    with subprocess.Popen(
        [sys.executable, "-m", "mixlist", "train", "train.py:run", "--format", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not (tmp_path / "trains").exists():
                assert process.poll() is None
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, err
    result = parse_valid_report(out)
    assert result["complete"] is False
    assert result["verdict"] == "inconclusive"
    assert result["reasons"] == ["interrupted after 0 of 4 runs"]
    assert result["runs"][0]["mixed"]["loss"]
    assert result["runs"][0]["float32"]["loss"] == []


def test_progress_is_shown_on_a_terminal(run: Run, loop: str) -> None:
    completed: list[CompletedCommand] = []

    def train(terminal: TextIO) -> None:
        with redirect_stderr(terminal):
            completed.append(run("train", loop, "--format", "json"))

    assert "training" in written_to_terminal(120, train)
    assert parse_valid_report(completed[0].out)["verdict"] == "pass"


def test_names_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    text = LOOP.replace("nn.Sequential(", "Network(").replace('{"accuracy"', '{"accuracy\\x1b[2J"')
    network = '\n\nclass Network(nn.Sequential):\n    pass\n\nNetwork.__name__ = Network.__qualname__ = "N\\x1b[2J"\n'
    (tmp_path / "train.py").write_text(text + network + OVERFLOWING_LOSS)
    completed = run("train", f"{tmp_path / 'train.py'}:run", "--precision-mode-v2", "fp16")
    assert completed.status == 1
    assert "\x1b" not in completed.out + completed.err
    assert "accuracy\\x1b[2J" in completed.out


def test_the_help_names_both_defaults_of_the_lists(run: Run) -> None:
    words = " ".join(run("train", "--help-all").out.split())
    assert "[default: pytorch]" in words
    assert "[default: promote, ascend with --ops-info]" in words
