"""Render the graph of a plan as an HTML page: folded groups, colors by precision, Casts, reasons, results of a check.

The page draws on a canvas with code of its own, because that is fast enough and libraries are not. Measured in Chromium
without a GPU, on a loaded machine with 2 cores, for 10,000 boxes, all visible: a frame of a move takes 0.2 s with the
canvas, 0.4 s with SVG and 0.5 s with Cytoscape.js 3.34, and the first picture 0.2 s, 2 s and 8 s. For 2,000 boxes, the
most that the page shows, a frame of the canvas takes 17 to 100 ms.

dagre 3.1 (third_party/) places the boxes of one group in 0.3 s for 150 boxes; elkjs 0.12 takes twice as long and has
1.6 MB instead of 50 kB.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import cache
from typing import Any

from mixlist.decide.plan import Plan
from mixlist.files.strict_json import JsonObject
from mixlist.show.check_document import KINDS
from mixlist.show.html_page import TEMPLATES, render_page
from mixlist.show.number_text import pluralize
from mixlist.show.page_data import make_page_data
from mixlist.show.terminal import escape_commands

_SCRIPTS = ("model", "layout", "colors", "drawing", "details", "tree", "network_chart", "page")
_THIRD_PARTY = TEMPLATES.parent / "third_party"


def view_page(plan: Plan, *, check: JsonObject | None = None, against: Plan | None = None) -> str:
    """Return the page of a plan.

    ``check``: the ``mixlist.check/1`` object of a check of the same model (``CheckReport.to_json()``). ``against``: a
    plan of the same model under other lists; the page shows the nodes that differ. Raises UsageError for a ``check``
    that is not valid or is about another model.
    """
    graph = _escape_texts(make_page_data(plan, check, against))
    kinds = {kind: asdict(description) for kind, description in KINDS.items()}
    values = {"subject": plan.model, "summary": _summarize(plan), "data": {"graph": graph, "kinds": kinds}}
    title = f"{plan.model} – mixlist view"
    return render_page("view.html", title, plan.warnings, values, styles=["view.css"], code=_read_scripts())


def _summarize(plan: Plan) -> str:
    """Return the policy and the counts of a plan in one line."""
    policy = plan.policy
    counts = ", ".join(f"{count} {name}" for name, count in Counter(plan.counts).most_common())
    return f"{policy.mode.name}, library {policy.lists.library.name}; {pluralize(len(plan.nodes), 'node')}: {counts}"


@cache
def _read_scripts() -> str:
    """Return the script of the page: dagre with its license, then the files of templates/view/."""
    license_text = (_THIRD_PARTY / "dagre.LICENSE").read_text("utf-8")
    # Without the line that names a source map, which a browser would fetch.
    dagre = (_THIRD_PARTY / "dagre.min.js").read_text("utf-8").partition("//# sourceMappingURL=")[0]
    own = [(TEMPLATES / "view" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    return "\n".join([f"/*! dagre\n{license_text}*/", dagre, *own])


def _escape_texts(value: Any) -> Any:
    """Return the data with the control characters in all texts escaped, as other reports show them."""
    if isinstance(value, str):
        return value if value.isprintable() else escape_commands(value)
    if isinstance(value, list):
        return [_escape_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _escape_texts(item) for key, item in value.items()}
    return value
