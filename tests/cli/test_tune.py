"""``mixlist tune``: the files that it writes, and its exit statuses."""

from __future__ import annotations

import json
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
RULE = "product::InputDtype:float16,float16,OutputDtype:float16\n"  # no edit of the lists changes this node


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return save_planted_model(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write three batches, of which the third overflows the planted model; return their folder."""
    return write_batches(tmp_path / "batches", (0.1, 0.1, 300))


@pytest.fixture
def harmless_data(tmp_path: Path) -> Path:
    """Write one batch that does not overflow; return its folder."""
    return write_batches(tmp_path / "calm", (0.1,))


# --- written files ---


def test_the_written_files_pass_the_check(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out, rules = tmp_path / "modify.json", tmp_path / "modify.rules.txt"
    assert run("check", planted, "--data", data).status == 1
    completed = run("tune", planted, "-o", out, "--data", data)
    assert completed.status == 0, completed.err
    assert completed.out.startswith(f"PASS  {planted} with 1 edit\n")
    assert "overflow at product" in completed.out
    # The list alone leaves nothing low.
    assert "none of that work stays in low precision" not in completed.out and "ML605" not in completed.err
    assert completed.err.startswith("warning ML611: the list was not validated: there are 3")
    assert completed.err.endswith(f"\nwrote {out} and {rules}\n")
    assert run("validate", out, rules, "--strict", "--model", planted).status == 0
    assert run("check", planted, "--data", data, "--mixlist", out, "--customize-dtypes", rules).status == 0


def test_lists_and_node_rules_together_pass_the_check(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """One of two products stays in float32; both files together pass the check."""
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    completed = run("tune", planted, "-o", out, "--node-rules", rules, "--data", data, "--format", "json")
    assert completed.status == 0, completed.err
    assert completed.err.endswith(f"\nwrote {out} and {rules}\n")
    report = parse_tune_result(completed.out)
    assert [(edit["node"], edit["op"], edit["after"]) for edit in report["edits"]] == [("product", "MatMul", "float32")]
    assert report["low_share"] == {"base": 1.0, "tuned": 0.5}
    assert (out.read_text(), rules.read_text()) == (report["modify_mixlist"], report["customize_dtypes"])
    assert rules.read_text().startswith("product::InputDtype:float32")
    check_arguments = ("check", planted, "--data", data, "--mixlist", out)
    assert run(*check_arguments).status == 1
    assert run(*check_arguments, "--customize-dtypes", rules).status == 0


def test_the_outputs_contain_the_given_edits_and_rules(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Edits and rules of the base are in the result, and rules are written even if no node needs one. Rule S9.9."""
    base, base_rules = tmp_path / "base.json", tmp_path / "own.txt"
    base.write_text('{"white-list": {"to-remove": ["Gemm"]}}')
    base_rules.write_text("safe::InputDtype:float32,float32,OutputDtype:float32\n")
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    arguments = ("--mixlist", base, "--customize-dtypes", base_rules, "--data", data)
    assert run("tune", planted, "-o", out, "--node-rules", rules, *arguments).status == 0
    assert "Gemm" in json.loads(out.read_text())["white-list"]["to-remove"]
    assert rules.read_text().splitlines()[-1] == base_rules.read_text().strip()
    written_files = ("--mixlist", out, "--customize-dtypes", rules)
    assert run("check", planted, "--data", data, *written_files).status == 0


def test_the_list_is_empty_if_no_edit_is_needed(run, planted: Path, harmless_data: Path, tmp_path: Path) -> None:
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    completed = run("tune", planted, "-o", out, "--node-rules", rules, "--data", harmless_data)
    assert completed.status == 0
    assert "needs no edit" in completed.out
    assert (json.loads(out.read_text()), rules.read_text()) == ({}, "")
    assert run("check", planted, "--data", harmless_data, "--mixlist", out, "--customize-dtypes", rules).status == 0


def test_no_file_is_written_without_a_list(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Rule S9.9: The output replaces the given mixlist."""
    out, rules, forced = tmp_path / "modify.json", tmp_path / "nodes.txt", tmp_path / "forced.txt"
    forced.write_text(RULE)
    for options in ((), ("--node-rules", rules)):
        completed = run(
            "tune", planted, "-o", out, "--data", data, "--customize-dtypes", forced, *options, "--format", "json"
        )
        report = parse_tune_result(completed.out)
        assert (completed.status, report["verdict"], report["modify_mixlist"], report["edits"]) == (1, "fail", "", [])
        assert "nothing was written" in completed.err
        assert not out.exists()
        assert not rules.exists()
    assert report["check"]["verdict"] == "fail"


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
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    for existing_file in (out, rules):
        existing_file.write_text("old")
        completed = run("tune", planted, "-o", out, "--node-rules", rules, "--data", data)
        assert completed.status == 2
        assert f"{existing_file} exists" in completed.err
        assert existing_file.read_text() == "old"
        existing_file.unlink()
    out.write_text("old")
    assert run("tune", planted, "-o", out, "--data", data, "--force").status == 0
    assert json.loads(out.read_text()) == {}


# --- validation, labels, limits ---


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
    """Rule S9.10: Other data can veto the verdict."""
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


def test_labels_replace_the_limits_of_outputs(run, tmp_path: Path) -> None:
    """The share of right answers decides instead of the limits of outputs."""
    path, out, labels = tmp_path / "m.onnx", tmp_path / "modify.json", tmp_path / "labels.npy"
    text = """g (float[N, 2] x) => (float[N, 2] y) <float[1] big = {4096}> {
      [up] a = Add (x, big) [down] y = Sub (a, big) }"""  # the next float16 number after 4096 is 4100
    onnx.save(model(text), path)
    np.savez(tmp_path / "x.npz", x=np.array([[0.5, 1], [1, 0.5], [0.25, 1], [0, 1]], np.float32))
    np.save(labels, np.array([1, 0, 1, 1]))
    arguments = ("tune", path, "-o", out, "--data", tmp_path / "x.npz", "--ops-info", "mindspore-o3", "--force")
    completed = run(*arguments, "--labels", labels, "--format", "json")
    assert completed.status == 0, completed.out
    report = parse_tune_result(completed.out)
    assert report["check"]["task"]["mixed"] == report["check"]["task"]["reference"] == 1
    assert report["check"]["limits"] == {"exception_rate": 0.005, "max_ignored": 0.5}
    assert report["edits"]
    completed = run(*arguments, "--labels", labels, "--max-accuracy-loss", 1, "--format", "json")
    assert parse_tune_result(completed.out)["edits"] == []
    completed = run(*arguments, "--max-accuracy-loss", 0.1)
    assert completed.status == 2
    assert "--labels" in completed.err


def test_limits_and_rates_reach_the_search(run, planted: Path, data: Path, tmp_path: Path) -> None:
    arguments = ("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--force", "--format", "json")
    assert parse_tune_result(run(*arguments, "--max-exception-rate", 0.5).out)["edits"] == []
    assert parse_tune_result(run(*arguments, "--max-batches", 2).out)["edits"] == []
    report = parse_tune_result(run(*arguments, "--large-batch", "--min-snr", 20, "--overflow-mode", "saturate").out)
    assert report["edits"]
    assert (report["check"]["limits"]["exception_rate"], report["check"]["limits"]["snr"]) == (0.001, 20)


@pytest.mark.parametrize("objective", ["max-low", "max-speed"])
def test_the_list_of_each_objective_passes_the_check(
    run, planted: Path, data: Path, tmp_path: Path, objective: str
) -> None:
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", data, "--objective", objective, "--format", "json")
    assert completed.status == 0, completed.err
    assert parse_tune_result(completed.out)["objective"] == objective
    files = ("--mixlist", out, "--customize-dtypes", tmp_path / "modify.rules.txt")
    assert run("check", planted, "--data", data, *files).status == 0


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
    assert run("tune", path, "-o", out, "--data", data, "--type-hints", hints).status == 0
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
    config.write_text('[tune]\noutput = "modify.json"\ndata = "batches"\nnode-rules = "nodes.txt"\ntrace = true\n')
    completed = run("tune", planted, "--config", config)
    assert completed.status == 0, completed.err
    assert "everything in float32" in completed.err
    assert (tmp_path / "nodes.txt").read_text().startswith("product::")


def test_a_report_from_python_writes_its_files(planted: Path, data: Path, tmp_path: Path) -> None:
    policy = mixlist.load_policy(ops_info="onnx")
    report = mixlist.tune(planted, policy, data)
    assert isinstance(report, mixlist.TuneReport)
    assert report.alternative is not None
    report.alternative.save(tmp_path / "modify.json")
    assert json.loads((tmp_path / "modify.json").read_text()) == BLACK
    with pytest.raises(mixlist.MixlistError, match="exists"):
        report.save(tmp_path / "modify.json")
    report.save(tmp_path / "other.json")
    assert (tmp_path / "other.rules.txt").read_text() == report.customize_dtypes != ""
    forced = tmp_path / "forced.txt"
    forced.write_text(RULE)
    none = mixlist.tune(planted, mixlist.load_policy(ops_info="onnx", customize_dtypes=forced), data)
    with pytest.raises(mixlist.MixlistError, match="no list to write: no list of op types keeps the limits"):
        none.save(tmp_path / "third.json")


# --- held-out data and the alternative with node rules ---


def test_a_quarter_is_held_out(run, planted: Path, tmp_path: Path) -> None:
    """Rule S9.14: A quarter of the batches is held out."""
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


def test_the_recommended_result_is_written_with_the_command_that_applies_it(
    run, planted: Path, data: Path, tmp_path: Path
) -> None:
    """Rule S9.15: Lists that keep too little work in low precision get an alternative."""
    out, rules = tmp_path / "modify.json", tmp_path / "modify.rules.txt"
    completed = run("tune", planted, "-o", out, "--data", data, "--protect", "none", "--trace")
    assert completed.status == 0
    assert completed.err.endswith(f"\nwrote {out} and {rules}\n")
    assert json.loads(out.read_text()) == {} and rules.read_text().startswith("product::InputDtype:float32")
    parts = [
        f"PASS  {planted} with 1 edit\n",
        "lists alone keep 0 % of the matrix and convolution work in low precision, rules of single nodes keep 50 %\n",
        "\nWith rules of single nodes\n",
        "product (MatMul)",
        "\nNot written: lists alone\n",
        "MatMul ",
        "Write the mixed model with the files of this result:\n    mixlist apply",
    ]
    places = [completed.out.index(part) for part in parts]
    assert places == sorted(places)
    command = shlex.split(completed.out.splitlines()[-1])
    files = ["--mixlist", str(out), "--customize-dtypes", str(rules), "-o", "mixed.onnx"]
    assert command == ["mixlist", "apply", str(planted), "--protect", "none", *files]
    assert run(*command[1:-1], tmp_path / "mixed.onnx").status == 0
    check = ("check", planted, "--data", data, "--protect", "none")
    assert run(*check, "--mixlist", out, "--customize-dtypes", rules).status == 0
    assert run(*check).status == 1


def test_a_file_in_the_place_of_the_rules_is_replaced_only_with_force(
    run, planted: Path, data: Path, tmp_path: Path
) -> None:
    out, rules = tmp_path / "modify.json", tmp_path / "modify.rules.txt"
    rules.write_text("safe::InputDtype:float32,float32,OutputDtype:float32\n")
    arguments = ("tune", planted, "-o", out, "--data", data)
    completed = run(*arguments)
    assert completed.status == 2 and f"{rules} exists" in completed.err and not out.exists()
    completed = run(*arguments, "--keep-dtype", rules, "--force")
    assert completed.status == 2 and "name another OUT" in completed.err
    # The rules of the file are part of the result that replaces it.
    assert run(*arguments, "--customize-dtypes", rules, "--force").status == 0
    assert [line.split(":")[0] for line in rules.read_text().splitlines()] == ["safe"]


def test_the_json_has_both_results(run, planted: Path, data: Path, tmp_path: Path) -> None:
    report = parse_tune_result(run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--format", "json").out)
    lists_alone = report["alternative"]
    assert (report["low_share"]["tuned"], lists_alone["low_share"]) == (0.5, 0)
    assert report["customize_dtypes"].startswith("product::") and lists_alone["customize_dtypes"] == ""
    assert json.loads(lists_alone["modify_mixlist"]) == BLACK
    assert (lists_alone["check"]["verdict"], lists_alone["validation"]) == ("pass", None)
    assert report["next_command"].startswith("mixlist apply")
    options = ("--data", data, "--node-rules", tmp_path / "n.txt", "--format", "json")
    with_node_rules = run("tune", planted, "-o", tmp_path / "o.json", *options)
    report = parse_tune_result(with_node_rules.out)
    assert report["alternative"] is None and report["next_command"].startswith("mixlist apply")


def test_a_result_with_nothing_low_is_not_called_pass_alone(run, data: Path, tmp_path: Path) -> None:
    """No list keeps anything low: the only product overflows."""
    planted, out = tmp_path / "one.onnx", tmp_path / "modify.json"
    onnx.save(model(PLANTED.replace("[safe] s = MatMul (x, one)", "[safe] s = Abs (x)")), planted)
    completed = run("tune", planted, "-o", out, "--data", data)
    assert completed.status == 0 and "warning ML605: no node is low" in completed.err
    assert completed.out.startswith(f"PASSES, BUT NOTHING IS LOW  {planted} with 1 edit\n")
    assert "every limit is kept, because nothing is low" in completed.out


def test_rules_that_keep_no_work_name_the_objective_that_keeps_the_most(run, tmp_path: Path) -> None:
    """One edit of an op type is fewer than two rules, but leaves nothing low."""
    weights = ", ".join(["300"] * 16)
    text = f"""twice (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <float[4, 4] w = {{{weights}}}>
    {{ [first] a = MatMul (x, w) y = Tanh (a) [second] b = MatMul (x, w) z = Tanh (b) }}"""
    planted, data = tmp_path / "twice.onnx", write_batches(tmp_path / "large", (300,))
    onnx.save(model(text), planted)
    rules = tmp_path / "rules.txt"
    arguments = ("tune", planted, "-o", tmp_path / "m.json", "--node-rules", rules, "--data", data)
    completed = run(*arguments)
    assert (completed.status, rules.read_text()) == (0, "")
    assert "warning ML605: no node is low" in completed.err
    *_, sentence, line = completed.out.splitlines()
    assert sentence.endswith("This command keeps the most of it:")
    command = shlex.split(line)
    assert command[-3:] == ["--objective", "max-low", "--force"]
    again = run(*command[1:])
    assert again.status == 0 and "keeps the most of it" not in again.out


def test_the_page_has_the_edits_and_the_files(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out, rules, page = tmp_path / "modify.json", tmp_path / "modify.rules.txt", tmp_path / "page.html"
    completed = run("tune", planted, "-o", out, "--data", data, "--html", page)
    assert completed.status == 0
    assert completed.err.endswith(f"wrote {out} and {rules}\nwrote {page}\n")
    text = page.read_text("utf-8")
    assert f"<title>PASS: {planted} – mixlist tune</title>" in text
    for edited in ("product (MatMul)", "MatMul"):  # of the result, and of the lists alone
        assert f'<th scope="row" class="name">{edited}</th>' in text
    assert "Each edit is needed" in text
    assert f"mixlist apply {planted} --mixlist {out} --customize-dtypes {rules} -o mixed.onnx" in text


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
