"""Render a Document as an HTML page: one file that contains its styles, script and pictures, and fetches nothing.

The templates escape the names of nodes and tensors, control characters included. A content security policy allows only
the page's own script, and the script of the page that a frame shows: a frame has the policy of the page around it, too.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.diagnostics import first_of_each_kind
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.package_data import PACKAGE
from mixlist.number_text import pluralize
from mixlist.show.document import (
    MAX_FOLDED_ROWS,
    MAX_OPEN_ROWS,
    Block,
    Cell,
    Column,
    Document,
    Frame,
    Level,
    Mark,
    Picture,
    Search,
    Table,
    Text,
    cell_text,
)
from mixlist.show.terminal import escape_commands
from mixlist.version import __version__

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

    from mixlist.diagnostics import Diagnostic

TEMPLATES: Path = PACKAGE / "show" / "templates"
_OPTION = re.compile(r"--[a-z][a-z0-9-]{1,30}|(?<!\S)-[a-z]\b")
_SIGNS: dict[Level, str] = {"passing": "✓", "failing": "✕", "warning": "!", "note": ""}
# Links to the sections are at the top of a page that has at least this number of them.
_MIN_LINKS = 2
# The number of lines of a file that a page shows unfolded.
_MAX_OPEN_LINES = 40
# The numbers of records that a page shows: those that are not folded, and all.
_MAX_OPEN_RECORDS = 5
_MAX_RECORDS = 100
# A cell with at most this number of characters is not broken into lines. A longer one than the second number is below
# the title of its column on a phone.
_SHORT_CELL, _LONG_CELL = 20, 30


def render_document(document: Document) -> str:
    """Return the page of a report."""
    sections = [
        (section, [block for block in section.blocks if block.on != "terminal" and not _is_empty(block)])
        for section in document.sections
    ]
    sections = [(section, blocks) for section, blocks in sections if blocks]
    lists = [
        _list_data(block, block.search)
        for _, blocks in sections
        for block in blocks
        if isinstance(block, Table) and block.search is not None
    ]
    frame_scripts = [block.code for _, blocks in sections for block in blocks if isinstance(block, Frame)]
    verdict = document.verdict
    assert verdict is not None
    links = {"next": "What to do next"} if document.steps else {}
    links |= {section.id: section.title for section, _ in sections if section.title}
    values = {
        "document": document,
        "verdict": verdict,
        "sections": sections,
        "links": links if len(links) >= _MIN_LINKS else {},
        "first_section": next(iter(links.items())),
        "lists": lists,
    }
    title = f"{verdict.word}: {verdict.subject} – mixlist {document.command}"
    has_commands = any(step.command for step in document.steps)
    code = (_read("copy.js") if has_commands else "") + (_read("lists.js") if lists else "")
    return render_page("document.html", title, document.warnings, values, code=code, frame_scripts=frame_scripts)


def _is_empty(block: Block) -> bool:
    return (isinstance(block, Table) and not block.rows) or (isinstance(block, Text) and not block.lines)


def _list_data(table: Table, search: Search) -> dict[str, object]:
    """Return what lists.js needs to draw the rows of a table, as JSON. The texts are escaped, but not for HTML."""
    rows = []
    for cells, row in zip(table.rows, search.rows, strict=True):
        entry: dict[str, object] = {"cells": list(map(_cell_data, cells))}
        # Most rows have few of these, and a page can have very many rows.
        entry |= {"group": row.group} if row.group else {}
        entry |= {"filters": row.filters} if row.filters else {}
        entry |= {"size": row.size} if row.size is not None else {}
        entry |= {"words": escape_commands(row.words)} if row.words else {}
        rows.append(entry)
    columns = [
        {"title": escape_commands(column.title), "style": column.style, "guides": [place for place, _ in column.guides]}
        for column in table.columns
    ]
    return {"id": search.id, "noun": search.noun, "columns": columns, "rows": rows}


def _cell_data(cell: Cell) -> object:
    """Return a text; [text, level] of a mark; or {"shapes": [[style, path], ...]} of a picture."""
    if isinstance(cell, Picture):
        return {"size": [cell.width, cell.height], "shapes": [[shape.style, shape.path] for shape in cell.shapes]}
    return escape_commands(cell) if isinstance(cell, str) else [escape_commands(cell.text), cell.level]


def _table_parts(table: Table) -> Iterator[tuple[str, Sequence[Sequence[Cell]]]]:
    """Yield the rows that a table shows and, with the title of their fold, those that it folds."""
    yield "", table.rows[:MAX_OPEN_ROWS]
    folded = table.rows[MAX_OPEN_ROWS:MAX_FOLDED_ROWS]
    if folded:
        yield f"{len(table.rows) - MAX_OPEN_ROWS} more", folded


def _left_out(count: int, shown: int) -> str:
    """Return the line about the rows or records that a page leaves out, "" if it has all."""
    return f"… and {count - shown} more: --format json has all" if count > shown else ""


def _side_of_guide(place: float) -> str:
    """Return the alignment of a text at a place in percent: a centered one near an end would extend beyond it."""
    return "left" if place < 6 else "right" if place > 94 else "middle"


def _cell_class(column: Column, cell: Cell) -> str:
    """Return the class of a cell."""
    if column.style in ("number", "name"):
        return column.style
    if column.style == "picture":
        return "bar"
    length = len(cell_text(cell))
    return "short" if length <= _SHORT_CELL else "long" if length > _LONG_CELL else ""


def keep_options_whole(text: str) -> Markup:
    """Return a sentence, escaped for a page, in which no line breaks inside the name of an option."""
    from markupsafe import Markup, escape

    # A browser may break a line at a hyphen: "--" would stay on one line, and "data" begin the next.
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(escape_commands(text)))))


def render_page(
    template: str,
    title: str,
    warnings: Sequence[Diagnostic],
    values: Mapping[str, object],
    *,
    styles: Sequence[str] = (),
    code: str = "",
    frame_scripts: Sequence[str] = (),
) -> str:
    """Return a page.

    ``values``: the variables of the template. ``styles`` (next to page.css) are names of files in the folder of the
    templates. ``code``: the script. ``frame_scripts``: those of the pages in its frames.
    """
    from markupsafe import Markup

    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            warnings=first_of_each_kind(warnings),
            version=__version__,
            # The styles and the script come from the package and not from a model, so they are not escaped.
            style=Markup("".join(map(_read, ("page.css", *styles)))),
            script=Markup(code),
            # The content security policy of page.html allows only scripts with these digests.
            script_digests=[_digest(script) for script in (code, *frame_scripts) if script],
            **values,
        )
    )


def _digest(code: str) -> str:
    """Return the digest of a script as a content security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def quote_page(page: str) -> Markup:
    """Return a page as the value of an attribute in single quotes: most pages hold many double quotes."""
    from markupsafe import Markup

    return Markup(page.replace("&", "&amp;").replace("'", "&#39;"))


@cache
def _environment() -> jinja2.Environment:
    """Return the environment of the templates, which keeps them compiled: that takes longer than to fill one."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    functions = (escape_commands, keep_options_whole, pluralize, quote_page)
    environment.filters |= {function.__name__: function for function in functions}
    environment.globals |= {
        "kind_of": lambda block: type(block).__name__,
        "is_mark": lambda cell: isinstance(cell, Mark),
        "is_picture": lambda cell: isinstance(cell, Picture),
        "cell_class": _cell_class,
        "table_parts": _table_parts,
        "left_out": _left_out,
        "side_of_guide": _side_of_guide,
        "signs": _SIGNS,
        "cell_text": cell_text,
        "max_open_lines": _MAX_OPEN_LINES,
        "max_rows": MAX_FOLDED_ROWS,
        "max_open_records": _MAX_OPEN_RECORDS,
        "max_records": _MAX_RECORDS,
    }
    # Compact JSON, in the order of the data: a page may have several MB of data.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all. An existing file is replaced. Raises FileError."""
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
