"""Check list files alone, against a library, or against a model: the function ``mixlist.validate``.

``lists/validate_file.py`` checks one file alone. The folders that know operators and models are imported only where
they are used, because a file alone needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from mixlist.diagnostics import MAX_SIMILAR, Diagnostic, FilePlace, warning
from mixlist.errors import ListError
from mixlist.files.jsonc import parse, read
from mixlist.files.list_text import byte_order_marks, decode, is_directory, quoted, read_bytes, shown_path
from mixlist.lists.corrections import Correction, NewNames, correct_text
from mixlist.lists.detect_kind import FileKind, ListFile, find_list_files
from mixlist.lists.finding_selection import CodeSelection, read_selection
from mixlist.lists.library import Library, NameSpace
from mixlist.lists.load import find_space, load_library, policy_from_options
from mixlist.lists.modify_mixlist import Edit, apply_edits, are_legal, name_array, parse_edits
from mixlist.lists.op_catalog import ascend_ops, is_known, is_known_elsewhere, onnx_ops
from mixlist.lists.ops_info import inspect_library, library_files
from mixlist.lists.policy import DEFAULT_LIBRARY, ListPath, OpNames, Policy, PolicyOptions
from mixlist.lists.suggestions import did_you_mean, sure_correction
from mixlist.lists.validate_file import FileReport, validate_file
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource


def validate(
    path: ListPath,
    kind: Literal["auto"] | FileKind = "auto",
    *,
    strict: bool = False,
    ops_info: ListPath | Sequence[ListPath] | None = None,
    model: ModelSource | None = None,
    op_names: OpNames = "auto",
    keep_dtype: ListPath | None = None,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
) -> FileReport:
    """Return every finding about a list file (``-``: standard input), a library directory, or a folder of list files.

    The kind ``auto`` detects the kind by the content; another kind counts for all files of a folder that have its
    ending. ``strict`` makes comments and trailing commas errors, and so does a library with Ascend names
    (Rule S2.6). With ``ops_info`` or ``model``, the names in the file are also checked against that library (with a
    model alone, against the built-in library ``onnx``), and against the operators and nodes of the model. Several
    libraries check one after the other, and a finding that not all of them give names its library. With one of these
    or with ``op_names``, the op types of a library are checked against its name space. ``keep_dtype`` is the file of
    nodes that goes with the lists, for what they do to the model. ``select`` and ``ignore`` hold codes or their
    beginnings, such as ``["ML1"]``, of the findings to return or to leave out.

    Example::

        report = mixlist.validate("digits_mixlist.json", model="digits.onnx")
        print(report.kind, report.findings)

    Raises FileError if a file cannot be read or a folder has no list file, UsageError for an unknown code, and the
    errors of ``resolve`` for the model; every other error is a finding.
    """
    validator = make_validator(
        kind,
        strict=strict,
        ops_info=ops_info,
        model=model,
        op_names=op_names,
        keep_dtype=keep_dtype,
        select=select,
        ignore=ignore,
    )
    return validator.check(path)


class CorrectedFile(NamedTuple):
    """The bytes of a list file before and after the corrections. Nothing is written."""

    path: str
    before: bytes
    after: bytes
    corrections: tuple[Correction, ...]


class Validator(NamedTuple):
    """A check of several list files with the same options, against each library. Each library is read once."""

    checks: tuple[LibraryCheck, ...]

    @property
    def library_paths(self) -> list[ListPath]:
        """Return the libraries that the files are checked against."""
        return [check.library_path for check in self.checks if check.library_path is not None]

    def check(self, path: ListPath) -> FileReport:
        """Return the findings about a path that have one of the selected codes. Raises the errors of ``validate``."""
        reports = [check.check(path) for check in self.checks]
        return reports[0] if len(reports) == 1 else self._merge(reports)

    def _merge(self, reports: Sequence[FileReport]) -> FileReport:
        """Return one report of those of all libraries. A finding that not all of them give names its library."""
        common = frozenset.intersection(*(frozenset(report.findings) for report in reports))
        findings: dict[Diagnostic, None] = {}
        for report, library in zip(reports, self.library_paths, strict=True):
            for finding in report.findings:
                message = finding.message
                if finding not in common and f"library {shown_path(library)}" not in message:
                    message = f"under {shown_path(library)}: {message}"
                findings[replace(finding, message=message)] = None
        parts = tuple(map(self._merge, zip(*(report.parts for report in reports), strict=True)))
        return replace(reports[0], findings=tuple(findings), parts=parts)

    def correct(self, report: FileReport) -> list[CorrectedFile]:
        """Return the files of a report that have findings with a safe correction (see ``lists/corrections.py``).

        ``report`` is a report of ``check`` about one file or library, not about a folder. Raises FileError.
        """
        if any(finding.code == "ML015" for finding in report.findings):
            return []  # perhaps the file is no list file
        files: Sequence[ListPath] = report.members or ["-" if report.path == shown_path("-") else report.path]
        if not report.members and is_directory(report.path):
            files = library_files(report.path)
        corrected_files = (self._correct_file(os.fspath(path), report) for path in files)
        return [file for file in corrected_files if file is not None]

    def _correct_file(self, path: str, report: FileReport) -> CorrectedFile | None:
        findings = [finding for finding in report.findings if finding.path == shown_path(path)]
        if not findings:
            return None
        before = read_bytes(path)
        try:
            text = decode(before, shown_path(path))
            new_names: NewNames = {}
            if report.kind == "modify-mixlist" and any(finding.code in ("ML108", "ML404") for finding in findings):
                new_names = self._find_new_names(text)
            after, corrections = correct_text(text, path, report.kind, findings, new_names)
        except ListError:  # a file that cannot be read has no correction
            return None
        corrected = CorrectedFile(path, before, byte_order_marks(before) + after.encode(), tuple(corrections))
        return corrected if corrections else None

    def _find_new_names(self, text: str) -> NewNames:
        """Return the right names of op types, by the code of the fault, as far as all libraries agree on them."""
        first, *others = (check.find_new_names(text) for check in self.checks)
        return {
            code: dict(pair for pair in names.items() if all(pair in other.get(code, {}).items() for other in others))
            for code, names in first.items()
        }


@dataclass(frozen=True)
class LibraryCheck:
    """A check of several list files against one library, or against none.

    ``library_path`` and ``library`` are None if no library was given. ``space`` is the name space of the library.
    """

    kind: Literal["auto"] | FileKind
    strict: bool
    model: ModelSource | None
    op_names: OpNames
    keep_dtype: ListPath | None
    library_path: ListPath | None
    library: Library | None
    space: NameSpace | None
    selection: CodeSelection

    def check(self, path: ListPath) -> FileReport:
        """Return the findings about a path that have one of the selected codes. Raises the errors of ``validate``."""
        # As an operator information library, a folder is one library (Rule S1.3).
        if self.kind == "ops-info" or not is_directory(path):
            return self._check_file(path, self.kind)
        list_files, other_files = find_list_files(path, self.kind)
        # A guess is checked only if its warning is reported: without the warning, the file would be taken for certain.
        left_out = [file for file in list_files if file.is_guess and not self.selection.includes("ML015")]
        parts = tuple(self._check_part(file) for file in list_files if file not in left_out)
        skipped = [*other_files, *(file.path for file in left_out)]
        if len(parts) == 1 and parts[0].path == shown_path(path) and not skipped:
            return parts[0]  # the folder is one library
        findings = tuple(finding for part in parts for finding in part.findings)
        return FileReport(shown_path(path), "folder", findings, parts, tuple(sorted(map(shown_path, skipped))))

    def find_new_names(self, text: str) -> NewNames:
        """Return the right names of op types of a modify_mixlist, as far as they are certain, by the code of the fault.

        A name is not misspelled if an operator of it exists, or if the model has it. A name of the other name space is
        replaced if it has one counterpart, and if the file has other names, too: otherwise the library is probably not
        that of the file (Rule S5.6). A right name that the file has already is left out, because two entries for one
        op type can contradict each other.
        """
        from mixlist.model.operator_names import counterparts

        if self.library is None or self.space is None:
            return {}
        ops = list(dict.fromkeys(edit.op for edit in parse_edits(parse(text, ""))[0]))
        misspelled = [op for op in ops if self._is_misspelled(self.library, op)]
        new_names: dict[str, str] = {}
        for op in misspelled[:MAX_SIMILAR]:
            name = self._find_right_name(self.library, op)
            if name is not None and name not in (*ops, *new_names.values()):
                new_names[op] = name
        foreign = [op for op in ops if op not in self.library.lists and is_known_elsewhere(op, self.space)]
        names_in_space: dict[str, str] = {}
        for op in foreign if len(foreign) < len(ops) else ():
            forms = counterparts(op, self.space)
            if len(forms) == 1 and forms[0] not in (*ops, *new_names.values(), *names_in_space.values()):
                names_in_space[op] = forms[0]
        return {"ML108": new_names, "ML404": names_in_space}

    def _is_misspelled(self, library: Library, op: str) -> bool:
        """Return whether neither the library, nor the catalogs of ONNX and Ascend, nor the model have an op type."""
        is_known_name = op in library.lists or is_known(op, "onnx") or is_known(op, "ascend")
        return not is_known_name and "::" not in op and op not in self._model_ops

    def _find_right_name(self, library: Library, op: str) -> str | None:
        """Return the op type of the library that a misspelled one certainly means, if there is one."""
        from mixlist.model.operator_names import ambiguous_names

        # MatMul over an Ascend library is another operator than an ONNX MatMul, so the meaning is not certain (ML405).
        return sure_correction(
            op, [name for name in library.lists if self.space == "onnx" or name not in ambiguous_names()]
        )

    def _fail_misspelled(self, path: ListPath, findings: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return the findings, with errors for misspelled op types to which a name of the library is similar (S2.5)."""
        if self.library is None:
            return tuple(findings)
        edits = parse_edits(read(path))[0]
        misspelled = {edit.place: edit for edit in edits if self._is_misspelled(self.library, edit.op)}
        result: list[Diagnostic] = []
        for finding in findings:
            edit = misspelled.get(FilePlace(finding.path or "", finding.line or 0, finding.column or 0))
            hint = finding.hint or ""
            if finding.code == "ML108" and edit is not None and hint.startswith("did you mean"):
                hint += self._say_why_uncorrected(self.library, edit, edits)
                finding = replace(finding, severity="error", hint=hint)
            result.append(finding)
        return tuple(result)

    def _say_why_uncorrected(self, library: Library, edit: Edit, edits: Sequence[Edit]) -> str:
        """Return the end of a hint if the right name of a misspelled one is in the file already, else ""."""
        name = self._find_right_name(library, edit.op)
        others = [other for other in edits if other.op == name]
        if not others:
            return ""
        arrays = " and ".join(map(name_array, others))
        renamed = [*others, *(other for other in edits if other.op == edit.op)]
        effect = "" if are_legal(renamed) else ", and the two contradict each other (ML104): remove one"
        return f" not corrected: {name} is already in {arrays}{effect}"

    @property
    def _is_strict(self) -> bool:
        """Return whether comments and trailing commas are errors: the Ascend engine rejects them (Rule S2.6)."""
        return self.strict or "ascend" in (self.space, self.op_names)

    @cached_property
    def _model_ops(self) -> frozenset[str]:
        """Return the op types of the model; empty without a model."""
        if self.model is None:
            return frozenset()
        from mixlist.decide import resolve

        return frozenset(node.op_type for node in resolve(self.model, policy_from_options(PolicyOptions())).nodes)

    def _check_part(self, list_file: ListFile) -> FileReport:
        """Return the findings about a list file of a folder."""
        members = list_file.members
        if list_file.is_guess:
            report = self._check_file(list_file.path, list_file.kind)
            return replace(report, findings=(_guess_warning(report.path), *report.findings))
        if len(members) == 0 or len(members) == len(library_files(list_file.path)):
            return replace(self._check_file(list_file.path, list_file.kind), members=tuple(map(shown_path, members)))
        # The folder holds other .json files too, so it cannot be loaded as a library. Only its files are checked.
        library, findings = inspect_library(list_file.path, strict=self._is_strict, files=members)
        if not any(finding.severity == "error" for finding in findings):
            findings += self._check_library_names(library)
        report = FileReport(shown_path(list_file.path), "ops-info", tuple(findings))
        return self._select(replace(report, members=tuple(map(shown_path, members))))

    def _check_file(self, path: ListPath, kind: Literal["auto"] | FileKind) -> FileReport:
        report = validate_file(path, kind, strict=self._is_strict, library=self.library, space=self.space)
        if report.kind == "modify-mixlist" and any(finding.code == "ML108" for finding in report.findings):
            report = replace(report, findings=self._fail_misspelled(path, report.findings))
        # A file with errors gives no policy, so its names are not compared with the model. Comments, commas
        # and misspelled names do not hide the other names.
        no_obstacle = ("ML006", "ML007", "ML108")
        if any(finding.severity == "error" and finding.code not in no_obstacle for finding in report.findings):
            names = self._find_names_beside_errors(path) if report.kind == "modify-mixlist" else ()
            report = replace(report, findings=(*report.findings, *names), skips_model=self.model is not None)
            return self._select(report)
        name_findings: list[Diagnostic] = []
        if report.kind == "modify-mixlist" and self.library is None:
            name_findings += _find_misspelled(parse_edits(read(path))[0])
        if report.kind == "ops-info" and self._checks_library_names:
            name_findings += self._check_library_names(inspect_library(path)[0])
        if self.library_path is not None:
            options = PolicyOptions(ops_info=self.library_path, op_names=self.op_names, keep_dtype=self.keep_dtype)
            policy = policy_from_options(_with_file(options, report.kind, path))
            found = _fail_foreign_list(policy, _check_names(policy, self.model))
            other_file = None if self.keep_dtype is None else shown_path(self.keep_dtype)  # is checked for itself
            name_findings += [f for f in found if f.path is None or f.path != other_file or f.path == report.path]
        # A misspelled name is absent from the model, too: one finding is enough.
        misspelled = {(f.line, f.column) for f in report.findings if (f.code, f.severity) == ("ML108", "error")}
        name_findings = [f for f in name_findings if f.code != "ML406" or (f.line, f.column) not in misspelled]
        return self._select(replace(report, findings=(*report.findings, *name_findings)))

    def _find_names_beside_errors(self, path: ListPath) -> Sequence[Diagnostic]:
        """Return the warnings about names of a modify_mixlist that has other errors, so that one run shows all."""
        if self.library is None or self.library_path is None:
            return ()
        from mixlist.model.name_warnings import find_name_warnings

        try:
            edits = parse_edits(read(path))[0]
        except ListError:  # no JSON, so there are no names
            return ()
        # The lists are wrong for illegal combinations of edits, but the names are those of the file.
        lists = apply_edits(self.library, edits, self.space)[0]
        policy = policy_from_options(PolicyOptions(ops_info=self.library_path, op_names=self.op_names))
        return find_name_warnings(replace(policy, lists=lists))

    @property
    def _checks_library_names(self) -> bool:
        """Return whether an option asks for a check of the names of a library."""
        return self.library_path is not None or self.op_names != "auto"

    def _check_library_names(self, library: Library) -> Sequence[Diagnostic]:
        """Return the warnings about the op types of a checked library, if an option asks for a check of names."""
        if not self._checks_library_names:
            return ()
        from mixlist.model.name_warnings import find_unknown_library_ops

        space, doubts = find_space(library, self.op_names)
        return doubts or find_unknown_library_ops(library, space, self._model_ops)

    def _select(self, report: FileReport) -> FileReport:
        selected = (finding for finding in report.findings if self.selection.includes(finding.code))
        return replace(report, findings=tuple(selected))


