"""``mixlist validate``: choose and correct findings; folders; hints that suit the command."""

from __future__ import annotations

import json
import re
import subprocess
from codecs import BOM_UTF8
from pathlib import Path

import jsonschema
import pytest

from mixlist.cli.command_index import load_command
from tests.support.package import data_folder
from tests.support.systems import posix_only

COMMENTED = '{\n  // why\n  "black-list": {"to-add": ["Sofmax", "Add", "Add",]}\n}\n'
BAD = '{"black-list": {"to-add": ["Add"]}, "white-list": {"to-add": ["Add"]}}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "commented.json").write_text(COMMENTED)
    (tmp_path / "lists" / "bad.json").write_text(BAD)
    (tmp_path / "lists" / "package.json").write_text('{"name": "x"}')
    return tmp_path


def codes_in(completed, form: str) -> list[str]:
    """Return the codes of the findings in an output, sorted."""
    if form == "text":
        return sorted(re.findall(r"(?:error|warning) (ML\d+):", completed.out))
    if form == "github":
        return sorted(re.findall(r"title=mixlist (ML\d+)", completed.out))
    result = json.loads(completed.out)
    if form == "sarif":
        return sorted(entry["ruleId"] for entry in result["runs"][0]["results"])
    jsonschema.validate(result, json.loads((data_folder("schemas") / "validate.json").read_text("utf-8")))
    return sorted(finding["code"] for file in result["files"] for finding in file["findings"])


def test_an_error_does_not_hide_the_names_of_the_other_name_space(run, folder: Path) -> None:
    text = '{"black-list": {"to-add": ["Softmax", "ReduceSumD"]}, "white-list": {"to-add": ["ReduceSumD"], "add": []}}'
    (folder / "mixed.json").write_text(text)
    completed = run("validate", "mixed.json", "--ops-info", "ascend910b")
    assert codes_in(completed, "text") == ["ML101", "ML104", "ML404"]
    assert "mixed.json:1:28: warning ML404: Softmax is an ONNX name" in completed.out
    piped = run("validate", "-", "--ops-info", "ascend910b", stdin=text)
    assert codes_in(piped, "text") == ["ML101", "ML104", "ML404"]
    (folder / "mixed.json").write_text(text[:-1])
    assert codes_in(run("validate", "mixed.json", "--ops-info", "ascend910b"), "text") == ["ML001"]


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_every_format_has_the_selected_findings(run, folder: Path, form: str) -> None:
    arguments = ("validate", "lists", "--ops-info", "onnx", "--format", form)
    assert codes_in(run(*arguments), form) == ["ML006", "ML007", "ML104", "ML105", "ML108"]
    completed = run(*arguments, "--select", "ML1", "--ignore", "ML105", "--ignore", "ML108")
    assert (codes_in(completed, form), completed.status) == (["ML104"], 1)
    completed = run(*arguments, "--ignore", "ML1", "--select", "ML1,ML0")
    assert (codes_in(completed, form), completed.status) == (["ML006", "ML007"], 0)


def test_the_kind_of_every_file_is_shown(run, folder: Path) -> None:
    completed = run("validate", "lists")
    lines = completed.out.splitlines()
    assert "lists/bad.json: modify-mixlist, 1 error" in lines
    assert "lists/commented.json: modify-mixlist, 4 warnings" in lines
    assert "lists/package.json: no list file, skipped" in lines
    unchecked = "names were not checked against a library: give --ops-info\n"
    assert completed.err == f"2 files checked: 1 error, 4 warnings\n{unchecked}"
    assert json.loads(run("validate", "lists", "--format", "json").out)["skipped"] == ["lists/package.json"]


def test_a_file_that_is_named_twice_is_reported_once(run, folder: Path) -> None:
    assert run("validate", "lists/bad.json", "lists", "./lists/bad.json").err.startswith("2 files checked: 1 error")


def test_quiet_prints_findings_only(run, folder: Path) -> None:
    completed = run("validate", "lists", "-q", "--select", "ML104")
    assert completed.err == ""
    assert completed.out.startswith("lists/bad.json:1:63: error ML104") and completed.out.count("\n") == 2


def test_fix_corrects_files_and_says_what_is_left(run, folder: Path) -> None:
    before = (folder / "lists" / "bad.json").read_bytes()
    completed = run("validate", "lists", "--ops-info", "onnx", "--fix")
    assert (folder / "lists" / "commented.json").read_text() == '{\n  "black-list": {"to-add": ["Softmax", "Add"]}\n}\n'
    assert (folder / "lists" / "bad.json").read_bytes() == before
    assert 'lists/commented.json:3:29: corrected ML108: renamed 1 op type: "Sofmax" to "Softmax"' in completed.out
    assert codes_in(completed, "text") == ["ML104"]
    assert completed.err == "2 files checked: 1 error, 0 warnings, 4 corrected\n"
    assert completed.status == 1
    assert run("validate", "lists/commented.json", "--ops-info", "onnx", "--fix", "--strict").status == 0


