"""Build the HTML pages. Each page is one file that contains its styles, script and pictures, and fetches nothing.

The templates escape the names of nodes and tensors, control characters included. A content security policy allows only
the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mixlist.files.atomic_writes import write_atomically
from mixlist.files.package_data import PACKAGE
from mixlist.report.number_text import format_number, format_power, format_share, pluralize
from mixlist.report.terminal import escape_commands
from mixlist.text_escapes import quote_argument
from mixlist.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

    from mixlist.checker.result import Verdict
    from mixlist.diagnostics import Diagnostic

TEMPLATES: Path = PACKAGE / "report" / "templates"
_OPTION = re.compile(r"--[a-z][a-z0-9-]{1,30}")
Level = Literal["passing", "failing", "warning", "note"]  # the class of a color in page.css


@dataclass(frozen=True)
class Badge:
    """The result in one or two words, in a color. ``sign``: a character that says the same without color, or ""."""

    text: str
    level: Level
    sign: str = ""


VERDICT_BADGES: dict[Verdict, Badge] = {
    "pass": Badge("PASS", "passing", "✓"),
    "fail": Badge("FAIL", "failing", "✕"),
    "inconclusive": Badge("INCONCLUSIVE", "warning", "?"),
}


@dataclass(frozen=True)
class PageHead:
    """The head of a page. ``subject``: the model or the lists; ``reasons``: why the result is as the badge says."""

    command: str
    badge: Badge
    subject: str
    reasons: Sequence[str] = ()
    warnings: Sequence[Diagnostic] = ()


@dataclass(frozen=True)
class Bar:
    """A horizontal bar.

    ``code``: the title is the name of a node or tensor, and the page shows it in a fixed-width font.
    """

    title: str
    text: str
    percent: float
    code: bool = False


@dataclass(frozen=True)
class Step:
    """The next step for the reader: a sentence, and a command line or ""."""

    text: str
    command: str = ""


def model_argument(model: str) -> str:
    """Return the model as an argument of a command line; ``MODEL`` for a model that was not read from a file."""
    if not model.endswith(".onnx"):
        return "MODEL"
    return quote_argument(model)


def keep_options_whole(text: str) -> Markup:
    """Return a sentence, escaped for a page, in which no line breaks inside the name of an option."""
    from markupsafe import Markup, escape

    # A browser may break a line at a hyphen: "--" would stay on one line, and "data" begin the next.
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(escape_commands(text)))))


def bars(values: Mapping[str, float], form: str, *, code: bool = False) -> list[Bar]:
    """Return a bar for each value, on a linear scale. ``form`` is the format of the values (``{:.2f} s``)."""
    # If all values are 0, divide by 1: all bars have the length 0.
    longest = max(values.values(), default=0) or 1
    return [Bar(title, form.format(value), round(100 * value / longest, 1), code) for title, value in values.items()]


def render_page(
    template: str,
    head: PageHead,
    values: Mapping[str, object],
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    code: str = "",
) -> str:
    """Return a page.

    ``values``: the variables of the template. ``styles`` (next to page.css) and ``scripts`` are names of files in the
    folder of the templates. ``code``: the script itself, if it is not in these files.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters = (escape_commands, keep_options_whole, pluralize, format_share, format_number, format_power)
    environment.filters |= {function.__name__: function for function in filters}
    code += "".join((TEMPLATES / script).read_text("utf-8") for script in scripts)
    # Compact JSON, in the order of the data: a page may have several MB of data.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment.get_template(template).render(
        head=head,
        version=__version__,
        badges=VERDICT_BADGES,
        # The styles and the script come from the package and not from a model, so they are not escaped.
        style=Markup("".join((TEMPLATES / style).read_text("utf-8") for style in ("page.css", *styles))),
        script=Markup(code),
        # The content security policy of page.html allows only the script with this digest.
        script_digest=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        **values,
    )


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all. An existing file is replaced. Raises FileError."""
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
