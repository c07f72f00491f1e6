#!/usr/bin/env python3
"""Count the Casts that mixlist and two converters insert into the real models of the corpus, with the same plan.

    python benchmarks/casts.py [--corpus FOLDER] [--ops-info NAME ...] [--limit SECONDS]

The converters are ``convert_float_to_float16`` of onnxconverter-common and of ``onnxruntime.transformers.float16``.
Their ``node_block_list`` names the nodes that mixlist's plan keeps in float32, and no others; ``node_block_list`` takes
names, so all nodes get a unique name first. Every conversion and every judgment is a process of its own, stopped after
``--limit`` seconds (300). The second converter leaves its nodes unsorted, so they are sorted as ONNX Runtime's own
tools sort them.

A result is valid if onnx's checker passes (the full check, if the original passes it) and ONNX Runtime's CPU provider
loads it (without graph optimizations if it crashes with them). A result has the same plan if onnx's own type inference
gives each node of the original the type that the node has in mixlist's result. The converters also change Casts of
the original, so the figure is the number of Casts minus that of the original. The faults of each result are listed
below the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clock import ROOT, machine, worker

PEERS = ("onnxconverter-common", "onnxruntime")


def main(corpus: Path, libraries: list[str], limit: float) -> None:
    """Print one table for each operator information library."""
    print(machine())
    for library in libraries:
        print(f"\n### {library}\n\n| model | nodes low | mixlist | {' | '.join(PEERS)} |\n|---|---|---|---|---|")
        notes: list[str] = []
        for path in sorted(corpus.glob("*.onnx")):
            with tempfile.TemporaryDirectory() as folder:
                print(_row(path, library, Path(folder), limit, notes), flush=True)
        print("", *notes, sep="\n")


def _row(path: Path, library: str, folder: Path, limit: float, notes: list[str]) -> str:
    """Return a model's row of the table; append its faults to ``notes``."""

    def cell(converter: str, casts: float | None, *faults: str) -> str:
        texts = [fault for fault in faults if fault]
        notes.extend(f"- {path.stem}, {converter}: {text}" for text in texts)
        if casts is None:
            return "none"
        return f"{casts:g}" if not texts else f"({casts:g})"

    def judged(converter: str) -> str:
        judgment: Any = worker(
            [__file__, "--work", "judge", str(named), str(folder / converter), str(folder / "mixlist")], limit
        )
        return cell(converter, judgment["casts"], judgment["differ"], judgment["invalid"])

    named = folder / "named.onnx"
    plan = worker([__file__, "--work", "mixlist", str(path), str(named), str(folder / "mixlist"), library], limit)
    cells = [judged("mixlist")]
    for peer in PEERS:
        try:
            worker([__file__, "--work", "peer", peer, str(named), str(folder / peer)], limit)
            cells.append(judged(peer))
        except subprocess.TimeoutExpired:
            cells.append(cell(peer, None, f"stopped after {limit:g} s"))
        except RuntimeError as error:
            cells.append(cell(peer, None, _last_line(str(error))))
    return f"| {path.stem} | {plan['low']:g} of {plan['eligible']:g} | {' | '.join(cells)} |"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines or ["no message"])[-1][:160]


# --- in the fresh process ---


def work(task: str, *arguments: str) -> None:
    """Run one task and print its result as JSON."""
    print(json.dumps({"mixlist": _mixlist, "peer": _peer, "judge": _judge}[task](*arguments)))


def _mixlist(path: str, named: str, out: str, library: str) -> dict[str, Any]:
    """Name all nodes, apply the library, and write the precision of each node into the file ``plan``."""
    import onnx

    import mixlist

    model = onnx.load(path)
    for number, node in enumerate(_nodes(model.graph)):
        node.name = f"{node.op_type}.{number}"
    onnx.save(model, named)
    plan = mixlist.resolve(named, mixlist.load_policy(ops_info=library))
    result = mixlist.rewrite(named, plan)
    result.save(out)
    precisions = {d.name: d.precision for d in plan.nodes if d.precision != "none" and d.op_type != "Constant"}
    Path(out).with_name("plan").write_text(json.dumps(precisions), encoding="utf-8")
    return {"low": result.low, "eligible": result.eligible}


