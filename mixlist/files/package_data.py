"""Find the data folders that come with mixlist, in a wheel and in an editable install."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return the path of a data folder, such as ``schemas``, ``sample_lists`` or ``demo_data``.

    A wheel has these folders inside the package. A checkout has ``demo_data`` there too. The other folders are at
    its top level.
    """
    # ``force-include`` in pyproject.toml copies the other folders into the package of a wheel.
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
