"""``lists --from``: where the errors of a chip start, in the CSV of msaccucmp and msProbe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mixlist.errors import UsageError
from mixlist.lists.chip_errors import read_chip_errors

# The columns of the document of msProbe. The first DataType is that of the chip.
HEADER = (
    "OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,Overflow,CosineSimilarity,"
    "RelativeEuclideanDistance,CompareFailReason,IsNpuOps,IsOutputNode,IsPrecisionError"
)


def row(
    name: str,
    tensor: str,
    cosine: object = 1,
    distance: object = 0,
    *,
    op: str = "Sub",
    dtype: str = "float16",
    nodes: str | None = None,
    flags: Sequence[str] = ("NO", "NO"),
) -> str:
    """Return the row of one tensor of the operator ``name``. ``flags``: overflow, and the error that the tool found."""
    overflow, is_error = flags
    start = f'{op},{name},{dtype},NaN,"{nodes or name}",float32,{name}:{tensor},"[1,2]",{overflow}'
    return f"{start},{cosine},{distance},,NO,NO,{is_error}"


def read(folder: Path, *rows: str) -> list[tuple[str, ...]]:
    path = folder / "result.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return [error.nodes for error in read_chip_errors(path)]


def test_the_row_of_the_document_is_right(tmp_path: Path) -> None:
    assert read(tmp_path, row("Sub_26Mul_28", "output:0", 1, 0.000364, nodes="Sub_26,Mul_28")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        row("a", "output:0", 0.98),
        row("a", "output:0", 1, 0.06),
        row("a", "output:0", "inf", "inf"),
        row("a", "output:0", "NaN", "NaN", flags=("YES", "NO")),
        row("a", "output:0", flags=("NO", "YES")),
    ],
    ids=["cosine", "distance", "infinite", "overflow", "by the tool"],
)
def test_an_output_is_wrong_by_the_limits_of_the_document(tmp_path: Path, wrong: str) -> None:
    assert read(tmp_path, row("a", "input:0"), wrong) == [("a",)]
    assert read(tmp_path, row("a", "input:0"), row("a", "output:0", 0.9901, 0.0499)) == []
    assert read(tmp_path, row("a", "input:0"), row("a", "output:0", "NaN", "NaN")) == []


def test_an_error_starts_where_the_inputs_are_right(tmp_path: Path) -> None:
    """The worst comes first, an operator behind a wrong one does not count, and an operator of the chip has no node."""
    rows = [
        row("a", "input:0"),
        row("a", "output:0", 0.9),
        row("b", "input:0", 0.9),
        row("b", "output:0", 0.1),
        row("c", "input:0"),
        row("c", "output:0"),
        row("c", "output:1", 0.5, nodes="c_1, c_2"),
        row("d", "input:0"),
        row("d", "output:0", 0.7, nodes="*"),
    ]
    assert read(tmp_path, *rows) == [("c_1", "c_2"), (), ("a",)]


def test_without_inputs_the_first_wrong_operator_counts(tmp_path: Path) -> None:
    assert read(tmp_path, row("a", "output:0"), row("b", "output:0", 0.9), row("c", "output:0", 0.1)) == [("b",)]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", HEADER.replace("TensorIndex", "Tensor") + "\n"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(UsageError, match=r"other\.csv: this is no comparison of msaccucmp or msProbe: the column "):
        read_chip_errors(tmp_path / "other.csv")
