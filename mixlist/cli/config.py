"""``--config FILE``: a TOML file with the options of a command; the command line wins."""

from __future__ import annotations

import os
from typing import Any

import click

from mixlist.errors import UsageError


def _use(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Makes the file's options the defaults of the command."""
    if path is None:
        return
    from mixlist.lists.config import load_config

    known = by_key(ctx.command)
    defaults: dict[str, Any] = {}
    for key, value in load_config(path, ctx.command.name or "").items():
        negated = key.startswith("no_") and key not in known
        option = known.get(key.removeprefix("no_") if negated else key)
        if option is None:
            continue  # a policy option that this command does not take
        checked = _checked(ctx, option, value, f"{path}: {key.replace('_', '-')}")
        defaults[option.name or key] = not checked if negated else checked
    ctx.default_map = defaults


def by_key(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their key in a configuration: the long option, with underscores."""
    return {
        spelling.removeprefix("--").replace("-", "_"): option
        for option in command.params
        if isinstance(option, click.Option)
        for spelling in option.opts
        if spelling.startswith("--")
    }


def _checked(ctx: click.Context, option: click.Option, value: object, where: str) -> Any:
    """The value as click takes it for the option; a wrong one is told with the file and the key."""
    if option.multiple and not isinstance(value, list):
        value = [value]
    items = value if isinstance(value, list) else [value]
    wanted = _wanted(option)
    if (value is items and not option.multiple) or not all(type(item) in wanted for item in items):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        raise UsageError(f"{where} takes {names[wanted[0]]}{' or a list of them' * option.multiple}, not {value!r}")
    try:
        option.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
    return value


def _wanted(option: click.Option) -> tuple[type, ...]:
    """The types that an option's value may have in TOML, the one to name first."""
    if option.is_flag:
        return (bool,)
    if isinstance(option.type, click.types.FloatParamType):
        return (float, int)
    return (int,) if isinstance(option.type, click.types.IntParamType) else (str,)


class PathType(click.Path):
    """A path as the user wrote it; click's own type stumbles over a NUL, which a configuration can hold."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "\0" in os.fspath(value):
            self.fail("a path cannot hold a NUL character", param, ctx)
        return super().convert(value, param, ctx)


config_option = click.option(
    "--config",
    metavar="FILE",
    type=PathType(),
    is_eager=True,
    expose_value=False,
    callback=_use,
    help="A TOML file with any of these options; paths in it are relative to it, the command line wins.",
)
