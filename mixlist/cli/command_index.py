"""The commands and their one-line help, readable without importing any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

# The order of ``mixlist --help``: list files, one model, its runs on data, then tools.
COMMANDS = {
    "validate": "Check list files: their form and their meaning.",
    "lists": "Show the effective lists after the edits.",
    "resolve": "Show the precision of the nodes, and the reasons.",
    "view": "Write a page with the graph, colored by precision.",
    "apply": "Write a model in mixed precision.",
    "convert": "Write a mixed model that keeps the limits on data, at the least cost.",
    "check": "Check a mixed model for overflow and accuracy on data.",
    "bench": "Time the mixed model against the original.",
    "tune": "Find the smallest change of the lists that keeps the limits.",
    "repair": "Raise the nodes of a float16 model that overflow.",
    "train": "Judge whether a network is safe to train in mixed precision.",
    "export": "Print what makes another tool decide as mixlist does.",
    "diff": "Print the modify_mixlist that turns one set of lists into another.",
    "fmt": "Rewrite list files in the strict canonical form.",
    "presets": "Show the built-in libraries and their origin.",
    "demo": "Validate, resolve, apply and run the bundled model.",
    "completion": "Print the completion script of a shell.",
}

_HELP = """\
Usage: mixlist [OPTIONS] COMMAND [ARGS]...

  Mixed-precision lists for ONNX models: validate them, show which precision
  they give every node of a model, and write the model in mixed precision.

  Example: mixlist apply model.onnx -o mixed.onnx --mixlist modify.json

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
{commands}

'mixlist COMMAND --help' shows the most used options of a command, --help-all
all of them. Exit status: 0 done, 1 findings, 2 wrong usage or unusable input,
3 a bug of mixlist.
"""


def help_text() -> str:
    """Return the text that ``mixlist --help`` prints."""
    width = max(map(len, COMMANDS))
    return _HELP.format(commands="\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items()))


def load_command(name: str) -> click.Command:
    """Import the module of a command, and return the command."""
    from importlib import import_module

    command: click.Command = import_module(f"mixlist.cli.{name.replace('-', '_')}").command
    command.short_help = COMMANDS[name]  # shell completion shows it
    return command
