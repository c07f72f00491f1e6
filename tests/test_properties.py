"""Random models under random policies: the rewritten model keeps the promises S7 and computes the same.

MIXLIST_EXAMPLES sets the number of examples (a few hundred by default, for CI); MIXLIST_SEED, where set,
makes the run random instead of repeatable.
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
from mixlist.lists.policy import GRAY_POLICIES, Policy
from tests.support.builders import MODES, apply, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.evaluation import largest_difference, run_ort, run_reference
from tests.support.graphs import Case, cases
from tests.support.scopes import View, elem_type

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "300"))
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
    """A policy that names some of the model's op types."""
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
    """A model and a policy for it."""
    case = draw(cases())
    return case, draw(policies(case.model))


@PROFILE
@given(jobs(), st.sampled_from(["all", "all", "none", "first"]))
def test_the_contract_holds(job: tuple[Case, Policy], keep: str) -> None:
    case, rules = job
    names = [v.name for v in (*case.model.graph.input, *case.model.graph.output)]
    options: dict[str, Any] = {"keep_io_types": keep == "all", "keep_io": tuple(names[:1]) if keep == "first" else ()}
    before = case.model.SerializeToString(deterministic=True)
    plan = mixlist.resolve(case.model, rules)
    result = mixlist.rewrite(case.model, plan, **options)
    assert case.model.SerializeToString(deterministic=True) == before, "the input was modified"
    check_contract(case.model, result, plan, keep_io_types=options["keep_io_types"])
    check_idempotent(result.model, lambda m: apply(m, rules, **options))


@PROFILE
@given(jobs())
def test_the_result_computes_the_same(job: tuple[Case, Policy]) -> None:
    """True low precision strays no further than rounding can; another batch size runs too.

    onnx.reference gives a Loop's body the outer value where an input of the body has its name, so
    such models run on ONNX Runtime only; that in turn refuses two nodes of one name, and drops a pair
    float16 -> float32 -> float16 (which only a black Cast leaves) though a subgraph captures its end.
    """
    case, rules = job
    mixed = apply(case.model, rules)
    low = rules.mode.low
    for n in (3, 1):
        feeds = case.feeds(n, seed=n)
        exact = run_reference(case.model, feeds)
        if "shadowed name" not in case.features:
            close(case, exact, run_reference(mixed, feeds), EPSILON[low])
        cast_is_black = rules.lists.list_of("Cast") == "black"
        if low == "float16" and "duplicate node name" not in case.features and not cast_is_black:
            close(case, exact, run_ort(mixed, feeds), EPSILON[low])


def close(case: Case, exact: list[np.ndarray], mixed: list[np.ndarray], epsilon: float) -> None:
    """Every output agrees within its error bound."""
    for value, gap in zip(case.model.graph.output, largest_difference(exact, mixed), strict=True):
        limit = (case.errors[value.name] + 1) * epsilon
        assert gap <= limit, f"output {value.name!r} strays by {gap:.3g}, rounding explains {limit:.3g}"


def test_nothing_to_do_is_nothing_done() -> None:
    """With every op black, a float32 model comes back as it was but for mixlist's own metadata."""

    @settings(PROFILE, max_examples=50)
    @given(cases())
    def check(case: Case) -> None:
        types = {node.op_type for scope in View(case.model).scopes() for node in scope.nodes}
        mixed = apply(case.model, policy(black=types))
        if any(elem_type(t) == onnx.TensorProto.FLOAT16 for s in View(case.model).scopes() for t in s.types.values()):
            return
        nodes = [[n.SerializeToString(deterministic=True) for n in m.graph.node] for m in (case.model, mixed)]
        assert nodes[0] == nodes[1]

    check()


HASHES = """
import hashlib, pathlib, sys
import onnx
from tests.support.builders import apply, policy
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    rules = policy(white=["Add", "Mul", "MatMul", "Relu", "F0"], black=["Softmax", "Tanh"])
    print(hashlib.sha256(apply(onnx.load(path), rules).SerializeToString()).hexdigest())
"""


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """In processes with other hash seeds. Rule S7.9."""
    kept: list[bytes] = []

    @settings(PROFILE, max_examples=30)
    @given(cases())
    def collect(case: Case) -> None:
        kept.append(case.model.SerializeToString())

    collect()
    for i, data in enumerate(kept):
        (tmp_path / f"{i:03}.onnx").write_bytes(data)
    root = Path(__file__).parent.parent
    outputs = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", HASHES, str(tmp_path)]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.split())
    assert len(outputs[0]) == len(kept)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_keeps_the_contract(mode: str) -> None:
    @settings(PROFILE, max_examples=max(20, EXAMPLES // 10))
    @given(cases())
    def check(case: Case) -> None:
        rules = policy(white=["Add", "MatMul", "Mul", "Exp"], black=["Softmax"] if "mixed" in mode else (), mode=mode)
        plan = mixlist.resolve(case.model, rules)
        check_contract(case.model, mixlist.rewrite(case.model, plan), plan)

    check()
