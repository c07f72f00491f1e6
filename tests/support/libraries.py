"""Operator information libraries of several files, to be edited, killed and edited again."""

from __future__ import annotations

import json
from pathlib import Path

OPS = ["Add", "Conv2D", "Exp", "MatMulV2", "Relu", "SoftmaxV2"]


def library_text(ops: dict[str, str]) -> str:
    """Return a library file in which each op type has a flag."""
    entries = {op: {"input0": {"name": "x"}, "precision_reduce": {"flag": flag}} for op, flag in ops.items()}
    return json.dumps(entries, indent=4) + "\n"


def write_library(folder: Path, flag: str = "true", files: int = 6) -> None:
    """Write a library of several files, each of which holds the same op types and one of its own."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        ops = dict.fromkeys(OPS, flag) | {f"Own{number}": "false"}
        (folder / f"part{number}.json").write_text(library_text(ops))


def flags(folder: Path) -> list[dict[str, str]]:
    """Return the flag of each op type in each file of a library."""
    return [
        {op: entry["precision_reduce"]["flag"] for op, entry in json.loads(path.read_text()).items()}
        for path in sorted(folder.glob("*.json"))
    ]
