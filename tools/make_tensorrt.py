#!/usr/bin/env python3
"""Write mixlist/targets/data/tensorrt.json: the operators and types of the ONNX parser of TensorRT.

    python tools/make_tensorrt.py OPERATORS_MD [FILE]

OPERATORS_MD is the file docs/operators.md of https://github.com/onnx/onnx-tensorrt at a release. Its first lines name
the version of TensorRT, the opsets and the types of tensors. The table follows: an operator with "Y" is supported in
the listed types. The text of the column "Restrictions" is about attributes and shapes and is not read.

Where the list is older than 11.5, the table gets the later changes that the notes of NVIDIA's releases name
(https://github.com/NVIDIA/TensorRT/releases): opset 25 in 11.5, and the operators Swish in 11.0 and DFT in 11.2. The
notes give no types, so these two get float32 alone, which every operator of the list with a float type takes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from make_kernels import text

from mixlist.targets.providers import ANY_PARAMETER, DATA
from mixlist.targets.target import FORMAT

# From the names of the list to those of onnx's schemas. The list writes INF64 for INT64 in one row of older releases.
TYPES = {
    "BF16": "bfloat16",
    "BFLOAT16": "bfloat16",
    "BOOL": "bool",
    "DOUBLE": "double",
    "FLOAT16": "float16",
    "FLOAT32": "float",
    "FP16": "float16",
    "FP32": "float",
    "FP4": "float4e2m1",
    "FP8": "float8e4m3fn",
    "INF64": "int64",
    "INT32": "int32",
    "INT4": "int4",
    "INT64": "int64",
    "INT8": "int8",
    "UINT8": "uint8",
}
LATER_VERSION, LATER_OPSET, LATER_OPERATORS = "11.5", 25, ("DFT", "Swish")
NOTE = (
    "no list of TensorRT 11 was at hand: its release notes name Swish (11.0) and DFT (11.2) without types, so both stay"
    " in float32 here; and no restriction on attributes and shapes is in the table"
)
ROW = re.compile(r"^\|\s*(?P<op>\w+)\s*\|\s*(?P<supported>[YN])\b[^|]*\|(?P<types>[^|\n]*)", re.MULTILINE)
HEAD = re.compile(r"TensorRT ([\d.]+) supports operators in the inclusive range of opset (\d+) to opset (\d+)")
TENSOR_TYPES = re.compile(r"supports the following ONNX data types: (.*)")


def parse_types(text: str) -> str:
    """Return the types of a cell by onnx's names, joined by spaces. An unknown name is an error."""
    words = re.split(r"[,\s]+", text.replace(" and ", " ").strip(" ,\n"))
    return " ".join(TYPES[word] for word in words if word)


def make(markdown: str) -> dict[str, Any]:
    """Return the table of the list."""
    head, tensor_types = HEAD.search(markdown), TENSOR_TYPES.search(markdown)
    if head is None or tensor_types is None:
        raise SystemExit("this is no docs/operators.md of onnx-tensorrt: its first lines name no version or no types")
    version, first, last = head.groups()
    operators = {
        row["op"]: [[1, int(last), {ANY_PARAMETER: parse_types(row["types"])}]]
        for row in ROW.finditer(markdown)
        if row["supported"] == "Y"
    }
    table = {
        "format": FORMAT,
        "name": "tensorrt",
        "source": f"TensorRT {version}, docs/operators.md of onnx-tensorrt",
        "note": "restrictions on attributes and shapes are not in the table",
        "otherwise": {"float16": "refusal", "bfloat16": "refusal"},
        "strongly_typed": True,
        "opsets": [int(first), int(last)],
        "tensor_types": parse_types(tensor_types[1]),
        "kernels": {"": operators},
    }
    return add_later_changes(table)


def add_later_changes(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the changes up to ``LATER_VERSION``, if it is that of an older release."""
    operators = table["kernels"][""]
    if set(LATER_OPERATORS) <= operators.keys() and table["opsets"][1] >= LATER_OPSET:
        return table
    with_opset = {op: [[start, LATER_OPSET, types] for start, _, types in rows] for op, rows in operators.items()}
    later = {op: [[1, LATER_OPSET, {ANY_PARAMETER: "float"}]] for op in LATER_OPERATORS if op not in operators}
    return {
        **table,
        "source": f"{table['source']}, and the release notes of TensorRT up to {LATER_VERSION}",
        "note": NOTE,
        "opsets": [table["opsets"][0], LATER_OPSET],
        "kernels": {"": dict(sorted({**with_opset, **later}.items()))},
    }


def main() -> None:
    """Read the list, and write the table."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else DATA / "tensorrt.json"
    target.write_text(text(make(Path(sys.argv[1]).read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
