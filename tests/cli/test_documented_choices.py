"""The documents name the same choices of options as the commands have, such as ``--overflow-mode inf|saturate``."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from mixlist.cli.command_index import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
CHOICES = re.compile(r"`(--[a-z-]+) ([a-z0-9-]+(?:\\?\|[a-z0-9-]+)+)`")
DOCUMENTED = sorted(
    {
        (option, values.replace("\\", ""))
        for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
        for option, values in CHOICES.findall(page.read_text("utf-8"))
    }
)


def choices_of(option: str) -> list[set[str]]:
    """Return the choices of an option, once for each command that has it."""
    parameters = [parameter for command in COMMANDS for parameter in load_command(command).params]
    return [set(p.type.choices) for p in parameters if option in p.opts and isinstance(p.type, click.Choice)]


@pytest.mark.parametrize(("option", "values"), DOCUMENTED)
def test_documented_choices_are_those_of_a_command(option: str, values: str) -> None:
    assert set(values.split("|")) in choices_of(option)
