"""The editor settings of the guide choose the right schema by the name of a file, and find the place of a finding."""

from __future__ import annotations

import fnmatch
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from mixlist.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/guides/editors.md").read_text("utf-8")
FILES = {
    "decoder_mixlist.json": "schemas/modify-mixlist.json",
    "modify_mix_list.json": "schemas/modify-mixlist.json",
    "aic-ascend910b-ops-info.json": "schemas/ops-info.json",
    "ops_info_fp16.json": "schemas/ops-info.json",
    "package.json": None,
}


def block(name: str) -> str:
    """Return the file that the guide shows under a name."""
    return re.findall(rf"^`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", TEXT, re.M | re.S)[0]


def vs_code_schemas() -> list[tuple[str, str]]:
    """Return pairs of a pattern of file names and a schema."""
    entries = json.loads(block(".vscode/settings.json"))["json.schemas"]
    return [(pattern, entry["url"].removeprefix("./")) for entry in entries for pattern in entry["fileMatch"]]


def jetbrains_schemas() -> list[tuple[str, str]]:
    """Return pairs of a pattern of file names and a schema."""
    pairs = []
    for info in ET.fromstring(block(".idea/jsonSchemas.xml").encode()).iter("SchemaInfo"):
        options = {option.get("name"): option.get("value") for option in info.findall("option")}
        for item in info.iter("Item"):
            item_options = {option.get("name"): option.get("value") for option in item.findall("option")}
            assert item_options["mappingKind"] == "Pattern" and item_options["pattern"] == "true"
            pairs.append((item_options["path"] or "", options["relativePathToSchema"] or ""))
    return pairs


@pytest.mark.parametrize("name", FILES)
def test_both_editors_choose_the_schema_by_the_name_of_the_file(name: str) -> None:
    for pairs in (vs_code_schemas(), jetbrains_schemas()):
        chosen = {schema for pattern, schema in pairs if fnmatch.fnmatchcase(name, pattern)}
        assert chosen == ({FILES[name]} if FILES[name] else set())


def test_an_editor_underlines_a_boolean_flag() -> None:
    """``validate`` refuses it too (ML204)."""
    schema = json.loads((ROOT / "schemas/ops-info.json").read_text("utf-8"))
    jsonschema.validate({"Conv": {"precision_reduce": {"flag": "true"}}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"Conv": {"precision_reduce": {"flag": True}}}, schema)


def test_the_schemas_exist_and_use_words_that_draft_7_has() -> None:
    """JetBrains reads them as version 7."""
    for schema in {schema for _, schema in vs_code_schemas()}:
        text = json.loads((ROOT / schema).read_text("utf-8"))
        jsonschema.Draft7Validator.check_schema({**text, "$schema": "http://json-schema.org/draft-07/schema#"})
        keywords = set(re.findall(r'"(prefixItems|dependentSchemas|unevaluated\w+|\$dynamicRef)"', json.dumps(text)))
        assert not keywords


def test_the_task_of_vs_code_finds_the_place_of_each_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (task,) = json.loads(block(".vscode/tasks.json"))["tasks"]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/a_mixlist.json").write_text(
        '{\n  "black-list": {"to-addd": [],\n    "to-add": ["Sotfmax"]}\n}\n'
    )
    monkeypatch.chdir(tmp_path)
    program, *arguments = task["command"].split()
    assert program == "mixlist" and main(arguments) == 1
    pattern = task["problemMatcher"]["pattern"]
    found = [match for line in capsys.readouterr().out.splitlines() if (match := re.match(pattern["regexp"], line))]
    places = [tuple(match[pattern[part]] for part in ("file", "line", "column", "severity", "code")) for match in found]
    assert places == [
        ("lists/a_mixlist.json", "2", "18", "error", "ML101"),
        ("lists/a_mixlist.json", "3", "16", "error", "ML108"),
    ]
