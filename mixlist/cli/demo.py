"""``mixlist demo``: the guided run on the bundled model."""

from __future__ import annotations

import click


@click.command("demo", short_help="Run the main job on the bundled model, step by step.")
def command() -> None:
    """Run the main job on the bundled model, step by step.

    A small network that reads handwritten digits is checked, resolved, rewritten and run before and
    after, so that every step of the work can be seen on a real case. Nothing is needed and nothing is kept.

    \b
    Example:
      mixlist demo
    """
    from mixlist import demo

    demo.run()
