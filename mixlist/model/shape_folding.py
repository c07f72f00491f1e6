"""Compute the small tensors from which a model computes shapes, and replace the nodes that make them by Constants.

Example: x -> Shape -> Gather -> Concat -> Reshape. Once the shape of ``x`` is known, the values of Shape, Gather and
Concat are known too. With Constants in their place, ONNX's shape inference finds the output shape of the Reshape.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.contrib_shapes import (
    CONTRIB_DOMAIN,
    KnownInputs,
    Shape,
    infer_output_shapes,
    replace_with_standard_node,
)
from mixlist.model.graph import Graph, Scope
from mixlist.model.traits import Trait, operators
from mixlist.model.traversal import nodes_in, protos_by_scope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    Array = NDArray[np.generic]

# A computed tensor is kept up to this size, which is enough for shapes, axes and tables of indices.
MAX_KNOWN_ELEMENTS = 4096
# A result is computed if an estimate of its size is at most this, and kept if it has at most MAX_KNOWN_ELEMENTS.
_MAX_RESULT_ELEMENTS = 2**16
# Operators whose result is not larger than all inputs together.
_BOUNDED_BY_INPUTS = frozenset(
    {"Compress", "Concat", "GatherElements", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split"}
)
_COMPUTES_SHAPES = operators(Trait.COMPUTES_SHAPES)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


def read_static_shapes(graph: GraphProto) -> dict[str, Shape]:
    """Return the shapes without unknown dimensions that a graph declares, by tensor name; skip the bodies in it."""
    shapes: dict[str, Shape] = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        if info.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = tensor.shape.dim
            # ONNX infers a negative size where a kernel does not fit into its input.
            if all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
                shapes[info.name] = tuple(dim.dim_value for dim in dims)
    shapes.update({weight.name: tuple(weight.dims) for weight in graph.initializer})
    return shapes


class ShapeFolder:
    """Compute the small tensors of a scratch model whose inputs are known, and replace their nodes by Constants.

    ``arrays``: the known tensors, by scope and name.
    """

    def __init__(self, graph: Graph, scratch: ModelProto) -> None:
        """``scratch`` is a copy of the model of ``graph``. It is changed in place."""
        self.root = graph.root
        self.opsets = {entry.domain: entry.version for entry in scratch.opset_import}
        self.arrays: dict[Scope, dict[str, Array]] = {}
        # A function of the model can have the name of a standard operator, and then it is not that operator.
        self.functions = {(f.domain, f.name) for f in scratch.functions}
        self.protos = protos_by_scope(graph.root, scratch.graph)
        # Outputs of replaced com.microsoft nodes: their shape is right, but their value is not.
        self.shape_only: set[str] = set()
        for node in nodes_in(scratch.graph):
            if (node.domain, node.op_type) not in self.functions and replace_with_standard_node(node):
                self.shape_only.add(node.output[0])

    def fold(self, inferred: dict[Scope, GraphProto]) -> bool:
        """Fold the nodes of all scopes once; return True if a new value or shape was found.

        ``inferred``: the messages of the scopes with the shapes that ONNX inferred from the scratch model.
        """
        return self._fold_scope(self.root, inferred, {}, {})

    def _fold_scope(
        self,
        scope: Scope,
        inferred: dict[Scope, GraphProto],
        outer_arrays: dict[str, Array],
        outer_shapes: dict[str, Shape],
    ) -> bool:
        """Fold the nodes of a scope and of its bodies; return True if a new value or shape was found."""
        from onnx import helper

        proto = self.protos[scope]
        scope_arrays = self.arrays.setdefault(scope, {})
        shapes = {**outer_shapes, **read_static_shapes(inferred[scope])}
        arrays = {**outer_arrays, **scope_arrays}  # all that nodes of this scope can read
        bodies = {node.position: node.bodies for node in scope.nodes if node.bodies}
        is_new = False
        for tensor in proto.initializer:
            if tensor.name not in scope_arrays and (array := _small_array(tensor)) is not None:
                scope_arrays[tensor.name] = arrays[tensor.name] = array
        # In the order of the file. If it is not topological, the next call of fold() finds the rest.
        for position, node in enumerate(proto.node):
            node_bodies = bodies.get(position, {})
            for body in node_bodies.values():
                # A body comes at the position of its owner, because it reads what the nodes before the owner make.
                is_new |= self._fold_scope(body, inferred, arrays, shapes)
            if node.domain == CONTRIB_DOMAIN and (node.domain, node.op_type) not in self.functions:
                known = KnownInputs([shapes.get(n) for n in node.input], [arrays.get(n) for n in node.input])
                output_shapes = infer_output_shapes(node, known)
                # A new declaration needs a type. FLOAT is a placeholder: only shapes are read from this copy.
                float_info = helper.make_tensor_value_info("", dtypes.FLOAT, None)
                is_new |= _declare_outputs(proto, node, [(float_info, shape) for shape in output_shapes], shapes)
            if node.op_type == "If" and is_standard_domain(node.domain):
                # With a known condition, the outputs have the shapes of the branch that runs.
                condition = arrays.get(node.input[0])
                if condition is not None and condition.size == 1:
                    branch = inferred[node_bodies["then_branch" if condition.reshape(()) else "else_branch"]]
                    branch_shapes = {**shapes, **read_static_shapes(branch)}
                    outputs = [(info, branch_shapes.get(info.name)) for info in branch.output]
                    is_new |= _declare_outputs(proto, node, outputs, shapes)
            if len(node.output) == 1 and node.output[0] not in scope_arrays:
                result = self._compute(node, arrays, shapes)
                if result is not None and result.size <= MAX_KNOWN_ELEMENTS:
                    scope_arrays[node.output[0]] = arrays[node.output[0]] = result
                    # A Constant stays, and its value is nothing new for the inference of the next pass.
                    if node.op_type != "Constant":
                        _make_constant(node, result)
                        is_new = True
        return is_new

    def _compute(self, node: NodeProto, arrays: dict[str, Array], shapes: dict[str, Shape]) -> Array | None:
        """Return the value of a node's output; None if the value is unknown, large or expensive to compute."""
        import numpy as np

        is_function_call = (node.domain, node.op_type) in self.functions
        if is_function_call or node.output[0] in self.shape_only or not is_standard_domain(node.domain):
            return None
        if node.op_type == "Constant":
            return _constant_value(node)
        if node.op_type in _YIELDS_SHAPE:
            shape = shapes.get(node.input[0])
            if shape is None:
                return None
            if node.op_type == "Size":
                return np.array(np.prod(shape, dtype=np.int64))
            bounds = {a.name: a.i for a in node.attribute}  # Shape has ``start`` and ``end`` since opset 15
            return np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)
        if node.op_type not in _COMPUTES_SHAPES or any(name and name not in arrays for name in node.input):
            return None
        inputs = {name: arrays[name] for name in node.input if name}
        if not inputs or not _is_small_enough_to_compute(node, [inputs.get(name) for name in node.input]):
            return None
        return self._evaluate(node, inputs)

    def _evaluate(self, node: NodeProto, inputs: dict[str, Array]) -> Array | None:
        """Run a node with onnx's reference evaluator; return None if that fails."""
        import numpy as np
        from onnx import ValueInfoProto, helper
        from onnx.reference import ReferenceEvaluator

        input_infos, output_info = [ValueInfoProto(name=name) for name in inputs], ValueInfoProto(name=node.output[0])
        with suppress(Exception), np.errstate(all="ignore"):  # the evaluator raises errors of many kinds
            graph = helper.make_graph([node], "one_node", input_infos, [output_info])
            results = ReferenceEvaluator(graph, self.opsets).run(None, inputs)
            assert isinstance(results, list)
            return np.asarray(results[0])
        return None


