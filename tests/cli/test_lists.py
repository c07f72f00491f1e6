"""``mixlist lists``, ``presets`` and ``diff``."""

from __future__ import annotations

import csv
import io
import json
import re
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


def test_json_has_the_lists_and_the_edits(run, library: Path) -> None:
    completed = run("lists", *OPTIONS, "--format", "json")
    assert completed.status == 0
    result = json.loads(completed.out)
    assert list(result) == ["format", "white", "black", "gray", "edits", "reasons"]
    assert result["format"] == "mixlist.lists/1"
    assert (result["white"], result["black"], result["gray"]) == (["B", "E"], ["A", "C"], ["D"])
    assert {"op": "A", "from": "white", "to": "black", "at": "modify.json:3:16"} in result["edits"]
    assert {"op": "E", "from": "gray", "to": "white", "at": "modify.json:5:29"} in result["edits"]
    assert len(result["edits"]) == 2


def test_the_reasons_of_the_library_are_shown(run, library: Path) -> None:
    reason = "normalizations reduce in float32"
    (library / "lib.json").write_text(json.dumps({"A": {"reason": reason}, "B": {"reason": 7}, "C": {}}))
    assert json.loads(run("lists", *OPTIONS, "--format", "json").out)["reasons"] == {"A": reason}
    moved, listed = run("lists", *OPTIONS).out.splitlines(), run("lists", *OPTIONS, "--all").out.splitlines()
    assert moved[0].split() == listed[0].split() == ["op", "list", "was", "at", "reason"]
    for lines in (moved, listed):
        assert [line.endswith(f"modify.json:3:16  {reason}") for line in lines if line.startswith("A ")] == [True]
    built_in = run("lists").out.splitlines()
    assert next(line for line in built_in if line.startswith("Acos ")).endswith(
        "the rounding of x dominates the result"
    )


def test_csv_and_table_have_the_same_rows(run, library: Path) -> None:
    rows = list(csv.reader(io.StringIO(run("lists", *OPTIONS, "--format", "csv").out)))
    assert rows[0] == ["op", "list", "was", "at", "reason"]
    assert ["A", "black", "white", "modify.json:3:16", ""] in rows
    assert ["D", "gray", "", "", ""] in rows
    table = run("lists", *OPTIONS, "--all").out
    assert table.splitlines()[0].split() == ["op", "list", "was", "at"]
    assert len(table.splitlines()) == len(rows) + 1


def test_the_text_shows_what_the_edits_change(run, library: Path) -> None:
    lines = run("lists", *OPTIONS).out.splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["E", "white", "gray"], ["A", "black", "white"]]
    assert lines[4:] == ["", "not moved: 1 white, 1 black, 1 gray; --all shows them"]
    assert len(run("lists", "--ops-info", "lib.json", "--op-names", "onnx").out.splitlines()) == 6


def test_warnings_go_to_stderr(run, library: Path) -> None:
    completed = run("lists", *OPTIONS, "--format", "json")
    assert "ML108" in completed.err
    assert "ML108" not in completed.out


def test_a_mixlist_or_a_library_is_read_from_standard_input(run, library: Path) -> None:
    completed = run(
        "lists",
        "--ops-info",
        "lib.json",
        "--mixlist",
        "-",
        "--format",
        "json",
        stdin='{"white-list":{"to-remove":["A"]}}',
    )
    assert json.loads(completed.out)["gray"] == ["A", "D"]
    completed = run("lists", "--ops-info", "-", "--format", "json", stdin=(library / "lib.json").read_bytes())
    assert json.loads(completed.out)["black"] == ["C"]
    completed = run("lists", "--ops-info", "-", "--mixlist", "-")
    assert completed.status == 2
    assert "given twice" in completed.err


def test_an_invalid_mixlist_is_an_error(run, library: Path) -> None:
    (library / "bad.json").write_text('{"black-list": {"to-add": ["A"], "to-remove": ["A"]}}')
    completed = run("lists", "--ops-info", "lib.json", "--mixlist", "bad.json")
    assert completed.status == 2
    assert completed.out == ""
    assert "bad.json:1:" in completed.err
    assert "ML104" in completed.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision-mode", "force_fp16", "--precision-mode-v2", "fp16"), "given together"),
        (("--precision-mode-v2", "fp16", "--mixlist", "modify.json"), "no lists"),
        (("--precision-mode-v2", "mixed_hif8", "--ops-info", "ascend910b"), "needs an Ascend 950PR or 950DT"),
        (("--ops-info", "ascend910x"), "did you mean"),
        (("--mixlist", "nothing.json"), "nothing.json: no such file"),
        (("--mixlist", "."), "is a directory"),
        (("--gray-policy", "grey"), "'grey'"),
        (("--protect", "masks,units"), "--protect has no value 'units'"),
        (("--op-names", "onnx", "--ops-info", "ascend910b"), "has ascend names"),
    ],
)
def test_wrong_options_are_refused(run, library: Path, options: tuple[str, ...], message: str) -> None:
    completed = run("lists", *options)
    assert completed.status == 2
    assert completed.out == ""
    assert message in completed.err


def test_a_directory_without_json_is_an_error(run, library: Path) -> None:
    (library / "empty").mkdir()
    completed = run("lists", "--ops-info", "./empty")
    assert completed.status == 2
    assert "empty" in completed.err


