"""Choose the HTML page of a result (``mixlist.html``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixlist.benchmark.result import BenchReport
    from mixlist.checker.result import CheckReport
    from mixlist.comparison.result import DiffReport
    from mixlist.lists.diff import ListDiff
    from mixlist.resolver.plan import Plan
    from mixlist.training.result import TrainReport
    from mixlist.tuner.result import TuneReport


def html(result: CheckReport | TrainReport | TuneReport | BenchReport | ListDiff | DiffReport | Plan) -> str:
    """Return the HTML page of a result of ``check``, ``train``, ``tune``, ``bench``, ``diff`` or ``resolve``.

    The page is one file that fetches nothing, as ``--html`` of the command writes it. The page of a Plan shows the
    graph, as ``mixlist view`` does. Raises TypeError for any other object.
    """
    from mixlist.benchmark.result import BenchReport
    from mixlist.checker.result import CheckReport
    from mixlist.comparison.result import DiffReport
    from mixlist.lists.diff import ListDiff
    from mixlist.report import bench_html, check_html, diff_html, train_html, tune_html, view_html
    from mixlist.resolver.plan import Plan
    from mixlist.training.result import TrainReport
    from mixlist.tuner.result import TuneReport

    match result:
        case CheckReport():
            return check_html.render(result)
        case TrainReport():
            return train_html.render(result)
        case TuneReport():
            return tune_html.render(result)
        case BenchReport():
            return bench_html.render(result)
        case ListDiff() | DiffReport():
            return diff_html.render(result)
        case Plan():
            return view_html.view_page(result)
    raise TypeError(
        f"result is a {type(result).__name__}: pass what mixlist.check, train, tune, bench, diff or resolve returned"
    )
