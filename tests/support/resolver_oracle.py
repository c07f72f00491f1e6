"""Section 4 of the semantics once more, for graphs without control flow, functions and sequences.

A second reading of the text, shorter and slower than the package's: the two are compared on random
graphs. ``decide`` gives the element type of every float output. Where the text leaves a choice, the
comparison leaves the case out (``test_oracle.py`` says which).
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from mixlist.lists.policy import Policy
from tests.support.contract_constants import convert, held
from tests.support.pairing import is_constant
from tests.support.scopes import Scope, View, cast_target, sorted_nodes

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
LISTED = (FLOAT, FLOAT16, BFLOAT16)
CUBE = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
SAYS_ITS_TYPE = {"Cast", "ConstantOfShape", "Constant"}
TYPE_NAMES = {FLOAT16: "tensor(float16)", BFLOAT16: "tensor(bfloat16)"}
FIXED = {("Resize", 2)}  # (op, input): a slot that only allows float32


class Oracle:
    """Decides one flat model."""

    def __init__(self, model: onnx.ModelProto, policy: Policy) -> None:
        self.scope: Scope = View(model).main
        self.policy = policy
        self.low = {"float16": FLOAT16, "bfloat16": BFLOAT16}[policy.mode.low]
        self.opset = next(o.version for o in model.opset_import if o.domain == "")
        self.order = sorted_nodes(self.scope)
        self.types = {name: self.scope.elem_type(name) for name in self.scope.defined}
        self.values = {name: array for name, array, elem in held(self.scope) if elem == FLOAT}
        self.fixed_values = set(self.scope.initializers) & self.scope.inputs
        self.constants, self.shapes = set(self.scope.initializers), set[str]()
        self.low_nodes: set[int] = set()
        for node in self.order:
            self._classify(node)

    def decide(self) -> dict[str, int]:
        """Element type by output, of the float ones."""
        between = self._between() if self.policy.gray_policy == "between" else {}
        by_black: set[str] = set()
        decided: dict[str, int] = {}
        for node in self.order:
            wish = between.get(id(node)) if id(node) in between else self._wish(node, decided, by_black)
            if wish is not None and not self._possible(node, wish):
                wish = None
            for name in node.output:
                authored = self.types.get(name)
                if name and authored in LISTED:
                    decided[name] = wish if wish is not None and authored in self._movable() else authored
        return decided

    def _movable(self) -> tuple[int, ...]:
        return (self.low,) if self.policy.mode.action == "raise" else (FLOAT,)

    # -- what a node is ---------------------------------------------------------------------------
    def _classify(self, node: onnx.NodeProto) -> None:
        inputs = {name for name in node.input if name}
        if is_constant(node) or (inputs and inputs <= self.constants):
            self.constants |= set(node.output)
        elif node.op_type in ("Shape", "Size") or (inputs and inputs <= self.shapes | self.constants):
            self.shapes |= set(node.output)

    def _float_inputs(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in node.input if name and self.types.get(name) in LISTED]

    def _is_shape_arithmetic(self, node: onnx.NodeProto) -> bool:
        floats = self._float_inputs(node)
        return bool(set(floats) & self.shapes) and set(floats) <= self.shapes | self.constants

    # -- what it should be ------------------------------------------------------------------------
    def _wish(self, node: onnx.NodeProto, decided: dict[str, int], by_black: set[str]) -> int | None:
        """The type that rules 1 to 6 ask for; None: as authored."""
        action = self.policy.mode.action
        if node.op_type in SAYS_ITS_TYPE or action == "origin" or self._is_shape_arithmetic(node):
            return None
        if action == "raise":
            return FLOAT
        if action in ("force", "cube"):
            return self.low if action == "force" or node.op_type in CUBE else None
        said = self.policy.lists.of(node.op_type)
        if said == "white":
            return self.low
        if said == "black":
            by_black |= set(node.output)
            return None
        return self._gray(node, decided, by_black)

    def _gray(self, node: onnx.NodeProto, decided: dict[str, int], by_black: set[str]) -> int | None:
        producers = [name for name in self._float_inputs(node) if name not in self.constants]
        types = [self._followed(name, decided) for name in producers]
        if not types:
            return None
        if self.policy.gray_policy == "promote":
            return types[0] if len(set(types)) == 1 else FLOAT
        if self.policy.gray_policy == "black-wins":
            if set(producers) & by_black:
                by_black |= set(node.output)
                return FLOAT
            return self.low if self.low in types else None
        return types[0]

    def _followed(self, name: str, decided: dict[str, int]) -> int:
        """The decided type of a producer, through one user Cast from the low type to float32."""
        node = self.scope.producers.get(name)
        if node is not None and node.op_type == "Cast" and cast_target(node) == FLOAT:
            source = decided.get(node.input[0], self.types.get(node.input[0]))
            if source == self.low and self.policy.lists.of("Cast") != "black":
                return self.low
        kept = decided.get(name, self.types.get(name))
        assert kept is not None
        return kept

    def _between(self) -> dict[int, int | None]:
        """Rule 8, between: reachability over the gray nodes, on float tensors."""
        said = {id(n): "cast" if n.op_type in SAYS_ITS_TYPE else self.policy.lists.of(n.op_type) for n in self.order}
        before = {id(n): [p for i in n.input if (p := self.scope.producers.get(i)) is not None] for n in self.order}
        after: dict[int, list[onnx.NodeProto]] = {id(n): [] for n in self.order}
        for node in self.order:
            for producer in before[id(node)]:
                after[id(producer)].append(node)
        black, white_back, white_ahead = set[int](), set[int](), set[int]()
        for found, color, edges, order in (
            (black, "black", before, self.order),
            (white_back, "white", before, self.order),
            (white_ahead, "white", after, self.order[::-1]),
        ):
            for node in order:
                near = edges[id(node)]
                if said[id(node)] == "gray" and any(said[id(n)] == color or id(n) in found for n in near):
                    found.add(id(node))
        gray = [id(n) for n in self.order if said[id(n)] == "gray"]
        return {n: self.low if n in white_back & white_ahead - black else None for n in gray}

    # -- what is possible -------------------------------------------------------------------------
    def _possible(self, node: onnx.NodeProto, wish: int) -> bool:
        if wish == FLOAT:
            return True
        schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        kind = schema.outputs[0].type_str
        if TYPE_NAMES[wish] not in allowed.get(kind, allowed.get(schema.inputs[0].type_str, set())):
            return False
        return self.policy.constants != "keep" or not any(
            self._is_out_of_range(name, wish)
            for i, name in enumerate(node.input)
            if name in self.values and name not in self.fixed_values and (node.op_type, i) not in FIXED
        )

    def _is_out_of_range(self, name: str, wish: int) -> bool:
        array = self.values[name]
        low = convert(array, wish, "ieee").astype(np.float32)
        overflows = np.isfinite(array) & ~np.isfinite(low)
        return bool(overflows.any() or (array.size == 1 and array.any() and not low.any()))


def decide(model: onnx.ModelProto, policy: Policy) -> dict[str, int]:
    """Element type of every float output of a flat model."""
    return Oracle(model, policy).decide()
