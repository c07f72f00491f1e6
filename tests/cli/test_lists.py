"""``mixlist lists``, ``presets`` and ``diff``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with A and B white, C black, D gray, and modify.json that moves A and names E."""
    monkeypatch.chdir(tmp_path)
    entry = {"precision_reduce": {"flag": "true"}}
    ops = {"A": entry, "B": entry, "C": {"precision_reduce": {"flag": "false"}}, "D": {}}
    (tmp_path / "lib.json").write_text(json.dumps(ops))
    (tmp_path / "modify.json").write_text(
        '{\n  "black-list": {\n    "to-add": ["A"]\n  },\n  "white-list": {"to-add": ["E"], "to-remove": ["A"]}\n}\n'
    )
    return tmp_path


OPTIONS = ("--ops-info", "lib.json", "--mixlist", "modify.json", "--op-names", "onnx")


def test_json_is_the_contracts(run, library: Path) -> None:
    ran = run("lists", *OPTIONS, "--format", "json")
    assert ran.status == 0
    told = json.loads(ran.out)
    assert list(told) == ["format", "white", "black", "gray", "edits"]
    assert told["format"] == "mixlist.lists/1"
    assert (told["white"], told["black"], told["gray"]) == (["B", "E"], ["A", "C"], ["D"])
    assert {"op": "A", "from": "white", "to": "black", "at": "modify.json:3:16"} in told["edits"]
    assert {"op": "E", "from": "gray", "to": "white", "at": "modify.json:5:29"} in told["edits"]
    assert len(told["edits"]) == 2


def test_csv_and_table(run, library: Path) -> None:
    rows = list(csv.reader(io.StringIO(run("lists", *OPTIONS, "--format", "csv").out)))
    assert rows[0] == ["op", "list", "was", "at"]
    assert ["A", "black", "white", "modify.json:3:16"] in rows
    assert ["D", "gray", "", ""] in rows
    table = run("lists", *OPTIONS).out
    assert table.splitlines()[0].split() == ["op", "list", "was", "at"]
    assert len(table.splitlines()) == len(rows) + 1


def test_warnings_go_to_stderr(run, library: Path) -> None:
    ran = run("lists", *OPTIONS, "--format", "json")
    assert "ML108" in ran.err
    assert "ML108" not in ran.out


def test_mixlist_from_standard_input(run, library: Path) -> None:
    ran = run(
        "lists",
        "--ops-info",
        "lib.json",
        "--mixlist",
        "-",
        "--format",
        "json",
        stdin='{"white-list":{"to-remove":["A"]}}',
    )
    assert json.loads(ran.out)["gray"] == ["A", "D"]
    ran = run("lists", "--ops-info", "-", "--format", "json", stdin=(library / "lib.json").read_bytes())
    assert json.loads(ran.out)["black"] == ["C"]
    ran = run("lists", "--ops-info", "-", "--mixlist", "-")
    assert ran.status == 2
    assert "given twice" in ran.err


def test_invalid_mixlist_is_unusable_input(run, library: Path) -> None:
    (library / "bad.json").write_text('{"black-list": {"to-add": ["A"], "to-remove": ["A"]}}')
    ran = run("lists", "--ops-info", "lib.json", "--mixlist", "bad.json")
    assert ran.status == 2
    assert ran.out == ""
    assert "bad.json:1:" in ran.err
    assert "ML104" in ran.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--precision-mode", "force_fp16", "--precision-mode-v2", "fp16"), "given together"),
        (("--precision-mode-v2", "fp16", "--mixlist", "modify.json"), "no lists"),
        (("--precision-mode-v2", "mixed_hif8"), "no such type"),
        (("--ops-info", "ascend910x"), "did you mean"),
        (("--mixlist", "nothing.json"), "nothing.json: no such file"),
        (("--mixlist", "."), "is a directory"),
        (("--gray-policy", "grey"), "'grey'"),
        (("--protect", "masks,quantized"), "--protect has no value 'quantized'"),
        (("--op-names", "onnx", "--ops-info", "ascend910b"), "has ascend names"),
    ],
)
def test_wrong_usage(run, library: Path, options: tuple[str, ...], told: str) -> None:
    ran = run("lists", *options)
    assert ran.status == 2
    assert ran.out == ""
    assert told in ran.err


def test_directory_without_json(run, library: Path) -> None:
    (library / "empty").mkdir()
    ran = run("lists", "--ops-info", "./empty")
    assert ran.status == 2
    assert "empty" in ran.err


def test_presets(run) -> None:
    told = json.loads(run("presets", "--format", "json").out)
    assert told["format"] == "mixlist.presets/1"
    names = [preset["name"] for preset in told["presets"]]
    assert names[0] == "onnx"
    assert {"ascend910b", "ascend310p", "mindspore-o2", "nnabla-half", "tensorflow", "pytorch"} <= set(names)
    assert all(preset["title"] and preset["origin"] for preset in told["presets"])
    table = run("presets").out
    assert all(name in table for name in names)


def test_diff_is_a_modify_mixlist(run, library: Path) -> None:
    ran = run("diff", "lib.json", "lib.json", "--target-mixlist", "modify.json", "--op-names", "onnx")
    assert ran.status == 0
    assert json.loads(ran.out) == {
        "black-list": {"to-add": ["A"]},
        "white-list": {"to-add": ["E"], "to-remove": ["A"]},
    }
    (library / "again.json").write_text(ran.out)
    assert run("fmt", "--check", "again.json").status == 0, "diff writes the canonical form"
    same = run("diff", "lib.json", "lib.json", "--base-mixlist", "modify.json", "--target-mixlist", "again.json")
    assert json.loads(same.out) == {}


def test_diff_of_presets_and_of_name_spaces(run) -> None:
    assert json.loads(run("diff", "ascend910", "ascend910").out) == {}
    assert json.loads(run("diff", "ascend910", "ascend910b").out)
    ran = run("diff", "onnx", "ascend910b")
    assert ran.status == 2
    assert "ascend names" in ran.err


def test_diff_shows_the_nodes_that_change(run, library: Path, model_path: Path) -> None:
    (library / "black.json").write_text(
        '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}'
    )
    options = ("diff", "onnx", "onnx", "--target-mixlist", "black.json", "--model", model_path)
    told = json.loads(run(*options, "--format", "json").out)
    assert told["format"] == "mixlist.diff/1"
    assert told["mixlist"]["black-list"]["to-add"] == ["MatMul"]
    changed = {node["name"]: (node["base"], node["target"]) for node in told["nodes"]}
    assert changed == {"first": ("float16", "float32"), "second": ("float16", "float32")}
    assert "first" in run(*options).out
