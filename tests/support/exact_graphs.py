"""Random small models, with batches of small integers times powers of two that meet the limits of the low types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mixlist.lists.policy import Policy
from tests.support.builders import keep, policy

Array = NDArray[np.float32]
Shape = tuple[int, int]
ROWS = 8  # the most that Concat makes
BINARY = ("Mul", "Add", "Sub", "Div", "Max", "Min")
UNARY = ("Neg", "Relu", "Sigmoid", "Tanh", "Softmax")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare")
MATRIX = ("MatMul", "Gemm", "Conv", "LayerNormalization")
MOVES = ("Transpose", "Reshape", "Concat", "Where")
CHOICES = ("Less", "Greater", "Equal", "ArgMax", "ArgMin")
OPS = (*BINARY, *UNARY, *REDUCTIONS, *MATRIX, *MOVES, *CHOICES)
GROUPS = (BINARY, UNARY, REDUCTIONS, MATRIX, MATRIX, MOVES, CHOICES)


@dataclass(frozen=True)
class Case:
    """Hold a model, the policy and the batches."""

    model: onnx.ModelProto
    rules: Policy
    feeds: list[dict[str, Array]]
    saturate: bool

    def __repr__(self) -> str:
        lists = sorted(self.rules.lists.library.lists.items())
        rules = f"{self.rules.mode.name} {self.rules.gray_policy} {self.rules.rules} saturate={self.saturate}"
        weights = {t.name: numpy_helper.to_array(t).tolist() for t in self.model.graph.initializer}
        return f"Case({rules} {lists}\n{onnx.printer.to_text(self.model)}\n{weights}\n{self.feeds})"


# --- numbers ---


def constant(rng: np.random.Generator, shape: tuple[int, ...], top: int) -> Array:
    """Return small integers times a power of two up to ``2**top``: either low type holds them, as S4.7 asks."""
    whole = rng.integers(-127 if rng.integers(4) else 1, 128, shape)
    return np.ldexp(whole.astype(np.float32), int(rng.integers(-6, top + 1)))


def fed(rng: np.random.Generator, shape: Shape, low: str) -> Array:
    """Return an input of one batch, now and then with a value at a limit, a mask, an infinity or NaN in it."""
    largest = int(rng.choice([7, 127, 511, 2047]))
    scale = int(rng.integers(-6, 9) if rng.integers(4) else rng.choice([-20, -26]))
    if low == "bfloat16" and rng.integers(3):
        scale = int(rng.choice([119, 118, 117, 110, 60, -60, -120]))
    whole = rng.integers(-largest if rng.integers(4) else 1, largest + 1, shape)
    with np.errstate(over="ignore"):
        x = np.ldexp(whole.astype(np.float32), scale)
    edges = [65504.0, 65519.996, 65520.0, 65536.0, 2.0**-24, 2.0**-25, 2.0**-14, -3.4e38, np.inf, -np.inf, np.nan]
    # In float16 a lone value far beyond the range tells a converted operand from an output that overflows.
    edges += [1e5, -2e5, 1e6, 0.0] if low == "float16" else [3.395e38, 3.397e38, -3.397e38, 0.0]
    if rng.integers(4) == 0:
        x.flat[rng.integers(x.size)] = rng.choice(edges)
    return x


# --- nodes ---


@dataclass
class Graph:
    """Collect the nodes, and the tensors with their shapes; ``n`` is the side of the inputs."""

    draw: st.DrawFn
    rng: np.random.Generator
    n: int
    top: int  # the largest power of two of a constant
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    floats: dict[str, Shape] = field(default_factory=dict)
    bools: dict[str, Shape] = field(default_factory=dict)

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Add a node; return its output."""
        place = len(self.nodes)
        self.nodes.append(helper.make_node(op, inputs, [f"t{place}"], name=f"n{place}", **attributes))
        return f"t{place}"

    def weight(self, value: NDArray[np.generic]) -> str:
        """Add an initializer; return its name."""
        self.weights.append(numpy_helper.from_array(value, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def pick(self, fits: Callable[[Shape], bool]) -> str | None:
        """Return a float tensor of a shape that fits, None if there is none."""
        names = [name for name, shape in self.floats.items() if fits(shape)]
        return self.draw(st.sampled_from(names)) if names else None

    def operand(self, fits: Callable[[Shape], bool], shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Return a tensor that fits, or a constant of the given shape."""
        name = self.pick(fits) if self.draw(st.integers(0, 3)) else None
        if name is not None:
            return name, self.floats[name]
        return self.weight(constant(self.rng, shape, self.top)), shape

    def axes(self, axis: int) -> str:
        name = f"axis{axis}"
        if all(t.name != name for t in self.weights):
            self.weights.append(numpy_helper.from_array(np.array([axis], np.int64), name))
        return name


def broadcast(a: Shape, b: tuple[int, ...]) -> Shape | None:
    """Return the shape of a broadcast, None where the shapes do not fit."""
    if any(m != k and 1 not in (m, k) for m, k in zip(a, b, strict=True)):
        return None
    return max(a[0], b[0]), max(a[1], b[1])


def add_binary(g: Graph, op: str, a: str) -> None:
    shape = g.floats[a]
    b, other = g.operand(lambda s: broadcast(shape, s) is not None, (1, shape[1]))
    if op == "Div" and b.startswith("c"):  # by a power of two: a constant zero decides nothing
        b = g.weight(np.full(other, 2.0 ** g.draw(st.integers(-6, 6)), np.float32))
    both = broadcast(shape, other)
    assert both is not None
    inputs = [b, a] if g.draw(st.integers(0, 3)) == 0 else [a, b]
    g.floats[g.node(op, inputs)] = both


def add_comparison(g: Graph, op: str, a: str) -> None:
    shape = g.floats[a]
    b, other = g.operand(lambda s: broadcast(shape, s) is not None, (1, shape[1]))
    both = broadcast(shape, other)
    assert both is not None
    name = g.node(op, [a, b])
    g.bools[name] = both
    if g.draw(st.integers(0, 2)) == 0:
        g.floats[g.node("Cast", [name], to=TensorProto.FLOAT)] = both


def add_matrix(g: Graph, op: str, a: str) -> None:
    rows, columns = g.floats[a]
    if op == "MatMul":
        b, shape = g.operand(lambda s: s[0] == columns, (columns, g.n))
        g.floats[g.node(op, [a, b])] = (rows, shape[1])
    elif op == "Gemm":
        turned = g.draw(st.integers(0, 1))
        b, shape = g.operand(lambda s: s[turned] == columns, (g.n, columns) if turned else (columns, g.n))
        width = shape[1 - turned]
        extra = [g.operand(lambda s: s in ((rows, width), (1, width)), (1, width))[0]] if g.draw(st.booleans()) else []
        g.floats[g.node(op, [a, b, *extra], transB=turned)] = (rows, width)
    elif op == "LayerNormalization":
        scale, bias = (g.weight(constant(g.rng, (columns,), g.top)) for _ in range(2))
        g.floats[g.node(op, [a, scale, bias], axis=-1)] = (rows, columns)
    else:
        add_conv(g, a)


def add_conv(g: Graph, a: str) -> None:
    """Add a convolution of the matrix as an image, which keeps its size."""
    rows, columns = g.floats[a]
    image = g.node("Reshape", [a, g.weight(np.array([1, 1, rows, columns], np.int64))])
    side = int(g.draw(st.sampled_from([1, 3])))
    inputs = [image, g.weight(constant(g.rng, (1, 1, side, side), g.top))]
    if g.draw(st.booleans()):
        inputs.append(g.weight(constant(g.rng, (1,), g.top)))
    image = g.node("Conv", inputs, pads=[side // 2] * 4)
    g.floats[g.node("Reshape", [image, g.weight(np.array([rows, columns], np.int64))])] = (rows, columns)


def add_move(g: Graph, op: str, a: str) -> None:
    rows, columns = g.floats[a]
    if op == "Transpose":
        g.floats[g.node(op, [a], perm=[1, 0])] = (columns, rows)
    elif op == "Reshape":
        g.floats[g.node(op, [a, g.weight(np.array([1, rows * columns], np.int64))])] = (1, rows * columns)
    elif op == "Concat" and rows < ROWS:
        b, shape = g.operand(lambda s: s[1] == columns and s[0] + rows <= ROWS, (1, columns))
        g.floats[g.node(op, [a, b], axis=0)] = (rows + shape[0], columns)
    else:
        fits = [name for name, shape in g.bools.items() if broadcast((rows, columns), shape) == (rows, columns)]
        if fits:
            b, _ = g.operand(lambda s: s == (rows, columns), (1, columns))
            chooser = g.draw(st.sampled_from(fits))
            g.floats[g.node("Where", [chooser, *([a, b] if g.draw(st.booleans()) else [b, a])])] = (rows, columns)
        else:
            g.floats[g.node("Transpose", [a], perm=[1, 0])] = (columns, rows)


def add_node(g: Graph, op: str) -> None:
    """Add an operator on a random tensor, with the constants and helpers that it needs."""
    a = g.draw(st.sampled_from(list(g.floats)))
    rows, columns = g.floats[a]
    if op in BINARY:
        add_binary(g, op, a)
    elif op in UNARY:
        g.floats[g.node(op, [a], **({"axis": -1} if op == "Softmax" else {}))] = (rows, columns)
    elif op in REDUCTIONS:
        axis = g.draw(st.integers(0, 1))
        g.floats[g.node(op, [a, g.axes(axis)])] = (rows, 1) if axis else (1, columns)
    elif op in MATRIX:
        add_matrix(g, op, a)
    elif op in MOVES:
        add_move(g, op, a)
    elif op in ("ArgMax", "ArgMin"):
        g.node(op, [a], axis=g.draw(st.integers(0, 1)))
    else:
        add_comparison(g, op, a)


def add_masked_softmax(g: Graph, scores: str) -> None:
    """Add a Softmax of scores to which a mask is added or that a mask replaces; sometimes another node reads them."""
    shape = g.floats[scores]
    keep_these = g.node("Less", ["x1", g.weight(np.array([[float(g.draw(st.integers(-9, 9)))]], np.float32))])
    if shape != g.floats["x1"]:  # the mask is as large as the inputs
        keep_these = g.node("Less", [scores, g.weight(np.zeros((1, 1), np.float32))])
    how = g.draw(st.sampled_from(["factor", "rest", "less one", "Where", "Where of both"]))
    size = float(g.draw(st.sampled_from([-1e4, -4e4, -65504.0, -7e4, -1e5, -131040.0, -2e5, -1e9, -3e38])))
    subtracted = bool(g.draw(st.integers(0, 3)) == 0)
    size = -size if subtracted != (how == "less one") else size
    mask = g.weight(np.full((1, 1), size, np.float32))
    if how == "Where":
        masked = g.node("Where", [keep_these, scores, mask])
    else:
        if how == "Where of both":
            mask = g.node("Where", [keep_these, g.weight(np.zeros((1, 1), np.float32)), mask])
        else:
            factor = g.node("Cast", [keep_these], to=TensorProto.FLOAT)
            if how == "rest":
                factor = g.node("Sub", [g.weight(np.ones((1, 1), np.float32)), factor])
            elif how == "less one":
                factor = g.node("Sub", [factor, g.weight(np.ones((1, 1), np.float32))])
            mask = g.node("Mul", [factor, mask])
        both = [scores, mask] if subtracted or g.draw(st.booleans()) else [mask, scores]
        masked = g.node("Sub" if subtracted else "Add", both)
    if g.draw(st.booleans()):
        masked = g.node("Transpose", [masked], perm=[1, 0])
        shape = (shape[1], shape[0])
    if g.draw(st.integers(0, 4)) == 0:
        g.floats[g.node("Relu", [masked])] = shape
    g.floats[g.node("Softmax", [masked], axis=-1)] = shape


# --- cases ---


def batches(draw: st.DrawFn, rng: np.random.Generator, n: int, low: str) -> list[dict[str, Array]]:
    return [{x: fed(rng, (n, n), low) for x in ("x0", "x1")} for _ in range(draw(st.integers(1, 3)))]


def rules(draw: st.DrawFn, mode: str, nodes: list[onnx.NodeProto], **options: object) -> Policy:
    """Draw lists, and a rule for one node of ten."""
    ops = sorted({node.op_type for node in nodes})
    listed = {op: draw(st.sampled_from(["white", "white", "white", "black", "gray"])) for op in ops}
    return policy(
        mode=mode,
        white=[op for op, name in listed.items() if name == "white"],
        black=[op for op, name in listed.items() if name == "black"],
        gray_policy=draw(st.sampled_from(["ascend", "between", "black-wins", "promote"])),
        rules=keep(*(node.name for node in nodes if node.op_type != "Cast" and draw(st.integers(0, 9)) == 0)),
        **options,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a graph of two to eight operators with two inputs."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "mixed_bfloat16", "fp16"]))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = batches(draw, rng, n, "bfloat16" if mode == "mixed_bfloat16" else "float16")
    ops = [draw(st.sampled_from(draw(st.sampled_from(GROUPS)))) for _ in range(draw(st.integers(2, 8)))]
    g = Graph(draw, rng, n, top=8, floats={"x0": (n, n), "x1": (n, n)})
    for op in ops:
        add_node(g, op)
    return Case(whole(g.nodes, g.weights, (n, n)), rules(draw, mode, g.nodes), feeds, draw(st.booleans()))


@st.composite
def masked_cases(draw: st.DrawFn) -> Case:
    """Draw up to three operators, then a Softmax of masked scores."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "fp16"]))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = batches(draw, rng, n, "float16")
    g = Graph(draw, rng, n, top=6, floats={"x0": (n, n), "x1": (n, n)})
    for _ in range(draw(st.integers(0, 3))):
        add_node(g, draw(st.sampled_from((*BINARY, "MatMul", "ReduceMean", "LayerNormalization"))))
    add_masked_softmax(g, draw(st.sampled_from(list(g.floats))))
    lists = rules(draw, mode, g.nodes, protect=draw(st.sampled_from([(), ("masks",)])))
    return Case(whole(g.nodes, g.weights, (n, n)), lists, feeds, draw(st.booleans()))


def whole(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: Shape) -> onnx.ModelProto:
    """Return the model of some nodes; a tensor that no node reads is an output."""
    read = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in ("x0", "x1")]
    outputs = [helper.make_empty_tensor_value_info(y) for node in nodes for y in node.output if y not in read]
    graph = helper.make_graph(nodes, "exact", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model
