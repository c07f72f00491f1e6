"""Write findings as SARIF 2.1.0, for code-scanning services: one rule for each code, one result for each finding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from mixlist.diagnostics import Diagnostic
from mixlist.lists.finding_selection import code_texts
from mixlist.version import __version__


def sarif(findings: Sequence[Diagnostic]) -> dict[str, object]:
    """Return the findings as a SARIF log. Columns count Unicode code points from 1."""
    # Only the codes of these findings become rules. A result names its rule by the index in this order.
    codes = sorted({finding.code for finding in findings})
    rules = [_rule(code, *code_texts().get(code, (code, code))) for code in codes]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "mixlist", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, codes.index(finding.code)) for finding in findings],
            }
        ],
    }


def _rule(code: str, title: str, text: str) -> dict[str, object]:
    return {"id": code, "shortDescription": {"text": title}, "fullDescription": {"text": text}, "help": {"text": text}}


def _result(finding: Diagnostic, rule: int) -> dict[str, object]:
    message = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": message},
    }
    if finding.path is not None:
        path = Path(finding.path)
        # A relative path stays relative, so that the service finds the file in the repository.
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        location: dict[str, object] = {"artifactLocation": {"uri": uri}}
        if finding.line is not None:
            column = {} if finding.column is None else {"startColumn": finding.column}
            location["region"] = {"startLine": finding.line, **column}
        result["locations"] = [{"physicalLocation": location}]
    return result
