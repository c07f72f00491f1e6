"""Rewrite the models of ONNX's own node tests (1,600 to 1,900, by the version of onnx), and check the promises S7.

There are two policies: every op is white, or every op is gray behind a low producer. A float16 result loads in ONNX
Runtime if the original model loads. MIXLIST_EXAMPLES does not apply: every third model is tested, and with
MIXLIST_CAMPAIGN=1 every model, except those in EXCLUDED.
Each model becomes bfloat16, and is rewritten twice, under one of the two policies; under both with MIXLIST_CAMPAIGN=1.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from itertools import islice
from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist import Policy
from mixlist.decide import Resolver
from tests.support.builders import apply, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.loading import Loader
from tests.support.scopes import View, subgraphs
from tests.support.versions import newest_opset

# name of an onnx.backend.test model -> why it is not tested
EXCLUDED: dict[str, str] = {}
PARTS = 4
CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
NEWEST = {"opset": newest_opset(), "ir": 13}  # what ONNX Runtime 1.31 reads


@cache
def models() -> dict[str, onnx.ModelProto]:
    """Return the models by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about the values of the test data
        return {case.name: case.model for case in collect_testcases(None) if case.name not in EXCLUDED}


def op_types(model: onnx.ModelProto) -> set[str]:
    """Return the op types of all scopes."""
    return {node.op_type for scope in View(model).scopes() for node in scope.nodes}


def all_white(model: onnx.ModelProto) -> tuple[onnx.ModelProto, set[str]]:
    """Return the model, and all its op types for the white list."""
    return model, op_types(model)


def behind_low(model: onnx.ModelProto) -> tuple[onnx.ModelProto, set[str]]:
    """Insert a low node behind each float32 input; return the model, and the op type of that node for the white list.

    All other ops are gray.
    """
    producer = next(op for op in ("Abs", "Neg", "Relu") if op not in op_types(model))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    initializer_names = {tensor.name for tensor in copy.graph.initializer}
    names = [v.name for v in copy.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    renamed = {name: f"{name}.low" for name in names if name not in initializer_names}
    _rename_inputs(copy.graph, renamed)
    nodes = [onnx.helper.make_node(producer, [old], [new]) for old, new in renamed.items()] + list(copy.graph.node)
    copy.graph.ClearField("node")
    copy.graph.node.extend(nodes)
    return copy, {producer}


def _rename_inputs(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for _, inner in subgraphs(node):
            _rename_inputs(inner, renamed)


def is_too_old(model: onnx.ModelProto) -> bool:
    """Return whether the model is written in an opset below the first that is handled (Rule S7.15)."""
    return any(o.domain == "" and o.version < 7 for o in model.opset_import)


def standard_opset(model: onnx.ModelProto) -> int:
    """Return the version of the standard domain that the model imports, or 0 if it imports none."""
    return max((o.version for o in model.opset_import if o.domain == ""), default=0)


def loads(loader: Loader, model: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime reads a model of this version, and loads it."""
    is_read = model.ir_version <= NEWEST["ir"] and standard_opset(model) <= NEWEST["opset"]
    return is_read and loader.load(model) == "ok"


def rewrite(resolver: Resolver, rules: Policy, *, twice: bool) -> onnx.ModelProto:
    """Rewrite the resolver's model; assert its promises (S7), and that every node is supported.

    ``twice``: rewrite the result again, which must not change it.
    """
    plan = resolver.plan(rules)
    unsupported = [d.name for d in plan.nodes if d.rule == "unsupported"]
    result = mixlist.rewrite(resolver.loaded.proto, plan)
    check_contract(resolver.loaded.proto, result, plan, runtime=False)
    if twice:
        check_idempotent(result.model, lambda m: apply(m, rules))
    assert not unsupported
    assert isinstance(result.model, onnx.ModelProto)
    return result.model


@pytest.mark.parametrize("part", range(PARTS))
def test_every_model_keeps_the_contract_and_loads(part: int, tmp_path: Path) -> None:
    """Rules S7.1 and S7.12: the result is a valid model, and only Casts and copies of constants are inserted.

    Two policies, each with both low types. In float16 the result loads in ONNX Runtime wherever the original did.
    """
    failures: dict[str, str] = {}
    load_results: dict[str, str] = {}
    plan_count = 0
    with Loader(tmp_path) as loader:
        # Each third model, as the tests of one operator follow each other; all of them with MIXLIST_CAMPAIGN=1.
        step = PARTS if CAMPAIGN else 3 * PARTS
        for index, (name, original) in enumerate(islice(models().items(), part, None, step)):
            if is_too_old(original):
                continue  # refused by Rule S7.15
            is_loaded = loads(loader, original)
            # Without an opset of the standard domain, no standard node can be inserted before the others.
            variants = (all_white, behind_low) if standard_opset(original) else (all_white,)
            for variant in variants:
                model, white = variant(original)
                resolver = Resolver(model)
                in_full = CAMPAIGN or variant is variants[index % len(variants)]
                for mode in ("mixed_float16", "mixed_bfloat16") if in_full else ("mixed_float16",):
                    plan_count += 1
                    try:
                        mixed = rewrite(resolver, policy(white=white, mode=mode), twice=in_full)
                    except Exception as error:  # every failure is listed with the model's name
                        failures[f"{name}, {variant.__name__}, {mode}"] = f"{type(error).__name__}: {error}"
                        continue
                    if is_loaded and mode == "mixed_float16":
                        load_results[f"{name}, {variant.__name__}"] = loader.load(mixed)
    assert failures == {}
    assert plan_count > (1000 if CAMPAIGN else 333) and len(load_results) > (500 if CAMPAIGN else 166)
    crashed = {name for name, load_result in load_results.items() if load_result == "died"}
    assert all("lstm" in name or "gru" in name for name in crashed)  # ONNX Runtime crashes on recurrent float16 models
    refused = {name: result for name, result in load_results.items() if result != "ok" and name not in crashed}
    assert refused == {}
