"""``mixlist apply``: options, summary, report, and every input and output that it has to refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from mixlist.number_text import format_bytes


@pytest.fixture
def output_path(tmp_path: Path) -> Path:
    return tmp_path / "out.onnx"


LISTS = ("--ops-info", "pytorch")  # MatMul is white, Relu gray, and Softmax black


def io_types(path: Path) -> dict[str, int]:
    graph = onnx.load(path).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


def weight_type(path: Path) -> int:
    return int(onnx.load(path).graph.initializer[0].data_type)


def test_the_mixed_model_is_written_and_summarized(run, model_path: Path, output_path: Path) -> None:
    before = model_path.read_bytes()
    completed = run("apply", model_path, *LISTS, "-o", output_path)
    assert (completed.status, completed.out) == (0, "")
    onnx.checker.check_model(onnx.load(output_path), full_check=True)
    assert weight_type(output_path) == TensorProto.FLOAT16
    assert set(io_types(output_path).values()) == {TensorProto.FLOAT}
    assert model_path.read_bytes() == before
    assert "2 of 3 eligible nodes are float16" in completed.err
    assert "2 Casts inserted, 1 constants converted" in completed.err
    assert completed.err.splitlines()[-1].startswith("not checked on data: mixlist check ")
    sizes = [line.split() for line in completed.err.splitlines() if line.startswith(("nodes", "Casts"))]
    assert sizes == [["nodes", "3", "5"], ["Casts", "0", "2"]]


def test_inputs_and_outputs_keep_their_types_as_the_options_say(run, model_path: Path, output_path: Path) -> None:
    assert run("apply", model_path, "-o", output_path, "--io", "low").status == 0
    assert io_types(output_path) == {"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT16}
    assert run("apply", model_path, "-o", output_path, "--io", "low", "--keep-io", "x", "--force").status == 0
    assert io_types(output_path)["x"] == TensorProto.FLOAT
    # Alone, --keep-io would change nothing.
    completed = run("apply", model_path, "-o", output_path, "--keep-io", "x", "--force")
    assert completed.status == 2 and "add --io low" in completed.err
    completed = run("apply", model_path, "-o", output_path, "--keep-io", "z", "--force")
    assert completed.status == 2
    assert "'z'" in completed.err
    assert "x, y" in completed.err


def test_the_report_lists_counts_and_constants(run, model_path: Path, output_path: Path) -> None:
    report_path = output_path.with_suffix(".json")
    assert run("apply", model_path, *LISTS, "-o", output_path, "--report", report_path).status == 0
    report = json.loads(report_path.read_text())
    assert list(report) == ["format", "casts_inserted", "counts", "constants", "warnings"]
    assert report["format"] == "mixlist.apply/1"
    assert report["counts"] == {"float16": 2, "float32": 1}
    assert report["constants"] == [
        {
            "name": "w",
            "flushed": 0,
            "clamped": 0,
            "overflowed": 0,
            "max_abs": 4.0,
            "masked": 0,
            "raised": 0,
            "nonzero": 16,
        }
    ]
    completed = run("apply", model_path, *LISTS, "-o", output_path, "--report", "-", "--force")
    assert json.loads(completed.out) == report


def test_bfloat16_warns_about_missing_kernels(run, model_path: Path, output_path: Path) -> None:
    completed = run("apply", model_path, "-o", output_path, "--precision-mode-v2", "mixed_bfloat16")
    assert completed.status == 0
    text = (
        "have no bfloat16 kernel in ONNX Runtime's CPU provider, so it does not load the model: --target cpu keeps them"
    )
    assert text in completed.err
    with pytest.raises(Exception, match="Could not find an implementation"):
        onnxruntime.InferenceSession(output_path, providers=["CPUExecutionProvider"])
    kept = run(
        "apply", model_path, "-o", output_path, "--force", "--target", "cpu", "--precision-mode-v2", "mixed_bfloat16"
    )
    assert kept.status == 0
    onnxruntime.InferenceSession(output_path, providers=["CPUExecutionProvider"])


def test_opset_converts_the_model(run, model_path: Path, output_path: Path) -> None:
    completed = run("apply", model_path, "-o", output_path, "--opset", "20")
    assert completed.status == 0
    assert "converted to opset 20" in completed.err
    assert onnx.load(output_path).opset_import[0].version == 20
    assert run("apply", model_path, "-o", output_path, "--opset", "999", "--force").status == 2


def test_a_mere_conversion_is_no_output_of_mixlist(run, model_path: Path, output_path: Path) -> None:
    """Rule S7.11: the guides advise to convert to a later opset first, so that must not warn (ML501, ML607)."""
    completed = run("apply", model_path, "-o", output_path, "--opset", "20", "--precision-mode-v2", "origin")
    assert completed.status == 0 and "warning" not in completed.err
    completed = run("check", output_path, "--random", "1", "--dim", "N=2")
    assert completed.status == 0 and "warning" not in completed.err


def test_lists_under_which_no_node_is_low_warn(run, model_path: Path, output_path: Path) -> None:
    """The same warning as of check (ML605), also in the report."""
    (model_path.parent / "high.json").write_text('{"black-list": {"to-add": ["MatMul"]}}')
    lists = ("--mixlist", model_path.parent / "high.json")
    completed = run("apply", model_path, "-o", output_path, *lists, "--report", "-")
    assert completed.status == 0
    text = "warning ML605: no node is low: the mixed model is the original"
    assert text in completed.err and text in run("check", model_path, "--random", "1", *lists).err
    assert ["ML605" in warning for warning in json.loads(completed.out)["warnings"]] == [True]


def test_inline_functions_leaves_no_function(run, tmp_path: Path, output_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.F (x) }
    <domain: "local", opset_import: ["" : 17]>
    F (a) => (b) { b = Relu (a) }
    """
    path = tmp_path / "functions.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    completed = run("apply", path, "-o", output_path, "--inline-functions")
    assert completed.status == 0
    assert "inlined 1 function\n" in completed.err
    assert not onnx.load(output_path).functions