def _peer(name: str, path: str, out: str) -> dict[str, Any]:
    """Convert the model with another converter that keeps the same nodes in float32."""
    import warnings

    import onnx

    if name == "onnxruntime":
        from onnxruntime.transformers.float16 import convert_float_to_float16
    else:
        from onnxconverter_common.float16 import convert_float_to_float16
    high = [node for node, precision in _plan(out).items() if precision == "float32"]
    model = onnx.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that it cuts off
        converted = convert_float_to_float16(model, keep_io_types=True, op_block_list=[], node_block_list=high)
    if name == "onnxruntime":
        from onnxruntime.transformers.onnx_model import OnnxModel

        OnnxModel(converted).topological_sort()
    onnx.save(converted, out)
    return {}


def _judge(original: str, converted: str, mixlist_result: str) -> dict[str, Any]:
    """Return the number of inserted Casts, which nodes differ from mixlist's result, and why the model is not valid."""
    import onnx

    before, after, expected = onnx.load(original), onnx.load(converted), onnx.load(mixlist_result)
    expected_types, types = _types(expected), _types(after)
    differ = [name for name in _plan(converted) if expected_types[name] != types.get(name)]
    casts = [sum(n.op_type == "Cast" for n in _nodes(m.graph)) for m in (before, after)]
    difference = f"{len(differ)} nodes have another type, {differ[0]} is the first" if differ else ""
    return {"casts": casts[1] - casts[0], "differ": difference, "invalid": _invalid(before, after, converted)}


def count_casts(path: Path) -> int:
    """Return the number of Casts in a model file, in all its graphs."""
    import onnx

    return sum(node.op_type == "Cast" for node in _nodes(onnx.load(path, load_external_data=False).graph))


def _plan(model_path: str) -> dict[str, str]:
    """Return the precision of each node that has one, from the file ``plan`` in the model's folder."""
    precisions: dict[str, str] = json.loads(Path(model_path).with_name("plan").read_text(encoding="utf-8"))
    return precisions


def _invalid(before: Any, after: Any, path: str) -> str:
    """Return why the model ``after``, the file at ``path``, is not valid; "" if it is valid."""
    return find_checker_fault(before, after) or find_load_fault(path)


def find_checker_fault(before: Any, after: Any) -> str:
    """Return why onnx's checker refuses the model ``after``; "" if not. The check is full if ``before`` passes it."""
    from onnx import checker

    try:
        checker.check_model(before, full_check=True)
        full = True
    except Exception:  # the errors of the checker and of shape inference have no common base class
        full = False
    try:
        checker.check_model(after, full_check=full)
    except Exception as error:
        return f"the checker refuses it: {_first_line(str(error))}"
    return ""


def find_load_fault(path: str) -> str:
    """Return why ONNX Runtime's CPU provider does not load a model file; "" if it does."""
    load = "import onnxruntime as o, sys; p = o.SessionOptions(); p.graph_optimization_level = o.GraphOptimizationLevel"
    load += "(int(sys.argv[2])); o.InferenceSession(sys.argv[1], p, providers=['CPUExecutionProvider'])"
    for level in ("99", "0"):  # all optimizations, none
        done = subprocess.run([sys.executable, "-c", load, path, level], capture_output=True, text=True)
        if done.returncode >= 0:  # negative: it died of a signal
            break
    # "...Fail: [ONNXRuntimeError] : 1 : FAIL : Load model from PATH failed:Type Error: ..."
    reason = _last_line(done.stderr.replace(f"Load model from {path} failed:", "\n"))
    return f"ONNX Runtime refuses it: {reason}" if done.returncode else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:160]


def _types(model: Any) -> dict[str, int]:
    """Return the element type of each node's first float output, else of its first float input, else 0, by name."""
    from onnx import shape_inference

    inferred = shape_inference.infer_shapes(model)
    types: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        types.update((t.name, t.data_type) for t in graph.initializer)
        infos = (*graph.value_info, *graph.input, *graph.output)
        types.update((i.name, i.type.tensor_type.elem_type) for i in infos)
    for node in _nodes(inferred.graph):  # inference stops at operators of com.microsoft: take what Casts say
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                types[node.output[0]] = attribute.i
    return {
        node.name: next((types[v] for v in (*node.output, *node.input) if types.get(v) in (1, 10, 16)), 0)
        for node in _nodes(inferred.graph)
    }


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and all bodies within it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _nodes(graph: Any) -> Iterator[Any]:
    for inner in _graphs(graph):
        yield from inner.node


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--corpus", type=Path, default=ROOT / ".corpus", help="where tests/corpus/fetch.py put it")
        parser.add_argument("--ops-info", nargs="+", default=["onnx", "ascend910b"])
        parser.add_argument("--limit", type=float, default=300)
        options = parser.parse_args()
        main(options.corpus, options.ops_info, options.limit)
