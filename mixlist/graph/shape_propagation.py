"""The shape of every tensor of a model for given sizes of its inputs, as far as it follows from the model.

ONNX's shape inference stops where a shape is computed (Shape, Gather, Concat, Reshape ...) beyond what it
propagates itself. Such arithmetic is exact once its inputs are known, so it is done here, in a scratch copy: a node
whose small inputs are all known becomes a Constant, and inference runs again, until nothing new is learnt.
What depends on data stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from mixlist.graph.build import bind
from mixlist.graph.contrib_shapes import DOMAIN, output_shapes, stand_in
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.shapes import without_weights
from mixlist.graph.traversal import scopes_in
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

Shape = tuple[int, ...]
SMALL = 4096  # elements: what shapes, axes and index tables hold
_PASSES = 200  # each learns what the next needs; real models need four, and one more a layer of a fused operator
_FOLDED = operators(Trait.COMPUTES_SHAPES)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


class Sizes:
    """Shapes by Value, and the elements of small tensors that are known, for one graph and the scopes in it."""

    def __init__(self) -> None:
        self.shapes: dict[Value, Shape] = {}
        self.known: dict[Value, Array] = {}

    def of(self, value: Value | None) -> Shape | None:
        """The shape; None where it is not known. A slot that is left out has none either."""
        return self.shapes.get(value) if value is not None else None


def sizes_of(graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> Sizes:
    """The shapes in a main graph.

    ``dims`` gives symbolic dimensions their size, by name or as ``input.axis``; ``inputs`` has whole input shapes.
    """
    scratch = without_weights(graph.model)
    _bind(scratch.graph, dims, inputs)
    return _settle(graph, scratch)


def sizes_in_function(body: Graph, call: Node, outer: Sizes) -> Sizes:
    """The shapes in a function's body for the arguments of one call."""
    from onnx import helper

    function = body.root.proto
    nodes = [bind(node, body.attributes) for node in function.node]
    given = {
        name: call.inputs[at] if at < len(call.inputs) else None  # a hole, or left out
        for at, name in enumerate(function.input)
    }
    values = [_argument(name, body.root.values[name], given[name], outer) for name in function.input]
    constants = [_constant(name, outer.known[v]) for name, v in given.items() if v is not None and v in outer.known]
    known = {tensor.name for tensor in constants}
    made = helper.make_graph(nodes, function.name, [v for v in values if v.name not in known], [], constants)
    made.value_info.extend(function.value_info)
    scratch = helper.make_model(made, opset_imports=function.opset_import, functions=body.model.functions)
    return _settle(body, scratch)


def _argument(name: str, value: Value, given: Value | None, outer: Sizes) -> Any:
    from onnx import ValueInfoProto, helper

    if isinstance(value.type, tuple) or value.type == types.UNKNOWN:
        return ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, value.type, outer.of(given))


def _constant(name: str, array: Array) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(array, name)


def _bind(graph: Any, dims: Mapping[str, int], inputs: Mapping[str, Shape]) -> None:
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
    for each in scopes_in(graph):
        for info in (*each.input, *each.output, *each.value_info):
            for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]


# --- inferring and folding, in turn ---


def _settle(graph: Graph, scratch: Any) -> Sizes:
    folding = _Folding(scratch)
    for _ in range(_PASSES):
        inferred = _infer(scratch)
        if not folding.run(scratch.graph, inferred.graph):
            break
    sizes = Sizes()
    _collect(graph.root, inferred.graph, folding, sizes)
    return sizes


def _infer(scratch: Any) -> Any:
    from onnx import shape_inference

    with suppress(Exception):  # of the declared shapes one may be wrong: then without them
        return shape_inference.infer_shapes(scratch, data_prop=True)
    bare = type(scratch)()
    bare.CopyFrom(scratch)
    for each in scopes_in(bare.graph):
        del each.value_info[:]
    with suppress(Exception):  # what inference cannot tell is reported as unknown
        return shape_inference.infer_shapes(bare, data_prop=True)
    return scratch