def test_fix_corrects_keys_and_names_of_the_other_name_space(run, folder: Path) -> None:
    """Rule S5.6: a name with one counterpart gets it, unless the file has no name of the library."""
    path = folder / "m.json"
    path.write_text('{"blacklist": {"to_add": ["Softmax", "LayerNromV3", "Conv"]}}')
    completed = run("validate", path, "--ops-info", "ascend910b", "--fix")
    keys = '"blacklist" (1:2) to "black-list", "to_add" (1:16) to "to-add"'
    assert f"m.json:1:2: corrected ML101: renamed 2 keys: {keys}\n" in completed.out
    assert 'm.json:1:38: corrected ML108: renamed 1 op type: "LayerNromV3" to "LayerNormV3"\n' in completed.out
    assert path.read_text() == '{"black-list": {"to-add": ["SoftmaxV2", "LayerNormV3", "Conv"]}}'
    assert 'corrected ML404: renamed 1 op type: "Softmax" to "SoftmaxV2"' in completed.out
    assert codes_in(completed, "text") == ["ML404"] and completed.status == 0  # Conv is Conv2D or Conv3D
    # The place is that of the first name that is corrected, not of the first finding.
    path.write_text('{"black-list": {"to-add": ["SoftmaxV3", "BatchNorn"]}}')
    compared = run("validate", path, "--ops-info", "ascend910b", "--diff")
    assert '["SoftmaxV3", "BatchNorm"]' in compared.out and compared.err.startswith("1 finding not corrected: ")
    completed = run("validate", path, "--ops-info", "ascend910b", "--fix")
    assert 'm.json:1:41: corrected ML108: renamed 1 op type: "BatchNorn" to "BatchNorm"\n' in completed.out
    path.write_text(text := '{"black-list": {"to-add": ["SoftmaxV2"]}}')
    assert run("validate", path, "--ops-info", "onnx", "--fix").status == 1
    assert path.read_text() == text
    path.write_text('{"black-list": {"to-add": ["Add", "SoftmaxV2"]}}')
    assert run("validate", path, "--ops-info", "onnx", "--fix").status == 0
    assert path.read_text() == '{"black-list": {"to-add": ["Add", "Softmax"]}}'


def test_one_run_reports_the_names_under_misspelled_keys(run, folder: Path) -> None:
    path = folder / "m.json"
    path.write_text('{"black_list": {\n "to_add": ["Sigmiod", 3], "no": []},\n"white-list": {"to-add": ["MaxPol"]}}')
    completed = run("validate", path, "--ops-info", "ascend310p")
    found = [":".join(line.split(" ")[:3:2]) for line in completed.out.splitlines() if ": error ML" in line]
    places = ("1:2::ML101", "2:2::ML101", "2:13::ML108", "2:24::ML102", "2:28::ML101", "3:27::ML108")
    assert found == [f"{path}:{place}:" for place in places]
    fixed = run("validate", path, "--ops-info", "ascend310p", "--fix").out
    # Each place is one of the file as given.
    assert 'renamed 2 op types: "Sigmiod" (2:13) to "Sigmoid", "MaxPol" (3:27) to "MaxPool"' in fixed
    assert codes_in(run("validate", path, "--ops-info", "ascend310p"), "text") == ["ML101", "ML102"]


def test_text_shows_100_findings_of_one_kind_and_json_all(run, folder: Path, model_path: Path) -> None:
    path = folder / "keep_dtype.txt"
    path.write_text("".join(f"/layers.{number}/MatMul\n" for number in range(9000)) + "OpType::Sofmax\n")
    completed = run("validate", path, "--model", model_path)
    lines = completed.out.splitlines()
    assert len(lines) < 210 and len(completed.out) < 30_000
    assert sum("ML305: no node is called" in line for line in lines) == 100
    assert f"{path}: warning ML305: 8900 more findings of this kind" in lines
    assert any("error ML307: op type 'Sofmax' is not in the model" in line for line in lines)
    assert completed.err == "1 file checked: 1 error, 9000 warnings\n"
    (file,) = json.loads(run("validate", path, "--model", model_path, "--format", "json").out)["files"]
    assert len(file["findings"]) == 9001
    path.write_text("".join(f"/layers.{number}/MatMul\n" for number in range(9000)))
    assert len(run("resolve", model_path, "--keep-dtype", path).err) < 30_000
    run("view", model_path, "-o", folder / "page.html", "--keep-dtype", path)
    assert (folder / "page.html").read_text().count("no node is called") == 100


def test_fix_does_not_change_a_file_that_is_a_guess(run, folder: Path) -> None:
    path = folder / "lists" / "high.cfg"
    path.write_text("# perhaps no list\n/fc/MatMul\n")
    completed = run("validate", "lists", "--fix")
    assert path.read_text() == "# perhaps no list\n/fc/MatMul\n"
    assert {"ML015", "ML303"} <= set(codes_in(completed, "text"))


def test_fix_keeps_byte_order_marks(run, folder: Path) -> None:
    path = folder / "lists" / "commented.json"
    path.write_bytes(BOM_UTF8 * 2 + COMMENTED.encode())
    run("validate", path, "--fix", "--select", "ML006")
    assert path.read_bytes() == BOM_UTF8 * 2 + COMMENTED.replace("  // why\n", "").encode()