def make_validator(
    kind: Literal["auto"] | FileKind,
    *,
    strict: bool,
    ops_info: ListPath | Sequence[ListPath] | None,
    model: ModelSource | None,
    op_names: OpNames,
    keep_dtype: ListPath | None,
    select: str | Iterable[str],
    ignore: str | Iterable[str],
) -> Validator:
    """Read the libraries, and return a validator for several files. The arguments are those of ``validate``."""
    selection = read_selection(select, ignore)
    ops_info = () if ops_info is None else ops_info
    given_paths = [ops_info] if isinstance(ops_info, str | os.PathLike) else list(dict.fromkeys(ops_info))
    # A model is resolved under a policy, which needs a library.
    library_paths: list[ListPath | None] = [*given_paths] or [None if model is None else DEFAULT_LIBRARY]
    checks = []
    for path in library_paths:
        library = None if path is None else load_library(path)[0]
        space = None if library is None else find_space(library, op_names)[0]
        checks.append(LibraryCheck(kind, strict, model, op_names, keep_dtype, path, library, space, selection))
    return Validator(tuple(checks))


def _guess_warning(path: str) -> Diagnostic:
    left_out = spell("ignore", "ML015")
    hint = f"put keep_dtype into the name of the file; if it is none, leave it out with {left_out}"
    message = "every line can be the name of a node, so the file is checked as a keep_dtype file"
    return warning("ML015", message, path=path, hint=hint)


