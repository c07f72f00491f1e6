#!/usr/bin/env python3
"""Write mixlist/ops/data/contrib_schemas.json: the com.microsoft operator schemas of the installed ONNX Runtime.

Usage: python tools/make_contrib_schemas.py [OUT]. Needs onnxruntime. Only what decides types is kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mixlist.ops.schema import TYPE_ATTRIBUTES

DEFAULT = Path(__file__).parent.parent / "mixlist" / "ops" / "data" / "contrib_schemas.json"


def slots(formals: Any) -> list[list[object]]:
    """[type parameter, variadic, homogeneous] of each formal input or output."""
    return [[f.typeStr, f.option.name == "Variadic", f.isHomogeneous] for f in formals]


def make() -> dict[str, Any]:
    """The file's content."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    newest: dict[str, Any] = {}
    for schema in state.get_all_operator_schema():
        if schema.domain == "com.microsoft":
            old = newest.get(schema.name)
            if old is None or schema.since_version > old.since_version:
                newest[schema.name] = schema
    rows = [
        {
            "op_type": name,
            "since": schema.since_version,
            "inputs": slots(schema.inputs),
            "outputs": slots(schema.outputs),
            "allowed": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
            "fixing": [a for a in sorted(TYPE_ATTRIBUTES) if a in schema.attributes],
        }
        for name, schema in sorted(newest.items())
    ]
    return {"source": f"onnxruntime {onnxruntime.__version__}, get_all_operator_schema()", "schemas": rows}


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    data = make()
    lines = ",\n".join(json.dumps(row) for row in data["schemas"])
    out.write_text(f'{{"source": {json.dumps(data["source"])},\n"schemas": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
