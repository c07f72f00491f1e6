"""Write the op type names that mixlist knows, and the map from ONNX to Ascend names.

    python tools/make_names.py [ROOT]

Writes ROOT/mixlist/lists/data/{onnx_ops,ascend_ops}.json and ROOT/mixlist/model/data/onnx_to_ascend.json; ROOT is the
checkout by default. The names are those of the installed versions of onnx and onnxruntime; the Ascend facts are in
tools/data/.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent

# Ascend op types that accompany the op type which computes: they move, pad, convert, scale or shift its inputs or
# outputs. They decide only for an ONNX op that has no other Ascend op types.
AUXILIARY = {
    *("Const", "Identity", "Cast", "Reshape", "Transpose", "TransposeD", "Squeeze", "Unsqueeze", "Concat", "PadV2"),
    *("AscendQuant", "AscendDequant", "Abs", "Add", "Adds", "Sub", "Mul", "Muls", "Div", "Mod", "Relu"),
}
# ONNX Runtime's own operators; its internal layouts (com.microsoft.nchwc, ...) never occur in a user's file.
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")


def onnx_ops() -> dict[str, Any]:
    """Return every op type of the domains of ONNX and ONNX Runtime, including deprecated ones, by domain."""
    import onnx
    import onnx.defs
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    schemas = [*onnx.defs.get_all_schemas_with_history(), *get_all_operator_schema()]
    return {
        "source": f"operator schemas of onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}",
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "domains": {domain: sorted({s.name for s in schemas if s.domain == domain}) for domain in DOMAINS},
    }


def ascend_ops() -> dict[str, Any]:
    """Return every op type of the six Ascend libraries, of all lists."""
    facts = json.loads((HERE / "data" / "ascend_flags.json").read_text("utf-8"))
    names = {op for flags in facts["soc"].values() for ops in flags.values() for op in ops}
    return {"source": facts["source"], "ops": sorted(names)}


def onnx_to_ascend() -> dict[str, Any]:
    """Return the Ascend op types that compute each ONNX op, by domain ("" is the standard domain)."""
    facts = json.loads((HERE / "data" / "onnx_to_ascend.json").read_text("utf-8"))
    domains: dict[str, dict[str, list[str]]] = {}
    for op, entry in facts["ops"].items():
        ascend = dict.fromkeys(entry["main"])
        computing = [name for name in ascend if name == op or name not in AUXILIARY] or list(ascend)
        for domain in entry["domains"]:
            domains.setdefault("" if domain == "ai.onnx" else domain, {})[op] = computing
    return {"source": facts["source"], "domains": {d: dict(sorted(ops.items())) for d, ops in sorted(domains.items())}}


def write(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` as JSON with one name per line, so that a change is easy to read in a diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main(root: Path = ROOT) -> None:
    """Write the three files below ``root``."""
    package = root / "mixlist"
    write(package / "lists" / "data" / "onnx_ops.json", onnx_ops())
    write(package / "lists" / "data" / "ascend_ops.json", ascend_ops())
    write(package / "model" / "data" / "onnx_to_ascend.json", onnx_to_ascend())


if __name__ == "__main__":
    main(*(Path(arg) for arg in sys.argv[1:2]))
