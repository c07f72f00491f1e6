"""The bundled digit network and the guided run on it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import mixlist
from mixlist.cli import demo, main
from mixlist.errors import FileError
from mixlist.files import package_data

DATA = package_data.data_folder("demo_data")
MODEL, EDITS = DATA / "digits.onnx", DATA / "digits_mixlist.json"


def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / "digits.npz") as arrays:
        return arrays["pixels"].astype(np.float32), arrays["labels"]


def write_mixed_model(path: Path, **policy: object) -> Path:
    plan = mixlist.resolve(MODEL, mixlist.load_policy(**policy))
    mixlist.rewrite(MODEL, plan).save(path)
    return path


def test_the_model_loads_in_recent_runtimes_and_recognizes_digits() -> None:
    proto = onnx.load(MODEL)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version <= 10
    assert [entry.version for entry in proto.opset_import] <= [22]
    assert all(node.name for node in proto.graph.node)
    assert 100_000 <= MODEL.stat().st_size <= 300_000
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    pixels, labels = digits()
    assert pixels.shape == (449, 1, 8, 8)
    assert (pixels.min(), pixels.max()) == (0, 16)
    is_right = session.run(None, {"pixels": pixels})[0].argmax(1) == labels
    assert is_right.mean() >= 0.97
    single = session.run(None, {"pixels": pixels[:1]})[0].argmax(1)  # any batch size
    assert single[0] == labels[0] or not is_right[0]


def test_the_reference_evaluator_rounds_every_low_tensor_of_the_mixed_model(tmp_path: Path) -> None:
    """The accuracy in the demo needs it: each value has the type that the file declares."""
    for name, policy in {"listed": {"mixlist": EDITS}, "forced": {"precision_mode_v2": "fp16"}}.items():
        proto = onnx.load(write_mixed_model(tmp_path / f"{name}.onnx", **policy))
        graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
        types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(proto).run(None, {"pixels": digits()[0][:8]}, intermediate=True)
        outputs = [out for node in proto.graph.node for out in node.output]
        expected = {out: onnx.helper.tensor_dtype_to_np_dtype(types[out]) for out in outputs}
        assert {out: values[out].dtype for out in outputs} == expected
        assert sum(dtype == np.float16 for dtype in expected.values()) > 10


def test_the_demo_prints_what_its_commands_print_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    demo.run()
    text, errors = capsys.readouterr()
    assert errors == ""
    assert "1 file checked: 0 errors, 0 warnings" in text and "10 Casts inserted" in text
    monkeypatch.chdir(DATA)
    commands = re.findall(r"^\$ mixlist (.+)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["convert", "resolve", "validate", "apply"]
    for command in commands:
        if not command.startswith(("apply", "convert")):
            assert main(command.split()) == 0
            assert f"$ mixlist {command}\n{capsys.readouterr().out}" in text
    assert "PASS  digits.onnx: 32 of 39 nodes in float16" in text
    for word in ("white", "black", "gray", "LayerNormalization", "Casts added", "98.9 %", "onnx.reference", "kB"):
        assert word in text
    assert list(tmp_path.iterdir()) == []
    _assert_the_list_keeps_the_accuracy_and_forcing_everything_low_loses_it(text)


def _assert_the_list_keeps_the_accuracy_and_forcing_everything_low_loses_it(text: str) -> None:
    """The evaluation takes seconds, so its results are read from the table that the demo prints."""
    row = r"^{} +\d+ of \d+ +\d+ +[\d.]+ kB +([\d.]+) % +(\S+) +onnx\.reference$"
    results = {
        model: re.search(row.format(re.escape(model)), text, re.MULTILINE)
        for model in ("lists, edited", "all low (fp16)")
    }
    edited, all_low = (match.groups() if match else ("", "") for match in results.values())
    assert edited[1] == "none" and float(edited[0]) >= 97
    assert all_low[1] == "/energy/ReduceSum" and float(all_low[0]) < 20


def test_the_demo_writes_its_models_and_data_into_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This test is about files, and the evaluation of the models takes seconds.
    monkeypatch.setattr(demo, "run_reference_evaluator", lambda path, pixels: (np.zeros((len(pixels), 10)), ""))
    demo.run(tmp_path / "kept")
    files = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    bundled = {path.name: path.read_bytes() for path in DATA.iterdir() if path.suffix != ".md"}
    assert {"digits.onnx", "digits_mixlist.json", "digits_train.npz"} <= set(bundled)
    assert {name: files.pop(name) for name in bundled} == bundled
    assert sorted(files) == ["digits.all_low.onnx", "digits.converted.onnx", "digits.mixed.onnx"]


def test_an_output_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="this folder cannot be created"):
        demo.run(tmp_path / "file")
