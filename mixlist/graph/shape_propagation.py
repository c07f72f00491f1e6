"""The shape of every tensor of a model for given sizes of its inputs, as far as it follows from the model.

ONNX's shape inference stops where a shape is computed (Shape, Gather, Concat, Reshape ...) beyond what it
propagates itself. Such arithmetic is exact once its inputs are known, so it is done here, in a scratch copy: a node
whose small inputs are all known becomes a Constant, and inference runs again, until nothing new is learnt.
What depends on data stays unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph.contrib_shapes import DOMAIN, infer_output_shapes, replace_with_standard_node
from mixlist.graph.function_attributes import resolve_attribute_references
from mixlist.graph.inferred_shapes import copy_without_weights, dimensions_in, remove_value_infos
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.traversal import nodes_in, protos_by_scope
from mixlist.ops import types
from mixlist.ops.shape_inference import infer_shapes, infer_shapes_with_values
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    Array = NDArray[np.generic]

Shape = tuple[int, ...]
MAX_KNOWN_ELEMENTS = 4096  # elements: what shapes, axes and index tables hold
_LARGEST = 2**16  # elements that are computed to find out that a result is not small
_LINEAR = frozenset(
    {"Compress", "Concat", "GatherElements", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split"}
)
_PASSES = 200  # each learns what the next needs; real models need four, and one more a layer of a fused operator
_FOLDED = operators(Trait.COMPUTES_SHAPES)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


@dataclass
class _Shared:
    """State that all graphs of one model share.

    ``bodies``: the sizes in the bodies of functions, by function and arguments. ``exhausted``: to follow values took
    too much memory or time once, and is not tried again.
    """

    bodies: dict[Hashable, KnownShapes] = field(default_factory=dict)
    exhausted: bool = False


@dataclass
class KnownShapes:
    """Shapes by Value, and the elements of small tensors that are known, for one graph and the scopes in it.

    ``shared`` belongs to all graphs of one model.
    """

    shapes: dict[Value, Shape] = field(default_factory=dict)
    arrays: dict[Value, Array] = field(default_factory=dict)
    shared: _Shared = field(default_factory=_Shared)

    def shape_of(self, value: Value | None) -> Shape | None:
        """The shape; None where it is not known. A slot that is left out has none either."""
        return self.shapes.get(value) if value is not None else None


def propagate_shapes(graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> KnownShapes:
    """The shapes in a main graph.

    ``dims`` gives symbolic dimensions their size, by name or as ``input.axis``; ``inputs`` has whole input shapes.
    """
    scratch = copy_without_weights(graph.model)
    _bind(scratch.graph, dims, inputs)
    return _settle(graph, scratch, _Shared())


def propagate_shapes_in_function(body: Graph, call: Node, outer: KnownShapes) -> KnownShapes:
    """Return the shapes in a function's body for the arguments of one call; calls with equal arguments share them."""
    bodies = outer.shared.bodies
    arguments = [
        (outer.shape_of(value), *_elements(outer.arrays.get(value))) for value in call.inputs if value is not None
    ]
    key = body, tuple([value is None for value in call.inputs]), tuple(arguments)
    if key not in bodies:
        bodies[key] = _sizes_in_body(body, call, outer)
    return bodies[key]


def _elements(array: Array | None) -> tuple[str, bytes]:
    """Return the type and the elements of a small tensor in a form that can be compared."""
    return ("", b"") if array is None else (str(array.dtype), array.tobytes())


def _sizes_in_body(body: Graph, call: Node, outer: KnownShapes) -> KnownShapes:
    from onnx import helper, numpy_helper

    function = body.function
    nodes = [resolve_attribute_references(node, body.call_attributes) for node in function.node]
    values, constants = [], []
    for name, given in zip_longest(function.input, call.inputs[: len(function.input)]):  # None: a hole, or left out
        if given in outer.arrays:
            constants.append(numpy_helper.from_array(outer.arrays[given], name))
        else:
            values.append(_argument(name, body.root.values[name], given, outer))
    made = helper.make_graph(nodes, function.name, values, [], constants)
    made.value_info.extend(function.value_info)
    scratch = helper.make_model(made, opset_imports=function.opset_import, functions=body.model.functions)
    return _settle(body, scratch, outer.shared)


def _argument(name: str, value: Value, given: Value | None, outer: KnownShapes) -> ValueInfoProto:
    from onnx import ValueInfoProto, helper

    if isinstance(value.type, tuple) or value.type == types.UNKNOWN:
        return ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, value.type, outer.shape_of(given))


