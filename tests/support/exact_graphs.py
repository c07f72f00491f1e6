"""Draw small models and batches for the comparison of verdicts.

The values of a batch are small integers times powers of two. Some are near a limit of a low type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mixlist import Policy
from tests.support.builders import keep, policy

Array = NDArray[np.float32]
Shape = tuple[int, int]
ROWS = 8  # the largest number of rows of a Concat's output
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
    policy: Policy
    feeds: list[dict[str, Array]]
    saturate: bool

    def __repr__(self) -> str:
        lists = sorted(self.policy.lists.library.lists.items())
        modes = f"{self.policy.mode.name} {self.policy.gray_policy} {self.policy.rules} saturate={self.saturate}"
        weights = {t.name: numpy_helper.to_array(t).tolist() for t in self.model.graph.initializer}
        return f"Case({modes} {lists}\n{onnx.printer.to_text(self.model)}\n{weights}\n{self.feeds})"


# --- numbers ---


def random_constant(rng: np.random.Generator, shape: tuple[int, ...], largest_exponent: int) -> Array:
    """Return small integers times a power of two up to ``2**top``: either low type holds them, as S4.7 asks."""
    integers = rng.integers(-127 if rng.integers(4) else 1, 128, shape)
    return np.ldexp(integers.astype(np.float32), int(rng.integers(-6, largest_exponent + 1)))


def random_input(rng: np.random.Generator, shape: Shape, low: str) -> Array:
    """Return an input of one batch; one in four holds a value at a limit, a mask, an infinity or NaN."""
    largest = int(rng.choice([7, 127, 511, 2047]))
    scale = int(rng.integers(-6, 9) if rng.integers(4) else rng.choice([-20, -26]))
    if low == "bfloat16" and rng.integers(3):
        scale = int(rng.choice([119, 118, 117, 110, 60, -60, -120]))
    integers = rng.integers(-largest if rng.integers(4) else 1, largest + 1, shape)
    with np.errstate(over="ignore"):
        x = np.ldexp(integers.astype(np.float32), scale)
    edges = [65504.0, 65519.996, 65520.0, 65536.0, 2.0**-24, 2.0**-25, 2.0**-14, -3.4e38, np.inf, -np.inf, np.nan]
    # In float16 a lone value far beyond the range tells a converted operand from an output that overflows.
    edges += [1e5, -2e5, 1e6, 0.0] if low == "float16" else [3.395e38, 3.397e38, -3.397e38, 0.0]
    if rng.integers(4) == 0:
        x.flat[rng.integers(x.size)] = rng.choice(edges)
    return x


# --- nodes ---


@dataclass
class Graph:
    """Collect the nodes, and the tensors with their shapes; ``n`` is the number of rows and columns of an input."""

    draw: st.DrawFn
    rng: np.random.Generator
    n: int
    largest_exponent: int  # the largest power of two of a constant
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    floats: dict[str, Shape] = field(default_factory=dict)
    bools: dict[str, Shape] = field(default_factory=dict)
    integers: dict[str, Shape] = field(default_factory=dict)  # of type int64

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Add a node; return its first output."""
        return self.node_of_outputs(op, inputs, 1, **attributes)[0]

    def node_of_outputs(self, op: str, inputs: list[str], count: int, **attributes: object) -> list[str]:
        """Add a node; return its outputs."""
        index = len(self.nodes)
        outputs = [f"t{index}", *(f"t{index}_{i}" for i in range(1, count))]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"n{index}", **attributes))
        return outputs

    def weight(self, value: NDArray[np.generic]) -> str:
        """Add an initializer; return its name."""
        self.weights.append(numpy_helper.from_array(value, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def pick(self, fits: Callable[[Shape], bool]) -> str | None:
        """Return a float tensor whose shape fits, None if there is none."""
        names = [name for name, shape in self.floats.items() if fits(shape)]
        return self.draw(st.sampled_from(names)) if names else None

    def operand(self, fits: Callable[[Shape], bool], shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Return a tensor whose shape fits, or a new constant of ``shape``; return its shape, too."""
        name = self.pick(fits) if self.draw(st.integers(0, 3)) else None
        if name is not None:
            return name, self.floats[name]
        return self.weight(random_constant(self.rng, shape, self.largest_exponent)), shape

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


def add_binary(g: Graph, op: str, first: str) -> None:
    shape = g.floats[first]
    second, second_shape = g.operand(lambda s: broadcast(shape, s) is not None, (1, shape[1]))
    if op == "Div" and second.startswith("c"):  # by a power of two: a constant zero decides nothing
        second = g.weight(np.full(second_shape, 2.0 ** g.draw(st.integers(-6, 6)), np.float32))
    output_shape = broadcast(shape, second_shape)
    assert output_shape is not None
    inputs = [second, first] if g.draw(st.integers(0, 3)) == 0 else [first, second]
    g.floats[g.node(op, inputs)] = output_shape


def add_comparison(g: Graph, op: str, first: str) -> None:
    shape = g.floats[first]
    second, second_shape = g.operand(lambda s: broadcast(shape, s) is not None, (1, shape[1]))
    output_shape = broadcast(shape, second_shape)
    assert output_shape is not None
    name = g.node(op, [first, second])
    g.bools[name] = output_shape
    if g.draw(st.integers(0, 2)) == 0:
        g.floats[g.node("Cast", [name], to=TensorProto.FLOAT)] = output_shape


def add_matrix(g: Graph, op: str, a: str) -> None:
    rows, columns = g.floats[a]
    if op == "MatMul":
        b, shape = g.operand(lambda s: s[0] == columns, (columns, g.n))
        g.floats[g.node(op, [a, b])] = (rows, shape[1])
    elif op == "Gemm":
        is_transposed = g.draw(st.integers(0, 1))
        b, shape = g.operand(lambda s: s[is_transposed] == columns, (g.n, columns) if is_transposed else (columns, g.n))
        width = shape[1 - is_transposed]
        extra = [g.operand(lambda s: s in ((rows, width), (1, width)), (1, width))[0]] if g.draw(st.booleans()) else []
        g.floats[g.node(op, [a, b, *extra], transB=is_transposed)] = (rows, width)
    elif op == "LayerNormalization":
        scale, bias = (g.weight(random_constant(g.rng, (columns,), g.largest_exponent)) for _ in range(2))
        g.floats[g.node(op, [a, scale, bias], axis=-1)] = (rows, columns)
    else:
        add_conv(g, a)


def add_conv(g: Graph, a: str) -> None:
    """Add a convolution of the matrix as an image, which keeps its size."""
    rows, columns = g.floats[a]
    image = g.node("Reshape", [a, g.weight(np.array([1, 1, rows, columns], np.int64))])
    side = int(g.draw(st.sampled_from([1, 3])))
    inputs = [image, g.weight(random_constant(g.rng, (1, 1, side, side), g.largest_exponent))]
    if g.draw(st.booleans()):
        inputs.append(g.weight(random_constant(g.rng, (1,), g.largest_exponent)))
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
        conditions = [name for name, shape in g.bools.items() if broadcast((rows, columns), shape) == (rows, columns)]
        if conditions:
            b, _ = g.operand(lambda s: s == (rows, columns), (1, columns))
            condition = g.draw(st.sampled_from(conditions))
            g.floats[g.node("Where", [condition, *([a, b] if g.draw(st.booleans()) else [b, a])])] = (rows, columns)
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
    """Add a Softmax of masked scores: a mask is added to scores or replaces them. Sometimes a Relu reads them, too."""
    shape = g.floats[scores]
    is_visible = g.node("Less", ["x1", g.weight(np.array([[float(g.draw(st.integers(-9, 9)))]], np.float32))])
    if shape != g.floats["x1"]:  # a mask made of x1 has the shape of the inputs
        is_visible = g.node("Less", [scores, g.weight(np.zeros((1, 1), np.float32))])
    mask_form = g.draw(st.sampled_from(["factor", "rest", "less one", "Where", "Where of both"]))
    size = float(g.draw(st.sampled_from([-1e4, -4e4, -65504.0, -7e4, -1e5, -131040.0, -2e5, -1e9, -3e38])))
    subtracted = bool(g.draw(st.integers(0, 3)) == 0)
    size = -size if subtracted != (mask_form == "less one") else size
    mask = g.weight(np.full((1, 1), size, np.float32))
    if mask_form == "Where":
        masked = g.node("Where", [is_visible, scores, mask])
    else:
        if mask_form == "Where of both":
            mask = g.node("Where", [is_visible, g.weight(np.zeros((1, 1), np.float32)), mask])
        else:
            factor = g.node("Cast", [is_visible], to=TensorProto.FLOAT)
            if mask_form == "rest":
                factor = g.node("Sub", [g.weight(np.ones((1, 1), np.float32)), factor])
            elif mask_form == "less one":
                factor = g.node("Sub", [factor, g.weight(np.ones((1, 1), np.float32))])
            mask = g.node("Mul", [factor, mask])
        operands = [scores, mask] if subtracted or g.draw(st.booleans()) else [mask, scores]
        masked = g.node("Sub" if subtracted else "Add", operands)
    if g.draw(st.booleans()):
        masked = g.node("Transpose", [masked], perm=[1, 0])
        shape = (shape[1], shape[0])
    if g.draw(st.integers(0, 4)) == 0:
        g.floats[g.node("Relu", [masked])] = shape
    g.floats[g.node("Softmax", [masked], axis=-1)] = shape


# --- integers and orders ---

SOURCES = ("QuantizeLinear", "QuantizeLinear", "Cast", "Cast", "Round", "ArgMax", "Less")
INTEGER_MOVES = ("Transpose", "Reshape", "Identity", "Neg", "Abs", "Max", "Concat", "Split", "Gather", "Cast")


def add_integers(g: Graph, op: str, a: str) -> None:
    """Add an operator that makes integers of a float tensor: quantities or ids."""
    shape = g.floats[a]
    if op == "QuantizeLinear":
        kind = g.draw(st.sampled_from([np.uint8, np.int8]))
        scale = g.weight(np.array(2.0 ** g.draw(st.integers(-3, 5)), np.float32))
        a = g.node(op, [a, scale, g.weight(np.array(g.draw(st.integers(0, 100)), kind))])
    elif op == "ArgMax":
        axis = g.draw(st.integers(0, 1))
        a, shape = g.node(op, [a], axis=axis), ((1, shape[1]), (shape[0], 1))[axis]
    elif op != "Cast":
        a = g.node(op, [a, g.weight(np.zeros((1, 1), np.float32))] if op == "Less" else [a])
    if op != "ArgMax" and (op != "QuantizeLinear" or g.draw(st.booleans())):
        a = g.node("Cast", [a], to=TensorProto.INT64)
    if op != "QuantizeLinear" or g.nodes[-1].op_type == "Cast":
        g.integers[a] = shape


def add_integer_move(g: Graph, op: str, a: str) -> None:
    """Add an operator that moves or changes integers; sometimes they become floats on the way."""
    rows, columns = g.integers[a]
    if op in ("Transpose", "Reshape", "Concat", "Split"):
        if op == "Transpose":
            g.integers[g.node(op, [a], perm=[1, 0])] = (columns, rows)
        elif op == "Reshape":
            g.integers[g.node(op, [a, g.weight(np.array([1, rows * columns], np.int64))])] = (1, rows * columns)
        elif op == "Split" and columns % 2 == 0:
            for half in g.node_of_outputs(op, [a], 2, axis=1, num_outputs=2):
                g.integers[half] = (rows, columns // 2)
        else:
            others = [name for name, shape in g.integers.items() if shape[1] == columns]
            other = g.draw(st.sampled_from(others))
            g.integers[g.node("Concat", [a, other], axis=0)] = (rows + g.integers[other][0], columns)
    elif op == "Gather":
        index = g.weight(np.array([0, columns - 1], np.int64))
        g.integers[g.node(op, [a, index], axis=1)] = (rows, 2)
    elif op == "Cast":
        middle = g.node(op, [a], to=TensorProto.FLOAT)
        if g.draw(st.booleans()):
            step = g.draw(st.sampled_from(["Relu", "Neg", "Mul", "Add"]))
            constant = [g.weight(np.array([[3]], np.float32))] if step in ("Mul", "Add") else []
            middle = g.node(step, [middle, *constant])
            if g.draw(st.integers(0, 2)) == 0:
                return  # the floats are an output
        g.integers[g.node(op, [middle], to=TensorProto.INT64)] = (rows, columns)
    else:
        constant = [g.weight(np.array([[3]], np.int64))] if op in ("Max", "Add") else []
        g.integers[g.node(op, [a, *constant])] = (rows, columns)


def add_order(g: Graph, a: str) -> None:
    """Add a TopK, and sometimes a tensor that follows its indices."""
    rows, columns = g.floats[a]
    axis = g.draw(st.integers(0, 1))
    count = g.draw(st.integers(1, (rows, columns)[axis]))
    shape = (count, columns) if axis == 0 else (rows, count)
    largest = int(g.draw(st.booleans()))
    inputs = [a, g.weight(np.array([count], np.int64))]
    values, indices = g.node_of_outputs("TopK", inputs, 2, axis=axis, largest=largest)
    g.floats[values] = g.integers[indices] = shape
    if g.draw(st.integers(0, 3)):
        source = g.pick(lambda s: s == (rows, columns))
        assert source is not None
        g.floats[g.node("GatherElements", [source, indices], axis=axis)] = shape


def nearly_equal_input(rng: np.random.Generator, shape: Shape, low: str) -> Array:
    """Return values of which a low type makes some equal, or small whole numbers and fractions."""
    if rng.integers(2):
        return np.ldexp(rng.integers(-2047, 2048, shape).astype(np.float32), int(rng.integers(-6, 3)))
    spread = int(rng.choice([8, 32, 256, 2048])) * (8 if low == "bfloat16" else 1)
    x = 2**15 + rng.integers(0, spread, shape)
    return np.ldexp(x.astype(np.float32), int(rng.integers(-15, -4))) * np.float32(rng.choice([-1, 1, 1]))


# --- cases ---


def random_batches(draw: st.DrawFn, rng: np.random.Generator, n: int, low: str) -> list[dict[str, Array]]:
    return [{x: random_input(rng, (n, n), low) for x in ("x0", "x1")} for _ in range(draw(st.integers(1, 3)))]


def random_policy(draw: st.DrawFn, mode: str, nodes: list[onnx.NodeProto], **options: object) -> Policy:
    """Draw lists, and a node rule for one node of ten."""
    ops = sorted({node.op_type for node in nodes})
    listed = {op: draw(st.sampled_from(["white", "white", "white", "black", "gray"])) for op in ops}
    return policy(
        mode=mode,
        white=[op for op, name in listed.items() if name == "white"],
        black=[op for op, name in listed.items() if name == "black"],
        gray_policy=draw(st.sampled_from(["ascend", "between", "promote"])),
        rules=keep(*(node.name for node in nodes if node.op_type != "Cast" and draw(st.integers(0, 9)) == 0)),
        **options,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a graph of two to eight operators with two inputs."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "mixed_bfloat16", "fp16"]))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = random_batches(draw, rng, n, "bfloat16" if mode == "mixed_bfloat16" else "float16")
    ops = [draw(st.sampled_from(draw(st.sampled_from(GROUPS)))) for _ in range(draw(st.integers(2, 8)))]
    g = Graph(draw, rng, n, largest_exponent=8, floats={"x0": (n, n), "x1": (n, n)})
    for op in ops:
        add_node(g, op)
    return Case(build_model(g.nodes, g.weights, (n, n)), random_policy(draw, mode, g.nodes), feeds, draw(st.booleans()))


@st.composite
def masked_cases(draw: st.DrawFn) -> Case:
    """Draw up to three operators, then a Softmax of masked scores."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "fp16"]))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = random_batches(draw, rng, n, "float16")
    g = Graph(draw, rng, n, largest_exponent=6, floats={"x0": (n, n), "x1": (n, n)})
    for _ in range(draw(st.integers(0, 3))):
        add_node(g, draw(st.sampled_from((*BINARY, "MatMul", "ReduceMean", "LayerNormalization"))))
    add_masked_softmax(g, draw(st.sampled_from(list(g.floats))))
    drawn_policy = random_policy(draw, mode, g.nodes, protect=draw(st.sampled_from([(), ("masks",)])))
    return Case(build_model(g.nodes, g.weights, (n, n)), drawn_policy, feeds, draw(st.booleans()))


@st.composite
def bounded_cases(draw: st.DrawFn) -> Case:
    """Draw up to three operators, then Max and Min with a constant; no output depends on some of the tensors."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "mixed_bfloat16", "fp16"]))
    n = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = random_batches(draw, rng, n, "bfloat16" if mode == "mixed_bfloat16" else "float16")
    g = Graph(draw, rng, n, largest_exponent=8, floats={"x0": (n, n), "x1": (n, n)})
    for _ in range(draw(st.integers(1, 3))):
        add_node(g, draw(st.sampled_from(("Mul", "Mul", "Add", "Sub", "MatMul", "Neg"))))
    large = list(g.floats)[-1]
    for _ in range(draw(st.integers(1, 3))):
        first, second = (draw(st.sampled_from([-1e6, -6e4, 0.0, 1.0, 6e4, 7e4])) for _ in range(2))
        shape, op = g.floats[large], draw(st.sampled_from(["Max", "Min", "Clip"]))
        bounds = [np.array(x, np.float32) for x in sorted((first, second))] if op == "Clip" else [np.float32([[first]])]
        large = g.node(op, [large, *map(g.weight, bounds)])
        g.floats[large] = shape
    for _ in range(draw(st.integers(0, 2))):
        add_node(g, draw(st.sampled_from(("Neg", "Add", "Mul", "Max", "Min", "Sigmoid"))))
    # The bounded tensor, or a Neg of it, stays an output, because a model needs one.
    unread = {y for node in g.nodes for y in node.output} - {name for node in g.nodes for name in node.input} - {large}
    dropped = frozenset(name for name in sorted(unread) if draw(st.booleans()))
    if any(large in node.input for node in g.nodes):
        g.node("Neg", [large])
    model = build_model(g.nodes, g.weights, (n, n), dropped)
    return Case(model, random_policy(draw, mode, g.nodes), feeds, draw(st.booleans()))


@st.composite
def ordered_cases(draw: st.DrawFn) -> Case:
    """Draw up to three operators, then operators that make integers or an order, and what follows them."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "mixed_bfloat16", "fp16"]))
    n = draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low = "bfloat16" if mode == "mixed_bfloat16" else "float16"
    feeds = [{x: nearly_equal_input(rng, (n, n), low) for x in ("x0", "x1")} for _ in range(draw(st.integers(1, 3)))]
    g = Graph(draw, rng, n, largest_exponent=2, floats={"x0": (n, n), "x1": (n, n)})
    for _ in range(draw(st.integers(1, 3))):
        add_node(g, draw(st.sampled_from(("Mul", "Mul", "Add", "Sub", "Neg", "Relu", "Transpose", "Max", "ReduceMax"))))
    for _ in range(draw(st.integers(1, 4))):
        source = draw(st.sampled_from(list(g.floats)[-2:]))
        if g.integers and draw(st.booleans()):
            add_integer_move(g, draw(st.sampled_from((*INTEGER_MOVES, "Add"))), draw(st.sampled_from(list(g.integers))))
        elif draw(st.booleans()):
            add_order(g, source)
        else:
            add_integers(g, draw(st.sampled_from(SOURCES)), source)
    return Case(build_model(g.nodes, g.weights, (n, n)), random_policy(draw, mode, g.nodes), feeds, draw(st.booleans()))


def build_model(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    shape: Shape,
    dropped: frozenset[str] = frozenset(),
) -> onnx.ModelProto:
    """Return a model of these nodes. Each tensor that no node reads is an output, except for those in ``dropped``."""
    read = {name for node in nodes for name in node.input} | dropped
    inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in ("x0", "x1")]
    outputs = [helper.make_empty_tensor_value_info(y) for node in nodes for y in node.output if y not in read]
    graph = helper.make_graph(nodes, "exact", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model
