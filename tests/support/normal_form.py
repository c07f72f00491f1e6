"""A rewritten model as lines that depend on what it computes, not on the names mixlist made up.

A Cast that mixlist made is written ``source>float16``, a float constant by its type and values, a value
that lost its name to such a Cast at a graph output ``name<``. Lines are sorted within their scope.
"""

from __future__ import annotations

import numpy as np
import onnx

from tests.support.contract_constants import float_constants
from tests.support.scopes import (
    Scope,
    View,
    cast_target,
    dtype_name,
    elem_type,
    is_marked_cast,
    subgraphs,
)

Names = dict[str, str]


def normal_form(model: onnx.ModelProto) -> str:
    """The text that two models share if they differ only in names of mixlist's making and in node order."""
    return "\n".join(_Writer().scope(View(model).main, {}, ""))


class _Writer:
    def scope(self, scope: Scope, outer: Names, indent: str) -> list[str]:
        names = outer | _names(scope, outer)
        constants = {name for name, _, _ in float_constants(scope)} - scope.inputs - set(scope.outputs)
        inner = iter(scope.subscopes)
        blocks = []
        for node in scope.nodes:
            bodies = [(attr, next(inner)) for attr, _ in subgraphs(node)]
            if set(node.output) <= constants:
                continue
            block = [indent + self._node(scope, node, names)]
            for attr, body in bodies:
                shape = ", ".join(_typed(body, value.name) for value in body.body.input)
                block += [f"{indent}  {attr} ({shape})", *self.scope(body, names, indent + "    ")]
            blocks.append(block)
        results = ", ".join(_typed(scope, name, names) for name in scope.outputs)
        return [line for block in sorted(blocks) for line in block] + [f"{indent}-> {results}"]

    def _node(self, scope: Scope, node: onnx.NodeProto, names: Names) -> str:
        if is_marked_cast(node) and node.output[0] not in scope.outputs:
            return f"cast {names[node.output[0]]}"
        outputs = [f"{names.get(o, o)}:{dtype_name(scope.elem_type(o))}" if o else "_" for o in node.output]
        attrs = sorted(_attribute(a) for a in node.attribute if a.type not in (a.GRAPH, a.GRAPHS))
        inputs = [names.get(i, i) or "_" for i in node.input]
        return (
            f"{', '.join(outputs)} = {node.op_type}{'<' + ', '.join(attrs) + '>' if attrs else ''}({', '.join(inputs)})"
        )


def _typed(scope: Scope, name: str, names: Names | None = None) -> str:
    return f"{(names or {}).get(name, name)}:{dtype_name(elem_type(scope.types.get(name)))}"


def _attribute(attr: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attr)
    if isinstance(value, onnx.TensorProto):
        array = onnx.numpy_helper.to_array(value)
        return f"{attr.name}={array.dtype}{array.tolist()}"
    return f"{attr.name}={value}"


def _names(scope: Scope, outer: Names) -> Names:
    """Names by what a value is: constants by content, Casts by source, renamed outputs by the output."""
    names: Names = {}
    for name, array, elem in float_constants(scope):
        if name not in scope.inputs and name not in scope.outputs:
            names[name] = f"{dtype_name(elem)}{np.asarray(array, np.float64).tolist()}"
    casts = [node for node in scope.nodes if is_marked_cast(node)]
    for node in casts:
        if node.output[0] in scope.outputs:
            # In a body the names of outputs are free.
            result = f"out{scope.outputs.index(node.output[0])}" if scope.outer else node.output[0]
            names[node.output[0]], names[node.input[0]] = result, f"{result}<"
    for node in casts:
        if node.output[0] not in scope.outputs:
            source = names.get(node.input[0], outer.get(node.input[0], node.input[0]))
            names[node.output[0]] = f"{source}>{dtype_name(cast_target(node))}"
    return names
