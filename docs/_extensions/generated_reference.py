"""Directives that write parts of the reference from the package, so that they cannot become outdated.

``commands``: every command with its options, from click. ``toml-keys``: the keys of a configuration file, from the
options of the commands. ``json-result NAME``: the fields of ``schemas/NAME.json``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mixlist.cli.command_index import COMMANDS, load_command
from mixlist.cli.config_file import POLICY_KEYS, command_keys, configurable_commands
from mixlist.cli.grouped_help import GroupedHelpCommand

SCHEMAS = Path(__file__).parents[2] / "schemas"


class Commands(SphinxDirective):
    """Write a section for each command: its help text, its usage and its options in groups."""

    def run(self) -> list[nodes.Node]:
        text = [line for name in COMMANDS for line in _command_section(load_command(name), f"mixlist {name}")]
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


def _command_section(command: click.Command, name: str) -> list[str]:
    """Return the section of a command."""
    context = click.Context(command, info_name=name)
    # Markdown would read an indented paragraph as code.
    description, _, example = inspect.cleandoc(command.help or "").partition("\b\n")
    text = [f"## {name}", "", description.replace("*", "\\*"), ""]
    text += ["```text", command.get_usage(context).removeprefix("Usage: "), "```", ""]
    if example:
        text += ["```sh", *(line.strip() for line in example.splitlines()[1:]), "```", ""]
    if isinstance(command, GroupedHelpCommand):
        for heading, records in command.option_groups(context, shows_all=True).items():
            rows = [f"| `{_cell(spelling)}` | {_cell(meaning)} |" for spelling, meaning in records]
            text += [f"| {heading} | |", "|---|---|", *rows, ""]
    return text


class TomlKeys(SphinxDirective):
    """Write a table of the configuration keys: first those of a policy, then those of each command."""

    def run(self) -> list[nodes.Node]:
        text = ["## Keys of a policy", "", *_key_table(POLICY_KEYS)]
        for command in configurable_commands():
            own_keys = {key: option for key, option in command_keys(command).items() if key not in POLICY_KEYS}
            if any(not option.hidden for option in own_keys.values()):
                text += [f"## `[{command}]`", "", *_key_table(own_keys)]
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


def _key_table(options: Mapping[str, click.Option]) -> list[str]:
    rows = ["| key | value | meaning |", "|---|---|---|"]
    for key, option in options.items():
        if not option.hidden:
            rows.append(f"| `{key}` | {_cell(_value_of(option))} | {_cell(option.help or '')} |")
    return [*rows, ""]


def _value_of(option: click.Option) -> str:
    """Return the values that an option takes, in TOML's words."""
    if option.is_flag:
        return "`true` or `false`"
    if isinstance(option.type, click.Choice):
        value = ", ".join(f'`"{choice}"`' for choice in option.type.choices)
    else:
        value = {"integer": "an integer", "float": "a number"}.get(option.type.name, "a string")
    return f"a list: {value}" if option.multiple else value


class JsonResult(SphinxDirective):
    """Write a table of the fields of one JSON result."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        schema = json.loads((SCHEMAS / f"{self.arguments[0]}.json").read_text("utf-8"))
        rows = ["| field | type | meaning |", "|---|---|---|"]
        for path, field in _fields(schema, schema.get("$defs", {})):
            rows.append(f"| `{path}` | {_cell(_type_of(field))} | {_cell(field.get('description', ''))} |")
        return self.parse_text_to_nodes("\n".join([_cell(schema["description"]), "", *rows, ""]))


def _fields(schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each field with its path: ``nodes[].name`` is the field ``name`` of each item of the array ``nodes``."""
    for name, value in schema.get("properties", {}).items():
        field = _resolved(value, definitions)
        field_path = f"{path}{name}"
        yield field_path, field
        for alternative in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
            item = _resolved(alternative, definitions)
            if "items" in item:
                yield from _fields(_resolved(item["items"], definitions), definitions, f"{field_path}[].")
            elif "properties" in item:
                yield from _fields(item, definitions, f"{field_path}.")


def _resolved(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field with its reference to a definition of the same schema replaced by the definition."""
    reference = field.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return dict(field)
    return {**definitions[reference.removeprefix("#/$defs/")], **{k: v for k, v in field.items() if k != "$ref"}}


def _type_of(field: Mapping[str, Any]) -> str:
    if "const" in field:
        return f'`"{field["const"]}"`'
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    kind = field.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else kind


def _cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directives. Sphinx calls this."""
    app.add_directive("commands", Commands)
    app.add_directive("toml-keys", TomlKeys)
    app.add_directive("json-result", JsonResult)
    return {"parallel_read_safe": True}
