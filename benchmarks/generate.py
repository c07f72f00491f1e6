"""Generate files to measure on: graphs, large weights and operator information libraries of any size.

The same arguments give the same file.

python benchmarks/generate.py graph NODES OUT.onnx
python benchmarks/generate.py weights BYTES OUT.onnx
python benchmarks/generate.py ops-info BYTES OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

WIDTH = 16
BLOCK = 10  # nodes in a block


def write_graph(path: Path, nodes: int) -> Path:
    """Write a float32 model of ``nodes`` nodes and return its path.

    The number is rounded up to whole blocks. Opset 17, IR version 8, about 2 kB for each block.
    """
    import numpy as np
    import onnx
    from onnx import helper

    blocks = -(-nodes // BLOCK)
    rng = np.random.default_rng(0)
    graph_nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    for k in range(blocks):
        _block(k, rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4, graph_nodes, weights)
    value = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        graph_nodes,
        "blocks",
        [helper.make_tensor_value_info("x0", value, ["batch", WIDTH])],
        [helper.make_tensor_value_info(f"x{blocks}", value, ["batch", WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def _block(k: int, weight: object, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> None:
    """Append one block: a dense layer, then a normalization from elementary operators, as older exporters write it."""
    import numpy as np
    from onnx import helper, numpy_helper

    def constant(name: str, value: object) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), f"block{k}.{name}"))
        return f"block{k}.{name}"

    def node(op: str, inputs: list[str], out: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [out], name=f"/block{k}/{op}_{len(nodes) % BLOCK}", **attributes))
        return out

    def value(name: str) -> str:
        return f"/block{k}/{name}"

    dense = node("MatMul", [f"x{k}", constant("weight", weight)], value("product"))
    dense = node("Add", [dense, constant("bias", np.zeros(WIDTH))], value("dense"))
    mean = node("ReduceMean", [dense], value("mean"), axes=[-1])
    centered = node("Sub", [dense, mean], value("centered"))
    square = node("Mul", [centered, centered], value("square"))
    variance = node("ReduceMean", [square], value("variance"), axes=[-1])
    shifted = node("Add", [variance, constant("epsilon", 1e-5)], value("shifted"))
    deviation = node("Sqrt", [shifted], value("deviation"))
    normed = node("Div", [centered, deviation], value("normed"))
    node("Mul", [normed, constant("gain", np.ones(WIDTH))], f"x{k + 1}")


def write_weights(path: Path, size: int) -> Path:
    """Write MatMuls of one input with ``size`` bytes of float32 weights in an external ``.data`` file; return the path.

    One tensor has a third of the bytes, the next a quarter; the other tensors have at most 64 MiB each. The function
    needs about 16 MiB of memory.
    """
    import numpy as np
    import onnx
    from onnx import helper

    tile = np.random.default_rng(0).standard_normal(2**22, np.float32)  # 16 MiB, used again and again
    rows, remaining = 4096, size // (4 * 4096)
    columns = [size // 3 // (4 * rows), size // 4 // (4 * rows)]
    remaining -= sum(columns)
    columns += [rows] * (remaining // rows) + ([remaining % rows] if remaining % rows else [])
    nodes, weights, outputs, offset = [], [], [], 0
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        for k, width in enumerate(columns):
            length = 4 * rows * width
            weight = onnx.TensorProto(name=f"w{k}", data_type=1, dims=[rows, width], data_location=1)
            for key, value in (("location", data.name), ("offset", offset), ("length", length)):
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", ["x", f"w{k}"], [f"y{k}"], name=f"MatMul_{k}"))
            outputs.append(helper.make_tensor_value_info(f"y{k}", 1, ["batch", width]))
            for start in range(0, length, tile.nbytes):
                file.write(tile.data.cast("B")[: min(tile.nbytes, length - start)])
            offset += length
    inputs = [helper.make_tensor_value_info("x", 1, ["batch", rows])]
    graph = helper.make_graph(nodes, "weights", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_ops_info(path: Path, size: int) -> Path:
    """Write an ops-info file of at least ``size`` bytes, in the form of an installed library; return its path."""
    library: dict[str, object] = {}
    written = 0
    while written < size:
        name = f"Operator{len(library):05d}"
        library[name] = _op(len(library))
        written += len(json.dumps({name: library[name]}, indent=4)) - 3  # without the braces, with a comma
    path.write_text(json.dumps(library, indent=4), encoding="utf-8")
    return path


def _op(k: int) -> dict[str, object]:
    """Return one operator's entry: slots with dtypes and formats, attributes, kernel file, precision_reduce flag."""
    kinds = ("required", "optional", "optional")[: 1 + k % 3]
    entry: dict[str, object] = {f"input{i}": _slot(f"x{i}", kind) for i, kind in enumerate(kinds)}
    entry["output0"] = _slot("y", "required")
    entry["attr"] = {"list": "axis,keep_dims"}
    entry["attr_axis"] = {"defaultValue": "-1", "paramType": "optional", "type": "int", "value": "all"}
    entry["attr_keep_dims"] = {"defaultValue": "false", "paramType": "optional", "type": "bool", "value": "all"}
    entry["opFile"] = {"value": f"operator_{k}"}
    entry["opInterface"] = {"value": f"operator_{k}"}
    entry["dynamicFormat"] = {"flag": "true"}
    entry["dynamicShapeSupport"] = {"flag": "true"}
    if k % 3 != 2:
        entry["precision_reduce"] = {"flag": "true" if k % 3 == 0 else "false"}
    return entry


def _slot(name: str, kind: str) -> dict[str, str]:
    return {
        "dtype": "float16,float,int32,int8,uint8,bfloat16",
        "format": "ND,ND,ND,ND,ND,ND",
        "name": name,
        "paramType": kind,
        "unknownshape_format": "ND,ND,ND,ND,ND,ND",
    }


def main(kind: str, amount: str, out: str) -> int:
    """Write one file and print its size."""
    writer = {"graph": write_graph, "weights": write_weights, "ops-info": write_ops_info}[kind]
    path = writer(Path(out), int(amount))
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
