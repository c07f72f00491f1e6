"""Rewrite and examine one corpus model, or run it, in the helper process: ``call`` calls a function of this module.

``run`` and ``rewrite`` are separate calls because ONNX Runtime's CPU provider crashes on some float16 models: a
process that dies in ``run`` does not prove that the file of ``rewrite`` is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.package import WorkerDied, helper_process

LOW = ("float16", "bfloat16")
SECONDS = 120  # per call
Result = dict[str, Any]
MARK = "pkg.mixlist.cast"  # the metadata key of a Cast that mixlist inserted


class Crashed(Exception):  # noqa: N818 - it names the event
    """The helper process died of the signal with this name."""


def call(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in the helper process. Raises Crashed, or RuntimeError with the traceback of an error."""
    with helper_process() as process:
        try:
            return process.call(partial(function, *map(str, arguments)), seconds=SECONDS)
        except WorkerDied as death:
            assert death.signal.startswith("SIG"), death.last_line
            assert death.signal != "SIGKILL", f"no answer in {SECONDS} s"
            raise Crashed(death.signal) from death


def rewrite(library: str, path: str, out: str) -> Result:
    """Resolve, apply and examine one model; every entry of the result but the counts should be empty."""
    import onnx

    import mixlist

    policy = mixlist.load_policy(ops_info=library)
    plan = mixlist.resolve(path, policy)
    result = mixlist.rewrite(path, plan)
    result.save(out)
    checked = "full" if _passes_full_check(path) else "plain"
    onnx.checker.check_model(out, full_check=checked == "full")
    again = mixlist.resolve(out, policy)
    mixlist.rewrite(out, again).save(f"{out}.again")
    unlike, unknown, missing = compare_types(plan, out)
    return {
        "low": sum(node.precision in LOW for node in plan.nodes),
        "casts": result.casts_inserted,
        "checked": checked,
        "unknown": unknown,
        "unlike the plan": unlike,
        "missing from the file": missing,
        "signature": [] if signature(path) == signature(out) else [signature(path), signature(out)],
        "decided anew": _differences(plan, again),
        "not idempotent": [] if Path(out).read_bytes() == Path(f"{out}.again").read_bytes() else [out],
    }


