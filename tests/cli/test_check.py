"""``mixlist check``: verdicts and statuses, formats, limits, and files that it must not replace."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mixlist.checker.limits import DEFAULT_RATE_LIMIT, LARGE_BATCH_RATE_LIMIT
from tests.support.builders import HEAD, model
from tests.support.rotary import ROTARY, late_positions

# 4 products of up to 300 * 300: far beyond 65504 where x is 300, far below where it is 1.
PLANTED = """
<ir_version: 8, opset_import: ["" : 17]>
planted (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {300, 0, 0, 0, 300, 1, 0, 0, 300, 0, 1, 0, 300, 0, 0, 1}>
{
    [product] a = MatMul (x, w)
    [scaled] y = Tanh (a)
}
"""

HALF = """
<ir_version: 8, opset_import: ["" : 17]>
half (float16[2] x) => (float16[2] y) { [m] y = Mul (x, x) }
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    path = tmp_path / "planted.onnx"
    onnx.save(onnx.parser.parse_model(PLANTED), path)
    return path


@pytest.fixture
def rotary(tmp_path: Path) -> Path:
    """Write a rotary embedding whose positions are an input; return its path."""
    path = tmp_path / "rotary.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + ROTARY), path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write five batches, of which the third overflows the planted model; return their folder."""
    folder = tmp_path / "batches"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for at in range(5):
        size = 300 if at == 2 else 0.1
        np.savez(folder / f"{at}.npz", x=(size * rng.uniform(0.5, 1, size=(3, 4))).astype(np.float32))
    return folder


def test_a_planted_overflow_fails_the_check(run, planted: Path, data: Path) -> None:
    completed = run("check", planted, "--data", data)
    assert completed.status == 1
    assert completed.out.startswith("FAIL  ")
    assert "1 of 5 batches" in completed.out
    assert "overflow  product (MatMul)" in completed.out
    assert "1 of 5, first #2" in completed.out
    assert "exception rate 20 % (fails from 0.5 %)" in completed.out


def test_random_positions_fail_only_without_protection(run, rotary: Path) -> None:
    """Rule S4.38: random positions are large, and a policy protects them."""
    completed = run("check", rotary, "--random", 2, "--dim", "s=32", "--protect", "none")
    assert completed.status == 1
    assert completed.out.startswith("FAIL  ")
    assert "output 'y' misses" in completed.out
    assert (
        "input 'position_ids': integers from 0 to 4095, because they are positions, which reach Cos cos"
        in completed.err
    )
    completed = run("check", rotary, "--random", 2, "--dim", "s=32")
    assert completed.status == 1
    assert completed.out.startswith("PASS, BUT NOTHING IS LOW  ")


@pytest.mark.parametrize("command", ["check", "tune", "bench"])
def test_a_warning_of_the_lists_has_its_severity_once(run, rotary: Path, tmp_path: Path, command: str) -> None:
    """Rule S4.38: positions without protection warn, in every command that runs the mixed model."""
    data = tmp_path / "batch.npz"
    np.savez(data, **late_positions())
    extra = {"tune": ("-o", tmp_path / "list.json"), "bench": ("--rounds", 1), "check": ()}
    completed = run(command, rotary, "--data", data, "--protect", "none", *extra[command])
    assert completed.status in (0, 1)
    warnings = [line for line in completed.err.splitlines() if "ML507" in line]
    assert warnings and all(line.startswith("warning ML507: ") for line in warnings)


def test_the_check_passes_without_the_batch_that_overflows(run, planted: Path, data: Path) -> None:
    completed = run("check", planted, "--data", data, "--max-batches", 2)
    assert completed.status == 0
    assert completed.out.startswith("PASS  ")
    assert "2 batches" in completed.out
    assert "First offenders" not in completed.out


def test_after_a_failure_the_next_command_is_a_search(run, planted: Path, data: Path, tmp_path: Path) -> None:
    """The command has the options that ``convert`` takes too, and no other; a compiler's lists are tuned."""
    arguments = ("check", planted, "--data", data, "--overflow-mode", "saturate", "--large-batch", "--per-tensor")
    completed = run(*arguments, "--format", "json")
    command = json.loads(completed.out)["next_command"]
    assert shlex.split(command) == [
        *("mixlist", "convert", str(planted), "--data", str(data), "--overflow-mode", "saturate"),
        *("--large-batch", "-o", "mixed.onnx"),
    ]
    text = "To search the nodes that must stay in float32, and write the model:"
    assert f"{text}\n    {command}\n" in run(*arguments).out
    passed = json.loads(run("check", planted, "--data", data, "--max-batches", 2, "--format", "json").out)
    assert passed["next_command"] == f"mixlist apply {planted} -o mixed.onnx"
    config = tmp_path / "mixlist.toml"
    config.write_text(f'ops-info = "mindspore-o3"\n[check]\ndata = "{data}"\n')
    command = json.loads(run("check", planted, "--config", config, "--format", "json").out)["next_command"]
    assert shlex.split(command)[2:] == [
        *(str(planted), "--ops-info", "mindspore-o3", "--data", str(data), "-o", "modify.json"),
    ]


def test_the_next_command_repeats_that_no_configuration_counts(run, planted: Path, data: Path) -> None:
    completed = run("check", planted, "--data", data, "--config", "none", "--max-batches", 2, "--format", "json")
    command = json.loads(completed.out)["next_command"]
    assert shlex.split(command) == ["mixlist", "apply", str(planted), "--config", "none", "-o", "mixed.onnx"]


def test_the_next_command_has_no_replaced_option(run, planted: Path, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "mixlist.toml"
    config.write_text('precision-mode = "force_fp16"\n[check]\nrandom = 3\nmax-exception-rate = 0.5\njobs = 1\n')
    options = ("--data", data, "--large-batch", "--precision-mode-v2", "mixed_float16")
    completed = run("check", planted, "--config", config, *options, "--format", "json")
    words = shlex.split(json.loads(completed.out)["next_command"])
    assert {"--random", "--max-exception-rate", "--precision-mode"}.isdisjoint(words)
    assert {"--data", "--large-batch", "--jobs", "--precision-mode-v2"} <= set(words)


@pytest.mark.parametrize("mode", [("--precision-mode-v2", "fp16"), ("--precision-mode", "force_fp16")])
def test_after_a_failure_without_lists_the_next_command_converts(
    run, planted: Path, data: Path, mode: tuple[str, str]
) -> None:
    completed = run("check", planted, "--data", data, *mode, "--format", "json")
    command = json.loads(completed.out)["next_command"]
    assert shlex.split(command) == [
        *("mixlist", "convert", str(planted), *mode, "--data", str(data), "-o", "mixed.onnx"),
    ]


def test_a_pass_on_random_values_without_a_range_asks_for_real_ones(run, planted: Path) -> None:
    report = json.loads(run("check", planted, "--random", 1, "--format", "json").out)
    assert report["verdict"] == "pass" and "--range x=LOW:HIGH" in report["advice"][0]
    assert f"{report['advice'][0][1:]}.\n" in run("check", planted, "--random", 1).out
    ranged = json.loads(run("check", planted, "--random", 1, "--range", "x=0:1", "--format", "json").out)
    assert ranged["verdict"] == "pass" and ranged["advice"] == []


def test_a_node_authored_in_float16_is_repaired(run, tmp_path: Path) -> None:
    path, data = tmp_path / "half.onnx", tmp_path / "x.npz"
    onnx.save(onnx.parser.parse_model(HALF), path)
    np.savez(data, x=np.full(2, 300, np.float16))
    report = json.loads(run("check", path, "--data", data, "--reference-type", "float32", "--format", "json").out)
    assert "mixlist repair finds the fewest" in report["nodes"][0]["suggestion"]
    assert shlex.split(report["next_command"])[:2] == ["mixlist", "repair"]
    assert report["next_command"].endswith("-o repaired.onnx")


def test_a_pass_of_a_model_in_float16_recommends_the_original(run, tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    half (float16[2] x, float[2] z) => (float16[2] y, float r) { a = Mul (x, x) y = Neg (a) r = MatMul (z, z) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    completed = run("check", path, "--random", 1)
    assert completed.status == 0
    assert "mixlist apply" not in completed.out
    sentence = "The model is in float16 already, and was compared with itself: mixlist check ORIGINAL.onnx"
    assert f"{sentence} {path} --data ... compares it with the original." in completed.out


def test_json_has_the_verdict_and_the_first_offender(run, planted: Path, data: Path) -> None:
    completed = run("check", planted, "--data", data, "--format", "json")
    assert completed.status == 1
    report = json.loads(completed.out)
    assert (report["format"], report["verdict"], report["mode"], report["provider"]) == (
        *("mixlist.check/1", "fail"),
        *("emulated", "cpu"),
    )
    assert (report["batches"], report["exception_rate"]) == (5, 0.2)
    limits = {"exception_rate": 0.005, "normalized": 0.01, "cosine": 0.999, "max_ignored": 0.5}
    assert report["limits"] == limits
    (first,) = [node for node in report["nodes"] if node["first"]]
    assert (first["name"], first["kind"], first["batches"]) == ("product", "overflow", [2])
    assert first["max_abs_low"] == "inf"
    assert first["max_abs_fp32"] > 65520
    assert [output["name"] for output in report["outputs"]] == ["y"]
    assert report["tensors"] == []


def test_a_report_without_a_page_prints_the_command_that_writes_one(run, planted: Path, data: Path) -> None:
    command = f"mixlist check {planted} --data {data} --html check.html"
    assert (
        f"To see the findings on the graph of the model:\n    {command}\n" in run("check", planted, "--data", data).out
    )


def test_the_page_of_a_given_mixed_model_shows_its_graph(run, planted: Path, data: Path, tmp_path: Path) -> None:
    page, mixed = tmp_path / "report.html", tmp_path / "mixed.onnx"
    run("apply", planted, "-o", mixed, "--precision-mode-v2", "fp16")
    run("check", planted, mixed, "--data", data, "--html", page)
    assert "<iframe" in page.read_text("utf-8")


def test_a_given_mixed_model_that_fails_is_not_corrected_by_lists(
    run, planted: Path, data: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed.onnx"
    run("apply", planted, "-o", mixed, "--precision-mode-v2", "fp16")
    completed = run("check", planted, mixed, "--data", data)
    assert completed.status == 1
    assert "Keep nodes in float32 where the mixed model is made, until the check passes." in completed.out
    assert "tune" not in completed.out and "lists" not in completed.out


def test_a_given_mixed_model_with_many_small_errors_needs_a_search(run, tmp_path: Path) -> None:
    """Not its three worst nodes: of 300 equal errors, they add little."""
    nodes = "".join(f"[n{at}] t{at + 1} = MatMul(t{at}, w)" for at in range(300))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[4, 2] t0) => (float[4, 2] t300)
        <float[2, 2] w = {{0.8, 0.6, -0.6, 0.8}}> {{ {nodes} }}"""
    path, mixed = tmp_path / "m.onnx", tmp_path / "mixed.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    run("apply", path, "-o", mixed, "--precision-mode-v2", "mixed_bfloat16")
    arguments = ("--random", 2, "--max-normalized-error", 0.002)
    completed = run("check", path, mixed, *arguments, "--precision-mode-v2", "mixed_float16")
    assert completed.status == 1 and "No few nodes explain the error: the 3 that add the most" in completed.out
    command = f"mixlist convert {path} --random 2 --max-normalized-error 0.002 --type bfloat16 -o mixed.onnx"
    assert f"    {command}\n" in completed.out


def test_the_next_command_says_that_it_judges_without_inner_types(run, planted: Path, data: Path) -> None:
    sentence = "The search judges without --inner-type low: check its result with this option."
    completed = run("check", planted, "--data", data, "--inner-type", "low")
    assert completed.status == 1
    assert sentence in completed.out and "mixlist convert " in completed.out
    assert sentence not in run("check", planted, "--data", data).out


def test_the_html_page_contains_the_ranges(run, planted: Path, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    completed = run("check", planted, "--data", data, "--html", page)
    assert completed.status == 1
    assert f"wrote {page}" in completed.err
    text = page.read_text("utf-8")
    assert "Dynamic range" in text
    assert '"cells":["a",' in text
    assert "Graph of" in text
    assert "<iframe" in text


def test_per_tensor_lists_every_tensor(run, planted: Path, data: Path) -> None:
    report = json.loads(run("check", planted, "--data", data, "--per-tensor", "--format", "json").out)
    assert {tensor["tensor"] for tensor in report["tensors"]} >= {"a", "y"}


@pytest.mark.parametrize(
    ("options", "status", "rate"),
    [
        ([], 1, DEFAULT_RATE_LIMIT),
        (["--large-batch"], 1, LARGE_BATCH_RATE_LIMIT),
        (["--max-exception-rate", "0.2"], 1, 0.2),
        (["--max-exception-rate", "0.21"], 0, 0.21),
    ],
)
def test_the_limit_of_the_exception_rate_decides(
    run, planted: Path, data: Path, options: list[str], status: int, rate: float
) -> None:
    completed = run("check", planted, "--data", data, "--format", "json", *options)
    report = json.loads(completed.out)
    assert report["outputs"][0]["pass"]  # Tanh of infinity is 1, as it should be
    assert (completed.status, report["limits"]["exception_rate"]) == (status, rate)


def test_saturated_values_have_a_finding_kind(run, planted: Path, data: Path) -> None:
    report = json.loads(run("check", planted, "--data", data, "--overflow-mode", "saturate", "--format", "json").out)
    assert report["verdict"] == "fail"
    assert [node["kind"] for node in report["nodes"] if node["name"] == "product"] == ["saturated"]


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--max-abs-error", "0", "max_abs"),
        ("--max-rel-error", "0", "max_rel"),
        ("--max-normalized-error", "0", "normalized"),
        ("--min-cosine", "1", "cosine"),
        ("--min-snr", "300", "snr"),
    ],
)
def test_each_limit_fails_the_check(run, model_path: Path, option: str, value: str, name: str) -> None:
    completed = run("check", model_path, "--random", 2, "--dim", "N=3", option, value, "--format", "json")
    report = json.loads(completed.out)
    assert completed.status == 1
    assert report["limits"][name] == float(value)
    assert report["outputs"][0]["failed_limits"] == [name]


def test_the_check_passes_if_limits_hold(run, model_path: Path) -> None:
    options = ["--min-snr", "-100", "--max-mismatch", "0", "--max-normalized-error", "inf", "--min-cosine", "-1"]
    completed = run("check", model_path, "--random", 2, "--dim", "N=3", *options, "--format", "json")
    assert completed.status == 0
    assert json.loads(completed.out)["limits"]["normalized"] == "inf"


def test_each_index_of_an_axis_is_judged(run, planted: Path, data: Path) -> None:
    """Each index of the axis has the limits by itself, also in a search."""
    options = ("--data", data, "--per-index", "-1", "--max-batches", 2, "--format", "json")
    checked = json.loads(run("check", planted, *options).out)
    assert checked["limits"]["per_index"] == -1
    assert checked["outputs"][0]["worst_index"]["axis"] == -1
    assert "worst index of 'y': index " in run("check", planted, *options[:-2]).out
    assert json.loads(run("tune", planted, *options, "-o", data.parent / "modify.json").out)["verdict"] == "pass"


def test_against_checks_another_model(run, planted: Path, data: Path, tmp_path: Path) -> None:
    mixed, keep = tmp_path / "mixed.onnx", tmp_path / "keep.cfg"
    keep.write_text("product\n")
    assert run("apply", planted, "-o", mixed).status == 0
    assert run("check", planted, "--data", data, "--mixed-model", mixed).status == 1
    named, given = (
        json.loads(run("check", planted, *arguments, "--data", data, "--format", "json").out)
        for arguments in (("--mixed-model", mixed), (mixed,))
    )
    assert named.pop("seconds") and given.pop("seconds") and named == given
    twice = run("check", planted, mixed, "--mixed-model", mixed, "--data", data)
    assert (twice.status, "MIXED and --mixed-model are two mixed models" in twice.err) == (2, True)
    assert run("apply", planted, "-o", mixed, "--force", "--keep-dtype", keep).status == 0
    without_low = run("check", planted, "--data", data, "--mixed-model", mixed)
    assert f"ML605: no node of {mixed} is low: only the outputs are compared" in without_low.err
    headline = f"OUTPUTS AGREE, BUT NOTHING IS LOW  {mixed} against {planted}, emulated on cpu"
    assert without_low.status == 1 and without_low.out.startswith(headline)
    assert "Give a mixed model with low nodes." in without_low.out


def test_more_moved_bytes_than_in_the_original_are_explained(run, tmp_path: Path) -> None:
    onnx.save(model("g (float[64] x) => (float[64] y) { a = Abs(x) [n] b = Neg(a) y = Abs(b) }"), tmp_path / "m.onnx")
    lists = tmp_path / "lists.json"
    lists.write_text('{"white-list": {"to-add": ["Neg"]}, "black-list": {"to-add": ["Abs"]}}')
    text = run("check", tmp_path / "m.onnx", "--random", 1, "--mixlist", lists).out
    assert "2.05 kB moved in a batch (1.54 kB in the original: the Casts move more than the low nodes save)" in text


def test_a_misspelled_op_type_is_corrected_first(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }"), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    lists = ("--ops-info", "ascend310p", "--mixlist", "typo.json")
    for names, is_misspelled in (('"Sigmiod", "Relu"', True), ('"Relu"', False)):
        Path("typo.json").write_text(f'{{"white-list": {{"to-add": [{names}]}}}}')
        completed = run("check", "m.onnx", "--random", 1, *lists)
        assert completed.status == 0, completed.out
        steps = completed.out.split("What to do next\n")[1].splitlines()
        assert any("mixlist export" in step for step in steps)
        assert (steps[1] == "    mixlist validate typo.json --ops-info ascend310p --model m.onnx") == is_misspelled
        assert run("validate", "typo.json", *lists[:2], "--model", "m.onnx").status == is_misspelled


def test_the_policy_decides_the_verdict(run, planted: Path, data: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep.cfg"
    keep.write_text("product\n")
    completed = run("check", planted, "--data", data, "--keep-dtype", keep)
    assert completed.status == 1 and completed.out.startswith("PASS, BUT NOTHING IS LOW  "), completed.out
    assert "low: 0 of 2 nodes; 0 % of the matrix work; 256 bytes moved in a batch" in completed.out
    report = json.loads(run("check", planted, "--data", data, "--keep-dtype", keep, "--format", "json").out)
    assert (report["verdict"], report["reasons"]) == ("inconclusive", ["every limit is kept, because nothing is low"])
    assert report["low"] == {
        "low_nodes": 0,
        "nodes": 2,
        "low_share": 0,
        "bytes": 256,
        "reference_bytes": 256,
        "uncounted": 0,
    }


def test_the_page_never_replaces_an_input(run, planted: Path, data: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(planted)
    lists = tmp_path / "modify.json"
    lists.write_text("{}")
    batch = data / "0.npz"
    for page in (planted, link, lists, batch):
        before = page.read_bytes()
        options = ["--data", batch, "--mixlist", lists]
        completed = run("check", planted, *options, "--html", page)
        assert completed.status == 2, page
        assert "is an input" in completed.err
        assert page.read_bytes() == before


def test_a_configuration_sets_options(run, planted: Path, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "mixlist.toml"
    config.write_text('[check]\ndata = ["batches"]\nmax-exception-rate = 0.5\nmin-snr = 10\nper-tensor = true\n')
    completed = run("check", planted, "--config", config, "--format", "json")
    report = json.loads(completed.out)
    assert (completed.status, report["batches"]) == (0, 5)
    assert (report["limits"]["exception_rate"], report["limits"]["snr"]) == (0.5, 10)
    assert report["tensors"]
    assert run("check", planted, "--config", config, "--large-batch").status == 1  # the command line wins
    config.write_text('[check]\nmin-snr = "ten"\n')
    completed = run("check", planted, "--config", config)
    assert completed.status == 2
    assert "takes a number" in completed.err


def test_help_says_what_runs_on_a_cpu_and_why(run) -> None:
    text = " ".join(run("check", "--help-all").out.split())
    assert "On a CPU the mixed model is emulated" in text
    assert "The mixed model itself would show no overflow" in text


def test_type_hints_give_custom_operators_their_types(run, tmp_path: Path) -> None:
    """The operators are ONNX Runtime's own, which runs them and does not publish their types."""
    path, hints, data = tmp_path / "custom.onnx", tmp_path / "hints.json", tmp_path / "x.npz"
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]>
    g (float[1,16,1,2] x) => (float[1,16,1,2] y) {
      r = com.microsoft.nchwc.ReorderInput(x) a = com.microsoft.nchwc.ReorderOutput<channels=16>(r)
      [product] b = MatMul(a, a) [after] c = Tanh(b) y = Cast<to = 1>(c) }"""
    onnx.save(onnx.parser.parse_model(text.replace("1,2]", "2,2]")), path)
    np.savez(data, x=np.full((1, 16, 2, 2), 300, np.float32))
    hints.write_text('{"a": "float32"}')
    assert run("check", path, "--data", data).out.startswith("PASS, BUT NOTHING IS LOW  ")
    completed = run("check", path, "--data", data, "--type-hints", hints)
    assert completed.status == 1, completed.err
    assert "overflow  product (MatMul)" in completed.out
    for wrong in ("[]", '{"a": "floaty"}'):
        completed = run("check", path, "--data", data, "--type-hints", "-", stdin=wrong)
        assert completed.status == 2, completed.err
    completed = run("check", path, "--data", data, "--type-hints", "-", "--mixlist", "-", stdin="{}")
    assert completed.status == 2
    assert "given twice" in completed.err


def test_warnings_go_to_standard_error(run, model_path: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.onnx"
    assert run("apply", model_path, "-o", mixed).status == 0
    completed = run("check", mixed, "--random", 1, "--dim", "N=2", "--format", "json")
    assert json.loads(completed.out)["warnings"]
    assert "is an output of mixlist" in completed.err


BFLOAT16 = """
<ir_version: 10, opset_import: ["" : 22, "my" : 1]>
g (bfloat16[4, 4] x) => (bfloat16[4, 4] y) { [product] a = MatMul (x, x) [positive] y = Relu (a) }
"""
FLOAT32 = BFLOAT16.replace("bfloat16", "float")


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes a model of a text under a name."""

    def save_model(name: str, text: str) -> Path:
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
        return tmp_path / name

    return save_model


def test_a_bfloat16_file_that_the_cpu_provider_refuses_is_named(run, save: Callable[[str, str], Path]) -> None:
    bfloat16, float32 = save("b.onnx", BFLOAT16), save("f.onnx", FLOAT32)
    sentence = f"ML614: ONNX Runtime's CPU provider does not load {bfloat16}: it has no kernel for 2 of its 2 bfloat16"
    for arguments in ((bfloat16,), (float32, "--mixed-model", bfloat16)):
        assert sentence in run("check", *arguments, "--random", 1).err
    assert "ML614" not in run("check", float32, "--precision-mode-v2", "mixed_bfloat16", "--random", 1).err


@pytest.mark.parametrize("more", [(), ("--segment-bytes", 10)])
def test_an_error_of_loading_names_the_model(run, save: Callable[[str, str], Path], more: tuple[object, ...]) -> None:
    unknown, float32 = save("u.onnx", FLOAT32.replace("Relu", "my.Unknown")), save("f.onnx", FLOAT32)
    for arguments, role in (
        ((float32, "--mixed-model", unknown), "the model of --mixed-model"),
        ((unknown, "--mixed-model", float32), "the reference"),
    ):
        completed = run("check", *arguments, "--random", 1, *more)
        assert completed.status == 2
        assert f"error: {role}, {unknown}: ONNX Runtime cannot load the model" in completed.err
    assert "error: ONNX Runtime cannot load the model" in run("check", unknown, "--random", 1, *more).err


def test_a_check_in_segments_says_so(run, save: Callable[[str, str], Path]) -> None:
    arguments = ("check", save("f.onnx", FLOAT32), "--random", 1)
    assert "      in segments of at most 2 kB of weights\n" in run(*arguments, "--segment-bytes", 2000).out
    assert "in segments" not in run(*arguments).out
    assert json.loads(run(*arguments, "--segment-bytes", 2000, "--format", "json").out)["segment_bytes"] == 2000
    assert json.loads(run(*arguments, "--format", "json").out)["segment_bytes"] is None
