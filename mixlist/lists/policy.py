"""The policy: everything that decides the precision of nodes, apart from the model; with its options and modes.

To add an option, declare it here as a field of ``PolicyOptions`` and read it in ``lists/load.py``. The argument of
``load_policy``, the option of the command line and the TOML key need no other code.

The names of the modes and their equivalences (Rules S3.1 to S3.3) come from the documents of the options
``--precision_mode`` and ``--precision_mode_v2`` of the Ascend compiler, and from its checks of these options (CANN,
hicann/ge).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.errors import UsageError
from mixlist.lists.library import Lists, NameSpace
from mixlist.lists.suggestions import closest_names
from mixlist.option_fields import option
from mixlist.option_spelling import spell

GrayPolicy = Literal["ascend", "between", "promote"]
GRAY_POLICIES: tuple[GrayPolicy, ...] = get_args(GrayPolicy)
Constants = Literal["keep", "ieee", "clamp"]
Clamp = Literal["", "finite", "all"]  # which numbers beyond the range are clamped: none, finite ones, infinities too
OpNames = Literal["auto", "onnx", "ascend"]
Protection = Literal["masks", "norms", "positions", "quantized"]
NewMode = Literal["mixed_float16", "mixed_bfloat16", "fp16", "origin", "cube_fp16in_fp32out", "mixed_hif8", "cube_hif8"]
OldMode = Literal[
    "allow_mix_precision",
    "allow_mix_precision_fp16",
    "allow_mix_precision_bf16",
    "force_fp16",
    "must_keep_origin_dtype",
    "force_fp32",
    "cube_fp16in_fp32out",
    "allow_fp32_to_fp16",
    "allow_fp32_to_bf16",
]
Action = Literal["lists", "force", "origin", "raise", "cube"]
# The actions that make nodes low precision; only these need protections.
LOWERING_ACTIONS: tuple[Action, ...] = ("lists", "force", "cube")

# The version of the rules in docs/semantics.md that decide a precision. Raise it by one in each release in which a rule
# changes the decision for a node. It is part of the digest of a policy, so that a model or a search state that was
# written under other rules is recognized (Rule S7.11).
RULE_SET = 2


class Mode(NamedTuple):
    """A precision mode (Rule S3.1).

    ``action``:

    - ``lists``: the lists decide;
    - ``force``: every node that can be low precision is;
    - ``origin``: no node changes;
    - ``raise``: nodes in low precision become float32;
    - ``cube``: only MatMul, Gemm, Conv and ConvTranspose become low precision (an Ascend chip computes them in its
      cube unit).

    ``low`` is the low type. With ``origin`` and ``raise``, only messages use it. ONNX has no hifloat8 (Rule S3.9).
    """

    name: str
    action: Action
    low: Literal["float16", "bfloat16", "hifloat8"] = "float16"


@dataclass(frozen=True, slots=True)
class NodeRule:
    """One line of a keep_dtype or customize_dtypes file (Rules S6.1 and S6.2).

    ``by`` says what ``pattern`` is: the name of a node (``*`` and ``?`` match as in a shell; ``scope/name`` matches in
    that scope only) or an op type. With ``keep``, the nodes keep their authored type. Without ``keep``, ``inputs`` and
    ``outputs`` hold the name of a dtype for each slot, and None for any type.
    """

    by: Literal["name", "type"]
    pattern: str
    keep: bool
    place: FilePlace
    inputs: tuple[str | None, ...] = ()
    outputs: tuple[str | None, ...] = ()

    def __hash__(self) -> int:
        # Fast: Python stores the hash of a str, and tune looks up the same rules very often.
        return hash(self.pattern)


@dataclass(frozen=True, repr=False)
class Policy:
    """Everything that decides the precision of nodes, apart from the model. ``load_policy`` returns it.

    ``rules`` are in order of precedence: customize_dtypes by name, then by op type, then keep_dtype.
    ``constants`` says what happens to constants that are out of the range of the low type (Rule S4.19).
    ``protect`` names the patterns that no list makes low precision (Rule S4.34).
    ``space`` is the name space of the lists; with ``op_names`` "auto" it was guessed (Rule S5.1).
    ``digest`` identifies the meaning of the policy and the version ``RULE_SET`` of the rules. It is the same on every
    machine, and does not depend on the names of files.

    Example::

        policy = mixlist.load_policy(ops_info="onnx", mixlist="digits_mixlist.json")
        print(policy.mode.name, policy.gray_policy, policy.lists.list_of("MatMul"))
    """

    mode: Mode
    lists: Lists
    rules: tuple[NodeRule, ...] = ()
    gray_policy: GrayPolicy = "ascend"
    constants: Constants = "keep"
    protect: frozenset[Protection] = frozenset()
    op_names: OpNames = "auto"
    space: NameSpace = "onnx"
    digest: str = ""
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False)

    @property
    def clamp(self) -> Clamp:
        """Return which constants are clamped: under Ascend names infinities too, as the engine does (Rule S4.19)."""
        if self.constants != "clamp":
            return ""
        return "all" if self.space == "ascend" else "finite"

    def __repr__(self) -> str:
        counts = f"edits {len(self.lists.moves)}, node rules {len(self.rules)}, warnings {len(self.warnings)}"
        everything = self.protect == frozenset(get_args(Protection))
        protect = "all" if everything else ",".join(sorted(self.protect)) or "none"
        settings = f"{self.gray_policy}, {self.constants}, protect {protect}"
        return f"<Policy {self.mode.name} of {self.lists.library.name!r}: {settings}; {counts}>"


def require_policy(argument: object) -> None:
    """Raise an error if an argument is no Policy that a model or a training can follow.

    It is a TypeError for another object, and a UsageError for a mode in HiFloat8 (Rule S3.9). The message says what to
    pass.
    """
    if not isinstance(argument, Policy):
        shown = repr(argument) if isinstance(argument, str | os.PathLike) else f"a {type(argument).__name__}"
        raise TypeError(f"policy is {shown}: pass a Policy, such as mixlist.load_policy(mixlist='modify.json')")
    if argument.mode.low == "hifloat8":
        raise UsageError(
            f"{spell('precision_mode_v2', argument.mode.name)} makes nodes hifloat8, and ONNX has no such type",
            hint="use mixed_float16 or mixed_bfloat16; lists, validate and export for atc take this mode",
        )


# --- precision modes ---

DEFAULT_MODE = "mixed_float16"

NEW_MODES = {
    "mixed_float16": Mode("mixed_float16", "lists", "float16"),
    "mixed_bfloat16": Mode("mixed_bfloat16", "lists", "bfloat16"),
    "fp16": Mode("fp16", "force", "float16"),
    "origin": Mode("origin", "origin"),
    # float16 inputs exist only inside the matrix unit of an Ascend chip. In ONNX types, this mode is float32 (S3.6).
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise"),
    "mixed_hif8": Mode("mixed_hif8", "lists", "hifloat8"),
    "cube_hif8": Mode("cube_hif8", "cube", "hifloat8"),
}

# Several old names mean the same as a new one. Messages repeat the name that the user wrote, so each has a Mode.
OLD_MODES = {
    "allow_mix_precision": Mode("allow_mix_precision", "lists", "float16"),
    "allow_mix_precision_fp16": Mode("allow_mix_precision_fp16", "lists", "float16"),
    "allow_mix_precision_bf16": Mode("allow_mix_precision_bf16", "lists", "bfloat16"),
    "force_fp16": Mode("force_fp16", "force", "float16"),
    "must_keep_origin_dtype": Mode("must_keep_origin_dtype", "origin"),
    "force_fp32": Mode("force_fp32", "raise"),
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise"),
    "allow_fp32_to_fp16": Mode("allow_fp32_to_fp16", "cube", "float16"),
    "allow_fp32_to_bf16": Mode("allow_fp32_to_bf16", "origin", "bfloat16"),
}

# The chips with kernels for HiFloat8 are Ascend 950PR and 950DT (CANN 9.0, --precision_mode_v2).
_HIFLOAT8_CHIP = "ascend950"
_LIBRARY_OF_CHIP = re.compile(r"(?:^|aic-)(ascend[a-z0-9_]+)(?:-ops-info\.json)?$")
_INTERNAL_NAMES = ("force_lowerprecision", "allow_fp32_to_lowprecision")  # the Ascend compiler refuses them, too


# The modes to suggest for "bf16", to which the name fp16 is more similar.
_MODE_OF_BF16 = {"precision_mode": "allow_mix_precision_bf16", "precision_mode_v2": "mixed_bfloat16"}


def find_mode(
    precision_mode: str | None = None, precision_mode_v2: str | None = None, *, has_mixlist: bool = False
) -> Mode:
    """Return the mode that ``--precision-mode`` or ``--precision-mode-v2`` names; ``mixed_float16`` without both.

    Raises UsageError for an unknown name, for both options at once (error E10056 of the Ascend compiler), and, with
    ``has_mixlist``, for a mode without lists that a modify_mixlist could edit (its error E10001).
    """
    if precision_mode is not None and precision_mode_v2 is not None:
        raise UsageError(
            f"{spell('precision_mode', precision_mode)} and"
            f" {spell('precision_mode_v2', precision_mode_v2)} are given together",
            hint=f"give one of them; {spell('precision_mode_v2')} has the newer names",
        )
    # Both options are looked up in their own names; the names of the other option are only for the hint.
    if precision_mode is not None:
        mode = _look_up(precision_mode, "precision_mode", OLD_MODES, "precision_mode_v2", NEW_MODES)
    else:
        name = DEFAULT_MODE if precision_mode_v2 is None else precision_mode_v2
        mode = _look_up(name, "precision_mode_v2", NEW_MODES, "precision_mode", OLD_MODES)
    if has_mixlist and mode.action != "lists":
        all_modes = (*NEW_MODES.values(), *OLD_MODES.values())
        modes_with_lists = [candidate.name for candidate in all_modes if candidate.action == "lists"]
        raise UsageError(
            f"{spell('mixlist')} is given, but the precision mode {mode.name} has no lists that it could edit",
            hint=f"leave {spell('mixlist')} out, or use one of {', '.join(modes_with_lists)}",
        )
    return mode


def require_chip(mode: Mode, library: str) -> None:
    """Raise UsageError for a mode in HiFloat8 with the library of a chip that has no such type (Rule S3.9).

    ``library``: the name of a built-in library or the path of a file, whose name tells the chip.
    """
    match = _LIBRARY_OF_CHIP.search(library)
    if mode.low == "hifloat8" and match is not None and not match[1].startswith(_HIFLOAT8_CHIP):
        raise UsageError(
            f"{spell('precision_mode_v2', mode.name)} needs an Ascend 950PR or 950DT; {library} is the library of"
            f" {match[1]}",
            hint=f"give the library of that chip to {spell('ops_info')}, or use mixed_float16 or mixed_bfloat16",
        )


def _look_up(name: str, option: str, modes: dict[str, Mode], other_option: str, other_modes: dict[str, Mode]) -> Mode:
    """Return the mode with a name of ``option``.

    For any other name, raise a UsageError whose hint names a valid mode.
    """
    if name in modes:
        return modes[name]
    if name in _INTERNAL_NAMES:
        raise UsageError(
            f"{spell(option, name)}: this mode is internal to the Ascend compiler, whose own command line refuses it",
            hint=f"the modes of {spell(option)} are {', '.join(modes)}",
        )
    # A right name with the wrong one of the two options.
    if name in other_modes:
        hint = f"this is a mode of the other option: write {spell(other_option, name)}"
        raise UsageError(f"{spell(option, name)}: there is no such mode", hint=hint)
    # A typing error: suggest the most similar names of this option, then one of the other option.
    similar = [
        *([_MODE_OF_BF16[option]] if name.lower() == "bf16" else closest_names(name, modes)),
        *(f"{mode_name} (of {spell(other_option)})" for mode_name in closest_names(name, other_modes, 1)),
    ][:3]
    question = f"did you mean {' or '.join(similar)}? " if similar else ""
    hint = f"{question}the modes of {spell(option)} are {', '.join(modes)}"
    raise UsageError(f"{spell(option, name)}: there is no such mode", hint=hint)


# --- options ---

DEFAULT_LIBRARY = "onnx"
ListPath = str | os.PathLike[str]


@dataclass(frozen=True)
class PolicyOptions:
    """The options of ``load_policy`` (docs/semantics.md, S1 to S6).

    ``ops_info``: the library, as the name of a built-in library, a file, or a directory.
    ``mixlist``: a modify_mixlist file; in Python also its text or its object. ``keep_dtype`` and ``customize_dtypes``:
    node rule files. For each of these paths, ``-`` means standard input.
    ``precision_mode``: a mode by its old name. ``precision_mode_v2``: a mode by its new name (Rule S3.1).
    ``protect``: ``none``, or some of ``masks,norms,positions,quantized``; with None the library decides (Rule S4.34).
    ``strict``: if True, comments and trailing commas in the files are errors.
    """

    ops_info: ListPath = option(
        DEFAULT_LIBRARY,
        "The operator library: a file, a directory or a built-in name ('mixlist presets').",
        "library",
        metavar="PATH|PRESET",
        group="lists",
    )
    mixlist: ListPath | Mapping[str, object] | None = option(
        None, "A modify_mixlist file ('-' reads standard input).", "list file", group="lists"
    )
    precision_mode: OldMode | None = option(
        None, f"The precision mode by its older name: {', '.join(OLD_MODES)}.", metavar="MODE", group="lists"
    )
    precision_mode_v2: NewMode | None = option(
        None, f"The precision mode: {', '.join(NEW_MODES)}.  [default: {DEFAULT_MODE}]", metavar="MODE", group="lists"
    )
    keep_dtype: ListPath | None = option(
        None, "A file of nodes that keep their type: on each line a name or OpType::Type.", "list file", group="lists"
    )
    customize_dtypes: ListPath | None = option(
        None, "A file of types for single nodes: on each line a rule.", "list file", group="lists"
    )
    op_names: OpNames = option("auto", "Name space of the lists.", choices=get_args(OpNames), group="lists")
    gray_policy: GrayPolicy = option(
        "ascend", "How gray nodes follow their neighbors.", choices=GRAY_POLICIES, group="lists"
    )
    constants: Constants | None = option(
        None,
        "How constants beyond the range of the low type are treated."
        "  [default: keep, ieee for the lists of a framework, clamp in Ascend names]",
        choices=get_args(Constants),
        group="lists",
    )
    protect: str | None = option(
        None,
        "Patterns that no list makes low precision.  [default: all, none for the lists of an engine or a framework]",
        metavar="masks,norms,positions,quantized|none",
        group="lists",
    )
    strict: bool = False


# The types that a rewritten model gives its float inputs and outputs (Rule S7.3).
InterfaceTypes = Literal["keep", "float32", "low"]
INTERFACE_TYPES: tuple[InterfaceTypes, ...] = get_args(InterfaceTypes)


@dataclass(frozen=True, kw_only=True)
class InterfaceOptions:
    """The types of the float inputs and outputs of a model that a command writes (Rule S7.3).

    ``io``: that of all inputs and outputs that ``keep_io`` does not name.
    """

    io: InterfaceTypes = option(
        "keep",
        "The type of float inputs and outputs: as in MODEL, float32, or the low type.",
        choices=INTERFACE_TYPES,
        group="output",
    )
    keep_io: tuple[str, ...] = option(
        (), "An input or output that keeps its type, with --io.", metavar="NAME", repeatable=True, group="output"
    )
