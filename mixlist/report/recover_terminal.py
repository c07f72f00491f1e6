"""Write a recovery as text: the edits, the nodes that they do not give their types, and nodes without a counterpart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from mixlist.report.number_text import pluralize
from mixlist.report.terminal import MAX_ROWS, escape_commands, paint, write_heading, write_omitted, write_table

if TYPE_CHECKING:
    from mixlist.interop.recover_result import RecoverReport, UnrecoveredNode

_EDIT_COLUMNS = ("edit", "from", "to", "nodes")
_EXCEPTION_COLUMNS = ("nodes", "first node", "op", "in MIXED", "decided", "why")


def write_recovery(report: RecoverReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    state = paint("COMPLETE", "green", stream) if report.complete else paint("INCOMPLETE", "yellow", stream)
    stream.write(f"{state}  {escape_commands(_headline(report))}\n")
    stream.write(f"      {_describe_match(report)}\n")
    if report.edits:
        write_heading("Edits", stream)
        rows = [(edit.name, edit.before, edit.after, str(edit.nodes)) for edit in report.edits]
        write_table(_EDIT_COLUMNS, rows[:MAX_ROWS], stream)
        write_omitted(len(rows) - MAX_ROWS, "the files have all", stream)
    _write_exceptions(report, stream)
    if report.unmatched:
        write_heading("Nodes of ORIGINAL that MIXED does not have", stream)
        for node in report.unmatched[:MAX_ROWS]:
            stream.write(f"  {escape_commands(str(node.ref))} ({escape_commands(node.op_type)})\n")
        write_omitted(len(report.unmatched) - MAX_ROWS, "--format json has all", stream)
    if report.next_command:
        stream.write(f"\nto see these decisions: {escape_commands(report.next_command)}\n")


def _headline(report: RecoverReport) -> str:
    counts = Counter(edit.kind for edit in report.edits)
    mode, edits = report.precision_mode_v2, f"{pluralize(counts['list'], 'moved op type')}"
    return f"{report.mixed}: {mode}, {edits} and {pluralize(counts['rule'], 'node rule')}"


def _describe_match(report: RecoverReport) -> str:
    matched = pluralize(report.matched, "matched float node")
    return f"{matched}, of which {report.differing} differ under the library alone"


def _write_exceptions(report: RecoverReport, stream: TextIO) -> None:
    """Write the nodes that do not get their types: a row for all nodes of one op type that have one reason."""
    if not report.exceptions:
        return
    write_heading(f"{pluralize(len(report.exceptions), 'node')} without the types of MIXED", stream)
    groups: dict[tuple[str, str, str, str], list[UnrecoveredNode]] = {}
    for node in report.exceptions:
        groups.setdefault((node.op_type, node.precision, node.decided, node.why), []).append(node)
    rows = [
        (str(len(nodes)), f"{nodes[0].ref}{' of MIXED' if nodes[0].model == 'mixed' else ''}", *group)
        for group, nodes in groups.items()
    ]
    write_table(_EXCEPTION_COLUMNS, [tuple(cell or "-" for cell in row) for row in rows[:MAX_ROWS]], stream)
    write_omitted(len(rows) - MAX_ROWS, "--format json has all", stream)
