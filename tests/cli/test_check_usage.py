"""``mixlist check``: options, data and files that it refuses."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.support.builders import model


@pytest.mark.parametrize(
    "options",
    [
        ["--max-abs-error", "nan"],
        ["--max-abs-error", "-1"],
        ["--min-cosine", "2"],
        ["--max-mismatch", "1.1"],
        ["--max-exception-rate", "nan"],
        ["--max-batches", "0"],
        ["--large-batch", "--max-exception-rate", "0.1"],
        ["--overflow-mode", "wrap"],
        ["--reference-type", "float128"],
        ["--provider", "tpu"],
    ],
)
def test_invalid_option_values_are_refused(run, model_path: Path, options: list[str]) -> None:
    completed = run("check", model_path, "--random", 1, "--dim", "N=1", *options)
    assert completed.status == 2
    assert completed.out == ""
    assert options[0] in completed.err


def test_missing_data_is_an_error(run, model_path: Path) -> None:
    completed = run("check", model_path)
    assert completed.status == 2
    assert "--data" in completed.err
    assert "--random" in completed.err


def test_a_page_that_cannot_be_written_stops_before_the_run(run, model_path: Path, tmp_path: Path) -> None:
    for page, message in ((tmp_path / "none" / "r.html", "does not exist"), (tmp_path, "is a folder")):
        completed = run("check", model_path, "--html", page)  # the missing data is reported later
        assert completed.status == 2
        assert message in completed.err


@pytest.mark.parametrize("kind", ["missing", "text", "truncated"])
def test_files_that_are_no_models_are_refused(run, model_path: Path, tmp_path: Path, kind: str) -> None:
    invalid_model = tmp_path / "bad.onnx"
    if kind != "missing":
        invalid_model.write_bytes(b"text\n" * 9 if kind == "text" else model_path.read_bytes()[:-3])
    for arguments in ((invalid_model,), (model_path, "--mixed-model", invalid_model)):
        completed = run("check", *arguments, "--random", 1, "--dim", "N=1")
        assert completed.status == 2
        assert str(invalid_model) in completed.err
        assert completed.out == ""


def test_random_sizes_that_do_not_fit_are_named(run, tmp_path: Path) -> None:
    path = tmp_path / "sum.onnx"
    onnx.save(model("g (float[N, a] x, float[N, b] z) => (float[N, c] y) { [sum] y = Add (x, z) }"), path)
    completed = run("check", path, "--random", "1", "--dim", "N=2", "--dim", "a=12", "--dim", "b=16")
    assert completed.status == 2 and "sum" in completed.err
    assert "hint: the inputs are x [2, 12], z [2, 16]: give open sizes that fit together with --dim" in completed.err
