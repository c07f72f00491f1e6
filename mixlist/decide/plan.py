"""The plan that ``resolve`` returns: one decision per node of a model, with its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from mixlist.decide.decisions import Decision
from mixlist.decide.describe_decisions import describe_decisions, find_chain
from mixlist.decide.solution import Solution
from mixlist.diagnostics import Diagnostic
from mixlist.files.strict_json import JsonObject
from mixlist.lists.policy import Policy
from mixlist.model.graph import pause_gc
from mixlist.result_tables import Row, flat_row, notebook_rows


@dataclass(frozen=True, repr=False)
class Plan:
    """The decisions for a whole model, in topological order of each scope.

    ``solution`` holds the same decisions by the ids of nodes and values, as ``write/`` needs them. The text of
    ``nodes`` is written when ``nodes`` is first read.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        print(plan.counts, plan.explain("/energy/Div_1"))
    """

    model: str
    policy: Policy
    warnings: tuple[Diagnostic, ...]
    solution: Solution = field(repr=False, compare=False)

    def __repr__(self) -> str:
        counts = ", ".join(f"{precision} {count}" for precision, count in self.counts.items())
        return f"<Plan of {self.model!r}: {counts}; warnings {len(self.warnings)}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the number of nodes by list and precision."""
        number_of = Counter((node.list, node.precision) for node in self.nodes)
        rows = [(name, precision, str(number)) for (name, precision), number in sorted(number_of.items())]
        return notebook_rows(f"plan of {self.model}", ("list", "precision", "nodes"), rows)

    @cached_property
    def nodes(self) -> tuple[Decision, ...]:
        """Return the decision for every node of every scope."""
        # A large model gives a million small objects, none of them garbage: searching for garbage takes long.
        with pause_gc():
            return describe_decisions(self.solution)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return the number of nodes by precision."""
        return dict(sorted(Counter(node.precision for node in self.nodes).items()))

    def explain(self, name: str) -> list[Decision]:
        """Return the chain from the named node up to the node that decided for it.

        ``name`` is a node's name, ``scope/name``, or ``./name`` for the main graph; if no node has it, the name of a
        tensor that a node makes. Raises UsageError with the nearest names if there is neither, with the readers if it
        is an input or a constant of the main graph, and with the candidates if several scopes have such a node.
        """
        return find_chain(self.nodes, name, self.solution.graph)

    def to_rows(self) -> list[Row]:
        """Return a flat row for each node, for pandas or polars: the keys of ``nodes`` in JSON."""
        rows = []
        for node in self.nodes:
            row = flat_row(node)
            del row["follows_refs"]  # ``follows`` has the names of these nodes
            rows.append(row)
        return rows

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.resolve/1`` object of schemas/resolve.json."""
        return {
            "format": "mixlist.resolve/1",
            "model": self.model,
            "precision": self.policy.mode.low,
            "gray_policy": self.policy.gray_policy,
            "op_names": self.policy.space,
            "nodes": [make_node_json(node) for node in self.nodes],
            "counts": self.counts,
        }


def make_node_json(node: Decision) -> JsonObject:
    """Return one element of ``nodes`` in the ``mixlist.resolve/1`` object."""
    # The schema has no `follows_refs`.
    fields = {name: getattr(node, name) for name in Decision.__slots__ if name != "follows_refs"}
    return fields | {"follows": list(node.follows), "outputs": dict(node.outputs)}
