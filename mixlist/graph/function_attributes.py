"""Replace references to attributes of a function by the attributes that a call passes.

A node in a function's body can refer to an attribute of the function: ``ref_attr_name`` of the node's attribute has the
name. Example: in ``F <alpha> (x) => (y) { y = LeakyRelu<alpha: float = @alpha>(x) }``, the call ``F<alpha=0.1>(t)``
makes ``alpha`` 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mixlist.graph.proto_edits import copy_message

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto


def resolved_attributes(
    node: NodeProto, call_attributes: Mapping[str, AttributeProto]
) -> Iterator[tuple[str, AttributeProto]]:
    """Yield the name and the content of each attribute of a node, with references replaced.

    ``call_attributes``: the attributes of the call, by name, with the function's defaults. A reference to an attribute
    that the call lacks is left out, as if the node lacked the attribute.
    """
    for attribute in node.attribute:
        content = call_attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if content is not None:
            yield attribute.name, content


def copy_with_resolved_attributes(node: NodeProto, call_attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a copy of a node in which the attributes of the function call replace references."""
    copy = copy_message(node)
    del copy.attribute[:]
    for name, content in resolved_attributes(node, call_attributes):
        copy.attribute.add().CopyFrom(content)
        copy.attribute[-1].name = name  # the function may have another name for the attribute
    return copy
