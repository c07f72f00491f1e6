"""``mixlist tune``: what is written and what is not, statuses and wrong usage."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.tuned import result

# 4 products of up to 300 * 300: far beyond 65504 where x is 300, far below where it is 0.1.
PLANTED = """planted (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] one = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1},
 float[4, 4] w = {300, 0, 0, 0, 300, 1, 0, 0, 300, 0, 1, 0, 300, 0, 0, 1}>
{ [safe] s = MatMul (x, one) [product] a = MatMul (s, w) [after] y = Tanh (a) }"""
BLACK = {"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}
RULE = "product::InputDtype:float16,float16,OutputDtype:float16\n"  # no list can do anything about it


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    path = tmp_path / "planted.onnx"
    onnx.save(model(PLANTED), path)
    return path


def batches(folder: Path, sizes: tuple[float, ...]) -> Path:
    """One batch for each size of x."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for at, size in enumerate(sizes):
        np.savez(folder / f"{at}.npz", x=(size * rng.uniform(0.5, 1, size=(3, 4))).astype(np.float32))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three batches; the third overflows the planted model."""
    return batches(tmp_path / "batches", (0.1, 0.1, 300))


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    """A batch that does no harm."""
    return batches(tmp_path / "calm", (0.1,))


# --- what is written ---


def test_the_list_that_is_found_passes_the_check(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "modify.json"
    assert run("check", planted, "--data", data).status == 1
    ran = run("tune", planted, "-o", out, "--data", data)
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"PASS  {planted} with 1 edit\n")
    assert "overflow at product" in ran.out
    assert "none of that work stays in low precision" in ran.out
    assert ran.err.startswith("warning ML611: the list was not validated: there are 3")
    assert ran.err.endswith(f"\nwrote {out}\n")
    assert json.loads(out.read_text()) == BLACK
    assert run("validate", out, "--strict", "--model", planted).status == 0
    assert run("check", planted, "--data", data, "--mixlist", out).status == 0


def test_node_rules(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """One of two products is kept; both files together pass the check."""
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    ran = run("tune", planted, "-o", out, "--node-rules", rules, "--data", data, "--format", "json")
    assert ran.status == 0, ran.err
    assert ran.err.endswith(f"\nwrote {out} and {rules}\n")
    told = result(ran.out)
    assert [(edit["node"], edit["op"], edit["after"]) for edit in told["edits"]] == [("product", "MatMul", "float32")]
    assert told["low_share"] == {"base": 1.0, "tuned": 0.5}
    assert (out.read_text(), rules.read_text()) == (told["modify_mixlist"], told["customize_dtypes"])
    assert rules.read_text().startswith("product::InputDtype:float32")
    judged = ("check", planted, "--data", data, "--mixlist", out)
    assert run(*judged).status == 1
    assert run(*judged, "--customize-dtypes", rules).status == 0


def test_the_outputs_replace_the_files_that_were_given(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Edits and rules of the base are in the result, and the rules are written where no node needs one. Rule S9.9."""
    base, own = tmp_path / "base.json", tmp_path / "own.txt"
    base.write_text('{"white-list": {"to-remove": ["Gemm"]}}')
    own.write_text("safe::InputDtype:float32,float32,OutputDtype:float32\n")
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    given = ("--mixlist", base, "--customize-dtypes", own, "--data", data)
    assert run("tune", planted, "-o", out, "--node-rules", rules, *given).status == 0
    assert "Gemm" in json.loads(out.read_text())["white-list"]["to-remove"]
    assert rules.read_text().splitlines()[-1] == own.read_text().strip()
    both = ("--mixlist", out, "--customize-dtypes", rules)
    assert run("check", planted, "--data", data, *both).status == 0


