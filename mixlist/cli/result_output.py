"""Write the result of a command: a report or a table, and the command line that a report recommends next."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from mixlist.cli.command_index import load_command
from mixlist.cli.parameters import CONFIG_KEY, NO_CONFIG
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy
    from mixlist.show.document import Document


# --- reports and tables ---


class Result(Protocol):
    """A result that has a form as JSON."""

    def to_json(self) -> Mapping[str, object]: ...


def write_report(result: Result, document: Document, output_format: str, html: str | None = None) -> None:
    """Write a report to standard output as JSON or text, and as a page to the file ``html``, if any."""
    from mixlist.show import json_csv, terminal

    try:
        if html is not None:
            write_page_file(document, html)
    finally:  # the report of a long run is written even if the page cannot be written
        if output_format == "json":
            json_csv.write_json(result.to_json(), sys.stdout)
        else:
            terminal.write_document(document, sys.stdout)


def write_page_file(document: Document, path: str) -> None:
    """Write the page of a report to a file, and say so on standard error."""
    from mixlist.show import html_page, terminal

    html_page.write_page(html_page.render_document(document), path)
    sys.stderr.write(f"wrote {terminal.escape_commands(path)}\n")


def write_rows(
    output_format: str, columns: Sequence[str], rows: Sequence[Sequence[str]], as_json: Mapping[str, object]
) -> None:
    """Write rows to standard output as a table or as CSV, or ``as_json`` as JSON."""
    from mixlist.show import json_csv, terminal
    from mixlist.show.document import Document, Section, Table, columns_of

    if output_format == "json":
        json_csv.write_json(as_json, sys.stdout)
    elif output_format == "csv":
        json_csv.write_csv(columns, rows, sys.stdout)
    else:
        section = Section("rows", "", (Table(columns_of(*columns), rows),))
        terminal.write_document(Document("", (section,)), sys.stdout)


# --- the command to run next ---

# The sources of values that the user sets: the command line, and a configuration.
_USER_SOURCES = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP)


# The parameters that a printed command line does not repeat: they choose the outputs of the running command.
_OUTPUT_PARAMETERS = ("output_format", "html", "trace")


def next_command(name: str, *extra_arguments: str, excluded: Container[str] = ()) -> str:
    """Return a command line of the command ``name`` with the arguments of the running one, and ``extra_arguments``.

    A user can run it as it is. It leaves out the options that the command does not have, and the parameters in
    ``excluded``. It repeats the values of a configuration, because they may be in the table of the running command,
    which another command does not read.
    """
    context, command = click.get_current_context(), load_command(name)
    accepted_names = {name for parameter in command.params for name in parameter.opts}
    operands: list[str] = []
    options: list[str] = []
    for parameter in context.command.params:
        is_accepted = not accepted_names.isdisjoint(parameter.opts) and parameter.name not in _OUTPUT_PARAMETERS
        if is_accepted and parameter.name not in excluded:
            words = operands if isinstance(parameter, click.Argument) else options
            words += _arguments_of(context, parameter)
    if "--config" in accepted_names and _ignores_configurations(context):
        options += ["--config", NO_CONFIG]
    # The extra arguments may begin with another model, which follows that of the running command.
    count = next((index for index, text in enumerate(extra_arguments) if text.startswith("-")), len(extra_arguments))
    operands += extra_arguments[:count]
    return " ".join(map(quote_argument, ["mixlist", name, *operands, *options, *extra_arguments[count:]]))


def writing_command(policy: Policy, *lists: str, excluded: Container[str] = ()) -> str:
    """Return the command line that writes what a policy gives: the mixed model, or the files of ATC.

    ATC compiles the model as given and applies the lists itself, so a policy in Ascend names needs no mixed model.
    ``lists`` and ``excluded``: as the arguments of ``next_command``.
    """
    if policy.space == "ascend":
        return next_command("export", *lists, "--for", "atc", "-o", unused_path("atc_lists"), excluded=excluded)
    return next_command("apply", *lists, "-o", unused_path("mixed.onnx"), excluded=excluded)


def _ignores_configurations(context: click.Context) -> bool:
    """Return whether the user gave ``--config none``, without which a configuration of the folder would count."""
    is_given = context.get_parameter_source("config") is click.core.ParameterSource.COMMANDLINE
    return is_given and CONFIG_KEY not in context.meta


def unused_path(path: str) -> str:
    """Return the path for the output of a printed command; ``mixed-2.onnx`` for ``mixed.onnx`` if that file exists."""
    names = (Path(path).with_stem(f"{Path(path).stem}-{number}") for number in count(2))
    return path if not Path(path).exists() else str(next(name for name in names if not name.exists()))


def _arguments_of(context: click.Context, parameter: click.Parameter) -> Iterator[str]:
    """Yield the arguments of one parameter; none if the user did not set it."""
    name = parameter.name or ""
    # ``--config`` is not in ``context.params``. The values of the configuration are, and each is repeated as an option.
    if context.get_parameter_source(name) not in _USER_SOURCES or context.params.get(name) is None:
        return
    value = context.params[name]
    # A repeatable option is written once for each of its values. Of two names, such as -o and --output, opts[-1] is
    # written.
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(parameter, click.Argument):
            # A file whose name begins like an option.
            yield f"./{item}" if str(item).startswith("-") else str(item)
        elif isinstance(item, bool):
            yield from parameter.opts[-1:] if item else parameter.secondary_opts[-1:]
        else:
            yield from (parameter.opts[-1], str(item))
