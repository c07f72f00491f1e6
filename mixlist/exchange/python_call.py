"""Write a call as Python code, with one line per entry of a long list."""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence

_WIDTH = 116
_PROGRAM = """\
import onnx
from {module} import convert_float_to_float16

model = onnx.load({model!r})
names = {{node.name for node in model.graph.node}}
types = {{output.name: output.type.tensor_type.elem_type for output in model.graph.output}}
# A graph output that value_info declares too would end the converter with an error.
infos = [info for info in model.graph.value_info if info.name not in types]
del model.graph.value_info[:]
model.graph.value_info.extend(infos)
{call}
# Connect float32 nodes directly, because the converter rounds each tensor between them to float16. Keep one Cast of
# each tensor, because it adds one for each node that reads the tensor.
casts = {{node.output[0]: node for node in model.graph.node if node.op_type == "Cast" and node.name not in names}}
for node in casts.values():
    if node.input[0] in casts:
        node.input[0] = casts[node.input[0]].input[0]
# Give each graph output its type again: the converter can make it float16, in spite of keep_io_types.
for output in model.graph.output:
    if output.type.tensor_type.elem_type != types[output.name]:
        output.type.tensor_type.elem_type = casts[output.name].attribute[0].i = types[output.name]
nodes = [node for node in model.graph.node if casts.get(node.output[0], node) is node]
del model.graph.node[:]
model.graph.node.extend(nodes)
onnx.save(model, "mixed.onnx")
"""


def show_conversion(module: str, model: str, keywords: Mapping[str, object]) -> str:
    """Return a program that calls ``convert_float_to_float16`` of a module for the model in a file."""
    call = show_call("model = convert_float_to_float16", ["model"], keywords)
    return _PROGRAM.format(module=module, model=model, call=call)


def show_call(function: str, positional: Sequence[str], keywords: Mapping[str, object]) -> str:
    """Return the text of a call. ``positional`` are expressions, and ``keywords`` values."""
    lines = [f"    {expression}," for expression in positional]
    for name, value in keywords.items():
        head = f"    {name}="
        lines.append(f"{head}{show_value(value, len(head))},")
    return "\n".join([f"{function}(", *lines, ")"])


def show_value(value: object, indent: int) -> str:
    """Return a value as a Python expression; the lines after the first one are indented."""
    if value == float("inf"):
        return 'float("inf")'
    text = pprint.pformat(value, width=_WIDTH - indent, compact=True, sort_dicts=False)
    return text.replace("\n", "\n" + " " * indent)
