"""What a plan rounds: at each node the inputs and outputs that become low, as the emulation does it.

A node that is low reads each input rounded to its low type and hands out rounded outputs. A plan that differs in a
list differs in these roundings alone, so a graph that can do all of them, each behind a gate, serves every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mixlist.graph.model import Node, Scope
from mixlist.graph.naming import label, scope_path
from mixlist.ops import types
from mixlist.resolver import Plan
from mixlist.resolver.solution import Solution
from mixlist.resolver.wants import Use, uses
from mixlist.rewriter.emulate import EXACT, LOW

Name = Callable[[Solution, Node], tuple[str, str]]


class Site(NamedTuple):
    """A node, or (``slot`` not -1) one place where control flow, a call or a scope's output reads a value.

    ``calls`` are the calls on the way to it, by scope and name; ``name`` is "" for an output of the scope.
    """

    calls: tuple[str, ...]
    scope: str
    name: str
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Rounding:
    """Element types that a node's inputs and outputs are rounded to, by slot; 0 where they are not."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()

    def covers(self, other: Rounding) -> bool:
        """Whether this one serves for the other: rounding what is rounded already changes nothing."""
        return self.outputs == other.outputs and all(
            theirs in (0, ours) for ours, theirs in zip(self.inputs, other.inputs, strict=True)
        )


class Sites:
    """The roundings of the plans of one ``Resolver``: names of nodes are made once."""

    def __init__(self) -> None:
        self._names: dict[Node, tuple[str, str]] = {}
        self._paths: dict[Scope, str] = {}

    def of(self, plan: Plan, *, every: bool = False) -> dict[Site, Rounding]:
        """What ``plan`` rounds. With ``every``, inputs of a low node also where what they read is low already."""
        local: dict[Solution, dict[Site, Rounding]] = {}
        found: dict[Site, Rounding] = {}
        for calls, solution in _reached(plan.solution.solutions[0], (), self.name):
            if solution not in local:
                local[solution] = dict(self._solution(solution, every))
            if not calls:
                found.update(local[solution])
            else:
                found.update((site._replace(calls=calls), what) for site, what in local[solution].items())
        return found

    def name(self, solution: Solution, node: Node) -> tuple[str, str]:
        """Scope and display name of a node."""
        known = self._names.get(node)
        if known is None:
            known = self._names[node] = (self._path(solution, node.scope), label(node))
        return known

    def _path(self, solution: Solution, scope: Scope) -> str:
        known = self._paths.get(scope)
        if known is None:
            known = self._paths[scope] = scope_path(solution.graph, scope)
        return known

    def _solution(self, solution: Solution, every: bool) -> Iterator[tuple[Site, Rounding]]:
        slots: dict[Node, list[int]] = {}
        low: dict[Node, set[int]] = {}
        for use in uses(solution):
            elem = _read_as(use, solution, every)
            node = use.node
            if node is None:
                if elem:
                    yield Site((), self._path(solution, use.scope), "", use.slot), Rounding((elem,))
            elif node.bodies or node.function is not None:
                if elem:
                    yield Site((), *self.name(solution, node), use.slot), Rounding((elem,))
            else:
                if elem:
                    slots.setdefault(node, [0] * len(node.inputs))[use.slot] = elem
                if elem or (solution.decided[use.value.id] if use.want is None else use.want) in LOW:
                    low.setdefault(node, set()).add(use.slot)
        yield from _outputs(solution, every)
        for node in solution.graph.order:
            if node.bodies or node.function is not None or node.op_type == "Constant":
                continue
            outputs = () if _moves_low(node, low.get(node)) else _made(solution, node)
            inputs = slots.get(node)
            if inputs is not None or any(outputs):
                given = tuple(inputs) if inputs is not None else (0,) * len(node.inputs)
                yield Site((), *self.name(solution, node)), Rounding(given, outputs)


def _outputs(solution: Solution, every: bool) -> Iterator[tuple[Site, Rounding]]:
    """The graph outputs that are declared low and made high: they keep their types, so a Cast goes before them."""
    root = solution.graph.root
    for slot, value in enumerate(root.outputs if not solution.graph.path else ()):
        declared = types.element(root.output_types[slot])
        if declared in LOW and isinstance(value.type, int) and (every or solution.decided[value.id] != declared):
            yield Site((), "", "", slot), Rounding((declared,))


def _read_as(use: Use, solution: Solution, every: bool) -> int:
    """The low type that the value is rounded to where it is read; 0 where it comes as it is."""
    want, value = use.want, use.value
    if want is None or want not in LOW or not isinstance(value.type, int):
        return 0
    if value.tensor is not None:  # a constant is converted for whom it suits
        return want if types.element(value.type) != want else 0
    return want if every or solution.decided[value.id] != want else 0


def _made(solution: Solution, node: Node) -> tuple[int, ...]:
    """The low types of a node's outputs; () where none is low."""
    elems = [
        solution.decided[v.id] if v is not None and isinstance(v.type, int) else types.UNKNOWN for v in node.outputs
    ]
    return tuple([e if e in LOW else 0 for e in elems]) if not LOW.isdisjoint(elems) else ()


def _moves_low(node: Node, low: set[int] | None) -> bool:
    """Whether the outputs are values of inputs that are low, all of them: they need no rounding."""
    if low is None or node.op_type not in EXACT or node.domain:
        return False
    return all(
        slot in low for slot, v in enumerate(node.inputs) if v is not None and types.element(v.type) in types.LISTED
    )


def _reached(solution: Solution, calls: tuple[str, ...], name: Name) -> Iterator[tuple[tuple[str, ...], Solution]]:
    """The Solution and those of all calls below, each with the calls that lead there."""
    yield calls, solution
    for node in solution.graph.order:
        callee = solution.callees.get(node.id)
        if callee is not None:
            yield from _reached(callee, (*calls, "/".join(name(solution, node))), name)
