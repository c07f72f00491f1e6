"""validate_file: every finding about a file, and the detection of its kind.

The folders valid/ and invalid/ hold example files. For each there is a file NAME.expected: its first line is the kind,
and each further line the code, severity and place of one finding.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.lists.library import Library
from mixlist.lists.validate_file import FileReport, validate_file
from tests.support.systems import linux_only

HERE = Path(__file__).parent
# The suite reads a quarter of the wrong entries, in a quarter of the time; MIXLIST_CAMPAIGN=1 reads all.
PART = 1 if os.environ.get("MIXLIST_CAMPAIGN") == "1" else 4
EXAMPLES = sorted(
    p for folder in ("valid", "with_findings") for p in (HERE / folder).iterdir() if p.suffix != ".expected"
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_an_example_has_the_expected_findings(path: Path) -> None:
    kind, *expected = path.with_name(f"{path.name}.expected").read_text("utf-8").splitlines()
    report = validate_file(path)
    assert [f"{f.code} {f.severity} {f.line}:{f.column}" for f in report.findings] == expected
    assert f"kind {report.kind}" == kind
    assert bool(expected) == (path.parent.name == "with_findings")
    assert all(f.path == report.path == str(path) and f.message and "\n" not in f.message for f in report.findings)


def test_every_example_has_a_file_of_expected_findings() -> None:
    for folder in ("valid", "with_findings"):
        names = {p.name for p in (HERE / folder).iterdir()}
        assert names == {f"{n}{end}" for n in names if not n.endswith(".expected") for end in ("", ".expected")}


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.parent.name == "valid"], ids=lambda p: p.name)
def test_valid_examples_are_invalid_as_the_other_kind(path: Path) -> None:
    kind = validate_file(path).kind
    if path.suffix == ".json":
        (other_kind,) = {"modify-mixlist", "ops-info"} - {kind}
        findings = validate_file(path, other_kind).findings
        assert findings and findings[0].code in ("ML109", "ML207", "ML208")


def test_strict_makes_comments_and_trailing_commas_errors() -> None:
    """Rule S2.6: Comments and trailing commas are read with a warning."""
    findings = validate_file(HERE / "with_findings" / "documented-sample.json", strict=True).findings
    assert {f.severity for f in findings} == {"error"}


def test_a_mixlist_is_checked_against_a_library() -> None:
    library = Library("lib", {"MatMul": "white", "Cast": "black"})
    findings = validate_file(HERE / "with_findings" / "documented-sample.json", library=library).findings
    found_codes = [(f.code, f.line) for f in findings if f.code.startswith("ML1")]
    assert found_codes == [("ML108", 4), ("ML106", 4), ("ML108", 7)]
    assert any(f.hint and f.hint.startswith("did you mean MatMul") for f in findings)


def test_a_directory_has_findings_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"A": {"precision_reduce": {"flag": true}}}')
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_text('{"C": {}}')
    report = validate_file(tmp_path)
    assert (report.kind, report.path) == ("ops-info", str(tmp_path))
    parts = report.by_file()
    assert {(Path(part.path).name, *(f.code for f in part.findings)) for part in parts} == {
        ("a.json", "ML204"),
        ("b.json", "ML001"),
    }
    (tmp_path / "a.json").unlink()
    (tmp_path / "b.json").unlink()
    clean = validate_file(tmp_path)
    assert clean.by_file() == [clean]


def test_a_hyphen_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, kind in [('{"black-list": {}}', "modify-mixlist"), ("a/b\n", "keep-dtype"), ('{"A": {}}', "ops-info")]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        report = validate_file("-")
        assert (report.path, report.kind, report.findings) == ("<stdin>", kind, ())


def test_a_path_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(FileError):
            validate_file(path)


def test_a_file_name_that_is_not_utf_8_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "b\udcffad\n.json"
    path.write_text("{")
    (finding,) = validate_file(path).findings
    assert finding.path is not None
    finding.path.encode("utf-8")


LITE = "# for converter_lite\n\r\n[acl_init_options]\nge.exec.precision_mode = allow_mix_precision\n"


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        (
            LITE + 'ge.exec.modify_mixlist="./mix.json"\nge.customizeDtypes=one.cfg\n',
            (5, 1),
            "a configuration of MindSpore Lite, not a list file: ge.exec.modify_mixlist, ge.customizeDtypes names one",
            "check ./mix.json, one.cfg",
        ),
        (LITE, (3, 1), "a configuration of MindSpore Lite, not a list file, and no key names one", "give the path"),
        ("[ByNodeName]\n/a=high_precision\n", (1, 1), "an op_precision_mode file", "how operators compute inside"),
        ("SoftmaxV2=high_precision\nPow=keep_fp16\n", (1, 1), "an op_precision_mode file", "compute inside"),
        ("[any]\nkeep_dtype=k.cfg\n", (2, 1), "a configuration in INI form, not a list file: keep_dtype", "k.cfg"),
    ],
    ids=["lists", "no lists", "by name", "without a section", "unknown"],
)
def test_a_configuration_in_ini_form_says_which_list_files_it_names(
    tmp_path: Path, text: str, place: tuple[int, int], message: str, hint: str
) -> None:
    path = tmp_path / "options.ini"
    path.write_text(text)
    report = validate_file(path)
    (finding,) = report.findings
    assert (finding.code, finding.line, finding.column) == ("ML016", *place)
    assert message in finding.message and hint in (finding.hint or "")


@pytest.mark.parametrize("text", ["a=b\nc=high_precision\n", "[a]\n", "[a]\nb=c\nd\n", ""])
def test_other_texts_are_no_configurations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.ini"
    path.write_text(text)
    assert "ML016" not in [finding.code for finding in validate_file(path).findings]


@pytest.mark.parametrize("kind", ["auto", "modify-mixlist", "ops-info"])
def test_many_wrong_entries_cost_little_time(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "f.json"
    for value in (
        dict.fromkeys(map(str, range(400_000 // PART)), 1),
        {"black-list": {"to-add": list(range(50_000 // PART)), "to-remove": ["A"] * (50_000 // PART)}},
        {str(i): {"precision_reduce": {"flag": "x"}} for i in range(49_000 // PART)},
    ):
        path.write_text(json.dumps(value))
        start = time.process_time()
        report = validate_file(path, kind)  # type: ignore[arg-type]
        assert 0 < len(report.findings) < 400
        assert time.process_time() - start < 20 / PART  # seconds; measured: at most 7 / PART


@linux_only
@pytest.mark.parametrize(
    ("name", "count"), [("names.json", 250_000), ("library.json", 1_000_000), ("keep.txt", 1_000_000)]
)
def test_a_file_that_is_too_large_costs_little_memory(tmp_path: Path, name: str, count: int) -> None:
    """Allowed are ten times the size of the file and 80 MB."""
    names = [f"Op{number}" for number in range(count)]
    text = {
        "names.json": '{"white-list":{"to-add":["' + '","'.join(names) + '"]}}',
        "library.json": '{"' + '":{},"'.join(names) + '":{}}',
        "keep.txt": "\n".join(names),
    }[name]
    path = tmp_path / name
    path.write_text(text)
    del names
    code = (
        "import resource, sys; from mixlist.lists.validate_file import validate_file\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({10 * len(text) + (80 << 20)},) * 2)\n"
        "validate_file(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert f"{name}: more than" in done.stderr
    assert "FileError" in done.stderr


def test_a_file_of_the_maximum_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    """A file with exactly the largest number of characters or lines is read; one more is an error."""
    path = tmp_path / "names.json"
    names = [f"Op{number}" for number in range(100_000)]
    text = json.dumps({"white-list": {"to-add": names}}).ljust(2 << 20)
    path.write_text(text)
    assert validate_file(path).findings == ()
    path.write_text(text + " ")
    with pytest.raises(FileError, match="more than 2 MiB: too much for a modify_mixlist"):
        validate_file(path)
    path = tmp_path / "keep.txt"
    path.write_text("\n".join([*names, "last"]))
    assert validate_file(path).findings == ()
    path.write_text("\n".join([*names, "one", "two"]))
    with pytest.raises(FileError, match="more than 100,000 lines"):
        validate_file(path)


def test_an_empty_text_file_holds_no_node_rules_and_no_error(tmp_path: Path) -> None:
    """``repair --rules`` writes such a file if no node needs a rule. Blank files and .json files are errors."""
    (tmp_path / "rules.txt").write_text("")
    assert validate_file(tmp_path / "rules.txt") == FileReport(str(tmp_path / "rules.txt"), "customize-dtypes", ())
    for name, text in (("blank.txt", "\n"), ("empty.json", "")):
        (tmp_path / name).write_text(text)
        assert [finding.code for finding in validate_file(tmp_path / name).findings] == ["ML003"]


def test_empty_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program before the pipe may have failed."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert [finding.code for finding in validate_file("-").findings] == ["ML003"]
