"""Read everything that decides a node's precision into one Policy."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TypeVar, cast, get_args

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.lists import presets
from mixlist.lists.library import Library, Lists, NameSpace
from mixlist.lists.modes import find_mode
from mixlist.lists.modify_mixlist import apply_edits, read_edits
from mixlist.lists.node_rules import Rules, read_customize_dtypes, read_keep_dtype
from mixlist.lists.op_catalog import TITLE, guess_space
from mixlist.lists.ops_info import load_ops_info
from mixlist.lists.options import DEFAULT_LIBRARY, ListPath, OpNames, PolicyOptions
from mixlist.lists.policy import RULE_SET, Constants, GrayPolicy, Mode, Policy, Protection
from mixlist.lists.suggestions import choices
from mixlist.option_fields import with_fields

_LOWERS = ("lists", "force", "cube")  # the actions that make nodes low precision: the others have nothing to protect

_T = TypeVar("_T")


@with_fields(PolicyOptions)
def load_policy(options: PolicyOptions) -> Policy:
    """Return the policy that the options of the command line describe.

    The arguments are the fields of ``PolicyOptions``. ``Policy.warnings`` holds warnings about the files and options.

    Raises UsageError for options that are unknown or contradict each other, FileError for a file
    that cannot be read and ListError, with every finding, for one that is not valid.
    """
    return read_policy(options)


def read_policy(options: PolicyOptions) -> Policy:
    """Do what ``load_policy`` says, with its options in one object."""
    names = _choice("--op-names", options.op_names, get_args(OpNames))
    gray = _choice("--gray-policy", options.gray_policy, get_args(GrayPolicy))
    treat = _choice("--constants", options.constants, get_args(Constants))
    mode = find_mode(options.precision_mode, options.precision_mode_v2, has_mixlist=options.mixlist is not None)
    library, warnings = load_library(options.ops_info, strict=options.strict)
    if mode.action != "lists" and os.fspath(options.ops_info) != DEFAULT_LIBRARY:
        message = f"the library {library.name} is not used: the precision mode {mode.name} has no lists"
        warnings.append(Diagnostic("ML401", "warning", message, hint="leave --ops-info out, or use mixed_float16"))
    space, doubts = find_space(library, names)
    warnings += doubts
    lists = Lists(library)
    if options.mixlist is not None:
        edits, said = read_edits(options.mixlist, strict=options.strict)
        lists, more = apply_edits(library, edits)
        warnings += [*said, *more]
    rules, said = _rules(options, mode)
    policy = Policy(
        mode=mode,
        lists=lists,
        rules=rules,
        gray_policy=gray,
        constants=treat,
        protect=_protections(options.protect, library, space),
        op_names=names,
        space=space,
        warnings=(*warnings, *said),
    )
    return replace(policy, digest=_digest(policy))


def load_library(ops_info: ListPath, *, strict: bool = False) -> tuple[Library, list[Diagnostic]]:
    """The built-in library of that name, else the library in that file or directory, and the warnings about it."""
    name = os.fspath(ops_info)
    if name in presets.names():
        return presets.load(name), []
    if name != "-" and not os.path.exists(name) and not os.path.dirname(name):  # noqa: PTH110, PTH120  # "" and NUL too
        hint = choices(name, presets.names(), "built-in libraries are")
        raise FileError(f"{name}: no such file or directory, and no built-in library", hint=hint)
    return load_ops_info(ops_info, strict=strict)


def find_space(library: Library, op_names: OpNames = "auto") -> tuple[NameSpace, list[Diagnostic]]:
    """The name space a library is written in, and a warning where that is in doubt.

    Raises UsageError if ``op_names`` contradicts a built-in library, whose space is fixed.
    """
    if library.space:
        if op_names not in ("auto", library.space):
            raise UsageError(
                f"--op-names {op_names}: the built-in library {library.name} is written in {library.space} names",
                hint="leave --op-names out, or give a library of that space with --ops-info",
            )
        return library.space, []
    if op_names != "auto":
        return op_names, []
    space, doubt = guess_space(library.lists)
    if not doubt:
        return space, []
    message = f"the library {library.name} is read as {TITLE[space]} names: {doubt}"
    hint = "--op-names onnx or --op-names ascend says which it is"
    return space, [Diagnostic("ML402", "warning", message, library.name, hint=hint)]


def _choice(option: str, value: str, allowed: tuple[_T, ...], lead: str = "it takes") -> _T:
    if value in allowed:
        return cast(_T, value)
    hint = choices(str(value), [str(a) for a in allowed], lead, 1)
    raise UsageError(f"{option} has no value {value!r}", hint=hint)


def _protections(text: str | None, library: Library, space: NameSpace) -> frozenset[Protection]:
    """Return what ``--protect`` says, or without it the default of the library.

    Rule S4.34: All are on for the built-in library `onnx` and for users' libraries in ONNX names, and off for
    libraries that model an engine or a framework: the other built-in ones, and users' libraries in Ascend names.
    """
    everything: tuple[Protection, ...] = get_args(Protection)
    if text is None:
        is_of_engine = space == "ascend" or (library.space is not None and library.name != DEFAULT_LIBRARY)
        return frozenset() if is_of_engine else frozenset(everything)
    if text == "none":
        return frozenset()
    lead = "it takes none, or with commas between them"
    return frozenset([_choice("--protect", name.strip(), everything, lead) for name in text.split(",")])


def _rules(options: PolicyOptions, mode: Mode) -> Rules:
    """Return the node rules in order of precedence: customize_dtypes by name, then by type, then keep_dtype."""
    customized, keep = options.customize_dtypes, options.keep_dtype
    rules, warnings = read_customize_dtypes(customized) if customized is not None else ((), [])
    if keep is not None:
        kept, kept_warnings = read_keep_dtype(keep)
        warnings += kept_warnings
        if mode.action == "origin":
            message = f"--keep-dtype is not used: the precision mode {mode.name} keeps every node's type"
            warnings.append(Diagnostic("ML403", "warning", message, os.fspath(keep)))
        else:
            rules += kept
    return rules, warnings


def _digest(policy: Policy) -> str:
    """Return a SHA-256 over what the policy says and the rules that read it, not over how and where it is written."""
    lists = policy.lists
    meaning: dict[str, object] = {
        "rule set": RULE_SET,
        "mode": [policy.mode.action, policy.mode.low],
        "constants": policy.constants,
        "rules": [[rule.by, rule.pattern, rule.keep, rule.inputs, rule.outputs] for rule in policy.rules],
    }
    if policy.mode.action in _LOWERS:
        meaning["protect"] = sorted(policy.protect)
    if policy.mode.action == "lists":
        meaning |= {
            "space": policy.space,
            "gray": policy.gray_policy,
            "lists": {op: lists.list_of(op) for op in lists.library.lists.keys() | lists.named_ops},
            "clear": sorted(lists.library.clear_ops) if policy.gray_policy == "between" else [],
        }
    text = json.dumps(meaning, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