def test_where_nothing_is_to_do_the_list_is_empty(run, planted: Path, calm: Path, tmp_path: Path) -> None:
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    ran = run("tune", planted, "-o", out, "--node-rules", rules, "--data", calm)
    assert ran.status == 0
    assert "needs no edit" in ran.out
    assert (json.loads(out.read_text()), rules.read_text()) == ({}, "")
    assert run("check", planted, "--data", calm, "--mixlist", out, "--customize-dtypes", rules).status == 0


def test_no_list_no_file(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Rule S9.9: The output replaces the given mixlist."""
    out, rules, forced = tmp_path / "modify.json", tmp_path / "nodes.txt", tmp_path / "forced.txt"
    forced.write_text(RULE)
    for options in ((), ("--node-rules", rules)):
        ran = run(
            "tune", planted, "-o", out, "--data", data, "--customize-dtypes", forced, *options, "--format", "json"
        )
        told = result(ran.out)
        assert (ran.status, told["verdict"], told["modify_mixlist"], told["edits"]) == (1, "fail", "", [])
        assert "nothing was written" in ran.err
        assert not out.exists()
        assert not rules.exists()
    assert told["check"]["verdict"] == "fail"


def test_limits_that_float32_misses_too_end_it_at_once(run, data: Path, tmp_path: Path) -> None:
    """Noise is other noise whenever the model runs."""
    path, out = tmp_path / "noise.onnx", tmp_path / "modify.json"
    noisy = PLANTED.replace("y = Tanh (a)", "t = Tanh (a) n = RandomNormalLike (t) y = Add (t, n)")
    onnx.save(model(noisy), path)
    ran = run("tune", path, "-o", out, "--data", data, "--format", "json")
    told = result(ran.out)
    assert (ran.status, told["trials"]) == (1, 1)
    assert "with every node in float32 too" in told["reasons"][0]
    assert not out.exists()


def test_an_existing_output_is_replaced_by_force_alone(run, planted: Path, data: Path, tmp_path: Path) -> None:
    out, rules = tmp_path / "modify.json", tmp_path / "nodes.txt"
    for there in (out, rules):
        there.write_text("old")
        ran = run("tune", planted, "-o", out, "--node-rules", rules, "--data", data)
        assert ran.status == 2
        assert f"{there} exists" in ran.err
        assert there.read_text() == "old"
        there.unlink()
    out.write_text("old")
    assert run("tune", planted, "-o", out, "--data", data, "--force").status == 0
    assert json.loads(out.read_text()) == BLACK


# --- validation, labels, limits ---


def test_validation(run, planted: Path, data: Path, calm: Path, tmp_path: Path) -> None:
    out = tmp_path / "modify.json"
    ran = run("tune", planted, "-o", out, "--data", data, "--validate-on", calm, "--format", "json")
    assert ran.status == 0
    told = result(ran.out)
    assert (told["validation"]["verdict"], told["validation"]["batches"], told["check"]["batches"]) == ("pass", 1, 3)


def test_a_validation_on_data_of_the_search_is_none(run, planted: Path, data: Path, tmp_path: Path) -> None:
    ran = run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--validate-on", data / "1.npz")
    assert ran.status == 2
    assert "1.npz is also data of the search" in ran.err


def test_a_validation_that_fails_is_told_and_the_list_is_written(
    run, planted: Path, data: Path, calm: Path, tmp_path: Path
) -> None:
    """Rule S9.10: Other data can veto the verdict."""
    out = tmp_path / "modify.json"
    given = ("tune", planted, "-o", out, "--data", calm, "--validate-on", data)
    ran = run(*given)
    assert ran.status == 1
    assert ran.out.startswith("FAIL")
    assert "on the data of --validate-on: 1 of 3 batches overflow" in ran.out
    assert "but not on the validation data" in ran.err
    assert json.loads(out.read_text()) == {}
    told = result(run(*given, "--force", "--format", "json").out)
    assert (told["verdict"], told["check"]["verdict"], told["validation"]["verdict"]) == ("fail", "pass", "fail")


def test_labels(run, tmp_path: Path) -> None:
    """The limits of outputs fall away: the share of right answers decides."""
    path, out, labels = tmp_path / "m.onnx", tmp_path / "modify.json", tmp_path / "labels.npy"
    text = """g (float[N, 2] x) => (float[N, 2] y) <float[1] big = {4096}> {
      [up] a = Add (x, big) [down] y = Sub (a, big) }"""  # float16 has no place for less than 4 beside 4096
    onnx.save(model(text), path)
    np.savez(tmp_path / "x.npz", x=np.array([[0.5, 1], [1, 0.5], [0.25, 1], [0, 1]], np.float32))
    np.save(labels, np.array([1, 0, 1, 1]))
    given = ("tune", path, "-o", out, "--data", tmp_path / "x.npz", "--ops-info", "mindspore-o3", "--force")
    ran = run(*given, "--labels", labels, "--format", "json")
    assert ran.status == 0, ran.out
    told = result(ran.out)
    assert told["check"]["task"]["mixed"] == told["check"]["task"]["reference"] == 1
    assert told["check"]["limits"] == {"exception_rate": 0.005, "max_ignored": 0.5}
    assert told["edits"]
    ran = run(*given, "--labels", labels, "--max-accuracy-loss", 1, "--format", "json")
    assert result(ran.out)["edits"] == []
    ran = run(*given, "--max-accuracy-loss", 0.1)
    assert ran.status == 2
    assert "--labels" in ran.err


def test_limits_and_rates_reach_the_search(run, planted: Path, data: Path, tmp_path: Path) -> None:
    given = ("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--force", "--format", "json")
    assert result(run(*given, "--max-exception-rate", 0.5).out)["edits"] == []
    assert result(run(*given, "--steps", 2).out)["edits"] == []
    told = result(run(*given, "--large-batch", "--min-snr", 20, "--overflow-mode", "saturate").out)
    assert told["edits"]
    assert (told["check"]["limits"]["exception_rate"], told["check"]["limits"]["snr"]) == (0.001, 20)


@pytest.mark.parametrize("objective", ["max-low", "max-speed"])
def test_objectives(run, planted: Path, data: Path, tmp_path: Path, objective: str) -> None:
    out = tmp_path / "modify.json"
    ran = run("tune", planted, "-o", out, "--data", data, "--objective", objective, "--format", "json")
    assert ran.status == 0, ran.err
    assert result(ran.out)["objective"] == objective
    assert run("check", planted, "--data", data, "--mixlist", out).status == 0


def test_type_hints(run, tmp_path: Path) -> None:
    """The operators are ONNX Runtime's own, which runs them and tells nobody their types."""
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


# --- how it is told ---


def test_the_trace(run, planted: Path, data: Path, tmp_path: Path) -> None:
    ran = run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--trace", "--format", "json")
    lines = ran.err.splitlines()
    told = result(ran.out)
    assert len(lines) == len(told["log"]) + 3, "a warning with its hint and the line about the files follow the trials"
    assert lines[0] == "   1 pass  [everything in float32]"
    assert lines[1].startswith("   2 fail  [no edit]  overflow at product")
    assert "   3 pass  [MatMul: white to black]" in lines


def test_a_configuration(run, planted: Path, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "mixlist.toml"
    config.write_text('[tune]\noutput = "modify.json"\ndata = "batches"\nnode-rules = "nodes.txt"\ntrace = true\n')
    ran = run("tune", planted, "--config", config)
    assert ran.status == 0, ran.err
    assert "everything in float32" in ran.err
    assert (tmp_path / "nodes.txt").read_text().startswith("product::")


def test_from_python(planted: Path, data: Path, tmp_path: Path) -> None:
    policy = mixlist.load_policy(ops_info="onnx")
    report = mixlist.tune(planted, policy, data)
    assert isinstance(report, mixlist.TuneReport)
    report.save(tmp_path / "modify.json")
    assert json.loads((tmp_path / "modify.json").read_text()) == BLACK
    with pytest.raises(mixlist.MixlistError, match="exists"):
        report.save(tmp_path / "modify.json")
    rules = mixlist.tune(planted, policy, data, node_rules=True)
    with pytest.raises(mixlist.MixlistError, match="no file was named"):
        rules.save(tmp_path / "other.json")
    forced = tmp_path / "forced.txt"
    forced.write_text(RULE)
    none = mixlist.tune(planted, mixlist.load_policy(ops_info="onnx", customize_dtypes=forced), data)
    with pytest.raises(mixlist.MixlistError, match="no list to write: no list of op types keeps the limits"):
        none.save(tmp_path / "other.json")


# --- wrong usage ---


@pytest.mark.parametrize(
    "options",
    [
        ("--objective", "fast"),
        ("--jobs", "0"),
        ("--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"),
        ("--max-accuracy-loss", "2"),
        ("--max-abs-error", "nan"),
        ("--large-batch", "--max-exception-rate", "0.1"),
        ("--provider", "tpu"),
        ("--precision-mode-v2", "fp16"),
        ("--validate-on", "nowhere"),
        ("--labels", "nowhere.npy"),
    ],
)
def test_wrong_usage(run, planted: Path, data: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "modify.json"
    ran = run("tune", planted, "-o", out, "--data", data, *options)
    assert (ran.status, ran.out) == (2, "")
    assert options[-1].partition(":")[0] in ran.err or options[0] in ran.err
    assert not out.exists()


def test_no_output_and_no_data(run, planted: Path, data: Path, tmp_path: Path) -> None:
    assert "--output" in run("tune", planted, "--data", data).err
    ran = run("tune", planted, "-o", tmp_path / "modify.json")
    assert ran.status == 2
    assert "--random" in ran.err


def test_outputs_that_cannot_be(run, planted: Path, tmp_path: Path) -> None:
    """All of these are told before there is data to run on."""
    out, missing = tmp_path / "modify.json", tmp_path / "none" / "m.json"
    cases = [
        (("-o", missing), "its folder does not exist"),
        (("-o", tmp_path), "is a folder"),
        (("-o", out, "--node-rules", missing), "its folder does not exist"),
        (("-o", out, "--state", missing), "its folder does not exist"),
        (("-o", out, "--node-rules", out), "the same file"),
        (("-o", out, "--state", out), "the same file"),
        (("-o", out, "--node-rules", tmp_path / "modify.partial.json"), "the same file"),
    ]
    for options, told in cases:
        ran = run("tune", planted, *options)
        assert (ran.status, ran.out) == (2, "")
        assert told in ran.err, options


def test_no_input_is_replaced(run, planted: Path, data: Path, calm: Path, tmp_path: Path) -> None:
    lists, link, partial = tmp_path / "base.json", tmp_path / "link.json", tmp_path / "modify.partial.json"
    for path in (lists, partial):
        path.write_text("{}")
    link.symlink_to(planted)
    given = ("--data", data, "--validate-on", calm / "0.npz", "--mixlist")
    for path in (planted, link, lists, data / "1.npz", calm / "0.npz"):
        before = path.read_bytes()
        replacing = [("-o", path)] if path != lists else []  # the list is what the search starts from
        for option in (*replacing, ("-o", tmp_path / "m.json", "--state", path)):
            ran = run("tune", planted, *option, *given, lists, "--force")
            assert ran.status == 2, path
            assert "is an input" in ran.err
            assert path.read_bytes() == before
    ran = run("tune", planted, "-o", tmp_path / "modify.json", *given, partial)
    assert ran.status == 2
    assert "is an input" in ran.err


def test_a_state_of_another_search(run, planted: Path, data: Path, calm: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "modify.json", tmp_path / "state.jsonl"
    given = ("tune", planted, "-o", out, "--force", "--state", state)
    assert run(*given, "--data", data).status == 0
    ran = run(*given, "--data", calm)
    assert ran.status == 2
    assert "data differs" in ran.err
    state.write_text("something else\n")
    ran = run(*given, "--data", data)
    assert ran.status == 2
    assert f"{state}:1:1" in ran.err
    assert state.read_text() == "something else\n"


@pytest.mark.parametrize("target", [".", "..", "/"])
def test_a_folder_is_no_output(run, planted: Path, data: Path, target: str) -> None:
    ran = run("tune", planted, "-o", target, "--data", data)
    assert (ran.status, ran.out) == (2, "")
    assert "is a folder" in ran.err


# --- data and results beside the list ---


def test_a_quarter_is_held_out(run, planted: Path, tmp_path: Path) -> None:
    """Rule S9.14: A quarter of the batches is held out."""
    folder = batches(tmp_path / "more", (0.1, 0.1, 0.1, 300))
    given = ("tune", planted, "-o", tmp_path / "m.json", "--data", folder, "--force")
    ran = run(*given)
    assert ran.status == 1
    assert "on the batches that were held out: 1 of 1 batches overflow" in ran.out
    assert "Validation on 1 batch that the search did not use" in ran.out
    assert "but not on the validation data" in ran.err
    told = result(run(*given, "--format", "json").out)
    assert (told["held_out"], told["validation"]["batches"]) == ([str(folder / "3.npz")], 1)
    told = result(run(*given, "--no-holdout", "--format", "json").out)
    assert (told["verdict"], told["held_out"], told["validation"]) == ("pass", [], None)
    config = tmp_path / "mixlist.toml"
    config.write_text("[tune]\nno-holdout = true\n")
    assert run(*given, "--config", config).status == 0


def test_the_recommended_result_comes_first_with_its_command(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """Rule S9.15: the list is written, and the command writes the result with node rules."""
    out = tmp_path / "modify.json"
    ran = run("tune", planted, "-o", out, "--data", data, "--trace")
    assert ran.status == 0
    assert json.loads(out.read_text()) == BLACK
    parts = [
        "lists alone keep 0 % of the matrix",
        "rules of single nodes keep 50 % (recommended)",
        "\nRecommended: with",
    ]
    parts += [
        "product (MatMul)",
        "to write this result: mixlist tune",
        "\nLists alone\n",
        "MatMul ",
        "none of that work stays",
    ]
    places = [ran.out.index(part) for part in parts]
    assert places == sorted(places)
    (line,) = [line for line in ran.out.splitlines() if "to write this result: " in line]
    command = shlex.split(line.partition(": ")[2])
    rules = tmp_path / "modify.nodes.txt"
    assert command[-5:] == ["--objective", "min-edits", "--node-rules", str(rules), "--force"]
    assert run(*command[1:]).status == 0
    assert rules.read_text().startswith("product::InputDtype:float32")
    judged = run("check", planted, "--data", data, "--mixlist", out, "--customize-dtypes", rules)
    assert judged.status == 0


def test_the_json_has_both_results(run, planted: Path, data: Path, tmp_path: Path) -> None:
    told = result(run("tune", planted, "-o", tmp_path / "m.json", "--data", data, "--format", "json").out)
    other = told["alternative"]
    assert (told["low_share"]["tuned"], other["low_share"], other["recommended"]) == (0, 0.5, True)
    assert other["customize_dtypes"].startswith("product::")
    assert (other["check"]["verdict"], other["validation"]) == ("pass", None)
    assert told["next_command"].startswith("mixlist tune")
    asked = run("tune", planted, "-o", tmp_path / "o.json", "--data", data, "--node-rules", tmp_path / "n.txt",
                "--format", "json")  # fmt: skip
    assert (result(asked.out)["alternative"], result(asked.out)["next_command"]) == (None, "")
