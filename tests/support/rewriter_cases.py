"""Rewriting small graphs: what the tests of the rewriter share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx

import mixlist
from mixlist.decide import Decision, Plan
from tests.support.builders import model, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.evaluation import run_ort
from tests.support.scopes import Scope, View, cast_target, dtype_name, is_marked_cast, node_names


@dataclass(frozen=True)
class Case:
    """A model before and after one policy; the promises S7 have been checked."""

    before: onnx.ModelProto
    after: onnx.ModelProto
    plan: Plan

    @cached_property
    def view(self) -> View:
        """The scopes of the result."""
        return View(self.after)

    @cached_property
    def nodes(self) -> dict[str, Decision]:
        """The decisions by node name, by ``scope/name`` below the main graph."""
        return {(f"{d.scope}/{d.name}" if d.scope else d.name): d for d in self.plan.nodes}

    @property
    def low(self) -> set[str]:
        """The nodes whose precision is the low type."""
        return {name for name, d in self.nodes.items() if d.precision == self.plan.policy.mode.low}

    @property
    def casts(self) -> list[str]:
        """mixlist's Casts, sorted: ``scope: source>type``, ``>y`` for one that makes the graph output y."""
        casts = []
        for scope in self.view.scopes():
            for node in filter(is_marked_cast, scope.nodes):
                ends = scope is self.view.main and node.output[0] in scope.outputs
                text = f">{node.output[0]}" if ends else f"{node.input[0]}>{dtype_name(cast_target(node))}"
                casts.append(f"{scope.path}: {text}" if scope.path else text)
        return sorted(casts)

    def scope(self, path: str = "") -> Scope:
        """A scope of the result by its path."""
        return next(s for s in self.view.scopes() if s.path == path)

    def reads(self, name: str) -> list[str]:
        """The types that a node of the result (``name`` or ``scope/name``) reads; "" for an empty input."""
        scope, node = self._find(name)
        return [dtype_name(scope.elem_type(i)) if i else "" for i in node.input]

    def makes(self, name: str) -> list[str]:
        """The types that a node of the result makes; "" for an empty output."""
        scope, node = self._find(name)
        return [dtype_name(scope.elem_type(o)) if o else "" for o in node.output]

    def initializers(self) -> dict[str, str]:
        """The types of the main graph's initializers by name."""
        return {t.name: dtype_name(t.data_type) for t in self.after.graph.initializer}

    def _find(self, name: str) -> tuple[Scope, onnx.NodeProto]:
        for scope in self.view.scopes():
            for node in scope.nodes:
                label = node.name or node_names(scope)[id(node)]
                if (f"{scope.path}/{label}" if scope.path else label) == name:
                    return scope, node
        raise LookupError(name)


def case(
    original: str | onnx.ModelProto,
    *,
    check: bool = True,
    runtime: bool = True,
    options: Mapping[str, Any] | None = None,
    hints: Mapping[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Case:
    """Rewrite a model (ONNX text: ``builders.model``) under ``builders.policy(**settings)``.

    The promises that two models can show are checked, and a second rewrite must change nothing. ``check`` and
    ``runtime`` select whether onnx's checker and ONNX Runtime load the original. Both models run on ``feeds``, if
    there are any, and the results have to agree within the rounding of float16.
    """
    before = model(original, check=check) if isinstance(original, str) else original
    original_bytes = before.SerializeToString(deterministic=True)
    resolve_options = dict(options or {})
    rules = policy(**settings)

    def apply(proto: onnx.ModelProto) -> tuple[Plan, onnx.ModelProto]:
        plan = mixlist.resolve(proto, rules, type_hints=hints, **resolve_options)
        return plan, mixlist.rewrite(proto, plan).model

    plan, after = apply(before)
    assert before.SerializeToString(deterministic=True) == original_bytes, "the input was changed"
    check_contract(before, after, plan, io=resolve_options.get("io", "keep"), runtime=runtime)
    check_idempotent(after, lambda m: apply(m)[1])
    if feeds is not None:
        _check_agreement(before, after, feeds)
    return Case(before, after, plan)


def _check_agreement(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
    expected, actual = (run_ort(proto, _typed(proto, feeds)) for proto in (before, after))
    for expected_value, actual_value in zip(expected, actual, strict=True):
        np.testing.assert_allclose(
            np.asarray(actual_value, np.float64), np.asarray(expected_value, np.float64), rtol=2e-2, atol=2e-2
        )


def _typed(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    kinds = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in proto.graph.input}
    return {name: np.asarray(value, kinds[name]) for name, value in feeds.items() if name in kinds}
