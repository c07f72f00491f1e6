"""``mixlist presets``: the built-in libraries and where they come from."""

from __future__ import annotations

import sys

import click

from mixlist.cli.index import COMMANDS
from mixlist.cli.options import format_option


@click.command("presets", short_help=COMMANDS["presets"], params=[format_option("table", "json", "csv")])
def command(form: str) -> None:
    """Show the built-in libraries: name, what they are for, and where they come from.

    Each name can be given to --ops-info.

    \b
    Example:
      mixlist presets
      mixlist lists --ops-info ascend910b
    """
    from mixlist.lists import presets
    from mixlist.report import csv_table, json_output, terminal

    known = [presets.describe(name) for name in presets.names()]
    rows = [(preset.name, preset.title, preset.origin) for preset in known]
    columns = ("name", "title", "origin")
    if form == "json":
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        json_output.write_json({"format": "mixlist.presets/1", "presets": listed}, sys.stdout)
    elif form == "csv":
        csv_table.write_csv(columns, rows, sys.stdout)
    else:
        terminal.table(columns, rows, sys.stdout)
