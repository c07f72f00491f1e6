"""The options that several commands share: those of a policy, and those that only the command line has.

A command that is also a function of the Python API has most of its options from the dataclass of that function.
``declared_options`` makes a click option of each field. ``build_options`` makes the dataclass from the values of a
command line. Options that only one command has are in the module of the command.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.name_completion import COMPLETER_OF_FIELD, complete_target
from mixlist.cli.parameters import (
    INPUT,
    INPUT_OR_DASH,
    LIBRARY,
    MODEL,
    NEW_OUTPUT,
    OUTPUT,
    PYTHON_FUNCTION,
    TARGET,
    Number,
    OptionValues,
    PathType,
)
from mixlist.errors import UsageError
from mixlist.lists.policy import InterfaceOptions, PolicyOptions
from mixlist.option_fields import CommandLineForm, command_line_forms
from mixlist.show.terminal import write_findings
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from mixlist.decide.plan import Plan
    from mixlist.lists.policy import Policy
    from mixlist.model.load import LoadedModel


# --- from dataclasses to options, and back ---

Options = TypeVar("Options", bound="DataclassInstance")
SIDES = ("base", "other")  # of ``diff``
MODES = ("precision_mode", "precision_mode_v2")  # the options that choose a precision mode


def declared_options(*options: type[DataclassInstance]) -> list[click.Parameter]:
    """Return a click option for each field of the dataclasses that has a command-line form.

    The click options have no defaults. A field that the user does not set keeps the default of its dataclass
    (``build_options``), so that a default is stated once.
    """
    return [_click_option(name, form) for kind in options for name, form in command_line_forms(kind).items()]


def side_options(side: str) -> list[click.Parameter]:
    """Return the options ``--SIDE-...`` of the policy of one side of ``diff``, without its library: an argument."""
    forms = command_line_forms(PolicyOptions)
    del forms["ops_info"]
    sided = {
        f"{side}_{name}": form._replace(
            flag=f"--{side}-{form.flag.removeprefix('--')}", description=f"{side.upper()}: {form.description}"
        )
        for name, form in forms.items()
    }
    return [_click_option(name, form) for name, form in sided.items()]


# The click type and the word in help texts for each kind of value. Without a word, click shows that of the type.
_CLICK_TYPES: dict[str, tuple[Any, str | None]] = {
    "flag": (None, None),
    "text": (click.STRING, None),
    "integer": (click.INT, "N"),
    "number": (None, "X"),
    "input file": (INPUT, "FILE"),
    "list file": (INPUT_OR_DASH, None),
    "library": (LIBRARY, None),
    "model file": (MODEL, "FILE"),
    "output file": (OUTPUT, "FILE"),
    "appended file": (PathType("appends"), "FILE"),
    "output folder": (PathType("writes into"), "DIR"),
    "python function": (PYTHON_FUNCTION, "FILE"),
}


def _click_option(name: str, form: CommandLineForm) -> GroupedOption:
    description = form.description
    if form.default not in (None, ()) and form.kind != "flag":
        shown = f"{form.default:g}" if isinstance(form.default, float) else form.default
        description += f"  [default: {shown}]"
    kind, metavar = _CLICK_TYPES[form.kind]
    if form.choices:
        kind = click.Choice(form.choices)
    elif form.kind == "number":
        kind = Number(*form.bounds)
    elif form.bounds != (None, None):  # click would describe a range without bounds as "x<=None"
        minimum, maximum = (None if bound is None else int(bound) for bound in form.bounds)
        kind = click.IntRange(minimum, maximum)
    return GroupedOption(
        # The second name is that of the parameter, and so of the field: --dim has the field ``dims``.
        f"{form.flag} {name}",
        form.group,
        description,
        type=kind,
        metavar=form.metavar or metavar,
        default=None,
        # None and not False: with False, click would read the value -1 as an option.
        is_flag=True if form.kind == "flag" else None,
        multiple=form.repeatable,
        shell_complete=COMPLETER_OF_FIELD.get(name),
    )


def build_options(base: Options, option_values: OptionValues, **converted: object) -> Options:
    """Return ``base`` with the values that the user gave; remove these values from ``option_values``.

    ``converted``: more values by field, for fields whose type differs from that of the option, and for fields without
    an option.
    """
    values = {name: option_values.pop(name, None) for name in command_line_forms(type(base))}
    # click gives None, or () for a repeatable option, where the user gave no value.
    set_by_user = {name: value for name, value in values.items() if value is not None and value != ()}
    return replace(base, **set_by_user | converted)


# --- shared options ---

# The options that decide the precision of nodes. A configuration may have them at its top, outside of any table.
POLICY_OPTIONS = tuple(declared_options(PolicyOptions))
# ``validate`` and ``diff`` have some of these options without the other ones of a policy.
OPS_INFO, OP_NAMES, KEEP_DTYPE = (
    next(option for option in POLICY_OPTIONS if option.name == name) for name in ("ops_info", "op_names", "keep_dtype")
)
TYPE_HINTS = GroupedOption(
    "--type-hints",
    "lists",
    'A JSON object with the types of tensors that custom operators compute: {"tensor": "float32"}.',
    metavar="FILE",
    type=INPUT_OR_DASH,
)
PLAN_OPTIONS = (*POLICY_OPTIONS, TYPE_HINTS)
_PLAN_FIELDS = {option.name for option in PLAN_OPTIONS}
KIND = GroupedOption(
    "--kind",
    "lists",
    "The kind of the files; auto finds it from their content.",
    type=click.Choice(["auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]),
    default="auto",
    show_default=True,
)
HTML = GroupedOption(
    "--html", "output", "Also write the report as one self-contained HTML page.", metavar="FILE", type=OUTPUT
)


def output_options(
    description: str, *, kind: PathType = NEW_OUTPUT, required: bool = True, rules_help: str = ""
) -> list[click.Parameter]:
    """Return ``-o OUT``, ``--rules FILE`` of node rules if it has a help text, and ``--force``."""
    options = [GroupedOption("-o --output", "output", description, metavar="OUT", type=kind, required=required)]
    if rules_help:
        options += [GroupedOption("--rules", "output", rules_help, metavar="FILE", type=NEW_OUTPUT)]
    force = GroupedOption("--force", "output", "Replace existing outputs.", is_flag=True)
    return [*options, force]


def target_option(description: str) -> GroupedOption:
    """Return the option ``--target``; ``description`` says what the command does with the target."""
    return GroupedOption(
        "--target",
        "run",
        description,
        metavar="cpu|cuda|tensorrt|webgpu|dml|FILE",
        type=TARGET,
        shell_complete=complete_target,
    )


OPSET = GroupedOption(
    "--opset", "run", "Convert to this opset first; a later opset may allow more types.", type=int, metavar="N"
)


def with_opset(source: LoadedModel, opset: int | None) -> LoadedModel:
    """Return the model converted to another opset, if the user asks for it."""
    if opset is None:
        return source
    from mixlist.model.onnx_conversion import convert_opset

    proto = convert_opset(source.proto, opset)
    sys.stderr.write(f"converted to opset {opset}\n")
    return source._replace(proto=proto)


def format_option(*forms: str, description: str | None = None) -> GroupedOption:
    """Return the option ``--format``. The first form is the default."""
    kind = click.Choice(forms)
    return GroupedOption(
        "--format output_format", "output", description, type=kind, default=forms[0], show_default=True
    )


# --- options in messages ---


def spell_flag(command: click.Command, name: str, value: object = None) -> str:
    """Return an option as the user of a command gives it: ``--protect masks`` for the field ``protect``.

    ``diff`` has it once for each side. An option of a plan that the command lacks is one of other commands.
    """
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    names = [other for other in (name, *(f"{side}_{name}" for side in SIDES)) if other in options]
    if not names:
        flag, owner = f"--{name.replace('_', '-')}", " of resolve and apply" if name in _PLAN_FIELDS else ""
    elif value is False:
        return options[names[0]].secondary_opts[-1]
    else:
        flag, owner = " or ".join(options[other].opts[-1] for other in names), ""
    if isinstance(value, Mapping):
        separator = ":" if name == "ranges" else ","  # LOW:HIGH, and a shape such as 2,8
        texts = [f"{key}={_join(item, separator)}" for key, item in value.items()]
    else:
        texts = [] if value is None or value is True else [_join(value, ",")]
    return " ".join([f"{flag} {quote_argument(text)}" for text in texts] or [flag]) + owner


def _join(value: object, separator: str) -> str:
    return separator.join(map(str, value)) if isinstance(value, tuple) else str(value)


# --- the values of shared options ---


def build_policy(option_values: OptionValues) -> Policy:
    """Remove the options of a policy from ``option_values``, and return the policy. Its warnings are not written."""
    from mixlist.lists.load import policy_from_options

    return policy_from_options(build_options(PolicyOptions(), option_values))


def pop_policy(option_values: OptionValues) -> Policy:
    """Remove the options of a policy from ``option_values``, and return the policy; write its warnings to stderr."""
    policy = build_policy(option_values)
    write_findings(policy.warnings)
    return policy


def pop_side_policy(option_values: OptionValues, side: str, common_values: OptionValues) -> Policy:
    """Remove the options ``--SIDE-...`` of a policy from ``option_values``, and return the policy of this side.

    ``common_values``: the values of policy options that have no such option, or where the side sets none. The warnings
    of the policy are not written.
    """
    names = command_line_forms(PolicyOptions)
    side_values = {name: option_values.pop(f"{side}_{name}", None) for name in names}
    return build_policy({**common_values, **{name: value for name, value in side_values.items() if value is not None}})


def pop_type_hints(option_values: OptionValues) -> dict[str, str] | None:
    """Remove ``--type-hints`` from ``option_values``, and return the types in its file by tensor name.

    Raises UsageError for a file that is not an object of names and types.
    """
    path = option_values.pop("type_hints")
    if path is None:
        return None
    from mixlist.files import jsonc

    document = jsonc.read(str(path))
    hints = document.value
    if not isinstance(hints, dict) or not all(isinstance(text, str) for text in hints.values()):
        raise UsageError(
            f"{document.path} is not a JSON object of tensor names and types", hint='write {"tensor": "float32"}'
        )
    return hints


def resolve_with_progress(
    model: str | LoadedModel,
    policy: Policy,
    type_hints: Mapping[str, str] | None,
    interface: InterfaceOptions | None = None,
) -> Plan:
    """Call ``mixlist.resolve`` with a progress bar for large weights."""
    import mixlist
    from mixlist.show.progress_bar import bar

    interface = interface or InterfaceOptions()
    with bar("scanning weights", "bytes") as progress:
        return mixlist.resolve(
            model, policy, type_hints=type_hints, io=interface.io, keep_io=interface.keep_io, progress=progress
        )
