"""Insert and remove members of JSON objects; every other character of the text stays.

``insert_member`` and ``remove_member`` do not change the text: they return each change as a ``Replacement``, a range of
the text and its new text, for ``apply_replacements``. An inserted member has the white space of the members around it:
before the key, around the colon, and inside the braces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mixlist.files.json_scanner import Replacement as Replacement
from mixlist.files.json_scanner import apply_replacements as apply_replacements
from mixlist.files.json_scanner import skip_blanks
from mixlist.files.jsonc import Document

# Group 1 is a comment. Comments come first, so that a comma inside a comment is no match of its own.
_COMMENT_OR_COMMA = re.compile(r"(//[^\r\n]*+|/\*(?s:.*?)\*/)|,")
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """The white space of an object: after its ``{``, before and after a colon, and before its ``}``.

    ``colon`` contains the colon itself.

    Example: ``{ "a": 1 }`` has the layout ``(" ", ": ", " ")``.
    """

    opening: str = ""
    colon: str = ": "
    closing: str = ""

    def nested(self) -> ObjectLayout:
        """Return the layout of an object inside an object of this layout: one level of indentation deeper."""
        if "\n" not in self.opening:
            return self
        # The indentation of one level is the difference between the line of a member and that of the closing brace.
        indentation = self.opening.removeprefix(self.closing)
        return ObjectLayout(self.opening + indentation, self.colon, self.opening)


def layout_of(document: Document, offset: int) -> ObjectLayout | None:
    """Return the layout of the object that starts at ``offset``; None if the object is empty."""
    members = list(document.members(offset).values())
    if not members:
        return None
    strict_text, first = document.strict_text, members[0]
    # Search backward from the value: the key can hold a colon or an escaped quote.
    key_end = strict_text.rindex('"', 0, strict_text.rindex(":", 0, first.value)) + 1
    return ObjectLayout(
        _blanks_before(document.text, first.key),
        strict_text[key_end : first.value],
        _blanks_before(document.text, _closing_brace(document, members[-1].end)),
    )


def insert_member(document: Document, offset: int, key: str, value: str, layout: ObjectLayout) -> Replacement:
    """Return the replacement that appends a member to the object that starts at ``offset``.

    ``layout`` is used if the object is empty. ``value`` is the JSON text of the value.
    """
    members = list(document.members(offset).values())
    if not members:
        text = f'{layout.opening}"{key}"{layout.colon}{value}{layout.closing}'
        return Replacement(offset + 1, _closing_brace(document, offset + 1), text)
    # layout_of() returns None only for an empty object, so ``or layout`` is for the type checker.
    own_layout = layout_of(document, offset) or layout
    # The new member begins like the last one: on a line of its own, or after one blank.
    separator = _blanks_before(document.text, members[-1].key)
    if len(members) == 1 and "\n" not in separator:
        # An object on one line with one member has no comma yet: put a blank after the comma if the colon has one.
        separator = " " if own_layout.colon.endswith(" ") else ""
    return Replacement(members[-1].end, members[-1].end, f',{separator}"{key}"{own_layout.colon}{value}')


def remove_member(document: Document, offset: int, key: str) -> list[Replacement]:
    """Return the replacements that remove a member, and one comma, from the object that starts at ``offset``.

    Comments before and after the member stay. Commas are searched in ``document.strict_text``, where comments and
    trailing commas are blank, so that a comma inside a comment is not found.
    """
    members = document.members(offset)
    order = list(members)
    member, index = members[key], order.index(key)
    text, strict_text = document.text, document.strict_text
    start = member.key - len(_blanks_before(text, member.key))
    after = skip_blanks(text, member.end)
    # The last of several members, with a trailing comma: the comma before the member becomes the trailing comma.
    # {"a": 1, "b": 2,} without b -> {"a": 1,}
    if index == len(order) - 1 > 0 and text[after] == ",":
        return [Replacement(start, after + 1, "")]
    # Not the first member: remove the comma before it.
    # {"a": 1, "b": 2} without b -> {"a": 1}
    if index > 0:
        comma = strict_text.index(",", members[order[index - 1]].end)
        return [Replacement(comma, comma + 1, ""), Replacement(start, member.end, "")]
    # The first of several members: remove the comma after it.
    # {"a": 1, "b": 2} without a -> {"b": 2}
    if len(order) > 1:
        comma = strict_text.index(",", member.end)
        return [Replacement(member.key, member.end, ""), Replacement(comma, skip_blanks(text, comma + 1), "")]
    # The only member: keep the comments around it with their own commas, and remove a trailing comma.
    # {"a": 1, /* text */} without a -> { /* text */}
    end = _closing_brace(document, member.end)
    remaining = text[offset + 1 : member.key] + _COMMENT_OR_COMMA.sub(r"\1", text[member.end : end])
    return [Replacement(offset + 1, end, remaining if remaining.strip(_BLANKS) else "")]


def _closing_brace(document: Document, offset: int) -> int:
    """Return the offset of an object's closing brace. ``offset`` is the end of its last member or of its ``{``."""
    return skip_blanks(document.strict_text, offset)


def _blanks_before(text: str, offset: int) -> str:
    start = offset
    while start and text[start - 1] in _BLANKS:
        start -= 1
    return text[start:offset]
