"""Node data of Model Explorer: the identities of its ONNX adapter, precisions and errors.

``make campaign`` runs the adapter itself (tests/corpus/test_model_explorer.py).
"""

from __future__ import annotations

import onnx

import mixlist
from mixlist.exchange.model_explorer import error_data, precision_data
from tests.support.builders import policy

# An If in a Loop, an If, nodes without names, and names that occur twice.
TEXT = """<ir_version: 8, opset_import: ["": 18]>
main (float[4] x, bool c, int64 n) => (float[4] y) {
  [a] a = Exp(x)
  b = Exp(a)
  [choice] d = If (c) <
    then_branch = one () => (float[4] t) { [a] t0 = Exp(b) t = Relu(t0) },
    else_branch = two () => (float[4] e) { e = Exp(b) }
  >
  [loop] y = Loop (n, c, d) <
    body = step (int64 i, bool p, float[4] s) => (bool q, float[4] r) {
      q = Identity(p)
      [inner] r = If (p) <
        then_branch = three () => (float[4] u) { [a] u = Exp(s) },
        else_branch = four () => (float[4] v) { v = Relu(s) }
      >
    }
  >
}"""


def test_nodes_have_the_identities_of_the_adapter() -> None:
    plan = mixlist.resolve(onnx.parser.parse_model(TEXT), policy(white=["Exp"]))
    data = precision_data(plan, plan.nodes)
    assert {graph: list(values["results"]) for graph, values in data.items()} == IDENTITIES


IDENTITIES = {
    "main": [
        "a", "node", "choice/then_branch/a", "choice/then_branch/node", "choice/else_branch/node", "choice", "loop",
    ],
    "loop/body": ["node", "inner/then_branch/a", "inner/else_branch/node", "inner"],
}  # fmt: skip


def test_a_value_has_the_precision_the_list_and_the_rule() -> None:
    plan = mixlist.resolve(onnx.parser.parse_model(TEXT), policy(white=["Exp"]))
    values = precision_data(plan, plan.nodes[:1])
    assert values == {
        "main": {
            "name": "precision",
            "results": {"a": {"value": "float16 (white)", "bgColor": "#2f6fb7", "textColor": "#ffffff"}},
        }
    }


def test_errors_are_numbers() -> None:
    plan = mixlist.resolve(onnx.parser.parse_model(TEXT), policy(white=["Exp"]))
    data = error_data(plan, {plan.nodes[0].ref: 0.25})
    assert data["main"]["results"] == {"a": {"value": 0.25}} and list(data) == ["main"]
