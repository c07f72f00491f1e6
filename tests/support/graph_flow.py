"""Control flow in random graphs: If, Loop and Scan, whose bodies are random graphs themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.support.graph_scope import BOOL, FLOAT, INT64, STATE_BOUND, STATE_ERROR, Scope, Value


@dataclass(frozen=True)
class Flow:
    """A control flow pattern and the first opset it is generated for."""

    make: Callable[[Scope], Any]
    since: int = 7


def _grow(scope: Scope, steps: int) -> None:
    from tests.support.graphs import grow  # growing a scope may open another one here

    grow(scope, steps)


def _halve_to_state_bound(scope: Scope, value: Value) -> Value:
    from tests.support.graphs import halve_to_state_bound

    return halve_to_state_bound(scope, value)


def _result_from_node(scope: Scope, template: Value, excluded: Sequence[Value] = ()) -> Value:
    """A value of the template's type that a node of this scope makes, within the bounds of a state.

    It is none of the ``excluded``: ONNX Runtime fails on a branch that lists one value twice.
    """
    fits = [v for v in scope.floats() if v.shape == template.shape]
    value = scope.gen.pick(fits) if fits else template
    value = _halve_to_state_bound(scope, value)
    outputs = {name for node in scope.nodes for name in node.output}
    if value.name in outputs and value not in excluded:
        return value
    op = scope.gen.pick(["Relu", "Identity"])
    result = scope.emit_one(op, [value], replace(value, error=value.rounded_error))
    assert result is not None
    return result


def conditional(s: Scope) -> Any:
    """If on a flag, with one or two outputs; branches capture, and may use the same names."""
    gen = s.gen
    condition = next((v for v in s.visible() if v.dtype == BOOL and v.shape == () and v.is_tensor), None)
    values = s.floats(bound=STATE_BOUND, error=STATE_ERROR - 4)
    if not values:
        return None
    if condition is None:
        condition = s.constant(gen.chance(50), BOOL)
    templates = [gen.pick(values) for _ in range(gen.integer(1, 2))]
    prefixes = ["b_", "b_"] if gen.chance(30) and s.depth == 0 else [f"{s.names}t_", f"{s.names}e_"]
    if gen.chance(10):
        templates = templates[:1]
    branches = []
    for prefix, name in zip(prefixes, ["then", "else"], strict=True):
        scope = Scope(gen, s, names=prefix)
        start = gen.counter[prefix]
        _grow(scope, gen.integer(0, 4))
        results: list[Value] = []
        for template in templates:
            results.append(_result_from_node(scope, template, results))
        branches.append(scope.graph(name, results))
        if prefixes[0] == prefixes[1] and name == "then":
            gen.counter[prefix] = start
            gen.features.add("same names in two branches")
    gen.features.add("If")
    outs: list[Value | None] = [Value("", FLOAT, template.shape, STATE_BOUND, STATE_ERROR) for template in templates]
    return s.emit("If", [condition], outs, then_branch=branches[0], else_branch=branches[1])


def _states(s: Scope, count: int) -> list[Value]:
    values = s.floats(bound=STATE_BOUND, error=STATE_ERROR - 4)
    states = [s.gen.pick(values) for _ in range(count)] if values else []
    if states and s.gen.chance(20) and all(isinstance(d, int) for d in states[0].shape):
        states[0] = s.constant(np.zeros([int(d) for d in states[0].shape]))
        s.gen.features.add("constant state")
    return states


def _body_inputs(body: Scope, states: list[Value], hint: str) -> list[Value]:
    """The body's state inputs; one may shadow the outer value that it starts from."""
    inputs = []
    for i, state in enumerate(states):
        name = f"{body.names}{hint}{i}"
        if body.gen.chance(10) and not state.constant and state.name not in {v.name for v in inputs}:
            name = state.name
            body.hidden.add(name)
            body.gen.features.add("shadowed name")
        inputs.append(Value(name, FLOAT, state.shape, STATE_BOUND, STATE_ERROR - 4))
    return inputs


def loop(s: Scope) -> Any:
    """Loop with float states, scan outputs of rank 1 (onnx.reference stacks others wrongly) and a trip count."""
    gen = s.gen
    states = _states(s, gen.integer(1, 2))
    if not states:
        return None
    gen.counter["flow"] += 1
    body = Scope(gen, s, names=f"l{gen.counter['flow']}_")
    carried = _body_inputs(body, states, "state")
    step, go = Value(f"{body.names}i", INT64, (), 0.0, 0.0, True), Value(f"{body.names}go", BOOL, (), 0.0, 0.0)
    body.inputs = [step, go, *carried]
    body.values = list(body.inputs)
    _grow(body, gen.integer(1, 5))
    results: list[Value] = []
    for state in carried:
        if gen.chance(15) and state not in results:
            results.append(state)
            gen.features.add("pass-through output")
        else:
            results.append(_result_from_node(body, state, results))
    scans = [v for v in body.values if len(v.shape) == 1 and v.dtype == FLOAT and not v.constant and v.is_tensor]
    node_outputs = {name for node in body.nodes for name in node.output}
    scans = [v for v in scans if v.name in node_outputs and v not in results][: gen.integer(0, 1)]
    end = body.emit_one("Identity", [go], replace(go, name="")) if gen.chance(60) else go
    assert end is not None
    gen.features.add("Loop")
    trips = gen.integer(1, 3)
    outs: list[Value | None] = [Value("", FLOAT, v.shape, STATE_BOUND, STATE_ERROR) for v in carried]
    outs += [Value("", FLOAT, (trips, *v.shape), v.bound, v.rounded_error) for v in scans]
    if scans:
        gen.features.add("scan output")
    count, true = s.constant(trips, INT64), s.constant(True, BOOL)
    return s.emit("Loop", [count, true, *states], outs, body=body.graph("body", [end, *results, *scans]))


def scan(s: Scope) -> Any:
    """Scan over the rows of a value, with a state and a scan output."""
    gen = s.gen
    sources = [v for v in s.floats(bound=STATE_BOUND, error=STATE_ERROR - 4) if v.shape == (2, 4)]
    if not sources:
        return None
    states = [v for v in s.floats(bound=STATE_BOUND, error=STATE_ERROR - 4) if v.shape == (4,)]
    start = gen.pick(states) if states and gen.chance(70) else s.constant(np.zeros(4))
    gen.counter["flow"] += 1
    body = Scope(gen, s, names=f"s{gen.counter['flow']}_")
    carried = _body_inputs(body, [start], "state")
    row = Value(f"{body.names}row", FLOAT, (4,), STATE_BOUND, STATE_ERROR - 4)
    body.inputs = [*carried, row]
    body.values = list(body.inputs)
    _grow(body, gen.integer(1, 4))
    result = _result_from_node(body, carried[0])
    scanned = _result_from_node(body, row, [result])
    gen.features.add("Scan")
    state = Value("", FLOAT, (4,), STATE_BOUND, STATE_ERROR)
    outs = [state, replace(state, shape=(2, 4))]
    graph = body.graph("body", [result, scanned])
    return s.emit("Scan", [start, gen.pick(sources)], outs, num_scan_inputs=1, body=graph)


FLOWS = [Flow(conditional), Flow(loop), Flow(scan, since=9)]
