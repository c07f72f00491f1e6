"""``mixlist tune``: the files that it writes, and its exit statuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.planted_overflow import PLANTED, save_planted_model, write_batches
from tests.support.tune_result import parse_tune_result

BLACK = {"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}
FOR_ATC = ("--for", "atc", "-o", "atc_lists")
RULE = "product::InputDtype:float16,float16,OutputDtype:float16\n"  # no edit of the lists changes this node


# A MatMul overflows. The other product, of another op type, stays low.
TWO_PRODUCTS = PLANTED.replace("[safe] s = MatMul (x, one)", "[safe] s = Gemm (x, one)")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    onnx.save(model(TWO_PRODUCTS), tmp_path / "planted.onnx")
    return tmp_path / "planted.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write three batches, of which the third overflows the planted model; return their folder."""
    return write_batches(tmp_path / "batches", (0.1, 0.1, 300))


@pytest.fixture
def harmless_data(tmp_path: Path) -> Path:
    """Write one batch that does not overflow; return its folder."""
    return write_batches(tmp_path / "calm", (0.1,))


# --- written files ---


def test_the_written_list_passes_the_check(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "modify.json"
    assert run("check", planted, "--data", data).status == 1
    completed = run("tune", planted, "-o", out, "--data", data)
    assert completed.status == 0, completed.err
    assert completed.out.startswith(f"PASS  {planted} with 1 edit\n")
    assert "overflow at product" in completed.out and "100 % of the work before, 50 % after" in completed.out
    assert completed.err.startswith("warning ML611: the list was not validated: there are 3")
    assert completed.err.endswith(f"\nwrote {out}\n")
    assert json.loads(out.read_text()) == BLACK
    assert run("validate", out, "--strict", "--model", planted).status == 0
    assert run("check", planted, "--data", data, "--mixlist", out).status == 0


def test_the_output_contains_the_given_edits(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """The user's own node rules stay in their file, and hold in the search."""
    base, base_rules, out = tmp_path / "base.json", tmp_path / "own.txt", tmp_path / "modify.json"
    base.write_text('{"white-list": {"to-remove": ["Conv"]}}')
    base_rules.write_text("safe::InputDtype:float32,float32,OutputDtype:float32\n")
    arguments = ("--customize-dtypes", base_rules, "--data", data)
    completed = run("tune", planted, "-o", out, "--mixlist", base, *arguments)
    assert completed.status == 1 and "NOTHING IS LOW" in completed.out
    assert json.loads(out.read_text())["white-list"]["to-remove"] == ["Conv", "MatMul"]
    assert "NOTHING IS LOW" in run("check", planted, "--mixlist", out, *arguments).out


def test_the_list_is_empty_if_no_edit_is_needed(run, planted: Path, harmless_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", harmless_data)
    assert completed.status == 0
    assert "needs no edit" in completed.out
    assert json.loads(out.read_text()) == {}
    assert completed.out.splitlines()[-1].strip() == f"mixlist apply {planted} --mixlist {out} -o mixed.onnx"
    assert run("check", planted, "--data", harmless_data, "--mixlist", out).status == 0


def test_no_file_is_written_without_a_list(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Nothing is written, and the report names the command that chooses nodes."""
    out, forced = tmp_path / "modify.json", tmp_path / "forced.txt"
    forced.write_text(RULE)
    arguments = ("tune", planted, "-o", out, "--data", data, "--customize-dtypes", forced)
    completed = run(*arguments, "--format", "json")
    report = parse_tune_result(completed.out)
    assert (completed.status, report["verdict"], report["modify_mixlist"], report["edits"]) == (1, "fail", "", [])
    assert report["reasons"] == ["no list of op types keeps the limits"]
    assert "nothing was written" in completed.err
    assert not out.exists()
    assert report["check"]["verdict"] == "fail"
    convert = f"mixlist convert {planted} --customize-dtypes {forced} --data {data} -o mixed.onnx"
    assert report["next_command"] == convert
    text = run(*arguments).out
    assert text.splitlines()[-2:] == ["  Let convert choose the single nodes that stay in float32:", f"    {convert}"]


def test_limits_that_float32_misses_too_end_the_search_at_once(run, data: Path, tmp_path: Path) -> None:
    """The noise of the model differs between runs."""
    path, out = tmp_path / "noise.onnx", tmp_path / "modify.json"
    noisy = PLANTED.replace("y = Tanh (a)", "t = Tanh (a) n = RandomNormalLike (t) y = Add (t, n)")
    onnx.save(model(noisy), path)
    completed = run("tune", path, "-o", out, "--data", data, "--format", "json")
    report = parse_tune_result(completed.out)
    assert (completed.status, report["trials"]) == (1, 1)
    assert "with every node in float32 too" in report["reasons"][0]
    assert not out.exists()


def test_an_existing_output_is_replaced_only_with_force(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "modify.json"
    out.write_text("old")
    completed = run("tune", planted, "-o", out, "--data", data)
    assert completed.status == 2
    assert f"{out} exists" in completed.err
    assert out.read_text() == "old"
    assert run("tune", planted, "-o", out, "--data", data, "--force").status == 0
    assert json.loads(out.read_text()) == BLACK


# --- validation, limits ---


def test_validation_data_is_judged_separately(
    run, planted: Path, data: Path, harmless_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", data, "--validate-on", harmless_data, "--format", "json")
    assert completed.status == 0
    report = parse_tune_result(completed.out)
    assert (report["validation"]["verdict"], report["validation"]["batches"], report["check"]["batches"]) == (
        "pass",
        1,
        3,
    )


def test_validation_on_data_of_the_search_is_refused(run, planted: Path, data: Path, tmp_path: Path) -> None:
    completed = run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--validate-on", data / "1.npz")
    assert completed.status == 2
    assert "1.npz is also data of the search" in completed.err


def test_the_list_is_written_although_the_validation_fails(
    run, planted: Path, data: Path, harmless_data: Path, tmp_path: Path
) -> None:
    """Other data can veto the verdict."""
    out = tmp_path / "modify.json"
    arguments = ("tune", planted, "-o", out, "--data", harmless_data, "--validate-on", data)
    completed = run(*arguments)
    assert completed.status == 1
    assert completed.out.startswith("FAIL")
    assert "on the data of --validate-on: 1 of 3 batches overflow" in completed.out
    assert "but not on the validation data" in completed.err
    assert json.loads(out.read_text()) == {}
    report = parse_tune_result(run(*arguments, "--force", "--format", "json").out)
    assert (report["verdict"], report["check"]["verdict"], report["validation"]["verdict"]) == ("fail", "pass", "fail")


def test_limits_and_rates_reach_the_search(run, planted: Path, data: Path, tmp_path: Path) -> None:
    arguments = ("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--force", "--format", "json")
    assert parse_tune_result(run(*arguments, "--max-exception-rate", 0.5).out)["edits"] == []
    assert parse_tune_result(run(*arguments, "--max-batches", 2).out)["edits"] == []
    report = parse_tune_result(run(*arguments, "--large-batch", "--min-snr", 20, "--overflow-mode", "saturate").out)
    assert report["edits"]
    assert (report["check"]["limits"]["exception_rate"], report["check"]["limits"]["snr"]) == (0.001, 20)


def test_type_hints_give_custom_operators_their_types(run, tmp_path: Path) -> None:
    """The operators are ONNX Runtime's own, which runs them and does not publish their types."""
    path, hints, data = tmp_path / "custom.onnx", tmp_path / "hints.json", tmp_path / "x.npz"
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]>
    g (float[1,16,2,2] x) => (float[1,16,2,2] y) {
      r = com.microsoft.nchwc.ReorderInput(x) a = com.microsoft.nchwc.ReorderOutput<channels=16>(r)
      [product] b = MatMul(a, a) [after] y = Tanh(b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(data, x=np.full((1, 16, 2, 2), 300, np.float32))
    hints.write_text('{"a": "float32"}')
    out = tmp_path / "modify.json"
    assert "NOTHING IS LOW" in run("tune", path, "-o", out, "--data", data, "--type-hints", hints).out
    assert json.loads(out.read_text()) == BLACK


# --- trace, configuration and Python ---


def test_the_trace_has_a_line_for_each_trial(run, planted: Path, data: Path, tmp_path: Path) -> None:
    completed = run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--trace", "--format", "json")
    lines = completed.err.splitlines()
    report = parse_tune_result(completed.out)
    assert len(lines) == len(report["log"]) + 3, "a warning, its hint and the line about the files follow the trials"
    assert lines[0] == "   1 pass  [everything in float32]"
    assert lines[1].startswith("   2 fail  [no edit]  overflow at product")
    assert "   3 pass  [MatMul: white to black]" in lines


def test_a_configuration_sets_options(run, planted: Path, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "mixlist.toml"
    config.write_text('[tune]\ndata = "batches"\ntrace = true\n')
    completed = run("tune", planted, "--config", config, "-o", tmp_path / "modify.json")
    assert completed.status == 0, completed.err
    assert "everything in float32" in completed.err
    assert json.loads((tmp_path / "modify.json").read_text()) == BLACK


def test_a_report_from_python_writes_its_files(planted: Path, data: Path, tmp_path: Path) -> None:
    policy = mixlist.load_policy(ops_info="onnx")
    report = mixlist.tune(planted, policy, data)
    assert isinstance(report, mixlist.TuneReport)
    report.save(tmp_path / "modify.json")
    assert json.loads((tmp_path / "modify.json").read_text()) == BLACK
    assert report.policy == mixlist.load_policy(ops_info="onnx", mixlist=report.modify_mixlist)
    assert report.policy.digest == mixlist.load_policy(ops_info="onnx", mixlist=tmp_path / "modify.json").digest
    assert "policy" not in report.to_json()
    with pytest.raises(mixlist.MixlistError, match="exists"):
        report.save(tmp_path / "modify.json")
    report.save(tmp_path / "modify.json", force=True)
    forced = tmp_path / "forced.txt"
    forced.write_text(RULE)
    none = mixlist.tune(planted, mixlist.load_policy(ops_info="onnx", customize_dtypes=forced), data)
    with pytest.raises(mixlist.MixlistError, match="no list to write: no list of op types keeps the limits"):
        none.save(tmp_path / "third.json")


# --- held-out data, and how much stays low ---


def test_a_quarter_is_held_out(run, planted: Path, tmp_path: Path) -> None:
    """A quarter of the batches is held out."""
    folder = write_batches(tmp_path / "more", (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 300))
    arguments = ("tune", planted, "-o", tmp_path / "m.json", "--data", folder, "--force")
    completed = run(*arguments)
    assert completed.status == 0
    assert completed.out.startswith(f"PASS  {planted} with 1 edit\n")
    assert f"held-out batches that failed joined the search: {folder / '7.npz'}" in completed.out
    assert "Validation on 1 batch that the search did not use" in completed.out
    report = parse_tune_result(run(*arguments, "--format", "json").out)
    assert (report["held_out"], report["validation"]["batches"]) == ([str(folder / "6.npz")], 1)
    assert report["joined"] == [str(folder / "7.npz")]
    report = parse_tune_result(run(*arguments, "--no-holdout", "--format", "json").out)
    assert (report["verdict"], report["held_out"], report["validation"]) == ("pass", [], None)
    config = tmp_path / "mixlist.toml"
    config.write_text("[tune]\nno-holdout = true\n")
    assert run(*arguments, "--config", config).status == 0


def test_a_list_that_keeps_too_little_names_convert(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """The list leaves half of the matrix work, and ``convert`` raises one node."""
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", data, "--protect", "none", "--no-holdout", "--trace")
    assert completed.status == 0
    command = shlex.split(completed.out.splitlines()[-1])
    assert command == [
        *("mixlist", "convert", str(planted), "--protect", "none", "--data", str(data), "-o", "mixed.onnx")
    ]
    assert run(*command[1:-1], tmp_path / "mixed.onnx").status == 0
    assert run("check", planted, "--data", data, "--mixed-model", tmp_path / "mixed.onnx").status == 0


def test_from_ascend_lists_convert_writes_rules_alone(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """An Ascend tool reads the list and the rules, and not a mixed model."""
    out, rules, lists = tmp_path / "modify.json", tmp_path / "rules.cfg", ("--ops-info", "ascend910b")
    completed = run("tune", planted, "-o", out, "--data", data, *lists)
    command = shlex.split(completed.out.splitlines()[-1])
    assert command == ["mixlist", "convert", str(planted), *lists, "--data", str(data), "--rules", "rules.cfg"]
    converted = run(*command[1:-1], rules)
    assert converted.status == 0 and converted.err.endswith(f"wrote {rules}\n")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".onnx"] == [planted.name]
    assert run("check", planted, "--data", data, *lists, "--customize-dtypes", rules).status == 0


def test_an_ascend_result_is_exported_for_atc(run, planted: Path, harmless_data: Path, tmp_path: Path) -> None:
    """ATC compiles the float32 model and applies the lists itself: no ``apply`` is recommended."""
    out, lists = tmp_path / "modify.json", ("--ops-info", "ascend910b")
    completed = run("tune", planted, "-o", out, "--data", harmless_data, *lists)
    command = shlex.split(completed.out.splitlines()[-1])
    assert "Write the files for atc with the file of this result:\n" in completed.out
    assert command == ["mixlist", "export", str(planted), *lists, "--mixlist", str(out), *FOR_ATC]
    assert run(*command[1:-1], tmp_path / "atc").status == 0


def test_a_result_without_low_matrix_work_is_no_pass(run, data: Path, tmp_path: Path) -> None:
    """Rule S8.39: the products are black, and only Neg stays low."""
    planted, lists, out = save_planted_model(tmp_path), tmp_path / "lists.json", tmp_path / "modify.json"
    with_negative = PLANTED.replace("(float[N, 4] y)", "(float[N, 4] y, float[N, 4] z)").replace(
        "[safe]", "[n] z = Neg (x) [safe]"
    )
    onnx.save(model(with_negative), planted)
    lists.write_text('{"white-list": {"to-add": ["Neg"]}}')
    completed = run("tune", planted, "-o", out, "--data", data, "--mixlist", lists)
    assert completed.status == 1 and completed.err.endswith(f"\nwrote {out}; hardly any matrix work is low\n")
    assert completed.out.startswith(f"PASS, BUT HARDLY ANY MATRIX WORK IS LOW  {planted} with 1 edit\n")
    assert "100 % of the work before, 0 % after" in completed.out and "pass: float16, emulated" in completed.out
    assert completed.out.splitlines()[-1].startswith(f"    mixlist convert {planted} ")


def test_a_result_with_nothing_low_is_no_pass(run, data: Path, tmp_path: Path) -> None:
    """Rule S8.39: both products are of one op type, and one of them overflows."""
    planted, out = save_planted_model(tmp_path), tmp_path / "modify.json"
    arguments = ("tune", planted, "-o", out, "--data", data)
    completed = run(*arguments)
    assert completed.status == 1 and "warning ML605: no node is low" in completed.err
    assert completed.err.endswith(f"\nwrote {out}; nothing is low\n")
    assert completed.out.startswith(f"PASS, BUT NOTHING IS LOW  {planted} with 1 edit\n")
    assert "every limit is kept, because nothing is low" in completed.out
    assert json.loads(out.read_text()) == BLACK
    report = parse_tune_result(run(*arguments, "--force", "--format", "json").out)
    assert (report["verdict"], report["check"]["verdict"]) == ("inconclusive", "inconclusive")
    assert report["reasons"] == ["every limit is kept, because nothing is low"]
    assert report["next_command"] == f"mixlist convert {planted} --data {data} -o mixed.onnx"


def test_the_page_has_the_edits_and_the_file(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "modify.json", tmp_path / "page.html"
    completed = run("tune", planted, "-o", out, "--data", data, "--html", page)
    assert completed.status == 0
    assert completed.err.endswith(f"wrote {out}\nwrote {page}\n")
    text = page.read_text("utf-8")
    assert f"<title>PASS: {planted} – mixlist tune</title>" in text
    assert '<th scope="row" class="name">MatMul</th>' in text
    assert "Each edit is needed" in text
    assert f"mixlist convert {planted} --data {data} -o mixed.onnx" in re.sub("</?span[^>]*>", "", text)


def test_the_report_is_printed_if_the_page_cannot_be_written(
    run, planted: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, content: bytes) -> None:
        raise mixlist.errors.FileError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("mixlist.show.html_page.write_atomically", refuse)
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", data, "--html", tmp_path / "page.html")
    assert completed.status == 2
    assert "page.html: cannot be written: No space" in completed.err
    assert completed.out.startswith("PASS") and out.exists()
