"""The package's resolve against an independent reference of the rules, on random graphs of every kind.

``tests/support/reference.py`` decides from the text of docs/semantics.md. MIXLIST_EXAMPLES sets the number of graphs in
all, ``make campaign`` takes 5,000; MIXLIST_SEED takes others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

import mixlist
from mixlist import Policy
from mixlist.errors import MixlistError
from tests.support.builders import customize, keep, policy
from tests.support.graph_table import DECISIONS
from tests.support.graphs import Case, cases
from tests.support.package import GRAY_POLICIES, NodeRule, Protection
from tests.support.reference import Reference
from tests.support.reference_compare import differences
from tests.support.reference_model import ELEM_TYPES, Node
from tests.support.reference_names import names_of

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "240"))
SEED = int(os.environ.get("MIXLIST_SEED", "0"))
GRAY_POLICIES_DRAWN = ["ascend", *GRAY_POLICIES]
MODES = ["mixed_float16"] * 5 + ["mixed_bfloat16"] * 2 + ["fp16", "origin", "cube_fp16in_fp32out", "allow_fp32_to_fp16"]
LISTS = ["gray", "white", "black", "gray"]
Protections = tuple[Protection, ...]
PROTECTIONS: list[Protections] = [
    (),
    ("positions",),
    ("masks",),
    ("quantized",),
    ("norms",),
    ("masks", "norms", "positions", "quantized"),
]


@st.composite
def policies(draw: st.DrawFn, case: Case, gray_policy: str, protections: Sequence[Protections] = PROTECTIONS) -> Policy:
    """Draw a policy that names op types of the model, and sometimes nodes."""
    bare = Reference(case.model, policy())
    types = sorted({node.op for node in bare.nodes})
    lists = {op: draw(st.sampled_from(LISTS)) for op in types}
    mode = draw(st.sampled_from(MODES))
    rules: tuple[NodeRule, ...] = ()
    if bare.nodes and draw(st.integers(0, 3)) == 3:
        rules = draw(node_rules(bare, "bfloat16" if mode == "mixed_bfloat16" else "float16"))
    return policy(
        white=[op for op in types if lists[op] == "white"],
        black=[op for op in types if lists[op] == "black"],
        clear=[op for op in types if draw(st.integers(0, 5)) == 5],
        mode=mode,
        gray_policy=gray_policy,  # type: ignore[arg-type]
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=draw(st.sampled_from(protections)),
        rules=rules,
    )


@st.composite
def ascend_policies(draw: st.DrawFn, case: Case, gray_policy: str) -> Policy:
    """Draw a policy with a library in Ascend names, which lowers bfloat16 too; an operator is on one list."""
    lists: dict[str, str] = {}
    for node in Reference(case.model, policy()).nodes:
        for name in names_of(node):
            lists[name] = lists.get(name) or lists.get(names_of(node)[0]) or draw(st.sampled_from(LISTS))
    return policy(
        white=[name for name, listed in lists.items() if listed == "white"],
        black=[name for name, listed in lists.items() if listed == "black"],
        mode="mixed_float16",
        gray_policy=gray_policy,  # type: ignore[arg-type]
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=draw(st.sampled_from(PROTECTIONS)),
        space="ascend",
    )


@st.composite
def node_rules(draw: st.DrawFn, bare: Reference, low: str) -> tuple[NodeRule, ...]:
    """Draw one to three rules by name, pattern or type, in their order of precedence (Rule S6.3)."""
    rules: list[NodeRule] = []
    for _ in range(draw(st.integers(1, 3))):
        node = draw(st.sampled_from(bare.nodes))
        if not any(group.elem in (ELEM_TYPES["float32"], ELEM_TYPES[low]) for group in bare.groups[node]):
            continue
        path = f"{node.scope.path}/{node.name}" if node.scope.path else node.name
        by_type = draw(st.integers(0, 2)) == 2
        if draw(st.booleans()):
            pattern = node.op if by_type else draw(st.sampled_from([node.name, path, f"{node.name[:3]}*"]))
            rules += keep(pattern, by_type=by_type)
        else:
            rules.append(draw(customized_rule(bare, node, low, by_type)))
    return tuple(sorted(rules, key=lambda rule: (rule.keep, rule.by == "type" and not rule.keep)))


@st.composite
def customized_rule(draw: st.DrawFn, bare: Reference, node: Node, low: str, by_type: bool) -> NodeRule:
    """Draw a line of customize_dtypes that gives a type to one type parameter."""
    group = draw(st.sampled_from(bare.groups[node]))
    dtype = draw(st.sampled_from(["float32", low]))
    sides: list[list[str | None]] = []
    for slots in (group.inputs, group.outputs):
        width = max(slots, default=-1) + 1
        sides.append([dtype if i in slots and draw(st.integers(0, 4)) else None for i in range(width)])
    return customize(node.op if by_type else node.name, *sides, by_type=by_type)


def compare(case: Case, rules: Policy) -> list[str]:
    """Return the differences between mixlist and the reference; reject a node rule or a model that mixlist refuses.

    The shapes of some of these models contradict each other (Rule S4.53).
    """
    try:
        plan = mixlist.resolve(case.model, rules)
    except MixlistError as error:
        assume(not rules.rules and "the model is not valid ONNX" not in error.message)
        raise
    reference = Reference(case.model, rules)
    reference.solve()
    return differences(plan, {node: reference.decided(node) for node in reference.nodes})


Policies = Callable[[Case, str], st.SearchStrategy[Policy]]


def judge_graphs(part: int, families: Sequence[str], drawn_policies: Policies, examples: int) -> None:
    """Compare the decisions on random graphs of some families under one gray policy."""
    gray_policy = GRAY_POLICIES_DRAWN[part]

    @seed(SEED + part)
    @settings(
        max_examples=max(1, examples // len(GRAY_POLICIES_DRAWN)),
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data(), cases(families=families))
    def judge(data: st.DataObject, case: Case) -> None:
        rules = data.draw(drawn_policies(case, gray_policy))
        mismatches = compare(case, rules)
        assert not mismatches, "\n".join([*mismatches, repr(rules), onnx.printer.to_text(case.model)])

    judge()


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_decides_as_the_reference(part: int) -> None:
    judge_graphs(part, tuple(DECISIONS), policies, EXAMPLES)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_treats_masks_as_the_reference(part: int) -> None:
    """Rules S4.34 to S4.37: the decisions, the reduced constants, and their magnitudes."""
    masked = partial(policies, protections=[p for p in PROTECTIONS if "masks" in p])
    judge_graphs(part, ("masks",), masked, EXAMPLES // 2)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_keeps_guards_as_the_reference(part: int) -> None:
    """Rule S4.43."""
    judge_graphs(part, ("guards",), policies, EXAMPLES // 4)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_keeps_written_norms_as_the_reference(part: int) -> None:
    """Rule S4.47, also with node rules, which move whole units."""
    protected = partial(policies, protections=[p for p in PROTECTIONS if "norms" in p])
    judge_graphs(part, ("norms",), protected, EXAMPLES // 4)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_keeps_quantized_units_as_the_reference(part: int) -> None:
    """Rules S4.41 and S4.42, also with node rules, which move whole units."""
    protected = partial(policies, protections=[p for p in PROTECTIONS if "quantized" in p])
    judge_graphs(part, ("quantized",), protected, EXAMPLES // 4)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_lowers_bfloat16_as_the_reference(part: int) -> None:
    """Rule S3.8: with a library in Ascend names white nodes of bfloat16 become float16."""
    judge_graphs(part, ("bfloat16",), ascend_policies, EXAMPLES // 4)


@pytest.mark.parametrize("part", range(len(GRAY_POLICIES_DRAWN)))
def test_mixlist_lists_squares_as_the_reference(part: int) -> None:
    """Rule S5.7: with a library in Ascend names, Mul(x, x) and Pow(x, 2) of a norm are on the list of Square."""
    judge_graphs(part, ("norms",), ascend_policies, EXAMPLES // 8)
