"""Find the shape of every tensor of a model for given input sizes, as far as the model determines the shapes.

ONNX's shape inference stops where a model computes a shape in a way that it does not follow, and at the operators of
ONNX Runtime (``com.microsoft``). So two steps take turns on a scratch copy of the model until nothing new is found:

- ONNX's shape inference.
- Folding: compute the small tensors whose inputs are known, and turn their nodes into Constants. Example: x -> Shape ->
  Gather -> Concat -> Reshape. Once the shape of ``x`` is known, the values of Shape, Gather and Concat are known too.
  With Constants in their place, ONNX's shape inference finds the output shape of the Reshape.

ONNX Runtime's optimizer fuses standard operators into its own. Many of these have the output shape of a standard
operator, which replaces them in the scratch copy. The others have a rule here. Source: ContribOperators.md of ONNX
Runtime. Shapes that neither way covers stay unknown, and so do shapes that depend on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Scope, Value, protos_by_scope
from mixlist.model.inferred_shapes import copy_without_weights, dimensions_in, remove_value_infos
from mixlist.model.protos import copy_message, nodes_in
from mixlist.model.shape_inference import infer_shapes, infer_shapes_with_data_propagation
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    Array = NDArray[np.generic]
    Attributes = dict[str, AttributeProto]

CONTRIB_DOMAIN = "com.microsoft"
Shape = tuple[int, ...]
# Each pass finds values and shapes that the next pass needs. Real models need four passes. ONNX infers no shapes
# after a fused operator, so a model with fused operators needs one more pass for each of its layers.
_MAX_PASSES = 200


@dataclass
class KnownShapes:
    """The known shapes of a model, and the elements of its small tensors that are known, both by Value."""

    shapes: dict[Value, Shape] = field(default_factory=dict)
    arrays: dict[Value, Array] = field(default_factory=dict)

    def shape_of(self, value: Value | None) -> Shape | None:
        """Return the shape of a value; None if the shape is unknown or the slot is omitted."""
        return self.shapes.get(value) if value is not None else None


def propagate_shapes(graph: Graph, dims: Mapping[str, int], shapes: Mapping[str, Shape]) -> KnownShapes:
    """Return the known shapes of a model.

    ``dims``: sizes of symbolic dimensions, by name or as ``input.axis``. ``shapes``: complete shapes of graph inputs,
    and of other tensors of the main graph that a run has shown, by name in the file.
    """
    scratch = copy_without_weights(graph.model)
    _set_sizes(scratch.graph, dims, shapes)
    _declare_shapes(graph, scratch.graph, shapes)
    folder, follows_values = _ShapeFolder(graph, scratch), True
    model = None
    for _ in range(_MAX_PASSES):
        # If inference failed, ``model`` is the scratch model, which is no result of an earlier pass.
        model, follows_values = _infer(scratch, model if model is not scratch else None, follows_values)
        inferred = protos_by_scope(graph.root, model.graph)
        if not folder.fold(inferred):
            break
    return _collect(inferred, folder.arrays)


def count_elements(model: ModelProto, inputs: Mapping[str, Shape]) -> dict[str, int]:
    """Return the number of elements of the tensors in a main graph, by name, for complete shapes of its inputs.

    This is one inference by ONNX alone: a tensor is left out if its shape is computed in the graph.
    """
    scratch = copy_without_weights(model)
    _set_sizes(scratch.graph, {}, inputs)
    inferred, _ = _infer(scratch, None, follows_values=False)
    return {name: prod(shape) for name, shape in _read_static_shapes(inferred.graph).items()}


def _set_sizes(graph: GraphProto, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> None:
    """Write the given sizes into all declared shapes of a graph.

    A shape in ``inputs`` also gives its symbolic dimensions a size, in the whole model: if the input ``x`` is declared
    as [batch, 3] and has the shape (8, 3), then ``batch`` is 8 everywhere.
    """
    sizes = dict(dims)
    for info in graph.input:
        if not info.type.HasField("tensor_type"):
            continue
        declared_dims, shape = info.type.tensor_type.shape.dim, inputs.get(info.name)
        while shape is not None and len(declared_dims) < len(shape):  # the model declares no shape of the input
            declared_dims.add()
        for axis, dim in enumerate(declared_dims):
            size = dims.get(f"{info.name}.{axis}") if shape is None else shape[axis]
            if size is not None:
                # Python assigns from left to right: dim_param is read before dim_value clears it.
                sizes[dim.dim_param] = dim.dim_value = size
    sizes.pop("", None)  # of dimensions without a name
    for dim in dimensions_in(graph):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def _declare_shapes(graph: Graph, proto: GraphProto, shapes: Mapping[str, Shape]) -> None:
    """Declare the shapes of tensors that nodes of the main graph make. ``proto``: a copy of the main graph."""
    from onnx import helper

    infos = {info.name: info for info in (*proto.value_info, *proto.output)}
    for value in graph.root.values.values():
        shape = shapes.get(value.name_in_file)
        if shape is not None and value.producer is not None and isinstance(value.type, int):
            info = infos.get(value.name_in_file) or proto.value_info.add()
            info.CopyFrom(helper.make_tensor_value_info(value.name_in_file, value.type, shape))


# --- inference and folding in turn ---


def _infer(scratch: ModelProto, earlier: ModelProto | None, follows_values: bool) -> tuple[ModelProto, bool]:
    """Return a copy of the scratch model with inferred shapes; the scratch model itself if inference fails.

    ``earlier``: the result of the previous pass, since which the scratch model has got more constants.
    ``follows_values``: whether to follow the values of small tensors (data propagation). The second result is what the
    next pass must give there: False once that took too much memory or time. Raises ModelError for too many function
    calls, and MemoryError.
    """
    # A declared shape may be wrong: if inference fails, try again without the declarations.
    for keep_declared in (True, False):
        model = scratch
        if not keep_declared:
            model = copy_message(scratch)
            remove_value_infos(model.graph)
        try:
            if not follows_values:
                return infer_shapes(model), False
            inferred, is_exhausted = infer_shapes_with_data_propagation(model, earlier)
            return inferred, not is_exhausted
        except (ModelError, MemoryError):
            raise
        except Exception:  # onnx raises errors of many kinds
            continue
    return scratch, follows_values


def _collect(inferred: dict[Scope, GraphProto], arrays: dict[Scope, dict[str, Array]]) -> KnownShapes:
    """Return the shapes and elements that were found, by the Values of the linked Graph."""
    known = KnownShapes()
    for scope, proto in inferred.items():
        for name, shape in _read_static_shapes(proto).items():
            if name in scope.values:
                known.shapes[scope.values[name]] = shape
        for name, array in arrays.get(scope, {}).items():
            if name in scope.values:
                known.arrays[scope.values[name]] = array
                # If inference failed, the model lacks the shapes of the tensors that were computed.
                known.shapes.setdefault(scope.values[name], tuple(array.shape))
    return known


# --- folding: compute small tensors ---


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


def _read_static_shapes(graph: GraphProto) -> dict[str, Shape]:
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


class _ShapeFolder:
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
            if (node.domain, node.op_type) not in self.functions and _replace_with_standard_node(node):
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
        shapes = {**outer_shapes, **_read_static_shapes(inferred[scope])}
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
                known = _KnownInputs([shapes.get(n) for n in node.input], [arrays.get(n) for n in node.input])
                output_shapes = _infer_output_shapes(node, known)
                # A new declaration needs a type. FLOAT is a placeholder: only shapes are read from this copy.
                float_info = helper.make_tensor_value_info("", dtypes.FLOAT, None)
                is_new |= _declare_outputs(proto, node, [(float_info, shape) for shape in output_shapes], shapes)
            if node.op_type == "If" and is_standard_domain(node.domain):
                # With a known condition, the outputs have the shapes of the branch that runs.
                condition = arrays.get(node.input[0])
                if condition is not None and condition.size == 1:
                    branch = inferred[node_bodies["then_branch" if condition.reshape(()) else "else_branch"]]
                    branch_shapes = {**shapes, **_read_static_shapes(branch)}
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


# --- the shapes of ONNX Runtime's own operators ---


class _KnownInputs(NamedTuple):
    """The known shapes and values of the inputs of a node, by slot; None for an omitted input, and if unknown."""

    shapes: Sequence[Shape | None]
    arrays: Sequence[NDArray[np.generic] | None]


_SKIP_NORMALIZATIONS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
# Operators whose output has the shape of the first input.
_SHAPE_OF_FIRST_INPUT = _SKIP_NORMALIZATIONS | {
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "GroupNorm",
    "QuickGelu",
    "RotaryEmbedding",
}
# The standard operator with the same output shape, and the number of inputs to pass to it.
_STANDARD_OPERATORS = {"FusedConv": ("Conv", 3), "FusedGemm": ("Gemm", 3), "GemmFastGelu": ("MatMul", 2)}


def _replace_with_standard_node(node: NodeProto) -> bool:
    """Change a node in place to a standard one with the same output shape; return False if there is none.

    Only the shape is right: the new node does not compute the numbers of the old one.
    """
    op = node.op_type
    if len(node.output) > 1:
        return False  # each of the standard operators below has one output
    # ONNX Runtime writes these into the standard domain: LayerNormalization also below opset 17, where ONNX has none,
    # and SimplifiedLayerNormalization, which ONNX never had.
    is_layer_normalization = op in ("LayerNormalization", "SimplifiedLayerNormalization") and not node.domain
    if is_layer_normalization or (op in _SHAPE_OF_FIRST_INPUT and node.domain == CONTRIB_DOMAIN):
        _replace_node(node, "Identity", 1)
    elif node.domain != CONTRIB_DOMAIN:
        return False
    elif op in _STANDARD_OPERATORS:
        # The fused activation changes no shape, and the standard operator does not have its attributes.
        _replace_node(
            node, *_STANDARD_OPERATORS[op], [a for a in node.attribute if not a.name.startswith("activation")]
        )
    elif op in ("FusedMatMul", "TransposeMatMul"):
        flags = {a.name: bool(a.i) for a in node.attribute}
        # These two flags permute the batch dimensions as well. No equation below covers that.
        if flags.get("transBatchA") or flags.get("transBatchB"):
            return False
        transpose_a, transpose_b = flags.get("transA", False), flags.get("transB", False)
        if transpose_a or transpose_b:
            # Example: transA alone gives "...ji,...jk->...ik".
            a, b = "ji" if transpose_a else "ij", "kj" if transpose_b else "jk"
            _replace_node(node, "Einsum", 2, equation=f"...{a},...{b}->...ik")
        else:
            _replace_node(node, "MatMul", 2)
    elif op == "MultiHeadAttention" and len(node.input) > 2 and node.input[2]:
        # query (batch, query length, width) and value (batch, key length, value width)
        # give (batch, query length, value width).
        # The Einsum reads the first two inputs only, so the value takes the slot of the key.
        node.input[1] = node.input[2]
        _replace_node(node, "Einsum", 2, equation="abc,ade->abe")
    else:
        return False
    return True


def _replace_node(
    node: NodeProto, op_type: str, inputs: int, attributes: Sequence[AttributeProto] = (), **text_attributes: str
) -> None:
    """Change a node in place to ``op_type``, with its first ``inputs`` inputs.

    ``attributes`` are those of the node that stay, ``text_attributes`` are new.
    """
    from onnx import helper

    standard_node = helper.make_node(op_type, node.input[:inputs], node.output, node.name, **text_attributes)
    standard_node.attribute.extend(attributes)
    node.CopyFrom(standard_node)


def _infer_output_shapes(node: NodeProto, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the output shapes of a com.microsoft node for its inputs; an empty list without a rule."""
    rule = _SHAPE_RULES.get(node.op_type) if node.domain == CONTRIB_DOMAIN else None
    attributes = {a.name: a for a in node.attribute}
    try:
        return rule(attributes, inputs) if rule else []
    except (IndexError, KeyError, TypeError, ValueError):  # a shape is unknown, or is not what the operator requires
        return []


