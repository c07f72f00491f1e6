"""The texts that the terminal and the page of a diff share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mixlist.report.number_text import format_amount, format_bytes, format_number, format_share, pluralize

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.comparison.result import DiffReport
    from mixlist.cost.estimate import Work
    from mixlist.lists.setting_changes import SettingChange

_NONE = "-"
Row = tuple[str, str, str]


def describe_settings(settings: Iterable[SettingChange]) -> str:
    """Return the sentence about the settings that differ, "" if there are none."""
    names = ", ".join(map(str, settings))
    return f"BASE and TARGET also differ in what no modify_mixlist can express: {names}" if names else ""


def headline(report: DiffReport) -> str:
    """Return the number of nodes that change, and of the Casts on both sides."""
    changed = f"{len(report.nodes)} of {pluralize(report.total, 'node')}"
    return f"{changed} of {report.model} with another precision; Casts {report.base.casts} -> {report.target.casts}"


def side_rows(report: DiffReport) -> list[Row]:
    """Return (measure, base, target) for the checks and the estimated costs; [] if there was no data."""
    checks = report.base.check, report.target.check
    works = report.base.work, report.target.work
    if checks[0] is None or checks[1] is None or works[0] is None or works[1] is None:
        return []
    return [*_accuracy_rows(checks[0], checks[1]), *_cost_rows(works[0], works[1])]


def _accuracy_rows(base: CheckReport, target: CheckReport) -> list[Row]:
    rows = [
        ("verdict", base.verdict, target.verdict),
        ("exception rate", format_share(base.exception_rate), format_share(target.exception_rate)),
    ]
    if base.task is not None and target.task is not None:
        rows.append(("accuracy with labels", format_share(base.task.mixed), format_share(target.task.mixed)))
    # A side that could not run has no outputs.
    outputs = [{output.name: output for output in check.outputs} for check in (base, target)]
    for name in dict.fromkeys((*outputs[0], *outputs[1])):
        pair = [side.get(name) for side in outputs]
        errors = [
            ("normalized error", [format_number(out.normalized_error) if out else _NONE for out in pair]),
            ("largest absolute error", [format_number(out.max_abs_error) if out else _NONE for out in pair]),
            ("differing values", [format_share(out.mismatches) if out else _NONE for out in pair]),
        ]
        # A float output has no differing values, and an output of integers no other measure that is compared here.
        is_float = all(out is None or out.mismatches is None for out in pair)
        rows += [(f"{name}: {measure}", *texts) for measure, texts in (errors[:2] if is_float else errors[2:])]  # type: ignore[misc]
    return rows


def _cost_rows(base: Work, target: Work) -> list[Row]:
    rows = [
        ("matrix operations in low precision", format_share(base.low_share), format_share(target.low_share)),
        ("operations in low precision", format_amount(base.low_flops), format_amount(target.low_flops)),
        ("bytes moved, by estimate", format_bytes(base.bytes), format_bytes(target.bytes)),
    ]
    if base.unknown or target.unknown:
        rows.append(("nodes that the estimate cannot count", str(len(base.unknown)), str(len(target.unknown))))
    return rows


def reasons(report: DiffReport) -> list[str]:
    """Return why the verdict of each side is not a pass, one sentence each."""
    checks = {"BASE": report.base.check, "TARGET": report.target.check}
    return [
        f"{side}: {check.verdict}: {reason}"
        for side, check in checks.items()
        if check is not None and check.verdict != "pass"
        for reason in check.reasons
    ]
