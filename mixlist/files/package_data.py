"""Find the data files that ship with mixlist, in a wheel and in an editable install."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """The folder ``schemas``, ``sample_lists`` or ``demo_data``.

    A wheel carries them inside the package; a checkout keeps the canonical copies at its top level.
    """
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