def _passes_full_check(path: str) -> bool:
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def signature(path: str) -> list[Any]:
    """Return names, order, types and shapes of inputs and outputs; opsets; IR version; the user's metadata."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    ends = [value.SerializeToString(deterministic=True).hex() for value in (*model.graph.input, *model.graph.output)]
    metadata = {p.key: p.value for p in model.metadata_props if not p.key.startswith("pkg.mixlist.")}
    return [ends, sorted((o.domain, o.version) for o in model.opset_import), model.ir_version, sorted(metadata.items())]


def _differences(plan: Any, again: Any) -> list[str]:
    """Return the nodes whose precision differs when the mixed model is resolved with the same policy."""
    # A Cast of the user goes if nothing reads it any more (Rule S7.7).
    before, after = (
        [(node.scope, node.name, node.precision) for node in nodes if node.op_type != "Cast"]
        for nodes in (plan.nodes, again.nodes)
    )
    return [f"{a} became {b}" for a, b in zip(before, after, strict=False) if a != b] + (
        [] if len(before) == len(after) else [f"{len(before)} nodes became {len(after)}"]
    )


def compare_types(plan: Any, path: str) -> tuple[list[str], list[str], list[str]]:
    """Compare each node's planned output types with what onnx infers for the file, without mixlist's help.

    Return the outputs of another type, the float outputs that onnx could not type (those of custom operators and of
    nodes behind them), and the planned nodes that the file does not have.
    """
    import onnx

    bare = onnx.load(path)
    _forget_types(bare.graph)
    model = onnx.shape_inference.infer_shapes(bare, strict_mode=False, data_prop=True)
    inferred_types: dict[tuple[str, str], list[list[str | None]]] = defaultdict(list)
    for scope, name, types in _nodes(model.graph, "", {}):
        inferred_types[scope, name].append(types)
    unlike, unknown, missing = [], [], []
    for node in plan.nodes:
        if not inferred_types[node.scope, node.name]:
            if node.op_type == "Cast":
                continue  # nothing reads it any more (Rule S7.7)
            missing.append(f"{node.scope}/{node.name}")
            continue
        types = inferred_types[node.scope, node.name].pop(0)
        for (output, planned), inferred in zip(node.outputs.items(), types, strict=True):
            if node.op_type == "Constant":
                continue  # stored in whichever type its readers need
            if planned in (*LOW, "float32") and inferred is None:
                unknown.append(f"{node.scope}/{node.name}: {output}")
            elif inferred not in (planned, None):
                unlike.append(f"{node.scope}/{node.name}: {output} is {inferred}, planned {planned}")
    return unlike, unknown, missing


def _forget_types(graph: Any) -> None:
    """Delete the declared types of inner tensors, so that every type is inferred again."""
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_types(attribute.g)


def _nodes(graph: Any, scope: str, outer: dict[str, str]) -> Iterator[tuple[str, str, list[str | None]]]:
    """Yield scope, name and output types of every node but mixlist's own Casts; unnamed nodes are called OpType_k."""
    types = {**outer, **_types(graph)}
    used_names, numbers = {node.name for node in graph.node}, Counter[str]()
    for node in graph.node:
        if node.op_type == "Cast" and any(entry.key == MARK for entry in node.metadata_props):
            continue
        name = node.name
        while not name:
            candidate = f"{node.op_type}_{numbers[node.op_type]}"
            numbers[node.op_type] += 1
            name = "" if candidate in used_names else candidate
        yield scope, name, [types.get(output) for output in node.output if output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = f"{scope}/{name}" if scope else name
                yield from _nodes(attribute.g, f"{inner}/{attribute.name}", types)


def _types(graph: Any) -> dict[str, str]:
    """Return the element type by tensor name, in the spelling of the plan."""
    import onnx

    spelled = {kind: key.lower() for key, kind in onnx.TensorProto.DataType.items()} | {
        onnx.TensorProto.FLOAT: "float32",
        onnx.TensorProto.DOUBLE: "float64",
    }
    types = {tensor.name: spelled[tensor.data_type] for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = spelled[value.type.tensor_type.elem_type]
    return types


def run(model_id: str, path: str, out: str, mode: str = "") -> Result:
    """Run every batch of the model; write its outputs to OUT as ``batch.output``.

    It runs on ONNX Runtime's CPU provider, with ``--plain`` without graph optimizations. With ``--reference`` it runs
    on onnx's reference evaluator, which is slow, has every kernel and rounds after each node.
    """
    import numpy as np

    from tests.corpus.feeds import feeds

    session = _reference(path) if mode == "--reference" else _session(path, optimize=mode != "--plain")
    arrays = {}
    for count, batch in enumerate(feeds(model_id)):
        for index, value in enumerate(session.run(None, batch)):
            arrays[f"{count}.{index}"] = value
    np.savez(out, **arrays)
    return {"batches": len(feeds(model_id))}


def _session(model: str | bytes, *, optimize: bool = True) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # the raised error says what failed
    settings.intra_op_num_threads = 1
    if not optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def _reference(path: str) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(path)


def largest(model_id: str, library: str, path: str) -> dict[str, list[float]]:
    """Return the largest magnitude of each batch, in the original, among the tensors that the plan makes low."""
    import numpy as np
    import onnx

    import mixlist
    from tests.corpus.feeds import feeds

    plan = mixlist.resolve(path, mixlist.load_policy(ops_info=library))
    low = [name for node in plan.nodes if not node.scope for name, kind in node.outputs.items() if kind in LOW]
    model = onnx.load(path)
    declared = {value.name for value in model.graph.output}
    float32 = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    model.graph.output.extend(onnx.helper.make_value_info(name, float32) for name in low if name not in declared)
    session = _session(model.SerializeToString())
    return {"largest": [max(float(np.abs(v).max()) for v in session.run(low, batch)) for batch in feeds(model_id)]}


def shares(path: str, batch: str) -> Result:
    """Return the size and the number of NaN of each output of the model in float32 on one batch.

    It runs without graph optimizations, as in a check of few batches. ``refused``: the error, if the run is refused.
    """
    import numpy as np

    session = _session(path, optimize=False)
    names = [output.name for output in session.get_outputs()]
    with np.load(batch) as arrays:
        feed = {name: arrays[name] for name in arrays.files}
    try:
        values = session.run(names, feed)
    except Exception as problem:  # ONNX Runtime's have no base class
        return {"refused": str(problem)}
    nan = [int(np.isnan(value).sum()) if value.dtype.kind == "f" else 0 for value in values]
    return {"outputs": {n: [v.size, count] for n, v, count in zip(names, values, nan, strict=True)}}
