"""The report of a recovery: the edits, the nodes that they do not give their types, and nodes without a counterpart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mixlist.show.document import MAX_ROWS, REST_IN_JSON, Document, Section, Table, Verdict, columns_of, next_step
from mixlist.show.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.exchange.recover_result import RecoverReport, UnrecoveredNode


def recover_document(report: RecoverReport) -> Document:
    """Return the report of a recovery."""
    edits = [(edit.name, edit.before, edit.after, str(edit.nodes)) for edit in report.edits]
    unmatched = [(str(node.ref), node.op_type) for node in report.unmatched]
    sections = (
        Section("edits", "Edits", (Table(columns_of("edit", "from", "to", "nodes"), edits, MAX_ROWS, REST_IN_JSON),)),
        _exceptions(report),
        Section(
            "unmatched",
            "Nodes of ORIGINAL that MIXED does not have",
            (Table(columns_of("node", "op"), unmatched, MAX_ROWS, REST_IN_JSON),),
        ),
    )
    step = next_step("See the decisions that the files make", report.next_command)
    return Document(
        "recover",
        sections,
        verdict=_verdict(report),
        steps=(step,),
        warnings=report.warnings,
    )


def _verdict(report: RecoverReport) -> Verdict:
    counts = Counter(edit.kind for edit in report.edits)
    edits = f"{pluralize(counts['list'], 'moved op type')} and {pluralize(counts['rule'], 'node rule')}"
    matched = pluralize(report.matched, "matched float node")
    return Verdict(
        "COMPLETE" if report.complete else "INCOMPLETE",
        "passing" if report.complete else "warning",
        report.mixed,
        f"{report.mixed}: {report.precision_mode_v2}, {edits}",
        (f"{matched}, of which {report.differing} differ under the library alone",),
    )


def _exceptions(report: RecoverReport) -> Section:
    """Return the nodes that do not get their types: a row for all nodes of one op type that have one reason."""
    groups: dict[tuple[str, str, str, str], list[UnrecoveredNode]] = {}
    for node in report.exceptions:
        groups.setdefault((node.op_type, node.precision, node.decided, node.why), []).append(node)
    rows = [
        (str(len(nodes)), f"{nodes[0].ref}{' of MIXED' if nodes[0].model == 'mixed' else ''}", *group)
        for group, nodes in groups.items()
    ]
    columns = columns_of("nodes", "first node", "op", "in MIXED", "decided", "why")
    table = Table(columns, [tuple(cell or "-" for cell in row) for row in rows], MAX_ROWS, REST_IN_JSON)
    title = f"{pluralize(len(report.exceptions), 'node')} without the types of MIXED"
    return Section("exceptions", title, (table,))
