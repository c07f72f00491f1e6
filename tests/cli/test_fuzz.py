"""No list file makes mixlist itself fail: no command has the exit status 3. Models: tests/test_fuzz_models.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.list_mutation import LISTS, WAYS, edited

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Blank characters of Unicode, of which only some are blanks of a list file, around what begins a text or a comment.
BLANKS = [*'\x85\u2028\u3000\xa0\ufeff \t\r\n\f\v\x1c#{["a:', "//", "/*", "*/", "{}", "OpType::", "InputDtype:"]
KINDS = ["auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]
EDITS = st.lists(
    st.tuples(st.sampled_from(WAYS), st.integers(0, 10**6), st.binary(max_size=6)),
    min_size=1,
    max_size=6,
)


def list_files() -> st.SearchStrategy[bytes]:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    )
    mutated = st.builds(edited, st.sampled_from([text for texts in LISTS.values() for text in texts]), EDITS)
    blanks = st.lists(st.sampled_from(BLANKS), max_size=8).map(lambda parts: "".join(parts).encode())
    return st.binary(max_size=200) | mutated | blanks | values.map(lambda value: json.dumps(value).encode())


@FUZZ
@given(data=list_files(), kind=st.sampled_from(KINDS))
def test_any_file_can_be_validated_and_formatted(run, tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(data)
    assert run("validate", path, "--kind", kind).status in (0, 1), data
    assert run("validate", "-", "--ops-info", "ascend910b", stdin=data).status in (0, 1, 2)
    completed = run("fmt", "--kind", kind, "-", stdin=data)
    assert completed.status in (0, 2)
    if completed.status == 0:
        formatted_again = run("fmt", "--kind", kind, "-", stdin=completed.out)
        assert (formatted_again.status, formatted_again.out) == (0, completed.out)


@FUZZ
@given(
    data=list_files(),
    option=st.sampled_from(["--mixlist", "--ops-info", "--keep-dtype", "--customize-dtypes", "--config"]),
)
def test_any_file_can_be_a_policy(run, tmp_path: Path, model_path: Path, data: bytes, option: str) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(data)
    assert run("resolve", model_path, option, path).status in (0, 2), data


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"black-list": {"to-add": ["' + b"A" * 2_000_000 + b'"]}}',
        b'{"black-list": {"to-add": [' + b",".join(b'"A%d"' % at for at in range(30_000)) + b"]}}",
        b"\xff\xfe{\x00}\x00",
        b'{"black-list\x00": {}}',
        b'{"\\ud800": {}}',
        b"1" * 100_000,
    ],
    ids=["deep array", "deep object", "long string", "many names", "UTF-16", "NUL", "lone surrogate", "long number"],
)
def test_huge_and_broken_lists_are_read_or_refused(run, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(data)
    assert run("validate", path).status in (0, 1)
    assert run("lists", "--mixlist", path).status in (0, 2)
