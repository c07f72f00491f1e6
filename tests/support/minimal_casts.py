"""The fewest Casts that a plan needs, found by trying every set of them; shares nothing with the rewriter.

Given are the original model and a rewritten one, of which only the types are taken: what every node
makes and what it reads in each slot, what bodies take and give. A *candidate* is a Cast of one tensor to
one type in one scope. All sets of candidates are tried, smallest first. A set is written out as a model
(each use takes a copy of its value that has the type it needs, if there is one; constants are converted
freely, as that costs no Cast) and ONNX's checker with type inference judges it. Uses may read a user's
Cast of the same tensor to the type they need, and behind a user's Cast from a low type to float32, which
is exact, that Cast's source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.contract_constants import NUMPY, held
from tests.support.pairing import Pairing, ScopePair, is_constant
from tests.support.scopes import Scope, View, cast_target, elem_type, reads

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Candidate:
    """A Cast of ``tensor`` (of the scope with that path) to ``target``, standing in scope ``place``."""

    tensor: str
    target: int
    place: str


class Problem:
    """What has to hold, read from the original and the types of the rewritten model."""

    def __init__(self, before: onnx.ModelProto, after: onnx.ModelProto, *, low: int = TensorProto.FLOAT16) -> None:
        assert not before.functions, "write functions out before asking"
        self.model, self.low = before, low
        self.pairing = Pairing(View(before), View(after))
        self.pairs = {pair.before.path: pair for pair in self.pairing.pairs}
        self.made = {path: _made(pair) for path, pair in self.pairs.items()}
        self.constants = {
            path: {name: array for name, array, elem in held(pair.before) if name not in pair.before.inputs}
            for path, pair in self.pairs.items()
        }

    def candidates(self) -> list[Candidate]:
        """Every Cast that could stand anywhere."""
        found = []
        for path, pair in self.pairs.items():
            scope: Scope | None = pair.before
            while scope is not None:
                for name, elem in self.made[scope.path].items():
                    if name not in self.constants[scope.path]:
                        found += [Candidate(name, t, path) for t in (TensorProto.FLOAT, self.low) if t != elem]
                scope = scope.outer
        return found

    def fewest(self, limit: int) -> int:
        """The size of the smallest set that is valid; ``limit`` is known to be enough."""
        candidates = self.candidates()
        for size in range(limit):
            if any(self.is_valid(chosen) for chosen in combinations(candidates, size)):
                return size
        return limit

    def is_valid(self, chosen: tuple[Candidate, ...]) -> bool:
        """Return whether ONNX accepts the model with these Casts and every node makes what was decided."""
        if len({(c.tensor, c.target, c.place) for c in chosen}) < len(chosen):
            return False
        written = _Writer(self, chosen).model()
        if written is None:
            return False
        try:
            onnx.checker.check_model(written, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            return False
        return True


def _made(pair: ScopePair) -> dict[str, int]:
    """The float tensors that a scope defines, with the types they have afterwards."""
    made: dict[str, int] = {}
    for old, new in zip(pair.before.body.input, pair.after.body.input, strict=True):
        elem = elem_type(pair.after.types.get(new.name))
        if elem in FLOATS and old.type.HasField("tensor_type"):
            made[old.name] = elem
    for name, _, elem in held(pair.before):
        made.setdefault(name, elem)
    for node, twin in pair.nodes:
        for i, name in enumerate(node.output):
            elem = pair.after.elem_type(twin.output[i]) if twin is not None and name else None
            type_proto = pair.before.types.get(name)
            if elem in FLOATS and type_proto is not None and type_proto.HasField("tensor_type"):
                made[name] = elem
    return made


class _Writer:
    """The original with the chosen Casts in it, or None where a use finds no copy of the type it needs."""

    def __init__(self, problem: Problem, chosen: tuple[Candidate, ...]) -> None:
        self.problem, self.chosen = problem, chosen
        self.complete = True
        self.converted: dict[tuple[str, str, int], str] = {}
        self.used: set[Candidate] = set()

    def model(self) -> onnx.ModelProto | None:
        graph = self._graph("")
        if not self.complete or self.used != set(self.chosen):
            return None
        original = self.problem.model
        return onnx.ModelProto(ir_version=original.ir_version, opset_import=original.opset_import, graph=graph)

    def _graph(self, path: str) -> onnx.GraphProto:
        pair = self.problem.pairs[path]
        graph = onnx.GraphProto()
        graph.CopyFrom(pair.before.body)
        del graph.node[:], graph.value_info[:]
        for value in graph.input:
            _set_elem(value.type, self.problem.made[path].get(value.name))
        inner = iter(pair.before.subscopes)
        nodes = [self._node(pair, node, twin, inner) for node, twin in pair.nodes]
        self._set_outputs(pair, graph)
        nodes += [self._cast(c) for c in self.chosen if c.place == path]
        graph.node.extend(_in_order(nodes))
        for (home, name, elem), new in self.converted.items():
            if home == path:
                array = self.problem.constants[path][name]
                graph.initializer.append(numpy_helper.from_array(array.astype(NUMPY[elem]), new))
        return graph

    def _node(
        self, pair: ScopePair, node: onnx.NodeProto, twin: onnx.NodeProto | None, inner: Iterator[Scope]
    ) -> onnx.NodeProto:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        if twin is None or is_constant(node):
            return new
        for i, name in enumerate(node.input):
            new.input[i] = self._source(pair.before, name, pair.after.elem_type(twin.input[i]) if name else None)
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
        """Return whether a tensor gives its name to the Cast behind it, as it is an output of the main graph."""
        if scope.path or name not in scope.outputs or name in scope.inputs:
            return False
        made = self.problem.made[""].get(name)
        return made is not None and made != elem_type(scope.types.get(name))

    def _set_outputs(self, pair: ScopePair, graph: onnx.GraphProto) -> None:
        for i, name in enumerate(pair.before.outputs):
            declared = pair.before.body.output[i].type
            if elem_type(declared) not in FLOATS or not declared.HasField("tensor_type"):
                continue
            wanted = elem_type(pair.after.body.output[i].type)
            if pair.before.path:
                graph.output[i].name = self._source(pair.before, name, wanted)
                _set_elem(graph.output[i].type, wanted)
            elif self._is_raw(pair.before, name):
                needed = Candidate(name, wanted or 0, "")  # the only Cast that can give the output its name
                self.used.add(needed)
                self.complete &= needed in self.chosen

    def _source(self, scope: Scope, name: str, wanted: int | None) -> str:
        """A copy of the value that has the wanted type; the value itself where there is none."""
        home = scope.resolve(name)
        made = self.problem.made[home.path].get(name) if home else None
        if home is None or made is None or wanted is None:
            return name
        if name in self.problem.constants[home.path] and wanted != made:
            return self.converted.setdefault((home.path, name, wanted), f"{name}.{wanted}")
        own = f"{name}.raw" if self._is_raw(home, name) else name
        if made == wanted:
            return own
        for source in self._copies(scope, home, name, wanted):
            return source
        self.complete = False
        return name

    def _copies(self, scope: Scope, home: Scope, name: str, wanted: int) -> Iterator[str]:
        producer = home.producers.get(name)
        if producer is not None and _is_cast(producer) and cast_target(producer) == TensorProto.FLOAT:
            origin = home.resolve(producer.input[0])
            made = self.problem.made[origin.path].get(producer.input[0]) if origin else None
            if made == wanted != TensorProto.FLOAT:
                yield producer.input[0]
        visible: Scope | None = scope
        while visible is not None:
            for node in visible.nodes:
                if _is_cast(node) and node.input[0] == name and cast_target(node) == wanted:
                    yield node.output[0]
            for c in self.chosen:
                if (c.tensor, c.target, c.place) == (name, wanted, visible.path):
                    self.used.add(c)
                    yield _cast_name(c, self._is_raw(home, name))
            visible = visible.outer

    def _cast(self, c: Candidate) -> onnx.NodeProto:
        scope = self.problem.pairs[c.place].before
        home = scope.resolve(c.tensor)
        assert home is not None
        raw = self._is_raw(home, c.tensor)
        return helper.make_node("Cast", [f"{c.tensor}.raw" if raw else c.tensor], [_cast_name(c, raw)], to=c.target)


def _cast_name(c: Candidate, raw: bool) -> str:
    return c.tensor if raw and c.place == "" else f"{c.tensor}.{c.target}.{c.place}"


def _is_cast(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and node.domain == ""


def _set_elem(type_proto: onnx.TypeProto, elem: int | None) -> None:
    if elem is not None and type_proto.HasField("tensor_type"):
        type_proto.tensor_type.elem_type = elem


def _in_order(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    made = {name for node in nodes for name in node.output}
    done: set[str] = set()
    result: list[onnx.NodeProto] = []
    while nodes:
        ready = next((n for n in nodes if not (reads(n) & made) - done), nodes[0])
        nodes = [n for n in nodes if n is not ready]
        result.append(ready)
        done |= set(ready.output)
    return result
