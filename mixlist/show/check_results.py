"""Match the report of a check with the nodes and tensors of a plan."""

from __future__ import annotations

import json
import math
import os

from mixlist.decide.plan import Plan
from mixlist.errors import UsageError
from mixlist.files.list_text import read_bytes, shown_path
from mixlist.files.strict_json import JsonObject
from mixlist.model.naming import NodeRef
from mixlist.show.graph_tables import GraphTables

_FORMAT = "mixlist.check/1"
_HINT = "write it with: mixlist check MODEL ... --per-tensor --layerwise --format json > report.json"


def read_check_report(path: str | os.PathLike[str]) -> JsonObject:
    """Return the object in a file that ``mixlist check --format json`` wrote; ``-`` is standard input.

    Raises FileError if the file cannot be read, and UsageError if it holds something else.
    """
    shown = shown_path(path)
    try:
        report = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        raise UsageError(f"{shown}: this is not JSON", hint=_HINT) from None
    if not isinstance(report, dict) or report.get("format") != _FORMAT:
        raise UsageError(f"{shown}: this is not the JSON of a check ({_FORMAT})", hint=_HINT)
    return report


def match_check_report(report: JsonObject, plan: Plan, tables: GraphTables) -> JsonObject:
    """Return the findings, ranges and errors of a report with the numbers of their nodes and tensors.

    Raises UsageError if a part of the report is missing or has another form, or if no node of the report is in the
    model.
    """
    try:
        return _ReportMatcher(report, plan, tables).match()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"the report of the check is not complete: {error!r}", hint=_HINT) from None


class _ReportMatcher:
    """Matches one report.

    ``unmatched``: the names in the report that the model lacks. ``matched``: the number of the other names.
    """

    def __init__(self, report: JsonObject, plan: Plan, tables: GraphTables) -> None:
        self.report, self.plan, self.tables = report, plan, tables
        self.matched = 0
        self.unmatched: list[str] = []

    def match(self) -> JsonObject:
        """Return the part of the page's data that is about the check."""
        report = self.report
        matched = {
            "model": str(report["model"]),
            "verdict": str(report["verdict"]),
            "reasons": [str(reason) for reason in report["reasons"]],
            "findings": self._findings(),
            "errors": self._errors(),
            "ranges": self._ranges(),
            "outputs": [
                {
                    "name": str(output["name"]),
                    "passed": bool(output["pass"]),
                    "error": _number(output["normalized_error"]),
                }
                for output in report["outputs"]
            ],
        }
        if self.unmatched and not self.matched:
            raise UsageError(
                f"the check of {report['model']!r} is about another model: {self.plan.model!r} has no node or tensor "
                f"{self.unmatched[0]!r}",
                hint="give the report of a check of this model",
            )
        return matched | {"warnings": self._warnings()}

    def _node(self, entry: JsonObject) -> int | None:
        """Return the number of the node of an entry; None if the model has no such node."""
        ref = NodeRef(entry["scope"], entry["name"])
        return self._count(self.tables.node_numbers.get(ref), str(ref))

    def _count(self, number: int | None, name: str) -> int | None:
        if number is None:
            self.unmatched.append(name)
        else:
            self.matched += 1
        return number

    def _findings(self) -> list[JsonObject]:
        return [
            {
                "node": node,
                "kind": str(entry["kind"]),
                "first": bool(entry["first"]),
                "tensor": str(entry["tensor"]),
                "is_input": bool(entry["input"]),
                "count": entry["count"],
                "batches": len(entry["batches"]),
                "reference": _number(entry["max_abs_fp32"]),
                "mixed": _number(entry["max_abs_low"]),
                "source": str(entry["source"]),
                "suggestion": str(entry["suggestion"]),
            }
            for entry in self.report["nodes"]
            if (node := self._node(entry)) is not None
        ]

    def _errors(self) -> list[JsonObject]:
        """Return the error that each low node adds, if the report has them (``--layerwise``)."""
        return [
            {
                "node": node,
                "error": _number(entry["normalized_error"]),
                "source": str(entry["source"]),
                "suggestion": str(entry["suggestion"]),
            }
            for entry in self.report["layerwise"]
            if (node := self._node(entry)) is not None
        ]

    def _ranges(self) -> list[JsonObject]:
        """Return the largest magnitudes of each tensor, if the report has them (``--per-tensor``)."""
        ranges = []
        for entry in self.report["tensors"]:
            name = entry["scope"], entry["tensor"]
            tensor = self._count(self.tables.tensor_numbers.get(name), str(entry["tensor"]))
            if tensor is not None:
                reference = _magnitude(entry, "minimum", "maximum", "nan")
                mixed = _magnitude(entry, "low_minimum", "low_maximum", "low_nan")
                ranges.append({"tensor": tensor, "low": bool(entry["low"]), "reference": reference, "mixed": mixed})
        return ranges

    def _warnings(self) -> list[str]:
        """Return what makes the report less useful for this plan, one sentence each."""
        warnings = []
        if self.unmatched:
            count, name = len(self.unmatched), self.unmatched[0]
            warnings.append(f"{count} nodes or tensors of the check are not in this model, for example {name}.")
        differing = self._tensors_of_other_precision()
        if differing or self.report["precision"] != self.plan.policy.mode.low:
            text = f"{differing} tensors had another precision" if differing else "the low type was another one"
            warnings.append(f"The check was made under other lists than this page: {text}.")
        return warnings

    def _tensors_of_other_precision(self) -> int:
        """Return the number of tensors that were low in the check and are not low in the plan, or the other way."""
        texts, low = self.tables.texts, self.plan.policy.mode.low
        count = 0
        for entry in self.report["tensors"]:
            number = self.tables.tensor_numbers.get((entry["scope"], entry["tensor"]))
            if number is not None:
                count += (low in texts[self.tables.tensors[number].type]) != entry["low"]
        return count


def _magnitude(entry: JsonObject, minimum: str, maximum: str, nan: str) -> float | str | None:
    """Return the largest magnitude of a tensor as JSON has it."""
    if entry.get(nan):
        return "nan"
    ends = [float(entry[end]) for end in (minimum, maximum)]
    return _number(max(map(abs, ends)) if not any(map(math.isnan, ends)) else math.nan)


def _number(value: float | str | None) -> float | str | None:
    """Return a number as strict JSON: infinities and NaN are texts. Raises TypeError for anything else."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else str(number)
