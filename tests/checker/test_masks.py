"""The infinities of masks are intended, and other overflows in the same tensor are found (Rules S8.11 and S8.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.hidden_overflow import HiddenValueCounter
from mixlist.checker.intended_infinities import find_masks
from mixlist.checker.result import CheckReport
from mixlist.checker.value_counts import CountingSession
from tests.decide.test_attention_masks import ATTENTIONS
from tests.decide.test_attention_masks import masked as attention
from tests.support.builders import model, policy
from tests.support.package import build_graph

LOW = ["Add", "Sub", "Mul", "Softmax", "Where", "Neg", "Relu", "Identity", "Reshape", "Max"]
INF = np.inf


def checked(text: str, feed: Mapping[str, Any], **options: Any) -> CheckReport:
    lists = {"white": LOW, **{k: options.pop(k) for k in ("constants", "black", "mode") if k in options}}
    lists["white"] = [op for op in LOW if op not in lists.get("black", ())]
    arrays = {n: np.asarray(v, bool if n == "b" else np.float32) for n, v in feed.items()}
    return mixlist.check(model(text), policy(**lists), [arrays], **options)


def kinds(report: CheckReport) -> dict[str, str]:
    return {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in reversed(report.nodes) if n.kind != "near-limit"}


PASS = "g (float[3] x) => (float[3] y) { [i] i = Identity(x) [n] y = Neg(i) }"


@pytest.mark.parametrize("mask", [3.4e38, -3.4e38, INF, -INF])
def test_an_overflow_next_to_a_mask_is_found(mask: float) -> None:
    text = "g (float[3] x, float[3] z) => (float[3] y) { [a] a = Add(x, z) [n] y = Neg(a) }"
    mask_only = checked(text, {"x": [1, 40000, mask], "z": [0, 0, 0]})
    assert mask_only.exception_rate == 0 and "overflow" not in kinds(mask_only).values()
    report = checked(text, {"x": [1, 40000, mask], "z": [0, 30000, 0]})
    assert kinds(report)["a"] == "overflow" and report.exception_rate == 1
    assert [n.count for n in report.nodes if n.kind == "overflow"] == [1]


def test_a_value_that_the_range_hides_is_found() -> None:
    report = checked(PASS, {"x": [1, 70000, 3.4e38]})
    assert kinds(report) == {"i": "overflow", "n": "propagated"} and report.verdict == "fail"
    assert kinds(checked(PASS, {"x": [1, 60000, 3.4e38]})) == {"i": "intended", "n": "intended"}


def test_only_the_batch_with_the_hidden_overflow_is_an_exception() -> None:
    rows = [[1, 2, -3.4e38]] * 3 + [[-70000, 1, -3.4e38]] + [[3, 4, -3.4e38]]
    feeds = [{"x": np.array(row, np.float32)} for row in rows]
    report = mixlist.check(model(PASS), policy(white=LOW), feeds)
    assert report.exception_rate == 0.2
    assert {(n.name, n.kind): n.batches for n in report.nodes if not n.input} == {
        ("i", "overflow"): (3,),
        ("i", "intended"): (0, 1, 2, 4),
        ("n", "propagated"): (3,),
        ("n", "intended"): (0, 1, 2, 4),
    }


def test_hidden_overflows_in_a_loop() -> None:
    text = """g (float[3] x, int64 m) => (float[3] y) <bool go = {1}, float[1] ten = {10}> {
      [l] y = Loop(m, go, x) <body = b (int64 i, bool c, float[3] s) => (bool c, float[3] t) { [grow] t = Mul(s, ten) }>
    }"""

    def kinds_of(x: list[float]) -> dict[str, str]:
        feed = {"x": np.array(x, np.float32), "m": np.array(2)}
        return kinds(mixlist.check(model(text), policy(white=LOW), [feed]))

    assert kinds_of([1, 2, -INF]) == {"l/body/grow": "preexisting"}
    assert kinds_of([1, 40000, -INF]) == {"l/body/grow": "overflow"}


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_a_mask_that_saturates_is_intended_too(mode: str) -> None:
    assert kinds(checked(PASS, {"x": [1, 2, -3.4e38]}, overflow_mode=mode))["i"] == "intended"
    kind = {"inf": "overflow", "saturate": "saturated"}[mode]
    assert kinds(checked(PASS, {"x": [1, -70000, -3.4e38]}, overflow_mode=mode))["i"] == kind
    assert kinds(checked(PASS, {"x": [1, -70000, -INF]}, overflow_mode=mode))["i"] == kind


def test_a_nan_that_a_mask_causes_is_an_overflow() -> None:
    """The softmax of a row with only masked scores is uniform in float32, and NaN in float16."""
    text = """g (float[1,3] x, bool[1,3] b) => (float[1,3] y) <float k = {-3.4e38}, float z = {0}> {
      [w] w = Where(b, z, k) [a] a = Add(x, w) [s] y = Softmax(a) }"""
    feed = {"x": [[1, 2, 3]], "b": [[False, False, False]]}
    report = checked(text, feed, constants="keep")
    assert kinds(report)["s"] == "overflow" and kinds(report)["a"] == "intended" and report.verdict == "fail"
    assert [n.name for n in report.nodes if n.first] == ["s"]


# --- constants below 1e37 that only the graph proves to be masks ---

# The graphs that apply a mask k to the scores x where b is false.
MASK_GRAPHS = {
    "where": "[w] w = Where(b, zero, k) [a] a = Add(x, w) [s] y = Softmax(a)",
    "where of scores": "[w] w = Where(b, x, k) [s] y = Softmax(w)",
    "product": "f = Cast<to=1>(b) [m] o = Sub(one, f) [w] w = Mul(o, k) [a] a = Add(x, w) [s] y = Softmax(a)",
    "moved": "[w] w = Where(b, zero, k) [u] u = Identity(w) [a] a = Add(u, x) [e] e = Add(a, x) [s] y = Softmax(e)",
    "greatest": "[w] w = Where(b, zero, k) [a] a = Add(x, w) [l] l = Max(a, k) [s] y = Softmax(l)",
}
HEAD = "g (float[1,4] x, bool[1,4] b) => (float[1,4] y) <float k = {MASK}, float zero = {0}, float one = {1}> "


def masked(graph: str, mask: str, x: list[float], keep: int = 3, **options: Any) -> CheckReport:
    text = f"{HEAD.replace('MASK', mask)}{{ {MASK_GRAPHS.get(graph, graph)} }}"
    return checked(text, {"x": [x], "b": [[True] * keep + [False] * (4 - keep)]}, **options)


@pytest.mark.parametrize("mask", ["-1e9", "-1e6", "-1e4", "-65504", "-1e30", "-3.4e38"])
@pytest.mark.parametrize("graph", MASK_GRAPHS)
def test_the_usual_masks_are_intended(graph: str, mask: str) -> None:
    report = masked(graph, mask, [1.0, -200.0, 300.0, -300.0])
    assert set(kinds(report).values()) <= {"intended"} and report.exception_rate == 0
    assert report.verdict == "pass"  # the softmax does not change


@pytest.mark.parametrize("graph", ["where", "where of scores", "product", "moved"])
def test_a_row_of_masked_scores_overflows(graph: str) -> None:
    report = masked(graph, "-1e9", [1.0, 2.0, 3.0, 4.0], keep=0)
    assert kinds(report)["s"] == "overflow" and report.verdict == "fail"


@pytest.mark.parametrize("mask", ["-1e9", "-65504"])
@pytest.mark.parametrize("graph", ["where", "product"])
def test_scores_that_overflow_next_to_a_proven_mask_are_found(graph: str, mask: str) -> None:
    adds = MASK_GRAPHS[graph].replace("Add(x, w)", "Add(h, w)")
    report = masked(f"[g] g = Mul(x, x) [h] h = Neg(g) {adds}", mask, [1.0, 2.0, 300.0, 4.0])
    assert kinds(report)["g"] == "overflow" and kinds(report)["a"] == "propagated"
    high = masked(f"[h] h = ReduceSum<keepdims=1>(x) {adds}", mask, [-30000.0, -30000.0, -30000.0, 4.0])
    assert kinds(high)["a"] == "overflow"  # the sum is high, and its -89996 is cast where it is added


@pytest.mark.parametrize(
    "text",
    [
        "[w] w = Where(b, zero, k) [a] y = Add(x, w)",  # an output of the model
        "[w] w = Where(b, zero, k) [a] a = Add(x, w) [s] s = Softmax(a) [r] y = Mul(a, s)",  # a second reader
        "[w] w = Where(b, zero, k) [a] a = Add(x, w) [s] y = Relu(a)",
        "[a] a = Add(x, x) [w] w = Mul(a, k) [s] y = Softmax(w)",  # a factor that is no mask
    ],
)
def test_a_large_constant_that_is_no_mask_is_an_overflow(text: str) -> None:
    report = masked(text, "-1e9", [1.0, 2.0, 3.0, 4.0])
    assert "overflow" in kinds(report).values() and report.exception_rate == 1


def test_bfloat16_holds_masks_below_its_range() -> None:
    assert kinds(masked("where", "-1e9", [1.0, 2.0, 3.0, 4.0], mode="mixed_bfloat16")) == {}
    assert kinds(masked("where", "-3.4028234e38", [1.0, 2.0, 3.0, 4.0], mode="mixed_bfloat16"))["a"] == "intended"


@pytest.mark.parametrize("mask", ["-1e9", "-3.4e38", "-inf"])
@pytest.mark.parametrize(("size", "counted"), [(300.0, False), (70000.0, True)])
def test_values_are_counted_only_if_a_mask_may_hide_an_overflow(
    monkeypatch: pytest.MonkeyPatch, mask: str, size: float, counted: bool
) -> None:
    """Small scores cannot overflow next to a proven mask, so no further run is needed."""
    count_calls: list[object] = []
    count = HiddenValueCounter.count
    monkeypatch.setattr(
        HiddenValueCounter, "count", lambda self, *args: (count_calls.append(args), count(self, *args))[1]
    )
    report = masked(
        "[w] w = Where(b, zero, k) [h] h = Abs(x) [a] a = Sub(w, h) [s] y = Softmax(a)", mask, [size, 1, 1, 1]
    )
    assert bool(count_calls) == counted
    assert ("overflow" in kinds(report).values()) == counted


def test_a_session_counts_a_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion, an overflow and an infinity of the reference need the same counts."""
    runs: list[tuple[CountingSession, int]] = []
    feeds = [{"x": np.array([1, 70000, INF], np.float32)} for _ in range(3)]
    count = CountingSession.count

    def record(session: CountingSession, feed: Any) -> Any:
        runs.append((session, id(feed["x"])))
        return count(session, feed)

    monkeypatch.setattr(CountingSession, "count", record)
    report = mixlist.check(model(PASS), policy(white=LOW), feeds)
    assert report.exception_rate == 1
    assert runs and len(runs) == len(set(runs))


