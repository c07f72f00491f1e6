"""``mixlist repair``: its files, its report and its exit status."""

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

TEXT = "g (float16[N] x) => (float16[N] y) { [a] a = Neg(x) [m] m = Mul(a, a) [r] r = Sqrt(m) [n] y = Neg(r) }"
REPAIR = ("repair", "half.onnx", "-o", "out.onnx", "--jobs", "1")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write half.onnx, and data with and without an overflow, into the working folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(model(TEXT), "half.onnx")
    np.savez("large.npz", x=np.array([1, 300], np.float16))
    np.savez("small.npz", x=np.array([1, 2], np.float16))


def test_a_repair_writes_the_model_and_its_rules(run: Run) -> None:
    completed = run(*REPAIR, "--data", "large.npz", "--rules", "rules.txt")
    assert completed.status == 0
    assert "wrote out.onnx and rules.txt\n" in completed.err
    assert completed.out.startswith(
        "PASS  half.onnx: 1 edit, 2 of 4 float16 nodes raised to float32\n      the repaired model keeps every limit\n"
    )
    assert ["overflow", "m", "Mul", "output", "m", "90000"] in [line.split() for line in completed.out.splitlines()]
    assert Path("rules.txt").read_text().splitlines() == [
        "m::InputDtype:float32,float32,OutputDtype:float32",
        "r::InputDtype:float32,OutputDtype:float32",
    ]
    rules = ("--precision-mode-v2", "origin", "--customize-dtypes", "rules.txt")
    assert run("apply", "half.onnx", "-o", "applied.onnx", *rules).status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()
    assert run("check", "half.onnx", "--data", "large.npz", "--reference-type", "float32", *rules).status == 0
    assert "    mixlist check half.onnx out.onnx --data large.npz --jobs 1 --reference-type float32\n" in completed.out
    checked = run("check", "half.onnx", "out.onnx", "--data", "large.npz")
    place = "The reference overflows in float16 at m (Mul), and the mixed model does not: --reference-type float32"
    assert checked.status == 1 and place in checked.out


def test_an_interface_in_float32_holds_what_float16_cannot(run: Run) -> None:
    """Rule S7.3: Mul overflows at an output, which only --io float32 can repair."""
    onnx.save(model("g (float16[N] x) => (float16[N] y) { [a] a = Neg(x) [m] y = Mul(a, a) }"), "half.onnx")
    refused = run(*REPAIR, "--data", "large.npz")
    assert refused.status == 1 and not Path("out.onnx").exists()
    assert "  Output 'y' is beyond float16: add --io float32:\n    mixlist repair half.onnx " in refused.out
    completed = run(*REPAIR, "--data", "large.npz", "--io", "float32", "--rules", "rules.txt")
    assert completed.status == 0, completed.err
    graph = onnx.load("out.onnx").graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    rules = ("--precision-mode-v2", "origin", "--customize-dtypes", "rules.txt", "--io", "float32")
    assert run("apply", "half.onnx", "-o", "applied.onnx", *rules).status == 0
    assert Path("applied.onnx").read_bytes() == Path("out.onnx").read_bytes()
    assert run(*REPAIR, "--data", "large.npz", "--io", "float32", "--keep-io", "y", "--force").status == 1


def test_the_json_has_offenders_edits_and_errors(run: Run) -> None:
    completed = run(*REPAIR, "--data", "large.npz", "--format", "json", "--state", "trials.jsonl", "--trace")
    assert "overflow at m" in completed.err
    result = json.loads(completed.out)
    (schema,) = [contents.contents for uri, contents in REGISTRY.items() if uri == "urn:mixlist:schema:repair:1"]
    Draft202012Validator(schema, registry=REGISTRY).validate(result)
    assert [finding["name"] for finding in result["first_offenders"]] == ["m"]
    assert [[node["name"] for node in edit["nodes"]] for edit in result["edits"]] == [["m", "r"]]
    (errors,) = result["errors"]
    assert (errors["name"], errors["before"]["pass"], errors["after"]["pass"]) == ("y", False, True)
    assert (result["low_nodes"], result["raised_nodes"]) == (4, 2)
    # A search that was stopped continues from its state.
    continued = run(*REPAIR, "--data", "large.npz", "--state", "trials.jsonl", "--force")
    assert f"  0 trials, {result['trials']} more read from the state\n" in continued.out


def test_a_healthy_model_is_written_and_said_to_be_healthy(run: Run) -> None:
    completed = run(*REPAIR, "--data", "small.npz")
    assert completed.status == 0
    assert "wrote out.onnx: no node changed\n" in completed.err
    assert completed.out.startswith("PASS  half.onnx: nothing to repair\n")
    assert onnx.load("out.onnx").graph == model(TEXT).graph


def test_other_data_can_veto_the_repair(run: Run) -> None:
    completed = run(*REPAIR, "--data", "small.npz", "--validate-on", "large.npz")
    assert completed.status == 1
    assert "wrote out.onnx: no node changed; it does not keep the limits on the validation data\n" in completed.err
    assert "on the data of --validate-on: " in completed.out


def test_a_search_without_a_result_writes_nothing(run: Run) -> None:
    onnx.save(model("g (float16[N] x) => (float16[N] y) { [n] n = Neg(x) [m] y = Mul(n, n) }"), "half.onnx")
    completed = run(*REPAIR, "--data", "large.npz", "--rules", "rules.txt")
    assert completed.status == 1
    assert "nothing was written\n" in completed.err
    assert completed.out.startswith("FAIL  half.onnx: no repair\n")
    assert not Path("out.onnx").exists() and not Path("rules.txt").exists()


def test_existing_files_need_force(run: Run) -> None:
    Path("out.onnx").write_text("mine")
    refused = run(*REPAIR, "--data", "large.npz")
    assert (refused.status, refused.out) == (2, "")
    assert "--force" in refused.err
    assert Path("out.onnx").read_text() == "mine"
    assert run(*REPAIR, "--data", "small.npz", "--force").status == 0


def test_a_float32_model_is_refused(run: Run) -> None:
    onnx.save(model(TEXT.replace("float16", "float")), "half.onnx")
    completed = run(*REPAIR, "--random", "1")
    assert completed.status == 2
    assert "half.onnx has no node in float16 or bfloat16" in completed.err
