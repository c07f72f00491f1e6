"""docs/stability.md names the same choices of options as the commands have."""

from __future__ import annotations

import re

import click
import pytest

from mixlist.cli.command_index import COMMANDS, load_command
from tests.support.package import data_folder

TABLE_ROWS = [
    line.replace("\\|", "/")
    for line in (data_folder("docs") / "stability.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
]
CHOICES = re.compile(r"`(--[a-z-]+) ([a-z0-9/-]+)`")


def choices_of(command: str) -> dict[str, set[str]]:
    return {
        name: set(parameter.type.choices)
        for parameter in load_command(command).params
        if isinstance(parameter.type, click.Choice)
        for name in parameter.opts
    }


@pytest.mark.parametrize("row", [row for row in TABLE_ROWS if CHOICES.search(row)], ids=lambda row: row[2:30])
def test_documented_choices_are_those_of_the_command(row: str) -> None:
    subject = row.split("`")[1].split()[0]
    actual = choices_of(subject if subject in COMMANDS else "resolve")
    options = [(option, set(values.split("/"))) for option, values in CHOICES.findall(row)]
    documented = {option: values for option, values in options if len(values) > 1 and option in actual}
    assert documented == {option: actual[option] for option in documented}