def test_value_movers_carry_a_proven_mask() -> None:
    """Rule S8.12: A mask is proven from the graph."""
    text = f"{HEAD.replace('MASK', '-1e9')}{{ {MASK_GRAPHS['moved']} }}"
    masks = find_masks(build_graph(model(text)))
    assert {tensor.node: mask.levels.negative for tensor, mask in masks.items()} == {
        "w": 5e8,
        "u": 5e8,
        "a": 5e8,
        "e": 5e8,
    }


SOFTMAX = (
    "g (float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, bool[1,1,3,3] keep) => (float[1,2,3,8] y) "
    "<float zero = {0}, float low = {-3.4e38}> { [w] m = Where(keep, zero, low) [t] t = Transpose<perm=[0,1,3,2]>(k) "
    "[s] s = MatMul(q, t) [a] a = Add(s, m) [p] p = Softmax(a) [y] y = MatMul(p, v) }"
)
ATTENTION_LOW = ["Attention", "MultiHeadAttention", "GroupQueryAttention", "Softmax", "MatMul", "Add", "Where"]
BODIES = {**ATTENTIONS, "Softmax": SOFTMAX}
PROTECTED = {"protect": ["masks"]}


def attention_case(name: str, number: str, row: list[bool], largest: float = 3) -> tuple[Any, dict[str, np.ndarray]]:
    """Return an attention whose second query may read the keys ``row``, and data; ``largest`` scales its values."""
    network = attention(BODIES[name].replace("-3.4e38", number))
    rng = np.random.default_rng(0)
    feed: dict[str, np.ndarray] = {"keep": np.array([[[[1, 1, 0], row, [1, 1, 1]]]], bool)}
    for value in network.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == 1:
            feed[value.name] = (rng.standard_normal(shape) * (largest if value.name in "vx" else 0.5)).astype("f4")
    feed |= {"s": np.array([2], np.int32), "t": np.array(3, np.int32)} if name.startswith("Group") else {}
    return network, feed