def _bind(graph: GraphProto, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> None:
    """Write the given sizes into every declared shape; a name that an input's shape binds counts everywhere."""
    sizes = dict(dims)
    for info in graph.input:
        if not info.type.HasField("tensor_type"):
            continue
        declared, shape = info.type.tensor_type.shape.dim, inputs.get(info.name)
        while shape is not None and len(declared) < len(shape):  # the model declares no shape
            declared.add()
        for axis, dim in enumerate(declared):
            size = dims.get(f"{info.name}.{axis}") if shape is None else shape[axis]
            if size is not None:
                sizes[dim.dim_param] = dim.dim_value = size
    sizes.pop("", None)
    for dim in dimensions_in(graph):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


# --- inferring and folding, in turn ---


def _settle(graph: Graph, scratch: ModelProto, shared: _Shared) -> KnownShapes:
    folding = _Folding(graph, scratch)
    model = None
    for _ in range(_PASSES):
        model = _infer(scratch, model if model is not scratch else None, shared)
        inferred = protos_by_scope(graph.root, model.graph)
        if not folding.run(inferred):
            break
    return _collect(inferred, folding.known, shared)


def _infer(scratch: ModelProto, earlier: ModelProto | None, shared: _Shared) -> ModelProto:
    """Return a copy after ONNX's shape inference; the scratch model itself where that fails.

    ``earlier`` is the result of the pass before. Raises ModelError for too many function calls, and MemoryError.
    """
    inferred = _attempt(scratch, earlier, shared)
    if inferred is None:  # of the declared shapes one may be wrong: then without them
        bare = copy_message(scratch)
        remove_value_infos(bare.graph)
        inferred = _attempt(bare, earlier, shared)
    return scratch if inferred is None else inferred  # shapes that inference cannot tell are reported as unknown


def _attempt(model: ModelProto, earlier: ModelProto | None, shared: _Shared) -> ModelProto | None:
    """Return a copy after ONNX's shape inference; None if that fails. Values that were too much are not tried again."""
    try:
        if shared.exhausted:
            return infer_shapes(model)
        inferred, shared.exhausted = infer_shapes_with_values(model, earlier)
    except (ModelError, MemoryError):
        raise
    except Exception:  # onnx raises errors of many kinds
        return None
    return inferred


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    """Return the shapes that a graph states in full."""
    shapes: dict[str, Shape] = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        if info.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = tensor.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                shapes[info.name] = tuple(dim.dim_value for dim in dims)
    shapes.update({weight.name: tuple(weight.dims) for weight in graph.initializer})
    return shapes


class _Folding:
    """Known small tensors of a scratch model, by scope; nodes that make one become Constants in it."""

    def __init__(self, graph: Graph, scratch: ModelProto) -> None:
        self.root = graph.root
        self.opsets = {entry.domain: entry.version for entry in scratch.opset_import}
        self.known: dict[Scope, dict[str, Array]] = {}
        self.functions = {(f.domain, f.name) for f in scratch.functions}
        self.posing: set[str] = set()  # outputs of stand-ins: of the right shape, not of the right value
        self.scratch = protos_by_scope(graph.root, scratch.graph)
        for node in nodes_in(scratch.graph):
            if (node.domain, node.op_type) not in self.functions and replace_with_standard_node(node):
                self.posing.add(node.output[0])

    def run(self, inferred: dict[Scope, GraphProto]) -> bool:
        """Fold in all scopes once, and return whether something new was learnt."""
        return self._scope(self.root, inferred, {}, {})

    def _scope(
        self, scope: Scope, inferred: dict[Scope, GraphProto], outer: dict[str, Array], outside: dict[str, Shape]
    ) -> bool:
        from onnx import helper

        scratch = self.scratch[scope]
        own = self.known.setdefault(scope, {})
        shapes = {**outside, **_shapes(inferred[scope])}
        values = {**outer, **own}
        bodies = {node.position: node.bodies for node in scope.nodes if node.bodies}
        learnt = False
        for tensor in scratch.initializer:
            if tensor.name not in own and (array := _array(tensor)) is not None:
                own[tensor.name] = values[tensor.name] = array
        for position, node in enumerate(scratch.node):
            inner = bodies.get(position, {})
            for body in inner.values():
                learnt |= self._scope(body, inferred, values, shapes)
            if node.domain == DOMAIN and (node.domain, node.op_type) not in self.functions:
                stated = infer_output_shapes(node, [shapes.get(name) for name in node.input])
                like = helper.make_tensor_value_info("", types.FLOAT, None)
                learnt |= _declare(scratch, node, [(like, shape) for shape in stated], shapes)
            if node.op_type == "If" and node.domain in ("", "ai.onnx"):
                condition = values.get(node.input[0])
                if condition is not None and condition.size == 1:
                    branch = inferred[inner["then_branch" if condition.reshape(()) else "else_branch"]]
                    inside = {**shapes, **_shapes(branch)}
                    learnt |= _declare(scratch, node, [(out, inside.get(out.name)) for out in branch.output], shapes)
            if len(node.output) == 1 and node.output[0] not in own:
                result = self._value(node, values, shapes)
                if result is not None and result.size <= MAX_KNOWN_ELEMENTS:
                    own[node.output[0]] = values[node.output[0]] = result
                    if node.op_type != "Constant":
                        _make_constant(node, result)
                        learnt = True
        return learnt

    def _value(self, node: NodeProto, values: dict[str, Array], shapes: dict[str, Shape]) -> Array | None:
        """Return the value that the node yields; None if it is unknown, large or expensive to compute."""
        import numpy as np

        ours = (node.domain, node.op_type) in self.functions or node.output[0] in self.posing
        if ours or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Constant":
            return _constant_value(node)
        if node.op_type in _YIELDS_SHAPE:
            shape = shapes.get(node.input[0])
            if shape is None:
                return None
            if node.op_type == "Size":
                return np.array(np.prod(shape, dtype=np.int64))
            ends = {a.name: a.i for a in node.attribute}
            return np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)
        if node.op_type not in _FOLDED or any(name and name not in values for name in node.input):
            return None
        given = {name: values[name] for name in node.input if name}
        if not given or not _stays_small(node, [given.get(name) for name in node.input]):
            return None
        return self._evaluate(node, given)

    def _evaluate(self, node: NodeProto, given: dict[str, Array]) -> Array | None:
        import numpy as np
        from onnx import ValueInfoProto, helper
        from onnx.reference import ReferenceEvaluator

        inputs, output = [ValueInfoProto(name=name) for name in given], ValueInfoProto(name=node.output[0])
        with suppress(Exception), np.errstate(all="ignore"):  # a node that cannot be computed stays unknown
            graph = helper.make_graph([node], "one", inputs, [output])
            results = ReferenceEvaluator(graph, self.opsets).run(None, given)
            assert isinstance(results, list)
            return np.asarray(results[0])
        return None


