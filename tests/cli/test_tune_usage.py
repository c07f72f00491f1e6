"""``mixlist tune``: options, outputs and states that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.planted_overflow import save_planted_model, write_batches


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


@pytest.mark.parametrize(
    "options",
    [
        ("--jobs", "0"),
        ("--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"),
        ("--max-abs-error", "nan"),
        ("--large-batch", "--max-exception-rate", "0.1"),
        ("--provider", "tpu"),
        ("--precision-mode-v2", "fp16"),
        ("--validate-on", "nowhere"),
    ],
)
def test_wrong_options_are_refused(run, planted: Path, data: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "modify.json"
    completed = run("tune", planted, "-o", out, "--data", data, *options)
    assert (completed.status, completed.out) == (2, "")
    assert options[-1].partition(":")[0] in completed.err or options[0] in completed.err
    assert not out.exists()


def test_missing_output_and_missing_data_are_errors(run, planted: Path, data: Path, tmp_path: Path) -> None:
    assert "--output" in run("tune", planted, "--data", data).err
    completed = run("tune", planted, "-o", tmp_path / "modify.json")
    assert completed.status == 2
    assert "--random" in completed.err


def test_unusable_outputs_are_refused(run, planted: Path, tmp_path: Path) -> None:
    """All of these are refused before data is read."""
    out, missing = tmp_path / "modify.json", tmp_path / "none" / "m.json"
    cases = [
        (("-o", missing), "its folder does not exist"),
        (("-o", tmp_path), "is a folder"),
        (("-o", out, "--state", missing), "its folder does not exist"),
        (("-o", out, "--state", out), "the same file"),
        (("-o", out, "--state", tmp_path / "modify.partial.json"), "the same file"),
    ]
    for options, message in cases:
        completed = run("tune", planted, *options)
        assert (completed.status, completed.out) == (2, "")
        assert message in completed.err, options


def test_no_input_is_replaced(run, planted: Path, data: Path, harmless_data: Path, tmp_path: Path) -> None:
    lists, link, partial = tmp_path / "base.json", tmp_path / "link.json", tmp_path / "modify.partial.json"
    for path in (lists, partial):
        path.write_text("{}")
    link.symlink_to(planted)
    arguments = ("--data", data, "--validate-on", harmless_data / "0.npz", "--mixlist")
    for path in (planted, link, lists, data / "1.npz", harmless_data / "0.npz"):
        before = path.read_bytes()
        replacing = [("-o", path)] if path != lists else []  # the list is what the search starts from
        for option in (*replacing, ("-o", tmp_path / "m.json", "--state", path)):
            completed = run("tune", planted, *option, *arguments, lists, "--force")
            assert completed.status == 2, path
            assert "is an input" in completed.err
            assert path.read_bytes() == before
    completed = run("tune", planted, "-o", tmp_path / "modify.json", *arguments, partial)
    assert completed.status == 2
    assert "is an input" in completed.err


def test_the_state_of_another_search_is_refused(
    run, planted: Path, data: Path, harmless_data: Path, tmp_path: Path
) -> None:
    out, state = tmp_path / "modify.json", tmp_path / "state.jsonl"
    arguments = ("tune", planted, "-o", out, "--force", "--state", state)
    assert "NOTHING IS LOW" in run(*arguments, "--data", data).out
    completed = run(*arguments, "--data", harmless_data)
    assert completed.status == 2
    assert "data differs" in completed.err
    state.write_text("something else\n")
    completed = run(*arguments, "--data", data)
    assert completed.status == 2
    assert f"{state}:1:1" in completed.err
    assert state.read_text() == "something else\n"


@pytest.mark.parametrize("target", [".", "..", "/"])
def test_a_folder_as_output_is_refused(run, planted: Path, data: Path, target: str) -> None:
    completed = run("tune", planted, "-o", target, "--data", data)
    assert (completed.status, completed.out) == (2, "")
    assert "is a folder" in completed.err
