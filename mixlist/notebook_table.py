"""Write the short HTML table that a notebook shows for a result (``_repr_html_``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from mixlist.text_escapes import escape_unprintable

# A notebook has styles of its own, light or dark. So the table sets no color, only its alignment.
_LEFT = ' style="text-align: left"'
MAX_ROWS = 10  # the number of rows of a part of a result, such as its edits


def notebook_facts(title: str, facts: Mapping[str, str | Sequence[str]]) -> str:
    """Return a table with a row for each fact that is not empty. A fact of several texts has several lines."""
    rows = []
    for name, fact in facts.items():
        lines = [fact] if isinstance(fact, str) else fact
        if any(lines):
            text = "<br>".join(map(_escape, lines))
            rows.append(f'<tr><th scope="row"{_LEFT}>{_escape(name)}</th><td{_LEFT}>{text}</td></tr>')
    return _table(title, "", rows)


def notebook_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with titles of columns and at most ``MAX_ROWS`` rows; the last line names the number of others."""
    head = "".join(f'<th scope="col"{_LEFT}>{_escape(column)}</th>' for column in columns)
    body = ["<tr>" + "".join(f"<td{_LEFT}>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        body.append(f'<tr><td colspan="{len(columns)}"{_LEFT}>… and {len(rows) - MAX_ROWS} more</td></tr>')
    return _table(title, f"<thead><tr>{head}</tr></thead>" if rows else "", body)


def limited(lines: Sequence[str]) -> list[str]:
    """Return at most ``MAX_ROWS`` lines, and a line with the number of the others."""
    more = [f"… and {len(lines) - MAX_ROWS} more"] if len(lines) > MAX_ROWS else []
    return [*lines[:MAX_ROWS], *more]


def _table(title: str, head: str, rows: Iterable[str]) -> str:
    caption = f'<caption style="text-align: left; font-weight: bold">{_escape(title)}</caption>'
    return f"<table>{caption}{head}<tbody>{''.join(rows)}</tbody></table>"


def _escape(text: str) -> str:
    return escape(escape_unprintable(text))
