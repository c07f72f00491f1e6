"""The strict canonical form of list files (Rule S2.8)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.errors import ListError
from mixlist.files.jsonc import parse
from mixlist.lists.fmt import find_lost_comments, format_text
from mixlist.lists.modify_mixlist import parse_edits
from tests.support.systems import linux_only

MIXLIST = """// comment
{"white-list": {"to-remove": ["B", "A", "B",], "to-add": []}, /* more */
 "black-list":{"to-add":["\\u0041dd"]},}"""


def test_a_mixlist_has_sorted_keys_and_the_names_in_their_order() -> None:
    """Rule S2.8: The canonical form is strict JSON."""
    assert format_text(MIXLIST, "f", "modify-mixlist") == (
        '{\n  "black-list": {\n    "to-add": [\n      "Add"\n    ]\n  },\n'
        '  "white-list": {\n    "to-add": [],\n    "to-remove": [\n      "B",\n      "A"\n    ]\n  }\n}\n'
    )


def test_lost_comments_are_reported() -> None:
    (warning,) = find_lost_comments(MIXLIST, "f")
    assert (warning.code, warning.severity, warning.place) == ("ML011", "warning", "f:1:1")
    assert warning.message == "the strict form of the file loses 2 comments"
    assert not find_lost_comments('{"a": "// none"}', "f")
    (warning,) = find_lost_comments("node\n  # comment\n", "keep.txt")
    assert (warning.place, warning.message) == ("keep.txt:2:3", "the strict form of the file loses a comment")


def test_only_the_white_space_of_a_library_changes() -> None:
    text = '{"Z":{"precision_reduce" :{"flag": "true"},"attr":[1.50e+3,-0,\r\n"\\u0041"]}, "A":{},"n":{"x":[]}}'
    assert format_text(text, "f", "ops-info") == (
        '{\n  "Z": {\n    "precision_reduce": {\n      "flag": "true"\n    },\n    "attr": [\n      1.50e+3,\n'
        '      -0,\n      "\\u0041"\n    ]\n  },\n  "A": {},\n  "n": {\n    "x": []\n  }\n}\n'
    )


def test_a_node_rule_file_has_each_rule_once_without_blanks() -> None:
    assert format_text("  a/b \r\n\n# no\nOpType::Conv\na/b\n", "keep.txt") == "a/b\nOpType::Conv\n"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"black-list": 3}', '{"$schema": ""}', '{"a": {}, "a": {}}'])
def test_invalid_files_are_refused(text: str) -> None:
    with pytest.raises(ListError):
        format_text(text, "f.json")


NAMES = st.lists(st.sampled_from(["Conv", "MatMul", "Å", '"', "// x", " "]) | st.text(max_size=5), max_size=5)
EDITS = st.dictionaries(st.sampled_from(["to-add", "to-remove"]), NAMES)
MIXLISTS = st.dictionaries(st.sampled_from(["black-list", "white-list", "gray-list"]), EDITS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
LIBRARIES = st.dictionaries(st.text(max_size=5), st.dictionaries(st.sampled_from(["a", "input0"]), VALUES), max_size=4)


def untidy_text(value: Any, draw: Any) -> str:
    """Return the value as JSON text of random layout, with comments before and after it."""
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 0, 1, "\t"])))
    return draw(st.sampled_from(["", "\n", "// x\n", "/* y */"])) + text + draw(st.sampled_from(["", "\r\n", "// end"]))


@given(MIXLISTS, st.data())
def test_formatting_a_mixlist_again_changes_nothing(value: Any, data: Any) -> None:
    """Rule S2.8: The canonical form is strict JSON."""
    text = untidy_text(value, data.draw)
    formatted = format_text(text, "f", "modify-mixlist")
    assert format_text(formatted, "f", "modify-mixlist") == formatted
    assert find_lost_comments(formatted, "f") == [] == list(parse(formatted, "f").findings)
    before, after = (parse_edits(parse(t, "f"))[0] for t in (text, formatted))
    assert {(e.op, e.action) for e in before} == {(e.op, e.action) for e in after}


@given(LIBRARIES, st.data())
def test_formatting_a_library_again_changes_nothing(value: Any, data: Any) -> None:
    formatted = format_text(untidy_text(value, data.draw), "f", "ops-info")
    assert format_text(formatted, "f", "ops-info") == formatted
    assert json.loads(formatted) == value
    assert list(json.loads(formatted)) == list(value)
    if "\\" not in formatted:  # escapes stay as they are written
        assert formatted == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@given(st.text(alphabet=st.sampled_from("ab/:# \n\t\r"), max_size=30))
def test_formatting_node_rules_again_changes_nothing(text: str) -> None:
    formatted = format_text(text, "keep.txt", "keep-dtype")
    assert format_text(formatted, "keep.txt", "keep-dtype") == formatted


@linux_only
def test_many_short_strings_cost_little_memory(tmp_path: Path) -> None:
    """Formatting takes at most ten times the file and 80 MB more memory than an empty run; measured: half of it."""
    path = tmp_path / "library.json"
    path.write_text('{"a":{"x":[' + ",".join(f'"s{number}"' for number in range(490_000)) + "]}}")
    size = path.stat().st_size
    code = (
        "import sys; from mixlist.cli import main\n"
        "main(sys.argv[1:])\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    peak_bytes = []
    for arguments in (["--version"], ["fmt", path]):
        command = [sys.executable, "-c", code, *arguments]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        peak_bytes.append(1024 * int(completed.stdout.split()[-1]))
    assert peak_bytes[1] - peak_bytes[0] < 10 * size + 80_000_000


def test_a_node_rule_file_with_a_nul_byte_is_not_formatted() -> None:
    """With it, the canonical form of some files would look like UTF-16."""
    with pytest.raises(ListError, match="NUL byte"):
        format_text("\0", "keep.cfg")


def test_comments_alone_become_an_empty_text_that_stays_empty() -> None:
    """``fmt -`` may get its own result."""
    assert format_text("# high\n", "<stdin>") == ""
    assert format_text("", "<stdin>") == "" and find_lost_comments("", "<stdin>") == []
