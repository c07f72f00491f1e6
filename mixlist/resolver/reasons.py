"""From a Solution to Decisions: names, reasons and chains, made only when somebody asks for them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from mixlist.errors import UsageError
from mixlist.graph.model import Node, Scope, Value
from mixlist.graph.naming import label, scope_path
from mixlist.graph.traversal import linked_scopes
from mixlist.ops import types
from mixlist.ops.schema import next_opset_allowing
from mixlist.resolver.decisions import Solution
from mixlist.resolver.plan import Decision, Plan

if TYPE_CHECKING:
    from mixlist.resolver import Resolved


def decisions(resolved: Resolved) -> tuple[Decision, ...]:
    """Every node of every scope and specialisation: the main graph first, then functions in order of first call."""
    found: list[Decision] = []
    callers = _callers(resolved)
    for solution in resolved.solutions:
        writer = _Writer(resolved, solution, tuple(callers.get(solution, ())))
        for scope in linked_scopes(solution.graph.root):
            found.extend(writer.decision(node) for node in scope.nodes)
    return tuple(found)


def explain(plan: Plan, name: str) -> list[Decision]:
    """The chain of decisions from the named node up to the one that decided."""
    by_label: dict[str, list[Decision]] = {}
    for decision in plan.nodes:
        by_label.setdefault(decision.name, []).append(decision)
        if decision.scope:
            by_label.setdefault(f"{decision.scope}/{decision.name}", []).append(decision)
    hits = by_label.get(name, [])
    if not hits:
        near = get_close_matches(name, by_label, n=3, cutoff=0.4)
        raise UsageError(
            f"no node is called {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "see mixlist resolve"
        )
    if len({d.scope for d in hits}) > 1:
        places = ", ".join(f"{d.scope}/{d.name}" if d.scope else d.name for d in hits)
        raise UsageError(f"several nodes are called {name!r}", hint=f"say which: {places}")
    chain, seen = [hits[0]], {(hits[0].scope, hits[0].name)}
    while chain[-1].follows:
        producer = chain[-1].follows[0]
        near_by = [d for d in by_label.get(producer, []) if d.scope == chain[-1].scope] or by_label.get(producer, [])
        if not near_by or (near_by[0].scope, near_by[0].name) in seen:
            break
        chain.append(near_by[0])
        seen.add((near_by[0].scope, near_by[0].name))
    return chain


def precision(solution: Solution, node: Node) -> str:
    """The type of the node's main float slots; ``none`` where the lists have nothing to say."""
    assignment, signature = solution.assignments[node.id], node.signature
    if signature is None or assignment is None or solution.facts[node.id].kind == "none":
        return "none"
    primary = signature.primary
    if primary is not None and not signature.fixed:
        return types.type_name(assignment.elements[signature.groups.index(primary)])
    slots = node.outputs if signature.fixed else node.inputs
    elem = next((types.element(v.type) for v in slots if v is not None), types.UNKNOWN)
    return types.type_name(elem) if elem in types.FLOATS and node.op_type != "Constant" else "none"


def _callers(resolved: Resolved) -> dict[Solution, list[str]]:
    """The calls of each specialisation, as scope and name, where its function has several."""
    found: dict[Solution, list[str]] = {}
    for solution in resolved.solutions:
        writer = _Writer(resolved, solution, ())
        for node in solution.graph.order:
            callee = solution.callees.get(node.id)
            if callee is not None and callee.number:
                path = writer.path(node.scope)
                found.setdefault(callee, []).append(f"{path}/{label(node)}" if path else label(node))
    return found