def test_fix_corrects_selected_codes_only(run, folder: Path) -> None:
    completed = run("validate", "lists", "--fix", "--select", "ML006", "--format", "json")
    assert (folder / "lists" / "commented.json").read_text() == COMMENTED.replace("  // why\n", "")
    (correction,) = json.loads(completed.out)["corrected"]
    assert correction == {
        "code": "ML006",
        "path": "lists/commented.json",
        "line": 2,
        "count": 1,
        "message": "removed 1 comment",
    }


def test_a_name_that_may_be_right_is_not_corrected(run, folder: Path, model_path: Path) -> None:
    """The right name is in the file already, or the operator exists in the other name space or in the model."""
    import onnx

    model = onnx.load(model_path)
    model.graph.node[1].op_type, model.graph.node[1].domain = "Sofmax", "own"
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.save(model, model_path)
    path = folder / "m.json"
    for names, options in (
        (["Sofmax", "Softmax"], []),
        (["Sofmax", "Softmaxx"], []),
        (["BatchMatMulV2"], []),
        (["Sofmax"], ["--model", model_path]),
    ):
        text = json.dumps({"black-list": {"to-add": names}})
        path.write_text(text)
        run("validate", path, "--ops-info", "onnx", "--fix", *options)
        expected = text.replace('"Sofmax"', '"Softmax"') if len(names) == 2 and names[1] == "Softmaxx" else text
        assert path.read_text() == expected, names


def test_a_diff_changes_nothing_and_can_be_applied(run, folder: Path) -> None:
    path = folder / "lists" / "commented.json"
    path.write_bytes(COMMENTED.replace("\n", "\r\n").replace("  //", "\t//").rstrip().encode())
    before = path.read_bytes()
    completed = run("validate", "lists", "--ops-info", "onnx", "--diff", "--fix")
    assert (completed.status, path.read_bytes()) == (1, before)
    assert "-\t// why" in completed.out
    assert run("validate", "lists/bad.json", "--diff").status == 0
    assert run("validate", "-", "--diff", stdin=COMMENTED).out.startswith("--- <stdin>")
    assert run("validate", "lists", "--diff", "--format", "json").status == 2


@posix_only
def test_patch_accepts_the_diff(run, folder: Path) -> None:
    completed = run("validate", "lists/commented.json", "--diff")
    subprocess.run(["git", "apply", "-p0"], input=completed.out, text=True, check=True, capture_output=True)
    assert "why" not in (folder / "lists" / "commented.json").read_text()


def test_standard_input_cannot_be_corrected_in_place(run, folder: Path) -> None:
    completed = run("validate", "-", "--fix", stdin=COMMENTED)
    assert (completed.status, "--diff" in completed.err) == (2, True)


# --- hints ---


def hints_of(completed) -> list[str]:
    return re.findall(r"hint: (.+)", completed.out + completed.err)


def test_hints_name_options_that_the_command_has(run, folder: Path, model_path: Path) -> None:
    (folder / "library.json").write_text('{"MatMul": {"precision_reduce": {"flag": "true"}}}')
    (folder / "rules.txt").write_text("a::InputDtype:,OutputDtype:fp16\n")
    own = {name for parameter in load_command("validate").params for name in parameter.opts}
    for arguments in (
        ("lists/bad.json", "--kind", "ops-info"),
        ("library.json", "--kind", "modify-mixlist"),
        ("rules.txt", "--kind", "keep-dtype"),
        ("lists/bad.json", "--ops-info", "lists/bad.json"),
        (model_path,),
        ("lists/bad.json", "--ops-info", model_path),
    ):
        (hint,) = hints_of(run("validate", *arguments))
        assert set(re.findall(r"--[a-z-]+", hint)) <= own or "of resolve and apply" in hint
        assert "--mixlist" not in hint


def test_a_name_of_the_other_name_space_has_one_hint(run, folder: Path) -> None:
    (folder / "m.json").write_text('{"black-list": {"to-add": ["Gemm"]}}')
    completed = run("validate", "m.json", "--ops-info", "ascend910b")
    assert hints_of(completed) == ["there it is MatMulV2"]
    assert codes_in(completed, "text") == ["ML404"]
    for command in (("lists", "--ops-info", "ascend910b"), ("diff", "ascend910b", "ascend910b", "--other-mixlist")):
        options = ("--mixlist", "m.json") if command[0] == "lists" else ("m.json",)
        assert hints_of(run(*command, *options)).count("there it is MatMulV2") == 1


@pytest.mark.parametrize("name", ["model.onnx", "list.json", "list.txt"])
def test_a_model_is_called_a_model(run, folder: Path, model_path: Path, name: str) -> None:
    (folder / name).write_bytes(model_path.read_bytes())
    completed = run("validate", name)
    assert (completed.status, codes_in(completed, "text")) == (1, ["ML013"])
    assert "the file is an ONNX model" in run("resolve", model_path, "--mixlist", name).err
