"""Check a list file alone, against a library, or against a model: the function ``mixlist.validate``.

``lists/validate_file.py`` checks the file alone. The folders that know operators and models are imported only where
they are used, because a file alone needs neither.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.files.list_text import MAX_BYTES
from mixlist.lists.detect_kind import FileKind
from mixlist.lists.load import load_library, policy_from_options
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
    """Return every finding about a list file (``-``: standard input) or a library directory.

    The kind ``auto`` detects the kind by the content. ``strict`` makes comments and trailing commas errors. With
    ``ops_info`` or ``model``, the names in the file are also checked against that library (with a model alone, against
    the built-in library ``onnx``), and against the operators and nodes of the model. Raises FileError if a file cannot
    be read, and the errors of ``resolve`` for the model; every other error is a finding.
    """
    return make_validator(kind, strict=strict, ops_info=ops_info, model=model, op_names=op_names)(path)


def make_validator(
    kind: Literal["auto"] | FileKind,
    *,
    strict: bool,
    ops_info: ListPath | None,
    model: ModelSource | None,
    op_names: str,
) -> Callable[[ListPath], FileReport]:
    """Return a function that does what ``validate`` does, for several files.

    The library is read here once, to check the edits of all files. For the check of names, each file is read together
    with the library into a policy.
    """
    # A model is resolved under a policy, which needs a library.
    library_path = DEFAULT_LIBRARY if ops_info is None and model is not None else ops_info
    _rewind_standard_input(library_path)
    library = None if library_path is None else load_library(library_path)[0]

    def validate_path(path: ListPath) -> FileReport:
        _rewind_standard_input(path)
        report = validate_file(path, kind, strict=strict, library=library)
        # A file with errors gives no policy whose names could be checked.
        if library_path is None or any(finding.severity == "error" for finding in report.findings):
            return report
        _rewind_standard_input(path, library_path)
        options = _with_file(PolicyOptions(ops_info=library_path, op_names=op_names), report.kind, path)
        return replace(report, findings=(*report.findings, *_check_names(policy_from_options(options), model)))

    return validate_path


def _with_file(options: PolicyOptions, kind: str, path: ListPath) -> PolicyOptions:
    """Return the options with the file as the option for its kind."""
    if kind == "modify-mixlist":
        return replace(options, mixlist=path)
    if kind == "ops-info":
        return replace(options, ops_info=path)
    if kind == "keep-dtype":
        return replace(options, keep_dtype=path)
    return replace(options, customize_dtypes=path) if kind == "customize-dtypes" else options


def _rewind_standard_input(*paths: ListPath | None) -> None:
    """Let standard input be read from its beginning if one of the paths is ``-``.

    A file is read twice: alone, and as a part of a policy. A pipe is read into memory, because it cannot be rewound.
    """
    if "-" not in paths:
        return
    # The limit plus one byte, so that the reader still sees that a text is too large. The reader takes the bytes from
    # ``sys.stdin.buffer``, which only a wrapped stream has.
    if not sys.stdin.seekable():
        sys.stdin = io.TextIOWrapper(io.BytesIO(sys.stdin.buffer.read(MAX_BYTES + 1)))
    sys.stdin.seek(0)


def _check_names(policy: Policy, model: ModelSource | None) -> Sequence[Diagnostic]:
    """Return the warnings about the names of a policy that its library does not have.

    With a model, return all warnings of ``resolve``, for example about nodes that the model does not have, or the
    errors of the list files for this model.
    """
    if model is None:
        from mixlist.ops.name_warnings import find_name_warnings

        return find_name_warnings(policy)
    from mixlist.resolver import resolve

    try:
        return resolve(model, policy).warnings
    # The file contradicts the model: for example, a rule is for an op type that no node has (Rule S6.6).
    except ListError as error:
        return error.diagnostics
