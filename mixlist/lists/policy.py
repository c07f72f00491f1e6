"""Everything that decides a node's precision, in one value: lists, mode, node rules, constants, protections, grays."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.lists.library import Lists, NameSpace

GrayPolicy = Literal["ascend", "between", "black-wins", "promote"]
Constants = Literal["keep", "ieee", "clamp"]
Protection = Literal["masks", "positions"]
Action = Literal["lists", "force", "origin", "raise", "cube"]

# The version of the rules in docs/semantics.md that decide a precision. Raise it by one in each release in which a
# changed rule decides a node otherwise: a file or a search state of other rules is then recognized (Rule S7.11).
RULE_SET = 2


@dataclass(frozen=True, slots=True)
class Mode:
    """A precision mode (Rule S3.1).

    ``action``: ``lists`` follow the lists; ``force`` lower all that can be; ``origin`` change
    nothing; ``raise`` bring low nodes up to float32; ``cube`` lower MatMul, Gemm, Conv and
    ConvTranspose only. ``low`` is the low type; under ``origin`` and ``raise`` it says which type
    counts as low in messages (float16).
    """

    name: str
    action: Action
    low: Literal["float16", "bfloat16"] = "float16"


@dataclass(frozen=True, slots=True)
class NodeRule:
    """One line of a keep_dtype or customize_dtypes file (Rules S6.1 and S6.2).

    ``by`` tells whether ``pattern`` is a node name (``*`` and ``?`` as in a shell, ``scope/name``
    narrows) or an op type. ``keep`` keeps the authored type; else ``inputs`` and ``outputs`` hold a
    dtype name per slot, None for a blank entry (any).
    """

    by: Literal["name", "type"]
    pattern: str
    keep: bool
    place: FilePlace
    inputs: tuple[str | None, ...] = ()
    outputs: tuple[str | None, ...] = ()

    def __hash__(self) -> int:
        return hash(self.pattern)  # Python keeps the hash of a str, and a search looks up the same rules all the time


@dataclass(frozen=True, repr=False)
class Policy:
    """Everything that decides precisions, without a model: ``load_policy`` returns it, and ``resolve`` obeys it.

    ``rules`` stand in order of precedence: customize_dtypes by name, then by type, then keep_dtype.
    ``protect`` names what no list makes low precision (Rule S4.34).
    ``digest`` identifies the policy's meaning (not its file names) and the ``RULE_SET`` that reads it: two policies
    that decide alike from the same texts have the same digest on every machine.
    """

    mode: Mode
    lists: Lists
    rules: tuple[NodeRule, ...] = ()
    gray_policy: GrayPolicy = "ascend"
    constants: Constants = "keep"
    protect: frozenset[Protection] = frozenset()
    op_names: Literal["auto", "onnx", "ascend"] = "auto"
    space: NameSpace = "onnx"  # the name space the lists are read in, found out when op_names is auto
    digest: str = ""
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        counts = f"edits {len(self.lists.moves)}, node rules {len(self.rules)}, warnings {len(self.warnings)}"
        protect = ",".join(sorted(self.protect)) or "none"
        settings = f"{self.gray_policy}, {self.constants}, protect {protect}"
        return f"<Policy {self.mode.name} of {self.lists.library.name!r}: {settings}; {counts}>"


def require_policy(argument: object) -> None:
    """Raise TypeError, with what to pass, if an argument is not a Policy."""
    if not isinstance(argument, Policy):
        given = repr(argument) if isinstance(argument, str | os.PathLike) else f"a {type(argument).__name__}"
        raise TypeError(f"policy is {given}: pass a Policy, such as mixlist.load_policy(mixlist='modify.json')")
