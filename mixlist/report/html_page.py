"""What all HTML pages share: a template that escapes every name, written whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixlist.files.package_data import PACKAGE
from mixlist.report.terminal import clean

TEMPLATES: Path = PACKAGE / "report" / "templates"


def page_environment(filters: Mapping[str, Callable[..., Any]]) -> Any:
    """The jinja2 environment of a page; names out of the model are escaped, ``clean`` spells control characters out."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"clean": clean, **filters}
    return environment
