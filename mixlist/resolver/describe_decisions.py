"""Describe the decisions for a model to a user: names, scopes, reasons, and the chain to the node that decided.

A GraphSolution is indexed by ids; names and reasons are made only if somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from mixlist.errors import UsageError
from mixlist.graph.model import Node, Scope, Value
from mixlist.graph.naming import display_name, scope_path
from mixlist.graph.refs import NodeRef, accepted_names, scoped_name
from mixlist.graph.traversal import linked_scopes
from mixlist.resolver.decisions import Decision, GraphSolution, ModelSolution, find_precision
from mixlist.resolver.reasons import ReasonWriter, find_rule, shown_type

_DECIDED_ITSELF = ("schema", "mask", "constant")  # rules that keep a gray node from following


def describe(resolved: ModelSolution) -> tuple[Decision, ...]:
    """Return the decision for every node: the main graph first, then functions in order of first call."""
    callers = _callers(resolved)
    return tuple(d for s in resolved.solutions for d in _decisions(resolved, s, tuple(callers.get(s, ()))))


def chain(decisions: Sequence[Decision], name: str) -> list[Decision]:
    """Return the decisions from the named node up to the one that decided; raise UsageError if no node has the name."""
    by_ref = {decision.ref: decision for decision in reversed(decisions)}
    links = [_named(decisions, name)]
    decider, seen = links[0].decider, {links[0].ref}
    while links[-1].producer is not None and links[-1].ref != decider and links[-1].producer not in seen:
        links.append(by_ref[links[-1].producer])
        seen.add(links[-1].ref)
    return links


def _named(decisions: Sequence[Decision], name: str) -> Decision:
    """Return the decision for the node that a text names (Rules S6.4, S6.5)."""
    by_name: dict[str, list[Decision]] = {}
    for decision in decisions:
        for typed in accepted_names(decision.ref):
            by_name.setdefault(typed, []).append(decision)
    named = by_name.get(name, [])
    if not named:
        texts = [text for text in by_name if text.startswith("./") == name.startswith("./")]
        near = get_close_matches(name, texts, n=3, cutoff=0.4)
        raise UsageError(
            f"no node is called {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "see mixlist resolve"
        )
    in_one_scope = [decision for decision in named if scoped_name(decision.ref) == name]
    if not in_one_scope and len({decision.scope for decision in named}) > 1:
        places = ", ".join(scoped_name(decision.ref) for decision in named)
        raise UsageError(f"several nodes are called {name!r}", hint=f"say which: {places}")
    return (in_one_scope or named)[0]


def _callers(resolved: ModelSolution) -> dict[GraphSolution, list[str]]:
    """Return the calls of each specialization, if its function has several."""
    callers: dict[GraphSolution, list[str]] = {}
    for solution in resolved.solutions:
        for node in solution.graph.nodes:
            callee = solution.callees.get(node.id)
            if callee is not None and callee.number:
                call = NodeRef(_scope_path(solution, node.scope), display_name(node))
                callers.setdefault(callee, []).append(str(call))
    return callers


def _scope_path(solution: GraphSolution, scope: Scope) -> str:
    """Return the scope's path, with the number of the specialization."""
    path, function = scope_path(solution.graph, scope), solution.graph.path
    return f"{function}{solution.number}{path[len(function) :]}" if function and solution.number else path


def _decisions(resolved: ModelSolution, solution: GraphSolution, callers: tuple[str, ...]) -> Iterator[Decision]:
    """Yield the decisions for one graph, in topological order of each scope."""
    reasons, deciders = ReasonWriter(resolved, solution), _deciders(solution)
    paths = {scope: _scope_path(solution, scope) for scope in linked_scopes(solution.graph.root)}
    names: dict[Node | Value, str] = {n: display_name(n) for scope in paths for n in scope.nodes}
    names.update((value, value.name) for value in solution.graph.root.inputs)
    refs: dict[Node | Value, NodeRef] = {}
    for scope, path in paths.items():
        refs.update((node, NodeRef(path, names[node])) for node in scope.nodes)
    for scope, path in paths.items():
        for node in scope.nodes:
            maker, decider = _followed_maker(solution, node), deciders[node.id]
            follows: tuple[str, ...] = ()
            follows_refs: tuple[NodeRef | None, ...] = ()
            if maker is not None:
                follows, follows_refs = (names[maker], names[decider]), (refs.get(maker), refs.get(decider))
            yield Decision(
                scope=path,
                name=names[node],
                op_type=node.op_type,
                domain=node.domain,
                list=solution.classifications[node.id].list,
                precision=find_precision(solution, node),
                changed=_is_changed(solution, node),
                rule=find_rule(solution, node),
                follows=follows,
                outputs={v.name: shown_type(solution, v) for v in node.outputs if v is not None},
                reason=reasons.reason(node, follows),
                callers=callers,
                follows_refs=follows_refs,
            )


def _deciders(solution: GraphSolution) -> dict[int, Node | Value]:
    """Return, by node id, the node, graph input or argument that decided: the end of the chain of followed values.

    Operators on sequences may follow each other in a circle; then the chain ends where it comes back.
    """
    ends: dict[int, Node | Value] = {}
    for node in solution.graph.nodes:
        at = _followed_maker(solution, node)
        if isinstance(at, Node) and at.id in ends:  # as a rule, a producer comes first
            ends[node.id] = ends[at.id]
            continue
        path, at = [], node
        while isinstance(at, Node) and at.id not in ends:
            ends[at.id] = at
            path.append(at)
            at = _followed_maker(solution, at) or at
        end = ends[at.id] if isinstance(at, Node) else at
        ends.update((each.id, end) for each in path)
    return ends


def _followed_maker(solution: GraphSolution, node: Node) -> Node | Value | None:
    """Return the maker of the value that a gray node follows; None for every other node.

    This is a node, the control-flow node whose body has the value as an input, or a graph input. A node that its
    schema, a mask or a constant keeps follows none.
    """
    value = solution.followed_values[node.id]
    if (
        value is None
        or solution.classifications[node.id].kind != "gray"
        or solution.rule_overrides.get(node.id) in _DECIDED_ITSELF
    ):
        return None
    return value.producer or value.scope.owner or value


def _is_changed(solution: GraphSolution, node: Node) -> bool:
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    return any(e != g.authored for e, g in zip(assignment.elements, signature.groups, strict=True))
