"""Long chains of nodes need no recursion, and time and output in proportion to the number of nodes."""

from __future__ import annotations

import json

import onnx
import pytest
from onnx import helper

import mixlist
from tests.support.builders import policy
from tests.support.package import GRAY_POLICIES, GrayPolicy

LENGTH = 6_000


def chain(length: int, *, backwards: bool = False) -> onnx.ModelProto:
    """Return a model of one Exp and then only Relu; ``backwards`` writes the nodes in reverse order, against ONNX."""
    nodes = [helper.make_node("Exp", ["x"], ["t0"], name="n0")]
    nodes += [helper.make_node("Relu", [f"t{i - 1}"], [f"t{i}"], name=f"n{i}") for i in range(1, length)]
    graph = helper.make_graph(
        nodes[::-1] if backwards else nodes,
        "chain",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info(f"t{length - 1}", 1, [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("gray_policy", GRAY_POLICIES)
def test_a_gray_chain_is_decided(gray_policy: GrayPolicy) -> None:
    plan = mixlist.resolve(chain(5_000), policy(white=["Exp"], gray_policy=gray_policy))
    low = 5_000 if gray_policy != "between" else 1  # no white node after the chain
    assert plan.counts.get("float16") == low
    assert plan.nodes[-1].name == "n4999"


def test_a_long_gray_chain_against_the_order_of_its_nodes() -> None:
    model = chain(LENGTH, backwards=True)
    plan = mixlist.resolve(model, policy(white=["Exp"]))
    assert plan.counts.get("float16") == LENGTH
    assert plan.nodes[-1].follows == (f"n{LENGTH - 2}", "n0")
    assert mixlist.rewrite(model, plan).casts_inserted == 2


def test_the_output_grows_with_the_nodes_and_not_with_their_square() -> None:
    sizes = []
    for length in (1_000, 10_000):
        plan = mixlist.resolve(chain(length), policy(white=["Exp"]))
        sizes.append(len(json.dumps(plan.to_json())))
    assert sizes[1] < 12 * sizes[0]  # names of more digits, nothing else


def test_the_whole_chain_is_explained() -> None:
    plan = mixlist.resolve(chain(5_000), policy(white=["Exp"]))
    links = plan.explain("n4999")
    assert [decision.name for decision in (links[0], links[-1])] == ["n4999", "n0"] and len(links) == 5_000


def test_a_loop_around_a_long_chain_is_solved() -> None:
    length = 20_000
    body = [helper.make_node("Relu", ["s"], ["t0"], name="b0")]
    body += [helper.make_node("Relu", [f"t{i - 1}"], [f"t{i}"], name=f"b{i}") for i in range(1, length)]
    body.append(helper.make_node("Identity", ["c"], ["d"]))
    inner = helper.make_graph(
        body,
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("c", 9))]
        + [helper.make_tensor_value_info("s", 1, [1])],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info(f"t{length - 1}", 1, [1])],
    )
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Loop", ["m", "", "e"], ["y"], body=inner)],
        "g",
        [helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("m", 7, [])],
        [helper.make_tensor_value_info("y", 1, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert mixlist.resolve(model, policy(white=["Exp"])).counts["float16"] == length + 1
