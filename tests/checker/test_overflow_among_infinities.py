"""An overflow in a tensor that has infinities of both signs in float32 already."""

from __future__ import annotations

import numpy as np

import mixlist
from tests.support.builders import model, policy

# Mul is high and its output exceeds 65504. Div is low, so it reads an infinity. Relu makes zeros, by which Div divides.
TEXT = """g (float[2,2] x) => (float[2,2] y) <float[1,2] c = {-3328, 1824}> {
    [z] z = Relu(x) [t] t = Mul(x, c) [y] y = Div(t, z)
}"""


def test_one_more_infinity_is_an_overflow() -> None:
    feeds = [
        {"x": np.array([[230.0, -238.0], [-182.0, 164.0]], np.float32)},  # -765440 / 230 is -3328 in float32
        {"x": np.array([[2.0, -3.0], [-4.0, 5.0]], np.float32)},  # the same signs, all within the range
    ]
    report = mixlist.check(model(TEXT), policy(white=["Div"], black=["Relu", "Mul"]), feeds)
    assert {node.kind: node.batches for node in report.nodes if node.name == "y"} == {
        "overflow": (0,),
        "preexisting": (1,),
    }
    assert report.exception_rate == 0.5
