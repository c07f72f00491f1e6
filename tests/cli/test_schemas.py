"""Every JSON result of the command line is valid for its schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.package import GRAY_POLICIES, data_folder

SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)
MODIFY = '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul", "AcmeHead"]}}'
CHIP = "OpType,NPUDump,DataType,GroundTruth,TensorIndex,CosineSimilarity\nAdd,a,float16,a,a:output:0,0.5\n"
COMMANDS = [
    ("resolve", "{model}", "--format", "json"),
    ("resolve", "{model}", "--format", "json", "--target", "cpu"),
    ("resolve", "{model}", "--format", "json", "--target", "tensorrt"),
    ("resolve", "{model}", "--format", "json", "--explain", "second"),
    ("lists", "--format", "json", "--mixlist", "{modify}"),
    ("lists", "--format", "json", "--from", "{chip}", "--ops-info", "ascend910b"),
    ("presets", "--format", "json"),
    ("diff", "onnx", "onnx", "--other-mixlist", "{modify}", "--model", "{model}", "--format", "json"),
    ("diff", "onnx", "ascend910b", "--model", "{model}", "--random", "2", "--dim", "N=3", "--format", "json"),
    ("diff", "onnx", "onnx", "--other-mixlist", "{modify}"),
    ("export", "{model}", "--for", "ort", "--format", "json"),
    ("export", "{model}", "--for", "modelopt", "--format", "json", "--mixlist", "{modify}"),
    ("export", "{model}", "--for", "atc", "--format", "json"),
    ("validate", "{modify}", "--ops-info", "onnx", "--format", "json"),
    ("apply", "{model}", "-o", "{out}", "--report", "-"),
    ("apply", "{model}", "-o", "{out}", "--report", "-", "--target", "tensorrt"),
    ("bench", "{model}", "--random", "1", "--rounds", "1", "--format", "json"),
    ("bench", "{model}", "--estimate", "--format", "json"),
    ("check", "{model}", "--random", "2", "--dim", "N=3", "--per-tensor", "--layerwise", "--format", "json"),
    ("convert", "{model}", "-o", "{out}", "--random", "2", "--dim", "N=3", "--format", "json"),
    ("tune", "{model}", "-o", "{out}", "--random", "2", "--dim", "N=3", "--format", "json"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments))
def test_json_results_are_valid(run, tmp_path: Path, model_path: Path, arguments: tuple[str, ...]) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text(MODIFY)
    (tmp_path / "chip.csv").write_text(CHIP)
    names = {"model": model_path, "modify": modify, "chip": tmp_path / "chip.csv", "out": tmp_path / "out.onnx"}
    completed = run(*(a.format(**names) for a in arguments))
    assert completed.status == 0
    result = json.loads(completed.out)
    name = result.get("format", "modify-mixlist").removeprefix("mixlist.").partition("/")[0]
    (schema,) = [s for s in SCHEMAS if s["$id"].startswith(f"urn:mixlist:schema:{name}")]
    Draft202012Validator(schema, registry=REGISTRY).validate(result)


def test_the_schema_of_resolve_has_every_gray_policy() -> None:
    (schema,) = [schema for schema in SCHEMAS if schema["$id"].startswith("urn:mixlist:schema:resolve")]
    assert schema["properties"]["gray_policy"]["enum"] == list(GRAY_POLICIES)
