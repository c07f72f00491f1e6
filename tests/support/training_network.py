"""Two-layer networks with their gradients, written by hand as step graphs; data for them, and policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from mixlist.lists.policy import Policy
from tests.support.builders import model, policy

LOW = ("MatMul", "Add", "Relu", "Transpose", "Where")
HIGH = ("Sub", "Mul", "Div", "ReduceMean", "ReduceSum", "Softmax", "LogSoftmax", "Neg", "Greater")

# z = relu(x w1 + b1) w2 + b2, and back from gz, the gradient of z.
FORWARD = """
    [hidden] a = MatMul (x, w1)
    [hidden_bias] pre = Add (a, b1)
    [relu] h = Relu (pre)
    [out] c = MatMul (h, w2)
    [out_bias] logits = Add (c, b2)
"""
BACKWARD = """
    [ht] ht = Transpose <perm = [1, 0]> (h)
    [of_w2] grad_w2 = MatMul (ht, gz)
    [of_b2] grad_b2 = ReduceSum <keepdims = 0> (gz, rows)
    [w2t] w2t = Transpose <perm = [1, 0]> (w2)
    [gh] gh = MatMul (gz, w2t)
    [positive] positive = Greater (pre, zero)
    [gpre] gpre = Where (positive, gh, zero)
    [xt] xt = Transpose <perm = [1, 0]> (x)
    [of_w1] grad_w1 = MatMul (xt, gpre)
    [of_b1] grad_b1 = ReduceSum <keepdims = 0> (gpre, rows)
"""
# Half the mean square of z - t: two means over two values each, so that no order of sums matters.
SQUARES = """
    [error] e = Sub (logits, t)
    [square] s = Mul (e, e)
    [mean_1] m = ReduceMean <axes = [1], keepdims = 0> (s)
    [mean_0] loss = ReduceMean <axes = [0], keepdims = 0> (m)
    [scaled] es = Mul (e, loss_scale)
    [gz] gz = Mul (es, half)
"""
ENTROPY = """
    [hot] hot = OneHot <axis = 1> (y, depth, values)
    [log] lp = LogSoftmax <axis = 1> (logits)
    [picked] picked = Mul (lp, hot)
    [sum] per = ReduceSum <keepdims = 0> (picked, columns)
    [mean] m = ReduceMean <keepdims = 0> (per)
    [loss] loss = Neg (m)
    [softmax] p = Softmax <axis = 1> (logits)
    [difference] d = Sub (p, hot)
    [scaled] ds = Mul (d, loss_scale)
    [count] shape = Shape (y)
    n = Cast <to = 1> (shape)
    [gz] gz = Div (ds, n)
"""


def _sizes(inputs: int, hidden: int, outputs: int) -> tuple[str, str]:
    shapes = {"w1": f"{inputs}, {hidden}", "b1": f"{hidden}", "w2": f"{hidden}, {outputs}", "b2": f"{outputs}"}
    parameters = ", ".join(f"float[{shape}] {name}" for name, shape in shapes.items())
    gradients = ", ".join(f"float[{shape}] grad_{name}" for name, shape in shapes.items())
    return parameters, gradients


def step(text: str) -> onnx.ModelProto:
    """A step graph from ONNX text, whose names hold no dots: ``grad_w`` there is ``grad.w`` in the model."""
    step_model = model(text)
    for node in step_model.graph.node:
        node.output[:] = [_dotted(name) for name in node.output]
    for output in step_model.graph.output:
        output.name = _dotted(output.name)
    return step_model


def _dotted(name: str) -> str:
    return name.replace("_", ".", 1) if name.startswith(("grad_", "state_")) else name


def squares(inputs: int = 2, hidden: int = 2, outputs: int = 2) -> onnx.ModelProto:
    """The step with the mean square."""
    parameters, gradients = _sizes(inputs, hidden, outputs)
    return step(
        f"step ({parameters}, float[N, {inputs}] x, float[N, {outputs}] t, float loss_scale)"
        f" => (float loss, {gradients})"
        f" <float half = {{0.5}}, float zero = {{0}}, int64[1] rows = {{0}}> {{ {FORWARD} {SQUARES} {BACKWARD} }}"
    )


def classifier(inputs: int = 4, hidden: int = 16, outputs: int = 3, replace: dict[str, str] | None = None) -> Any:
    """The step with softmax and cross entropy; ``replace`` replaces parts of its text."""
    parameters, gradients = _sizes(inputs, hidden, outputs)
    body = f"{FORWARD} {ENTROPY} {BACKWARD}"
    for old, new in (replace or {}).items():
        assert old in body
        body = body.replace(old, new)
    return step(
        f"step ({parameters}, float[N, {inputs}] x, int64[N] y, float loss_scale)"
        f" => (float loss, {gradients}, float[N, {outputs}] logits)"
        f" <float zero = {{0}}, int64[1] rows = {{0}}, int64[1] columns = {{1}}, int64[1] depth = {{{outputs}}},"
        f" float[2] values = {{0, 1}}> {{ {body} }}"
    )


def clusters(count: int = 240, inputs: int = 4, classes: int = 3, seed: int = 0) -> dict[str, Any]:
    """Samples around one center per class; a network learns them in a few steps."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(0, 2, (classes, inputs))
    y = rng.integers(0, classes, count)
    return {"x": (centers[y] + rng.normal(0, 0.5, (count, inputs))).astype(np.float32), "y": y.astype(np.int64)}


def samples(count: int = 40, size: float = 1.0) -> dict[str, Any]:
    """Return random samples for ``squares`` and ``noisy``."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, size, (count, 2)).astype(np.float32) for name in ("x", "t")}


def mixed(low: str = "float16") -> Policy:
    """Products and what is around them low, the loss layer and sums high."""
    return policy(white=LOW, black=HIGH, mode=f"mixed_{low}")


def all_low() -> Policy:
    """Everything low, the loss layer too."""
    return policy(white=(*LOW, *HIGH, "OneHot"))


def noisy() -> onnx.ModelProto:
    """The step with dropout by an input (``keep``, 1 with probability 0.75) and a counter of its steps (``seen``)."""
    parameters, gradients = _sizes(2, 2, 2)
    forward = FORWARD.replace("MatMul (h, w2)", "MatMul (dropped, w2)").replace(
        "[out] c", "[drop] kept = Mul (h, keep) [up] dropped = Div (kept, share) [out] c"
    )
    backward = BACKWARD.replace("Where (positive, gh, zero)", "Where (positive, gd, zero)").replace(
        "[positive]", "[gdrop] gk = Mul (gh, keep) [gup] gd = Div (gk, share) [positive]"
    )
    step_model = step(
        f"step ({parameters}, int64[1] seen, float[N, 2] x, float[N, 2] t, float[N, 2] keep, float loss_scale)"
        f" => (float loss, {gradients}, int64[1] state_seen)"
        f" <float half = {{0.5}}, float zero = {{0}}, int64[1] rows = {{0}}, float share = {{0.75}},"
        f" int64[1] one = {{1}}>"
        f" {{ {forward} {SQUARES} {backward} state_seen = Add (seen, one) }}"
    )
    step_model.metadata_props.add(key="pkg.mixlist.random.keep", value='{"kind": "bernoulli", "p": 0.75, "off": 0.75}')
    return step_model
