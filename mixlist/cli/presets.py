"""``mixlist presets``: show the built-in libraries and their origin."""

from __future__ import annotations

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.options import format_option
from mixlist.cli.result_output import write_rows


@click.command("presets", cls=FileCheckingCommand, params=[format_option("text", "json", "csv")])
def command(output_format: str) -> None:
    """Show the built-in libraries: name, purpose and origin.

    Use a name as the value of --ops-info.

    \b
    Example:
      mixlist presets
      mixlist lists --ops-info ascend910b
    """
    from mixlist.lists import presets

    libraries = [presets.find(name) for name in presets.names()]
    rows = [(library.name, library.title, library.origin) for library in libraries]
    columns = ("name", "title", "origin")
    preset_objects = [dict(zip(columns, row, strict=True)) for row in rows]
    write_rows(output_format, columns, rows, {"format": "mixlist.presets/1", "presets": preset_objects})
