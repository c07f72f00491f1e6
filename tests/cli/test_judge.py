"""``--judge FILE.py:NAME`` and ``--limit NAME=X`` of check and tune."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.checker.test_user_judge import FEEDS, SUM
from tests.cli.conftest import Run
from tests.support.builders import model

JUDGE = """import numpy as np


def compare(reference, mixed):
    print("judging")
    return {"difference": np.abs(reference["y"] - mixed["y"]).max(), "size": reference["y"].size}


def broken(reference, mixed):
    return {"loss": reference["z"]}


class Stop(BaseException):
    pass


def stop(reference, mixed):
    raise Stop


def leave(reference, mixed):
    raise SystemExit(0)


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the model, lists, data and a judge."""
    onnx.save(model(SUM), tmp_path / "m.onnx")
    (tmp_path / "lists.json").write_text(json.dumps({"white-list": {"to-add": ["Add"]}}))
    (tmp_path / "judge.py").write_text(JUDGE)
    for index, feed in enumerate(FEEDS):
        np.savez(tmp_path / f"b{index}.npz", **feed)
    return tmp_path


def arguments(folder: Path, *more: object) -> list[object]:
    data = [argument for index in range(len(FEEDS)) for argument in ("--data", folder / f"b{index}.npz")]
    return [folder / "m.onnx", *data, "--mixlist", folder / "lists.json", *more]


def test_check_shows_the_numbers_of_the_judge(run: Run, folder: Path) -> None:
    judge = ("--judge", f"{folder / 'judge.py'}:compare", "--limit", "difference=0.5")
    completed = run("check", *arguments(folder, *judge, "--format", "json", "--html", folder / "page.html"))
    report = json.loads(completed.out)
    assert (completed.status, report["verdict"]) == (1, "fail")
    assert [(r["name"], r["batch"], r["limit"], r["pass"]) for r in report["judge"]] == [
        ("difference", 2, 0.5, False),
        ("size", 0, None, True),
    ]
    assert "judging" in completed.err
    assert "--judge" in report["next_command"] and "--limit difference=0.5" in report["next_command"]
    assert "difference" in (folder / "page.html").read_text()
    text = run("check", *arguments(folder, *judge)).out
    assert "the judge gives difference 1.3 in batch 2, the limit is 0.5" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("difference")]
    assert row[2:] == ["#2", "0.5", "fail"]


def test_tune_takes_the_limits_of_a_judge_from_a_configuration(run: Run, folder: Path) -> None:
    config = folder / "mixlist.toml"
    config.write_text('[tune]\nlimit = ["difference=0.5"]\n')
    options = ("--config", config, "--judge", f"{folder / 'judge.py'}:compare", "--no-holdout")
    completed = run("tune", *arguments(folder, "-o", folder / "out.json", *options))
    assert completed.status == 1 and "NOTHING IS LOW" in completed.out
    assert json.loads((folder / "out.json").read_text())["black-list"] == {"to-add": ["Add"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--judge", "judge.py:missing"], "--judge judge.py:missing: judge.py has no 'missing'"),
        (["--judge", "judge.py:number"], "--judge judge.py:number is an object of the type int, and not a function"),
        (["--judge", "none.py:f"], "none.py: there is no such file"),
        (["--judge", "judge.py"], "--judge judge.py: this is not FILE.py:FUNCTION or MODULE:FUNCTION"),
        (["--limit", "loss=1"], "'loss' has a limit, and there is no judge"),
        (["--judge", "judge.py:compare", "--limit", "loss"], "--limit loss: this is not NAME=X"),
        (["--judge", "judge.py:compare", "--limit", "loss=x"], "--limit loss=x: this is not NAME=X"),
        (["--judge", "judge.py:compare", "--limit", "a=1", "--limit", "a=2"], "--limit a is given twice"),
        (["--judge", "judge.py:compare", "--limit", "loss=1"], "the judge never returned 'loss', which has a limit"),
    ],
)
@pytest.mark.parametrize("command", ["check", "tune"])
def test_wrong_judges_and_limits_are_usage_errors(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    output = ["-o", "out.json"] if command == "tune" else []
    completed = run(command, *arguments(folder, *options, *output))
    assert completed.status == 2
    assert message in completed.err


def test_an_error_of_the_judge_shows_the_traceback_of_the_user(run: Run, folder: Path) -> None:
    completed = run("check", *arguments(folder, "--judge", f"{folder / 'judge.py'}:broken"))
    assert completed.status == 2
    assert completed.err.endswith("KeyError: 'z'\nThe judge broken raised this. It gets dicts of the outputs y.\n")
    assert "Traceback" in completed.err and 'judge.py", line 10, in broken' in completed.err
    assert "mixlist/checker" not in completed.err


@pytest.mark.parametrize(("name", "error"), [("stop", "Stop"), ("leave", "SystemExit: 0")])
def test_what_is_no_exception_is_an_error_of_the_judge(run: Run, folder: Path, name: str, error: str) -> None:
    completed = run("check", *arguments(folder, "--judge", f"{folder / 'judge.py'}:{name}"))
    assert (completed.status, completed.out) == (2, "")
    assert error in completed.err.splitlines()[-2] and completed.err.splitlines()[-1].startswith(f"The judge {name} ")
