"""The op types that exist in each name space, and the guess of a library's name space (Rule S5.1).

The names are data files that tools/make_names.py writes, so that this folder does not import onnx.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from mixlist.lists.library import NameSpace

# The name spaces as messages write them.
SPACE_TITLES = {"onnx": "ONNX", "ascend": "Ascend"}
_DATA = Path(__file__).parent / "data"


@cache
def onnx_domains() -> Mapping[str, frozenset[str]]:
    """Return the op types of each ONNX domain, in all opset versions, deprecated ones too.

    The standard domain is "".
    """
    data = json.loads((_DATA / "onnx_ops.json").read_text("utf-8"))
    return {domain: frozenset(names) for domain, names in data["domains"].items()}


@cache
def onnx_ops() -> frozenset[str]:
    """Return the op types of all ONNX domains without their domain: a name in a list means all domains."""
    return frozenset().union(*onnx_domains().values())


@cache
def ascend_ops() -> frozenset[str]:
    """Return the op types of the six Ascend libraries that come with mixlist."""
    return frozenset(json.loads((_DATA / "ascend_ops.json").read_text("utf-8"))["ops"])


def canonical_domain(name: str) -> str:
    """Return "" for ``ai.onnx``, and any other domain as it is: the standard domain has both spellings."""
    return "" if is_standard_domain(name) else name


def is_standard_domain(name: str) -> bool:
    """Return whether a domain is the standard one, in either spelling."""
    return name in ("", "ai.onnx")


def is_known(name: str, space: NameSpace) -> bool:
    """Return True if an op type of that name exists. The ONNX name ``domain::Op`` is searched in its domain."""
    if space == "ascend":
        return name in ascend_ops()
    domain, separator, op = name.rpartition("::")
    if not separator:
        return name in onnx_ops()
    return op in onnx_domains().get(canonical_domain(domain), ())


def is_known_elsewhere(name: str, space: NameSpace) -> bool:
    """Return True if the name exists in the other name space only."""
    return not is_known(name, space) and is_known(name, "onnx" if space == "ascend" else "ascend")


def guess_space(ops: Iterable[str]) -> tuple[NameSpace, str]:
    """Return the name space that has more of the op types, and the reason for doubt; "" if the result is certain.

    A tie gives ONNX.
    """
    ops = list(ops)
    onnx = {op for op in ops if is_known(op, "onnx")}
    ascend = {op for op in ops if is_known(op, "ascend")}
    space: NameSpace = "ascend" if len(ascend) > len(onnx) else "onnx"
    # A tie: the reason names the counts.
    if len(onnx) == len(ascend):
        if not onnx:
            # A library without op types is no reason for doubt: ML207 reports it already.
            return space, "none of its op types exists in ONNX or in the Ascend libraries" if ops else ""
        return space, f"{len(onnx)} of its {len(ops)} op types exist in ONNX, and as many in the Ascend libraries"
    # Only names that exist in one of the two name spaces are evidence. Names that exist in both show nothing.
    only_onnx, only_ascend = onnx - ascend, ascend - onnx
    supporting, contradicting = (only_ascend, only_onnx) if space == "ascend" else (only_onnx, only_ascend)
    if not contradicting:
        return space, ""
    other_space = "onnx" if space == "ascend" else "ascend"
    examples = ", ".join(sorted(contradicting)[:3])
    return space, (
        f"{len(supporting)} of its op types exist only in {SPACE_TITLES[space]},"
        f" but {len(contradicting)} only in {SPACE_TITLES[other_space]}, such as {examples}"
    )
