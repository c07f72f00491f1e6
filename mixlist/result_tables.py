"""Make tables of results: flat rows for pandas and polars (``to_rows``), HTML for a notebook (``_repr_html_``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from mixlist.errors import UsageError
from mixlist.text_escapes import escape_unprintable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The rows of one table have the same keys. A string is never None, so that a column has one type. Items of a list are
# joined with ";".
Row: TypeAlias = dict[str, str | int | float | bool | None]
# A notebook has styles of its own, light or dark. So the table sets no color, only its alignment.
_LEFT = ' style="text-align: left"'
_LINES = ' style="text-align: left; white-space: pre-wrap"'  # the lines of a program keep their indentation
MAX_ROWS = 10  # the number of rows of a part of a result in a notebook, such as its edits


# --- flat rows ---


def flat_row(item: DataclassInstance, **nested: type[DataclassInstance]) -> Row:
    """Return a row with the fields of a dataclass object.

    ``nested``: the classes of fields that hold another object, or None. Such a field becomes one column for each field
    of its class, ``FIELD_SUBFIELD``; all of them are missing if the field is None.
    """
    row: Row = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name not in nested:
            row[field.name] = _to_scalar(value, field)
            continue
        for subfield in fields(nested[field.name]):
            row[f"{field.name}_{subfield.name}"] = _to_scalar(getattr(value, subfield.name, None), subfield)
    return row


def choose_table(table: str, tables: Mapping[str, Callable[[], list[Row]]]) -> list[Row]:
    """Return the rows of one of several tables of a result. Raises UsageError for another name."""
    if table not in tables:
        raise UsageError(f"there is no table {table!r}", hint=f"the tables are {', '.join(tables)}")
    return tables[table]()


def _to_scalar(value: object, field: Field[object]) -> str | int | float | bool | None:
    """Return the value of a column; "" for a text that is missing."""
    if value is None:
        return "" if str(field.type).startswith("str") else None  # types are texts: "str | None"
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return ";".join(f"{key}:{part}" for key, part in value.items())
    if isinstance(value, Iterable) and not is_dataclass(value):
        return ";".join(map(str, value))
    return str(value)


# --- HTML for a notebook ---


def notebook_facts(title: str, facts: Mapping[str, str | Sequence[str]]) -> str:
    """Return a table with a row for each fact that is not empty. A fact of several texts has several lines."""
    rows = []
    for name, fact in facts.items():
        lines = [fact] if isinstance(fact, str) else fact
        if any(lines):
            text = "<br>".join(map(_escape, lines))
            rows.append(f'<tr><th scope="row"{_LEFT}>{_escape(name)}</th><td{_LINES}>{text}</td></tr>')
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
