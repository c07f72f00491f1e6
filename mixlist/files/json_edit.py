"""Changes to a JSON text that leave every other byte alone.

A change is a ``Cut``: a stretch of the text and what takes its place. Inserted members look like
their neighbours: the same white space before the key, around the colon and inside brackets.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.files.json_scanner import Cut as Cut
from mixlist.files.json_scanner import after_blank
from mixlist.files.json_scanner import apply as apply
from mixlist.files.jsonc import Document

_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Style:
    """White space inside the braces of an object: after ``{``, around the colon, before ``}``."""

    first: str = ""
    colon: str = ": "
    last: str = ""

    def deeper(self) -> Style:
        """The same, one level further in."""
        if "\n" not in self.first:
            return self
        return Style(self.first + self.first.removeprefix(self.last), self.colon, self.first)


def style_of(document: Document, at: int) -> Style | None:
    """Return the layout of the object that starts at ``at``; None for an empty one."""
    members = list(document.members(at).values())
    if not members:
        return None
    clean, first = document.clean, members[0]
    key_end = clean.rindex('"', 0, clean.rindex(":", 0, first.value)) + 1
    return Style(
        _blank_before(document.text, first.key),
        clean[key_end : first.value],
        _blank_before(document.text, _closing(document, members[-1].end)),
    )


def insert(document: Document, at: int, key: str, value: str, style: Style) -> Cut:
    """Append a member to the object that starts at ``at``; ``style`` serves where it is empty."""
    members = list(document.members(at).values())
    if not members:
        return Cut(at + 1, _closing(document, at + 1), f'{style.first}"{key}"{style.colon}{value}{style.last}')
    own = style_of(document, at) or style
    between = _blank_before(document.text, members[-1].key)
    if len(members) == 1 and "\n" not in between:  # one line: a blank after the comma if after the colon
        between = " " if own.colon.endswith(" ") else ""
    return Cut(members[-1].end, members[-1].end, f',{between}"{key}"{own.colon}{value}')


def remove(document: Document, at: int, key: str) -> list[Cut]:
    """Take a member out of the object that starts at ``at``, with the comma that it no longer needs."""
    members = document.members(at)
    order = list(members)
    member, index = members[key], order.index(key)
    text, clean = document.text, document.clean
    start = member.key - len(_blank_before(text, member.key))
    after = after_blank(text, member.end)
    if index == len(order) - 1 > 0 and text[after] == ",":  # a trailing comma: then the one before it stays
        return [Cut(start, after + 1, "")]
    if index > 0:
        comma = clean.index(",", members[order[index - 1]].end)
        return [Cut(comma, comma + 1, ""), Cut(start, member.end, "")]
    if len(order) > 1:
        comma = clean.index(",", member.end)
        return [Cut(member.key, member.end, ""), Cut(comma, after_blank(text, comma + 1), "")]
    end = _closing(document, member.end)
    left = text[at + 1 : member.key] + text[member.end : end].replace(",", "", 1)
    return [Cut(at + 1, end, left if left.strip(_BLANK) else "")]


def _closing(document: Document, at: int) -> int:
    """The offset of the brace that closes an object, from behind its last member (or its opening brace)."""
    return after_blank(document.clean, at)


def _blank_before(text: str, at: int) -> str:
    start = at
    while start and text[start - 1] in _BLANK:
        start -= 1
    return text[start:at]
