"""JSON results: one line per element of a top-level array, so that a large plan stays greppable and quick to write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from mixlist.diagnostics import Diagnostic


def write_json(result: Mapping[str, object], stream: TextIO) -> None:
    """Writes the object and a newline, in UTF-8 where the stream has it, else in ASCII escapes."""
    ascii_only = (stream.encoding or "utf-8").lower().replace("-", "") != "utf8"
    for piece in _pieces(result, ascii_only):
        stream.write(piece)


def _pieces(result: Mapping[str, object], ascii_only: bool) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=ascii_only).encode
    yield "{"
    for at, (key, value) in enumerate(result.items()):
        yield f"{',' if at else ''}\n {encode(key)}: "
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield "[\n  " + encode(value[0])
            for element in value[1:]:
                yield ",\n  " + encode(element)
            yield "\n ]"
        else:
            yield encode(value)
    yield "\n}\n"


def finding_json(finding: Diagnostic) -> dict[str, object]:
    """Return a finding as schemas/validate.json has it; null where it has no place or hint."""
    return {name: getattr(finding, name) for name in ("code", "severity", "message", "line", "column", "hint")}


def validation_json(files: Iterable[tuple[str, str, Iterable[Diagnostic]]]) -> dict[str, object]:
    """``mixlist.validate/1`` from (path, kind, findings) of each file."""
    return {
        "format": "mixlist.validate/1",
        "files": [
            {"path": path, "kind": kind, "findings": [finding_json(f) for f in findings]}
            for path, kind, findings in files
        ],
    }
