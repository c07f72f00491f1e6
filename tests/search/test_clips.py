"""``mixlist.repair(clip=True)``: a Clip replaces a group of raised nodes where the outputs allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mixlist
from tests.search.test_repair import repair
from tests.support.builders import model

# Sigmoid yields 1 for 32752 as for 9e4; Sqrt does not.
GATE = "[a] a = Neg(x) [m] m = Mul(a, a) [s] s = Sigmoid(m) [n] n = Neg(s) [k] y = Mul(n, x)"
ROOT = "[b] b = Neg(x) [p] p = Mul(b, b) [q] q = Sqrt(p) [o] z = Neg(q)"
LARGE: list[dict[str, Any]] = [{"x": np.array([0.5, 300], np.float16)}]


def graph(body: str, outputs: str) -> onnx.ModelProto:
    return model(f"g (float16[N] x) => ({outputs}) {{ {body} }}")


def describe(report: mixlist.RepairReport) -> list[Any]:
    """Return the tensor of each Clip, and the names of the nodes of the other edits."""
    return [edit.tensor or [node.name for node in edit.nodes] for edit in report.edits]


def test_a_clip_replaces_the_group_whose_outputs_allow_it(tmp_path: Path) -> None:
    network = graph(f"{GATE} {ROOT}", "float16[N] y, float16[N] z")
    assert describe(repair(network, LARGE)) == [["m", "s"], ["p", "q"]]
    report = repair(network, LARGE, clip=True)
    assert (report.verdict, describe(report), report.raised_nodes) == ("pass", ["m", ["p", "q"]], 2)
    assert [edit.limit for edit in report.edits] == [32752, None]
    clips = "2 Clips tried in place of 2 groups of raised nodes, 1 kept; with another one, a limit breaks"
    assert report.reasons == ("the repaired model keeps every limit", clips)
    assert [line.partition("::")[0] for line in report.customize_dtypes.splitlines()] == ["p", "q"]
    report.save(tmp_path / "clipped.onnx")
    clipped = onnx.load(tmp_path / "clipped.onnx")
    onnx.checker.check_model(clipped, full_check=True)
    assert (clipped.graph.input, clipped.graph.output) == (network.graph.input, network.graph.output)
    (clip,) = [node for node in clipped.graph.node if node.op_type == "Clip"]
    assert list(clip.output) == ["m"]
    # The written file is healthy: check takes the infinity before the Clip as intended (Rule S8.30).
    again = mixlist.check(clipped, mixlist.load_policy(precision_mode_v2="origin"), LARGE, reference_type="float32")
    assert again.verdict == "pass"
    assert all(errors.after is not None and errors.after.passed for errors in report.errors)


def test_a_clip_that_changes_the_outputs_is_not_made() -> None:
    """A value that is normalized later must not be clipped."""
    text = "[m] m = Mul(x, x) [t] t = ReduceMax(m) [d] d = Div(m, t) [n] n = Neg(d) [o] o = Neg(n) [a] y = Abs(o)"
    feeds = [{"x": np.array([100, 150, 300], np.float16)}]
    network = graph(text, "float16[N] y")
    report = repair(network, feeds, clip=True)
    assert describe(report) == [["m", "t", "d"]]
    assert report.reasons[1:] == ("1 Clip tried in place of 1 group of raised nodes, 0 kept: a limit breaks",)


def test_a_clip_must_hold_on_the_validation_data_too() -> None:
    """0.1 is a sigmoid that a Clip does not change; on the other data the product is read before it saturates."""
    text = (
        f"{GATE.replace('[k] y = Mul(n, x)', '')} [h] h = Mul(m, w) [r] r = Sigmoid(h) [e] e = Neg(r) [k] y = Add(n, e)"
    )
    network = model(f"g (float16[N] x, float16[N] w) => (float16[N] y) {{ {text} }}")
    same, other = ([{**LARGE[0], "w": np.full(2, w, np.float16)}] for w in (0.01, 3e-5))
    assert describe(repair(network, same, clip=True)) == ["m"]
    report = repair(network, same, clip=True, validate_on=other)
    assert "m" not in describe(report)
