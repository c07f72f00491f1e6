"""Describe the decisions for a model to a user: names, scopes, reasons, and the chain to the node that decided.

A Solution is indexed by ids; names and reasons are made only if somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from mixlist.errors import UsageError
from mixlist.graph.model import Node, Scope, Value
from mixlist.graph.naming import label, scope_path
from mixlist.graph.refs import NodeRef
from mixlist.graph.traversal import linked_scopes
from mixlist.resolver.decisions import Decision, Resolved, Solution, precision
from mixlist.resolver.reasons import ReasonWriter, rule_name, shown_type


def describe(resolved: Resolved) -> tuple[Decision, ...]:
    """Return the decision for every node: the main graph first, then functions in order of first call."""
    callers = _callers(resolved)
    return tuple(d for s in resolved.solutions for d in _decisions(resolved, s, tuple(callers.get(s, ()))))


def chain(decisions: Sequence[Decision], name: str) -> list[Decision]:
    """Return the decisions from the named node up to the one that decided; raise UsageError if no node has the name."""
    by_name: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_name.setdefault(decision.name, []).append(decision)
        if decision.scope:
            by_name.setdefault(str(decision.ref), []).append(decision)
    named = by_name.get(name, [])
    if not named:
        near = get_close_matches(name, by_name, n=3, cutoff=0.4)
        raise UsageError(
            f"no node is called {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "see mixlist resolve"
        )
    if len({d.scope for d in named}) > 1:
        places = ", ".join(str(d.ref) for d in named)
        raise UsageError(f"several nodes are called {name!r}", hint=f"say which: {places}")
    links = [named[0]]
    seen = {named[0].ref}
    while links[-1].follows:
        producers = by_name.get(links[-1].follows[0], [])
        producer = next((d for d in producers if d.scope == links[-1].scope), producers[0] if producers else None)
        if producer is None or producer.ref in seen:
            break
        links.append(producer)
        seen.add(producer.ref)
    return links


def _callers(resolved: Resolved) -> dict[Solution, list[str]]:
    """Return the calls of each specialization, if its function has several."""
    callers: dict[Solution, list[str]] = {}
    for solution in resolved.solutions:
        for node in solution.graph.order:
            callee = solution.callees.get(node.id)
            if callee is not None and callee.number:
                call = NodeRef(_scope_path(solution, node.scope), label(node))
                callers.setdefault(callee, []).append(str(call))
    return callers


def _scope_path(solution: Solution, scope: Scope) -> str:
    """Return the scope's path, with the number of the specialization."""
    path, function = scope_path(solution.graph, scope), solution.graph.path
    return f"{function}{solution.number}{path[len(function) :]}" if function and solution.number else path


def _decisions(resolved: Resolved, solution: Solution, callers: tuple[str, ...]) -> Iterator[Decision]:
    """Yield the decisions for one graph, in topological order of each scope."""
    reasons, deciders = ReasonWriter(resolved, solution), _deciders(solution)
    for scope in linked_scopes(solution.graph.root):
        path = _scope_path(solution, scope)
        for node in scope.nodes:
            source = _followed(solution, node)
            follows = () if source is None else (_producer_name(source), deciders[node.id])
            yield Decision(
                scope=path,
                name=label(node),
                op_type=node.op_type,
                domain=node.domain,
                list=solution.facts[node.id].list,
                precision=precision(solution, node),
                changed=_is_changed(solution, node),
                rule=rule_name(solution, node),
                follows=follows,
                outputs={v.name: shown_type(solution, v) for v in node.outputs if v is not None},
                reason=reasons.reason(node, follows),
                callers=callers,
            )


def _deciders(solution: Solution) -> dict[int, str]:
    """Return, by node id, the name of the node or input that decided: the end of the chain of gray nodes."""
    deciders: dict[int, str] = {}
    for node in solution.graph.order:  # a node comes after its producers
        source = _followed(solution, node)
        if source is None:
            deciders[node.id] = label(node)
        elif source.producer is None or source.producer.bodies or source.producer.function is not None:
            deciders[node.id] = _producer_name(source)
        else:
            deciders[node.id] = deciders[source.producer.id]
    return deciders


def _followed(solution: Solution, node: Node) -> Value | None:
    """Return the value that a gray node follows; None for every other node."""
    return solution.followed[node.id] if solution.facts[node.id].kind == "gray" else None


def _is_changed(solution: Solution, node: Node) -> bool:
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    return any(e != g.authored for e, g in zip(assignment.elements, signature.groups, strict=True))


def _producer_name(value: Value) -> str:
    """Return the name of the node that makes a value, the control-flow node that hands it in, or the graph input."""
    if value.producer is not None:
        return label(value.producer)
    return label(value.scope.owner) if value.scope.owner is not None else value.name
