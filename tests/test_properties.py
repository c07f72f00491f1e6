"""Random models under random policies: the rewritten model keeps the promises S7 and has the same outputs.

MIXLIST_EXAMPLES is the number of examples (60 by default). If MIXLIST_SEED is set, each run has other examples.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mixlist
from mixlist import Policy
from tests.support.builders import MODES, apply, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.evaluation import largest_difference, run_ort, run_reference
from tests.support.graphs import Case, cases
from tests.support.package import GRAY_POLICIES
from tests.support.scopes import View, elem_type

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "60"))
PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
MODE_NAMES = ["mixed_float16"] * 6 + ["mixed_bfloat16", "fp16", "origin", "cube_fp16in_fp32out", "allow_fp32_to_fp16"]


@st.composite
def policies(draw: st.DrawFn, model: onnx.ModelProto) -> Policy:
    """Draw a policy that names some op types of the model."""
    types = sorted({node.op_type for scope in View(model).scopes() for node in scope.nodes})
    lists = {op: draw(st.sampled_from(["gray", "white", "black", "white", "gray"])) for op in types}
    return policy(
        white=[op for op in types if lists[op] == "white"],
        black=[op for op in types if lists[op] == "black"],
        mode=draw(st.sampled_from(MODE_NAMES)),
        gray_policy=draw(st.sampled_from(["ascend", *GRAY_POLICIES])),
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=draw(st.sampled_from([[], ["masks", "positions"]])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Case, Policy]:
    """Draw a model and a policy for it."""
    case = draw(cases())
    return case, draw(policies(case.model))


@PROFILE
@given(jobs(), st.sampled_from(["keep", "low", "float32"]), st.booleans())
def test_the_result_keeps_the_contract(job: tuple[Case, Policy], io: str, keeps_first: bool) -> None:
    case, rules = job
    names = [v.name for v in (*case.model.graph.input, *case.model.graph.output)]
    options: dict[str, Any] = {
        "io": io,
        "keep_io": tuple(names[:1]) if keeps_first and io != "keep" else (),
    }
    before = case.model.SerializeToString(deterministic=True)
    plan = mixlist.resolve(case.model, rules, **options)
    result = mixlist.rewrite(case.model, plan)
    assert case.model.SerializeToString(deterministic=True) == before, "the input was modified"
    check_contract(case.model, result, plan, io=io)
    check_idempotent(result.model, lambda m: apply(m, rules, **options))


@PROFILE
@given(jobs())
def test_outputs_differ_by_no_more_than_rounding(job: tuple[Case, Policy]) -> None:
    """Run the model in its low precision, with two batch sizes.

    If an input of a Loop's body has the name of an outer value, onnx.reference reads the outer value. Such models run
    only on ONNX Runtime. ONNX Runtime refuses two nodes of the same name. It also removes a pair of Casts float16 ->
    float32 -> float16, even if a subgraph captures the result; only a black Cast leaves such a pair.
    """
    case, rules = job
    mixed = apply(case.model, rules)
    low = rules.mode.low
    for n in (3, 1):
        feeds = case.feeds(n, seed=n)
        reference = run_reference(case.model, feeds)
        if "shadowed name" not in case.features:
            assert_close(case, reference, run_reference(mixed, feeds), EPSILON[low])
        cast_is_black = rules.lists.list_of("Cast") == "black"
        if low == "float16" and "duplicate node name" not in case.features and not cast_is_black:
            assert_close(case, reference, run_ort(mixed, feeds), EPSILON[low])


def assert_close(case: Case, reference: list[np.ndarray], mixed: list[np.ndarray], epsilon: float) -> None:
    """Assert that every output differs by no more than its error bound."""
    for value, gap in zip(case.model.graph.output, largest_difference(reference, mixed), strict=True):
        limit = (case.errors[value.name] + 1) * epsilon
        assert gap <= limit, f"output {value.name!r} differs by {gap:.3g}, but rounding explains at most {limit:.3g}"


def test_a_float32_model_with_all_ops_black_keeps_its_nodes() -> None:
    """Only the metadata of mixlist is added."""

    @settings(PROFILE, max_examples=20)
    @given(cases())
    def check(case: Case) -> None:
        types = {node.op_type for scope in View(case.model).scopes() for node in scope.nodes}
        mixed = apply(case.model, policy(black=types))
        if any(elem_type(t) == onnx.TensorProto.FLOAT16 for s in View(case.model).scopes() for t in s.types.values()):
            return
        nodes = [[n.SerializeToString(deterministic=True) for n in m.graph.node] for m in (case.model, mixed)]
        assert nodes[0] == nodes[1]

    check()


HASH_SCRIPT = """
import hashlib, pathlib, sys
import onnx
from tests.support.builders import apply, policy
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    rules = policy(white=["Add", "Mul", "MatMul", "Relu", "F0"], black=["Softmax", "Tanh"])
    print(hashlib.sha256(apply(onnx.load(path), rules).SerializeToString()).hexdigest())
"""


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Rule S7.9: The bytes do not depend on the hash seed of the process."""
    models: list[bytes] = []

    @settings(PROFILE, max_examples=15)
    @given(cases())
    def collect(case: Case) -> None:
        models.append(case.model.SerializeToString())

    collect()
    for i, data in enumerate(models):
        (tmp_path / f"{i:03}.onnx").write_bytes(data)
    root = Path(__file__).parent.parent
    outputs = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", HASH_SCRIPT, str(tmp_path)]
        completed = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        outputs.append(completed.stdout.split())
    assert len(outputs[0]) == len(models)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_keeps_the_contract(mode: str) -> None:
    @settings(PROFILE, max_examples=max(10, EXAMPLES // 10))
    @given(cases())
    def check(case: Case) -> None:
        rules = policy(white=["Add", "MatMul", "Mul", "Exp"], black=["Softmax"] if "mixed" in mode else (), mode=mode)
        plan = mixlist.resolve(case.model, rules)
        check_contract(case.model, mixlist.rewrite(case.model, plan), plan)

    check()
