"""Each mixed model of the corpus has exactly the Casts that its plan needs.

The crossings are counted from the two files alone. A slot of the mixed file that reads another type than the one in
which its tensor is produced is a crossing; so is a graph output whose declared type is not the one in which its tensor
is produced. Each tensor needs one Cast for each type in which it is read, unless the tensor is a constant (which can be
stored in that type), or the user's file already has the tensor in that type: it is the output of a Cast to float32
whose input has that type, or a Cast to that type is visible to the reader. The types are those of onnx's own inference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx
import pytest

import mixlist

from .conftest import MODELS

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download
LISTS = ["onnx", "ascend910b", "mindspore-o2", "nnabla-half"]
FLOATS = {1, 10, 16}
Tensor = tuple[int, str]  # scope and name in the original


@dataclass
class Scope:
    """One graph of both files: the names of its tensors in the original and in the mixed file, and their types."""

    number: int
    parent: Scope | None
    types: dict[str, int]
    names: dict[str, str] = field(default_factory=dict)  # original name -> mixed name
    constants: set[str] = field(default_factory=set)
    casts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)  # output of a user's Cast -> source, type

    def find(self, name: str) -> Scope | None:
        """Return the scope that defines a name of the original."""
        return self if name in self.names else self.parent.find(name) if self.parent else None

    def type_of(self, name: str) -> int:
        """Return the type of a name of the mixed file."""
        return self.types.get(name) or (self.parent.type_of(name) if self.parent else 0)


def is_inserted_cast(node: onnx.NodeProto) -> bool:
    return any(p.key == "pkg.mixlist.cast" for p in node.metadata_props)


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    waiting = [bare.graph]
    while waiting:
        graph = waiting.pop()
        del graph.value_info[:]
        waiting += [a.g for n in graph.node for a in n.attribute if a.type == a.GRAPH]
    for node in bare.graph.node:
        if node.op_type == "DynamicQuantizeLSTM":  # unknown to onnx; float32 by ONNX Runtime's schema
            bare.graph.value_info.extend(onnx.helper.make_tensor_value_info(o, 1, None) for o in node.output if o)
    return onnx.shape_inference.infer_shapes(bare)


class Count:
    """Traverse both files together: ``needed`` are the crossings, ``casts`` counts the Casts that mixlist inserted."""

    def __init__(self, original: onnx.ModelProto, mixed: onnx.ModelProto) -> None:
        self.needed: set[tuple[Tensor, int]] = set()
        self.casts = 0
        self.scopes: list[Scope] = []
        typed = infer(mixed)
        self.walk(original.graph, mixed.graph, typed.graph, None)

    def walk(self, old: Any, new: Any, typed: Any, parent: Scope | None) -> None:
        infos = (*typed.value_info, *typed.input, *typed.output)
        kinds = {i.name: i.type.tensor_type.elem_type for i in infos} | {t.name: t.data_type for t in new.initializer}
        scope = Scope(len(self.scopes), parent, kinds)
        self.scopes.append(scope)
        inputs = {i.name for i in old.input}
        scope.names.update((a.name, b.name) for a, b in zip(old.input, new.input, strict=True))
        scope.names.update((t.name, t.name) for t in old.initializer)
        scope.constants |= {t.name for t in old.initializer} - inputs
        retained = [(n, t) for n, t in zip(new.node, typed.node, strict=True) if not is_inserted_cast(n)]
        self.casts += len(new.node) - len(retained)
        common = [(n, t) for n, t in retained if not is_added_constant(n, old)]
        names = {name for node in new.node for name in node.output} | {output.name for output in old.output}
        removed = [node for node in old.node if node.op_type == "Cast" and node.output[0] not in names]
        kept = [node for node in old.node if node not in removed]
        pairs = [(a, b, t) for a, (b, t) in zip(kept, common, strict=True)]
        for before, after, _ in pairs:
            scope.names.update((a, b) for a, b in zip(before.output, after.output, strict=True) if a)
            if before.op_type == "Constant":
                scope.constants.update(before.output)
        for node in removed:
            self.note_removed_cast(scope, node)
        for before, after, inner in pairs:
            assert before.op_type == after.op_type
            self.node(scope, before, after)
            # A ConstantOfShape may have got an attribute (Rule S4.44).
            graphs = ([a.g for a in node.attribute if a.type == a.GRAPH] for node in (before, after, inner))
            for old_body, new_body, typed_body in zip(*graphs, strict=True):
                self.walk(old_body, new_body, typed_body, scope)
        for a, b in zip(old.output, new.output, strict=True):
            self.read(scope, a.name, b.name)

    def note_removed_cast(self, scope: Scope, node: onnx.NodeProto) -> None:
        """Note what a Cast of the user made that nothing reads any more (Rule S7.7)."""
        name, home = node.output[0], scope.find(node.input[0])
        assert home is not None, name
        to = next(x.i for x in node.attribute if x.name == "to")
        scope.names[name], scope.types[name] = name, to
        scope.casts[name] = ((home.number, node.input[0]), to)

    def node(self, scope: Scope, before: onnx.NodeProto, after: onnx.NodeProto) -> None:
        for a, b in zip(before.input, after.input, strict=True):
            if a:
                self.read(scope, a, b)
        home = scope.find(before.input[0]) if before.op_type == "Cast" else None
        if home is not None:
            to = next(x.i for x in before.attribute if x.name == "to")
            scope.casts[before.output[0]] = ((home.number, before.input[0]), to)

    def read(self, scope: Scope, name: str, mixed_name: str) -> None:
        """Count a reader in ``scope`` that reads ``name`` in the original and ``mixed_name`` in the mixed file."""
        home = scope.find(name)
        assert home is not None, name
        produced, read = home.type_of(home.names[name]), scope.type_of(mixed_name)
        crosses = produced in FLOATS and read in FLOATS and produced != read and name not in home.constants
        if crosses and not self.has_type_already(scope, home, name, read):
            self.needed.add(((home.number, name), read))

    def has_type_already(self, scope: Scope, home: Scope, name: str, kind: int) -> bool:
        """Return True if the user's file has the tensor in that type where the reader can read it."""
        cast = home.casts.get(name)
        if cast is not None and cast[1] == 1:
            source = self.scopes[cast[0][0]]
            if source.type_of(source.names[cast[0][1]]) == kind:
                return True
        visible: Scope | None = scope
        while visible is not None:
            if ((home.number, name), kind) in visible.casts.values():
                return True
            visible = visible.parent
        return False


def is_added_constant(node: onnx.NodeProto, old: Any) -> bool:
    """Return True for the second node of a constant that exists in both types: the original does not have it."""
    original_names = {name for n in old.node for name in n.output}
    return node.op_type == "Constant" and node.output[0] not in original_names


@pytest.mark.parametrize("library", LISTS)
@pytest.mark.parametrize("model_id", MODELS)
def test_the_inserted_casts_are_exactly_the_crossings(model_id: str, library: str, corpus: Any) -> None:
    path = corpus.path(model_id)
    policy = mixlist.load_policy(library)
    result = mixlist.rewrite(path, mixlist.resolve(path, policy))
    count = Count(onnx.load(path), result.model)
    assert count.casts == result.casts_inserted
    assert len(count.needed) == count.casts
