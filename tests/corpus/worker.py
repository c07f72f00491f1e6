"""Run a corpus model in the helper process, as ONNX Runtime's CPU provider crashes on some float16 models.

``call`` calls a function of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.package import WorkerDied, helper_process

LOW = ("float16", "bfloat16")
SECONDS = 120  # per call
Result = dict[str, Any]


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
