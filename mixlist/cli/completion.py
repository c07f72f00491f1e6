"""``mixlist completion``: print the completion script of a shell."""

from __future__ import annotations

import sys

import click

from mixlist.cli.command_files import FileCheckingCommand


@click.command("completion", cls=FileCheckingCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      mixlist completion bash >> ~/.bashrc
      mixlist completion zsh >> ~/.zshrc
      mixlist completion fish > ~/.config/fish/completions/mixlist.fish
    """
    from click.shell_completion import get_completion_class

    from mixlist.cli.command_group import mixlist

    completion = get_completion_class(shell)
    assert completion is not None  # click has a class for each of the three choices
    sys.stdout.write(completion(mixlist, {}, "mixlist", "_MIXLIST_COMPLETE").source() + "\n")