class _Writer:
    def __init__(self, resolved: Resolved, solution: Solution, callers: tuple[str, ...]) -> None:
        self.callers = callers
        self.resolved = resolved
        self.solution = solution
        self.low = resolved.low
        self.paths: dict[Scope, str] = {}
        self.roots: dict[int, str] = {}  # the node that decided, by node id

    def decision(self, node: Node) -> Decision:
        solution = self.solution
        fact = solution.facts[node.id]
        follows = self._follows(node)
        return Decision(
            scope=self.path(node.scope),
            name=label(node),
            op_type=node.op_type,
            domain=node.domain,
            list=fact.list,
            precision=precision(self.solution, node),
            changed=self._changed(node),
            rule=self._rule(node),
            follows=follows,
            outputs={v.name: self._type(v) for v in node.outputs if v is not None},
            reason=self._reason(node, follows),
            callers=self.callers,
        )

    def path(self, scope: Scope) -> str:
        """The scope's path, with the number of the specialisation."""
        found = self.paths.get(scope)
        if found is None:
            found = scope_path(self.solution.graph, scope)
            base = self.solution.graph.path
            if base and self.solution.number:
                found = f"{base}{self.solution.number}{found[len(base) :]}"
            self.paths[scope] = found
        return found

    def _type(self, value: Value) -> str:
        decided = self.solution.decided[value.id]
        return types.type_name(types.with_element(value.type, decided) if value.type != types.UNKNOWN else value.type)

    def _changed(self, node: Node) -> bool:
        assignment, signature = self.solution.assignments[node.id], node.signature
        if assignment is None or signature is None:
            return False
        return any(e != g.authored for e, g in zip(assignment.elements, signature.groups, strict=True))

    def _rule(self, node: Node) -> str:
        return self.solution.rules.get(node.id, self.solution.facts[node.id].rule)

    # --- what a gray node follows ---

    def _follows(self, node: Node) -> tuple[str, ...]:
        value = self.solution.followed[node.id]
        if value is None or self.solution.facts[node.id].kind != "gray":
            return ()
        return (self._maker(value), self._root(node))

    def _maker(self, value: Value) -> str:
        """What a value comes from: a node, the control-flow node that hands it in, or a graph input."""
        if value.producer is not None:
            return label(value.producer)
        return label(value.scope.owner) if value.scope.owner is not None else value.name

    def _root(self, node: Node) -> str:
        """The node or input at the end of a chain of gray nodes; iterative, each node once."""
        path: list[Node] = []
        at, name = node, ""
        while True:
            known = self.roots.get(at.id)
            if known is not None:
                name = known
                break
            value = self.solution.followed[at.id]
            if value is None or self.solution.facts[at.id].kind != "gray" or at in path[-1:]:
                name = label(at)
                break
            path.append(at)
            maker = value.producer
            if maker is None or maker.bodies or maker.function is not None:
                name = self._maker(value)
                break
            at = maker
        for passed in path:
            self.roots[passed.id] = name
        return name

    # --- reasons ---

    def _reason(self, node: Node, follows: tuple[str, ...]) -> str:
        text = self._why(node, follows)
        note = self.solution.notes.get(node.id)
        if note and self._rule(node) != "constant":
            text += f"; its slot stays float32 because {note}"
        fact = self.solution.facts[node.id]
        if fact.listed is not None and fact.listed.note and fact.listed.source:
            text += f" ({fact.listed.note})"
        return text

    def _why(self, node: Node, follows: tuple[str, ...]) -> str:
        fact, rule, kept = self.solution.facts[node.id], self._rule(node), precision(self.solution, node)
        low = types.type_name(self.low)
        if rule == "control-flow" and node.signature is not None:
            return f"{_listed(fact)}, but all elements of a sequence or optional share one type: {kept}"
        if rule == "control-flow":
            return f"{node.op_type} carries no precision itself; each output has the type of what it yields"
        if rule == "no-float":
            return self._no_float(node)
        if rule == "cast":
            return self._fixed(node)
        if rule == "node-rule":
            return self._node_rule(node, kept)
        if rule == "shape":
            return f"all its float inputs come from shapes and constants: shape arithmetic stays {kept}"
        if rule == "schema":
            return self._schema(node, kept)
        if rule == "constant":
            return (
                f"{_listed(fact)}, but {self.solution.notes.get(node.id, 'a constant does not fit')}: it stays {kept}"
            )
        if rule == "mode":
            return f"precision mode {self.resolved.policy.mode.name} makes it {kept}"
        if rule == "white":
            return f"{_listed(fact)}: computed in {low}"
        if rule == "black":
            return f"{_listed(fact)}: keeps the type it was authored in, {kept}"
        return self._gray(node, follows, kept)

    def _gray(self, node: Node, follows: tuple[str, ...], precision: str) -> str:
        fact, policy = self.solution.facts[node.id], self.resolved.policy.gray_policy
        if policy == "between":
            tail = (
                "lies between white nodes"
                if precision == types.type_name(self.low)
                else "does not lie between white nodes, or black reaches it"
            )
            return f"{_listed(fact)}: {tail}, so it is {precision}"
        value = self.solution.followed[node.id]
        if not follows or value is None:
            fed = any(v is not None and not v.constant and types.element(v.type) in types.FLOATS for v in node.inputs)
            why = "nothing that it reads decides it" if fed else "all its float inputs are constants"
            return f"{_listed(fact)}: {why}, so it stays {precision}"
        decider = "" if follows[1] == follows[0] else f", which {follows[1]} decided"
        return f"{_listed(fact)}: follows {follows[0]}, whose output {value.name!r} is {self._type(value)}{decider}"

    def _output_words(self, node: Node) -> str:
        return ", ".join(self._type(v) for v in node.outputs if v is not None)

    def _fixed(self, node: Node) -> str:
        if node.op_type == "Constant":
            return "it holds a constant, which is converted where its readers want another type"
        return (
            f"an attribute of {node.op_type} says its output type ({self._output_words(node)}), which no list changes"
        )

    def _no_float(self, node: Node) -> str:
        signature = node.signature
        if signature is not None and signature.reads_any:
            return f"{node.op_type} reads only the shape of its input"
        if any(v is not None and types.element(v.type) == types.DOUBLE for v in node.inputs):
            return "it computes in float64, which lists never change"
        if any(v is not None and types.element(v.type) in types.LISTED for v in [*node.inputs, *node.outputs]):
            return f"the schema of {node.op_type} fixes its float types"
        return "it has no float input or output"

    def _node_rule(self, node: Node, precision: str) -> str:
        rule = self.resolved.rules.rule_of(self.solution.graph, node)
        what = "keep_dtype keeps its authored type" if rule.keep else "customize_dtypes sets its types"
        return f"{what}, {precision} ({rule.place})"

    def _schema(self, node: Node, precision: str) -> str:
        fact = self.solution.facts[node.id]
        low = types.type_name(self.low)
        opset = self.solution.graph.opsets.get(node.domain, 0)
        if node.signature is not None and node.signature.schema is None:
            operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
            return f"no schema is known for {operator} at opset {opset}: it stays as authored"
        later = next_opset_allowing(node.domain, node.op_type, opset, self.low)
        advice = f"; opset {later} would allow it" if later is not None else ""
        return (
            f"{_listed(fact)}, but {node.op_type} does not allow {low} at opset {opset}: it stays {precision}{advice}"
        )


def _listed(fact: object) -> str:
    entry = getattr(fact, "listed", None)
    name = getattr(fact, "list", "none")
    if entry is None:
        return "the mode would lower it" if name == "none" else f"on the {name} list"
    if not entry.source:
        return f"{name} ({entry.note})" if entry.note else name
    return f"{name} by {entry.source} ({entry.op})"
