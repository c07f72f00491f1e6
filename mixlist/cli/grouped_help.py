"""The help of a command: its options in groups, the most used ones first and all of them with ``--help-all``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click

from mixlist.option_fields import OptionGroup

# The headings of the groups, in the order of every help text.
HEADINGS: dict[OptionGroup, str] = {
    "lists": "Lists",
    "data": "Data",
    "limits": "Limits",
    "run": "Run",
    "output": "Output",
    "other": "Other",
}
MAX_WIDTH = 120  # of help texts on a wide terminal
_COLUMN_WIDTH = 24  # of the names of options; longer ones are on a line of their own
_SHOWS_ALL_KEY = "mixlist.help_all"  # in ``context.meta``


class GroupedOption(click.Option):
    """An option that has a group in help texts. ``names`` are those of click, with spaces: ``-o --output``."""

    def __init__(self, names: str, group: OptionGroup, description: str | None, **attributes: Any) -> None:
        super().__init__(names.split(), help=description, **attributes)
        self.group = group


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:  # resilient: a shell asks for completions
        context.meta[_SHOWS_ALL_KEY] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


HELP_ALL = GroupedOption(
    "--help-all",
    "other",
    "Show all options and exit.",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
)


class GroupedHelpCommand(click.Command):
    """A command whose help shows its options in groups.

    ``most_used``: the options that ``--help`` shows, with the required ones and the first paragraph of the text;
    ``--help-all`` shows all. Without ``most_used``, both show all.
    """

    def __init__(self, *args: Any, most_used: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.most_used = frozenset(most_used)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters with ``--help`` and ``--help-all``."""
        return [*super().get_params(ctx), HELP_ALL]

    def option_groups(self, context: click.Context, *, shows_all: bool) -> dict[str, list[tuple[str, str]]]:
        """Return the spelling and the help of each shown option, by the heading of its group."""
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS.values()}
        for option in self.get_params(context):
            # The arguments are in the first line. Where --help shows all, --help-all is not worth a line.
            if not isinstance(option, click.Option) or (option is HELP_ALL and not self.most_used):
                continue
            # The option --help is made by click, and has no group.
            group = option.group if isinstance(option, GroupedOption) else "other"
            if shows_all or option.required or not self.most_used.isdisjoint((*option.opts, *option.secondary_opts)):
                record = option.get_help_record(context)
                groups[HEADINGS[group]] += [record] if record is not None else []
        return {heading: records for heading, records in groups.items() if records}

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text of the command: its first paragraph and the examples, or all of it."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        if not self._shows_all(ctx):
            # \b begins the examples: click keeps the line breaks of this paragraph.
            paragraphs = [text for text in paragraphs if text is paragraphs[0] or text.startswith("\b")]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their groups, and how many ``--help-all`` adds."""
        shows_all = self._shows_all(ctx)
        groups = self.option_groups(ctx, shows_all=shows_all)
        # One width for all groups, so that the texts are in one column.
        width = min(_COLUMN_WIDTH, max(len(name) for records in groups.values() for name, _ in records))
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in records], _COLUMN_WIDTH)
        if not shows_all:
            every_group = self.option_groups(ctx, shows_all=True)
            count = sum(map(len, every_group.values())) - sum(map(len, groups.values()))
            formatter.write_paragraph()
            formatter.write_text(f"'{ctx.command_path} --help-all' shows the whole text and {count} more options.")

    def _shows_all(self, context: click.Context) -> bool:
        return not self.most_used or bool(context.meta.get(_SHOWS_ALL_KEY))
