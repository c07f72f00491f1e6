"""``mixlist apply``: options, summary, report, and every input and output that it has to refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mixlist.report.number_text import format_bytes


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.onnx"


def types(path: Path) -> dict[str, int]:
    graph = onnx.load(path).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


def weight(path: Path) -> int:
    return int(onnx.load(path).graph.initializer[0].data_type)


def test_writes_the_mixed_model(run, model_path: Path, out: Path) -> None:
    before = model_path.read_bytes()
    ran = run("apply", model_path, "-o", out)
    assert (ran.status, ran.out) == (0, "")
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert weight(out) == TensorProto.FLOAT16
    assert set(types(out).values()) == {TensorProto.FLOAT}
    assert model_path.read_bytes() == before
    assert "2 of 3 eligible nodes are float16" in ran.err
    assert "2 Casts inserted, 1 constants converted" in ran.err
    sizes = [line.split() for line in ran.err.splitlines() if line.startswith(("nodes", "Casts"))]
    assert sizes == [["nodes", "3", "5"], ["Casts", "0", "2"]]


def test_io_types(run, model_path: Path, out: Path) -> None:
    assert run("apply", model_path, "-o", out, "--no-keep-io-types").status == 0
    assert types(out) == {"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT}
    assert run("apply", model_path, "-o", out, "--no-keep-io-types", "--keep-io", "x", "--force").status == 0
    assert types(out)["x"] == TensorProto.FLOAT
    ran = run("apply", model_path, "-o", out, "--keep-io", "z", "--force")
    assert ran.status == 2
    assert "'z'" in ran.err
    assert "x, y" in ran.err


def test_dry_run_writes_nothing(run, model_path: Path, out: Path) -> None:
    ran = run("apply", model_path, "-o", out, "--dry-run")
    assert ran.status == 0
    assert "not written" in ran.err
    assert not out.exists()
    assert list(out.parent.iterdir()) == [model_path.parent]


def test_report(run, model_path: Path, out: Path) -> None:
    report = out.with_suffix(".json")
    assert run("apply", model_path, "-o", out, "--report", report).status == 0
    told = json.loads(report.read_text())
    assert list(told) == ["format", "casts_inserted", "counts", "constants", "warnings"]
    assert told["format"] == "mixlist.apply/1"
    assert told["counts"] == {"float16": 2, "float32": 1}
    assert told["constants"] == [
        {"name": "w", "flushed": 0, "clamped": 0, "overflowed": 0, "max_abs": 4.0, "masked": 0}
    ]
    ran = run("apply", model_path, "-o", out, "--report", "-", "--dry-run", "--force")
    assert json.loads(ran.out) == told


def test_bfloat16_tells_missing_kernels(run, model_path: Path, out: Path) -> None:
    ran = run("apply", model_path, "-o", out, "--precision-mode-v2", "mixed_bfloat16")
    assert ran.status == 0
    assert "have no bfloat16 kernel in ONNX Runtime's CPU provider" in ran.err


def test_opset(run, model_path: Path, out: Path) -> None:
    ran = run("apply", model_path, "-o", out, "--opset", "20")
    assert ran.status == 0
    assert "converted to opset 20" in ran.err
    assert onnx.load(out).opset_import[0].version == 20
    assert run("apply", model_path, "-o", out, "--opset", "999", "--force").status == 2


def test_opset_refuses_to_lose_metadata(run, model_path: Path, out: Path) -> None:
    model = onnx.load(model_path)
    model.graph.node[0].metadata_props.add(key="a", value="b")
    onnx.save(model, model_path)
    ran = run("apply", model_path, "-o", out, "--opset", "20")
    assert ran.status == 2
    assert "would drop metadata entries" in ran.err
    assert not out.exists()


def test_inline_functions(run, tmp_path: Path, out: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.F (x) }
    <domain: "local", opset_import: ["" : 17]>
    F (a) => (b) { b = Relu (a) }
    """
    path = tmp_path / "functions.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    ran = run("apply", path, "-o", out, "--inline-functions")
    assert ran.status == 0
    assert "inlined 1 function" in ran.err
    assert not onnx.load(out).functions


