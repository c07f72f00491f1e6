"""Rules S7.4, S7.5: check the scope of each Cast, and that no Cast is unnecessary."""

from __future__ import annotations

from collections import Counter

from onnx import TensorProto

from tests.support.pairing import is_constant
from tests.support.scopes import Scope, View, cast_target, dtype_name, is_marked_cast, reads

LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def check(old: View, new: View, *, cast_is_black: bool = False) -> None:
    """Assert that every Cast that mixlist made is in the right scope, unique, used, and necessary."""
    for scope in new.scopes():
        for node in scope.nodes:
            if is_marked_cast(node):
                source, label = node.input[0], f"Cast of {node.input[0]!r} in {scope.path!r}"
                assert source in scope.defined, f"point 4: {label} is outside the scope that defines it"
                # A graph output keeps its name, also where a tensor of the user has its type (Rule S7.5).
                makes_output = node.output[0] in scope.outputs and not scope.path
                _check_needed(
                    scope, source, cast_target(node), label, cast_is_black=cast_is_black, makes_output=makes_output
                )
        _check_unique(scope)
        check_used(scope)


def _check_needed(
    scope: Scope, source: str, target: int, label: str, *, cast_is_black: bool, makes_output: bool
) -> None:
    constant = source in scope.initializers and source not in scope.inputs
    producer = scope.producers.get(source)
    assert not constant, f"point 4: {label}, an initializer that could have been converted"
    if producer is None:
        return
    assert not is_constant(producer), f"point 4: {label}, a Constant that could have been converted"
    assert not is_marked_cast(producer), f"point 4: {label}, itself a Cast that mixlist made"
    assert scope.elem_type(source) != target, f"point 4: {label} to the type it has already"
    is_user_cast = producer.op_type == "Cast" and producer.domain in ("", "ai.onnx")
    if is_user_cast and not cast_is_black and not makes_output:
        origin = scope.elem_type(producer.input[0])
        exact = origin == target and target in LOW and cast_target(producer) == TensorProto.FLOAT
        assert not exact, f"point 4: {label} undoes the user's Cast of {producer.input[0]!r}, which is exact"


def _check_unique(scope: Scope) -> None:
    casts = [n for n in scope.nodes if n.op_type == "Cast" and n.domain in ("", "ai.onnx") and cast_target(n)]
    counts = Counter((n.input[0], cast_target(n)) for n in casts if is_marked_cast(n))
    user_casts = {(n.input[0], cast_target(n)) for n in casts if not is_marked_cast(n)}
    # A graph output keeps its name, so the Cast that makes it cannot be another one (Rule S7.5).
    outputs = set() if scope.path else set(scope.outputs)
    makes_output = {(n.input[0], cast_target(n)) for n in casts if is_marked_cast(n) and n.output[0] in outputs}
    for (name, target), count in counts.items():
        label = f"Cast of {name!r} to {dtype_name(target)} in {scope.path!r}"
        assert count == 1, f"point 4: {count} times {label}"
        assert (name, target) not in user_casts - makes_output, f"point 4: {label} in addition to the user's Cast"


def check_used(scope: Scope) -> None:
    used = {name for node in scope.nodes for name in reads(node)} | set(scope.outputs)
    for node in scope.nodes:
        unused = is_marked_cast(node) and not set(node.output) & used
        assert not unused, f"point 4: nothing reads the Cast of {node.input[0]!r} in {scope.path!r}"
