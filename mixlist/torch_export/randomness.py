"""Replace random operators by graph inputs ``random.<n>``, so that a step is a function of its inputs alone.

The model's metadata say what the trainer draws for an input: ``pkg.mixlist.random.<input>`` is JSON with ``kind``
(``uniform``: [0, 1), ``normal``: mean 0 and deviation 1, ``bernoulli``: 1 with probability ``p``, else 0) and ``off``,
the distribution's mean. Every such input is float32; its shape is the one declared, batch first.

An input full of ``off`` switches the randomness off, for evaluation: dropout multiplies with the draw and with
1 / (1 - p), which is 1 for the draw's mean 1 - p; noise of mean 0 is no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from mixlist.errors import ModelError
from mixlist.torch_export.step_format import RANDOM_PREFIX

if TYPE_CHECKING:
    from torch import SymInt
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx import Graph, Node

    Draw = Callable[..., Node]  # (kind, **parameters) -> the input's node, of the operator's shape

aten = torch.ops.aten


def lift(graph: Graph, mode: FakeTensorMode, batch: SymInt | None) -> dict[str, Mapping[str, object]]:
    """Replace the random operators of ``graph``; return the distribution of each new input by its name, in order.

    ``batch`` is the batch size's symbol, or None. An input's shape is (batch, ...) or, where the operator's is not,
    (batch, values per row) with a Reshape behind it. Raises ModelError for an operator that cannot be drawn ahead.
    """
    draws: dict[str, Mapping[str, object]] = {}
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            _refuse_random(node)
            continue

        def draw(kind: str, node: Node = node, **parameters: float) -> Node:
            nonlocal last_input
            number = len(draws)
            off = {"uniform": 0.5, "normal": 0.0}.get(kind, parameters.get("p"))
            draws[f"{RANDOM_PREFIX}{number}"] = {"kind": kind, **parameters, "off": off}
            shape = list(node.meta["val"].shape)
            declared = _declared_shape(shape, batch)
            with graph.inserting_after(last_input):
                last_input = graph.placeholder(f"random_{number}")
            with mode:
                last_input.meta["val"] = torch.empty(declared, dtype=torch.float32)
            return last_input if declared == shape else _call(graph, aten.view.default, last_input, shape)

        with graph.inserting_before(node):
            node.replace_all_uses_with(rule(graph, node, draw))
        _describe_new(graph, node, mode)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return draws


def _describe_new(graph: Graph, instead_of: Node, mode: FakeTensorMode) -> None:
    """Give the nodes put there for another its module, and their types and shapes."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            node.meta = {key: value for key, value in instead_of.meta.items() if key == "nn_module_stack"}
            with mode:
                args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
                node.meta["val"] = node.target(*args, **named)


def _declared_shape(shape: Sequence[int | SymInt], batch: SymInt | None) -> Sequence[int | SymInt]:
    if all(isinstance(size, int) for size in shape) or (shape[0] is batch or str(shape[0]) == str(batch)):
        return shape
    size = math.prod(shape)
    if batch is None or size % batch != 0:
        raise ModelError(
            f"a random tensor of shape {shape} has no whole number of values for each row of the batch",
            hint="draw one value or one tensor per row",
        )
    return [batch, size // batch]


def _refuse_random(node: Node) -> None:
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise ModelError(
            f"{node.target} in {scope_of(node)} draws numbers that no trainer can draw ahead of the step",
            hint="use torch.rand, randn, bernoulli or dropout, or make the numbers a batch input",
        )


def scope_of(node: Node) -> str:
    """Name the module that a node comes from, for messages."""
    name = node.meta.get("nn_module_stack", {}).get("scope", ("", ""))[0]
    return f"module {name!r}" if name else "the model"


def _call(graph: Graph, operator: OpOverload, *args: object, **kwargs: object) -> Node:
    return graph.call_function(operator, args, kwargs)


def _parameters(node: Node, *defaults: float) -> tuple[float, ...]:
    """Return the parameters of a distribution, which stand behind the tensor."""
    given = tuple(node.args[1:])
    return given + defaults[len(given) :]


def _uniform_between(graph: Graph, node: Node, draw: Draw) -> Node:
    low, high = _parameters(node, 0.0, 1.0)
    return _affine(graph, draw("uniform"), high - low, low)


def _normal_around(graph: Graph, node: Node, draw: Draw) -> Node:
    mean, deviation = _parameters(node, 0.0, 1.0)
    return _affine(graph, draw("normal"), deviation, mean)


def _affine(graph: Graph, value: Node, factor: float, term: float) -> Node:
    scaled = value if factor == 1 else _call(graph, aten.mul.Tensor, value, factor)
    return scaled if term == 0 else _call(graph, aten.add.Tensor, scaled, term)


def _bernoulli(graph: Graph, node: Node, draw: Draw) -> Node:
    (p,) = _parameters(node, 0.5)
    return draw("bernoulli", p=p)


def _bernoulli_of(graph: Graph, node: Node, draw: Draw) -> Node:
    below = _call(graph, aten.lt.Tensor, draw("uniform"), node.args[0])
    return _call(graph, aten._to_copy.default, below, dtype=node.meta["val"].dtype)


def _exponential(graph: Graph, node: Node, draw: Draw) -> Node:
    (rate,) = _parameters(node, 1.0)
    rest = _call(graph, aten.add.Tensor, _call(graph, aten.neg.default, draw("uniform")), 1.0)  # in (0, 1]
    return _call(graph, aten.div.Tensor, _call(graph, aten.log.default, rest), -rate)


# The replacement of each operator: a function of the graph, the operator's node, and the draw.
_RULES: Mapping[OpOverload, Callable[[Graph, Node, Draw], Node]] = {
    aten.rand.default: lambda graph, node, draw: draw("uniform"),
    aten.rand_like.default: lambda graph, node, draw: draw("uniform"),
    aten.randn.default: lambda graph, node, draw: draw("normal"),
    aten.randn_like.default: lambda graph, node, draw: draw("normal"),
    aten.uniform.default: _uniform_between,
    aten.normal_functional.default: _normal_around,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli_of,
    aten.exponential.default: _exponential,
}
