"""Replace random operators by graph inputs ``random.<n>``, so that a step depends on its inputs alone.

The metadata ``pkg.mixlist.random.<input>`` describes how the trainer draws an input. It is a JSON object with

- ``kind``: ``uniform`` (from 0 to 1, without 1), ``normal`` (mean 0, deviation 1) or ``bernoulli`` (1 with probability
  ``p``, else 0);
- ``off``: the mean of the distribution. An input full of this value switches the randomness off, for evaluation.

Example: a Dropout that keeps a value with probability p multiplies it by draw / p. Its ``off`` is p, which makes this
factor 1. Normal noise has the ``off`` 0, so nothing is added.

Every such input is float32. Its first axis is the batch, unless the random operator has a fixed shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from mixlist.errors import ModelError
from mixlist.torch_export.step_names import RANDOM_PREFIX
from mixlist.torch_export.trace_errors import describe_module

if TYPE_CHECKING:
    from torch import SymInt
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx import Graph, Node

    # (kind, **parameters of the distribution) -> a node with the draws, in the shape of the random operator
    AddInput = Callable[..., Node]

aten = torch.ops.aten


def lift_random_operators(
    graph: Graph, mode: FakeTensorMode, sizes: Collection[SymInt]
) -> dict[str, Mapping[str, object]]:
    """Replace the random operators of ``graph`` in place; return the distribution of each new input by its name.

    ``sizes`` are the symbolic sizes. If the first axis of an operator is not the batch, the input has the shape (batch,
    values per row), and a view restores the operator's shape. Raises ModelError for an operator whose numbers cannot be
    drawn before the step.
    """
    distributions: dict[str, Mapping[str, object]] = {}
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        replacement = _REPLACEMENTS.get(node.target) if node.op == "call_function" else None
        if replacement is None:
            _refuse_if_random(node)
            continue

        # ``node`` is a default argument, so that the function keeps the node of its own loop iteration.
        def add_input(kind: str, node: Node = node, **parameters: float) -> Node:
            nonlocal last_input
            number = len(distributions)
            mean = {"uniform": 0.5, "normal": 0.0}.get(kind, parameters.get("p"))
            distributions[f"{RANDOM_PREFIX}{number}"] = {"kind": kind, **parameters, "off": mean}
            shape = list(node.meta["val"].shape)
            input_shape = _input_shape(shape, sizes)
            with graph.inserting_after(last_input):  # after the other inputs: their order is part of the format
                last_input = graph.placeholder(f"random_{number}")
            with mode:
                last_input.meta["val"] = torch.empty(input_shape, dtype=torch.float32)
            return last_input if input_shape == shape else _add_node(graph, aten.view.default, last_input, shape)

        with graph.inserting_before(node):
            node.replace_all_uses_with(replacement(graph, node, add_input))
        _complete_new_nodes(graph, node, mode)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return distributions


def _complete_new_nodes(graph: Graph, replaced: Node, mode: FakeTensorMode) -> None:
    """Give each new node the module of the node ``replaced``, and compute the new node's type and shape."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:  # a node that this module has just added
            node.meta = {key: value for key, value in replaced.meta.items() if key == "nn_module_stack"}
            with mode:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
                node.meta["val"] = node.target(*args, **kwargs)


