"""Options that several commands share, declared once, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mixlist.cli.config import PathType, config_option
from mixlist.errors import UsageError
from mixlist.report.terminal import warn

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy
    from mixlist.resolver.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])

FILE = PathType()
PATH = PathType(allow_dash=True)  # '-' is standard input
OPS_INFO = click.option(
    "--ops-info",
    type=PATH,
    metavar="PATH|PRESET",
    help="The operator library: a file, a directory or a built-in name ('mixlist presets').  [default: onnx]",
)
MIXLIST = click.option("--mixlist", type=PATH, help="A modify_mixlist file ('-' reads standard input).")
OP_NAMES = click.option(
    "--op-names", type=click.Choice(["auto", "onnx", "ascend"]), help="Name space of the lists.  [default: auto]"
)
KIND = click.option(
    "--kind",
    type=click.Choice(["auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]),
    default="auto",
    show_default=True,
    help="What the files are; auto goes by their content.",
)
_MODES = (
    click.option("--precision-mode", metavar="MODE", help="A mode by its older name, e.g. allow_mix_precision."),
    click.option("--precision-mode-v2", metavar="MODE", help="A mode by its newer name.  [default: mixed_float16]"),
)
_RULES = (
    click.option("--keep-dtype", type=PATH, help="Nodes that keep their type, one name or OpType::Type a line."),
    click.option("--customize-dtypes", type=PATH, help="Nodes with types of their own, one rule a line."),
)
_BEHAVIOUR = (
    click.option(
        "--gray-policy",
        type=click.Choice(["ascend", "between", "black-wins", "promote"]),
        help="How gray nodes follow their neighbours.  [default: ascend]",
    ),
    click.option(
        "--constants",
        type=click.Choice(["keep", "ieee", "clamp"]),
        help="What becomes of constants out of the low type's range.  [default: keep]",
    ),
)
LIST_OPTIONS = (OPS_INFO, MIXLIST, *_MODES, OP_NAMES)
POLICY_OPTIONS = (OPS_INFO, MIXLIST, *_MODES, *_RULES, OP_NAMES, *_BEHAVIOUR)


TYPE_HINTS = click.option(
    "--type-hints",
    metavar="FILE",
    type=PATH,
    help='JSON object of the types of tensors that custom operators make: {"tensor": "float32"}.',
)


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Adds the options in the order given, and ``--config``."""

    def add(function: F) -> F:
        for decorator in reversed((*decorators, config_option)):
            function = decorator(function)
        return function

    return add


def policy_from(given: Mapping[str, Any]) -> Policy:
    """The policy of the shared options; its warnings go to stderr.

    ``given`` holds each option under its Python name; what the user did not say is None and left to
    ``load_policy``'s defaults.
    """
    from mixlist.lists.load import load_policy

    one_standard_input(given.values())
    chosen = _one_mode({name: value for name, value in given.items() if value is not None})
    policy = load_policy(**chosen)
    warn(policy.warnings)
    return policy


def resolve_watched(model: Any, policy: Policy, type_hints: str | None) -> Plan:
    """``mixlist.resolve`` with a progress bar for large weights; ``type_hints`` is the path of a JSON file."""
    import mixlist
    from mixlist.report.progress import byte_bar

    hints = read_hints(type_hints) if type_hints is not None else None
    with byte_bar("scanning weights", None) as told:
        return mixlist.resolve(model, policy, type_hints=hints, progress=told)


def read_hints(path: str) -> dict[str, str]:
    """The types by tensor name of a JSON file ('-': standard input); raises UsageError for anything else in it."""
    from mixlist.files import jsonc

    document = jsonc.read(path)
    hints = document.value
    if not isinstance(hints, dict) or not all(isinstance(text, str) for text in hints.values()):
        raise UsageError(
            f"{document.path} is no JSON object of tensor names and types", hint='write {"tensor": "float32"}'
        )
    return hints


def _one_mode(given: dict[str, Any]) -> dict[str, Any]:
    """Without the mode of a configuration where the command line names one by its other option."""
    modes = [name for name in ("precision_mode", "precision_mode_v2") if name in given]
    context = click.get_current_context()
    said = [name for name in modes if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    return {name: value for name, value in given.items() if name not in modes or name in (said or modes)}


def one_standard_input(paths: Iterable[object]) -> None:
    """Raises UsageError if two of the paths are ``-``: standard input can be read once."""
    if sum(path == "-" for path in paths) > 1:
        raise UsageError(
            "'-' (standard input) is given twice", hint="it can be read once: put one of the two in a file"
        )
