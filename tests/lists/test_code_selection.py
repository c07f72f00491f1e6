"""--select and --ignore: the longer beginning of a code decides, and a file that cannot be read is never hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.lists.finding_selection import UNREADABLE_CODES, code_texts, read_selection


@pytest.mark.parametrize(
    ("select", "ignore", "included", "excluded"),
    [
        ([], [], ["ML105", "ML404"], []),
        (["ML1"], [], ["ML105"], ["ML404"]),
        ([], ["ML1"], ["ML404"], ["ML105"]),
        (["ML105"], ["ML1"], ["ML105"], ["ML106", "ML404"]),
        (["ML1"], ["ML105"], ["ML106"], ["ML105"]),
        (["ML105"], ["ML105"], [], ["ML105"]),
        (["ml1, ML404"], "ML106,ML107", ["ML105", "ML404"], ["ML106", "ML107", "ML405"]),
    ],
)
def test_the_longer_beginning_decides(
    select: list[str], ignore: list[str] | str, included: list[str], excluded: list[str]
) -> None:
    selection = read_selection(select, ignore)
    assert [code for code in (*included, *excluded) if selection.includes(code)] == included


def test_a_file_that_cannot_be_read_is_never_hidden(tmp_path: Path) -> None:
    assert code_texts().keys() >= UNREADABLE_CODES
    (tmp_path / "m.json").write_text('{"black-list": ')
    (finding,) = mixlist.validate(tmp_path / "m.json", select=["ML4"], ignore="ML0").findings
    assert finding.code == "ML001"


@pytest.mark.parametrize("text", ["ML9", "E501", "ML1055"])
def test_an_unknown_code_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match=f"ignore='{text}': no code"):
        read_selection((), text)