def test_functions_that_cannot_be_inlined_are_not_called_inlined(run, tmp_path: Path, output_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.F (x) }
    <domain: "local", opset_import: ["" : 17]>
    F (a) => (b) { b = local.F (a) }
    """
    path = tmp_path / "functions.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    completed = run("apply", path, "-o", output_path, "--inline-functions")
    assert completed.status == 2
    assert "inlined" not in completed.err.splitlines()[0]


def test_existing_output_needs_force(run, model_path: Path, output_path: Path) -> None:
    output_path.write_bytes(b"mine")
    completed = run("apply", model_path, "-o", output_path)
    assert completed.status == 2
    assert "--force" in completed.err
    assert output_path.read_bytes() == b"mine"
    assert run("apply", model_path, "-o", output_path, "--force").status == 0
    assert weight_type(output_path) == TensorProto.FLOAT16


@pytest.mark.parametrize("link_kind", ["same", "relative", "symlink", "hard link"])
def test_an_output_that_is_the_input_is_refused(run, model_path: Path, monkeypatch, link_kind: str) -> None:
    monkeypatch.chdir(model_path.parent)
    before = model_path.read_bytes()
    link = model_path.with_name("other.onnx")
    if link_kind == "symlink":
        link.symlink_to(model_path)
    if link_kind == "hard link":
        os.link(model_path, link)
    target = {"same": str(model_path), "relative": "small.onnx"}.get(link_kind, str(link))
    completed = run("apply", model_path, "-o", target, "--force")
    assert completed.status == 2
    assert "is an input" in completed.err
    assert model_path.read_bytes() == before


def test_an_unwritable_output_is_an_error(run, model_path: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "none" / "out.onnx", tmp_path, Path("/proc/nothing/out.onnx"), Path("/proc/out.onnx")):
        completed = run("apply", model_path, "-o", target)
        assert completed.status == 2, target
        assert "mixlist: error: " in completed.err
    completed = run("apply", model_path, "-o", "a\0b")
    assert completed.status == 2
    assert "NUL" in completed.err


def test_output_is_required(run, model_path: Path) -> None:
    completed = run("apply", model_path)
    assert completed.status == 2
    assert "--output" in completed.err


def invalid_models(folder: Path, good: Path) -> dict[str, Path]:
    data = good.read_bytes()
    contents = {
        "empty": b"",
        "text": b"this is no model\n" * 10,
        "zeros": bytes(1000),
        "truncated": data[: len(data) // 2],
        "truncated at the end": data[:-3],
        "a zip": b"PK\x03\x04" + bytes(100),
    }
    paths = {"missing": folder / "missing.onnx", "a folder": folder}
    for name, content in contents.items():
        paths[name] = folder / f"{name.replace(' ', '_')}.onnx"
        paths[name].write_bytes(content)
    return paths


KINDS = ["missing", "a folder", "empty", "text", "zeros", "truncated", "truncated at the end", "a zip"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["apply", "resolve"])
def test_files_that_are_no_models_are_refused(
    run, model_path: Path, tmp_path: Path, output_path: Path, kind: str, command: str
) -> None:
    path = invalid_models(tmp_path / "models", model_path)[kind]
    completed = run(command, path, *(["-o", output_path] if command == "apply" else []))
    assert completed.status == 2
    assert completed.out == ""
    assert str(path) in completed.err
    assert not output_path.exists()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("missing.bin", "missing"),
        ("../secret.bin", "points out of"),
        ("/etc/passwd", "points out of"),
        ("", "no location"),
    ],
)
def test_unreadable_external_data_is_an_error(
    run, model_path: Path, tmp_path: Path, output_path: Path, location: str, message: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    path = model_with_external_data(model_path, location)
    completed = run("apply", path, "-o", output_path)
    assert completed.status == 2
    assert message in completed.err
    assert "'w'" in completed.err
    assert not output_path.exists()


def test_external_data_is_read_through_a_symbolic_link(
    run, model_path: Path, tmp_path: Path, output_path: Path
) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.write_bytes(onnx.numpy_helper.to_array(onnx.load(model_path).graph.initializer[0]).tobytes())
    (model_path.parent / "weights.bin").symlink_to(blob)
    path = model_with_external_data(model_path, "weights.bin")
    assert run("apply", path, "-o", output_path).status == 0
    assert weight_type(output_path) == TensorProto.FLOAT16


def model_with_external_data(model_path: Path, location: str) -> Path:
    model = onnx.load(model_path)
    tensor = model.graph.initializer[0]
    del tensor.float_data[:]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "64"}.items():
        tensor.external_data.add(key=key, value=value)
    path = model_path.with_name("external.onnx")
    path.write_bytes(model.SerializeToString())
    return path


def test_policy_errors_come_before_the_model_is_read(run, output_path: Path) -> None:
    completed = run(
        "apply", "missing.onnx", "-o", output_path, "--precision-mode", "force_fp16", "--precision-mode-v2", "fp16"
    )
    assert completed.status == 2
    assert "given together" in completed.err


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (25_340_000, "25.3 MB"), (3 * 10**9, "3 GB")],
)
def test_byte_sizes_have_a_unit(number: int, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize("choice", ["auto", "yes", "no"])
def test_sizes_count_the_data_files(run, tmp_path: Path, choice: str) -> None:
    values = onnx.numpy_helper.from_array(np.full((256, 256), 0.5, np.float32), "w")
    inputs = [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 256])]
    outputs = [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 256])]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [values])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    completed = run("apply", tmp_path / "in.onnx", "-o", tmp_path / "out" / "out.onnx", "--external-data", choice)
    assert completed.status == 0
    (line,) = [line.split() for line in completed.err.splitlines() if line.startswith("size")]
    assert line[1:3] == ["262", "kB"]
    assert line[3:] in (["131", "kB"], ["132", "kB"])
    assert len(list((tmp_path / "out").iterdir())) == (1 if choice == "no" else 2)
