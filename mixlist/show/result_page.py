"""Choose the HTML page of a result (``mixlist.html``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan

# The module and the function that make the Document of a result, by the name of its class. A page imports only what its
# own result needs: that of a check does not import the benchmark or the training.
_DOCUMENTS = {
    "CheckReport": "check_document",
    "TrainReport": "train_document",
    "TuneReport": "tune_document",
    "BenchReport": "bench_document",
    "ListDiff": "diff_document",
    "DiffReport": "diff_document",
}


def html(result: object, plan: Plan | None = None) -> str:
    """Return the HTML page of a result.

    ``result``: that of ``convert``, ``check``, ``train``, ``tune``, ``bench``, ``diff`` or ``resolve``. The page is one
    file that fetches nothing, as ``--html`` of the command writes it. The page of a Plan is the graph, as
    ``mixlist view`` writes it. Those of a ConvertResult, and of a CheckReport with the ``plan`` of its model, have it,
    too. Raises TypeError for any other object, and UsageError for a plan of another model.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        Path("plan.html").write_text(mixlist.html(plan), "utf-8")
    """
    from mixlist.checker.result import CheckReport
    from mixlist.decide.plan import Plan
    from mixlist.search.convert_result import ConvertResult
    from mixlist.show.graph_page import graph_frame, view_page
    from mixlist.show.html_page import render_document

    if isinstance(result, Plan):
        return view_page(result)
    if isinstance(result, ConvertResult):
        from mixlist.show.convert_document import convert_document, result_frame

        return render_document(convert_document(result.report, result_frame(result)))
    if isinstance(result, CheckReport) and plan is not None:
        from mixlist.show.check_document import check_document

        return render_document(check_document(result, graph_frame(plan, result.to_json())))
    for kind in type(result).__mro__:
        if kind.__name__ in _DOCUMENTS and kind.__module__.startswith("mixlist."):
            name = _DOCUMENTS[kind.__name__]
            page: str = render_document(getattr(import_module(f"mixlist.show.{name}"), name)(result))
            return page
    raise TypeError(
        f"result is a {type(result).__name__}: pass what mixlist.convert, check, train, tune, bench, diff or resolve"
        " returned"
    )
