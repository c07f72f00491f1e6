"""ONNX's own node tests as models (about 1,900): each keeps the promises S7 with every op white, and with every op
gray behind a low producer; in float16 they load in ONNX Runtime wherever they loaded before.

MIXLIST_EXAMPLES does not apply: all models are taken. What is excluded stands in EXCLUDED, with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist.lists.policy import Policy
from tests.support.builders import apply, policy
from tests.support.contract import OPTIMISER_DEFECTS, check_contract, check_idempotent
from tests.support.loading import Loader
from tests.support.scopes import View, subgraphs

# name of an onnx.backend.test model -> why it is not asked
EXCLUDED: dict[str, str] = {}
NO_STANDARD_OPSET = "imports no opset of the standard domain, so no standard node can stand before it"
NEWEST = {"opset": 26, "ir": 13}  # what ONNX Runtime 1.31 reads


@cache
def models() -> dict[str, onnx.ModelProto]:
    """The models by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about the values of the test data
        return {case.name: case.model for case in collect_testcases(None) if case.name not in EXCLUDED}


def op_types(model: onnx.ModelProto) -> set[str]:
    """Every op type in every scope."""
    return {node.op_type for scope in View(model).scopes() for node in scope.nodes}


def all_white(model: onnx.ModelProto, mode: str) -> tuple[onnx.ModelProto, Policy]:
    """The model and a policy that has every op type of it on the white list."""
    return model, policy(white=op_types(model), mode=mode)


def behind_low(model: onnx.ModelProto, mode: str) -> tuple[onnx.ModelProto, Policy]:
    """The model with a white node behind each float32 input, everything else gray."""
    producer = next(op for op in ("Abs", "Neg", "Relu") if op not in op_types(model))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    held = {tensor.name for tensor in copy.graph.initializer}
    names = [v.name for v in copy.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    renamed = {name: f"{name}.low" for name in names if name not in held}
    _read_instead(copy.graph, renamed)
    nodes = [onnx.helper.make_node(producer, [old], [new]) for old, new in renamed.items()] + list(copy.graph.node)
    copy.graph.ClearField("node")
    copy.graph.node.extend(nodes)
    return copy, policy(white=[producer], mode=mode)


def _read_instead(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for _, inner in subgraphs(node):
            _read_instead(inner, renamed)


def is_too_old(model: onnx.ModelProto) -> bool:
    """Return whether the model is written in an opset below the first that is handled (Rule S7.15)."""
    return any(o.domain == "" and o.version < 7 for o in model.opset_import)


def judge(model: onnx.ModelProto, rules: Policy) -> str:
    """What is wrong with the rewritten model; empty where nothing is."""
    try:
        plan = mixlist.resolve(model, rules)
        unsupported = [d.name for d in plan.nodes if d.rule == "unsupported"]
        result = mixlist.rewrite(model, plan)
        check_contract(model, result, plan, runtime=False)
        check_idempotent(result.model, lambda m: apply(m, rules))
    except Exception as error:  # every failure is listed with the model's name
        return f"{type(error).__name__}: {error}"
    return f"unsupported: {unsupported}" if unsupported else ""


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("variant", [all_white, behind_low])
def test_every_model_keeps_the_contract(
    mode: str, variant: Callable[[onnx.ModelProto, str], tuple[onnx.ModelProto, Policy]]
) -> None:
    """Rule S7.12: Only Casts and copies of constants are inserted."""
    failures, asked = {}, 0
    for name, original in models().items():
        if is_too_old(original):
            continue  # refused by Rule S7.15
        if variant is behind_low and not any(o.domain == "" for o in original.opset_import):
            continue  # NO_STANDARD_OPSET
        asked += 1
        wrong = judge(*variant(original, mode))
        if wrong:
            failures[name] = wrong
    assert failures == {}
    assert asked > 1800


def test_float16_loads_wherever_the_original_did(tmp_path: Path) -> None:
    """Rule S7.1: The result is a valid model."""
    refused, asked = {}, 0
    with Loader(tmp_path) as loader:
        for name, original in models().items():
            opset = max((o.version for o in original.opset_import if o.domain == ""), default=0)
            if (
                is_too_old(original)
                or original.ir_version > NEWEST["ir"]
                or opset > NEWEST["opset"]
                or loader.load(original) != "ok"
            ):
                continue
            for variant in (all_white, behind_low):
                if variant is behind_low and not opset:
                    continue
                asked += 1
                answer = loader.load(apply(*variant(original, "mixed_float16")))
                if answer != "ok" and not any(text in answer for text in OPTIMISER_DEFECTS):
                    refused[f"{name}, {variant.__name__}"] = answer
    assert asked > 2000
    crashed = {name for name, answer in refused.items() if answer == "died"}
    assert all("lstm" in name or "gru" in name for name in crashed)  # ONNX Runtime's own, on recurrent float16 models
    assert {name: answer for name, answer in refused.items() if answer != "died"} == {}
