"""Functions whose arguments are constants or sequences, and functions that return constants.

These graphs serve the comparison of decisions: a runtime need not run them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from tests.support.graph_constants import constant_expression, plain, use_constant
from tests.support.graph_patterns import MORE_DOMAINS
from tests.support.graph_scope import FLOAT, Scope, Value
from tests.support.graph_sequences import change, read, sequence_of

if TYPE_CHECKING:
    from tests.support.graphs import Generator

FUNCTION_DOMAIN = "test.functions"
SHAPE = ("N", 4)


@dataclass(frozen=True)
class Function:
    """A function of the model: templates of its arguments, and of its result."""

    proto: onnx.FunctionProto
    arguments: tuple[Value, ...]
    result: Value


def define(gen: Generator) -> None:
    """Add a function that returns a constant, reads a constant, or reads a sequence."""
    kinds = ["constant", "reads"] if "constants" in gen.families else []
    kinds += ["sequence"] if "sequences" in gen.families and gen.opset >= 11 else []
    for kind in kinds:
        if not gen.chance(40):
            continue
        name = f"G{len(gen.special_functions)}"
        scope = Scope(gen, function=name, names=f"{name}_")
        arguments, result = {"constant": _constant, "reads": _reads, "sequence": _sequence}[kind](scope)
        imports = [helper.make_opsetid("", gen.opset), helper.make_opsetid(FUNCTION_DOMAIN, 1)]
        imports += [helper.make_opsetid(domain, 1) for domain in MORE_DOMAINS]
        names = [v.name for v in arguments]
        proto = helper.make_function(FUNCTION_DOMAIN, name, names, [result.name], scope.nodes, imports)
        templates = tuple(replace(v, name="") for v in arguments)
        gen.special_functions.append(Function(proto, templates, replace(result, name="")))


def _constant(scope: Scope) -> tuple[list[Value], Value]:
    return [], _from_node(scope, constant_expression(scope, ()))


def _reads(scope: Scope) -> tuple[list[Value], Value]:
    """An argument that callers fill with a constant, and one with data."""
    x = scope.add(replace(plain(SHAPE), name=f"{scope.names}x"))
    k = scope.add(replace(plain((), constant=True), name=f"{scope.names}k"))
    carried = scope.emit_one("Identity", [k], plain((), constant=True)) if scope.gen.chance(50) else k
    use_constant(scope, carried)
    last = scope.floats()[0]
    fits = last if last.shape == SHAPE else x
    return [x, k], _from_node(scope, fits)


def _sequence(scope: Scope) -> tuple[list[Value], Value]:
    seq = scope.add(replace(sequence_of(SHAPE), name=f"{scope.names}s"))
    x = scope.add(replace(plain(SHAPE), name=f"{scope.names}x"))
    for _ in range(scope.gen.integer(1, 3)):
        scope.gen.pick([change, read])(scope)
    results = [v for v in reversed(scope.values) if v.shape == SHAPE and v.dtype == FLOAT and v not in (seq, x)]
    if results and scope.gen.chance(70):
        return [seq, x], results[0]
    return [seq, x], _from_node(scope, x)


def _from_node(scope: Scope, value: Value) -> Value:
    """The value, or a copy of it if no node of the function makes it."""
    if any(value.name in node.output for node in scope.nodes):
        return value
    output = scope.emit_one("Identity", [value], replace(value, name=""))
    assert output is not None
    return output


def call(s: Scope) -> None:
    """Call one of these functions; a constant argument is now and then data."""
    function = s.gen.pick(s.gen.special_functions)
    arguments = []
    for template in function.arguments:
        if template.constant and s.gen.chance(80):
            arguments.append(constant_expression(s, ()))
            continue
        fits = [v for v in s.visible() if (v.sequence, v.optional, v.dtype) == (template.sequence, False, FLOAT)]
        fits = [v for v in fits if v.shape == template.shape and not (v.constant and not template.constant)]
        if not fits:
            return
        arguments.append(s.gen.pick(fits))
    s.gen.features.update(["function", "computed constant"])
    s.emit(function.proto.name, arguments, [function.result], domain=FUNCTION_DOMAIN)
