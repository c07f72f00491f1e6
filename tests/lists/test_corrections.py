"""Corrections of list files: nothing but the fault changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.files.jsonc import parse
from mixlist.lists.corrections import correct_text
from mixlist.lists.suggestions import sure_correction
from mixlist.lists.validate_file import validate_file


def correct(path: Path, text: str, **new_names: str) -> tuple[str, list[tuple[str, int]]]:
    path.write_bytes(text.encode())
    report = validate_file(path)
    findings = list(report.findings)
    if new_names:
        from mixlist.diagnostics import Diagnostic

        findings.append(Diagnostic("ML108", "warning", "unknown", str(path), 1, 1))
    corrected, corrections = correct_text(
        text, str(path), report.kind, findings, {"ML108": new_names} if new_names else {}
    )
    return corrected, [(correction.finding.code, correction.count) for correction in corrections]


@pytest.mark.parametrize(
    ("text", "expected", "codes"),
    [
        # A comment goes with its line if the line holds nothing else.
        ('{\n  // one\n  "black-list": {} // two\n}\n', '{\n  "black-list": {}\n}\n', [("ML006", 2)]),
        ('{"black-list": {"to-add": [/* a */ "Add"]}}', '{"black-list": {"to-add": ["Add"]}}', [("ML006", 1)]),
        ('{\r\n/* a\r\n b */\r\n"black-list": {}}\r\n', '{\r\n"black-list": {}}\r\n', [("ML006", 1)]),
        ('{"black-list": {} /* a */ /* b */ // c\n}', '{"black-list": {}\n}', [("ML006", 3)]),
        ('{"black-list": {"to-add": ["a//b", "c",],},}', '{"black-list": {"to-add": ["a//b", "c"]}}', [("ML007", 3)]),
        # The second of two equal names goes with its comma.
        (
            '{"white-list": {"to-add": [\n "A",\n "B",\n "A",\n "A"\n]}}',
            '{"white-list": {"to-add": [\n "A",\n "B"\n]}}',
            [("ML105", 2)],
        ),
        ('{"$schema": "x", "black-list": {}}', '{"black-list": {}}', [("ML103", 1)]),
        ('{"black-list": {}, "$schema": "x"}', '{"black-list": {}}', [("ML103", 1)]),
        ('{"$schema": "x"}', "{}", [("ML103", 1)]),
        (
            '{"blacklist": {"to_add": ["A"]}, "White-List" : {"to-remov": ["B"]}}',
            '{"black-list": {"to-add": ["A"]}, "white-list" : {"to-remove": ["B"]}}',
            [("ML101", 4)],
        ),
        (
            '{"Add": {"precision_reduce": {"flag":  true}}, "Exp": {"precision_reduce": {"flag": false}}}',
            '{"Add": {"precision_reduce": {"flag":  "true"}}, "Exp": {"precision_reduce": {"flag": "false"}}}',
            [("ML204", 2)],
        ),
        ("# a\n/fc/MatMul\r\n\n  # b\n/fc/MatMul\n", "/fc/MatMul\r\n\n", [("ML303", 2), ("ML304", 1)]),
        # These have no safe correction.
        ('{"black-list": {"to-add": ["A"], "to-remove": ["A"]}}', None, []),
        ('{"blacklist": {}, "black_list": {}, "white-list": {}, "whitelist": {}}', None, []),
        ('{"colors": {"to_add": ["A"]}, "black-list": {"add": ["B"]}}', None, []),
        ("a::InputDtype:fp16,OutputDtype:\na::InputDtype:,OutputDtype:fp32\n", None, []),
    ],
)
def test_a_correction_changes_only_the_fault(
    tmp_path: Path, text: str, expected: str | None, codes: list[tuple[str, int]]
) -> None:
    corrected, corrections = correct(tmp_path / "list", text)
    assert corrected == (text if expected is None else expected)
    assert corrections == codes


def test_a_comment_between_repeated_names_stays_or_nothing_changes(tmp_path: Path) -> None:
    """Without the correction of comments, a name behind a comment must not become a part of it."""
    text = '{"white-list": {"to-add": ["A", // why\n "A", "B"]}}'
    path = tmp_path / "list.json"
    path.write_text(text)
    duplicate = [finding for finding in validate_file(path).findings if finding.code == "ML105"]
    corrected, corrections = correct_text(text, str(path), "modify-mixlist", duplicate, {})
    assert parse(corrected, "").value in (
        {"white-list": {"to-add": ["A", "B"]}},
        {"white-list": {"to-add": ["A", "A", "B"]}},
    )
    assert "// why" in corrected
    assert bool(corrections) == (corrected != text)


def test_a_misspelled_op_type_gets_its_name_in_every_array(tmp_path: Path) -> None:
    text = '{"white-list": {"to-add": ["Sofmax", "Add"]}, "black-list": {"to-remove": [ "Sofmax" ]}}'
    corrected, corrections = correct(tmp_path / "list", text, Sofmax="Softmax")
    assert corrected == text.replace("Sofmax", "Softmax")
    assert corrections == [("ML108", 2)]


@pytest.mark.parametrize(
    ("name", "known_names", "expected"),
    [
        ("matmul", ["MatMul", "Mul"], "MatMul"),
        ("Mat_Mul", ["MatMul"], "MatMul"),
        ("Sofmax", ["Softmax", "LogSoftmax"], "Softmax"),
        ("Sotfmax", ["Softmax"], "Softmax"),
        ("Softmaxx", ["Softmax"], "Softmax"),
        ("Softnax", ["Softmax"], "Softmax"),
        ("Conv1D", ["Conv2D", "Conv3D"], None),
        ("BatchMatMulV3", ["BatchMatMulV2"], None),
        ("FlashAttention", ["Attention"], None),
        ("Sim", ["Sin"], None),
        ("Casts", ["Cast", "Castl"], None),
        ("RELU", ["Relu", "ReLU"], None),
    ],
)
def test_only_one_near_name_is_certain(name: str, known_names: list[str], expected: str | None) -> None:
    assert sure_correction(name, known_names) == expected


NAMES = st.lists(st.sampled_from(["Add", "Exp", "MatMul", 'a"b', "/*x*/", "//"]), max_size=5)
EXTRAS = st.lists(st.sampled_from([" ", "\n", "\t", "// c\n", "/* c */", "/* c\n c */", "\r\n"]), max_size=3)


@given(st.data(), NAMES, NAMES)
def test_comments_and_commas_vanish_and_the_value_stays(
    data: st.DataObject, added: list[str], removed: list[str]
) -> None:
    value = {"black-list": {"to-add": added}, "white-list": {"to-remove": removed}}
    tokens = json.JSONEncoder(indent=1, separators=(",", ":")).encode(value).split("\n")
    text = ""
    for index, token in enumerate(tokens):
        has_comma = is_last(tokens, index) and data.draw(st.booleans())
        text += token.strip() + "," * has_comma + "".join(data.draw(EXTRAS))
    document = parse(text, "")
    corrected, _ = correct_text(text, "", "modify-mixlist", document.findings, {})
    assert json.loads(corrected) == value
    assert correct_text(corrected, "", "modify-mixlist", parse(corrected, "").findings, {})[0] == corrected


def is_last(tokens: list[str], index: int) -> bool:
    """Return True if the token at ``index`` is the last one in its object or array."""
    ends_value = tokens[index].strip()[-1] in '"]}'
    return ends_value and index + 1 < len(tokens) and tokens[index + 1].strip()[0] in "]}"
