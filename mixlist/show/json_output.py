"""Write JSON results. Each object in a top-level array is one line, so that ``grep`` works on a large plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TextIO

from mixlist.diagnostics import count_codes

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic
    from mixlist.lists.corrections import Correction
    from mixlist.lists.validate_file import FileReport


# A terminal or GitHub's runner may take these for commands. In JSON they occur only inside strings. The control
# characters below U+0020 are missing here, because ``json`` escapes them. GitHub's ``::`` is a command only at the
# beginning of a line, and no line of the JSON begins so.
_COMMAND_CHARACTERS = re.compile("[\x7f-\x9f\u2028\u2029]|(?<=#)#(?=\\[)")


def write_json(result: Mapping[str, object], stream: TextIO) -> None:
    """Write the object and a newline, with ASCII escapes if the encoding of the stream is not UTF-8."""
    # Escapes keep the JSON valid where the encoding of the stream lacks a character.
    ascii_only = (stream.encoding or "utf-8").lower().replace("-", "") != "utf8"
    stream.writelines(map(escaped_json, _pieces(result, ascii_only)))


def escaped_json(text: str) -> str:
    """Escape the characters of a JSON text that a terminal or a CI runner would read as a command; keep its meaning."""
    return _COMMAND_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _pieces(result: Mapping[str, object], ascii_only: bool) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=ascii_only).encode
    yield "{"
    for position, (key, value) in enumerate(result.items()):
        yield f"{',' if position else ''}\n {encode(key)}: "
        # An array of objects, such as ``nodes``, has one line for each object. Any other value is on the line of its
        # key.
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield "[\n  "
            yield ",\n  ".join(map(encode, value))
            yield "\n ]"
        else:
            yield encode(value)
    yield "\n}\n"


def validation_json(
    reports: Iterable[FileReport], skipped: Iterable[str], corrections: Iterable[Correction], known_count: int | None
) -> dict[str, object]:
    """Return the ``mixlist.validate/1`` object of schemas/validate.json. A missing line, column or hint is null.

    ``known_count`` is the number of findings in the baseline, None without one.
    """
    keys = ("code", "severity", "message", "line", "column", "hint")
    files = [
        {
            "path": file.path,
            "kind": file.kind,
            "findings": [{key: getattr(f, key) for key in keys} for f in file.findings],
        }
        for report in reports
        for file in report.by_file()
    ]
    corrected = [
        {"code": c.finding.code, "path": c.finding.path, "line": c.finding.line, "count": c.count, "message": c.message}
        for c in corrections
    ]
    in_baseline = {} if known_count is None else {"in_baseline": known_count}
    return {
        "format": "mixlist.validate/1",
        "files": files,
        "skipped": list(skipped),
        "corrected": corrected,
        **in_baseline,
    }


def statistics_json(findings: Iterable[Diagnostic]) -> list[dict[str, object]]:
    """Return the number of findings of each code and severity, the most frequent first."""
    return [{"code": code, "severity": severity, "count": count} for (code, severity), count in count_codes(findings)]
