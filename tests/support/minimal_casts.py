"""Find the smallest number of Casts that a plan needs, by trying every set of Casts. No code of the rewriter is used.

The input is the original model and a rewritten one. Of the rewritten model only the types count: of every output
and input slot of a node, and of the inputs and outputs of bodies. A *candidate* is a Cast of one tensor to one type
in one scope. All sets of candidates are tried, the smallest first. A set is written as a model, and ONNX's checker
with type inference judges the model. In it each slot reads a copy of its value in the type that the slot needs, if
there is such a copy. Constants are converted without a Cast. A slot may also read a user's Cast of the same tensor to
the type that it needs, and the source of a user's Cast from a low type to float32, because that Cast is exact,
also through user's Casts from float32 to float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.contract_constants import NUMPY, float_constants
from tests.support.pairing import Pairing, ScopePair, is_constant
from tests.support.scopes import Scope, View, cast_target, elem_type, reads

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Candidate:
    """A Cast of ``tensor`` to ``target`` in the scope with the path ``scope_path``."""

    tensor: str
    target: int
    scope_path: str


class CastProblem:
    """The types that a set of Casts must give, read from the original and the rewritten model."""

    def __init__(self, before: onnx.ModelProto, after: onnx.ModelProto, *, low: int = TensorProto.FLOAT16) -> None:
        assert not before.functions, "inline functions first"
        self.model, self.low = before, low
        self.pairing = Pairing(View(before), View(after))
        self.pairs = {pair.before.path: pair for pair in self.pairing.pairs}
        self.types = {path: _float_types(pair) for path, pair in self.pairs.items()}
        self.constants = {
            path: {name: array for name, array, elem in float_constants(pair.before) if name not in pair.before.inputs}
            for path, pair in self.pairs.items()
        }

    def candidates(self) -> list[Candidate]:
        """Every possible Cast of every float tensor, in every scope that sees the tensor."""
        candidates = []
        for path, pair in self.pairs.items():
            scope: Scope | None = pair.before
            while scope is not None:
                for name, elem in self.types[scope.path].items():
                    if name not in self.constants[scope.path]:
                        candidates += [Candidate(name, t, path) for t in (TensorProto.FLOAT, self.low) if t != elem]
                scope = scope.outer
        return candidates

    def minimum_size(self, limit: int) -> int:
        """The size of the smallest set that is valid; ``limit`` is known to be enough."""
        candidates = self.candidates()
        for size in range(limit):
            if any(self.is_valid(casts) for casts in combinations(candidates, size)):
                return size
        return limit

    def is_valid(self, casts: tuple[Candidate, ...]) -> bool:
        """Return whether ONNX accepts the model with these Casts, and every node makes the decided types."""
        if len({(c.tensor, c.target, c.scope_path) for c in casts}) < len(casts):
            return False
        written = _Writer(self, casts).model()
        if written is None:
            return False
        try:
            onnx.checker.check_model(written, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            return False
        return True


def _float_types(pair: ScopePair) -> dict[str, int]:
    """The float tensors that a scope of the original defines, with their types in the rewritten model."""
    types: dict[str, int] = {}
    for old, new in zip(pair.before.body.input, pair.after.body.input, strict=True):
        new_elem = elem_type(pair.after.types.get(new.name))
        if new_elem in FLOATS and old.type.HasField("tensor_type"):
            types[old.name] = new_elem
    for name, _, new_elem in float_constants(pair.before):
        types.setdefault(name, new_elem)
    for node, rewritten in pair.nodes:
        for i, name in enumerate(node.output):
            new_elem = pair.after.elem_type(rewritten.output[i]) if rewritten is not None and name else None
            if rewritten is None and node.op_type == "Cast":  # nothing reads it any more (Rule S7.7)
                new_elem = cast_target(node)
            type_proto = pair.before.types.get(name)
            if new_elem in FLOATS and type_proto is not None and type_proto.HasField("tensor_type"):
                types[name] = new_elem
    return types


class _Writer:
    """Write the original with a set of Casts, or None if a slot has no copy of its value in the type it needs."""

    def __init__(self, problem: CastProblem, casts: tuple[Candidate, ...]) -> None:
        self.problem, self.casts = problem, casts
        self.complete = True
        self.converted: dict[tuple[str, str, int], str] = {}
        self.used: set[Candidate] = set()

    def model(self) -> onnx.ModelProto | None:
        graph = self._graph("")
        if not self.complete or self.used != set(self.casts):
            return None
        original = self.problem.model
        return onnx.ModelProto(ir_version=original.ir_version, opset_import=original.opset_import, graph=graph)

    def _graph(self, path: str) -> onnx.GraphProto:
        pair = self.problem.pairs[path]
        graph = onnx.GraphProto()
        graph.CopyFrom(pair.before.body)
        del graph.node[:], graph.value_info[:]
        for value in graph.input:
            _set_elem(value.type, self.problem.types[path].get(value.name))
        inner = iter(pair.before.subscopes)
        nodes = [self._node(pair, node, rewritten, inner) for node, rewritten in pair.nodes]
        self._set_outputs(pair, graph)
        nodes += [self._cast(c) for c in self.casts if c.scope_path == path]
        graph.node.extend(_in_order(nodes))
        for (definer_path, name, elem), new in self.converted.items():
            if definer_path == path:
                array = self.problem.constants[path][name]
                graph.initializer.append(numpy_helper.from_array(array.astype(NUMPY[elem]), new))
        return graph

    def _node(
        self, pair: ScopePair, node: onnx.NodeProto, rewritten: onnx.NodeProto | None, inner: Iterator[Scope]
    ) -> onnx.NodeProto:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        if rewritten is not None and node.op_type in ("Cast", "ConstantOfShape"):  # Rules S4.44, S4.45
            del new.attribute[:]
            new.attribute.extend(rewritten.attribute)
        if rewritten is None or is_constant(node):
            return new
        for i, name in enumerate(node.input):
            new.input[i] = self._source(pair.before, name, pair.after.elem_type(rewritten.input[i]) if name else None)
        for attr in new.attribute:
            if attr.type == attr.GRAPH:
                attr.g.CopyFrom(self._graph(next(inner).path))
        self._rename(pair, new)
        return new

    def _rename(self, pair: ScopePair, node: onnx.NodeProto) -> None:
        for i, name in enumerate(node.output):
            if self._is_raw(pair.before, name):
                node.output[i] = f"{name}.raw"

    def _is_raw(self, scope: Scope, name: str) -> bool:
        """Return whether the Cast of a tensor takes over its name, because the tensor is an output of the model."""
        if scope.path or name not in scope.outputs or name in scope.inputs:
            return False
        elem = self.problem.types[""].get(name)
        return elem is not None and elem != elem_type(scope.types.get(name))

    def _set_outputs(self, pair: ScopePair, graph: onnx.GraphProto) -> None:
        for i, name in enumerate(pair.before.outputs):
            declared = pair.before.body.output[i].type
            if elem_type(declared) not in FLOATS or not declared.HasField("tensor_type"):
                continue
            target = elem_type(pair.after.body.output[i].type)
            if pair.before.path:
                graph.output[i].name = self._source(pair.before, name, target)
                _set_elem(graph.output[i].type, target)
            elif self._is_raw(pair.before, name):
                output_cast = Candidate(name, target or 0, "")  # the only Cast that can give the output its name
                self.used.add(output_cast)
                self.complete &= output_cast in self.casts

    def _source(self, scope: Scope, name: str, target: int | None) -> str:
        """The name of a copy of the value that has the type ``target``; of the value itself if there is none."""
        definer = scope.resolve(name)
        elem = self.problem.types[definer.path].get(name) if definer else None
        if definer is None or elem is None or target is None:
            return name
        if name in self.problem.constants[definer.path] and target != elem:
            return self.converted.setdefault((definer.path, name, target), f"{name}.{target}")
        value_name = f"{name}.raw" if self._is_raw(definer, name) else name
        if elem == target:
            return value_name
        for source in self._copies(scope, definer, name, target):
            return source
        self.complete = False
        return name

    def _copies(self, scope: Scope, definer: Scope, name: str, target: int) -> Iterator[str]:
        producer = definer.producers.get(name)
        if producer is not None and _is_cast(producer) and cast_target(producer) == TensorProto.FLOAT:
            origin = definer.resolve(producer.input[0])
            origin_elem = self.problem.types[origin.path].get(producer.input[0]) if origin else None
            if origin_elem == target != TensorProto.FLOAT:
                yield producer.input[0]
            elif origin is not None and elem_type(origin.types.get(producer.input[0])) == TensorProto.FLOAT:
                yield from self._copies(scope, origin, producer.input[0], target)  # an idle Cast (Rule S4.48)
        visible: Scope | None = scope
        while visible is not None:
            for node in visible.nodes:
                if _is_cast(node) and node.input[0] == name and cast_target(node) == target:
                    yield node.output[0]
            for c in self.casts:
                if (c.tensor, c.target, c.scope_path) == (name, target, visible.path):
                    self.used.add(c)
                    yield _cast_name(c, self._is_raw(definer, name))
            visible = visible.outer

    def _cast(self, c: Candidate) -> onnx.NodeProto:
        scope = self.problem.pairs[c.scope_path].before
        definer = scope.resolve(c.tensor)
        assert definer is not None
        raw = self._is_raw(definer, c.tensor)
        return helper.make_node("Cast", [f"{c.tensor}.raw" if raw else c.tensor], [_cast_name(c, raw)], to=c.target)


def _cast_name(c: Candidate, raw: bool) -> str:
    return c.tensor if raw and c.scope_path == "" else f"{c.tensor}.{c.target}.{c.scope_path}"


def _is_cast(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and node.domain == ""


def _set_elem(type_proto: onnx.TypeProto, elem: int | None) -> None:
    if elem is not None and type_proto.HasField("tensor_type"):
        type_proto.tensor_type.elem_type = elem


def _in_order(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    produced = {name for node in nodes for name in node.output}
    available: set[str] = set()
    result: list[onnx.NodeProto] = []
    while nodes:
        ready = next((n for n in nodes if not (reads(n) & produced) - available), nodes[0])
        nodes = [n for n in nodes if n is not ready]
        result.append(ready)
        available |= set(ready.output)
    return result
