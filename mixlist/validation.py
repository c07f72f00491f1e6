"""Check a list file alone, against a library, and against a model.

The rooms that know operators and models are imported where they are needed: a list file alone needs neither.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.files.jsonc import MAX_BYTES
from mixlist.lists.detect_kind import FileKind
from mixlist.lists.load import load_library, read_policy
from mixlist.lists.options import DEFAULT_LIBRARY, ListPath, PolicyOptions
from mixlist.lists.policy import Policy
from mixlist.lists.validate_file import FileReport, validate_file

if TYPE_CHECKING:
    from mixlist.graph.proto_types import ModelSource


def validate(
    path: ListPath,
    kind: Literal["auto"] | FileKind = "auto",
    *,
    strict: bool = False,
    ops_info: ListPath | None = None,
    model: ModelSource | None = None,
    op_names: str = "auto",
) -> FileReport:
    """Return every finding about a list file (``-``: standard input; a directory is an ops-info library).

    ``kind`` ``auto`` goes by the content; ``strict`` makes comments and trailing commas errors. With ``ops_info`` or
    ``model``, the names are also checked against that library (default: the built-in ``onnx``), and against the
    operators and nodes of the model. Raises FileError if a file cannot be read, and what ``resolve`` raises for the
    model; everything else that is wrong is a finding.
    """
    return validator(kind, strict=strict, ops_info=ops_info, model=model, op_names=op_names)(path)


def validator(
    kind: Literal["auto"] | FileKind,
    *,
    strict: bool,
    ops_info: ListPath | None,
    model: ModelSource | None,
    op_names: str,
) -> Callable[[ListPath], FileReport]:
    """Return ``validate`` for many files; the library is read here, once."""
    against = DEFAULT_LIBRARY if ops_info is None and model is not None else ops_info
    _rewind_standard_input(against)
    library = None if against is None else load_library(against)[0]

    def check(path: ListPath) -> FileReport:
        _rewind_standard_input(path)
        report = validate_file(path, kind, strict=strict, library=library)
        if against is None or any(finding.severity == "error" for finding in report.findings):
            return report
        _rewind_standard_input(path, against)
        options = _with_file(PolicyOptions(ops_info=against, op_names=op_names), report.kind, path)
        return replace(report, findings=(*report.findings, *_doubts(read_policy(options), model)))

    return check


def _with_file(options: PolicyOptions, kind: str, path: ListPath) -> PolicyOptions:
    """Return the options with the file in the place that its kind has in a policy."""
    if kind == "modify-mixlist":
        return replace(options, mixlist=path)
    if kind == "ops-info":
        return replace(options, ops_info=path)
    if kind == "keep-dtype":
        return replace(options, keep_dtype=path)
    return replace(options, customize_dtypes=path) if kind == "customize-dtypes" else options


def _rewind_standard_input(*paths: ListPath | None) -> None:
    """Let ``-`` be read from its beginning: a file is read alone, and again as a part of a policy."""
    if "-" not in paths:
        return
    if not sys.stdin.seekable():
        sys.stdin = io.TextIOWrapper(io.BytesIO(sys.stdin.buffer.read(MAX_BYTES + 1)))
    sys.stdin.seek(0)


def _doubts(policy: Policy, model: ModelSource | None) -> Sequence[Diagnostic]:
    """Return the findings about the names of a policy, against its library alone or against a model."""
    if model is None:
        from mixlist.ops.name_warnings import find_name_warnings

        return find_name_warnings(policy)
    from mixlist.resolver import resolve

    try:
        return resolve(model, policy).warnings
    except ListError as error:
        return error.diagnostics