def test_presets_have_a_title_and_an_origin(run) -> None:
    result = json.loads(run("presets", "--format", "json").out)
    assert result["format"] == "mixlist.presets/1"
    names = [preset["name"] for preset in result["presets"]]
    assert names[0] == "onnx"
    assert {"ascend910b", "ascend310p", "mindspore-o2", "nnabla-half", "tensorflow", "pytorch"} <= set(names)
    assert all(preset["title"] and preset["origin"] for preset in result["presets"])
    table = run("presets").out
    assert all(name in table for name in names)


def test_diff_is_a_modify_mixlist(run, library: Path) -> None:
    completed = run("diff", "lib.json", "lib.json", "--other-mixlist", "modify.json", "--op-names", "onnx")
    assert completed.status == 0
    assert json.loads(completed.out) == {
        "black-list": {"to-add": ["A"]},
        "white-list": {"to-add": ["E"], "to-remove": ["A"]},
    }
    (library / "again.json").write_text(completed.out)
    assert run("fmt", "--check", "again.json").status == 0, "diff writes the canonical form"
    diff_again = run("diff", "lib.json", "lib.json", "--base-mixlist", "modify.json", "--other-mixlist", "again.json")
    assert json.loads(diff_again.out) == {}


def test_diff_compares_presets_of_one_name_space(run) -> None:
    assert json.loads(run("diff", "ascend910", "ascend910").out) == {}
    assert json.loads(run("diff", "ascend910", "ascend910b").out)
    completed = run("diff", "onnx", "ascend910b")
    assert completed.status == 2
    assert "ascend names" in completed.err


def test_diff_shows_the_nodes_that_change(run, library: Path, model_path: Path) -> None:
    (library / "black.json").write_text(
        '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}'
    )
    options = ("diff", "pytorch", "pytorch", "--other-mixlist", "black.json", "--model", model_path)
    result = json.loads(run(*options, "--format", "json").out)
    assert result["format"] == "mixlist.diff/1"
    assert result["mixlist"]["black-list"]["to-add"] == ["MatMul"]
    changed = {node["name"]: (node["base"], node["other"]) for node in result["nodes"]}
    assert changed == {"first": ("float16", "float32"), "second": ("float16", "float32")}
    assert "first" in run(*options).out


def test_the_page_of_diff_has_totals_op_types_and_nodes(run, library: Path, model_path: Path) -> None:
    page = library.parent / "page.html"
    arguments = ("diff", "pytorch", "mindspore-o3", "--html", page)
    completed = run(*arguments)
    assert completed.status == 0
    assert json.loads(completed.out)  # standard output stays the modify_mixlist
    assert f"wrote {page}\n" in completed.err
    text = page.read_text("utf-8")
    assert "<title>DIFFERENT: pytorch → mindspore-o3 – mixlist diff</title>" in text
    assert re.search(r"\d+ op types on another list", text)
    assert "add --model MODEL" in re.sub("<[^>]+>", "", text)
    completed = run(*arguments, "--model", model_path, "--format", "csv")
    nodes = completed.out.splitlines()[1:]
    text = page.read_text("utf-8")
    assert nodes
    assert re.search(rf"{len(nodes)} of \d+ nodes of {re.escape(str(model_path))} with another precision", text)
    assert all(f'"{line.split(",")[1]}"' in text for line in nodes)  # the script of the page makes the rows


# --- lists --from ---

CHIP = """OpType,NPUDump,DataType,GroundTruth,DataType,TensorIndex,CosineSimilarity
Conv2DTranspose,up,float16,up,float32,up:input:0,1
Conv2DTranspose,up,float16,up,float32,up:output:0,0.6
LayerNorm,norm,float32,norm,float32,norm:input:0,1
LayerNorm,norm,float32,norm,float32,norm:output:0,0.7
ReduceSum,sum,float16,sum,float32,sum:input:0,1
ReduceSum,sum,float16,sum,float32,sum:output:0,0.8
"""


def test_the_edits_keep_low_operators_and_go_on_from_the_given_list(run, library: Path) -> None:
    """LayerNorm computed in float32, and ReduceSum is black already: no edit of the lists changes either."""
    (library / "chip.csv").write_text(CHIP)
    (library / "conv.json").write_text(
        '{"black-list": {"to-add": ["Conv2D"]}, "white-list": {"to-remove": ["Conv2D"]}}'
    )
    arguments = ("lists", "--ops-info", "ascend910b", "--mixlist", "conv.json", "--from", "chip.csv")
    content = json.loads(run(*arguments, "--format", "json").out)
    assert [operator["op"] for operator in content["operators"]] == ["Conv2DTranspose", "LayerNorm", "ReduceSum"]
    assert content["keep_dtype"] == ["up", "sum"]
    moved = ["Conv2D", "Conv2DTranspose"]
    assert content["modify_mixlist"] == {"black-list": {"to-add": moved}, "white-list": {"to-remove": moved}}
    assert "1 operator computed in no low type: no list changes that" in run(*arguments).out


def test_a_library_in_onnx_names_gets_node_rules_only(run, library: Path) -> None:
    (library / "chip.csv").write_text(CHIP)
    content = json.loads(run("lists", "--from", "chip.csv", "--format", "json").out)
    assert (content["keep_dtype"], content["modify_mixlist"]) == (["up", "sum"], {})
    assert "modify_mixlist" not in run("lists", "--from", "chip.csv").out


def test_a_right_chip_has_no_operators(run, library: Path) -> None:
    (library / "chip.csv").write_text("".join(CHIP.splitlines(keepends=True)[:2]))
    assert run("lists", "--from", "chip.csv").out == "no operator is wrong\n"
