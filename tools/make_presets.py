"""Write the built-in libraries and their index.

    python tools/make_presets.py [ROOT]

Writes ROOT/sample_lists/presets/*.json and ROOT/mixlist/lists/data/presets.json; ROOT is the checkout by default. The
input is tools/data/ and mixlist/lists/data/onnx_ops.json (tools/make_names.py), not the installed packages, so the
result is the same on every machine.
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
    "ascend950": "Ascend 950PR and 950DT",
}
NEWER = "hicann/ops-nn and ops-math, August 2026"
FLAG = {"white": "true", "black": "false"}


def groups() -> list[dict[str, Any]]:
    """Return the groups of onnx_groups.toml, with ``ops`` as lists.

    Exit with an error unless every op type is in exactly one group.
    """
    tables = tomllib.loads((HERE / "data" / "onnx_groups.toml").read_text("utf-8"))["group"]
    all_groups = [{**group, "ops": group["ops"].split()} for group in tables]
    grouped = [op for group in all_groups for op in group["ops"] if not op.startswith("aten::")]
    domains = json.loads(NAMES.read_text("utf-8"))["domains"]
    op_types = {op for ops in domains.values() for op in ops}
    if sorted(grouped) != sorted(op_types):
        twice = {op for op in grouped if grouped.count(op) > 1}
        raise SystemExit(
            f"onnx_groups.toml: missing {op_types - set(grouped)}, unknown {set(grouped) - op_types}, {twice=}"
        )
    return all_groups


def entry(list_name: str, reason: str | None = None) -> dict[str, Any]:
    """Return one op's entry of an ops-info file. An entry without precision_reduce is gray."""
    flag = {"precision_reduce": {"flag": FLAG[list_name]}} if list_name in FLAG else {}
    return {**flag, "reason": reason} if reason else flag


def onnx_library() -> dict[str, Any]:
    """Return the default library, in ONNX names."""
    return {op: entry(group["list"], group["reason"]) for group in groups() for op in group["ops"]}


def ascend_library(soc: str) -> dict[str, Any]:
    """Return one chip's library, in Ascend names. A flag that is newer than the installed file has a reason."""
    facts = json.loads((HERE / "data" / "ascend_flags.json").read_text("utf-8"))
    flags = facts["soc"][soc]
    lists = {"white": flags["true"], "black": flags["false"], "gray": flags["absent"]}
    newer = facts["newer"]["true"] if soc in facts["newer"]["soc"] else []
    reason = f"{NEWER}: the source has this flag, CANN 8.1.RC1 has none"
    return {op: entry(list_name, reason if op in newer else None) for list_name, ops in lists.items() for op in ops}


def ascend_entry(soc: str, title: str) -> dict[str, Any]:
    """Return the entry of a chip in the index."""
    origin = f"CANN 8.1.RC1, aic-{soc}-ops-info.json (the precision_reduce flags)"
    if soc in ("ascend910b", "ascend910_93"):
        origin += f"; four newer flags of {NEWER}"
    title = f"{title}: the chip's own operator library"
    if soc == "ascend950":
        title += ", from source, not from an installed file"
        origin = "hicann/ops-nn, ops-math and ops-cv, August 2026, the configurations of ascend950"
    return {"name": soc, "title": title, "origin": origin, "space": "ascend", "clear": []}


def framework_library(preset: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the library that follows another framework, and its clear list.

    The first rule that names an op type decides; ``rest`` is the list of op types that no rule names.
    """
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
    """Yield every library as its entry in the index and its content."""
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
        yield ascend_entry(soc, title), ascend_library(soc)
    for preset in tomllib.loads((HERE / "data" / "frameworks.toml").read_text("utf-8"))["preset"]:
        library, clear = framework_library(preset)
        index_entry = {key: preset[key] for key in ("name", "title", "origin")}
        yield {**index_entry, "space": "onnx", "clear": clear}, library


def library_text(library: dict[str, Any]) -> str:
    """Return JSON with one op per line, sorted by name, so that a change is easy to read in a diff."""
    lines = [f"  {json.dumps(op)}: {json.dumps(library[op], ensure_ascii=False)}" for op in sorted(library)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(root: Path = ROOT) -> None:
    """Write the libraries and their index below ``root``."""
    home = root / "sample_lists" / "presets"
    home.mkdir(parents=True, exist_ok=True)
    index = []
    for index_entry, library in libraries():
        (home / f"{index_entry['name']}.json").write_text(library_text(library), "utf-8")
        index.append({"name": index_entry["name"], "file": f"presets/{index_entry['name']}.json", **index_entry})
    data = root / "mixlist" / "lists" / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "presets.json").write_text(json.dumps({"presets": index}, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(*(Path(arg) for arg in sys.argv[1:2]))
