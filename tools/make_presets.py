"""Write the built-in libraries and their index.

    python tools/make_presets.py [ROOT]

Writes ROOT/sample_lists/presets/*.json and ROOT/mixlist/lists/data/presets.json; ROOT is the checkout by
default. Everything comes from tools/data/ and from mixlist/lists/data/onnx_ops.json (tools/make_names.py),
so the result is the same everywhere.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
NAMES = ROOT / "mixlist" / "lists" / "data" / "onnx_ops.json"

ASCEND = {
    "ascend910b": "Ascend 910B (Atlas A2)",
    "ascend910_93": "Ascend 910_93 (Atlas A3)",
    "ascend910": "Ascend 910 (Atlas training series)",
    "ascend310p": "Ascend 310P (Atlas inference series)",
    "ascend310b": "Ascend 310B (Atlas 200I/500 A2)",
    "ascend310": "Ascend 310 (Atlas 200/300/500)",
}
FLAG = {"white": "true", "black": "false"}


def groups() -> list[dict[str, Any]]:
    """The groups of onnx_groups.toml, with ``ops`` as lists; every known op type is in exactly one."""
    found = tomllib.loads((HERE / "data" / "onnx_groups.toml").read_text("utf-8"))["group"]
    found = [{**group, "ops": group["ops"].split()} for group in found]
    grouped = [op for group in found for op in group["ops"]]
    domains = json.loads(NAMES.read_text("utf-8"))["domains"]
    known = {op for ops in domains.values() for op in ops}
    if sorted(grouped) != sorted(known):
        twice = {op for op in grouped if grouped.count(op) > 1}
        raise SystemExit(f"onnx_groups.toml: missing {known - set(grouped)}, unknown {set(grouped) - known}, {twice=}")
    return found


def entry(on: str, reason: str | None = None) -> dict[str, Any]:
    """One op's entry in an ops-info file: no precision_reduce means gray."""
    flag = {"precision_reduce": {"flag": FLAG[on]}} if on in FLAG else {}
    return {**flag, "reason": reason} if reason else flag


def onnx_library() -> dict[str, Any]:
    """The default library, in ONNX names."""
    return {op: entry(group["list"], group["reason"]) for group in groups() for op in group["ops"]}


def ascend_library(soc: str) -> dict[str, Any]:
    """One chip's library, in Ascend names."""
    flags = json.loads((HERE / "data" / "ascend_flags.json").read_text("utf-8"))["soc"][soc]
    lists = {"white": flags["true"], "black": flags["false"], "gray": flags["absent"]}
    return {op: entry(on) for on, ops in lists.items() for op in ops}


def framework_library(preset: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The library after another framework, and its clear list."""
    kinds = {group["kind"]: group["ops"] for group in groups()}
    library: dict[str, Any] = {}
    clear: list[str] = []
    for rule in preset["entry"]:
        ops = [op for kind in rule.get("kinds", ()) for op in kinds[kind]] + rule.get("ops", "").split()
        for op in ops:
            library.setdefault(op, entry(rule["list"], rule["reason"]))
            clear += [op] if rule.get("clear") else []
    unknown = set(library) - {op for ops in kinds.values() for op in ops}
    if unknown:
        raise SystemExit(f"frameworks.toml, {preset['name']}: no such op types: {sorted(unknown)}")
    for ops in kinds.values():
        for op in ops:
            library.setdefault(op, entry(preset["rest"], preset["rest_reason"]))
    return library, sorted(clear)


def libraries() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every library as (its entry in the index, its content)."""
    names = json.loads(NAMES.read_text("utf-8"))
    versions = f"onnx {names['onnx']} and onnxruntime {names['onnxruntime']}"
    yield (
        {
            "name": "onnx",
            "title": "every op type of ONNX and ONNX Runtime, sorted by what it does to numbers (the default)",
            "origin": f"mixlist 0.1, for the operators of {versions}; each entry gives its reason",
            "space": "onnx",
            "clear": [],
        },
        onnx_library(),
    )
    for soc, title in ASCEND.items():
        about = {
            "name": soc,
            "title": f"{title}: the chip's own operator library",
            "origin": f"CANN 8.1.RC1, aic-{soc}-ops-info.json (the precision_reduce flags)",
            "space": "ascend",
            "clear": [],
        }
        yield about, ascend_library(soc)
    for preset in tomllib.loads((HERE / "data" / "frameworks.toml").read_text("utf-8"))["preset"]:
        library, clear = framework_library(preset)
        about = {key: preset[key] for key in ("name", "title", "origin")}
        yield {**about, "space": "onnx", "clear": clear}, library


def library_text(library: dict[str, Any]) -> str:
    """JSON with one op per line, sorted by name, so that a change reads well in a diff."""
    lines = [f"  {json.dumps(op)}: {json.dumps(library[op], ensure_ascii=False)}" for op in sorted(library)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(root: Path = ROOT) -> None:
    """Write the libraries and their index below ``root``."""
    home = root / "sample_lists" / "presets"
    home.mkdir(parents=True, exist_ok=True)
    index = []
    for about, library in libraries():
        (home / f"{about['name']}.json").write_text(library_text(library), "utf-8")
        index.append({"name": about["name"], "file": f"presets/{about['name']}.json", **about})
    data = root / "mixlist" / "lists" / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "presets.json").write_text(json.dumps({"presets": index}, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(*(Path(arg) for arg in sys.argv[1:2]))
