"""Test the help of the commands: options in groups, the most used ones first, as wide as the terminal."""

from __future__ import annotations

import re
from typing import cast

import click
import pytest

from mixlist.cli.command_index import COMMANDS, load_command
from mixlist.cli.grouped_help import HEADINGS, MAX_WIDTH, GroupedHelpCommand, GroupedOption

MANY_OPTIONS = 15  # from here on, a command shows its most used options only
_OPTION = re.compile(r"^  (?:-\w, )?(--[a-z0-9-]+)", re.MULTILINE)

CASES = [(name, cast("GroupedHelpCommand", load_command(name))) for name in COMMANDS]


def _options(command: GroupedHelpCommand) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _sections(text: str) -> dict[str, list[str]]:
    """Return the names of the options under each heading of a help text."""
    parts = re.split(rf"^({'|'.join(HEADINGS.values())}):$", text, flags=re.MULTILINE)
    return {heading: _OPTION.findall(part) for heading, part in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_short(run, name: str) -> None:
    lines = run(name, "-h").out.splitlines()
    assert len(lines) < 60
    examples = slice(lines.index("  Example:"), len(lines))
    assert max(map(len, lines[: examples.start])) <= 80
    assert max(len(line) for line in lines[examples] if "    mixlist " not in line) <= 80


@pytest.mark.parametrize(("name", "command"), CASES, ids=list(COMMANDS))
def test_help_all_has_every_option_once_in_its_group(run, name: str, command: GroupedHelpCommand) -> None:
    sections = _sections(run(name, "--help-all").out)
    expected: dict[str, set[str]] = {"Other": {"--help", "--help-all"} if command.most_used else {"--help"}}
    for option in _options(command):
        assert isinstance(option, GroupedOption), option.name
        (name,) = (spelling for spelling in option.opts if spelling.startswith("--"))
        expected.setdefault(HEADINGS[option.group], set()).add(name)
    assert {heading: set(names) for heading, names in sections.items()} == expected
    assert all(len(names) == len(set(names)) for names in sections.values())
    order = list(HEADINGS.values())
    assert list(sections) == sorted(sections, key=order.index)


@pytest.mark.parametrize(("name", "command"), CASES, ids=list(COMMANDS))
def test_the_most_used_options_are_about_ten(run, name: str, command: GroupedHelpCommand) -> None:
    count, text = len(_options(command)), run(name, "--help").out
    if count < MANY_OPTIONS:
        assert not command.most_used
        assert text == run(name, "--help-all").out
        return
    spellings = {spelling for option in _options(command) for spelling in (*option.opts, *option.secondary_opts)}
    assert command.most_used <= spellings, "names of options that the command does not have"
    shown = _OPTION.findall(text)
    assert 5 <= len(shown) <= 12
    assert {option.opts[-1] for option in _options(command) if option.required} <= {*shown, "-o"}
    hidden = count + 2 - len(shown)  # --help and --help-all are options, too
    assert text.endswith(f"'mixlist {name} --help-all' shows the whole text and {hidden} more options.\n")


def test_the_short_help_has_the_first_paragraph_and_the_examples(run) -> None:
    short, whole = run("check", "-h").out, run("check", "--help-all").out
    assert "This writes nothing" in short
    assert "MODEL runs in float32" in whole and "MODEL runs in float32" not in short
    assert "mixlist check model.onnx --data batches/" in short


@pytest.mark.parametrize(("columns", "widest"), [(40, 50), (80, 80), (100, 100), (300, MAX_WIDTH)])
def test_the_help_is_as_wide_as_the_terminal(run, monkeypatch, columns: int, widest: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = run("check", "--help-all").out.partition("Lists:")[2]
    longest = max(len(line) for line in text.splitlines())
    assert widest - 12 < longest <= widest


def test_the_help_names_the_precision_modes(run) -> None:
    text = " ".join(run("resolve", "--help-all").out.split())
    assert "--precision-mode-v2 MODE The precision mode: mixed_float16, mixed_bfloat16, fp16, origin," in text
    assert "by its older name: allow_mix_precision, allow_mix_precision_fp16," in text


def test_no_option_describes_bounds_that_it_does_not_have(run) -> None:
    assert "x<=None" not in run("check", "--help-all").out
