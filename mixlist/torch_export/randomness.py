"""Random operators become graph inputs ``random.<n>``, so that a step is a function of its inputs alone.

What the trainer draws for an input stands in the model's metadata: ``pkg.mixlist.random.<input>`` is JSON with
``kind`` (``uniform``: [0, 1), ``normal``: mean 0 and deviation 1, ``bernoulli``: 1 with probability ``p``, else 0) and
``off``, the distribution's mean. Every such input is float32; its shape is the one declared, batch first.

An input full of ``off`` switches the randomness off, for evaluation: dropout multiplies with the draw and with
1 / (1 - p), which is 1 for the draw's mean 1 - p; noise of mean 0 is no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mixlist.errors import ModelError

aten = torch.ops.aten
PREFIX = "random."
Draw = Callable[..., Any]  # (kind, **parameters) -> the input's node, of the operator's shape


def lift(graph: Any, mode: Any, batch: Any) -> list[tuple[str, dict[str, Any]]]:
    """Replaces the random operators of an fx ``graph``; returns each new input's name and distribution, in order.

    ``batch`` is the batch size's symbol, or None. An input's shape is (batch, ...) or, where the operator's is not,
    (batch, values per row) with a Reshape behind it. Raises ModelError for an operator that cannot be drawn ahead.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            _refuse_random(node)
            continue

        def draw(kind: str, node: Any = node, **parameters: Any) -> Any:
            nonlocal last
            name = f"{PREFIX}{len(found)}"
            off = {"uniform": 0.5, "normal": 0.0}.get(kind, parameters.get("p"))
            found.append((name, {"kind": kind, **parameters, "off": off}))
            shape = list(node.meta["val"].shape)
            rows = _declared(shape, batch)
            with graph.inserting_after(last):
                last = graph.placeholder(f"random_{len(found) - 1}")
            with mode:
                last.meta["val"] = torch.empty(rows, dtype=torch.float32)
            return last if rows == shape else graph.call_function(aten.view.default, (last, shape))

        with graph.inserting_before(node):
            node.replace_all_uses_with(rule(graph, node, draw))
        _describe_new(graph, node, mode)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return found


def _describe_new(graph: Any, instead_of: Any, mode: Any) -> None:
    """The nodes put there for another: they come from its module, and have types and shapes."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            node.meta = {key: value for key, value in instead_of.meta.items() if key == "nn_module_stack"}
            with mode:
                args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
                node.meta["val"] = node.target(*args, **named)


def _declared(shape: list[Any], batch: Any) -> list[Any]:
    if all(isinstance(size, int) for size in shape) or (shape[0] is batch or str(shape[0]) == str(batch)):
        return shape
    size = math.prod(shape)
    if batch is None or size % batch != 0:
        raise ModelError(
            f"a random tensor of shape {shape} has no whole number of values for each row of the batch",
            hint="draw one value or one tensor per row",
        )
    return [batch, size // batch]


def _refuse_random(node: Any) -> None:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        raise ModelError(
            f"{node.target} in {scope_of(node)} draws numbers that no trainer can draw ahead of the step",
            hint="use torch.rand, randn, bernoulli or dropout, or make the numbers a batch input",
        )


def scope_of(node: Any) -> str:
    """The module that a node comes from, for messages."""
    name = node.meta.get("nn_module_stack", {}).get("scope", ("", ""))[0]
    return f"module {name!r}" if name else "the model"


def _call(graph: Any, operator: Any, *args: Any) -> Any:
    return graph.call_function(operator, args)


def _uniform(graph: Any, node: Any, draw: Draw) -> Any:
    return draw("uniform")


def _normal(graph: Any, node: Any, draw: Draw) -> Any:
    return draw("normal")


def _uniform_between(graph: Any, node: Any, draw: Draw) -> Any:
    low, high = _parameters(node, 0.0, 1.0)
    return _affine(graph, draw("uniform"), high - low, low)


def _normal_around(graph: Any, node: Any, draw: Draw) -> Any:
    mean, deviation = _parameters(node, 0.0, 1.0)
    return _affine(graph, draw("normal"), deviation, mean)


def _parameters(node: Any, *defaults: float) -> list[Any]:
    given = list(node.args[1:])
    return given + list(defaults[len(given) :])


def _affine(graph: Any, value: Any, factor: Any, term: Any) -> Any:
    scaled = value if factor == 1 else _call(graph, aten.mul.Tensor, value, factor)
    return scaled if term == 0 else _call(graph, aten.add.Tensor, scaled, term)


def _bernoulli(graph: Any, node: Any, draw: Draw) -> Any:
    return draw("bernoulli", p=node.args[1] if len(node.args) > 1 else 0.5)


def _bernoulli_of(graph: Any, node: Any, draw: Draw) -> Any:
    below = _call(graph, aten.lt.Tensor, draw("uniform"), node.args[0])
    return graph.call_function(aten._to_copy.default, (below,), {"dtype": node.meta["val"].dtype})


def _exponential(graph: Any, node: Any, draw: Draw) -> Any:
    rate = node.args[1] if len(node.args) > 1 else 1.0
    rest = _call(graph, aten.add.Tensor, _call(graph, aten.neg.default, draw("uniform")), 1.0)  # in (0, 1]
    return _call(graph, aten.div.Tensor, _call(graph, aten.log.default, rest), -rate)


_RULES: dict[Any, Callable[[Any, Any, Draw], Any]] = {
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.uniform.default: _uniform_between,
    aten.normal_functional.default: _normal_around,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli_of,
    aten.exponential.default: _exponential,
}
