"""Baselines: known findings stay known after edits elsewhere, and every other finding is reported."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

import mixlist
from mixlist.errors import MixlistError
from mixlist.lists.finding_selection import BaselineRun, read_baseline, read_selection, write_baseline
from mixlist.lists.validate_file import FileReport
from tests.support.package import data_folder

TEXT = '{"white-list": {"to-add": ["Add", "Add", "Exp", "Exp", "Exp"]}}'


def run_of(folder: Path, *reports: FileReport, ignore: str = "") -> BaselineRun:
    return BaselineRun(reports, folder, read_selection((), ignore))


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """Write a file with three known findings, and its baseline."""
    (tmp_path / "m.json").write_text(TEXT)
    path = tmp_path / "lists" / "b.json"
    path.parent.mkdir()
    write_baseline(str(path), run_of(path.parent, mixlist.validate(tmp_path / "m.json")).known_findings())
    return path


def outcome(baseline: Path, *reports: FileReport, ignore: str = "") -> tuple[list[str], int]:
    """Return the codes of the new findings, and the number of the known ones."""
    run = run_of(baseline.parent, *reports, ignore=ignore)
    new_reports, known_count = run.without_known(read_baseline(str(baseline)))
    return [finding.code for report in new_reports for finding in report.findings], known_count


def test_a_baseline_follows_its_schema_and_has_relative_paths(baseline: Path) -> None:
    content = json.loads(baseline.read_text())
    jsonschema.validate(content, json.loads((data_folder("schemas") / "baseline.json").read_text("utf-8")))
    assert [(entry["path"], entry["code"], entry.get("count", 1)) for entry in content["findings"]] == [
        ("../m.json", "ML105", 1),
        ("../m.json", "ML105", 2),
    ]


def test_findings_stay_known_after_edits_elsewhere(baseline: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    assert outcome(baseline, mixlist.validate(file)) == ([], 3)
    file.write_text('\n\n{"black-list":\n {"to-add": ["Sin", "Sin"]},\n' + TEXT[1:])
    assert outcome(baseline, mixlist.validate(file)) == (["ML105"], 3)


def test_more_findings_than_the_baseline_counts_are_new(baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(TEXT.replace('"Exp"]', '"Exp", "Exp"]'))
    assert outcome(baseline, mixlist.validate(tmp_path / "m.json")) == (["ML105"], 3)


def test_entries_that_no_longer_occur_are_findings(baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(TEXT.replace(', "Exp", "Exp"]', ', "Exp"]').replace('"Add", "Add"', '"Add"'))
    report = mixlist.validate(tmp_path / "m.json")
    assert outcome(baseline, report) == (["ML014", "ML014"], 1)
    assert outcome(baseline, report, ignore="ML014") == ([], 1)
    reports, _ = run_of(baseline.parent, report).without_known(read_baseline(str(baseline)))
    findings = reports[-1].findings
    assert [(finding.path, finding.line) for finding in findings] == [(str(baseline), 4), (str(baseline), 5)]
    assert "no longer occurs in ../m.json" in findings[0].message
    assert "occurs 1 times, not 2 times" in findings[1].message


def test_entries_of_other_files_and_codes_are_not_judged(baseline: Path, tmp_path: Path) -> None:
    """Only a part of the files is checked, for example in a pre-commit hook."""
    (tmp_path / "other.json").write_text("{}")
    other = mixlist.validate(tmp_path / "other.json")
    assert outcome(baseline, other) == ([], 0)
    (tmp_path / "m.json").write_text("{}")
    assert outcome(baseline, mixlist.validate(tmp_path / "m.json"), ignore="ML105") == ([], 0)
    (tmp_path / "m.json").unlink()
    assert outcome(baseline, other) == (["ML014", "ML014"], 0)


def test_entries_that_need_a_library_or_model_are_judged_only_with_one(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"white-list": {"to-add": ["NoSuchOp"]}}')
    path = tmp_path / "b.json"
    report = mixlist.validate(tmp_path / "m.json", ops_info="onnx")
    write_baseline(str(path), run_of(tmp_path, report).known_findings())
    known = read_baseline(str(path))
    (tmp_path / "m.json").write_text("{}")
    report = mixlist.validate(tmp_path / "m.json")
    for library, new_count in ((None, 0), ("onnx", 1)):
        run = BaselineRun([report], tmp_path, read_selection((), ()), library)
        reports, _ = run.without_known(known)
        assert sum(len(report.findings) for report in reports) == new_count


def test_a_file_that_cannot_be_read_is_never_known(baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{")
    report = mixlist.validate(tmp_path / "m.json")
    assert outcome(baseline, report) == (["ML001"], 0), "its entries may occur: nobody knows"
    assert run_of(tmp_path, report).known_findings() == Counter()


def test_a_new_baseline_keeps_entries_that_were_not_judged(baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(TEXT)
    old = read_baseline(str(baseline))
    merged = run_of(baseline.parent, mixlist.validate(tmp_path / "other.json")).merged_with(old)
    assert Counter(finding.path for finding in merged.elements()) == {"../m.json": 3, "../other.json": 3}
    (tmp_path / "m.json").write_text("{}")
    assert not run_of(baseline.parent, mixlist.validate(tmp_path / "m.json")).merged_with(old)


def test_a_message_about_another_file_of_a_library_does_not_depend_on_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    for name, flag in (("a.json", "true"), ("b.json", "false")):
        (tmp_path / "lib" / name).write_text(f'{{"Add": {{"precision_reduce": {{"flag": "{flag}"}}}}}}')
    found = []
    for folder, path in ((tmp_path, "lib"), (tmp_path / "lib", "."), (tmp_path, tmp_path / "lib")):
        monkeypatch.chdir(folder)
        found.append(run_of(tmp_path, mixlist.validate(path)).known_findings())
    assert found[0] == found[1] == found[2] and len(found[0]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a baseline"),
        ("[]", "not a baseline"),
        ('{"format": "mixlist.baseline/2", "findings": []}', "not a baseline"),
        ('{"format": "mixlist.baseline/1", "findings": [\n 1]}', "b.json:2:2: this is not an entry"),
        (
            '{"format": "mixlist.baseline/1", "findings": [{"path": "a", "code": "ML105", "message": "", "count": 0}]}',
            "not an entry",
        ),
        ("{", "b.json:1:2"),
    ],
)
def test_another_file_is_refused_as_a_baseline(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(MixlistError, match=message):
        read_baseline(str(tmp_path / "b.json"))
