"""The op type names that exist, per name space, and which space a library is written in (Rule S5.1).

The names are data, written by tools/make_names.py: no onnx has to be imported to know them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from mixlist.lists.library import NameSpace

TITLE = {"onnx": "ONNX", "ascend": "Ascend"}  # of a name space
_DATA = Path(__file__).parent / "data"


@cache
def onnx_domains() -> Mapping[str, frozenset[str]]:
    """Op types by ONNX domain ("" is the standard one), every version and deprecated ones included."""
    data = json.loads((_DATA / "onnx_ops.json").read_text("utf-8"))
    return {domain: frozenset(names) for domain, names in data["domains"].items()}


@cache
def onnx_ops() -> frozenset[str]:
    """Op types of all ONNX domains, without their domain: list names match any domain."""
    return frozenset().union(*onnx_domains().values())


@cache
def ascend_ops() -> frozenset[str]:
    """Op types of the six Ascend libraries that ship with mixlist."""
    return frozenset(json.loads((_DATA / "ascend_ops.json").read_text("utf-8"))["ops"])


def is_known(name: str, space: NameSpace) -> bool:
    """Return True if an op type of that name exists; in ONNX names ``domain::Op`` is looked up in its domain."""
    if space == "ascend":
        return name in ascend_ops()
    domain, mark, op = name.rpartition("::")
    if not mark:
        return name in onnx_ops()
    return op in onnx_domains().get("" if domain == "ai.onnx" else domain, ())


def guess_space(names: Iterable[str]) -> tuple[NameSpace, str]:
    """Return the space that knows more of the names, and why it could be the other one ("" if nothing speaks for it).

    A tie is ONNX.
    """
    names = list(names)
    onnx = {name for name in names if is_known(name, "onnx")}
    ascend = {name for name in names if is_known(name, "ascend")}
    space: NameSpace = "ascend" if len(ascend) > len(onnx) else "onnx"
    if len(onnx) == len(ascend):
        count = "none" if not onnx else f"{len(onnx)} of {len(names)}"
        return space, f"{count} of its names are known as ONNX and as many as Ascend op types" if names else ""
    winner, loser = (ascend - onnx, onnx - ascend) if space == "ascend" else (onnx - ascend, ascend - onnx)
    if not loser:
        return space, ""
    few = ", ".join(sorted(loser)[:3])
    return space, f"{len(winner)} of its names are only {TITLE[space]}'s, but {len(loser)} are not ({few}, ...)"
