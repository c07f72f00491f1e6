"""Write model-local functions: one FunctionProto per specialization; equal specializations become one."""

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

# The metadata key of a specialization. Its value is the name of the function from which the specialization was made.
ORIGIN_KEY = "pkg.mixlist.function"


class FunctionNames:
    """The name of each specialization: the first one of a function keeps the function's name, the next is ``F_2``."""

    def __init__(self, model_solution: ModelSolution) -> None:
        used_names = {(function.domain, function.name) for function in model_solution.loaded.proto.functions}
        self._names: dict[GraphSolution, str] = {}
        for solution in model_solution.solutions[1:]:  # the first one is the main graph's
            proto = solution.graph.function
            name, k = proto.name, 2
            # The first specialization keeps the name. So a function with a single one is called as before.
            if any(earlier.graph.function is proto for earlier in self._names):
                while (proto.domain, name) in used_names:
                    name, k = f"{proto.name}_{k}", k + 1
                used_names.add((proto.domain, name))
            self._names[solution] = name

    def copy_function(self, solution: GraphSolution) -> FunctionProto:
        """Return a copy of the function's message, under the specialization's name."""
        original = solution.graph.function
        function = copy_message(original)
        if function.name != self._names[solution]:
            function.name = self._names[solution]
            function.metadata_props.add(key=ORIGIN_KEY, value=original.name)
        return function

    def find_new_callee_names(self, solution: GraphSolution) -> dict[int, str]:
        """Return the new name of each called function that got one, by the id of the calling node."""
        return {
            node_id: self._names[callee]
            for node_id, callee in solution.callees.items()
            if self._names[callee] != callee.graph.function.name
        }


def replace_functions(
    model: ModelProto, model_solution: ModelSolution, specializations: dict[GraphSolution, FunctionProto]
) -> None:
    """Replace each function of the model by its specializations; a function that is never called stays as it is."""
    if len(model_solution.solutions) == 1:  # nothing calls a function
        return
    by_function: dict[FunctionKey, list[FunctionProto]] = {}
    for solution, function in specializations.items():
        by_function.setdefault(function_key(solution.graph.function), []).append(function)
    originals = model_solution.loaded.proto.functions
    groups = [by_function.get(function_key(original)) or [copy_message(original)] for original in originals]
    original_names = [set(names_in(original)) - set(_names_of_marked_casts(original)) for original in originals]
    functions = _merge_equal_functions(model, groups, original_names)
    del model.functions[:]
    model.functions.extend(functions)


def _merge_equal_functions(
    model: ModelProto, groups: list[list[FunctionProto]], original_names: list[set[str]]
) -> list[FunctionProto]:
    """Return the functions after the equal specializations of each function became one; rename the calls to them.

    ``groups``: the specializations of each function. ``original_names``: the names in each function before the rewrite.
    Two functions of the model stay two functions, even if they are equal.
    """
    # Repeat until nothing changes: if two functions become one, the functions that call them can become equal too.
    while True:
        new_names: dict[tuple[str, str], str] = {}
        for group, names in zip(groups, original_names, strict=True):
            first_by_content: dict[bytes, FunctionProto] = {}
            # A single specialization, which is the usual case, is equal to no other one.
            for function in group if len(group) > 1 else ():
                first = first_by_content.setdefault(_comparable_content(function, names), function)
                if first is not function:
                    new_names[function.domain, function.name] = first.name
        groups = [[f for f in group if (f.domain, f.name) not in new_names] for group in groups]
        functions = [function for group in groups for function in group]
        if not new_names:
            return functions
        for node in nodes_in(model.graph, *functions):
            node.op_type = new_names.get((node.domain, node.op_type), node.op_type)


def _comparable_content(function: FunctionProto, original_names: set[str]) -> bytes:
    """Return the content of a function as bytes that are equal for equal functions.

    The function's own name is removed, and the names that mixlist made are replaced by numbers: they differ between
    specializations, because a new name is unique in the whole model.
    """
    nameless = copy_message(function)
    nameless.name = ""
    nameless.ClearField("metadata_props")
    new_names = dict.fromkeys(name for name in names_in(nameless) if name and name not in original_names)
    _rename(nameless, {name: f"#{index}" for index, name in enumerate(new_names)})
    return nameless.SerializeToString(deterministic=True)


def _names_of_marked_casts(function: FunctionProto) -> Iterator[str]:
    """Yield the names of the Casts that an earlier rewrite added to the function, and of their outputs."""
    for node in nodes_in(function):
        if any(entry.key == CAST_MARK for entry in node.metadata_props):
            yield from (node.name, *node.output)


def _rename(function: FunctionProto, new_names: dict[str, str]) -> None:
    """Replace names of nodes and tensors in a function and in all bodies in it."""
    for scope in scopes_in(function):
        for node in scope.node:
            node.name = new_names.get(node.name, node.name)
            node.input[:] = [new_names.get(name, name) for name in node.input]
            node.output[:] = [new_names.get(name, name) for name in node.output]
            # A converted Constant carries its name in the tensor, too.
            for attribute in node.attribute:
                if attribute.type == attribute.TENSOR:
                    attribute.t.name = new_names.get(attribute.t.name, attribute.t.name)
        infos = [*scope.output, *scope.value_info] if is_graph(scope) else scope.value_info
        for info in infos:
            info.name = new_names.get(info.name, info.name)
        # A function has no initializers, but the bodies in it are graphs.
        for tensor in scope.initializer if is_graph(scope) else ():
            tensor.name = new_names.get(tensor.name, tensor.name)
