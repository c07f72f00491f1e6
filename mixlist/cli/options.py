"""Options that several commands share and no Python function declares: those of a policy, and forms of output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.parameters import OUTPUT, PATH, Given, on_command_line, one_standard_input
from mixlist.errors import UsageError
from mixlist.report.terminal import warn

if TYPE_CHECKING:
    from mixlist.graph.io import Loaded
    from mixlist.lists.policy import Policy
    from mixlist.resolver.plan import Plan

OPS_INFO = click.Option(
    ["--ops-info"],
    type=PATH,
    metavar="PATH|PRESET",
    help="The operator library: a file, a directory or a built-in name ('mixlist presets').  [default: onnx]",
)
OP_NAMES = click.Option(
    ["--op-names"], type=click.Choice(["auto", "onnx", "ascend"]), help="Name space of the lists.  [default: auto]"
)
# What decides a node's precision: the arguments of ``load_policy``, and the keys that may stand at the top of a
# configuration. None where the user says nothing, so that the defaults of ``load_policy`` count.
POLICY_OPTIONS = (
    OPS_INFO,
    click.Option(["--mixlist"], type=PATH, help="A modify_mixlist file ('-' reads standard input)."),
    click.Option(["--precision-mode"], metavar="MODE", help="A mode by its older name, e.g. allow_mix_precision."),
    click.Option(["--precision-mode-v2"], metavar="MODE", help="A mode by its newer name.  [default: mixed_float16]"),
    click.Option(["--keep-dtype"], type=PATH, help="Nodes that keep their type, one name or OpType::Type a line."),
    click.Option(["--customize-dtypes"], type=PATH, help="Nodes with types of their own, one rule a line."),
    OP_NAMES,
    click.Option(
        ["--gray-policy"],
        type=click.Choice(["ascend", "between", "black-wins", "promote"]),
        help="How gray nodes follow their neighbors.  [default: ascend]",
    ),
    click.Option(
        ["--constants"],
        type=click.Choice(["keep", "ieee", "clamp"]),
        help="What becomes of constants out of the low type's range.  [default: keep]",
    ),
    click.Option(
        ["--protect"],
        metavar="masks,positions|none",
        help="What no list makes low precision.  [default: both, none for the lists of an engine or a framework]",
    ),
)
TYPE_HINTS = click.Option(
    ["--type-hints"],
    metavar="FILE",
    type=PATH,
    help='JSON object of the types of tensors that custom operators make: {"tensor": "float32"}.',
)
PLAN_OPTIONS = (*POLICY_OPTIONS, TYPE_HINTS)
KIND = click.Option(
    ["--kind"],
    type=click.Choice(["auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]),
    default="auto",
    show_default=True,
    help="What the files are; auto goes by their content.",
)
HTML = click.Option(["--html"], metavar="FILE", type=OUTPUT, help="Write the report as one self-contained page, too.")


def format_option(*forms: str, description: str | None = None) -> click.Option:
    """Return ``--format``; the first form is the default."""
    return click.Option(
        ["--format", "form"], type=click.Choice(forms), default=forms[0], show_default=True, help=description
    )


def policy_from(chosen: Mapping[str, object]) -> Policy:
    """Return the policy of some arguments of ``load_policy``, None for its defaults."""
    from mixlist.lists.load import load_policy

    arguments: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return load_policy(**arguments)


def take_policy(given: Given) -> Policy:
    """Take the options of a policy out of ``given``, and return the policy; its warnings go to stderr."""
    one_standard_input()
    chosen = {str(each.name): given.pop(str(each.name)) for each in POLICY_OPTIONS}
    modes = ("precision_mode", "precision_mode_v2")
    if None not in (chosen[mode] for mode in modes) and len(said := on_command_line(*modes)) == 1:
        # A mode on the command line replaces one of the other name in a configuration.
        chosen |= {mode: None for mode in modes if mode not in said}
    policy = policy_from(chosen)
    warn(policy.warnings)
    return policy


def take_type_hints(given: Given) -> dict[str, str] | None:
    """Take ``--type-hints`` out of ``given``, and read the file; raises UsageError for anything but types by name."""
    path = given.pop("type_hints")
    if path is None:
        return None
    from mixlist.files import jsonc

    document = jsonc.read(str(path))
    hints = document.value
    if not isinstance(hints, dict) or not all(isinstance(text, str) for text in hints.values()):
        raise UsageError(
            f"{document.path} is no JSON object of tensor names and types", hint='write {"tensor": "float32"}'
        )
    return hints


def resolve_watched(model: str | Loaded, policy: Policy, type_hints: Mapping[str, str] | None) -> Plan:
    """Do what ``mixlist.resolve`` does, with a progress bar for large weights."""
    import mixlist
    from mixlist.report.progress import count_bar

    with count_bar("scanning weights", None, in_bytes=True) as told:
        return mixlist.resolve(model, policy, type_hints=type_hints, progress=told)
