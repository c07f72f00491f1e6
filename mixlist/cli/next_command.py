"""Write the command line that a report recommends, from the options that the running command was given."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Container, Iterator

import click

_GIVEN = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP)  # the second: by --config


def next_command(command: click.Command, *more: str, without: Container[str] = ()) -> str:
    """Return a command line of ``command`` with what the running command was given, and ``more`` arguments.

    Left out are the options that ``command`` does not take, and those whose names are in ``without``. What a
    configuration gives is written out, since each command has its own table there.
    """
    context = click.get_current_context()
    taken = {name for parameter in command.params for name in parameter.opts}
    arguments = [
        argument
        for parameter in context.command.params
        if not taken.isdisjoint(parameter.opts) and parameter.name not in without
        for argument in _given(context, parameter)
    ]
    line = ["mixlist", command.name or "", *arguments, *more]
    return subprocess.list2cmdline(line) if os.name == "nt" else shlex.join(line)


def _given(context: click.Context, parameter: click.Parameter) -> Iterator[str]:
    """Yield the arguments of one parameter, nothing where the user did not give it."""
    name = parameter.name or ""
    if context.get_parameter_source(name) not in _GIVEN or name not in context.params:
        return
    value = context.params[name]
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(parameter, click.Argument):
            yield str(each)
        elif isinstance(each, bool):
            yield from parameter.opts[-1:] if each else parameter.secondary_opts[-1:]
        else:
            yield from (parameter.opts[-1], str(each))
