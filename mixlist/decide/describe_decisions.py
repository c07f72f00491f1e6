"""Describe the decisions for a model to a user: names, scopes, reasons, and the chain to the node that decided.

A GraphSolution uses the ids of nodes and values. Names and reasons are written here, when they are first read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from mixlist.decide.decisions import Decision, GraphSolution, ModelSolution, find_precision, is_changed
from mixlist.decide.reasons import ReasonWriter, find_rule_name, show_type
from mixlist.errors import UsageError
from mixlist.model.graph import Graph, Node, Value, linked_scopes
from mixlist.model.naming import NodeRef, accepted_names, display_name, node_ref, scope_path, scoped_name

_RULES_WITHOUT_FOLLOWING = ("schema", "mask", "constant")  # these keep a gray node as authored


def describe_decisions(model_solution: ModelSolution) -> tuple[Decision, ...]:
    """Return the decision for every node, in topological order of each scope."""
    return tuple(_describe_nodes(model_solution))


def find_chain(decisions: Sequence[Decision], name: str, graph: Graph) -> list[Decision]:
    """Return the decisions from the named node up to the one that decided; raise UsageError if no node has the name.

    ``graph``: the main graph, whose inputs and constants the error names.
    """
    # Reversed, so that the first one wins if nodes of one scope share a name.
    by_ref = {decision.ref: decision for decision in reversed(decisions)}
    chain = [_find_named(decisions, name, graph)]
    decider = chain[0].decider
    while chain[-1].producer is not None and chain[-1].ref != decider:
        chain.append(by_ref[chain[-1].producer])
    return chain


def _find_named(decisions: Sequence[Decision], name: str, graph: Graph) -> Decision:
    """Return the decision for the node that a user names (Rules S6.4, S6.5)."""
    by_name: dict[str, list[Decision]] = {}
    for decision in decisions:
        for node_name in accepted_names(decision.ref):
            by_name.setdefault(node_name, []).append(decision)
    candidates = by_name.get(name) or [decision for decision in decisions if name in decision.outputs]
    if not candidates:
        _refuse_source(graph, name)
        # Do not suggest both `fc` and `./fc`: keep the form that the user typed.
        node_names = [node_name for node_name in by_name if node_name.startswith("./") == name.startswith("./")]
        close_names = get_close_matches(name, node_names, n=3, cutoff=0.4)
        raise UsageError(
            f"no node and no tensor that a node makes is called {name!r}",
            hint=f"did you mean {', '.join(close_names)}?" if close_names else "mixlist resolve --all lists all nodes",
        )
    # `./fc` and `i/then_branch/fc` name one node each; `fc` may name nodes of several scopes.
    exact = [decision for decision in candidates if scoped_name(decision.ref) == name]
    if not exact and len({decision.scope for decision in candidates}) > 1:
        names = ", ".join(scoped_name(decision.ref) for decision in candidates)
        raise UsageError(f"several nodes are called {name!r}", hint=f"choose one of {names}")
    return (exact or candidates)[0]


def _refuse_source(graph: Graph, name: str) -> None:
    """Raise UsageError if ``name`` is an input or a constant of the main graph, which no node makes."""
    is_input = any(value.name == name for value in graph.root.inputs)
    # Bodies also read the tensors of the main graph. Their own inputs have no producer either, and another scope.
    readers = [
        node
        for node in graph.nodes
        if any(v is not None and v.name == name and v.producer is None and v.scope is graph.root for v in node.inputs)
    ]
    if not is_input and not readers:
        return
    shown = ", ".join(scoped_name(node_ref(node)) for node in readers[:3])
    more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
    raise UsageError(
        f"{name!r} is {'an input' if is_input else 'a constant'} of the graph: no node makes it, so no rule decides it",
        hint=f"explain a node that reads it: {shown}{more}" if readers else "no node reads it",
    )


def _describe_nodes(model_solution: ModelSolution) -> Iterator[Decision]:
    solution = model_solution.graph_solution
    reason_writer, deciders = ReasonWriter(model_solution), _find_deciders(solution)
    # Name all nodes first: a node may follow a node of another scope.
    paths = {scope: scope_path(scope) for scope in linked_scopes(solution.graph.root)}
    names: dict[Node | Value, str] = {node: display_name(node) for scope in paths for node in scope.nodes}
    names.update((value, value.name) for value in solution.graph.root.inputs)
    refs: dict[Node | Value, NodeRef] = {}
    for scope, path in paths.items():
        refs.update((node, NodeRef(path, names[node])) for node in scope.nodes)
    for scope, path in paths.items():
        for node in scope.nodes:
            producer, decider = _find_followed_producer(solution, node), deciders[node.id]
            follows: tuple[str, ...] = ()
            follows_refs: tuple[NodeRef | None, ...] = ()
            if producer is not None:
                follows, follows_refs = (names[producer], names[decider]), (refs.get(producer), refs.get(decider))
            yield Decision(
                scope=path,
                name=names[node],
                op_type=node.op_type,
                domain=node.domain,
                list=solution.classifications[node.id].list_name,
                precision=find_precision(solution, node),
                changed=is_changed(solution, node),
                rule=find_rule_name(solution, node),
                follows=follows,
                outputs={value.name: show_type(solution, value) for value in node.outputs if value is not None},
                reason=reason_writer.write(node, follows),
                follows_refs=follows_refs,
            )


def _find_deciders(solution: GraphSolution) -> dict[int, Node | Value]:
    """Return, by node id, the node or graph input that decided: the end of the chain of followed values."""
    deciders: dict[int, Node | Value] = {}
    for node in solution.graph.nodes:
        producer = _find_followed_producer(solution, node)
        if isinstance(producer, Node):
            # Nodes come in topological order, so the decider of the producer is known. Only a node that owns the body
            # comes later, and it follows none.
            deciders[node.id] = deciders.get(producer.id, producer)
        else:
            deciders[node.id] = producer or node
    return deciders


def _find_followed_producer(solution: GraphSolution, node: Node) -> Node | Value | None:
    """Return the producer of the value that a gray node follows; None for every other node.

    The producer is a node, or the control-flow node whose body has the value as an input, or a graph input. A node that
    its schema, a mask or a constant keeps as authored follows none.
    """
    value, classification = solution.followed_values[node.id], solution.classifications[node.id]
    is_kept = solution.rule_overrides.get(node.id) in _RULES_WITHOUT_FOLLOWING
    if value is None or classification.kind != "gray" or is_kept:
        return None
    return value.producer or value.scope.owner or value
