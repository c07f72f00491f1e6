"""Older names of options and formats work and are not shown (docs/stability.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

OLDER = {("validate", "--format"): "--output-format"}


def test_no_help_text_shows_an_older_name(run: Run) -> None:
    for command, name in OLDER:
        help_text = run(command, "--help").out
        assert name in help_text
        assert OLDER[command, name] not in help_text


def test_the_older_option_of_validate_works_in_files_and_arguments(run: Run, tmp_path: Path) -> None:
    lists, config = tmp_path / "modify.json", tmp_path / "mixlist.toml"
    lists.write_text('{"black-list": {"to-add": ["Add"]}}')
    config.write_text('[validate]\noutput-format = "json"\n')
    expected = json.loads(run("validate", lists, "--format", "json").out)
    assert expected["format"] == "mixlist.validate/1"
    assert json.loads(run("validate", lists, "--output-format", "json").out) == expected
    assert json.loads(run("validate", lists, "--config", config).out) == expected


def test_the_error_about_a_wrong_value_has_the_current_option_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "modify.json").write_text("{}")
    message = run("validate", tmp_path / "modify.json", "--output-format", "xml").err
    assert "'--format'" in message and "--output-format" not in message


@pytest.mark.parametrize("command", [["lists"], ["presets"], ["resolve", "MODEL"], ["bench", "MODEL", "--estimate"]])
def test_the_format_table_is_the_format_text(run: Run, model_path: Path, command: list[str]) -> None:
    arguments = [model_path if word == "MODEL" else word for word in command]
    text = run(*arguments, "--format", "text")
    assert text.status == 0
    assert run(*arguments, "--format", "table").out == text.out == run(*arguments).out