def _shapes(graph: Any) -> dict[str, Shape]:
    """The shapes that a GraphProto states in full."""
    found: dict[str, Shape] = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        if info.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = tensor.shape.dim
            if all(d.HasField("dim_value") for d in dims):
                found[info.name] = tuple(d.dim_value for d in dims)
    for tensor in graph.initializer:
        found[tensor.name] = tuple(tensor.dims)
    return found


class _Folding:
    """Known small tensors of a scratch model, by scope; nodes that make one become Constants in it."""

    def __init__(self, scratch: Any) -> None:
        self.opsets: dict[str, int] = {o.domain: o.version for o in scratch.opset_import}
        self.known: dict[int, dict[str, Array]] = {}  # by the number of the graph, depth first
        self.functions = {(f.domain, f.name) for f in scratch.functions}
        self.posing: set[str] = set()  # outputs of stand-ins: of the right shape, not of the right value
        for graph in scopes_in(scratch.graph):
            for node in graph.node:
                if (node.domain, node.op_type) not in self.functions and stand_in(node):
                    self.posing.add(node.output[0])

    def run(self, scratch: Any, inferred: Any) -> bool:
        """One pass over all scopes; whether something new was learnt."""
        self.count = -1
        return self._scope(scratch, inferred, {}, {})

    def _scope(self, scratch: Any, inferred: Any, outer: dict[str, Array], outside: dict[str, Shape]) -> bool:
        self.count += 1
        own = self.known.setdefault(self.count, {})
        shapes = {**outside, **_shapes(inferred)}
        values = {**outer, **own}
        learnt = False
        for tensor in scratch.initializer:
            if tensor.name not in own and _is_small(tensor.dims):
                self._learn(own, values, tensor.name, _array(tensor))
        for node, told in zip(scratch.node, inferred.node, strict=True):
            for attribute, twin in zip(node.attribute, told.attribute, strict=True):
                if attribute.type == attribute.GRAPH:
                    learnt |= self._scope(attribute.g, twin.g, values, shapes)
            if node.domain == DOMAIN and (node.domain, node.op_type) not in self.functions:
                learnt |= _declare_outputs(scratch, node, shapes)
            if node.op_type == "If":
                learnt |= _declare_taken_branch(scratch, node, told, values.get(node.input[0]), shapes)
            if len(node.output) == 1 and node.output[0] not in own:
                result = self._value(node, values, shapes)
                if result is not None:
                    self._learn(own, values, node.output[0], result)
                    if node.op_type != "Constant":
                        _make_constant(node, result)
                        learnt = True
        return learnt

    def _learn(self, own: dict[str, Array], values: dict[str, Array], name: str, array: Array | None) -> None:
        if array is not None and array.size <= SMALL:
            own[name] = values[name] = array

    def _value(self, node: Any, values: dict[str, Array], shapes: dict[str, Shape]) -> Array | None:
        """What the node yields, where that is known, small and cheap to tell."""
        import numpy as np

        if node.domain not in ("", "ai.onnx") or (node.domain, node.op_type) in self.functions:
            return None
        if node.output[0] in self.posing:
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

    def _evaluate(self, node: Any, given: dict[str, Array]) -> Array | None:
        import numpy as np
        from onnx.reference import ReferenceEvaluator

        with suppress(Exception), np.errstate(all="ignore"):  # a node that cannot be computed stays unknown
            (result, *_) = cast("Any", ReferenceEvaluator(_alone(node, self.opsets)).run(None, given))
            return np.asarray(result) if np.size(result) <= SMALL else None
        return None


def _declare_outputs(scratch: Any, node: Any, shapes: dict[str, Shape]) -> bool:
    """Of an operator that ONNX does not know, the outputs have the shapes of its rule; whether that is news."""
    from onnx import helper

    told = output_shapes(node, [shapes.get(name) for name in node.input])
    news = [(name, s) for name, s in zip(node.output, told, strict=False) if name and s and name not in shapes]
    for name, shape in news:
        shapes[name] = shape
        _declare(scratch, name, helper.make_tensor_value_info(name, types.FLOAT, None), shape)
    return bool(news)


