"""Model-local functions: one FunctionProto per specialisation, equal ones shared."""

from __future__ import annotations

from typing import Any

from mixlist.resolver import Resolved
from mixlist.resolver.solve import Solution

ORIGIN = "pkg.mixlist.function"  # metadata of a specialisation: the name of the function that it was made from


class FunctionNames:
    """What each specialisation is called: the first of a function keeps its name."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        taken = {(f.domain, f.name) for f in resolved.loaded.proto.functions}
        self._names: dict[Solution, str] = {}
        for solution in resolved.solutions[1:]:
            proto = solution.graph.root.proto
            name, k = proto.name, 2
            if any(s.graph.root.proto is proto for s in self._names):
                while (proto.domain, name) in taken:
                    name, k = f"{proto.name}_{k}", k + 1
                taken.add((proto.domain, name))
            self._names[solution] = name

    def of(self, solution: Solution) -> str:
        """The name of a specialisation."""
        return self._names[solution]

    def fresh(self, solution: Solution) -> Any:
        """A copy of the function's message, under the specialisation's name."""
        proto = type(solution.graph.root.proto)()
        proto.CopyFrom(solution.graph.root.proto)
        if proto.name != self._names[solution]:
            proto.name = self._names[solution]
            proto.metadata_props.add(key=ORIGIN, value=solution.graph.root.proto.name)
        return proto

    def calls(self, solution: Solution) -> dict[int, str]:
        """The called name by id of each call node whose function goes by another name now."""
        return {i: self._names[c] for i, c in solution.callees.items() if self._names[c] != c.graph.root.proto.name}


def replace_functions(proto: Any, resolved: Resolved, emitted: dict[Solution, Any], names: FunctionNames) -> None:
    """Put the specialised functions where the originals stood; functions that nobody calls stay as they are."""
    if len(resolved.solutions) == 1:
        return
    made: dict[tuple[str, str, str], list[Any]] = {}
    for solution in resolved.solutions[1:]:
        original = solution.graph.root.proto
        made.setdefault((original.domain, original.name, original.overload), []).append(emitted[solution])
    groups: list[list[Any]] = []
    for original in resolved.loaded.proto.functions:
        key = (original.domain, original.name, original.overload)
        groups.append(made.get(key) or [_copy(original)])
    functions = _shared(proto, groups)
    del proto.functions[:]
    proto.functions.extend(functions)


def _copy(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _shared(proto: Any, groups: list[list[Any]]) -> list[Any]:
    """The specialisations, those of one function that are equal as one; repeated, since callers then become equal too.

    Functions that were two in the model stay two.
    """
    while True:
        renamed: dict[tuple[str, str], str] = {}
        for group in groups:
            seen: dict[bytes, Any] = {}
            for function in group:
                bare = _copy(function)
                bare.name = ""
                bare.ClearField("metadata_props")
                first = seen.setdefault(bare.SerializeToString(deterministic=True), function)
                if first is not function:
                    renamed[function.domain, function.name] = first.name
        groups = [[f for f in group if (f.domain, f.name) not in renamed] for group in groups]
        functions = [f for group in groups for f in group]
        if not renamed:
            return functions
        for holder in (proto.graph, *functions):
            _rename_calls(holder, renamed)


def _rename_calls(proto: Any, renamed: dict[tuple[str, str], str]) -> None:
    for node in proto.node:
        target = renamed.get((node.domain, node.op_type))
        if target is not None:
            node.op_type = target
        for attribute in node.attribute:
            if attribute.type == attribute.GRAPH:
                _rename_calls(attribute.g, renamed)
