"""The configuration of a project: found from the working folder upward, and read by commands with --config only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mixlist
from mixlist.cli.demo import _run_command
from tests.support.package import data_folder

BLACK = '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}'
PROJECT = (
    '[project]\nname = "x"\n\n[tool.mixlist]\nmixlist = "lists/black.json"\n\n[tool.mixlist.resolve]\nformat = "json"\n'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a project with a configuration, and work two folders below."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "black.json").write_text(BLACK)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "src" / "deep")
    return tmp_path


def counts(completed) -> dict[str, int]:
    assert completed.status == 0, completed.err
    return json.loads(completed.out)["counts"]


def test_the_nearest_configuration_above_is_used_and_named(run, project: Path, model_path: Path) -> None:
    completed = run("resolve", model_path)
    assert counts(completed) == {"float32": 3}
    assert f"options from {Path('..', '..', 'pyproject.toml')}\n" in completed.err
    # A pyproject.toml without the table is passed by, a mixlist.toml is not.
    (project / "src" / "pyproject.toml").write_text('[project]\nname = "mixlist-user"\n')
    assert counts(run("resolve", model_path)) == {"float32": 3}
    (project / "src" / "mixlist.toml").write_text('[resolve]\nformat = "json"\n')
    completed = run("resolve", model_path)
    assert counts(completed) == {"float16": 3}
    assert f"options from {Path('..', 'mixlist.toml')}\n" in completed.err
    # In one folder, mixlist.toml wins.
    (project / "src" / "pyproject.toml").write_text(PROJECT)
    assert counts(run("resolve", model_path)) == {"float16": 3}


def test_another_spelling_of_the_table_is_found(run, project: Path, model_path: Path) -> None:
    for text in (
        '[tool]\nmixlist.resolve.format = "json"\n',
        'tool = {mixlist = {resolve = {format = "json"}}}\n',
        '[ tool . "mixlist" . resolve ]\nformat = "json"\n',
    ):
        (project / "pyproject.toml").write_text(text)
        assert counts(run("resolve", model_path)) == {"float16": 3}


def test_the_command_line_wins_and_a_named_file_replaces_the_found_one(run, project: Path, model_path: Path) -> None:
    (project / "none.json").write_text("{}")
    assert counts(run("resolve", model_path, "--mixlist", project / "none.json")) == {"float16": 3}
    for options in (["--config", "none"], ["--config", project / "other.toml"]):
        (project / "other.toml").write_text("")
        completed = run("resolve", model_path, *options)
        assert (completed.status, completed.out.startswith("{"), "options from" in completed.err) == (0, False, False)
    completed = run("resolve", model_path, "--config", project / "pyproject.toml")
    assert counts(completed) == {"float32": 3} and "options from" not in completed.err


def test_a_configuration_without_options_of_the_command_is_not_named(run, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.mixlist.resolve]\nformat = "json"\n')
    assert "options from" not in run("validate", project / "lists" / "black.json").err
    (project / "pyproject.toml").write_text('[tool.mixlist.validate]\nignore = "ML1"\nselect = ["ML105"]\n')
    assert "options from" in run("validate", project / "lists" / "black.json").err
    assert run("validate", project / "lists" / "black.json", "--quiet").err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.mixlist]\n[tool.mixlist.resolve]\n\nforma = 1\n", ":4: the command resolve has no option 'forma'"),
        ("[tool.other]\nforma = 1\n[tool.mixlist]\nforma = 1\n", ":4: a configuration has no option 'forma'"),
        ("[tool.mixlist.reslove]\n", ":1: the table [tool.mixlist.reslove] is not named after a command"),
        ('[tool.mixlist]\nformat = "csv"\n', ":2: format is an option of some commands only"),
        ('[resolve]\nformat = 1\n[tool.mixlist.resolve]\nformat = "yaml"\n', ":4: format: 'yaml' is not one of"),
        ("[tool.mixlist]\nstrict = \n", ":2:10: this is not TOML"),
    ],
)
def test_a_wrong_configuration_is_an_error_with_its_line(
    run, project: Path, model_path: Path, text: str, message: str
) -> None:
    (project / "pyproject.toml").write_text(text)
    completed = run("resolve", model_path)
    assert (completed.status, completed.out) == (2, "")
    assert f"pyproject.toml{message}" in completed.err
    # Commands without --config, the help, and --config none do not read it.
    (project / "m.json").write_text("{}\n")
    for arguments in (
        ("presets",),
        ("fmt", "--check", project / "m.json"),
        ("resolve", "--help"),
        ("completion", "bash"),
        ("validate", project / "m.json", "--config", "none"),
    ):
        assert run(*arguments).status == 0, arguments


@pytest.mark.parametrize("text", ["[broken", '[project]\ndependencies = ["mixlist"]\nx = \n', "\udcff"])
def test_a_broken_file_of_other_tools_is_passed_by(run, project: Path, model_path: Path, text: str) -> None:
    (project / "src" / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert counts(run("resolve", model_path)) == {"float32": 3}
    completed = run("resolve", model_path, "--config", project / "src" / "pyproject.toml")
    assert completed.status == 2


def test_a_named_project_file_needs_the_table(run, project: Path, model_path: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\n")
    completed = run("resolve", model_path, "--config", project / "pyproject.toml")
    assert (completed.status, "no table [tool.mixlist]" in completed.err) == (2, True)


def test_an_output_cannot_replace_the_found_configuration(run, project: Path, model_path: Path) -> None:
    completed = run("apply", model_path, "-o", project / "pyproject.toml", "--force")
    assert (completed.status, "is an input: --config" in completed.err) == (2, True)
    assert (project / "pyproject.toml").read_text() == PROJECT


def test_the_demo_and_the_python_functions_read_no_configuration(
    project: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the demo's data can be inside a project, for example in its virtual environment."""
    monkeypatch.setattr("mixlist.cli.config_file.find_project_config", lambda: pytest.fail("it is read"))
    assert mixlist.resolve(str(model_path), mixlist.load_policy()).nodes[0].precision == "float16"
    _run_command(data_folder("demo_data"), "validate", "digits_mixlist.json")
