"""JSON with comments: values, places, messages, and hostile texts."""

from __future__ import annotations

import codecs
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ListError
from mixlist.files.jsonc import Document, Scanner, parse, read
from mixlist.files.list_text import decode, quoted
from tests.support.systems import linux_only

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def refusal(text: str) -> Diagnostic:
    """Return the last finding about a text that is refused."""
    with pytest.raises(ListError) as caught:
        parse(text, "f")
    finding = caught.value.diagnostics[-1]
    assert isinstance(finding, Diagnostic)
    assert (finding.severity, finding.path) == ("error", "f")
    return finding


def read_data(tmp_path: Path, data: bytes) -> Document:
    """Return the document in a file with these bytes."""
    path = tmp_path / "f.json"
    path.write_bytes(data)
    return read(path)


@pytest.mark.parametrize(
    ("text", "code", "position", "message"),
    [
        ("[1,,]", "ML001", (1, 4), 'expected a value, found ","'),
        ("{,}", "ML001", (1, 2), 'expected a key in double quotes or "}", found ","'),
        ("[,]", "ML001", (1, 2), 'expected a value or "]", found ","'),
        ("[1}", "ML001", (1, 3), 'expected "," or "]", found "}"'),
        ("{]", "ML001", (1, 2), 'expected a key in double quotes or "}", found "]"'),
        ('{"a" 1}', "ML001", (1, 6), 'expected ":" after the key, found "1"'),
        ('{"a"\n:\n}', "ML001", (3, 1), 'expected a value, found "}"'),
        ('{"a": 1\n "b": 2}', "ML001", (2, 2), 'expected "," or "}", found the string "b"'),
        ("{'a': 1}", "ML001", (1, 2), 'expected a key in double quotes or "}", found "\'a\'"'),
        ("{a: 1}", "ML001", (1, 2), 'expected a key in double quotes or "}", found "a"'),
        ('{"a": NaN}', "ML001", (1, 7), '"NaN" is not a JSON value'),
        ("[-Infinity]", "ML001", (1, 2), '"-Infinity" is not a JSON value'),
        ("[True]", "ML001", (1, 2), '"True" is not a JSON value'),
        ("[01]", "ML001", (1, 2), '"01" is not a JSON value'),
        ("[1", "ML001", (1, 3), 'the file ends here, but "," or "]" is missing'),
        ('{"a": 1}}', "ML001", (1, 9), 'expected the end of the file, found "}"'),
        ("{} {}", "ML001", (1, 4), 'expected the end of the file, found "{"'),
        ('{"a', "ML001", (1, 2), "the string that starts here is not closed on its line"),
        ('{"a": "x\ny"}', "ML001", (1, 7), "the string that starts here is not closed on its line"),
        ('{"a": "C:\\x"}', "ML001", (1, 10), '"\\x" is not a JSON escape'),
        ('["a\tb"]', "ML001", (1, 4), 'a string holds the control character "\\t"'),
        ("[1] /", "ML001", (1, 5), 'expected the end of the file, found "/"'),
        ("[1] /* x", "ML001", (1, 5), "the comment that starts here has no end"),
        ('{"a": \0}', "ML002", (1, 7), "the file holds a NUL byte: it is damaged, or not a text file"),
        ("", "ML003", (1, 1), "the file is empty"),
        (" \n\t\n", "ML003", (1, 1), "the file is empty"),
        (
            '["\\ud800"]',
            "ML009",
            (1, 2),
            'the string "\\ud800" holds one half of a surrogate pair, which is not a character',
        ),
        ("[" + "1" * 601 + "]", "ML008", (1, 2), "the integer has 601 digits; mixlist reads at most 600"),
        ("[" * 201 + "]" * 201, "ML004", (1, 201), "arrays and objects are nested deeper than 200 levels"),
    ],
)
def test_an_invalid_text_is_refused_at_its_position(
    text: str, code: str, position: tuple[int, int], message: str
) -> None:
    finding = refusal(text)
    assert (finding.code, (finding.line, finding.column), finding.message) == (code, position, message)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("['a']", "write strings in double quotes"),
        ('{"a": 1 "b": 2}', "put a comma before it"),
        ("[True]", "write true"),
        ("[NaN]", "JSON has only finite numbers: write one"),
        ('{"a": [\n1, 2}', '"[" at 1:7 is not closed yet'),
        ('{\n"a": {', '"{" at 2:6 is not closed yet'),
    ],
)
def test_an_invalid_text_has_a_hint(text: str, hint: str) -> None:
    assert refusal(text).hint == hint