def _declare_outputs(
    graph: GraphProto, node: NodeProto, outputs: list[tuple[ValueInfoProto, Shape | None]], shapes: dict[str, Shape]
) -> bool:
    """Declare shapes of a node's outputs in ``graph`` and add them to ``shapes``; return True if one is new.

    ``outputs``: for each output a ValueInfoProto of its type, and its shape, None if the shape is unknown.
    """
    is_new = False
    for name, (type_info, shape) in zip(node.output, outputs, strict=False):
        if name and shape is not None and name not in shapes:
            shapes[name], is_new = shape, True
            info = next((info for info in (*graph.value_info, *graph.output) if info.name == name), None)
            if info is None:
                info = graph.value_info.add(name=name, type=type_info.type)
            del info.type.tensor_type.shape.dim[:]  # a declared shape with unknown dimensions
            for size in shape:
                info.type.tensor_type.shape.dim.add(dim_value=size)
    return is_new


def _is_small_enough_to_compute(node: NodeProto, inputs: list[Array | None]) -> bool:
    """Return True if the result of a node has few enough elements to compute it, by an estimate of its size.

    ``inputs``: the input arrays, None for an omitted one. They are small, but some operators make a large tensor of
    small ones: ConstantOfShape([100000]), Expand, or Add with shapes [1000, 1] and [1, 1000].
    """
    import numpy as np

    first = inputs[0]
    if first is None:
        return False
    # float64, because int64 can overflow.
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(first.astype(np.float64)) <= MAX_KNOWN_ELEMENTS)
    if node.op_type == "Range":
        # The number of elements. It is negative for an empty Range, which is small.
        start, limit, delta = (float(v.reshape(())) if v is not None and v.size == 1 else 0.0 for v in inputs)
        return bool(delta) and (limit - start) / delta <= MAX_KNOWN_ELEMENTS
    if node.op_type in ("Expand", "Tile") and inputs[1] is not None:
        # An upper bound: each axis grows at most by the factor that the second input has for it.
        return bool(first.size * np.prod(np.maximum(inputs[1].astype(np.float64), 1)) <= MAX_KNOWN_ELEMENTS)
    arrays = [array for array in inputs if array is not None]
    # A broadcast result has at most as many elements as the product of the sizes of its inputs.
    if node.op_type in _BOUNDED_BY_INPUTS or prod(array.size for array in arrays) <= _MAX_RESULT_ELEMENTS:
        return True
    if node.op_type == "Gather":  # each index picks all elements along the other axes
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        per_index = first.size // max(first.shape[axis] if -first.ndim <= axis < first.ndim else 1, 1)
        return per_index * arrays[-1].size <= _MAX_RESULT_ELEMENTS
    with suppress(ValueError):  # the shapes do not broadcast
        return prod(np.broadcast_shapes(*(array.shape for array in arrays))) <= _MAX_RESULT_ELEMENTS
    return False


def _constant_value(node: NodeProto) -> Array | None:
    """Return the value of a Constant; None if it is large, sparse or a text."""
    import numpy as np
    from onnx import helper

    attribute = node.attribute[0] if node.attribute else None
    if attribute is None:
        return None
    if attribute.name == "value":
        return _small_array(attribute.t)
    dtype = {"value_int": np.int64, "value_float": np.float32}.get(attribute.name.removesuffix("s"))
    return np.array(helper.get_attribute_value(attribute), dtype) if dtype else None


def _make_constant(node: NodeProto, array: Array) -> None:
    """Change a node in place to a Constant with the value ``array``."""
    from onnx import helper, numpy_helper

    node.CopyFrom(helper.make_node("Constant", [], node.output, node.name, value=numpy_helper.from_array(array)))


def _small_array(tensor: TensorProto) -> Array | None:
    """Return the elements of a small tensor; None if the tensor is large or its data cannot be read."""
    from onnx import numpy_helper

    with suppress(Exception):  # external data, or an element type that numpy lacks
        return numpy_helper.to_array(tensor) if prod(tensor.dims) <= MAX_KNOWN_ELEMENTS else None
    return None
