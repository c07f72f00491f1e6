"""Model-local functions: one FunctionProto per specialisation, equal ones shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mixlist.graph.model import CAST_MARK, FunctionKey, function_key
from mixlist.graph.naming import names_in
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.traversal import is_graph, nodes_in, scopes_in
from mixlist.resolver import ModelSolution
from mixlist.resolver.decisions import GraphSolution

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto

ORIGIN = "pkg.mixlist.function"  # metadata of a specialisation: the name of the function that it was made from


class FunctionNames:
    """The name of each specialization: the first one of a function keeps the function's name."""

    def __init__(self, resolved: ModelSolution) -> None:
        taken = {(f.domain, f.name) for f in resolved.loaded.proto.functions}
        self._names: dict[GraphSolution, str] = {}
        for solution in resolved.solutions[1:]:
            proto = solution.graph.function
            name, k = proto.name, 2
            if any(s.graph.function is proto for s in self._names):
                while (proto.domain, name) in taken:
                    name, k = f"{proto.name}_{k}", k + 1
                taken.add((proto.domain, name))
            self._names[solution] = name

    def fresh(self, solution: GraphSolution) -> FunctionProto:
        """Return a copy of the function's message, under the specialisation's name."""
        original = solution.graph.function
        function = copy_message(original)
        if function.name != self._names[solution]:
            function.name = self._names[solution]
            function.metadata_props.add(key=ORIGIN, value=original.name)
        return function

    def calls(self, solution: GraphSolution) -> dict[int, str]:
        """The called name by id of each call node whose function goes by another name now."""
        return {i: self._names[c] for i, c in solution.callees.items() if self._names[c] != c.graph.function.name}


def replace_functions(model: ModelProto, resolved: ModelSolution, emitted: dict[GraphSolution, FunctionProto]) -> None:
    """Put the specialised functions where the originals stood; functions that nobody calls stay as they are."""
    if len(resolved.solutions) == 1:
        return
    specialised: dict[FunctionKey, list[FunctionProto]] = {}
    for solution, function in emitted.items():
        specialised.setdefault(function_key(solution.graph.function), []).append(function)
    originals = resolved.loaded.proto.functions
    groups = [specialised.get(function_key(original)) or [copy_message(original)] for original in originals]
    known = [set(names_in(original)) - set(_names_of_casts(original)) for original in originals]
    functions = _shared(model, groups, known)
    del model.functions[:]
    model.functions.extend(functions)


def _shared(model: ModelProto, groups: list[list[FunctionProto]], known: list[set[str]]) -> list[FunctionProto]:
    """The specialisations, those of one function that are equal as one; repeated, since callers then become equal too.

    Functions that were two in the model stay two. ``known``: the names in each group's function before.
    """
    while True:
        renamed: dict[tuple[str, str], str] = {}
        for group, names in zip(groups, known, strict=True):
            seen: dict[bytes, FunctionProto] = {}
            for function in group if len(group) > 1 else ():
                first = seen.setdefault(_digest(function, names), function)
                if first is not function:
                    renamed[function.domain, function.name] = first.name
        groups = [[f for f in group if (f.domain, f.name) not in renamed] for group in groups]
        functions = [f for group in groups for f in group]
        if not renamed:
            return functions
        for node in nodes_in(model.graph, *functions):
            node.op_type = renamed.get((node.domain, node.op_type), node.op_type)


def _digest(function: FunctionProto, known: set[str]) -> bytes:
    """Return the content of a function as bytes, without its name, and with the names that mixlist made numbered."""
    bare = copy_message(function)
    bare.name = ""
    bare.ClearField("metadata_props")
    fresh = dict.fromkeys(name for name in names_in(bare) if name and name not in known)
    _number(bare, {name: f"#{index}" for index, name in enumerate(fresh)})
    return bare.SerializeToString(deterministic=True)


def _names_of_casts(function: FunctionProto) -> Iterator[str]:
    """Yield the names that mixlist made up for its Casts when it wrote the function before."""
    for node in nodes_in(function):
        if any(p.key == CAST_MARK for p in node.metadata_props):
            yield from (node.name, *node.output)


def _number(function: FunctionProto, numbers: dict[str, str]) -> None:
    """Replace names in a function and in all bodies in it."""
    for scope in scopes_in(function):
        for node in scope.node:
            node.name = numbers.get(node.name, node.name)
            node.input[:] = [numbers.get(name, name) for name in node.input]
            node.output[:] = [numbers.get(name, name) for name in node.output]
            for attribute in node.attribute:
                if attribute.type == attribute.TENSOR:
                    attribute.t.name = numbers.get(attribute.t.name, attribute.t.name)
        infos = [*scope.output, *scope.value_info] if is_graph(scope) else scope.value_info
        for info in infos:
            info.name = numbers.get(info.name, info.name)
        for tensor in scope.initializer if is_graph(scope) else ():
            tensor.name = numbers.get(tensor.name, tensor.name)