def test_existing_output_needs_force(run, model_path: Path, out: Path) -> None:
    out.write_bytes(b"mine")
    ran = run("apply", model_path, "-o", out)
    assert ran.status == 2
    assert "--force" in ran.err
    assert out.read_bytes() == b"mine"
    assert run("apply", model_path, "-o", out, "--force").status == 0
    assert weight(out) == TensorProto.FLOAT16


@pytest.mark.parametrize("way", ["same", "relative", "symlink", "hard link"])
def test_output_that_is_the_input(run, model_path: Path, monkeypatch, way: str) -> None:
    monkeypatch.chdir(model_path.parent)
    before = model_path.read_bytes()
    other = model_path.with_name("other.onnx")
    if way == "symlink":
        other.symlink_to(model_path)
    if way == "hard link":
        os.link(model_path, other)
    target = {"same": str(model_path), "relative": "small.onnx"}.get(way, str(other))
    ran = run("apply", model_path, "-o", target, "--force")
    assert ran.status == 2
    assert "is an input" in ran.err
    assert model_path.read_bytes() == before


def test_unwritable_output(run, model_path: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "none" / "out.onnx", tmp_path, Path("/proc/nothing/out.onnx"), Path("/proc/out.onnx")):
        ran = run("apply", model_path, "-o", target)
        assert ran.status == 2, target
        assert "mixlist: error: " in ran.err
    ran = run("apply", model_path, "-o", "a\0b")
    assert ran.status == 2
    assert "NUL" in ran.err


def test_output_is_required(run, model_path: Path) -> None:
    ran = run("apply", model_path)
    assert ran.status == 2
    assert "--output" in ran.err


def bad_models(folder: Path, good: Path) -> dict[str, Path]:
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
def test_what_is_not_a_model(run, model_path: Path, tmp_path: Path, out: Path, kind: str, command: str) -> None:
    path = bad_models(tmp_path / "models", model_path)[kind]
    ran = run(command, path, *(["-o", out] if command == "apply" else []))
    assert ran.status == 2
    assert ran.out == ""
    assert str(path) in ran.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("missing.bin", "missing"),
        ("../secret.bin", "points out of"),
        ("/etc/passwd", "points out of"),
        ("", "no location"),
    ],
)
def test_external_data_that_cannot_be_had(
    run, model_path: Path, tmp_path: Path, out: Path, location: str, told: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    path = with_external(model_path, location)
    ran = run("apply", path, "-o", out)
    assert ran.status == 2
    assert told in ran.err
    assert "'w'" in ran.err
    assert not out.exists()


def test_external_data_behind_a_symbolic_link(run, model_path: Path, tmp_path: Path, out: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.write_bytes(onnx.numpy_helper.to_array(onnx.load(model_path).graph.initializer[0]).tobytes())
    (model_path.parent / "weights.bin").symlink_to(blob)
    path = with_external(model_path, "weights.bin")
    assert run("apply", path, "-o", out).status == 0
    assert weight(out) == TensorProto.FLOAT16


def with_external(model_path: Path, location: str) -> Path:
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


def test_policy_errors_come_before_the_model_is_read(run, out: Path) -> None:
    ran = run("apply", "missing.onnx", "-o", out, "--precision-mode", "force_fp16", "--precision-mode-v2", "fp16")
    assert ran.status == 2
    assert "given together" in ran.err


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (25_340_000, "25.3 MB"), (3 * 10**9, "3 GB")],
)
def test_byte_size(number: int, told: str) -> None:
    assert format_bytes(number) == told


@pytest.mark.parametrize("choice", ["auto", "yes", "no"])
def test_sizes_count_the_data_files(run, tmp_path: Path, choice: str) -> None:
    values = onnx.numpy_helper.from_array(np.full((256, 256), 0.5, np.float32), "w")
    inputs = [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 256])]
    outputs = [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 256])]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [values])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    ran = run("apply", tmp_path / "in.onnx", "-o", tmp_path / "out" / "out.onnx", "--external-data", choice)
    assert ran.status == 0
    (line,) = [line.split() for line in ran.err.splitlines() if line.startswith("size")]
    assert line[1:3] == ["262", "kB"]
    assert line[3:] in (["131", "kB"], ["132", "kB"])
    assert len(list((tmp_path / "out").iterdir())) == (1 if choice == "no" else 2)
