"""Shape inference: it leaves out what would take too much memory or time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper, shape_inference

import mixlist
from mixlist import worker_processes
from mixlist.errors import ModelError
from mixlist.model import shape_inference as guarded
from mixlist.model.inferred_shapes import infer_ranks
from mixlist.model.onnx_conversion import inline_functions
from mixlist.model.shape_inference import (
    MOST_EXPANDED_NODES,
    infer_shapes_with_data_propagation,
    refuse_large_expansion,
)
from tests.support.builders import model
from tests.support.package import estimate_work
from tests.support.systems import linux_only
from tests.support.workers import use_own_helper

LONG = 100_000_000
CAST = f"g (float[{LONG}] x) => (float16[a] y) {{ y = Cast<to=10>(x) }}"
RESHAPED = f"""g (float[2,{LONG // 2}] x) => (float16[a] y) <int64[1] s = {{-1}}> {{
    z = Reshape(x, s) y = Cast<to=10>(z) }}"""
COMPUTED = f"""g (float[{LONG // 10_000},10000] x) => (float[a] y) <int64[1] i = {{0}}, int64[1] j = {{1}}> {{
    s = Shape(x) a = Gather(s, i) b = Gather(s, j) n = Mul(a, b)
    z = ConstantOfShape(n) t = Cast<to=1>(z) y = Add(t, t) }}"""
IN_FUNCTION = f"""<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[{LONG}] x) => (float16[a] y) {{ y = f.F(x) }}
    <domain: "f", opset_import: ["": 17]> F (a) => (b) {{ b = Cast<to=10>(a) }}"""
IN_BODY = f"""g (float[{LONG}] x, bool c) => (float16[a] y) {{ y = If (c) <
    then_branch = t () => (float16[b] p) {{ p = Cast<to=10>(x) }},
    else_branch = e () => (float16[b] q) {{ q = Cast<to=10>(x) }}> }}"""


RUN = """
from mixlist.targets.estimate import estimate_costs
from mixlist.model.build import build_graph
from mixlist.model.load import load_model
graph = build_graph(load_model(sys.argv[1]).proto)
print(estimate_costs(graph).known_shapes.shapes[graph.root.outputs[0]])
"""


def nested(depth: int) -> ModelProto:
    """Return a model of ``depth`` functions, each of which calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(depth):
        twice = [(f"F{level + 1}", "a", "m"), (f"F{level + 1}", "m", "b")]
        nodes = [helper.make_node(name, [source], [result], domain="f") for name, source, result in twice]
        if level == depth - 1:
            nodes = [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], nodes, opsets))
    x, y = (helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="f")], "g", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


@pytest.fixture(autouse=True)
def _own_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_helper(monkeypatch)


@linux_only
@pytest.mark.parametrize(
    "text", [CAST, RESHAPED, COMPUTED, IN_FUNCTION, IN_BODY], ids=["cast", "reshaped", "computed", "function", "body"]
)
def test_a_long_vector_takes_no_memory(text: str, tmp_path: Path) -> None:
    """Data propagation would take 14 to 21 GB for each of these models; the estimate has 1.5 GB."""
    path = tmp_path / "long.onnx"
    onnx.save(model(text), path)
    code = "import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (3 * 2**29, 3 * 2**29))\n" + RUN
    completed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"({LONG},)\n"


def test_values_are_propagated_in_a_process() -> None:
    """The length of ``z`` is computed, so another process infers the shapes. The result is the same as that of onnx."""
    text = """g (float[2,3] x) => (float[a,b] y) <int64[1] i = {0}, int64[1] two = {2}> {
        s = Shape(x) a = Gather(s, i) n = Mul(a, two) z = ConstantOfShape(n) v = Add(z, z) y = Mul(x, v) }"""
    for _ in range(2):
        inferred, exhausted = infer_shapes_with_data_propagation(model(text))
        assert inferred == shape_inference.infer_shapes(model(text), data_prop=True)
        assert not exhausted and worker_processes._helper is not None


def test_a_model_of_known_lengths_starts_no_process() -> None:
    text = """g (float[2,3] x) => (float[a,b] y) <int64[1] i = {0}, int64[1] one = {-1}> {
        s = Shape(x) a = Gather(s, i) t = Concat<axis=0>(a, one) z = Reshape(x, t) y = Add(z, z) }"""
    inferred, _ = infer_shapes_with_data_propagation(model(text))
    assert inferred == shape_inference.infer_shapes(model(text), data_prop=True)
    assert worker_processes._helper is None


def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes that need no values are still inferred, and the next model gets a new process."""
    monkeypatch.setattr(guarded, "PROCESS_SECONDS", 0.2)
    inferred, exhausted = infer_shapes_with_data_propagation(model(IN_FUNCTION))
    assert exhausted and worker_processes._helper is None
    assert inferred.graph.output[0].type.tensor_type.shape.dim[0].dim_value == LONG
    monkeypatch.setattr(guarded, "PROCESS_SECONDS", 60.0)
    assert not infer_shapes_with_data_propagation(model(IN_FUNCTION.replace(str(LONG), "4")))[1]


def test_an_error_that_onnx_finds_in_the_process_is_raised() -> None:
    proto = model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    proto.graph.node[0].domain = "unknown"
    with pytest.raises(ValueError, match="No opset import for domain unknown"):
        guarded._propagate_values(proto)


def test_missing_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate without the memory for shapes would look like a result, but would be wrong."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(shape_inference, "infer_shapes", fail)
    with pytest.raises(MemoryError):
        estimate_work(model(COMPUTED))
    with pytest.raises(MemoryError):
        infer_ranks(model(COMPUTED))


def test_too_many_calls_are_refused() -> None:
    source = nested(30)
    text = "the function calls of the model expand to 1,610,612,735 nodes, more than 20,000"
    policy = mixlist.load_policy()
    with pytest.raises(ModelError, match=text):
        estimate_work(source)
    with pytest.raises(ModelError, match=text):
        mixlist.check(source, policy, {"x": [[0.0] * 3] * 2})
    with pytest.raises(ModelError, match=text):
        mixlist.bench(source, policy, {"x": [[0.0] * 3] * 2})
    with pytest.raises(ModelError, match=text):
        inline_functions(source)
    assert mixlist.resolve(source, policy).counts  # it decides each function once for each kind of call


def test_the_limit_of_calls_grows_with_the_file() -> None:
    """A call of a large function counts as many nodes as its body has in the file."""
    source = nested(2)
    source.functions[1].node.extend(
        [helper.make_node("Relu", ["b"], [f"c{index}"]) for index in range(MOST_EXPANDED_NODES)]
    )
    refuse_large_expansion(source)


def test_functions_that_call_each_other_are_refused() -> None:
    source = nested(3)
    source.functions[1].node[1].op_type = "F0"
    with pytest.raises(ModelError, match="call each other without end: f:F"):
        refuse_large_expansion(source)


def test_onnx_is_called_in_one_place() -> None:
    root = Path(mixlist.__file__).parent
    files = [path for path in root.rglob("*.py") if "shape_inference.infer" in path.read_text()]
    assert files == [root / "model" / "shape_inference.py"]
