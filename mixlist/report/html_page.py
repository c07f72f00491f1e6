"""Build the HTML pages. Each page is one file that contains its styles, script and pictures, and fetches nothing.

The templates escape the names of nodes and tensors, control characters included. A content security policy allows only
the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.files.atomic_writes import write_atomically
from mixlist.files.package_data import PACKAGE
from mixlist.report.number_text import format_number, format_power, format_share, pluralize
from mixlist.report.terminal import escape_commands
from mixlist.version import __version__

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.training.result import TrainReport

VERDICT_SIGNS = {"pass": "✓", "fail": "✕", "inconclusive": "?"}  # the sign in front of a verdict
VERDICT_CLASSES = {
    "pass": "passing",
    "fail": "failing",
    "inconclusive": "warning",
}  # the class of a verdict in page.css
TEMPLATES: Path = PACKAGE / "report" / "templates"


@dataclass(frozen=True)
class Bar:
    """A horizontal bar.

    ``code``: the title is the name of a node or tensor, and the page shows it in a fixed-width font.
    """

    title: str
    text: str
    percent: float
    code: bool = False


def bars(values: Mapping[str, float], form: str, *, code: bool = False) -> list[Bar]:
    """Return a bar for each value, on a linear scale. ``form`` is the format of the values (``{:.2f} s``)."""
    # If all values are 0, divide by 1: all bars have the length 0.
    longest = max(values.values(), default=0) or 1
    return [Bar(title, form.format(value), round(100 * value / longest, 1), code) for title, value in values.items()]


def render_page(
    template: str, report: CheckReport | TrainReport, *styles: str, script: str = "", **values: object
) -> str:
    """Return a page.

    ``styles`` and ``script`` are names of files in the folder of the templates. ``values``: the variables of the
    template.
    """
    import jinja2
    from markupsafe import Markup

    # With StrictUndefined, a wrong name in a template is an error and not an empty text.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        function.__name__: function
        for function in (escape_commands, pluralize, format_share, format_number, format_power)
    }
    code = (TEMPLATES / script).read_text("utf-8") if script else ""
    return environment.get_template(template).render(
        report=report,
        version=__version__,
        verdict_signs=VERDICT_SIGNS,
        verdict_classes=VERDICT_CLASSES,
        # The styles and the script come from the package and not from a model, so they are not escaped.
        style=Markup("".join((TEMPLATES / style).read_text("utf-8") for style in styles)),
        script=Markup(code),
        # The content security policy of the page names its script by this digest.
        script_digest=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        **values,
    )


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all. An existing file is replaced. Raises FileError."""
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
