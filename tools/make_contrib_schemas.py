#!/usr/bin/env python3
"""Write mixlist/model/data/contrib_schemas.json: the operator schemas that only ONNX Runtime has.

These are the schemas of com.microsoft, and those of the standard domain ("domain": "") that ONNX does not define at
their version: ONNX Runtime's optimizer writes such operators.

    python tools/make_contrib_schemas.py [OUT]

Needs onnxruntime. The file has only those parts of a schema that decide types.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from onnx import defs

from mixlist.model.schema import TYPE_ATTRIBUTES

DEFAULT = Path(__file__).parent.parent / "mixlist" / "model" / "data" / "contrib_schemas.json"


def slots(formals: Any) -> list[list[object]]:
    """Return [type parameter, variadic, homogeneous] for each formal input or output."""
    return [[f.typeStr, f.option.name == "Variadic", f.isHomogeneous] for f in formals]


def is_only_of_onnx_runtime(schema: Any) -> bool:
    """Return True for a schema of com.microsoft, or one of the standard domain that onnx does not define."""
    if schema.domain == "":
        return not schema.deprecated and not defs.has(schema.name, schema.since_version, "")
    return bool(schema.domain == "com.microsoft")


def make() -> dict[str, Any]:
    """Return the content of the file."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    newest: dict[tuple[str, str], Any] = {}
    for schema in filter(is_only_of_onnx_runtime, state.get_all_operator_schema()):
        previous = newest.get((schema.domain, schema.name))
        if previous is None or schema.since_version > previous.since_version:
            newest[schema.domain, schema.name] = schema
    rows = [
        {
            "op_type": name,
            "domain": domain,
            "since": schema.since_version,
            "inputs": slots(schema.inputs),
            "outputs": slots(schema.outputs),
            "allowed": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
            "fixing": [a for a in sorted(TYPE_ATTRIBUTES) if a in schema.attributes],
        }
        for (domain, name), schema in sorted(newest.items(), key=lambda item: item[0][::-1])
    ]
    return {"source": f"onnxruntime {onnxruntime.__version__}, get_all_operator_schema()", "schemas": rows}


def main() -> None:
    """Write the file, one schema a line."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    data = make()
    lines = ",\n".join(json.dumps(row) for row in data["schemas"])
    out.write_text(f'{{"source": {json.dumps(data["source"])},\n"schemas": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
