"""Read which operators of a chip were wrong, from the CSV of a comparison by ``msaccucmp`` or msProbe.

Both tools compare the tensors of a compiled model with those of the ONNX model, and write one row for each input and
output of an operator. The columns and the limits are those of the documents of CANN 9.0 and of msProbe
(``infer_compare_result.md``).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mixlist.errors import UsageError
from mixlist.files.list_text import read_text, shown_path
from mixlist.lists.policy import ListPath

_LEAST_COSINE = 0.99
_LARGEST_DISTANCE = 0.05
_REQUIRED = ("npudump", "groundtruth", "tensorindex", "cosinesimilarity")
_LOW_TYPES = ("float16", "bfloat16")


class ChipError(NamedTuple):
    """An operator whose output the chip made wrong although its compared inputs were right.

    ``op``: its Ascend op type, "" if the file has none. ``nodes``: the ONNX nodes that became this operator. ``dtype``:
    the type of the output on the chip. ``cosine`` and ``distance`` (the relative Euclidean one): None where the file
    has no finite number. ``place``: the file and the line of the output.
    """

    op: str
    nodes: tuple[str, ...]
    dtype: str
    cosine: float | None
    distance: float | None
    place: str

    @property
    def is_low(self) -> bool:
        """Return whether the operator computed in a low type, so that a list can keep it in float32."""
        return self.dtype in _LOW_TYPES


class _Tensor(NamedTuple):
    """One row: a compared input or output of the operator ``operator``."""

    operator: str
    is_output: bool
    is_wrong: bool
    error: ChipError


def read_chip_errors(path: ListPath) -> list[ChipError]:
    """Return the operators where an error starts, the worst first.

    An operator without compared inputs counts only if no operator before it is wrong. Raises FileError if the file
    cannot be read, and UsageError if it is no such comparison.
    """
    tensors = list(_read_tensors(read_text(path), shown_path(path)))
    operators_with_inputs = {tensor.operator for tensor in tensors if not tensor.is_output}
    wrong_inputs = {tensor.operator for tensor in tensors if tensor.is_wrong and not tensor.is_output}
    errors: dict[str, ChipError] = {}
    for tensor in tensors:
        starts = tensor.operator not in wrong_inputs if tensor.operator in operators_with_inputs else not errors
        if tensor.is_output and tensor.is_wrong and starts:
            errors.setdefault(tensor.operator, tensor.error)
    return sorted(errors.values(), key=lambda error: -2.0 if error.cosine is None else error.cosine)


def _read_tensors(text: str, path: str) -> Iterable[_Tensor]:
    reader = csv.reader(io.StringIO(text))
    header = [name.strip().lower() for name in next(reader, [])]
    if missing := [name for name in _REQUIRED if name not in header]:
        raise UsageError(
            f"{path}: this is no comparison of msaccucmp or msProbe: the column {missing[0]} is missing",
            hint="give the file result_*.csv that one of them wrote",
        )
    for cells in reader:
        row: dict[str, str] = {}
        for name, cell in zip(header, cells, strict=False):
            row.setdefault(name, cell.strip())  # the first of the two columns DataType is that of the chip
        if row.get("npudump", "*") not in ("", "*") and ":" in row.get("tensorindex", ""):
            yield _make_tensor(row, f"{path}:{reader.line_num}")


def _make_tensor(row: Mapping[str, str], place: str) -> _Tensor:
    cosine, distance = _number(row["cosinesimilarity"]), _number(row.get("relativeeuclideandistance", ""))
    says_wrong = "yes" in (row.get("isprecisionerror", "").lower(), row.get("overflow", "").lower())
    is_far = (cosine is not None and cosine < _LEAST_COSINE) or (distance is not None and distance > _LARGEST_DISTANCE)
    nodes = tuple(name.strip() for name in row["groundtruth"].split(",") if name.strip() not in ("", "*"))
    error = ChipError(row.get("optype", ""), nodes, row.get("datatype", ""), _finite(cosine), _finite(distance), place)
    return _Tensor(row["npudump"], ":output:" in row["tensorindex"], says_wrong or is_far, error)


def _number(text: str) -> float | None:
    """Return the number in a cell; None for an empty cell, a NaN, or the text of a comparison that failed."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