def test_each_comment_and_trailing_comma_warns() -> None:
    """Rule S2.6: Comments and trailing commas are read with a warning."""
    text = '// head\n{"a": [1, 2, /* last */ ], # \n}'.replace("# ", "// tail")
    document = parse(text, "f")
    assert document.value == {"a": [1, 2]}
    assert [(f.code, f.severity, f.line, f.column) for f in document.findings] == [
        ("ML006", "warning", 1, 1),
        ("ML007", "warning", 2, 12),
        ("ML006", "warning", 2, 14),
        ("ML007", "warning", 2, 26),
        ("ML006", "warning", 2, 28),
    ]
    assert all(f.hint and "the Ascend engine rejects it" in f.hint for f in document.findings)
    assert {f.severity for f in parse(text, "f", strict=True).findings} == {"error"}


def test_comments_inside_strings_are_text() -> None:
    document = parse('{"a // b": "/* c */", "d": ",]"}', "f")
    assert document.value == {"a // b": "/* c */", "d": ",]"} and not document.findings


def test_findings_before_the_error_are_kept() -> None:
    with pytest.raises(ListError) as caught:
        parse('{"a": 1, "a": 2, // x\n b}', "f")
    assert [f.code for f in caught.value.diagnostics] == ["ML005", "ML006", "ML001"]  # type: ignore[attr-defined]
    assert str(caught.value) == 'f:2:2: expected a key in double quotes, found "b"'


def test_duplicate_keys_are_errors_and_the_last_value_counts() -> None:
    """Rule S2.7: Files that the engine misreads are errors."""
    document = parse('{"a": 1,\n "b": {"c": 1, "\\u0063": 2},\n "a": 3}', "f")
    assert document.value == {"a": 3, "b": {"c": 2}}
    findings = [(f.code, f.severity, f.line, f.column, f.message) for f in document.findings]
    assert findings == [
        ("ML005", "error", 2, 16, 'the key "c" is in the object twice: here and at 2:8'),
        ("ML005", "error", 3, 2, 'the key "a" is in the object twice: here and at 1:2'),
    ]


def test_keys_and_values_have_a_line_and_column() -> None:
    document = parse('\n{ "a" : [ 10, {"b": "ü€😀", "c":null} ],\r\n"d":{}, "e": true }', "f")
    assert document.line_column() == (2, 1)
    assert document.line_column(("a",), key=True) == (2, 3)
    assert document.line_column(("a",)) == (2, 9)
    assert document.line_column(("a", 0)) == (2, 11)
    assert document.line_column(("a", 1, "b")) == (2, 21)
    assert document.line_column(("a", 1, "c"), key=True) == (2, 28)  # characters, not bytes
    assert document.line_column(("d",), key=True) == (3, 1)
    assert document.line_column(("e",)) == (3, 14)


def test_lines_end_with_lf_crlf_or_cr() -> None:
    assert parse("[1,\n2,\r\n3,\r4]", "f").item_line_columns() == [(1, 2), (2, 1), (3, 1), (4, 1)]


def test_a_byte_order_mark_is_accepted_without_a_warning(tmp_path: Path) -> None:
    document = read_data(tmp_path, b'\xef\xbb\xbf{"a": 1}')
    assert document.value == {"a": 1} and not document.findings
    assert document.line_column(("a",), key=True) == (1, 2)


