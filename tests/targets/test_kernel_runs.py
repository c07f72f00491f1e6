"""Each kernel of ONNX Runtime's CPU provider, run once with each example of its operator (Rules S13.2, S13.3).

The examples are the models of ONNX's own node tests, and a few more. Each gets the first opset of the kernel, and its
float32 tensors become float16 or bfloat16. It must run as the table says. Results are not compared.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from mixlist.targets.providers import can_list_kernels
from mixlist.targets.target import load_target
from tests.support.scopes import subgraphs

CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
LOW = {
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
# ONNX Runtime may crash on these in float16, and has no low-precision kernel of them.
CRASHES = {"LSTM", "GRU", "RNN"}
SEQUENCE = """(float[2] x) => (float[N] y, int64 n) <int64 i = {0}> {
    s = SequenceConstruct (x, x) t = SequenceInsert (s, x) u = SequenceErase (t, i)
    y = ConcatFromSequence <axis = 0> (u) n = SequenceLength (u) z = SequenceAt (u, i) }"""
# Operators of which the node tests have no example in a float type, or none in an old opset.
MORE = {
    "Cast": "(float[2] x) => (double[2] y) { y = Cast <to = 11> (x) }",
    "Squeeze": "(float[1, 2] x) => (float[2] y) { y = Squeeze <axes = [0]> (x) }",
    "Unsqueeze": "(float[2] x) => (float[1, 2] y) { y = Unsqueeze <axes = [0]> (x) }",
    "Slice": "(float[4] x) => (float[2] y) { y = Slice <starts = [0], ends = [2]> (x) }",
    "Loop": """(float[2] x) => (float[2] y) <int64 n = {2}, bool go = {1}> { y = Loop (n, go, x) <body =
        b (int64 k, bool c, float[2] s) => (bool d, float[2] t) { d = Identity (c) t = Identity (s) }> }""",
    "RandomNormalLike": "(float[2] x) => (double[2] y) { y = RandomNormalLike <dtype = 11> (x) }",
    "RandomUniformLike": "(float[2] x) => (double[2] y) { y = RandomUniformLike <dtype = 11> (x) }",
    # The node tests give it a second result, which stays float32 in float16 and bfloat16.
    "LayerNormalization": "(float[2] x) => (float[2] y) { y = LayerNormalization (x, x) }",
    "SkipLayerNormalization": """(float[1, 1, 8] x) => (float[1, 1, 8] y) <float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}>
        { y = com.microsoft.SkipLayerNormalization (x, x, w) }""",
    "SkipSimplifiedLayerNormalization": """(float[1, 1, 8] x) => (float[1, 1, 8] y)
        <float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}> { y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, w) }""",
    "Optional": "(float[2] x) => (float[2] y) { o = Optional (x) y = OptionalGetElement (o) }",
    **dict.fromkeys(("SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt"), SEQUENCE),
    **dict.fromkeys(("ConcatFromSequence", "SequenceLength"), SEQUENCE),
}
# A table cannot say these. mixlist makes none of them: a sequence and an attribute that sets a type keep their types
# (Rules S4.13, S4.29), and mixlist changes no tensor in an attribute.
WRONG = {
    ("SplitToSequence", "bfloat16"),  # opset 24 has a new kernel, and a type of the result that it cannot read
    ("EyeLike", "float16"),  # the attribute dtype makes the float16 tensor, so no Cast can be inserted
    ("TreeEnsemble", "float16"),  # a Cast changes the input, and its attributes stay float16
}


def lower(graph: onnx.GraphProto, elem: int, dtype: np.dtype[Any]) -> None:
    """Give the float32 tensors of a graph and of its bodies another type."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        lower_type(value.type, elem)
    attributes = [a for node in graph.node for a in node.attribute]
    for attribute in attributes:
        if attribute.name in ("to", "dtype", "output_dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = elem
    for tensor in chain(graph.initializer, (a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for body in (body for node in graph.node for _, body in subgraphs(node)):
        lower(body, elem, dtype)


def lower_type(value_type: onnx.TypeProto, elem: int) -> None:
    kind = value_type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        lower_type(getattr(value_type, kind).elem_type, elem)
    elif kind == "tensor_type" and value_type.tensor_type.elem_type == TensorProto.FLOAT:
        value_type.tensor_type.elem_type = elem


def holds(value: onnx.ValueInfoProto, elem: int) -> bool:
    """Return True if a value has an element type, also as a sequence or an optional."""
    value_type = value.type
    while (kind := value_type.WhichOneof("value")) in ("sequence_type", "optional_type"):
        value_type = getattr(value_type, kind).elem_type
    return kind == "tensor_type" and value_type.tensor_type.elem_type == elem


def examples() -> dict[tuple[str, str], list[tuple[onnx.ModelProto, list[Any]]]]:
    """Return the models and their inputs, by domain and op type."""
    from onnx.backend.test.case.node import collect_testcases

    by_operator = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about the values of the test data
        cases = collect_testcases(None)
    for case in cases:
        if len(case.model.graph.node) == 1 and case.data_sets:
            node, inputs = case.model.graph.node[0], case.data_sets[0][0]
            by_operator[node.domain, node.op_type].append((case.model, list(inputs)))
    for op_type, text in MORE.items():
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g {text}')
        domain = next(node.domain for node in model.graph.node if node.op_type == op_type)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        by_operator[domain, op_type].append((model, [np.ones(shape, np.float32)]))
    return by_operator


def run(model: onnx.ModelProto, feeds: dict[str, Any], path: Path) -> str:
    """Return what ONNX Runtime does with a model: ``runs``, ``cast`` or ``refusal``."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(path)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        if all(isinstance(value, np.ndarray) for value in feeds.values()):
            names = [output.name for output in session.get_outputs()]
            session.run_with_ort_values(names, {name: ort_value(value) for name, value in feeds.items()})
        elif not any(holds(value, TensorProto.BFLOAT16) for value in model.graph.input):
            session.run(None, feeds)
    except Exception:  # each kind of refusal
        return "refusal"
    count = sum(node.op_type == "Cast" for node in onnx.load(path).graph.node)
    return "cast" if count > sum(node.op_type == "Cast" for node in model.graph.node) else "runs"


def ort_value(value: np.ndarray[Any, Any]) -> onnxruntime.OrtValue:
    if value.dtype == ml_dtypes.bfloat16:
        bits = np.ascontiguousarray(value).view(np.uint16).reshape(value.shape)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def convert(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an input with its float32 tensors in another type."""
    if isinstance(value, list):
        return [convert(element, dtype) for element in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value, dtype=dtype if value.dtype == np.float32 else value.dtype)
    return value


def at_opset(model: onnx.ModelProto, domain: str, version: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(model.ir_version, 10)
    for opset in copy.opset_import:
        if opset.domain == domain:
            opset.version = version if domain else max(version, 7)
    return copy


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # checker and inference have errors of their own
        return False
    return True


def low_models(model: onnx.ModelProto, inputs: list[Any], path: Path) -> Iterator[tuple[str, onnx.ModelProto, Any]]:
    """Yield a model in each low type with its feeds, if ONNX Runtime runs it in float32."""
    names = [value.name for value in model.graph.input]
    values = (*model.graph.input, *model.graph.output)
    if not any(holds(value, TensorProto.FLOAT) for value in values) or not is_valid(model):
        return
    if run(model, dict(zip(names, inputs, strict=False)), path) != "runs":
        return
    for name, (elem, dtype) in LOW.items():
        mixed = onnx.ModelProto()
        mixed.CopyFrom(model)
        lower(mixed.graph, elem, dtype)
        # A low tensor that is there already can have another row of the table.
        if is_valid(mixed) and not any(holds(value, elem) for value in values):
            yield name, mixed, {n: convert(value, dtype) for n, value in zip(names, inputs, strict=False)}


@pytest.mark.filterwarnings("ignore")  # numpy warns about values that leave the low range
@pytest.mark.skipif(not CAMPAIGN or not can_list_kernels("cpu"), reason="MIXLIST_CAMPAIGN=1 runs it")
def test_each_kernel_runs_as_the_table_says(tmp_path: Path) -> None:
    cpu, wrong, run_rows = load_target("cpu"), [], set()
    models_by_operator = examples()
    for (domain, op_type), kernels in cpu.kernels.items():
        for start in sorted({kernel.start for kernel in kernels}):
            for model, inputs in models_by_operator[domain, op_type] if op_type not in CRASHES else ():
                source = at_opset(model, domain, start)
                for low, mixed, feeds in low_models(source, inputs, tmp_path / "optimized.onnx"):
                    observed = run(mixed, feeds, tmp_path / "optimized.onnx")
                    expected = expect(mixed, domain, op_type, low)
                    run_rows.add((domain, op_type, start, low))
                    if not agrees(observed, expected, mixed, op_type) and (op_type, low) not in WRONG:
                        wrong.append((op_type, start, low, expected, observed))
    assert wrong == []
    # The rows that no example reaches: ONNX allows no such type there, or the operator is one of ONNX Runtime's own.
    rows = {
        (domain, op_type, kernel.start, low)
        for (domain, op_type), kernels in cpu.kernels.items()
        for kernel in kernels
        for low in LOW
        if any(low in types for types in kernel.types.values())
    }
    print(f"{len(rows & run_rows)} of {len(rows)} low rows ran; not: {sorted(rows - run_rows)}")
    assert len(rows & run_rows) > 200


def agrees(observed: str, expected: str, model: onnx.ModelProto, op_type: str) -> bool:
    """Return True if the model runs as expected.

    An operator with a function body runs as this body where its kernels do not take the type, better than the table
    says. The nodes in the bodies of control flow have rows of their own.
    """
    if any(True for node in model.graph.node for _ in subgraphs(node)):
        return True
    domains = {opset.domain: opset.version for opset in model.opset_import}
    node = next(node for node in model.graph.node if node.op_type == op_type)
    if not onnx.defs.has(op_type, node.domain):
        return observed == expected
    schema = onnx.defs.get_schema(op_type, domains[node.domain], node.domain)
    has_function = schema.has_function or schema.has_context_dependent_function
    return observed == expected or (has_function and expected != "runs")


def expect(model: onnx.ModelProto, domain: str, op_type: str, low: str) -> str:
    """Return what the table says about the node with an op type."""
    node = next(node for node in model.graph.node if node.op_type == op_type)
    types = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    outputs = tuple(i for i, name in enumerate(node.output) if name in types and holds(types[name], LOW[low][0]))
    version = {opset.domain: opset.version for opset in model.opset_import}[domain]
    texts = {attribute.name: attribute.s.decode() for attribute in node.attribute if attribute.HasField("s")}
    subject = (domain, op_type, version, low, outputs, texts)
    return "runs" if load_target("cpu").runs(*subject) else load_target("cpu").find_otherwise(*subject)