def _input_shape(shape: Sequence[int | SymInt], sizes: Collection[SymInt]) -> Sequence[int | SymInt]:
    """Return the shape of the input for an operator of ``shape``: that shape, or (batch, values per row).

    Example: nn.MultiheadAttention folds batch and heads into one axis, so (4 * batch, 5, 5) becomes (batch, 100).
    Raises ModelError if the batch size does not divide the number of values.
    """
    # Symbolic sizes are compared as texts: torch may have two objects for one symbol.
    if all(isinstance(size, int) for size in shape) or str(shape[0]) in map(str, sizes):
        return shape
    value_count = math.prod(shape)
    batch_size = next(iter(sizes)) if len(sizes) == 1 else None
    if batch_size is None or value_count % batch_size != 0:
        raise ModelError(
            f"a random tensor of shape {shape} cannot be divided among the rows of the batch",
            hint="draw one value or one tensor per row",
        )
    return [batch_size, value_count // batch_size]


def _refuse_if_random(node: Node) -> None:
    """Raise ModelError if a node that has no replacement draws random numbers."""
    # torch tags every operator that reads its random generator.
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise ModelError(
            f"{node.target} in {describe_module(node)} draws random numbers that cannot be drawn before the step",
            hint="use torch.rand, randn, bernoulli or dropout, or make the numbers a batch input",
        )


def _add_node(graph: Graph, operator: OpOverload, *args: object, **kwargs: object) -> Node:
    return graph.call_function(operator, args, kwargs)


def _distribution_parameters(node: Node, *defaults: float) -> tuple[float, ...]:
    """Return the arguments of a random operator after its tensor, with ``defaults`` for those that are missing."""
    arguments = tuple(node.args[1:])
    return arguments + defaults[len(arguments) :]


# Each replacement below takes the graph, the node of a random operator and ``add_input``. It returns the node that has
# the value of the random operator.


def _replace_uniform(graph: Graph, node: Node, add_input: AddInput) -> Node:
    low, high = _distribution_parameters(node, 0.0, 1.0)
    return _scale_and_shift(graph, add_input("uniform"), high - low, low)


def _replace_normal(graph: Graph, node: Node, add_input: AddInput) -> Node:
    mean, deviation = _distribution_parameters(node, 0.0, 1.0)
    return _scale_and_shift(graph, add_input("normal"), deviation, mean)


def _scale_and_shift(graph: Graph, value: Node, factor: float, term: float) -> Node:
    scaled = value if factor == 1 else _add_node(graph, aten.mul.Tensor, value, factor)
    return scaled if term == 0 else _add_node(graph, aten.add.Tensor, scaled, term)


def _replace_bernoulli(graph: Graph, node: Node, add_input: AddInput) -> Node:
    (probability,) = _distribution_parameters(node, 0.5)
    return add_input("bernoulli", p=probability)


def _replace_bernoulli_of_tensor(graph: Graph, node: Node, add_input: AddInput) -> Node:
    """Draw 1 with the probabilities that a tensor holds: a uniform draw is below p with probability p."""
    is_below = _add_node(graph, aten.lt.Tensor, add_input("uniform"), node.args[0])
    return _add_node(graph, aten._to_copy.default, is_below, dtype=node.meta["val"].dtype)


def _replace_exponential(graph: Graph, node: Node, add_input: AddInput) -> Node:
    """Draw -log(1 - u) / rate, for u uniform from 0 to 1."""
    (rate,) = _distribution_parameters(node, 1.0)
    # 1 - u, since u may be 0 and the logarithm of 0 is infinite.
    complement = _add_node(graph, aten.add.Tensor, _add_node(graph, aten.neg.default, add_input("uniform")), 1.0)
    return _add_node(graph, aten.div.Tensor, _add_node(graph, aten.log.default, complement), -rate)


_REPLACEMENTS: Mapping[OpOverload, Callable[[Graph, Node, AddInput], Node]] = {
    aten.rand.default: lambda graph, node, add_input: add_input("uniform"),
    aten.rand_like.default: lambda graph, node, add_input: add_input("uniform"),
    aten.randn.default: lambda graph, node, add_input: add_input("normal"),
    aten.randn_like.default: lambda graph, node, add_input: add_input("normal"),
    aten.uniform.default: _replace_uniform,
    aten.normal_functional.default: _replace_normal,
    aten.bernoulli.p: _replace_bernoulli,
    aten.bernoulli.default: _replace_bernoulli_of_tensor,
    aten.exponential.default: _replace_exponential,
}
