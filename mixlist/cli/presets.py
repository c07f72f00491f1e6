"""``mixlist presets``: the built-in libraries and where they come from."""

from __future__ import annotations

import click

from mixlist.cli.command_files import Command
from mixlist.cli.options import format_option
from mixlist.cli.outputs import write_table


@click.command("presets", cls=Command, params=[format_option("text", "json", "csv")])
def command(form: str) -> None:
    """Show the built-in libraries: name, what they are for, and where they come from.

    Each name can be given to --ops-info.

    \b
    Example:
      mixlist presets
      mixlist lists --ops-info ascend910b
    """
    from mixlist.lists import presets

    known = [presets.find(name) for name in presets.names()]
    rows = [(preset.name, preset.title, preset.origin) for preset in known]
    columns = ("name", "title", "origin")
    listed = [dict(zip(columns, row, strict=True)) for row in rows]
    write_table(form, columns, rows, {"format": "mixlist.presets/1", "presets": listed})
