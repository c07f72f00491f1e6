"""Deciding: one decision per node, in topological order (Rule S4.10).

Every step is a node or a link (values that control flow ties to one type). A value's decided
element type starts undecided (0) and only rises: undecided < low < anything else. So each value changes at
most twice, and one pass in topological order, then a worklist for what a Loop or Scan feeds
back, reaches the greatest fixpoint in linear time. What is still undecided then is authored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.ops import types
from mixlist.ops.schema import find_schema
from mixlist.ops.signature import Assignment
from mixlist.patterns.constants import ConstantRanges
from mixlist.resolver import gray_policies, sequence_groups
from mixlist.resolver.classification import Facts, is_control_flow
from mixlist.resolver.decisions import UNDECIDED, Solution, join
from mixlist.resolver.node_rules import Rules
from mixlist.resolver.schedule import Step, collect, read_by
from mixlist.resolver.sequence_groups import Cluster


class Resolution:
    """The shared state of one resolve: the policy's facts, constants' ranges, function specialisations."""

    def __init__(self, facts: Facts, rules: Rules, ranges: ConstantRanges) -> None:
        self.facts = facts
        self.rules = rules
        self.ranges = ranges
        self.low = facts.low
        self.policy = facts.policy
        self.specialised: dict[tuple[Any, ...], Solution] = {}

    def solve(self, graph: Graph) -> Solution:
        """Decide the main graph."""
        return Solver(self, graph).run((), (), (), ())

    def fits(self, value: Value) -> bool:
        """Whether a constant may be converted to the low type under the policy."""
        return self.policy.constants != "keep" or self.ranges.fits(value, self.low)

    def specialise(
        self,
        graph: Graph,
        arguments: tuple[int, ...],
        wanted: tuple[int, ...],
        misfits: tuple[str | None, ...],
        blacks: tuple[bool, ...],
    ) -> Solution:
        """The Solution of a function's body for decided argument types; equal ones are shared.

        ``wanted``: the type that the caller needs of each output that is a container, which no Cast could change;
        0 for others. ``misfits``: why an argument's constant does not fit the low type, None where it does.
        ``blacks``: whether an argument is high by black.
        """
        key = (id(graph), arguments, wanted, tuple([m is not None for m in misfits]), blacks)
        found = self.specialised.get(key)
        if found is None:
            found = self.specialised[key] = Solver(self, graph).run(arguments, wanted, misfits, blacks)
        return found


class Solver:
    """Decides one graph; without a ``solution`` to begin from, it begins with the facts alone."""

    def __init__(self, shared: Resolution, graph: Graph, solution: Solution | None = None) -> None:
        self.shared = shared
        self.low = shared.low
        self.graph = graph
        count = len(graph.order)
        self.solution = solution or Solution(
            graph,
            [shared.facts.of(graph, n) for n in graph.order],
            [types.element(v.type) if types.element(v.type) not in types.LISTED else UNDECIDED for v in graph.values],
            [None] * count,
            [None] * count,
        )
        self.decided = self.solution.decided
        self.steps: list[Step] = []
        self.start: tuple[list[int], frozenset[int]] | None = None  # decided and high by black before the first step
        self.head = 0  # so many steps run once, in order; what feeds back comes after them
        self.between: dict[int, bool] = {}
        self.clusters: dict[Value, Cluster] = {}
        self.settling = False  # votes may still come
        self.argument_misfits: dict[int, str] = {}
        self.left: set[int] = set()  # values that no vote decided: they are authored

    def run(
        self,
        arguments: tuple[int, ...],
        wanted: tuple[int, ...],
        misfits: tuple[str | None, ...],
        blacks: tuple[bool, ...],
    ) -> Solution:
        gray_policies.pass_black(self.graph.root.inputs, blacks, self)
        self.argument_misfits = {v.id: m for v, m in zip(self.graph.root.inputs, misfits, strict=False) if m}
        for value in self.graph.values:
            if value.kind != "node" and (value.scope.owner is None or value.kind != "input"):
                self.decided[value.id] = types.element(value.type)
        for value, elem in zip(self.graph.root.inputs, arguments, strict=False):
            self.decided[value.id] = elem
        for body in self._foreign_bodies():
            for value in body.inputs:
                self.decided[value.id] = types.element(value.type)
        matched = self.shared.rules.match(self.graph)
        for node_id, fact in matched.items():
            self.solution.facts[node_id] = fact
        steps = self.steps
        feedback = collect(self.graph.root, steps, self.solution.links)
        calls = {n.id for n in self.graph.order if n.function is not None}
        self.clusters = sequence_groups.find_clusters(self.graph, self.solution.links, calls, self._border(wanted))
        steps.extend(dict.fromkeys(self.clusters.values()))
        if self.shared.policy.gray_policy == "between":
            self.between = gray_policies.between(self.graph, self.solution, self.shared)
        waits = any(
            not elem and types.element(v.type) in types.LISTED
            for v, elem in zip(self.graph.root.inputs, arguments, strict=False)
        )
        if self.clusters or (waits and feedback is not None):
            self.to_fixpoint(steps, final=not waits)
            return self.solution
        self.start = list(self.decided), frozenset(self.solution.high_by_black)
        self.head = len(steps) if feedback is None else feedback
        for step in steps[: self.head]:
            self.step(step)
        if self.head < len(steps):
            self.to_fixpoint(steps[self.head :], final=True)
        return self.solution

    def _border(self, wanted: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
        """The element types that the surroundings give to inputs and want of outputs."""
        root = self.graph.root
        for body in self._foreign_bodies():
            yield from ((v, types.element(v.type)) for v in (*body.inputs, *body.outputs))
        yield from ((v, self.decided[v.id]) for v in root.inputs)
        if self.graph.path:
            yield from zip(root.outputs, wanted, strict=False)
        else:
            yield from ((v, types.element(v.type)) for v in root.outputs)

    def _foreign_bodies(self) -> Iterator[Scope]:
        """Bodies of operators that are no control flow: only the operator knows what passes their border."""
        for node in self.graph.order:
            if node.bodies and not is_control_flow(node):
                yield from node.bodies.values()

    # --- the order of evaluation ---

    def to_fixpoint(self, steps: list[Step], final: bool) -> None:
        """Run steps that may feed back, until nothing changes.

        ``final``: false for a function whose caller has yet to decide some argument: what waits for that waits.
        """
        readers: dict[int, list[Step]] = {}
        for step in dict.fromkeys(steps):
            for value in read_by(step):
                readers.setdefault(value.id, []).append(step)
        self.settling = True
        for step in steps:
            self.step(step)
        waiting: deque[Step] = deque(dict.fromkeys(steps))
        self._drain(waiting, readers)
        if not final:
            return
        self.settling = False
        for value in self.graph.values:  # what no vote decided is authored
            if self.decided[value.id] == UNDECIDED and value.type != types.UNKNOWN:
                self.decided[value.id] = types.element(value.type)
                self.left.add(value.id)
                waiting.extend(readers.get(value.id, ()))
        waiting.extend(n for n in self.graph.order if self.solution.facts[n.id].kind == "rule")
        self._drain(waiting, readers)

    def _drain(self, waiting: deque[Step], readers: dict[int, list[Step]]) -> None:
        queued = set(waiting)
        while waiting:
            step = waiting.popleft()
            queued.discard(step)
            for value in self.step(step):
                for reader in readers.get(value.id, ()):
                    if reader not in queued:
                        queued.add(reader)
                        waiting.append(reader)

    def step(self, step: Step) -> list[Value]:
        """Evaluate one step; the values whose decided type rose."""
        if isinstance(step, Link):
            return self._run_link(step)
        if isinstance(step, Cluster):
            return self._run_cluster(step)
        if step.function is not None:
            return self._run_call(step)
        if is_control_flow(step):
            return []  # its links decide
        return self._run_node(step)

    def _set(self, node: Node, elements: list[int]) -> list[Value]:
        changed = []
        for value, elem in zip(node.outputs, elements, strict=False):
            if value is not None and self.decided[value.id] != elem and self._rises(value, elem):
                self.decided[value.id] = elem
                changed.append(value)
        return changed

    def _rises(self, value: Value, elem: int) -> bool:
        before = self.decided[value.id]
        return (
            before == UNDECIDED
            or (before == self.low and elem != UNDECIDED)
            or types.element(value.type) not in types.LISTED
        )

    # --- links and calls ---

    def _run_link(self, link: Link) -> list[Value]:
        voted = UNDECIDED
        for read in link.reads:
            if read.votes and read.value.type == types.UNKNOWN and link.targets:
                voted = join(voted, types.element(link.targets[0].type))  # a custom operator makes it as authored
            elif read.votes:
                voted = join(voted, self.decided[read.value.id])
        if voted not in (UNDECIDED, types.FLOAT) and not self.admits(link, voted):
            voted = types.FLOAT
        if voted == self.low and any(self.misfit(r.value) for r in link.reads):
            voted = types.FLOAT
        if voted not in (UNDECIDED, self.low, types.FLOAT) and link.targets:
            voted = types.element(link.targets[0].type)  # lists never make the other low type
        changed = []
        for target in link.targets:
            if types.element(target.type) not in types.LISTED or target in self.clusters:
                continue
            if voted != self.decided[target.id] and self._rises(target, voted):
                self.decided[target.id] = voted
                changed.append(target)
        black = voted == types.FLOAT and any(self._is_black(r.value) for r in link.reads)
        return changed + gray_policies.pass_black(link.targets, [black] * len(link.targets), self)

    def _is_black(self, value: Value) -> bool:
        return gray_policies.is_high_by_black(value, self.solution, self.low)

    def admits(self, link: Link, elem: int) -> bool:
        """Whether the control-flow operator takes the type at this opset (bfloat16 came late)."""
        node = link.reads[0].node
        schema = find_schema("", node.op_type, self.graph.opsets.get("", 0))
        if schema is None:
            return False
        allowed: frozenset[types.Type] = frozenset().union(*schema.allowed.values())
        return all(types.with_element(v.type, elem) in allowed for v in (*link.targets, *(r.value for r in link.reads)))

    def _run_call(self, node: Node) -> list[Value]:
        arguments = tuple([self.decided[v.id] if v is not None else 0 for v in node.inputs])
        misfits = tuple([self.misfit(v) if v is not None else None for v in node.inputs])
        wanted = tuple([self.decided[v.id] if v is not None and v in self.clusters else 0 for v in node.outputs])
        wins = self.shared.policy.gray_policy == "black-wins"
        blacks = tuple([wins and v is not None and self._is_black(v) for v in node.inputs])
        callee = self.shared.specialise(node.function, arguments, wanted, misfits, blacks)
        self.solution.callees[node.id] = callee
        parameters = zip(node.inputs, callee.graph.root.inputs, strict=False)
        told = [v for v, p in parameters if v in self.clusters and self.decided[v.id] != callee.decided[p.id]]
        made = callee.graph.root.outputs
        told += gray_policies.pass_black(
            node.outputs, [gray_policies.is_high_by_black(v, callee, self.low) for v in made], self
        )
        return told + self._set(node, [callee.decided[v.id] for v in made])

    def _run_cluster(self, cluster: Cluster) -> list[Value]:
        elem = sequence_groups.vote(cluster, self)
        changed = [v for v in cluster.values if self.decided[v.id] != elem and self._rises(v, elem)]
        for value in changed:
            self.decided[value.id] = elem
        return changed

    def _run_member(self, node: Node, cluster: Cluster) -> list[Value]:
        """A node that touches a sequence or optional has the cluster's type, whatever it voted for."""
        elem = self.decided[cluster.values[0].id]
        signature, solution = node.signature, self.solution
        assert signature is not None
        if elem == UNDECIDED:
            return []
        kind = solution.facts[node.id].kind
        target = self.low if kind == "low" else signature.groups[0].authored if kind == "authored" else elem
        if kind == "gray":
            target, solution.followed[node.id] = gray_policies.follow(node, self)
        elif kind == "rule" and not self.settling:
            sequence_groups.check_rule(node, elem, self)
        assignment = solution.assignments[node.id] = signature.assign((elem,) * len(signature.groups))
        solution.rules.pop(node.id, None)
        if target not in (elem, UNDECIDED):
            solution.rules[node.id] = "control-flow"
        return self._set(node, [types.element(t) for t in assignment.outputs])

    def misfit(self, value: Value) -> str | None:
        """Why a constant does not fit the low type, under the policy ``keep``; None for what fits or is computed."""
        if not value.constant or self.shared.policy.constants != "keep" or types.element(value.type) != types.FLOAT:
            return None
        if value.id in self.argument_misfits:
            return self.argument_misfits[value.id]
        found = self.shared.ranges.of(value)
        told = found.misfit(self.low) if found else None
        return f"constant {value.name!r} {told}" if told else None

    # --- nodes ---

    def _run_node(self, node: Node) -> list[Value]:
        solution, fact = self.solution, self.solution.facts[node.id]
        signature = node.signature
        assert signature is not None
        if self.clusters and signature.groups and not signature.fixed:
            touched = next((self.clusters[v] for v in (*node.inputs, *node.outputs) if v in self.clusters), None)
            if touched is not None:
                return self._run_member(node, touched)
        if fact.kind == "gray":
            target, source = gray_policies.follow(node, self)
            if self.left and target == self.low and any(v is not None and v.id in self.left for v in node.outputs):
                target, source = (
                    gray_policies.authored(node),
                    None,
                )  # what it follows was undecided too, and comes too late
            solution.followed[node.id] = source
            if target == UNDECIDED:
                return []
            assignment = self._aim(node, target)
        elif fact.kind == "low":
            assignment = self._aim(node, self.low)
        elif fact.kind == "raise":
            assignment = self._aim(node, types.FLOAT)
        elif fact.kind == "rule":
            assignment = self.shared.rules.assignment(self.graph, node)
        else:
            assignment = signature.authored()
        solution.assignments[node.id] = assignment
        elements = [t if isinstance(t, int) else types.element(t) for t in assignment.outputs]
        if UNDECIDED in elements:  # Constants, custom operators: the schema does not tell it
            authored = [types.element(v.type) if v is not None else 0 for v in node.outputs]
            elements = [e or a for e, a in zip(elements, authored, strict=False)]
        return self._set(node, elements)

    def _aim(self, node: Node, target: int) -> Assignment:
        """The node's types when it goes for ``target``, with what schema and constants refuse."""
        signature = node.signature
        assert signature is not None
        low = self.low
        movable = self.shared.facts.movable
        kept = signature.memo.get((target, low, movable))
        if kept is None:
            wish = tuple([target if g.authored in movable else g.authored for g in signature.groups])
            if self._reaches(target):
                assignment = signature.assign(wish)
                kept = (assignment, _refusal(assignment, wish, signature.groups))
            else:
                kept = (signature.authored(), target == low and wish != signature.authored().elements)
            signature.memo[target, low, movable] = kept
        assignment, refused = kept
        self.solution.rules.pop(node.id, None)
        self.solution.notes.pop(node.id, None)
        if refused:
            self.solution.rules[node.id] = "schema"
            return assignment
        if target == low:
            return self._hold_constants(node, assignment)
        return assignment

    def _reaches(self, target: int) -> bool:
        """Whether float32 can become the type: float16 and bfloat16 do not mix, and a Cast has to know it."""
        if target != self.low:
            return target == types.FLOAT
        imports = self.graph.model.opset_import
        cast = find_schema("", "Cast", next((o.version for o in imports if o.domain in ("", "ai.onnx")), 13))
        return cast is None or target in cast.allowed["T2"]

    def _hold_constants(self, node: Node, assignment: Assignment) -> Assignment:
        """Rule S4.7: a slot whose constant does not fit stays high, or the whole node where it cannot alone."""
        signature = node.signature
        assert signature is not None
        held: list[int] = []
        for index, group in enumerate(signature.groups):
            if assignment.elements[index] != self.low or group.authored == self.low:
                continue
            told = next(filter(None, (self.misfit(v) for v in map(node.inputs.__getitem__, group.inputs) if v)), None)
            if told:
                held.append(index)
                self.solution.notes[node.id] = told
        if not held:
            return assignment
        alone = all(
            not signature.groups[i].outputs
            and all(v is not None and v.constant for v in map(node.inputs.__getitem__, signature.groups[i].inputs))
            for i in held
        )
        if alone:
            wish = tuple(
                [
                    g.authored if i in held else e
                    for i, (g, e) in enumerate(zip(signature.groups, assignment.elements, strict=True))
                ]
            )
            apart = signature.assign(wish)
            if not apart.refused and any(e == self.low for e in apart.elements):
                return apart
        self.solution.rules[node.id] = "constant"
        return signature.authored()


def _refusal(assignment: Assignment, wish: tuple[int, ...], groups: Any) -> bool:
    """Whether the operator refused altogether: no group that should change did."""
    wanted = [i for i, (w, g) in enumerate(zip(wish, groups, strict=True)) if w != g.authored]
    return bool(wanted) and all(i in assignment.refused for i in wanted)
