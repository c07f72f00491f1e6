"""Make flat rows of results, for pandas, polars and CSV: the methods ``to_rows`` of the results use this.

The rows of one table have the same keys, and their values are strings, numbers, bools or None. A string is never None,
so that a column has one type. Items of a list are joined with ``;``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import TYPE_CHECKING, TypeAlias

from mixlist.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row: TypeAlias = dict[str, str | int | float | bool | None]


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
