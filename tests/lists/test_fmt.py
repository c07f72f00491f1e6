"""The strict canonical form."""

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

MIXLIST = """// why
{"white-list": {"to-remove": ["B", "A", "B",], "to-add": []}, /* more */
 "black-list":{"to-add":["\\u0041dd"]},}"""


def test_a_mixlist_gets_its_keys_in_order_and_keeps_the_names_order() -> None:
    """Rule S2.8: The canonical form is strict JSON."""
    assert format_text(MIXLIST, "f", "modify-mixlist") == (
        '{\n  "black-list": {\n    "to-add": [\n      "Add"\n    ]\n  },\n'
        '  "white-list": {\n    "to-add": [],\n    "to-remove": [\n      "B",\n      "A"\n    ]\n  }\n}\n'
    )


def test_lost_comments_are_told() -> None:
    (warning,) = find_lost_comments(MIXLIST, "f")
    assert (warning.code, warning.severity, warning.place) == ("ML011", "warning", "f:1:1")
    assert warning.message == "the strict form of the file loses 2 comments"
    assert not find_lost_comments('{"a": "// none"}', "f")
    (warning,) = find_lost_comments("node\n  # why\n", "keep.txt")
    assert (warning.place, warning.message) == ("keep.txt:2:3", "the strict form of the file loses a comment")


def test_a_library_keeps_all_but_its_white_space() -> None:
    text = '{"Z":{"precision_reduce" :{"flag": "true"},"attr":[1.50e+3,-0,\r\n"\\u0041"]}, "A":{},"n":{"x":[]}}'
    assert format_text(text, "f", "ops-info") == (
        '{\n  "Z": {\n    "precision_reduce": {\n      "flag": "true"\n    },\n    "attr": [\n      1.50e+3,\n'
        '      -0,\n      "\\u0041"\n    ]\n  },\n  "A": {},\n  "n": {\n    "x": []\n  }\n}\n'
    )


def test_node_rules_are_stripped_and_stand_once() -> None:
    assert format_text("  a/b \r\n\n# no\nOpType::Conv\na/b\n", "keep.txt") == "a/b\nOpType::Conv\n"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"black-list": 3}', '{"$schema": ""}', '{"a": {}, "a": {}}'])
def test_what_is_not_valid_is_refused(text: str) -> None:
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


def untidy(value: Any, draw: Any) -> str:
    """The value as JSON with blanks, comments and trailing commas between its tokens."""
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 0, 1, "\t"])))
    return draw(st.sampled_from(["", "\n", "// x\n", "/* y */"])) + text + draw(st.sampled_from(["", "\r\n", "// end"]))


@given(MIXLISTS, st.data())
def test_formatting_a_mixlist_twice_is_formatting_it_once(value: Any, data: Any) -> None:
    """Rule S2.8: The canonical form is strict JSON."""
    text = untidy(value, data.draw)
    once = format_text(text, "f", "modify-mixlist")
    assert format_text(once, "f", "modify-mixlist") == once
    assert find_lost_comments(once, "f") == [] == list(parse(once, "f").findings)
    before, after = (parse_edits(parse(t, "f"))[0] for t in (text, once))
    assert {(e.op, e.action) for e in before} == {(e.op, e.action) for e in after}


@given(LIBRARIES, st.data())
def test_formatting_a_library_twice_is_formatting_it_once(value: Any, data: Any) -> None:
    once = format_text(untidy(value, data.draw), "f", "ops-info")
    assert format_text(once, "f", "ops-info") == once
    assert json.loads(once) == value
    assert list(json.loads(once)) == list(value)
    if "\\" not in once:  # escapes stay as they are written
        assert once == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@given(st.text(alphabet=st.sampled_from("ab/:# \n\t\r"), max_size=30))
def test_formatting_node_rules_twice_is_formatting_them_once(text: str) -> None:
    once = format_text(text, "keep.txt", "keep-dtype")
    assert format_text(once, "keep.txt", "keep-dtype") == once


@linux_only
def test_the_memory_for_many_short_strings(tmp_path: Path) -> None:
    """At most ten times the file and 80 MB, beyond what an empty run takes; half of that, measured."""
    path = tmp_path / "library.json"
    path.write_text('{"a":{"x":[' + ",".join(f'"s{number}"' for number in range(490_000)) + "]}}")
    size = path.stat().st_size
    code = (
        "import sys; from mixlist.cli import main\n"
        "main(sys.argv[1:])\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    peaks = []
    for arguments in (["--version"], ["fmt", path]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        peaks.append(1024 * int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 10 * size + 80_000_000
