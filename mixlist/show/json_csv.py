"""Write results for other programs, as JSON or CSV, without characters that a terminal would take for commands."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from mixlist.show.terminal import escape_commands

# A terminal or GitHub's runner may take these for commands. In JSON they occur only inside strings. The control
# characters below U+0020 are missing here, because ``json`` escapes them. GitHub's ``::`` is a command only at the
# beginning of a line, and no line of the JSON begins so.
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?(e[-+]?\d+)?|inf|nan)", re.ASCII)
_COMMAND_CHARACTERS = re.compile("[\x7f-\x9f\u2028\u2029]|(?<=#)#(?=\\[)")


def write_json(result: Mapping[str, object], stream: TextIO) -> None:
    """Write the object as JSON, with ASCII escapes if the encoding of the stream is not UTF-8.

    Each object in a top-level array is one line, so that ``grep`` works on a large plan.
    """
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


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], stream: TextIO) -> None:
    """Write a header and a row for each record, with ``\\n`` line ends. Names are escaped as in text output.

    Spreadsheets compute cells such as ``=1+1``: a ``'`` before a name that begins like a formula makes it a text.
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_as_cell(escape_commands(cell)) for cell in row] for row in rows)


def _as_cell(text: str) -> str:
    # A number, such as -0.5 or +inf, and the dash of an empty cell are no formulas.
    if text.startswith(("=", "+", "-", "@")) and text != "-" and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text
