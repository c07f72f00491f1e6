"""keep_dtype and customize_dtypes: formats, places of findings, precedence (Rules S6.1 to S6.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixlist.errors import FileError, ListError
from mixlist.lists.node_rules import parse_customize_dtypes, read_customize_dtypes, read_keep_dtype
from mixlist.lists.validate_file import validate_file

Slots = tuple[str | None, ...]


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "rules.cfg"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read_line(tmp_path: Path, line: str) -> tuple[str, str, Slots, Slots]:
    """Return the fields of the rule in a customize_dtypes file of one line."""
    (rule,), warnings = read_customize_dtypes(write(tmp_path, line))
    assert warnings == []
    assert not rule.keep
    return rule.by, rule.pattern, rule.inputs, rule.outputs


def test_keep_dtype_has_rules_by_name_and_by_type(tmp_path: Path) -> None:
    """Rule S6.1: keep_dtype names nodes that keep their type."""
    rules, warnings = read_keep_dtype(write(tmp_path, "conv/1\n\n  OpType::Softmax\r\n/a:0/b\n"))
    assert warnings == []
    assert [(r.by, r.pattern, r.keep, r.place.line, r.place.column) for r in rules] == [
        ("name", "conv/1", True, 1, 1),
        ("type", "Softmax", True, 3, 3),
        ("name", "/a:0/b", True, 4, 1),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a::InputDtype:float16,OutputDtype:float32", ("name", "a", ("float16",), ("float32",))),
        ("a::InputDtype:float16,,OutputDtype:float32", ("name", "a", ("float16", None), ("float32",))),
        ("a::InputDtype:,fp32,OutputDtype:bf16,,", ("name", "a", (None, "float32"), ("bfloat16", None, None))),
        ("a::InputDtype:,OutputDtype:float", ("name", "a", (), ("float32",))),
        ("a::InputDtype:OutputDtype:fp16", ("name", "a", (), ("float16",))),
        ("a::InputDtype: float16 , OutputDtype: float32 ", ("name", "a", ("float16",), ("float32",))),
        ("a::InputDtype:float16,OutputDtype:", ("name", "a", ("float16",), ())),
        ("x::y:0::InputDtype:fp16,OutputDtype:fp16", ("name", "x::y:0", ("float16",), ("float16",))),
        ("a::InputDtype:b::InputDtype:fp16,OutputDtype:", ("name", "a::InputDtype:b", ("float16",), ())),
        ("OpType::Conv:InputDtype:fp16,OutputDtype:fp32", ("type", "Conv", ("float16",), ("float32",))),
        ("OpType::com.microsoft::Gelu:InputDtype:fp16,OutputDtype:", ("type", "com.microsoft::Gelu", ("float16",), ())),
    ],
)
def test_a_line_of_customize_dtypes_gives_types_per_slot(
    tmp_path: Path, line: str, expected: tuple[str, str, Slots, Slots]
) -> None:
    """Rule S6.2: customize_dtypes gives types per slot."""
    assert read_line(tmp_path, line) == expected


@pytest.mark.parametrize(
    ("line", "code", "column", "message_part"),
    [
        ("conv1", "ML301", 6, "no InputDtype"),
        ("a::OutputDtype:fp16", "ML301", 4, "InputDtype comes first"),
        ("a::OutputDtype:fp16,InputDtype:fp16", "ML301", 4, "InputDtype comes first"),
        ("a:InputDtype:fp16,OutputDtype:fp16", "ML301", 3, "does not follow the name"),
        ("a::InputDtype:fp16", "ML301", 19, "OutputDtype is missing"),
        ("a::InputDtype:fp16OutputDtype:fp16", "ML301", 19, "a comma is missing"),
        ("a::InputDtype:fp16,OutputDtype:fp16,OutputDtype:fp16", "ML301", 37, "once each"),
        ("::InputDtype:fp16,OutputDtype:", "ML301", 1, "has no node name"),
        ("  a::InputDtype:fp16,half,OutputDtype:", "ML302", 22, "'half'"),
        ("a::InputDtype:,OutputDtype:int7", "ML302", 28, "'int7'"),
        ("OpType:::InputDtype:fp16,OutputDtype:", "ML301", 9, "not the name of an op type"),
        ("OpType::A B:InputDtype:fp16,OutputDtype:", "ML301", 9, "not the name of an op type"),
        ("OpType::Conv", "ML301", 13, "no InputDtype"),
        ("a\0::InputDtype:fp16,OutputDtype:", "ML002", 2, "NUL"),
    ],
)
def test_an_invalid_line_is_refused_at_its_position(
    tmp_path: Path, line: str, code: str, column: int, message_part: str
) -> None:
    file = write(tmp_path, "ok::InputDtype:fp16,OutputDtype:fp16\n" + line + "\n")
    (finding,) = validate_file(file, "customize-dtypes").findings
    assert (finding.code, finding.severity, finding.line, finding.column) == (code, "error", 2, column)
    assert message_part in finding.message
    with pytest.raises(ListError, match=rf"rules\.cfg:2:{column}: ") as error:
        read_customize_dtypes(file)
    assert error.value.diagnostics == (finding,)


def test_the_hint_of_an_unknown_type_names_the_allowed_types(tmp_path: Path) -> None:
    (finding,) = validate_file(write(tmp_path, "a::InputDtype:flaot16,OutputDtype:"), "customize-dtypes").findings
    assert finding.hint is not None
    assert "did you mean float16?" in finding.hint
    assert "float16, float32 and bfloat16" in finding.hint


def test_all_invalid_lines_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=r"\(and 2 more") as error:
        read_customize_dtypes(write(tmp_path, "a\nb\n\nc\n"))
    assert len(error.value.diagnostics) == 3


def test_keep_dtype_refuses_types(tmp_path: Path) -> None:
    (finding,) = validate_file(write(tmp_path, "a::InputDtype:fp16,OutputDtype:"), "keep-dtype").findings
    assert (finding.severity, finding.column) == ("error", 4)
    assert "customize_dtypes=" in str(finding.hint)


def test_the_first_rule_for_a_name_counts(tmp_path: Path) -> None:
    text = "a::InputDtype:fp16,OutputDtype:\nb::InputDtype:fp16,OutputDtype:\na::InputDtype:fp32,OutputDtype:\n"
    rules, (warning,) = read_customize_dtypes(write(tmp_path, text))
    assert [(r.pattern, r.inputs) for r in rules] == [("a", ("float16",)), ("b", ("float16",))]
    assert (warning.code, warning.severity, warning.line) == ("ML304", "warning", 3)
    assert "line 1" in warning.message


def test_a_node_and_an_op_type_can_have_the_same_name(tmp_path: Path) -> None:
    text = "OpType::Conv:InputDtype:fp16,OutputDtype:\nConv::InputDtype:fp32,OutputDtype:\n"
    rules, warnings = read_customize_dtypes(write(tmp_path, text))
    assert warnings == []
    assert [r.by for r in rules] == ["name", "type"]  # in order of precedence


def test_comments_warn(tmp_path: Path) -> None:
    rules, (warning,) = read_keep_dtype(write(tmp_path, "# comment\nconv\n"))
    assert [r.pattern for r in rules] == ["conv"]
    assert (warning.code, warning.severity, warning.line) == ("ML303", "warning", 1)


def test_a_byte_order_mark_and_crlf_are_not_part_of_names(tmp_path: Path) -> None:
    rules, warnings = read_keep_dtype(write(tmp_path, b"\xef\xbb\xbfa\r\nb\r\n"))
    assert (warnings, [r.pattern for r in rules]) == ([], ["a", "b"])
    assert rules[0].place.column == 1


def test_text_that_is_not_utf_8_is_refused_at_its_position(tmp_path: Path) -> None:
    file = write(tmp_path, b"a\nbc\xff\n")
    with pytest.raises(ListError, match=r"rules\.cfg:2:3: .*0xff"):
        read_keep_dtype(file)
    assert [(f.line, f.column) for f in validate_file(file, "keep-dtype").findings] == [(2, 3)]


def test_empty_files_are_legal(tmp_path: Path) -> None:
    assert read_keep_dtype(write(tmp_path, "")) == ((), [])
    assert read_customize_dtypes(write(tmp_path, "\n \n")) == ((), [])


def test_a_missing_file_and_a_directory_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.cfg"):
        read_keep_dtype(tmp_path / "none.cfg")
    with pytest.raises(FileError):
        read_customize_dtypes(tmp_path)


PIECES = [
    "OpType::",
    "::InputDtype:",
    ":InputDtype:",
    ",OutputDtype:",
    "OutputDtype:",
    ",",
    "float16",
    "fp32",
    "a",
    " ",
    ":",
]
LINES = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@given(st.lists(LINES, max_size=4).map("\n".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_gives_rules_or_findings_with_a_place(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text.encode("utf-8", "surrogatepass"))
    for kind, read in (("keep-dtype", read_keep_dtype), ("customize-dtypes", read_customize_dtypes)):
        findings = validate_file(file, kind).findings  # type: ignore[arg-type]
        assert all(f.line and f.column for f in findings)
        if any(f.severity == "error" for f in findings):
            with pytest.raises(ListError):
                read(file)
        else:
            rules, warnings = read(file)
            assert warnings == list(findings)
            assert len({(rule.by, rule.pattern) for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    "text",
    [
        "fp32_vars/Relu::InputDtype:float16,OutputDtype:int8",
        "OpType::Relu:InputDtype:float16,int8,OutputDtype:FLOAT16,Int8",
    ],
)
def test_the_example_of_the_documents_is_legal(text: str) -> None:
    """Rule S6.2: ``--customize_dtypes.md`` of hicann/ge; its parser compares names of types in capital letters."""
    (rule,), findings = parse_customize_dtypes(text)
    assert rule.inputs[0] == "float16" and rule.outputs[-1] == "int8" and not findings