def _with_file(options: PolicyOptions, kind: str, path: ListPath) -> PolicyOptions:
    """Return the options with the file as the option for its kind."""
    if kind == "modify-mixlist":
        return replace(options, mixlist=path)
    if kind == "ops-info":
        return replace(options, ops_info=path)
    if kind == "keep-dtype":
        return replace(options, keep_dtype=path)
    return replace(options, customize_dtypes=path) if kind == "customize-dtypes" else options


def _find_misspelled(edits: Iterable[Edit]) -> Iterator[Diagnostic]:
    """Yield a warning for each op type that no catalog has, but a similar one: without a library, it may be right."""
    known = onnx_ops() | ascend_ops()
    for op, edit in {edit.op: edit for edit in edits}.items():
        hint = did_you_mean(op, known) if "::" not in op and op not in known else None
        if hint is not None:
            message = f"neither ONNX nor a library of Ascend has an op type {quoted(op)}"
            yield edit.place.finding("ML108", "warning", message, hint)


def _check_names(policy: Policy, model: ModelSource | None) -> Sequence[Diagnostic]:
    """Return the warnings about the names of a policy that its library does not have.

    With a model, return all warnings of ``resolve``, for example about nodes that the model does not have, or the
    errors of the list files for this model.
    """
    if model is None:
        from mixlist.model.name_warnings import find_name_warnings, find_unknown_rule_types

        return [*find_name_warnings(policy), *find_unknown_rule_types(policy)]
    from mixlist.decide import resolve

    try:
        return resolve(model, policy).warnings
    # The file contradicts the model: for example, a rule is for an op type that no node has (Rule S6.6).
    except ListError as error:
        return error.diagnostics


def _fail_foreign_list(policy: Policy, findings: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """Return the findings with errors for the names of a file that has only names of the other name space (Rule S5.6).

    Such a file changes nothing, so its author has probably given another library than intended.
    """
    findings = [replace(f, severity="error") if f.code == "ML412" else f for f in findings]  # atc refuses it (S4.50)
    foreign_names = [finding for finding in findings if finding.code == "ML404"]
    if len(foreign_names) < len(policy.lists.named_ops):
        return findings
    reason = "the file has no other names, so it has no effect"
    errors = [replace(name, severity="error", message=f"{name.message}; {reason}") for name in foreign_names]
    return [*errors, *(finding for finding in findings if finding.code != "ML404")]
