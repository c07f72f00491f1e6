"""Find the types of the nodes that only move or fill in constants.

Rule S4.44: a node that only moves constants takes the type of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import onnx

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import NUMPY, Constants
from tests.support.reference_model import FLOAT, LISTED, Node, Value
from tests.support.reference_signature import ELEM_NAMES, has_container, has_fixed_output

READS_SHAPES = {"Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike"}
LARGE = 128  # elements: a second copy in float16 has more than 256 bytes


class Moved:
    """The nodes of one model that only move or fill in constants, and what their readers want."""

    def __init__(
        self, nodes: list[Node], results: Container[Value], outputs: list[Value], constants: Constants
    ) -> None:
        self.outputs, self.results, self.constants = outputs, results, constants
        self.idle_casts: set[Node] = set()  # Rule S4.48
        self.unbound_nodes: set[Node] = set()  # Rule S4.46
        self.nodes: set[Node] = set()
        for node in nodes:
            if self._moves(node):
                self.nodes.add(node)

    def _moves(self, node: Node) -> bool:
        if not node.is_standard or node.bodies or node.schema() is None:
            return False
        if node.op == "ConstantOfShape":
            return node.outputs[0] is not None and node.outputs[0].elem == FLOAT
        floats = [v for v in node.inputs if v is not None and v.elem in (*LISTED, onnx.TensorProto.DOUBLE)]
        if node.op not in operators(Trait.MOVES_VALUES) or has_container(node) or not floats:
            return False
        return all(self.constants.is_constant(v) or v.producer in self.nodes for v in floats)

    def wanted(self, node: Node, chosen: Callable[[Node, int], int | None], *, through: bool = False) -> set[int]:
        """Return the types that the readers of a node want; 0 for one that lets it stay.

        ``chosen`` returns the type that a node reads at a slot. ``through``: what do the readers behind other moving
        nodes want?
        """
        values = [v for v in node.outputs if v is not None and v.elem in (*LISTED, onnx.TensorProto.DOUBLE)]
        return set().union(*(self.wanted_of(v, chosen, through=through) for v in values))

    def wanted_of(
        self,
        value: Value,
        chosen: Callable[[Node, int], int | None],
        *,
        through: bool = False,
        without: Container[Node] = (),
    ) -> set[int]:
        """Return the types that the readers of a value want, except for some readers."""
        types = {0} if value in self.results and value not in self.outputs else set()
        types |= {value.elem or 0} if value in self.outputs else set()
        for reader, slot in value.readers:
            if reader in without:
                continue
            if reader.bodies:
                types.add(0)
            elif reader.is_standard and reader.op in READS_SHAPES and reads_only_shape(reader):
                continue
            elif reader in self.idle_casts or (through and reader in self.nodes | self.unbound_nodes):
                types |= self.wanted(reader, chosen, through=through)
            else:
                types.add(chosen(reader, slot) or 0)
        return types

    def stores_twice(self, node: Node, chosen: Callable[[Node, int], int | None]) -> bool:
        """Return whether a large constant that the node reads is wanted in float32, too."""
        stored = [v for v in node.inputs if v is not None and v.elem in LISTED and self._is_stored(v)]
        return any(FLOAT in self.wanted_of(v, chosen, through=True) for v in stored)

    def _is_stored(self, value: Value) -> bool:
        array = value.array
        if array is None and value.producer is not None and value.producer.op == "Constant":
            array = self.constants.array(value)
        return array is not None and array.size > LARGE and not value.is_input

    def can_fill(self, node: Node, low: int, limit: float) -> bool:
        """Return whether a ConstantOfShape can make its number, reduced to ``limit``, in the low type."""
        fill, schema = node.attribute("value"), node.schema()
        number = onnx.numpy_helper.to_array(fill.t).reshape(-1)[0] if fill is not None else np.float32(0)
        if abs(number) > limit and np.isfinite(number):
            number = np.float32(np.copysign(limit, number))
        with np.errstate(all="ignore"):
            rounded = np.float32(number).astype(NUMPY[low]).astype(np.float32)
        assert schema is not None
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        admitted = f"tensor({ELEM_NAMES[low]})" in allowed[schema.outputs[0].type_str]
        return admitted and bool(np.isfinite(rounded) == np.isfinite(number)) and bool(rounded) == bool(number)


def reads_only_shape(node: Node) -> bool:
    """Return whether the node takes an input of every type."""
    return node.op in ("Shape", "Size") or has_fixed_output(node)


def converts_integers(node: Node) -> bool:
    """Return whether the node is a Cast of integers or booleans to float32 (Rule S4.45)."""
    if node.op != "Cast" or not node.is_standard or node.inputs[0] is None or node.outputs[0] is None:
        return False
    name = onnx.TensorProto.DataType.Name(node.inputs[0].elem or 0)
    return name.startswith(("INT", "UINT", "BOOL")) and node.outputs[0].elem == FLOAT


def is_accumulator(value: Value | None) -> bool:
    """Return whether an integer product makes the value, followed by Adds of a bias and by value movers alone."""
    while value is not None and value.producer is not None:
        if value.producer.op in ("ConvInteger", "MatMulInteger"):
            return True
        if value.producer.op not in operators(Trait.MOVES_VALUES) | {"Add"}:
            return False
        value = value.producer.inputs[0]
    return False
