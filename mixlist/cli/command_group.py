"""The click group: import the module of a command when the command is called."""

from __future__ import annotations

import gc
import os
from difflib import get_close_matches

import click

from mixlist.cli.command_index import COMMANDS, help_text, load_command
from mixlist.cli.grouped_help import MAX_WIDTH, GroupedHelpCommand
from mixlist.version import __version__

_MAX_OWNERS = 4  # a message names at most this many commands that have an option


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return load_command(name) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click reports an unknown option of the group itself.
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        similar = get_close_matches(name, COMMANDS, n=1)
        remedy = f"Did you mean {similar[0]!r}?" if similar else "'mixlist --help' lists the commands."
        raise click.UsageError(f"No such command {name!r}. {remedy}", ctx)

    def get_help(self, ctx: click.Context) -> str:
        return help_text().rstrip()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH})
@click.version_option(__version__, prog_name="mixlist", message="%(prog)s %(version)s")
def mixlist() -> None:
    """Mixed-precision lists for ONNX models."""


def run(args: list[str]) -> int:
    """Run the command line ``args`` and return its exit status. Raises the errors of the command."""
    # Most objects of a run live until its end. With Python's default of 700, collections take 4 % of a check.
    gc.set_threshold(50_000)
    if "_MIXLIST_COMPLETE" in os.environ:
        # A completion script of click has called mixlist: print the completions and end the process.
        mixlist.main(args, prog_name="mixlist")
    try:
        # Not mixlist.main(): click turns a closed pipe into exit status 1, which means findings here.
        # The list is copied, because click removes the arguments that it reads.
        with mixlist.make_context("mixlist", list(args)) as context:
            # A command without a verdict returns None.
            return int(mixlist.invoke(context) or 0)
    except click.NoSuchOption as error:
        raise _with_remedy(error) from None
    except click.exceptions.Exit as done:
        return done.exit_code


def _with_remedy(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error with the commands that have the option, the similar options, or what lists all options."""
    owners = [name for name in COMMANDS if error.option_name in _option_names(load_command(name))]
    message = f"No such option {error.option_name!r}"
    # If many commands have the option, their names do not help. The similar options that click names help more.
    if 0 < len(owners) <= _MAX_OWNERS:
        *others, last = owners
        message += f": it is an option of {' and '.join(filter(None, (', '.join(others), last)))}"
        message += f"{_describe_replacement(error)}."
    elif error.possibilities or error.ctx is None or not isinstance(error.ctx.command, GroupedHelpCommand):
        return error
    else:
        message += f". '{error.ctx.command_path} --help-all' lists the options."
    return click.NoSuchOption(error.option_name, message, ctx=error.ctx)


def _describe_replacement(error: click.NoSuchOption) -> str:
    """Return what to do instead of an option that another command has; "" if nothing is known."""
    if error.option_name == "--opset":
        return ", which alone change the opset of a model"
    has_modes = error.ctx is not None and "--precision-mode-v2" in _option_names(error.ctx.command)
    return "; here, use --precision-mode-v2 mixed_bfloat16" if error.option_name == "--type" and has_modes else ""


def _option_names(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
