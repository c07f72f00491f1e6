"""``mixlist completion``: the script that teaches a shell the commands and options."""

from __future__ import annotations

import sys

import click

from mixlist.cli.command_files import Command


@click.command("completion", cls=Command)
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

    from mixlist.cli.root import mixlist

    completion = get_completion_class(shell)
    assert completion is not None  # click knows the three choices
    sys.stdout.write(completion(mixlist, {}, "mixlist", "_MIXLIST_COMPLETE").source() + "\n")
