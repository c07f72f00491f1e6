"""``mixlist convert``: its files, its report and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator

from tests.cli.conftest import Run
from tests.cli.test_schemas import REGISTRY
from tests.support.builders import model

TEXT = (
    "g (float[32, 32] x) => (float[32, 32] y, float[32, 32] z)"
    " { [big] b = MatMul(x, x) [end] y = Tanh(b) [c] t = Tanh(x) [m] u = MatMul(t, t) [n] z = Tanh(u) }"
)
CONVERT = ("convert", "m.onnx", "-o", "out.onnx", "--jobs", "1")
SHOWN_OPTIONS = 15


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write m.onnx, and data with and without an overflow, into the working folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(model(TEXT), "m.onnx")
    np.savez("large.npz", x=np.full((32, 32), 3000, np.float32))
    np.savez("small.npz", x=np.full((32, 32), 0.1, np.float32))


def test_apply_with_the_rules_writes_the_same_model(run: Run) -> None:
    completed = run(*CONVERT, "--data", "large.npz", "--rules", "keep.txt", "--html", "page.html")
    assert completed.status == 0
    assert "wrote out.onnx and keep.txt\n" in completed.err and "wrote page.html\n" in completed.err
    assert completed.out.startswith("PASS  m.onnx: ")
    assert "big::InputDtype:float32,float32,OutputDtype:float32" in Path("keep.txt").read_text().splitlines()
    assert "mixlist apply m.onnx --customize-dtypes keep.txt -o mixed.onnx" in completed.out
    assert run("apply", "m.onnx", "-o", "applied.onnx", "--customize-dtypes", "keep.txt").status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()
    page = Path("page.html").read_text("utf-8")
    assert "<iframe" in page and "bytes moved in a batch" in page
    assert "<pre>mixlist apply m.onnx" in page


def test_apply_for_a_target_with_the_rules_writes_the_same_model(run: Run) -> None:
    """Of bfloat16, the target has few kernels, and the nodes without one stay in float32."""
    options = ("--target", "cpu", "--max-normalized-error", "0.1")
    completed = run(
        *CONVERT, "--data", "small.npz", "--type", "bfloat16", "--rules", "keep.txt", *options, "--format", "json"
    )
    result = json.loads(completed.out)
    assert (completed.status, result["verdict"]) == (1, "inconclusive")
    assert result["reasons"][0] == "every limit is kept, because nothing is low"
    kept = result["high_nodes"]
    assert any(node["reason"].startswith("--target cpu has no bfloat16 kernel for ") for node in kept)
    policy_options = ("--precision-mode-v2", "mixed_bfloat16", "--customize-dtypes", "keep.txt", "--target", "cpu")
    assert run("apply", "m.onnx", "-o", "applied.onnx", *policy_options).status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_low_interface_is_judged_with_the_nodes(run: Run, size: str) -> None:
    """Rule S7.3: ``apply`` with the rules writes the same model; an output that float16 cannot hold is no pass."""
    options = ("--data", f"{size}.npz", "--rules", "keep.txt", "--io", "low")
    completed = run(*CONVERT, *options)
    assert completed.status == 0, completed.err
    command = "mixlist apply m.onnx --io low --customize-dtypes keep.txt -o mixed.onnx"
    assert command in completed.out
    assert run(*command.split()[1:]).status == 0
    assert Path("mixed.onnx").read_bytes() == Path("out.onnx").read_bytes()
    graph = onnx.load("out.onnx").graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT16}
    # An output beyond float16 beside a node that can be low: the infinity is not lost in the reference.
    onnx.save(model(TEXT.replace("[end] y = Tanh(b)", "y = Identity(b)")), "m.onnx")
    completed = run(*CONVERT, "--data", "large.npz", "--force", "--io", "low")
    assert completed.status == 1 and "data, limits or --io are wrong" in completed.out
    assert run(*CONVERT, "--data", "large.npz", "--force", "--io", "low", "--keep-io", "y").status == 0


def test_lists_that_pass_need_no_search(run: Run) -> None:
    onnx.save(model(TEXT.replace("Tanh(x)", "MatMul(x, x)")), "m.onnx")
    completed = run(*CONVERT, "--data", "small.npz", "--rules", "keep.txt")
    assert completed.status == 0
    assert "no search: the lists keep the limits" in completed.out
    assert Path("keep.txt").read_text() == ""
    assert run("apply", "m.onnx", "-o", "applied.onnx").status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()


def test_every_node_is_low_if_that_passes_too(run: Run) -> None:
    """A gray Tanh of the input follows it and stays float32 under the lists."""
    completed = run(*CONVERT, "--data", "small.npz", "--rules", "keep.txt")
    assert completed.status == 0
    assert "no search: every node that can be is low, and that keeps the limits" in completed.out
    assert Path("keep.txt").read_text() == "c::InputDtype:float16,OutputDtype:float16\n"
    assert run("apply", "m.onnx", "-o", "applied.onnx", "--customize-dtypes", "keep.txt").status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()


def test_rules_under_the_lists_of_a_chip_are_exported_for_atc(run: Run) -> None:
    lists = ("--ops-info", "ascend910b")
    completed = run("convert", "m.onnx", "--rules", "keep.cfg", "--data", "large.npz", *lists)
    assert completed.status == 0, completed.out
    command = completed.out.splitlines()[-1].split()
    exported = ["mixlist", "export", "m.onnx", *lists, "--customize-dtypes", "keep.cfg", "--for", "atc"]
    assert command == [*exported, "-o", "atc_lists"]
    assert "Write the files for atc from these rules" in completed.out and run(*command[1:]).status == 0


def test_rules_alone_can_be_written(run: Run) -> None:
    completed = run("convert", "m.onnx", "--rules", "keep.txt", "--data", "large.npz", "--jobs", "1")
    assert completed.status == 0 and "wrote keep.txt\n" in completed.err
    assert not Path("out.onnx").exists()
    completed = run("convert", "m.onnx", "--data", "large.npz")
    assert completed.status == 2 and "there is nothing to write" in completed.err


def test_random_data_is_named(run: Run) -> None:
    completed = run(*CONVERT)
    assert completed.status == 0
    assert "no data was given: 4 batches of random data judge the model\n" in completed.err
    assert "no data was given: the values are random" in completed.out
    assert "no data was given" not in run(*CONVERT, "--random", "2", "--force").err


def test_the_json_is_valid(run: Run) -> None:
    completed = run(*CONVERT, "--data", "large.npz", "--format", "json")
    result = json.loads(completed.out)
    (schema,) = [contents.contents for uri, contents in REGISTRY.items() if uri == "urn:mixlist:schema:convert:1"]
    Draft202012Validator(schema, registry=REGISTRY).validate(result)
    assert (result["verdict"], result["trials"], result["random_data"]) == ("pass", 1, False)
    assert result["high_nodes"][0]["name"] == "big"
    assert result["before"]["low_nodes"] == 0 < result["after"]["low_nodes"]


def test_nothing_is_written_without_a_result(run: Run) -> None:
    onnx.save(model("g (float[2, 2] x) => (float[2, 2] y) { [m] y = MatMul(x, x) }"), "m.onnx")
    np.savez("large.npz", x=np.full((2, 2), 300, np.float32))
    completed = run(*CONVERT, "--data", "large.npz", "--rules", "keep.txt", "--html", "page.html")
    assert completed.status == 1
    assert "nothing was written\n" in completed.err
    assert completed.out.startswith("FAIL  m.onnx: no mixed model was found\n")
    assert not Path("out.onnx").exists() and not Path("keep.txt").exists()
    page = Path("page.html").read_text("utf-8")
    assert "no mixed model was found" in page and "<iframe" not in page


def test_lists_that_make_nothing_low_are_no_pass(run: Run) -> None:
    Path("keep.txt").write_text("OpType::MatMul\nOpType::Tanh\n")
    completed = run(*CONVERT, "--data", "small.npz", "--keep-dtype", "keep.txt")
    assert completed.status == 1 and completed.err.endswith("wrote out.onnx\n")
    assert completed.out.startswith("PASS, BUT NOTHING IS LOW  m.onnx: 0 of 5 nodes in float16\n")


def test_the_low_type(run: Run) -> None:
    completed = run(
        *CONVERT, "--data", "large.npz", "--type", "bfloat16", "--rules", "keep.txt", "--max-normalized-error", "0.1"
    )
    assert completed.status == 0
    assert "nodes in bfloat16" in completed.out
    assert "ML614: ONNX Runtime's CPU provider does not load out.onnx: it has no kernel for " in completed.err
    assert "--precision-mode-v2 mixed_bfloat16 --customize-dtypes keep.txt" in completed.out
    completed = run(*CONVERT, "--data", "large.npz", "--type", "bfloat16", "--precision-mode-v2", "fp16", "--force")
    assert completed.status == 2 and "--type and --precision-mode-v2 both choose the low type" in completed.err


def test_opset_allows_more_types(run: Run) -> None:
    """The advice of ML411 works: Conv can be bfloat16 from opset 22 on, also in a model with metadata of nodes."""
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y)
        <float[1, 1, 1, 1] w = {2}> { [c] y = Conv(x, w) }"""
    proto = model(text)
    proto.graph.node[0].metadata_props.add(key="pkg.torch", value="c")
    onnx.save(proto, "m.onnx")
    options = (*CONVERT, "--random", 1, "--type", "bfloat16")
    refused = run(*options)
    assert "mixlist apply or convert with --opset 22" in refused.err and "Other lists" not in refused.out
    (command,) = (line.split() for line in refused.out.splitlines() if line.startswith("    mixlist "))
    assert command[1:3] == ["convert", "m.onnx"] and command[-3:] == ["--opset", "22", "--force"]
    assert "1 of 1 node in bfloat16" in run(*command[1:]).out
    completed = run(*options, "--opset", 22, "--rules", "keep.txt", "--force")
    assert completed.status == 0 and "1 of 1 node in bfloat16" in completed.out
    assert "--opset 22" in completed.out  # the command that writes the same model
    node = next(node for node in onnx.load("out.onnx").graph.node if node.op_type == "Conv")
    assert node.metadata_props[0].value == "c"


