"""Convert the constants of a CastLayout in the messages of a model, and warn about values that the conversion changed.

``tensor_conversion`` converts a single tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.decide.solution import Solution
from mixlist.diagnostics import Diagnostic
from mixlist.model.graph import Scope, Value
from mixlist.model.naming import NameGenerator, display_name
from mixlist.model.protos import MessageT, copy_message
from mixlist.option_spelling import spell
from mixlist.write.cast_layout import CastLayout
from mixlist.write.tensor_conversion import ConstantReport, convert_tensor

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

    from mixlist.lists.policy import Clamp

    # The new Constant nodes of each scope, each with the constant that it holds in another type.
    NewConstants = dict[Scope, list[tuple[Value, NodeProto]]]


def convert_constants(
    layout: CastLayout,
    protos: Mapping[Scope, GraphProto],
    name_generator: NameGenerator,
    clamp: Clamp,
    folder: Path | None,
    reports: dict[Hashable, ConstantReport],
) -> NewConstants:
    """Convert the constants of a layout in the messages of its scopes; return the new Constant nodes by scope.

    ``protos``: the message of each scope. ``folder``: the folder of the model's data files; the constants of masks are
    read from there. Adds a report per converted constant to ``reports``.
    """
    from onnx import SparseTensorProto

    new_nodes: NewConstants = {}
    # A search by name for every constant would take quadratic time.
    scopes = {constant.value.scope for constant in layout.converted_constants}
    initializer_positions = {scope: _find_initializer_positions(protos[scope]) for scope in scopes}
    # A copy is made from the authored constant, so copies come before the conversion in place.
    for item in sorted(layout.converted_constants, key=lambda constant: constant.name == constant.value.name):
        value, message = item.value, protos[item.value.scope]
        assert value.constant_proto is not None
        converted, report = convert_tensor(
            value.constant_proto, item.elem, clamp, item.name, item.magnitude_limit, folder
        )
        in_place = item.name == value.name
        if report is not None:
            reports[item.name, id(value.constant_proto)] = report  # two scopes may have a constant of one name
        if value.producer is not None:  # a Constant node
            node = message.node[value.producer.position]
            # The new nodes go into the message last: until then, the positions of the file must stay valid.
            if not in_place:
                node = copy_message(node)
                node.name, node.output[0] = name_generator.make_name(f"Constant_{item.name}"), item.name
                new_nodes.setdefault(value.scope, []).append((value, node))
            _set_constant(node, converted)
            continue
        position = initializer_positions[value.scope][value.name] if in_place else None
        if isinstance(converted, SparseTensorProto):
            _store_initializer(message.sparse_initializer, position, converted)
        else:
            _store_initializer(message.initializer, position, converted)
    return new_nodes


def _find_initializer_positions(message: GraphProto) -> dict[str, int]:
    """Return the position of each initializer by its name, in the list of the dense or of the sparse initializers."""
    positions = {tensor.name: k for k, tensor in enumerate(message.initializer)}
    return positions | {tensor.values.name: k for k, tensor in enumerate(message.sparse_initializer)}


def _store_initializer(
    initializers: RepeatedCompositeFieldContainer[MessageT], position: int | None, converted: MessageT
) -> None:
    """Replace the initializer at ``position``; append one if ``position`` is None."""
    (initializers.add() if position is None else initializers[position]).CopyFrom(converted)


def _set_constant(node: NodeProto, value: TensorProto | SparseTensorProto) -> None:
    """Replace the value of a Constant node; its attribute (value_float, value_floats, ...) becomes a tensor."""
    from onnx import helper

    del node.attribute[:]
    name = "sparse_value" if value.DESCRIPTOR.name == "SparseTensorProto" else "value"
    node.attribute.append(helper.make_attribute(name, value))


_MANY_ZEROS = 0.1  # of the values that were not zero (Rule S7.8)
_SENSITIVE_TO_ZERO = frozenset({"Sqrt", "Div", "Log", "Pow"})  # Rule S7.8 names these four


def find_sensitive_readers(solution: Solution, layout: CastLayout) -> Iterator[tuple[str, str]]:
    """Yield each converted constant that an operator sensitive to zeros reads, by name, and a text with that reader."""
    names: dict[Value | None, list[str]] = {}
    for item in layout.converted_constants:
        names.setdefault(item.value, []).append(item.name)
    for node in solution.graph.nodes if names else ():
        if node.op_type in _SENSITIVE_TO_ZERO:
            for value in node.inputs:
                for name in names.get(value, ()):
                    yield name, f"{node.op_type} {display_name(node)}"


def find_constant_warnings(
    reports: Iterable[ConstantReport], sensitive_readers: dict[str, str]
) -> Iterator[Diagnostic]:
    """Yield warnings about constants that lost values in the conversion.

    ``sensitive_readers``: by the name of a constant, a node for which a zero is dangerous, as
    ``find_sensitive_readers`` yields them.
    """
    for report in reports:
        if report.overflowed or report.clamped:
            overflow = f"{report.overflowed} values became infinite"
            loss = overflow if report.overflowed else f"{report.clamped} values were clamped"
            text = f"constant {report.name!r} reaches {report.max_abs:.6g}, beyond the low type: {loss}"
            yield Diagnostic(
                "ML502", "warning", text, hint=f"{spell('constants', 'keep')} leaves such constants in float32"
            )
        # Tiny weights often become zero, which is mostly harmless if they are few and no sensitive operator reads them.
        reader = sensitive_readers.get(report.name)
        if report.flushed and (reader is not None or report.flushed >= _MANY_ZEROS * report.nonzero):
            text = f"{report.flushed} of {report.nonzero} nonzero values of constant {report.name!r} became zero"
            text += f", and {reader} reads the constant" if reader is not None else ""
            hint = "keep that node in float32: put its op type on the black list, or use keep_dtype"
            yield Diagnostic("ML503", "warning", text, hint=hint)
