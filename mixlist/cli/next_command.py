"""Build the command line that a report recommends, from the options of the running command."""

from __future__ import annotations

from collections.abc import Container, Iterator

import click

from mixlist.text_escapes import quote_argument

# The sources of values that the user sets: the command line, and a configuration.
_USER_SOURCES = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP)


def next_command(command: click.Command, *extra_arguments: str, excluded: Container[str] = ()) -> str:
    """Return a command line of ``command`` with the arguments of the running command and ``extra_arguments``.

    It leaves out the options that ``command`` does not have, and the parameters in ``excluded``. It repeats the values
    of a configuration, because they may be in the table of the running command, which ``command`` does not read.
    """
    context = click.get_current_context()
    accepted_names = {name for parameter in command.params for name in parameter.opts}
    arguments = [
        argument
        for parameter in context.command.params
        if not accepted_names.isdisjoint(parameter.opts) and parameter.name not in excluded
        for argument in _arguments_of(context, parameter)
    ]
    return " ".join(map(quote_argument, ["mixlist", command.name or "", *arguments, *extra_arguments]))


def _arguments_of(context: click.Context, parameter: click.Parameter) -> Iterator[str]:
    """Yield the arguments of one parameter; none if the user did not set it."""
    name = parameter.name or ""
    # ``--config`` is not in ``context.params``. The values of the configuration are, and each is repeated as an option.
    if context.get_parameter_source(name) not in _USER_SOURCES or context.params.get(name) is None:
        return
    value = context.params[name]
    # A repeatable option is written once for each of its values. opts[-1] is its current name, opts[0] can be an older
    # one.
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(parameter, click.Argument):
            yield str(item)
        elif isinstance(item, bool):
            yield from parameter.opts[-1:] if item else parameter.secondary_opts[-1:]
        else:
            yield from (parameter.opts[-1], str(item))
