"""Check the paths of one ``mixlist validate``, correct their files, and compare the findings with a baseline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixlist.cli.error_output import report_error
from mixlist.cli.validate_hints import error_for_validate, report_for_validate
from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError, MixlistError
from mixlist.files.folder_lock import replace_unless_changed
from mixlist.lists.corrections import Correction
from mixlist.lists.finding_selection import Baseline, BaselineRun, read_baseline, write_baseline
from mixlist.lists.validate_file import FileReport
from mixlist.show.number_text import pluralize
from mixlist.show.terminal import escape_commands
from mixlist.validation import CorrectedFile, Validator


@contextmanager
def errors_of_library() -> Iterator[None]:
    """Let the hints of errors in the library of --ops-info name options of this command."""
    try:
        yield
    except ListError as error:
        raise error_for_validate(error, is_library=True) from None


class ValidateRun:
    """The check of all paths: the reports, the files that are no list files, and the corrections."""

    def __init__(self, validator: Validator, *, corrects: bool, writes_files: bool) -> None:
        self.reports: list[FileReport] = []
        self.skipped: list[str] = []
        self.corrected_files: list[CorrectedFile] = []
        self.has_unusable_path = False  # a path that cannot be read, or a file that cannot be written
        self.validator = validator
        self._corrects, self._writes_files = corrects, writes_files

    @property
    def findings(self) -> list[Diagnostic]:
        """Return the findings of all reports."""
        return [finding for report in self.reports for finding in report.findings]

    @property
    def corrections(self) -> list[Correction]:
        """Return the corrections of all files."""
        return [correction for file in self.corrected_files for correction in file.corrections]

    @property
    def file_count(self) -> int:
        """Return the number of list files; a library counts as one."""
        return sum(report.kind != "baseline" for report in self.reports)

    def check(self, path: str) -> None:
        """Check a path and correct its files. An error of the path is written, and does not end the run."""
        try:
            report = self.validator.check(path)
            if self._corrects and self._correct(report):
                report = self.validator.check(path)
        except MixlistError as error:
            report_error(error_for_validate(error))
            self.has_unusable_path = True
            return
        # A file can be named twice: by its path and by its folder.
        known_paths = {os.path.normpath(other.path) for other in self.reports}
        parts = [part for part in report.parts or [report] if os.path.normpath(part.path) not in known_paths]
        self.reports += map(report_for_validate, parts)
        self.skipped += report.skipped

    def _correct(self, report: FileReport) -> bool:
        """Correct the files of a report; return True if a file was written."""
        corrected_files = [file for part in report.parts or [report] for file in self.validator.correct(part)]
        for file in corrected_files:
            if self._writes_files:
                replace_unless_changed(file.path, file.before, file.after)
            self.corrected_files.append(file)
        return self._writes_files and bool(corrected_files)


class Baselines:
    """The baseline that a run is compared with, and the path of the one that it writes."""

    def __init__(self, path: str | None, new_path: str | None) -> None:
        """Read the baseline, and the file that the new baseline replaces: some of its entries stay."""
        self._path, self._new_path = path, new_path
        self._baseline = None if path is None else read_baseline(path)
        self._replaced = read_baseline(new_path) if new_path is not None and Path(new_path).is_file() else None

    def leave_out_known(self, run: ValidateRun, *, quiet: bool) -> int | None:
        """Remove the known findings from a run, and return their number; None if no baseline is used.

        A new baseline is written first. All its findings are known. Unless ``quiet``, standard error names the file.
        """
        path, baseline = self._path, self._baseline
        if self._new_path is not None:
            path = self._new_path
            counts = _comparison(run, path).merged_with(self._replaced)
            write_baseline(path, counts)
            if not quiet:
                sys.stderr.write(f"wrote {escape_commands(path)}: {pluralize(sum(counts.values()), 'finding')}\n")
            baseline = Baseline(path, counts, {})
        if path is None or baseline is None:
            return None
        run.reports, known_count = _comparison(run, path).without_known(baseline)
        return known_count


def _comparison(run: ValidateRun, path: str) -> BaselineRun:
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100 - resolve() would follow a link to the baseline
    has_model = run.validator.model is not None
    return BaselineRun(run.reports, folder, run.validator.selection, run.validator.library_path, has_model)
