"""``mixlist demo``: the guided run on the bundled model."""

from __future__ import annotations

from pathlib import Path

import click

from mixlist.cli.options import FILE


@click.command("demo", short_help="Run the main job on the bundled model, step by step.")
@click.option("-o", "--output", metavar="DIR", type=FILE, help="Keep the rewritten models in this folder.")
def command(output: str | None) -> int:
    """Run the main job on the bundled model, step by step.

    A small network that reads handwritten digits is checked, resolved, rewritten and run before and
    after, so that every step of the work can be seen on a real case. Without --output nothing is kept.

    \b
    Example:
      mixlist demo
    """
    from mixlist import demo

    return demo.run(Path(output) if output else None)
