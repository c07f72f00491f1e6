"""Damaged files: every reader and writer ends with findings or a MixlistError, whatever the bytes are."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixlist.errors import MixlistError
from mixlist.files.list_text import decode
from mixlist.lists.fmt import find_lost_comments, format_text
from mixlist.lists.library import Library
from mixlist.lists.modify_mixlist import apply_edits, read_edits
from mixlist.lists.ops_info import load_ops_info
from mixlist.lists.validate_file import validate_file

HERE = Path(__file__).parent
SEEDS = [
    p.read_bytes() for f in ("valid", "with_findings") for p in sorted((HERE / f).iterdir()) if p.suffix != ".expected"
]
PIECES = st.sampled_from([b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"//", b"/*", b"*/", b"\n", b"\r", b"\0"])
NOISE = PIECES | st.sampled_from(
    [b"null", b"true", b"1e999", b"-", b"\\ud800", b'"to-add"', b'"flag"', b"\xff", b"\xef\xbb\xbf"]
)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """Return the bytes of an example file, with a few parts removed, doubled or replaced by noise."""
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 30)))
        data = data[:start] + draw(NOISE | st.just(data[start:end] * 2) | st.just(b"")) + data[end:]
    return data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None)
@given(damaged_files())
def test_a_damaged_file_has_findings_or_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lib" / "f.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    library = Library("lib", {"Add": "white", "Softmax": "black"})
    for kind in ("auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"):
        report = validate_file(path, kind, library=library)  # type: ignore[arg-type]
        for finding in report.findings:
            assert finding.code.startswith("ML") and str(finding).encode("utf-8")
            assert finding.line is not None and 1 <= finding.line <= data.count(b"\n") + data.count(b"\r") + 1
    with suppress(MixlistError):
        apply_edits(library, read_edits(path)[0])
    with suppress(MixlistError):
        text = decode(data, "f")
        assert format_text(format_text(text, "f"), "f") == format_text(text, "f")
        find_lost_comments(text, "f")
    with suppress(MixlistError):
        load_ops_info(path)


@pytest.mark.parametrize("path", ["", "a\0b", "\udcff", "x" * 5000])
def test_a_path_that_no_file_can_have_is_an_error(path: str) -> None:
    for function in (validate_file, load_ops_info, read_edits):
        with pytest.raises(MixlistError):
            function(path)
