"""Convert the constants of a Layout in the messages of a model, and tell what that did to them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic
from mixlist.graph.model import Scope, Value
from mixlist.graph.naming import NameGenerator, display_name
from mixlist.graph.proto_edits import MessageT, copy_message
from mixlist.graph.traversal import is_graph
from mixlist.resolver.decisions import GraphSolution
from mixlist.rewriter.cast_layout import Layout
from mixlist.rewriter.tensor_conversion import ConstantReport, converted_tensor

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import NodeProto, SparseTensorProto, TensorProto

    from mixlist.graph.proto_types import ScopeProto

    NewConstants = dict[Scope, list[tuple[Value, NodeProto]]]  # with the constant that each holds in another type


def convert_constants(
    layout: Layout,
    messages: Mapping[Scope, ScopeProto],
    new: NameGenerator,
    clamp: bool,
    folder: Path | None,
    reports: dict[Hashable, ConstantReport],
) -> NewConstants:
    """Convert the constants of a layout in the messages of its scopes; return the new Constant nodes by scope.

    ``folder`` is where the model's other files lie; a mask's constant is brought in from there.
    """
    from onnx import SparseTensorProto

    nodes: NewConstants = {}
    positions: dict[Scope, dict[str, int]] = {}
    for item in sorted(layout.converted, key=lambda c: c.name == c.value.name):  # copies first, then in place
        value, message = item.value, messages[item.value.scope]
        assert value.constant_proto is not None
        converted, report = converted_tensor(value.constant_proto, item.elem, clamp, item.name, item.limit, folder)
        in_place = item.name == value.name
        if report is not None:
            reports[item.name, id(value.constant_proto)] = report  # two scopes may have a constant of one name
        if value.producer is not None:
            node = message.node[value.producer.position]
            if not in_place:
                node = copy_message(node)
                node.name, node.output[0] = new.make_name(f"Constant_{item.name}"), item.name
                nodes.setdefault(value.scope, []).append((value, node))
            _set_constant(node, converted)
            continue
        assert is_graph(message)
        if in_place and value.scope not in positions:
            positions[value.scope] = {tensor.name: k for k, tensor in enumerate(message.initializer)}
            positions[value.scope] |= {tensor.values.name: k for k, tensor in enumerate(message.sparse_initializer)}
        position = positions[value.scope][value.name] if in_place else None
        if isinstance(converted, SparseTensorProto):
            _put(message.sparse_initializer, position, converted)
        else:
            _put(message.initializer, position, converted)
    return nodes


def _put(initializers: RepeatedCompositeFieldContainer[MessageT], position: int | None, converted: MessageT) -> None:
    """Put an initializer in the place of another, or behind all."""
    (initializers.add() if position is None else initializers[position]).CopyFrom(converted)


def _set_constant(node: NodeProto, value: TensorProto | SparseTensorProto) -> None:
    """Let a Constant hold another value."""
    from onnx import helper

    del node.attribute[:]
    name = "sparse_value" if value.DESCRIPTOR.name == "SparseTensorProto" else "value"
    node.attribute.append(helper.make_attribute(name, value))


_SENSITIVE = frozenset({"Sqrt", "Div", "Log", "Pow"})  # the four that Rule S7.8 names


def sensitive_readers(solution: GraphSolution, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield each converted constant with a node that divides by it, or takes its root, logarithm or power."""
    converted: dict[Value | None, list[str]] = {}
    for item in layout.converted:
        converted.setdefault(item.value, []).append(item.name)
    for node in solution.graph.nodes if converted else ():
        if node.op_type in _SENSITIVE:
            for value in node.inputs:
                for name in converted.get(value, ()):
                    yield name, f"{node.op_type} {display_name(node)}"


def constant_warnings(reports: Iterable[ConstantReport], sensitive: dict[str, str]) -> Iterator[Diagnostic]:
    """Yield what conversion did to constants that a user should know."""
    for report in reports:
        if report.overflowed or report.clamped:
            done = f"{report.overflowed} became infinite" if report.overflowed else f"{report.clamped} were clamped"
            text = f"constant {report.name!r} reaches {report.max_abs:.6g}, beyond the low type: of its values {done}"
            yield Diagnostic("ML502", "warning", text, hint="--constants keep leaves such constants in float32")
        if report.flushed and report.name in sensitive:
            reader = sensitive[report.name]
            text = f"{report.flushed} values of constant {report.name!r} became zero, and it feeds {reader}"
            hint = "keep that node in float32: black-list its op type or use keep_dtype"
            yield Diagnostic("ML503", "warning", text, hint=hint)