@pytest.mark.parametrize(
    ("data", "position", "message"),
    [
        (b'{"a": "\xff"}', (1, 8), "byte 0xff at byte offset 7 is not UTF-8"),
        (b'{"\xc3\xbc":\n "\xe2\x82"}', (2, 3), "byte 0xe2 at byte offset 9 is not UTF-8"),
        (b"\xef\xbb\xbf\x80", (1, 1), "byte 0x80 at byte offset 3 is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), (1, 1), "the file is UTF-16 or UTF-32 text, not UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), (1, 1), "the file is UTF-16 or UTF-32 text, not UTF-8"),
        ('{"a": 1}'.encode("utf-16-be"), (1, 1), "the file is UTF-16 or UTF-32 text, not UTF-8"),
        (codecs.BOM_UTF8 + "a\n".encode("utf-16-le"), (1, 1), "the file is UTF-16 or UTF-32 text, not UTF-8"),
        ('{"a": 1}'.encode("utf-32"), (1, 1), "the file is UTF-16 or UTF-32 text, not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', (1, 8), "byte 0xed at byte offset 7 is not UTF-8"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(
    tmp_path: Path, data: bytes, position: tuple[int, int], message: str
) -> None:
    with pytest.raises(ListError) as caught:
        read_data(tmp_path, data)
    (finding,) = caught.value.diagnostics
    assert isinstance(finding, Diagnostic)
    assert (finding.code, (finding.line, finding.column), finding.message) == ("ML002", position, message)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read(tmp_path / "missing.json")
    with pytest.raises(FileError, match="is a directory"):
        read(tmp_path)
    with pytest.raises(FileError, match="cannot be read"):
        read("a\0b")
    if os.name != "nt":
        with pytest.raises(FileError, match="more than 12 MiB: too much for a list file"):
            read("/dev/zero")


@linux_only
@pytest.mark.parametrize(
    ("start", "part", "end"),
    [
        ('[""', ',""', "]"),
        ("[[]", ",[]", "]"),
        ("[0", ",0", "]"),
        ("{}", "\n", ""),
        ("{}", "\r", ""),
        ("{}", "/**/", ""),
        ("{}", "//\n", ""),
        ('{"a":{}', ',"a":{}', "}"),
    ],
    ids=["strings", "arrays", "numbers", "lines", "old lines", "comments", "short comments", "duplicate keys"],
)
def test_a_dense_text_takes_less_than_2_gb(tmp_path: Path, start: str, part: str, end: str) -> None:
    """A text of 1 MiB takes at most a twelfth of 1.8 GB, so one of the largest size, 12 MiB, less than 2 GB."""
    path = tmp_path / "dense.json"
    path.write_text(start + part * ((1 << 20) // len(part)) + end)
    limit = (1800 << 20) // 12 + (80 << 20)  # 80 MB for Python and its modules
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({limit},) * 2)\n"
        "from mixlist.files.jsonc import read; read(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_hyphen_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
    document = read("-")
    assert (document.value, document.path) == ({"a": 1}, "<stdin>")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(FileError, match="<stdin>: cannot be read"):
        read("-")


PART = 1 if os.environ.get("MIXLIST_CAMPAIGN") == "1" else 16
HOSTILE: dict[str, Callable[[], str]] = {
    "brackets": lambda: "[" * 10_000_000,
    "objects": lambda: '{"a":' * 1_000_000,
    "closing brackets": lambda: "]" * 1_000_000,
    "comments in brackets": lambda: "[/**/" * 1_000_000,
    "long string": lambda: '["' + "a" * 10_000_000 + '",]',
    "long open string": lambda: '"' + "a" * 10_000_000,
    "long string of escapes": lambda: '["' + "\\n" * 5_000_000 + '",]',
    "long key": lambda: '{"' + "a" * 10_000_000 + '": 1,}',
    "long integer": lambda: "[" + "9" * 10_000_000 + "]",
    "long real": lambda: "[" + "9" * 10_000_000 + ".5,]",
    "long exponent": lambda: "[1e" + "9" * 10_000_000 + ",]",
    "blanks": lambda: "[1" + " " * 10_000_000 + ",]",
    "slashes": lambda: "/" * 1_000_000,
    "open comments": lambda: "/*" * 1_000_000,
    "quotes": lambda: '"' * 1_000_000,
    "backslashes": lambda: '"' + "\\" * 1_000_001,
    "minus signs": lambda: "[" + "-" * 1_000_000,
    "many keys": lambda: "{" + ",".join(f'"k{i}":1' for i in range(1_000_000 // PART)) + ",}",
    "many duplicates": lambda: "{" + ",".join('"k":1' for _ in range(1_000_000 // PART)) + "}",
    "as many comments as are read": lambda: "[1" + "/**/" * 100_000 + "]",
    "many trailing commas": lambda: "[" + "[1,]," * (1_000_000 // PART) + "]",
    "NUL bytes": lambda: "\0" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_cost_little_time(name: str) -> None:
    text = HOSTILE[name]()
    start = time.process_time()
    try:
        document = parse(text, "f")
    except ListError as error:
        findings = [f for f in error.diagnostics if isinstance(f, Diagnostic)]
    else:
        findings = list(document.findings)
    assert findings and len(findings) < 500
    assert max(len(f.message) for f in findings) < 300
    assert time.process_time() - start < 30 / PART  # seconds; the slowest takes 4 / PART here


def test_the_time_of_reading_is_linear() -> None:
    """A text of four times the length takes about four times as long, with json and with the scanner."""

    def seconds(text: str) -> float:
        best = 60.0
        # The collector also visits the objects that other tests left in this process: more often for a longer text.
        gc.disable()
        for _ in range(3):
            start = time.process_time()
            document = parse(text, "f")
            for key in document.value:
                document.line_column((key, "flag"))
            best = min(best, time.process_time() - start)
        gc.enable()
        return best

    def library(count: int) -> str:
        return json.dumps({f"Op{i}": {"input0": {"dtype": "float16"}, "flag": "true"} for i in range(count)}, indent=4)

    for tail in ("", "// read by the scanner"):
        assert seconds(library(10_000) + tail) < 8 * seconds(library(2_500) + tail)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_strict_json_gives_the_value_of_json(value: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    document = parse(text, "f")
    assert document.value == value and not document.findings
    assert Scanner(text, "f", strict=False).scan() == (text, [])


TOKENS = ["{", "}", "[", "]", ",", ":", " ", "\n", '"a"', '"b"', '"\\u00e4"', '"\\ud83d\\ude00"', "1", "-0.5e3", "true"]
INVALID_TOKENS = ["//x\n", "/*y*/", "NaN", '"', "\\", "/", "'", "01", '"\\ud83d"', "\ufeff", "\0", "ü"]
MIXED_TEXTS = st.lists(st.sampled_from([*TOKENS, *INVALID_TOKENS]), max_size=14).map("".join)


def refuse_constant(constant: str) -> None:
    raise ValueError(constant)


@given(MIXED_TEXTS)
def test_the_scanner_agrees_with_json(text: str) -> None:
    """The scanner has no finding but duplicate keys for a text that json accepts, and a finding for any other text."""
    try:
        expected = json.loads(text, parse_constant=refuse_constant)
        is_strict = "\\ud83d" not in text.replace("\\ud83d\\ude00", "")
    except ValueError:
        is_strict = False
    try:
        clean, findings = Scanner(text, "f", strict=False).scan()
    except ListError as error:
        assert not is_strict and error.diagnostics
        return
    assert len(clean) == len(text)
    assert is_strict == all(f.code == "ML005" for f in findings)
    if is_strict:
        assert json.loads(clean) == expected == parse(text, "f").value
    else:
        assert parse(text, "f").value == json.loads(clean)


@given(JSON.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, 2]))
def test_every_value_is_at_its_place(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    document = parse(text, "f")
    lines = text.split("\n")

    def check(part: Any, steps: tuple[str | int, ...]) -> None:
        line, column = document.line_column(steps)
        following_text = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        assert json.JSONDecoder().raw_decode(following_text)[0] == part
        for step, inner in (
            part.items() if isinstance(part, dict) else enumerate(part if isinstance(part, list) else [])
        ):
            check(inner, (*steps, step))

    check(value, ())


def test_quoted_is_short_and_printable() -> None:
    assert quoted('a\n\x1b[31m"') == '"a\\n\\x1b[31m""'
    assert quoted("x" * 100) == '"' + "x" * 60 + '..."'
    assert quoted("\ud800é") == '"\\ud800é"'


def test_many_byte_order_marks_cost_little_time() -> None:
    """Removing them one by one would copy the text each time: minutes for a megabyte."""
    start = time.process_time()
    assert decode(codecs.BOM_UTF8 * 500_000 + b"{}", "f") == "{}"
    assert time.process_time() - start < 5
