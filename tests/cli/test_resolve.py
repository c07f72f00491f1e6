"""``mixlist resolve``: the formats, ``--explain`` and ``--provider``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from mixlist.report.resolve_output import chain_text, write_node_table
from mixlist.resolver import Decision


def test_json_is_the_contracts(run, model_path: Path) -> None:
    ran = run("resolve", model_path, "--format", "json")
    assert (ran.status, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert list(told) == ["format", "model", "precision", "gray_policy", "op_names", "nodes", "counts"]
    assert told["format"] == "mixlist.resolve/1"
    assert told["model"] == str(model_path)
    by_name = {node["name"]: node for node in told["nodes"]}
    assert {name: (n["list"], n["precision"], n["rule"]) for name, n in by_name.items()} == {
        "first": ("white", "float16", "white"),
        "second": ("gray", "float16", "follow"),
        "third": ("black", "float32", "black"),
    }
    assert by_name["second"]["follows"] == ["first", "first"]
    assert told["counts"] == {"float16": 2, "float32": 1}


def test_table_and_csv(run, model_path: Path) -> None:
    table = run("resolve", model_path).out.splitlines()
    assert table[0].split() == ["node", "op", "list", "precision", "rule", "reason"]
    assert table[-1] == "3 nodes: 2 float16, 1 float32"
    rows = list(csv.DictReader(io.StringIO(run("resolve", model_path, "--format", "csv").out)))
    assert [row["name"] for row in rows] == ["first", "second", "third"]
    assert rows[0]["outputs"] == "a:float16"


def test_explain_walks_to_the_node_that_decided(run, model_path: Path) -> None:
    ran = run("resolve", model_path, "--explain", "second")
    assert ran.status == 0
    assert ran.out.startswith("second (Relu) becomes float16.\n")
    assert "    It follows first:\nfirst (MatMul) becomes float16.\n" in ran.out
    told = json.loads(run("resolve", model_path, "--explain", "second", "--format", "json").out)
    assert told["format"] == "mixlist.explain/1"
    assert [node["name"] for node in told["chain"]] == ["second", "first"]


def test_explain_names_the_line_of_the_list(run, model_path: Path, tmp_path: Path) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text('{\n  "black-list": {"to-add": ["Relu"]}\n}\n')
    ran = run("resolve", model_path, "--mixlist", modify, "--explain", "second")
    assert "second (Relu) stays float32." in ran.out
    assert f"{modify}:2:29" in ran.out


def test_explain_an_unknown_node(run, model_path: Path) -> None:
    ran = run("resolve", model_path, "--explain", "secnd")
    assert ran.status == 2
    assert "second" in ran.err


def test_provider_cpu_lists_low_nodes_without_kernel(run, model_path: Path) -> None:
    told = json.loads(run("resolve", model_path, "--provider", "cpu", "--format", "json").out)
    everything = json.loads(run("resolve", model_path, "--format", "json").out)
    named = [node["name"] for node in told["nodes"]]
    assert set(named) <= {node["name"] for node in everything["nodes"] if node["precision"] == "float16"}
    assert sum(told["counts"].values()) == len(named)


def test_provider_cuda_is_told_without_a_gpu(run, model_path: Path) -> None:
    ran = run("resolve", model_path, "--provider", "cuda", "--precision-mode-v2", "mixed_bfloat16", "--format", "json")
    assert ran.status == 0
    assert "kernels of cuda are those of onnxruntime-gpu" in ran.err
    everything = json.loads(run("resolve", model_path, "--precision-mode-v2", "mixed_bfloat16", "--format", "json").out)
    low = {node["name"] for node in everything["nodes"] if node["precision"] == "bfloat16"}
    assert {node["name"] for node in json.loads(ran.out)["nodes"]} <= low


def test_long_names_are_never_cut_when_piped() -> None:
    name = "/encoder/" + "very_long_layer_name/" * 20 + "MatMul"
    stream = io.StringIO()
    write_node_table([_decision(name)], stream)
    assert name in stream.getvalue()


def test_long_names_are_folded_whole_on_a_terminal(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    name = "".join(f"/block{at}" for at in range(20))
    stream = Terminal()
    write_node_table([_decision(name)], stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert name in "".join(line.split("  ")[0].strip() for line in lines)


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    write_node_table([_decision("a\x1b[2Jb\nc")], stream)
    assert "a\\x1b[2Jb\\nc" in stream.getvalue()
    assert "\x1b" not in chain_text([_decision("a\x1b[2J")])


def _decision(name: str) -> Decision:
    return Decision("", name, "MatMul", "", "white", "float16", True, "white", (), {"y": "float16"}, "it is white")