def _skip_normalization(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output, the mean, the inverse standard deviation, and the normalized sum."""
    (data,) = _known_shapes(inputs, 0)
    return [data, (*data[:-1], 1), (*data[:-1], 1), data]


def _embed_normalization(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output, the mask index, and the normalized sum."""
    ids, word_embedding = _known_shapes(inputs, 0, 2)
    output = (*ids, word_embedding[1])
    return [output, ids[:1], output]


def _attention(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the output shape for the data (batch, length, width) and the weights (width, q + k + v)."""
    data, weights = _known_shapes(inputs, 0, 1)
    # Without the attribute, the columns of q, k and v are equally many.
    widths = list(attributes["qkv_hidden_sizes"].ints) if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    return [(*data[:2], widths[2])]


def _grouped_attention(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output and of both caches for the query (batch, length, width).

    Without a key, the query is packed: its width holds the heads of the query, then those of the key and of the value.
    A cache is (batch, key heads, length, head size). Its length is the total length, or that of a larger past cache.
    """
    (query,) = _known_shapes(inputs, 0)
    # Grouped attention has fewer heads in the key and in the value than in the query.
    heads, key_heads = attributes["num_heads"].i, attributes["kv_num_heads"].i
    is_packed = len(inputs.shapes) < 2 or inputs.shapes[1] is None
    width = query[2] * heads // (heads + 2 * key_heads) if is_packed else query[2]
    total = inputs.arrays[6] if len(inputs.arrays) > 6 else None
    if total is None:
        return [(*query[:2], width)]
    past = inputs.shapes[3]
    length = max(int(total.reshape(())), past[2] if past is not None else 0)
    cache = (query[0], key_heads, length, width // heads)
    return [(*query[:2], width), cache, cache]


def _quantized_lstm(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shapes of all hidden states (length, directions, batch, hidden), the last state, and the last cell."""
    # The recurrence weights are (directions, hidden, 4 * hidden); those of the standard LSTM end in hidden.
    data, recurrence = _known_shapes(inputs, 0, 2)
    length, batch = data[:2]
    directions, hidden = recurrence[:2]
    last = (directions, batch, hidden)
    return [(length, directions, batch, hidden), last, last]


def _matmul(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shape of a matrix product; the leading dimensions broadcast."""
    import numpy as np

    left, right = _known_shapes(inputs, 0, 1)
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])]


def _block_quantized_matmul(attributes: Attributes, inputs: _KnownInputs) -> list[Shape | None]:
    """Return the shape of a product with a quantized matrix of N columns, which no input has as an axis."""
    (data,) = _known_shapes(inputs, 0)
    return [(*data[:-1], attributes["N"].i)]


def _known_shapes(inputs: _KnownInputs, *slots: int) -> list[Shape]:
    """Return the shapes of input slots; raise ValueError for an unknown shape, IndexError for a missing slot."""
    shapes = [inputs.shapes[slot] for slot in slots]
    if any(shape is None for shape in shapes):
        raise ValueError("the shape of an input is unknown")
    return [shape for shape in shapes if shape is not None]


_SHAPE_RULES = {  # the function that infers the output shapes, by operator
    "Attention": _attention,
    "DynamicQuantizeLSTM": _quantized_lstm,
    "DynamicQuantizeMatMul": _matmul,
    "EmbedLayerNormalization": _embed_normalization,
    "GroupQueryAttention": _grouped_attention,
    "MatMulIntegerToFloat": _matmul,
    "MatMulNBits": _block_quantized_matmul,
    **dict.fromkeys(_SKIP_NORMALIZATIONS, _skip_normalization),
}