def test_the_short_help_has_few_options(run: Run) -> None:
    text = run("convert", "-h").out
    options = [line for line in text.splitlines() if line.startswith("  -") and "mixlist" not in line]
    assert len(options) <= SHOWN_OPTIONS


def test_an_interrupt_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mixlist.search.convert.run_convert", stop)
    completed = run(*CONVERT, "--data", "large.npz")
    assert completed.status == 130 and "nothing was written" in completed.err
    assert not Path("out.onnx").exists()


def test_data_that_show_nothing_do_not_blame_the_nodes(run, tmp_path: Path) -> None:
    """A detector without any detection in the data is no failure of float16."""
    text = "g (float[1, 7, 8] x, float[8, 8] w) => (float[1, 7, 8] y) { y = MatMul(x, w) }"
    onnx.save(model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 7, 8), np.float32), w=np.eye(8, dtype=np.float32))
    arguments = ("-o", tmp_path / "o.onnx", "--data", tmp_path / "b.npz", "--judge", "boxes")
    completed = run("convert", tmp_path / "m.onnx", *arguments)
    assert "m.onnx: the data show nothing about a result\n" in completed.out
    assert "counted no detections in any batch" in completed.out and not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("command", ["convert", "tune"])
def test_a_search_without_any_detection_ends_before_its_first_trial(run, tmp_path: Path, command: str) -> None:
    """The base lists miss a limit of the outputs, so that a search would follow."""
    text = "g (float[1, 7, 8] x, float[8, 8] w) => (float[1, 7, 8] y) { y = MatMul(x, w) }"
    onnx.save(model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(0, 0.3, (1, 7, 8)).astype(np.float32)
    np.savez(tmp_path / "b.npz", x=x, w=np.eye(8, dtype=np.float32))
    arguments = ("-o", tmp_path / "out", "--data", tmp_path / "b.npz", "--max-normalized-error", "1e-9")
    completed = run(command, tmp_path / "m.onnx", *arguments, "--judge", "boxes")
    assert completed.status == 1 and completed.out.startswith("INCONCLUSIVE")
    assert "counted no detections in any batch of the reference: its highest score is 0." in completed.out
    assert ("0 trials" if command == "tune" else "no search") in completed.out
    (step,) = completed.out.partition("What to do next\n")[2].splitlines()
    assert step.strip().startswith("Give data with objects, or leave out --judge boxes, so that")
