"""Read the list files and options that decide the precision of nodes into one Policy.

The readers of files are imported where a file is read: most commands use a built-in library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.list_text import ListText, shown_path
from mixlist.lists import presets
from mixlist.lists.library import Library, Lists, NameSpace
from mixlist.lists.op_catalog import SPACE_TITLES, guess_space
from mixlist.lists.policy import (
    DEFAULT_LIBRARY,
    GRAY_POLICIES,
    LOWERING_ACTIONS,
    RULE_SET,
    Constants,
    ListPath,
    Mode,
    NodeRule,
    OpNames,
    Policy,
    PolicyOptions,
    Protection,
    find_mode,
    require_chip,
)
from mixlist.lists.suggestions import choices_hint
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from mixlist.lists.node_rules import RulesAndFindings

AllowedValue = TypeVar("AllowedValue")


@with_fields(PolicyOptions)
def load_policy(options: PolicyOptions) -> Policy:
    """Read the list files and return the policy.

    The arguments are the fields of ``PolicyOptions``, which are also options of the command line. ``Policy.warnings``
    holds the warnings about the files and options.

    Example::

        policy = mixlist.load_policy(ops_info="onnx", mixlist="digits_mixlist.json")
        print(policy.warnings)

    ``mixlist`` can also be the edits themselves: a text such as ``report.modify_mixlist``, or the dict of such a text.
    Raises UsageError for unknown values and for options that contradict each other, FileError for a file that cannot be
    read, ListError, with every finding, for a file that is not valid, and TypeError for a list that is no path.
    """
    mixlist = options.mixlist
    if isinstance(mixlist, Mapping):
        options = replace(options, mixlist=ListText(json.dumps(mixlist)))
    elif isinstance(mixlist, str) and mixlist.lstrip().startswith("{"):  # no path: an object of JSON
        options = replace(options, mixlist=ListText(mixlist))
    return policy_from_options(options)


def policy_from_options(options: PolicyOptions) -> Policy:
    """Read the list files and return the policy, as ``load_policy`` does, with the options in one object."""
    for name in ("ops_info", "mixlist", "keep_dtype", "customize_dtypes"):
        path = getattr(options, name)
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} is a {type(path).__name__}: write it to a file, and pass the path")
    # Check the options before any file is read. The defaults of --constants and --protect depend on the library.
    op_names = _check_choice("op_names", options.op_names, get_args(OpNames))
    gray_policy = _check_choice("gray_policy", options.gray_policy, GRAY_POLICIES)
    if options.constants is not None:
        _check_choice("constants", options.constants, get_args(Constants))
    mode = find_mode(options.precision_mode, options.precision_mode_v2, has_mixlist=options.mixlist is not None)
    # Read the library and find its name space. A mode without lists uses at most its kernels.
    library, warnings = load_library(options.ops_info, strict=options.strict)
    require_chip(mode, library.name)
    is_used = mode.action == "lists" or (mode.action == "cube" and library.kernels)
    if not is_used and os.fspath(options.ops_info) != DEFAULT_LIBRARY:
        # The library still decides in which names rules are written, and what is protected (Rule S4.34).
        message = (
            f"the precision mode {mode.name} has no lists: library {library.name} decides only the names of op types"
            f" and the default of {spell('protect')}"
        )
        hint = f"leave {spell('ops_info')} out, or use a mode with lists, such as mixed_float16"
        warnings.append(Diagnostic("ML401", "warning", message, hint=hint))
    space, space_warnings = find_space(library, op_names)
    warnings += space_warnings
    # Apply the modify_mixlist, which needs the library, and read the node rules, which need only the mode.
    lists = Lists(library)
    if options.mixlist is not None:
        assert not isinstance(options.mixlist, Mapping), "load_policy makes it a text"
        from mixlist.lists.modify_mixlist import apply_edits, read_edits

        edits, file_warnings = read_edits(options.mixlist, strict=options.strict)
        lists, edit_warnings = apply_edits(library, edits, space)
        warnings += [*file_warnings, *edit_warnings]
    rules, rule_warnings = _read_node_rules(options, mode)
    policy = Policy(
        mode=mode,
        lists=lists,
        rules=rules,
        gray_policy=gray_policy,
        constants=_find_constants(options.constants, library, space),
        protect=_protections(options.protect, library, space),
        op_names=op_names,
        space=space,
        warnings=(*warnings, *rule_warnings),
    )
    # The digest is computed from the other fields.
    return replace(policy, digest=_digest(policy))


def strengthen_policy(
    policy: Policy, *, rules: tuple[NodeRule, ...] = (), protect: frozenset[Protection] = frozenset()
) -> Policy:
    """Return a policy with node rules that come before its own, and with more protections."""
    other = replace(policy, rules=(*rules, *policy.rules), protect=policy.protect | protect)
    return replace(other, digest=_digest(other))


def replace_rules(policy: Policy, rules: tuple[NodeRule, ...]) -> Policy:
    """Return a policy with other node rules, in order of precedence, instead of its own."""
    other = replace(policy, rules=rules)
    return replace(other, digest=_digest(other))


def replace_mixlist(policy: Policy, mixlist: ListPath) -> Policy:
    """Return a policy with the edits of another modify_mixlist file instead of its own.

    ``warnings`` holds only the warnings about this file. Raises UsageError if the mode of the policy has no lists, and
    FileError and ListError as ``load_policy`` does.
    """
    from mixlist.lists.modify_mixlist import apply_edits, read_edits

    if policy.mode.action != "lists":
        raise UsageError(
            f"{shown_path(mixlist)} edits lists, but the precision mode {policy.mode.name} has none",
            hint="use a mode with lists, such as mixed_float16",
        )
    edits, file_warnings = read_edits(mixlist)
    lists, edit_warnings = apply_edits(policy.lists.library, edits)
    other = replace(policy, lists=lists, warnings=(*file_warnings, *edit_warnings))
    return replace(other, digest=_digest(other))


def load_library(ops_info: ListPath, *, strict: bool = False) -> tuple[Library, list[Diagnostic]]:
    """Return the built-in library of this name, or the library in this file or directory, and the warnings about it."""
    name = os.fspath(ops_info)
    if name in presets.names():
        return presets.load(name), []
    # A name without a folder, of which no file exists, is probably a misspelled built-in library. os.path is used
    # because Path raises ValueError for a name with a NUL.
    if name != "-" and not os.path.exists(name) and not os.path.dirname(name):  # noqa: PTH110, PTH120
        hint = choices_hint(name, presets.names(), "the built-in libraries are")
        raise FileError(f"{name}: no such file or directory, and no built-in library", hint=hint)
    from mixlist.lists.ops_info import load_ops_info

    return load_ops_info(ops_info, strict=strict)


def find_space(library: Library, op_names: OpNames = "auto") -> tuple[NameSpace, list[Diagnostic]]:
    """Return the name space of the op types of a library, and a warning if it is not certain (Rule S5.1).

    Raises UsageError if ``op_names`` contradicts a built-in library, whose name space is fixed.
    """
    if library.space:
        if op_names not in ("auto", library.space):
            raise UsageError(
                f"{spell('op_names', op_names)}: the built-in library {library.name} has {library.space} names",
                hint=f"leave {spell('op_names')} out, or give a library with {op_names} names ({spell('ops_info')})",
            )
        return library.space, []
    if op_names != "auto":
        return op_names, []
    # A file of the user, and ``auto``: the names decide.
    space, doubt = guess_space(library.lists)
    if not doubt:
        return space, []
    message = f"library {library.name} is read with {SPACE_TITLES[space]} names, but this is not certain: {doubt}"
    hint = f"set the name space with {spell('op_names', 'onnx')} or {spell('op_names', 'ascend')}"
    return space, [Diagnostic("ML402", "warning", message, library.name, hint=hint)]


def _check_choice(
    option: str, value: str, allowed: tuple[AllowedValue, ...], lead: str = "the allowed values are"
) -> AllowedValue:
    """Return the value with the type of the allowed values; raise UsageError if it is not one of them.

    ``lead``: the words of the hint before the list of the allowed values.
    """
    if value in allowed:
        return cast(AllowedValue, value)
    hint = choices_hint(str(value), [str(choice) for choice in allowed], lead, 1)
    raise UsageError(f"{spell(option)} has no value {value!r}", hint=hint)


def _protections(text: str | None, library: Library, space: NameSpace) -> frozenset[Protection]:
    """Return the protections that ``--protect`` names, or without this option the default of the library.

    Rule S4.34: the default is all protections for the built-in library `onnx` and for a user's library with ONNX names.
    It is none for libraries that model an engine or a framework: the other built-in ones, and a user's library with
    Ascend names.
    """
    everything: tuple[Protection, ...] = get_args(Protection)
    if text is None:
        return frozenset() if _models_a_framework(library) or space == "ascend" else frozenset(everything)
    if text == "none":
        return frozenset()
    lead = "the allowed values are none, or some of"
    return frozenset([_check_choice("protect", name.strip(), everything, lead) for name in text.split(",")])


def _models_a_framework(library: Library) -> bool:
    """Return whether a library is built in, and is that of an engine or framework."""
    return library.space is not None and library.name != DEFAULT_LIBRARY  # only built-in libraries have a space


def _find_constants(text: str | None, library: Library, space: NameSpace) -> Constants:
    """Return how constants out of range are treated: as given, or as the library asks for (Rule S4.19)."""
    default: Constants = "clamp" if space == "ascend" else "ieee" if _models_a_framework(library) else "keep"
    return default if text is None else _check_choice("constants", text, get_args(Constants))


def _read_node_rules(options: PolicyOptions, mode: Mode) -> RulesAndFindings:
    """Return the node rules in order of precedence, and the warnings about the files.

    The order: the rules of customize_dtypes by name, those by op type, the rules of keep_dtype.
    """
    customize_path, keep_path = options.customize_dtypes, options.keep_dtype
    if customize_path is None and keep_path is None:
        return (), []
    from mixlist.lists.node_rules import read_customize_dtypes, read_keep_dtype

    rules, warnings = read_customize_dtypes(customize_path) if customize_path is not None else ((), [])
    if keep_path is not None:
        keep_rules, keep_warnings = read_keep_dtype(keep_path)
        warnings += keep_warnings
        # Under ``origin`` only customize_dtypes changes types (Rule S3.5), so keep_dtype has nothing to keep.
        if mode.action == "origin":
            message = f"{spell('keep_dtype')} is not used: the precision mode {mode.name} keeps the type of every node"
            hint = f"leave {spell('keep_dtype')} out"
            warnings.append(Diagnostic("ML403", "warning", message, os.fspath(keep_path), hint=hint))
        else:
            rules += keep_rules
    return rules, warnings


def _digest(policy: Policy) -> str:
    """Return a SHA-256 of the meaning of the policy and of the version of the rules that read it (Rule S7.11).

    The names of the files and the order of their entries have no influence. A setting that has no effect under the mode
    of the policy is left out.
    """
    lists = policy.lists
    meaning: dict[str, object] = {
        "rule set": RULE_SET,
        "mode": [policy.mode.action, policy.mode.low],
        "constants": "clip" if policy.clamp == "all" else policy.constants,
        "rules": [[rule.by, rule.pattern, rule.keep, rule.inputs, rule.outputs] for rule in policy.rules],
    }
    if policy.mode.action in LOWERING_ACTIONS:
        meaning["protect"] = sorted(policy.protect)
    if policy.mode.action == "lists":
        meaning |= {
            "space": policy.space,
            "gray": policy.gray_policy,
            "lists": {op: lists.list_of(op) for op in lists.library.lists.keys() | lists.named_ops},
            # Only the gray policy ``between`` reads the clear list.
            "clear": sorted(lists.library.clear_ops) if policy.gray_policy == "between" else [],
        }
    if policy.mode.action in ("lists", "cube") and policy.space == "ascend" and lists.library.kernels:
        meaning["kernels"] = {op: sorted(types) for op, types in lists.library.kernels.items()}
    text = json.dumps(meaning, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
