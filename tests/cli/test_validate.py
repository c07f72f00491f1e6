"""``mixlist validate``: findings in every format, exit statuses, cross-checks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import mixlist
from tests.support.builders import model

BAD = '{\n  "black-list": {"to-add": ["Add"]},\n  "white-list": {"to-add": ["Add"]}\n}\n'
DOUBTFUL = '{"gray-list": {"to-add": ["Relu"]}}\n'


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text('{"black-list": {"to-add": ["Add"]}}\n')
    (tmp_path / "bad.json").write_text(BAD)
    (tmp_path / "doubtful.json").write_text(DOUBTFUL)
    return tmp_path


def test_the_help_names_no_default_library(run) -> None:
    """Without --ops-info no library is compared."""
    words = " ".join(run("validate", "--help").out.split())
    assert "Also check the lists against this operator library" in words and "[default: onnx]" not in words


def test_a_valid_file_has_status_0(run, files: Path) -> None:
    completed = run("validate", "good.json")
    assert (completed.status, completed.out) == (0, "good.json: modify-mixlist, no findings\n")
    unchecked = "names were not checked against a library: give --ops-info\n"
    assert completed.err == f"1 file checked: 0 errors, 0 warnings\n{unchecked}"
    assert run("validate", "good.json", "--ops-info", "onnx").err == "1 file checked: 0 errors, 0 warnings\n"


def test_errors_have_a_line_a_code_and_status_1(run, files: Path) -> None:
    completed = run("validate", "bad.json", "good.json")
    assert completed.status == 1
    assert "bad.json:3:29: error ML1" in completed.out or "bad.json:2:29: error ML1" in completed.out
    assert "good.json: modify-mixlist, no findings" in completed.out


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mixlist.target/1", "the table of a target: give it to --target"), ("mixlist.check/1", "a report of mixlist")],
)
def test_another_file_of_mixlist_is_no_library(run, files: Path, name: str, hint: str) -> None:
    (files / "other.json").write_text(json.dumps({"format": name, "kernels": {"": {}}}))
    completed = run("validate", "other.json")
    assert completed.status == 1
    assert completed.out.count("error") == 2 and "error ML010: the file is neither" in completed.out
    assert f"its format is {name}" in completed.out and hint in completed.out
    assert "other.json: no list file, skipped" in run("validate", ".").out


def test_strict_makes_warnings_fail(run, files: Path) -> None:
    assert run("validate", "doubtful.json").status == 0
    completed = run("validate", "doubtful.json", "--strict")
    assert completed.status == 1
    assert "doubtful.json:1:" in completed.out


def test_json_has_the_findings_of_each_file(run, files: Path) -> None:
    completed = run("validate", "bad.json", "good.json", "--format", "json")
    result = json.loads(completed.out)
    assert result["format"] == "mixlist.validate/1"
    assert [(f["path"], f["kind"]) for f in result["files"]] == [
        ("bad.json", "modify-mixlist"),
        ("good.json", "modify-mixlist"),
    ]
    (finding, *_) = result["files"][0]["findings"]
    assert set(finding) == {"code", "severity", "message", "line", "column", "hint"}
    assert finding["severity"] == "error"
    assert finding["line"] in (2, 3)
    assert finding["column"] == 29
    assert result["files"][1]["findings"] == []
    assert completed.status == 1


def test_github_annotations_name_the_file(run, files: Path) -> None:
    completed = run("validate", "bad.json", "--format", "github")
    assert completed.out.startswith("::error file=bad.json,line=")
    assert completed.out.count("\n") == completed.out.count("::error ")


def test_sarif_has_rules_and_locations(run, files: Path) -> None:
    completed = run("validate", "bad.json", "doubtful.json", "--format", "sarif")
    log = json.loads(completed.out)
    assert log["version"] == "2.1.0"
    (sarif_run,) = log["runs"]
    rules = sarif_run["tool"]["driver"]["rules"]
    assert sarif_run["tool"]["driver"]["name"] == "mixlist"
    for result in sarif_run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] in ("bad.json", "doubtful.json")
        assert place["region"]["startLine"] >= 1
    for rule in rules:
        assert rule["shortDescription"]["text"] != rule["id"], "docs/codes gives every rule a title"


def test_after_a_missing_file_the_other_files_are_checked(run, files: Path) -> None:
    completed = run("validate", "nothing.json", "good.json")
    assert completed.status == 2
    assert "nothing.json: no such file" in completed.err
    assert "good.json" in completed.out


def test_a_directory_without_json_is_an_error(run, files: Path) -> None:
    (files / "empty").mkdir()
    completed = run("validate", "empty")
    assert completed.status == 2
    assert "empty" in completed.err


def test_standard_input_is_read_once(run, files: Path) -> None:
    completed = run("validate", "-", stdin=BAD)
    assert completed.status == 1
    assert "<stdin>:" in completed.out
    assert run("validate", "-", "-", stdin=BAD).status == 2


def test_kind_decides_how_a_file_is_read(run, files: Path) -> None:
    (files / "nodes.txt").write_text("/fc/MatMul\nOpType::Add\n")
    assert run("validate", "nodes.txt", "--kind", "keep-dtype").status == 0
    assert run("validate", "good.json", "--kind", "ops-info").status == 1


def test_names_of_the_other_name_space_have_a_hint(run, files: Path) -> None:
    (files / "conv.json").write_text('{"black-list": {"to-add": ["Conv", "Add"]}}\n')
    completed = run("validate", "conv.json", "--ops-info", "ascend910b")
    assert completed.status == 0
    assert "ML404" in completed.out
    assert "Conv2D" in completed.out


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_op_types_that_the_model_lacks_are_findings(run, files: Path, model_path: Path, source: str) -> None:
    text = '{"black-list": {"to-add": ["GRU"]}}\n'
    (files / "gru.json").write_text(text)
    path = "gru.json" if source == "file" else "-"
    completed = run("validate", path, "--model", model_path, stdin=text)
    assert completed.status == 0
    assert "ML406" in completed.out
    assert run("validate", path, "--model", model_path, "--strict", stdin=text).status == 1


def test_a_missing_model_is_an_error(run, files: Path) -> None:
    completed = run("validate", "good.json", "--model", "nothing.onnx")
    assert completed.status == 2
    assert "nothing.onnx" in completed.err


def test_the_library_can_come_from_standard_input(run: Callable[..., Any], tmp_path: Path) -> None:
    """The library is read for each file, and again as a part of the policy."""
    library = '{"MatMul": {"precision_reduce": {"flag": "true"}}}'
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text('{"black-list": {"to-add": ["MatMul", "Softmax"]}}')
    completed = run("validate", tmp_path / "one.json", tmp_path / "two.json", "--ops-info", "-", stdin=library)
    assert completed.status == 0
    assert completed.out.count('ML108: library <stdin> has no op type "Softmax"') == 2
    assert '"MatMul"' not in completed.out


@pytest.fixture
def two_chips(files: Path) -> tuple[str, ...]:
    """Write two libraries, of which one has Relu as white, and return the options that name both."""
    for name, flag in (("one", "true"), ("two", "false")):
        library = {"Relu": {"precision_reduce": {"flag": flag}}, "SoftmaxV2": {}, "Add": {}}
        (files / f"{name}.json").write_text(json.dumps(library))
    return ("--op-names", "ascend", "--ops-info", "one.json", "--ops-info", "two.json")


@pytest.mark.parametrize("path", ["lists", "lists/modify.json", "-"])
def test_each_library_is_checked_and_a_finding_of_one_names_it(
    run: Callable[..., Any], files: Path, two_chips: tuple[str, ...], path: str
) -> None:
    """The removal has an effect on one chip only. The repeated name is one finding, because both chips have it."""
    text = '{"white-list": {"to-remove": ["Relu"]}, "black-list": {"to-add": ["Add", "Add"]}}'
    (files / "lists").mkdir()
    (files / "lists/modify.json").write_text(text)
    completed = run("validate", path, *two_chips, stdin=text)
    assert (completed.status, codes_of(completed)) == (0, ["ML105", "ML106"])
    assert 'ML106: this removal has no effect: "Relu" is black in library two.json' in completed.out
    assert codes_of(run("validate", path, *two_chips[:4], stdin=text)) == ["ML105"]


def test_a_finding_of_one_library_names_it_also_if_its_message_does_not(run: Callable[..., Any], files: Path) -> None:
    """Rule S2.6: the comment is an error only under an Ascend library."""
    (files / "commented.json").write_text("{} // no edits")
    completed = run("validate", "commented.json", "--ops-info", "onnx", "--ops-info", "ascend910b")
    assert completed.status == 1
    assert "error ML006: under ascend910b: JSON does not allow this comment" in completed.out
    assert "warning ML006: under onnx: JSON does not allow this comment" in completed.out


def test_a_name_is_corrected_only_where_all_libraries_agree(run: Callable[..., Any], files: Path) -> None:
    (files / "one.json").write_text('{"SoftmaxV2": {}, "Conv2DD": {}, "Conv2D": {}}')
    (files / "two.json").write_text('{"SoftmaxV2": {}, "Conv2D": {}}')
    path = files / "modify.json"
    path.write_text('{"black-list": {"to-add": ["SoftmxV2", "Conv2DD"]}}')
    arguments = ("validate", path, "--fix", "--op-names", "ascend", "--ops-info", "two.json")
    run(*arguments, "--ops-info", "one.json")
    assert path.read_text() == '{"black-list": {"to-add": ["SoftmaxV2", "Conv2DD"]}}'
    run(*arguments)
    assert "Conv2DD" not in path.read_text()


def test_a_list_alone_is_checked_without_importing_onnx(tmp_path: Path) -> None:
    """The import of onnx takes as long as everything else that the command does."""
    (tmp_path / "modify.json").write_text('{"black-list": {"to-add": ["MatMul"]}}')
    code = "import sys, mixlist.cli; mixlist.cli.main(['validate', 'modify.json']); print(sorted(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'mixlist.validation'" in completed.stdout
    assert not any(f"'{name}'" in completed.stdout for name in ("mixlist.decide", "mixlist.model", "onnx", "numpy"))


def codes_of(completed: Any) -> list[str]:
    return re.findall(r"(?:error|warning) (ML\d+):", completed.out)


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("keep-dtype", "OpType::Sofmax\n", "ML307"),
        ("customize-dtypes", "OpType::Sofmax:InputDtype:float16,OutputDtype:\n", "ML307"),
        ("customize-dtypes", "first::InputDtype:float16,float32,OutputDtype:\n", "ML308"),
        ("customize-dtypes", "first::InputDtype:,,float16,OutputDtype:\n", "ML308"),
    ],
)
def test_a_rule_that_resolve_refuses_is_an_error_with_the_model(
    run, files: Path, model_path: Path, kind: str, text: str, code: str
) -> None:
    """Rules S6.6 and S6.7: the errors of a rule against the model are findings of validate, too."""
    (files / "rules.cfg").write_text(text)
    completed = run("validate", "rules.cfg", "--kind", kind, "--model", model_path)
    assert (completed.status, codes_of(completed)) == (1, [code])
    resolved = run("resolve", model_path, f"--{kind}", "rules.cfg")
    assert resolved.status == 2 and f"error {code}" in resolved.err


def test_every_op_type_that_the_model_lacks_is_reported_with_similar_names(run, files: Path, model_path: Path) -> None:
    (files / "rules.cfg").write_text("OpType::Sofmax\nnowhere\nOpType::Relu\nOpType::Gelu\n")
    completed = run("validate", "rules.cfg", "--kind", "keep-dtype", "--model", model_path)
    assert codes_of(completed) == ["ML307", "ML305", "ML307"]
    assert "hint: did you mean Softmax?" in completed.out


@pytest.mark.parametrize(("library", "op"), [("onnx", "Sofmax"), ("ascend910b", "Sofmax"), ("ascend910b", "Conv2")])
def test_an_op_type_of_a_rule_that_exists_nowhere_warns_without_a_model(
    run, files: Path, library: str, op: str
) -> None:
    (files / "rules.cfg").write_text(f"OpType::{op}\nOpType::Softmax\nOpType::own.domain::Sofmax\n")
    completed = run("validate", "rules.cfg", "--kind", "keep-dtype", "--ops-info", library)
    assert (completed.status, codes_of(completed)) == (0, ["ML307"])
    assert f'"{op}"' in completed.out


def test_a_comment_behind_a_name_warns(run, files: Path) -> None:
    (files / "rules.cfg").write_text("/fc/MatMul # second\n/fc#2\n")
    completed = run("validate", "rules.cfg", "--kind", "keep-dtype")
    assert codes_of(completed) == ["ML310"] and "rules.cfg:1:1" in completed.out


OWN_LIBRARY = '{"Conv": {}, "Sofmax": {}, "com.microsoft::Atention": {}, "own.domain::Op": {}}'


def test_the_op_types_of_a_library_are_checked_against_its_name_space(run, files: Path, model_path: Path) -> None:
    (files / "chip.json").write_text(OWN_LIBRARY)
    assert codes_of(run("validate", "chip.json")) == []
    for options in (("--op-names", "onnx"), ("--model", model_path), ("--ops-info", "ascend910b")):
        completed = run("validate", "chip.json", *options)
        assert (completed.status, codes_of(completed)) == (0, ["ML210", "ML210"])
        assert "did you mean Softmax" in completed.out and "did you mean Attention" in completed.out
    assert run("validate", "-", "--op-names", "onnx", "--strict", stdin=OWN_LIBRARY).status == 1
    # In a folder, too, where the library is next to other files.
    assert codes_of(run("validate", ".", "--op-names", "onnx", "--select", "ML210")) == ["ML210", "ML210"]


def test_names_of_the_other_space_in_a_library_have_a_hint(run, files: Path) -> None:
    (files / "chip.json").write_text('{"Conv": {}, "BatchMatMulV2": {}, "SoftmaxV2": {}}')
    completed = run("validate", "chip.json", "--op-names", "ascend")
    assert codes_of(completed) == ["ML210"] and "there it is Conv2D or Conv3D" in completed.out


def test_a_library_of_an_uncertain_name_space_has_only_that_finding(run, files: Path) -> None:
    (files / "chip.json").write_text('{"Conv": {}, "Conv2D": {}, "Sofmax": {}}')
    assert codes_of(run("validate", "chip.json", "--ops-info", "onnx")) == ["ML402"]


def test_an_op_type_of_the_model_exists(run, files: Path, model_path: Path) -> None:
    import onnx

    model = onnx.load(model_path)
    node = model.graph.node.add()
    node.op_type, node.domain, node.input[:], node.output[:] = "Mish2", "own", ["x"], ["z"]
    model.opset_import.add(domain="own", version=1)
    onnx.save(model, files / "own.onnx")
    (files / "chip.json").write_text('{"Conv": {}, "Mish2": {}}')
    assert codes_of(run("validate", "chip.json", "--op-names", "onnx")) == ["ML210"]
    assert codes_of(run("validate", "chip.json", "--model", "own.onnx")) == []


SAMPLE = Path(__file__).parents[1] / "lists" / "with_findings" / "documented-sample.json"


def test_fix_repairs_the_documented_sample_that_the_engine_rejects(run, files: Path) -> None:
    """Rule S2.6: under a library with Ascend names, comments and trailing commas are errors of validate."""
    (files / "sample.json").write_bytes(SAMPLE.read_bytes())
    alone = run("validate", "sample.json")
    assert alone.status == 0 and alone.out.count("warning ML006") == 2 and "warning ML007" in alone.out
    arguments = ("validate", "sample.json", "--ops-info", "ascend910b")
    completed = run(*arguments)
    assert completed.status == 1
    assert completed.out.count("error ML006") == 2 and completed.out.count("error ML007") == 1
    fixed = run(*arguments, "--fix")
    assert fixed.status == 1 and "error ML108" in fixed.out  # no op type is called Matmul
    sample = json.loads((files / "sample.json").read_text())
    assert sample == {"black-list": {"to-remove": ["Xlog1py"], "to-add": ["Matmul", "Cast"]}}
    assert "ML00" not in run(*arguments).out


def test_a_comma_that_the_engine_rejects_does_not_hide_findings_about_names(run, files: Path) -> None:
    (files / "conv.json").write_text('{"black-list": {"to-add": ["Conv", "Add",]}}\n')
    assert codes_of(run("validate", "conv.json", "--ops-info", "ascend910b")) == ["ML007", "ML404"]


@pytest.mark.parametrize(("library", "names"), [("ascend910b", ["Conv", "Softmax"]), ("onnx", ["SoftmaxV2"])])
def test_a_list_with_names_of_the_other_space_only_is_an_error(
    run, files: Path, model_path: Path, library: str, names: list[str]
) -> None:
    """Rule S5.6: Names that mean something else warn. A list that has no effect is an error."""
    (files / "foreign.json").write_text(json.dumps({"black-list": {"to-add": names}}))
    for options in ([], ["--model", model_path]):
        completed = run("validate", "foreign.json", "--ops-info", library, *options)
        assert completed.status == 1 and completed.out.count("error ML404") == len(names)
        assert "the file has no other names, so it has no effect" in completed.out
    (files / "foreign.json").write_text(json.dumps({"black-list": {"to-add": [*names, "Add"]}}))
    completed = run("validate", "foreign.json", "--ops-info", library)
    assert completed.status == 0 and completed.out.count("warning ML404") == len(names)


def test_an_empty_list_is_no_list_of_another_name_space(run, files: Path) -> None:
    (files / "empty.json").write_text("{}")
    assert run("validate", "empty.json", "--ops-info", "ascend910b").status == 0


def test_a_name_that_a_correction_would_repeat_stays_and_says_why(run, tmp_path: Path) -> None:
    """Rule S2.5: a misspelled name whose right name is in the file already is one finding that names its place."""
    path = tmp_path / "m.json"
    path.write_text('{"black-list": {"to-add": ["SoftmxV2"]},\n "white-list": {"to-add": ["SoftmaxV2"]}}')
    options = ("validate", str(path), "--ops-info", "ascend910b", "--fix", "-q")
    completed = run(*options)
    assert completed.out.count("SoftmxV2") == 1 and "error ML108" in completed.out
    assert "not corrected: SoftmaxV2 is already in white-list to-add (2:28), and the two contradict" in completed.out
    # The model does not have the misspelled name either, which is no second finding.
    found = mixlist.validate(path, ops_info="ascend910b", model=model("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    assert [(finding.code, finding.line) for finding in found.findings] == [("ML108", 1), ("ML406", 2)]
    assert not found.skips_model
    path.write_text('{"black-list": {"to-add": ["SoftmxV2", "SoftmaxV2"]}}')
    assert "is already in black-list to-add (1:40)\n" in run(*options).out


def test_a_mask_is_settled_by_the_keep_dtype_file_that_goes_with_the_lists(run, tmp_path: Path) -> None:
    text = (
        "g (float[2, 4, 4] q, float[2, 1, 4] hidden) => (float[2, 4, 4] y) <float lowest = {-1e9}>"
        " { [scores] s = MatMul(q, q) [mask] m = Mul(hidden, lowest) [add] t = Add(s, m) [softmax] y = Softmax(t) }"
    )
    onnx.save(model(text), tmp_path / "m.onnx")
    (tmp_path / "edits.json").write_text('{"black-list": {"to-add": ["SoftmaxV2"]}}')
    (tmp_path / "keep.cfg").write_text("mask\nadd\n")
    command = (
        "validate",
        tmp_path / "edits.json",
        "--ops-info",
        "ascend910b",
        "--model",
        tmp_path / "m.onnx",
        "--strict",
    )
    warned = run(*command)
    assert warned.status == 1 and "keep in float32 by --keep-dtype: " in warned.out
    settled = run(*command, "--keep-dtype", tmp_path / "keep.cfg")
    assert settled.status == 0 and "no findings" in settled.out


def test_errors_that_stop_the_check_against_the_model_are_said(run, tmp_path: Path) -> None:
    onnx.save(model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    path = tmp_path / "m.json"
    path.write_text('{"black-list": {"to-add": ["Exp"]}, "white-list": {"to-add": ["Exp"]}}')
    completed = run("validate", str(path), "--model", str(tmp_path / "m.onnx"))
    assert "ML104" in completed.out and "the errors prevented the check against the model" in completed.err
    assert "prevented" not in run("validate", str(path)).err
