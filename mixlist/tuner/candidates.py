"""List the edits that a search may make, and make the policy under a set of them (Rule S9.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from mixlist.diagnostics import FilePlace
from mixlist.graph.model import Node
from mixlist.graph.naming import node_ref
from mixlist.graph.refs import NodeRef, unique_names
from mixlist.lists.library import ListName, Lists, Move
from mixlist.lists.node_rules import is_nameable
from mixlist.lists.policy import NodeRule, Policy
from mixlist.ops import types
from mixlist.ops.names import ascend_names
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.decisions import GraphSolution, reachable_solutions

_HERE = FilePlace("tune", 1, 1)


@dataclass(frozen=True, order=True)
class ListEdit:
    """An op type (the list's own name) goes to another list."""

    op: str
    before: ListName
    after: ListName

    @cached_property
    def text(self) -> str:
        return f"{self.op}: {self.before} to {self.after}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True)
class NodeEdit:
    """A node computes in float32 by a rule of its own; ``pattern`` names it in a customize_dtypes file.

    ``inputs`` and ``outputs``: float32 where the slot has a float type, "" for any.
    """

    pattern: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        return f"{self.pattern} ({self.op_type}): float32"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def rule(self) -> NodeRule:
        """The rule of a customize_dtypes file."""
        asked = tuple(i or None for i in self.inputs), tuple(o or None for o in self.outputs)
        return NodeRule("name", self.pattern, False, _HERE, *asked)


Edit = ListEdit | NodeEdit
EditSet = frozenset[Edit]


@dataclass(frozen=True)
class Candidate:
    """One edit that the search may make, and the nodes that it is about, each once."""

    edit: Edit
    nodes: tuple[NodeRef, ...]


def policy_of(base: Policy, edits: EditSet) -> Policy:
    """Return the policy under some edits: the base's lists with the edits, the rules of nodes before its own."""
    moves = dict(base.lists.moves)
    named = set(base.lists.named_ops)
    rules = []
    for edit in sorted(edits, key=attrgetter("text")):
        if isinstance(edit, ListEdit):
            moves[edit.op] = Move(edit.op, base.lists.list_of(edit.op), edit.after, None)
            named.add(edit.op)
        else:
            rules.append(edit.rule)
    lists = Lists(base.lists.library, moves, frozenset(named), base.lists.entry_places)
    return replace(base, lists=lists, rules=(*rules, *base.rules))


def list_candidates(
    main: GraphSolution, base: Policy, after: ListName, low: set[NodeRef] | None
) -> tuple[Candidate, ...]:
    """Return the op types that could go to the list ``after``, by name: those of nodes in ``low``, or of all (None).

    ``main`` says which list they are on now, ``base`` from which one the edit moves them.
    """
    nodes: dict[str, dict[NodeRef, None]] = {}
    for solution, node in _listed_nodes(main):
        fact = solution.classifications[node.id]
        ref = node_ref(solution.graph, node)
        if fact.listed is None or fact.list == after or (low is not None and ref not in low):
            continue
        if base.space == "ascend" and not ascend_names(node.domain, node.op_type):
            continue  # no name of the library means it
        nodes.setdefault(fact.listed.op, {})[ref] = None
    return tuple(Candidate(ListEdit(op, base.lists.list_of(op), after), tuple(nodes[op])) for op in sorted(nodes))


def node_candidates(main: GraphSolution, nodes: set[NodeRef]) -> tuple[Candidate, ...]:
    """Return those of ``nodes`` that a rule can name and keep in float32, in order of computation.

    Where several nodes share a name, the rule also names the scope. Left out: names that no rule can hold, and nodes
    that a rule decides already.
    """
    graphs = {id(s.graph): s.graph for s in reachable_solutions(main)}
    names = unique_names(node_ref(graph, node) for graph in graphs.values() for node in graph.nodes)
    candidates: dict[str, Candidate] = {}
    for solution, node in _listed_nodes(main):
        ref, signature = node_ref(solution.graph, node), node.signature
        if ref not in nodes or signature is None or signature.has_fixed_output or not signature.groups:
            continue
        name = names.get(ref, "")
        if not is_nameable(name) or solution.classifications[node.id].kind == "rule":
            continue
        movable = [g for g in signature.groups if g.authored in types.MIXABLE]
        inputs = _float32_at({slot for g in movable for slot in g.inputs}, node.inputs)
        outputs = _float32_at({slot for g in movable for slot in g.outputs}, node.outputs)
        candidates.setdefault(name, Candidate(NodeEdit(name, node.op_type, inputs, outputs), (ref,)))
    return tuple(candidates.values())


def _float32_at(slots: set[int], values: Sequence[object]) -> tuple[str, ...]:
    """Return float32 at the slots that have a value, nothing behind the last one."""
    present = [slot for slot in slots if slot < len(values) and values[slot] is not None]
    return tuple(["float32" if slot in present else "" for slot in range(max(present, default=-1) + 1)])


def _listed_nodes(main: GraphSolution) -> Iterator[tuple[GraphSolution, Node]]:
    """Yield every node that lists may decide; a function's once per specialization."""
    for solution in reachable_solutions(main):
        for node in solution.graph.nodes:
            if not is_control_flow(node) and node.function is None:
                yield solution, node