def _declare_taken_branch(
    scratch: Any, node: Any, told: Any, condition: Array | None, shapes: dict[str, Shape]
) -> bool:
    """Of an If whose condition is known, the outputs have the shapes of one branch; whether that is news."""
    if condition is None or condition.size != 1:
        return False
    taken = "then_branch" if condition.reshape(()) else "else_branch"
    (branch,) = [a.g for a in told.attribute if a.name == taken]
    inner = {**shapes, **_shapes(branch)}
    learnt = False
    for name, output in zip(node.output, branch.output, strict=False):
        if name and name not in shapes and output.name in inner:
            shapes[name] = inner[output.name]
            _declare(scratch, name, output, inner[output.name])
            learnt = True
    return learnt


def _declare(scratch: Any, name: str, like: Any, shape: Shape) -> None:
    """State the shape of a tensor in a scratch graph, in place of what it declares."""
    for fields in (scratch.value_info, scratch.output):
        for info in fields:
            if info.name == name:
                del info.type.tensor_type.shape.dim[:]
                for size in shape:
                    info.type.tensor_type.shape.dim.add(dim_value=size)
                return
    info = scratch.value_info.add(name=name)
    info.type.CopyFrom(like.type)
    del info.type.tensor_type.shape.dim[:]
    for size in shape:
        info.type.tensor_type.shape.dim.add(dim_value=size)


def _alone(node: Any, opsets: dict[str, int]) -> Any:
    """A model of one node."""
    from onnx import ValueInfoProto, helper

    inputs = [ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    graph = helper.make_graph([node], "one", inputs, [ValueInfoProto(name=node.output[0])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])


def _stays_small(node: Any, given: list[Array | None]) -> bool:
    """Whether an operator that can blow up small inputs does not."""
    import numpy as np

    first = given[0]
    if first is None:
        return False
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(first.astype(np.float64)) <= SMALL)
    if node.op_type == "Range":
        start, limit, delta = (float(v) if v is not None else 0.0 for v in given)
        return bool(delta) and (limit - start) / delta <= SMALL
    if node.op_type in ("Expand", "Tile") and given[1] is not None:
        return bool(first.size * np.prod(np.maximum(given[1].astype(np.float64), 1)) <= SMALL)
    return True


def _constant_value(node: Any) -> Array | None:
    import numpy as np

    attribute = node.attribute[0] if node.attribute else None
    if attribute is None or attribute.name == "sparse_value":
        return None
    if attribute.name == "value":
        return _array(attribute.t) if _is_small(attribute.t.dims) else None
    if attribute.name in ("value_int", "value_ints"):
        return np.array(attribute.i if attribute.name == "value_int" else attribute.ints, np.int64)
    if attribute.name in ("value_float", "value_floats"):
        return np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float32)
    return None


def _make_constant(node: Any, array: Array) -> None:
    node.op_type, node.domain = "Constant", ""
    del node.input[:]
    del node.attribute[:]
    node.attribute.add(name="value", type=4).t.CopyFrom(_constant("", array))


def _is_small(dims: Iterable[int]) -> bool:
    count = 1
    for size in dims:
        count *= size
    return count <= SMALL


def _array(tensor: Any) -> Array | None:
    from onnx import numpy_helper

    with suppress(Exception):  # beside the model, or of a type that numpy lacks
        return numpy_helper.to_array(tensor)
    return None


def _collect(scope: Scope, inferred: Any, folding: _Folding, sizes: Sizes) -> None:
    """What was learnt, by the Values of the linked graph; scopes come in the order in which folding saw them."""
    waiting: list[tuple[Scope, Any]] = [(scope, inferred)]
    seen = 0
    while waiting:
        at, message = waiting.pop(0)
        for name, shape in _shapes(message).items():
            if name in at.values:
                sizes.shapes[at.values[name]] = shape
        for name, array in folding.known.get(seen, {}).items():
            if name in at.values:
                sizes.known[at.values[name]] = array
                sizes.shapes.setdefault(at.values[name], tuple(array.shape))
        seen += 1
        bodies = {(n.position, name): body for n in at.nodes for name, body in n.bodies.items()}
        waiting[:0] = [
            (bodies[position, attribute.name], attribute.g)
            for position, node in enumerate(message.node)
            for attribute in node.attribute
            if (position, attribute.name) in bodies
        ]
