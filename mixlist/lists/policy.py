"""The policy: everything that decides the precision of nodes, apart from the model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal, get_args

from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.lists.library import Lists, NameSpace

GrayPolicy = Literal["ascend", "between", "promote"]
GRAY_POLICIES: tuple[GrayPolicy, ...] = get_args(GrayPolicy)
Constants = Literal["keep", "ieee", "clamp"]
Protection = Literal["masks", "positions", "quantized"]
Action = Literal["lists", "force", "origin", "raise", "cube"]
# The actions that make nodes low precision; only these need protections.
LOWERING_ACTIONS: tuple[Action, ...] = ("lists", "force", "cube")

# The version of the rules in docs/semantics.md that decide a precision. Raise it by one in each release in which a rule
# changes the decision for a node. It is part of the digest of a policy, so that a model or a search state that was
# written under other rules is recognized (Rule S7.11).
RULE_SET = 2


@dataclass(frozen=True, slots=True)
class Mode:
    """A precision mode (Rule S3.1).

    ``action``:

    - ``lists``: the lists decide;
    - ``force``: every node that can be low precision is;
    - ``origin``: no node changes;
    - ``raise``: nodes in low precision become float32;
    - ``cube``: only MatMul, Gemm, Conv and ConvTranspose become low precision (an Ascend chip computes them in its
      cube unit).

    ``low`` is the low type. With ``origin`` and ``raise``, only messages use it.
    """

    name: str
    action: Action
    low: Literal["float16", "bfloat16"] = "float16"


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
    """

    mode: Mode
    lists: Lists
    rules: tuple[NodeRule, ...] = ()
    gray_policy: GrayPolicy = "ascend"
    constants: Constants = "keep"
    protect: frozenset[Protection] = frozenset()
    op_names: Literal["auto", "onnx", "ascend"] = "auto"
    space: NameSpace = "onnx"
    digest: str = ""
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        counts = f"edits {len(self.lists.moves)}, node rules {len(self.rules)}, warnings {len(self.warnings)}"
        protect = ",".join(sorted(self.protect)) or "none"
        settings = f"{self.gray_policy}, {self.constants}, protect {protect}"
        return f"<Policy {self.mode.name} of {self.lists.library.name!r}: {settings}; {counts}>"


def require_policy(argument: object) -> None:
    """Raise TypeError if an argument is not a Policy. The message says what to pass."""
    if not isinstance(argument, Policy):
        shown = repr(argument) if isinstance(argument, str | os.PathLike) else f"a {type(argument).__name__}"
        raise TypeError(f"policy is {shown}: pass a Policy, such as mixlist.load_policy(mixlist='modify.json')")
