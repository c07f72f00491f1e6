"""Options that several commands share: those of a policy, and those that no Python function has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mixlist.cli.declared import build, declared
from mixlist.cli.parameters import OUTPUT, PATH, AliasedOption, Choice, Given, on_command_line, one_standard_input
from mixlist.errors import UsageError
from mixlist.lists.options import PolicyOptions
from mixlist.report.terminal import warn

if TYPE_CHECKING:
    from mixlist.graph.load import LoadedModel
    from mixlist.lists.policy import Policy
    from mixlist.resolver.plan import Plan

# The options that decide a node's precision. They are the keys that may be at the top of a configuration, too.
POLICY_OPTIONS = tuple(declared(PolicyOptions))
OPS_INFO, OP_NAMES = (next(each for each in POLICY_OPTIONS if each.name == name) for name in ("ops_info", "op_names"))
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


def format_option(*forms: str, description: str | None = None, alias: str = "") -> click.Option:
    """Return ``--format``; the first form is the default, and ``table`` is an older word for ``text``."""
    kind = Choice(forms, {"table": "text"})
    return AliasedOption(["--format", "form"], alias, type=kind, default=forms[0], show_default=True, help=description)


def policy_from(given: Given) -> Policy:
    """Take the options of a policy out of ``given``, and return the policy."""
    from mixlist.lists.load import read_policy

    return read_policy(build(PolicyOptions(), given))


def take_policy(given: Given) -> Policy:
    """Take the options of a policy out of ``given``, and return the policy; its warnings go to stderr."""
    one_standard_input()
    modes = ("precision_mode", "precision_mode_v2")
    if None not in (given[mode] for mode in modes) and len(said := on_command_line(*modes)) == 1:
        # A mode on the command line replaces one of the other name in a configuration.
        given.update({mode: None for mode in modes if mode not in said})
    policy = policy_from(given)
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


def resolve_watched(model: str | LoadedModel, policy: Policy, type_hints: Mapping[str, str] | None) -> Plan:
    """Do what ``mixlist.resolve`` does, with a progress bar for large weights."""
    import mixlist
    from mixlist.report.progress import bar

    with bar("scanning weights", "bytes") as progress:
        return mixlist.resolve(model, policy, type_hints=type_hints, progress=progress)