def _declare(
    scratch: GraphProto, node: NodeProto, stated: list[tuple[ValueInfoProto, Shape | None]], shapes: dict[str, Shape]
) -> bool:
    """State shapes of a node's outputs in a scratch graph, and return whether one is news.

    ``stated`` has for each output a ValueInfoProto of its type, and the shape, None where it is not known.
    """
    learnt = False
    for name, (like, shape) in zip(node.output, stated, strict=False):
        if name and shape is not None and name not in shapes:
            shapes[name], learnt = shape, True
            info = next((info for info in (*scratch.value_info, *scratch.output) if info.name == name), None)
            if info is None:
                info = scratch.value_info.add(name=name, type=like.type)
            del info.type.tensor_type.shape.dim[:]
            for size in shape:
                info.type.tensor_type.shape.dim.add(dim_value=size)
    return learnt


def _stays_small(node: NodeProto, given: list[Array | None]) -> bool:
    """Return True if a node makes a small tensor of small inputs; some operators can make a large one."""
    import numpy as np

    first = given[0]
    if first is None:
        return False
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(first.astype(np.float64)) <= MAX_KNOWN_ELEMENTS)
    if node.op_type == "Range":
        start, limit, delta = (float(v) if v is not None else 0.0 for v in given)
        return bool(delta) and (limit - start) / delta <= MAX_KNOWN_ELEMENTS
    if node.op_type in ("Expand", "Tile") and given[1] is not None:
        return bool(first.size * np.prod(np.maximum(given[1].astype(np.float64), 1)) <= MAX_KNOWN_ELEMENTS)
    arrays = [array for array in given if array is not None]
    if node.op_type in _LINEAR or prod(array.size for array in arrays) <= _LARGEST:
        return True
    if node.op_type == "Gather":
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        picked = first.size // max(first.shape[axis] if -first.ndim <= axis < first.ndim else 1, 1)
        return picked * arrays[-1].size <= _LARGEST
    with suppress(ValueError):  # the shapes do not broadcast
        return prod(np.broadcast_shapes(*(array.shape for array in arrays))) <= _LARGEST
    return False


def _constant_value(node: NodeProto) -> Array | None:
    import numpy as np
    from onnx import helper

    attribute = node.attribute[0] if node.attribute else None
    if attribute is None:
        return None
    if attribute.name == "value":
        return _array(attribute.t)
    dtype = {"value_int": np.int64, "value_float": np.float32}.get(attribute.name.removesuffix("s"))
    return np.array(helper.get_attribute_value(attribute), dtype) if dtype else None


def _make_constant(node: NodeProto, array: Array) -> None:
    from onnx import helper, numpy_helper

    node.CopyFrom(helper.make_node("Constant", [], node.output, node.name, value=numpy_helper.from_array(array)))


def _array(tensor: TensorProto) -> Array | None:
    """Return the elements of a small tensor; None where they cannot be read here, or are many."""
    from onnx import numpy_helper

    with suppress(Exception):  # beside the model, or of a type that numpy lacks
        return numpy_helper.to_array(tensor) if prod(tensor.dims) <= MAX_KNOWN_ELEMENTS else None
    return None


def _collect(inferred: dict[Scope, GraphProto], known: dict[Scope, dict[str, Array]], shared: _Shared) -> KnownShapes:
    """Return what was learnt, by the Values of the linked graph."""
    sizes = KnownShapes(shared=shared)
    for scope, message in inferred.items():
        for name, shape in _shapes(message).items():
            if name in scope.values:
                sizes.shapes[scope.values[name]] = shape
        for name, array in known.get(scope, {}).items():
            if name in scope.values:
                sizes.arrays[scope.values[name]] = array
                sizes.shapes.setdefault(scope.values[name], tuple(array.shape))
    return sizes
