"""What ``apply`` writes under any policy is recovered: the files give every node the same types (Rule S11.4)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mixlist
from mixlist.errors import MixlistError
from tests.exchange.test_model_matching import forget_names
from tests.support.builders import apply, keep, model, policy
from tests.support.graphs import Case, cases
from tests.support.package import GRAY_POLICIES, GrayPolicy, ListName

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "40"))
OPS = ["Relu", "Add", "Mul", "MatMul", "Exp", "Softmax", "Transpose", "Reshape", "Concat", "Sub", "Neg", "Identity"]
OPS += ["Pow", "ReduceSum", "Conv", "Div", "Sqrt", "Where", "Slice", "Gemm", "Tanh", "Sigmoid", "Unsqueeze", "Squeeze"]
LISTS = st.dictionaries(st.sampled_from(OPS), st.sampled_from(["white", "black", "gray"]))
UNCOMPARED = ("Cast", "Constant", "ConstantOfShape")


NodeTypes = dict[str, dict[str, str]]  # by node the types of its outputs


def decided_types(model: onnx.ModelProto, rules: mixlist.Policy) -> NodeTypes:
    """Return the types that the nodes get."""
    nodes = mixlist.resolve(model, rules).nodes
    return {str(node.ref): dict(node.outputs) for node in nodes if node.op_type not in UNCOMPARED}


def recovered_types(model: onnx.ModelProto, report: mixlist.RecoverReport, library: str) -> NodeTypes:
    """Return the types under the files that a report writes."""
    with tempfile.TemporaryDirectory() as folder:
        lists, rules = Path(folder, "list.json"), Path(folder, "rules.txt")
        report.save(lists, rules)
        recovered = mixlist.load_policy(
            ops_info=library,
            mixlist=lists,
            customize_dtypes=rules,
            precision_mode_v2=report.precision_mode_v2,
            gray_policy=report.gray_policy,
            constants=report.constants,
            protect=report.protect,
        )
    return decided_types(model, recovered)


def white(lists: Mapping[str, ListName]) -> list[str]:
    return [op for op, name in lists.items() if name == "white"]


def black(lists: Mapping[str, ListName]) -> list[str]:
    return [op for op, name in lists.items() if name == "black"]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=cases(),
    lists=LISTS,
    mode=st.sampled_from(["mixed_float16", "mixed_bfloat16"]),
    library=st.sampled_from(["onnx", "ascend910b", "tensorflow"]),
    gray_policy=st.sampled_from(GRAY_POLICIES),
)
def test_a_model_that_mixlist_wrote_is_recovered(
    case: Case, lists: dict[str, ListName], mode: str, library: str, gray_policy: GrayPolicy
) -> None:
    written_under = policy(white=white(lists), black=black(lists), mode=mode)
    try:
        mixed = apply(case.model, written_under)
    except MixlistError:  # two nodes of one name, for example
        return
    report = mixlist.recover(case.model, mixed, ops_info=library, gray_policy=gray_policy)
    unexpected = [node for node in report.exceptions if "for all calls" not in node.why]
    assert not unexpected and not report.unmatched
    if report.complete:
        assert recovered_types(case.model, report, library) == decided_types(case.model, written_under)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(flat=True), lists=LISTS)
def test_a_node_that_matches_without_names_has_its_types(case: Case, lists: dict[str, ListName]) -> None:
    """Some nodes cannot match without names. The types of the others are right or exceptions.

    An Identity has no fixed place and computes nothing, so it needs no match (Rule S11.4).
    """
    written_under = policy(white=white(lists), black=black(lists))
    try:
        mixed = forget_names(apply(case.model, written_under))
        report = mixlist.recover(case.model, mixed)
    except MixlistError:
        return
    nodes = mixlist.resolve(case.model, written_under).nodes
    identities = (node for node in nodes if node.op_type == "Identity")
    missing = {str(node.ref) for node in (*report.unmatched, *report.exceptions, *identities)}
    expected = decided_types(case.model, written_under)
    for name, types in recovered_types(case.model, report, "onnx").items():
        if name not in missing:
            assert types == expected[name], name


GRAY_CHAIN = """g (float[4, 4] x) => (float[4, 4] y) {
 [first] a = MatMul(x, x) [r1] b = Relu(a) [r2] c = Relu(b) [r3] d = Relu(c)
 [second] e = MatMul(d, d) [r4] f = Relu(e) [r5] h = Relu(f) [third] y = MatMul(h, h) }"""


def test_one_kept_node_under_the_gray_policy_between_is_one_rule() -> None:
    """Between looks at readers too, so that the Relus that follow the kept node need no rules (Rule S11.3)."""
    kept = policy(white=["MatMul"], rules=keep("first"), gray_policy="between")
    report = mixlist.recover(model(GRAY_CHAIN), apply(model(GRAY_CHAIN), kept), gray_policy="between")
    assert report.complete and report.differing == 4
    assert [(edit.kind, edit.name) for edit in report.edits] == [("rule", "first")]


@pytest.mark.parametrize("gray_policy", GRAY_POLICIES)
def test_the_policies_of_gray_nodes_of_a_real_network(gray_policy: GrayPolicy) -> None:
    """The network of the demo under its library is recovered under each gray policy."""
    original = Path(mixlist.__file__).parent / "demo_data" / "digits.onnx"
    mixed = mixlist.rewrite(original, mixlist.resolve(original, mixlist.load_policy(ops_info="mindspore-o3"))).model
    report = mixlist.recover(original, mixed, gray_policy=gray_policy)
    assert report.complete and report.differing > 0
