#!/usr/bin/env python3
"""How many Casts mixlist inserts into the real models of the corpus, against two converters with the same plan.

    python benchmarks/casts.py [--corpus FOLDER] [--ops-info NAME ...] [--limit SECONDS]

The converters are ``convert_float_to_float16`` of onnxconverter-common and of ``onnxruntime.transformers.float16``.
They are told to keep in float32 (``node_block_list``) the nodes that mixlist's plan keeps there, and nothing else; all
nodes are given a unique name first, since that is how they are told apart. Every conversion and every judgement is a
process of its own, stopped after ``--limit`` seconds (300). The second leaves its nodes unsorted, so it gets the
sorting that ONNX Runtime's own tools do afterwards.

A result is valid where onnx's checker passes (the full one, where the original passes it) and ONNX Runtime's CPU
provider loads it (without graph optimisations where it dies of them). It has the same plan where onnx's own type
inference gives each node of the original the type that it has in mixlist's result. The converters change Casts
that were there, so what counts is the number of Casts beyond the original's. What is wrong with each result is
listed below the table.
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
    def cell(who: str, casts: float | None, *wrong: str) -> str:
        faults = [text for text in wrong if text]
        notes.extend(f"- {path.stem}, {who}: {text}" for text in faults)
        if casts is None:
            return "none"
        return f"{casts:g}" if not faults else f"({casts:g})"

    def judged(who: str) -> str:
        found: Any = worker(
            [__file__, "--work", "judge", str(named), str(folder / who), str(folder / "mixlist")], limit
        )
        return cell(who, found["casts"], found["differ"], found["invalid"])

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


def work(what: str, *arguments: str) -> None:
    """Do one thing and print what it found as JSON."""
    print(json.dumps({"mixlist": _mixlist, "peer": _peer, "judge": _judge}[what](*arguments)))


def _mixlist(path: str, named: str, out: str, library: str) -> dict[str, Any]:
    """Name all nodes, apply the library, and write down which nodes stay high."""
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
    import warnings

    import onnx

    if name == "onnxruntime":
        from onnxruntime.transformers.float16 import convert_float_to_float16
    else:
        from onnxconverter_common.float16 import convert_float_to_float16
    kept = [node for node, precision in _plan(out).items() if precision == "float32"]
    model = onnx.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that it cuts off
        made = convert_float_to_float16(model, keep_io_types=True, op_block_list=[], node_block_list=kept)
    if name == "onnxruntime":
        from onnxruntime.transformers.onnx_model import OnnxModel

        OnnxModel(made).topological_sort()
    onnx.save(made, out)
    return {}


def _judge(original: str, made: str, reference: str) -> dict[str, Any]:
    """Casts beyond the original's, and as text which nodes differ from the reference and why the model is not valid."""
    import onnx

    before, after, wanted = onnx.load(original), onnx.load(made), onnx.load(reference)
    ours, theirs = _precisions(wanted), _precisions(after)
    differ = [name for name in _plan(made) if ours[name] != theirs.get(name)]
    casts = [sum(n.op_type == "Cast" for n in _nodes(m.graph)) for m in (before, after)]
    told = f"{len(differ)} nodes have another type, {differ[0]} is the first" if differ else ""
    return {"casts": casts[1] - casts[0], "differ": told, "invalid": _invalid(before, after, made)}


def _plan(beside: str) -> dict[str, str]:
    """The precision of each node that has one, as mixlist decided it."""
    found: dict[str, str] = json.loads(Path(beside).with_name("plan").read_text(encoding="utf-8"))
    return found


def _invalid(before: Any, after: Any, made: str) -> str:
    from onnx import checker

    try:
        checker.check_model(before, full_check=True)
        full = True
    except Exception:  # the checker's own errors and those of shape inference
        full = False
    try:
        checker.check_model(after, full_check=full)
    except Exception as error:
        return f"the checker refuses it: {_first_line(str(error))}"
    load = "import onnxruntime as o, sys; p = o.SessionOptions(); p.graph_optimization_level = o.GraphOptimizationLevel"
    load += "(int(sys.argv[2])); o.InferenceSession(sys.argv[1], p, providers=['CPUExecutionProvider'])"
    for level in ("99", "0"):  # all optimisations, none
        done = subprocess.run([sys.executable, "-c", load, made, level], capture_output=True, text=True)
        if done.returncode >= 0:
            break
    return f"ONNX Runtime refuses it: {_last_line(done.stderr)}" if done.returncode else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:160]


def _precisions(model: Any) -> dict[str, int]:
    """The element type of each node's first float output, or input where no output is one; 0 where none is."""
    from onnx import shape_inference

    inferred = shape_inference.infer_shapes(model)
    types: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        types.update((t.name, t.data_type) for t in graph.initializer)
        infos = (*graph.value_info, *graph.input, *graph.output)
        types.update((i.name, i.type.tensor_type.elem_type) for i in infos)
    for node in _nodes(inferred.graph):  # inference knows no com.microsoft operator and stops there
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                types[node.output[0]] = attribute.i
    return {
        node.name: next((types[v] for v in (*node.output, *node.input) if types.get(v) in (1, 10, 16)), 0)
        for node in _nodes(inferred.graph)
    }


def _graphs(graph: Any) -> Iterator[Any]:
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
        given = parser.parse_args()
        main(given.corpus, given.ops_info, given.limit)