@pytest.mark.parametrize(
    "number, row, largest, lists, expected",
    [
        ("-3.4e38", [0, 0, 0], 3, PROTECTED, "pass"),  # float32 hides the scores of the row, the reduced mask does not
        ("-1e9", [0, 0, 0], 3, PROTECTED, "pass"),
        ("-1e9", [0, 1, 1], 3, {"constants": "ieee"}, "pass"),  # -infinity
        ("-3.4e38", [0, 0, 0], 1e5, PROTECTED, "fail"),  # the values overflow
        ("-3.4e38", [0, 0, 0], 3, {"constants": "ieee"}, "fail"),  # NaN or zeros
    ],
)
@pytest.mark.parametrize("name", BODIES)
def test_a_row_that_is_masked_whole_is_no_accuracy_failure(
    name: str, number: str, row: list[bool], largest: float, lists: dict[str, Any], expected: str
) -> None:
    """Rule S8.12: before a Softmax and in a fused attention."""
    network, feed = attention_case(name, number, row, largest)
    report = mixlist.check(network, policy(white=ATTENTION_LOW, **lists), [feed])
    assert report.verdict == expected
    if largest == 3 and lists != PROTECTED:
        assert kinds(report)["w"] == "intended"


def test_a_small_mask_leaves_the_scores_in_both_models() -> None:
    """Rule S8.12: -1e5 becomes -32752, and float32 adds the scores to both."""
    network, feed = attention_case("Attention-23", "-1e5", [False] * 3)
    assert mixlist.check(network, policy(white=ATTENTION_LOW, **PROTECTED), [feed]).verdict == "pass"


def test_convert_keeps_a_row_that_is_masked_whole_low() -> None:
    """Rule S8.12: a trial rounds like the check."""
    network, feed = attention_case("Attention-23", "-3.4e38", [False] * 3)
    assert mixlist.convert(network, [feed]).report.verdict == "pass"


def test_an_attention_that_reads_a_mask_as_values_proves_nothing() -> None:
    text = ATTENTIONS["Attention-23"].replace("k, v, m)", "k, m, m)")
    assert not find_masks(build_graph(attention(text)))
