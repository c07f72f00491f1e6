"""The gated graph against the emulation of the rewritten model: bit for bit, for random graphs, policies and edits.

Both run without graph optimisations, on one thread, so each node computes the same from the same inputs. Nothing is
left out of the comparison but models that ONNX Runtime does not load (two nodes of one name).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from mixlist.emulation.emulate import emulate, raise_to_float32
from mixlist.graph.refs import NodeRef
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.rewriter import rewrite
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions
from mixlist.tuner.candidates import Candidate, EditSet, edit_policy, find_list_candidates, find_node_candidates
from mixlist.tuner.graph_partition import split_graph
from mixlist.tuner.trial_compiler import TrialCompiler
from tests.support.builders import model, policy
from tests.support.graphs import Case, cases
from tests.support.scopes import View

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "125"))
PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes: each try makes six sessions
    suppress_health_check=list(HealthCheck),
)


class Plain:
    """A graph in a session without optimisations: fed with what it declares."""

    def __init__(self, proto: Any) -> None:
        numpy_type = onnx.helper.tensor_dtype_to_np_dtype
        self.kinds = {i.name: numpy_type(i.type.tensor_type.elem_type) for i in proto.graph.input}
        self.runner = LocalSession(make_session(proto, SessionOptions(optimize=False, threads=1)))

    def run(self, names: tuple[str, ...], feed: Mapping[str, Any]) -> list[Any]:
        return self.runner.run(names, {n: np.asarray(v, self.kinds[n]) for n, v in feed.items() if n in self.kinds})


class Bench:
    """A compiler, its gated graph in a plain session, and the comparison."""

    def __init__(self, proto: onnx.ModelProto, rules: Policy, feed: Mapping[str, Any], saturate: bool = False) -> None:
        self.compiler = TrialCompiler(Resolver(proto), rules, [feed], (), saturate=saturate)
        self.feed, self.saturate = feed, saturate
        self.compiler.add_gates(frozenset())
        self.builds = 0
        self.session: Plain | None = None
        self.token = ""

    def gated(self, flags: bytes) -> list[Any]:
        compiler = self.compiler
        assert compiler.gated_graph is not None
        if self.token != compiler.token:
            (self.whole,) = split_graph(compiler.gated_graph, ())
            self.session = Plain(onnx.ModelProto.FromString(self.whole.model))
            self.token, self.builds = compiler.token, self.builds + 1
        count = len(compiler.gated_graph.gates)
        bits = np.unpackbits(np.frombuffer(flags, np.uint8), count=count).astype(bool)
        assert self.session is not None
        given = {**self.feed, self.whole.flags_input: bits[list(self.whole.gates)]}
        return self.session.run(compiler.gated_graph.output_names[: len(compiler.output_names)], given)

    def mixed(self, choice: EditSet) -> list[Any]:
        plan = self.compiler.resolver.plan(edit_policy(self.compiler.base, choice))
        made = rewrite(plan.solution.loaded, plan)
        proto = emulate(replace(self.compiler.resolver.loaded, proto=made.proto), saturate=self.saturate)
        return Plain(proto).run(self.compiler.output_names, self.feed)

    def compare(self, choice: EditSet) -> None:
        same(self.gated(self.compiler.build_flags(choice)), self.mixed(choice), f"choice {sorted(map(str, choice))}")

    def compare_reference(self) -> None:
        exact = Plain(raise_to_float32(self.compiler.resolver.loaded)).run(self.compiler.output_names, self.feed)
        same(self.gated(self.compiler.build_flags(None)), exact, "no flags")

    def candidates(self, after: str = "black") -> tuple[Candidate, ...]:
        low = self.compiler.low_nodes(frozenset()) if after == "black" else None
        return find_list_candidates(self.compiler.solution(frozenset()), self.compiler.base, after, low)

    def nodes(self) -> tuple[Candidate, ...]:
        return find_node_candidates(self.compiler.solution(frozenset()), self.compiler.low_nodes(frozenset()))

    def close(self) -> None:
        self.compiler.close()


def same(ours: list[Any], theirs: list[Any], what: str) -> None:
    """Equal to the bit; NaN is NaN."""
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"{what}: output {at}", strict=True)
        if isinstance(one, np.ndarray) and one.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(one) & ~np.isnan(one), np.signbit(other) & ~np.isnan(other))


def loads(proto: onnx.ModelProto) -> bool:
    try:
        Plain(proto)
    except Exception:
        return False
    return True


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Case, Policy]:
    """A model, and a policy with lists that names some of its op types."""
    case = draw(cases())
    types = sorted({node.op_type for scope in View(case.model).scopes() for node in scope.nodes})
    lists = {op: draw(st.sampled_from(["gray", "white", "black", "white", "gray"])) for op in types}
    return case, policy(
        white=[op for op in types if lists[op] == "white"],
        black=[op for op in types if lists[op] == "black"],
        mode=draw(st.sampled_from(["mixed_float16"] * 3 + ["mixed_bfloat16"])),
        gray_policy=draw(st.sampled_from(["ascend", "ascend", "between", "black-wins", "promote"])),
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=draw(st.sampled_from([[], ["masks", "positions"]])),
    )


def subset(data: st.DataObject, units: tuple[Candidate, ...]) -> EditSet:
    return frozenset(u.edit for u in units if data.draw(st.booleans()))


@PROFILE
@given(jobs(), st.booleans(), st.sampled_from([1.0, 1.0, 300.0, 1e5]), st.data())
def test_gates_round_as_the_emulation_does(
    job: tuple[Case, Policy], saturate: bool, scale: float, data: st.DataObject
) -> None:
    case, rules = job
    assume("duplicate node name" not in case.features and loads(case.model))
    feed = {n: v * np.asarray(scale, v.dtype) if v.dtype == np.float32 else v for n, v in case.feeds().items()}
    bench = Bench(case.model, rules, feed, saturate)
    try:
        bench.compare(frozenset())
        bench.compare_reference()
        black, nodes, white = bench.candidates(), bench.nodes(), bench.candidates("white")
        for _ in range(2):
            bench.compare(subset(data, black))
            bench.compare(subset(data, (*black, *nodes)))
        assert bench.builds == 1, "what keeps nodes high needs no other graph"
        bench.compare(subset(data, white))
    finally:
        bench.close()


# --- one by one, what the random models found or do not hold ---

X = {"x": np.array([[0.1, -2.3, 700.7, 3.0]], np.float32), "c": np.array(True)}


def gates(text: str | onnx.ModelProto, feed: Mapping[str, Any] = X, **lists: Any) -> Bench:
    """Compare every single edit, all of them, none, and everything white."""
    proto = model(text) if isinstance(text, str) else text
    held = {tensor.name for tensor in proto.graph.initializer}
    bench = Bench(proto, policy(**lists), {i.name: feed[i.name] for i in proto.graph.input if i.name not in held})
    try:
        bench.compare(frozenset())
        bench.compare_reference()
        units = (*bench.candidates(), *bench.nodes())
        for unit in units:
            bench.compare(frozenset([unit.edit]))
        bench.compare(frozenset(u.edit for u in units))
        assert bench.builds == 1
        bench.compare(frozenset(u.edit for u in bench.candidates("white")))
    finally:
        bench.close()
    return bench


def test_what_is_rounded_already_is_not_rounded_again() -> None:
    """The base turns on gates that round no input but the first node's; behind a high node another gate does."""
    bench = Bench(
        model("g (float[1,4] x) => (float[1,4] y) { [a] a = Mul(x, x) [b] b = Exp(a) [n] y = Sqrt(b) }"),
        policy(white=["Mul", "Exp", "Sqrt"]),
        {"x": X["x"]},
    )
    try:
        for choice, inputs in (
            (frozenset[Any](), {"a": (10, 10), "b": (0,), "n": (0,)}),
            (None, {"b": (10,), "n": (0,)}),
        ):
            chosen = frozenset(u.edit for u in bench.nodes() if u.nodes[0].name == "a") if choice is None else choice
            flags = bench.compiler.build_flags(chosen)
            gated = bench.compiler.gated_graph
            assert gated is not None
            on = np.unpackbits(np.frombuffer(flags, np.uint8), count=len(gated.gates)).astype(bool)
            rounded = {
                point.node.name: what.inputs for (point, what), is_on in zip(gated.gates, on, strict=True) if is_on
            }
            assert rounded == inputs
            bench.compare(chosen)
    finally:
        bench.close()


def opset(number: int) -> str:
    return f'<ir_version: {4 if number < 12 else 8}, opset_import: ["" : {number}]> '


@pytest.mark.parametrize("number", [11, 12, 13, 17, 21])
def test_sequences(number: int) -> None:
    """An If hands out sequences since opset 16 alone."""
    gates(
        opset(number)
        + """g (float[1,4] x) => (float[1,4] y, float[2,4] z) <int64 one = {1}> { [a] a = Mul(x, x)
      [s] s = SequenceConstruct(a, x) [t] y = SequenceAt(s, one) [j] j = ConcatFromSequence<axis = 0>(s)
      [n] z = Neg(j) }""",
        white=["Mul", "SequenceConstruct", "Neg"],
    )


@pytest.mark.parametrize("number", [9, 10, 11, 13, 18, 21])
def test_branches_at_every_opset(number: int) -> None:
    gates(
        opset(number)
        + """g (float[1,4] x, bool c) => (float[1,4] y) <float[1,4] k = {0.1,0.2,0.3,0.4}> { [a] a = Mul(x, k)
      [i] i = If(c) <then_branch = t () => (float[1,4] p) { [b] q = Exp(k) [d] p = Add(a, q) },
                     else_branch = e () => (float[1,4] r) { [e] r = Neg(a) }> [f] y = Mul(i, k) }""",
        white=["Mul", "Exp", "Add"],
    )


def test_a_name_that_a_gate_takes_away() -> None:
    """The unnamed Mul is Mul_1 because another node is called Mul_0, also when that has become an If."""
    gates("g (float[1,4] x) => (float[1,4] y) { [Mul_0] a = Mul(x, x) [] b = Mul(a, x) [n] y = Exp(b) }", white=["Mul"])


@pytest.mark.parametrize("declared", ["float16", "float"])
def test_outputs_keep_their_types(declared: str) -> None:
    """A graph output that is declared float16 is rounded, though a rule makes its node float32."""
    kind = 10 if declared == "float16" else 1
    gates(
        f"g (float[1,4] x) => ({declared}[1,4] y, {declared}[1,4] y) {{ [m] m = Mul(x, x) [h] h = Cast<to={kind}>(m)"
        " [a] y = Add(h, h) }",
        white=["Mul", "Add"],
    )


def test_authored_in_float16() -> None:
    feed = {"x": X["x"].astype(np.float16)}
    text = """g (float16[1,4] x) => (float16[1,4] y) <float16[1,4] k = {1,2,3,4}, float[1,4] w = {0.1,0.2,0.3,0.4}>
      { [m] m = Mul(x, k) [h] h = Cast<to=1>(m) [s] s = Mul(h, w) [l] l = Cast<to=10>(s) [a] y = Add(l, m) }"""
    for mode in ("mixed_float16", "mixed_bfloat16"):
        gates(text, feed, white=["Mul", "Add"], mode=mode)


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_constants_of_every_kind(constants: str, mode: str) -> None:
    """Initializers large and small, out of range, overridable; Constant nodes with each attribute; sparse ones."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y, float[1,4] z)
      <float[4] k = {0.1,1e6,1e-9,-70000}, float e = {1e-9}> {
      [v] v = Constant<value_float=0.1>() [f] f = Constant<value_floats=[0.1,0.2,0.3,0.4]>()
      [t] t = Constant<value = float[4] {0.1,0.2,0.3,1e5}>() [i] i = Constant<value_int=2>() [j] j = Cast<to=1>(i)
      [a] a = Mul(x, v) [b] b = Mul(a, f) [d] d = Mul(b, t) [g] g = Mul(d, k) [h] h = Add(g, e) [y] y = Add(h, j)
      [z] z = Mul(a, t) }"""
    gates(text, white=["Mul", "Add"], constants=constants, mode=mode)


def test_large_constants_are_rounded_once() -> None:
    """In the main graph, read in a branch, by two nodes, and by a function.

    The sums are exact, whatever their order: ONNX Runtime multiplies a weight of the node's own graph in another one.
    """
    numbers = ",".join(str(1 + i / 2**12) for i in range(2048))
    bench = gates(
        f"""<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[1,4] x, bool c) => (float[1,512] y)
      <float[4,512] w = {{{numbers}}}> {{ [a] a = MatMul(x, w)
      [i] b = If(c) <then_branch = t () => (float[1,512] p) {{ [b] p = MatMul(x, w) }},
                     else_branch = e () => (float[1,512] q) {{ [d] q = f.F(x, w) }}> [s] y = Add(a, b) }}
      <domain: "f", opset_import: ["" : 17]> F (x, w) => (y) {{ [m] y = MatMul(x, w) }}""",
        white=["MatMul", "Add"],
    )
    assert bench.compiler.gated_graph is not None
    weights = [t.name for t in bench.compiler.gated_graph.proto.graph.initializer if list(t.dims) == [4, 512]]
    assert weights == ["w", "w_float16"]


@pytest.mark.parametrize(("ir_version", "inputs"), [(3, ["x"]), (8, ["x", "w"])])
def test_initializers_that_are_inputs_are_constants_before_ir_version_4(ir_version: int, inputs: list[str]) -> None:
    """From then on a run may be given others. (Of what is no constant ONNX Runtime folds nothing.)"""
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] w = {0.1,1e6,1e-9,-7e4}> { [a] a = Mul(x, w) [y] y = Neg(a) }"
    proto = model(f'<ir_version: {ir_version}, opset_import: ["" : 8]> {text}', check=False)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))
    bench = gates(proto, white=["Mul", "Neg"])
    assert bench.compiler.gated_graph is not None
    assert [each.name for each in bench.compiler.gated_graph.proto.graph.input] == inputs


def test_a_function_called_several_times_is_gated_for_each_call() -> None:
    bench = gates(
        """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[1,4] x) => (float[1,4] y, float[1,4] z) {
      [one] a = f.Square(x) [w] b = Exp(x) [two] c = f.Twice(b) [s] y = Add(a, c) [three] z = f.Square(y) }
      <domain: "f", opset_import: ["" : 17]> Square (a) => (c) { [sq] b = Mul(a, a) [pass] c = Neg(b) }
      <domain: "f", opset_import: ["" : 17, "f" : 1]> Twice (a) => (c) {
        [one] b = f.Square(a) [two] c = f.Square(b) }""",
        {"x": X["x"] / 100},
        white=["Exp", "Add"],
    )
    assert bench.compiler.gated_graph is not None
    calls = {point.calls for point, _ in bench.compiler.gated_graph.gates if point.node.name == "sq"}
    two = NodeRef("", "two")
    one, other = NodeRef("function:f:Twice", "one"), NodeRef("function:f:Twice", "two")
    assert {(two, one), (two, other), (NodeRef("", "three"),)} <= calls


def test_loops_and_scans() -> None:
    feed = {"x": X["x"], "n": np.array(3)}
    gates(
        """g (float[1,4] x, int64 n) => (float[1,4] y, float[k,1,4] all, float[1,4] s, float[1,4] t)
      <bool go = {1}, float h = {0.3}> { [m] m = Mul(x, h)
      [l] y, all = Loop(n, go, m) <body = b (int64 i, bool c, float[1,4] s) => (bool c, float[1,4] t, float[1,4] u) {
         [g] t = Mul(s, h) [u] u = Exp(m) }>
      [z] s, t = Scan<num_scan_inputs=1, body = d (float[1,4] p, float[4] q) => (float[1,4] r, float[4] w) {
         [a] r = Add(p, q) [b] w = Neg(q) }>(y, x) }""",
        feed,
        white=["Mul", "Exp", "Add"],
    )


LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
  <float[4] w = {0.1,0.3,1e6,1e-9}, float[4] v = {0.1,0.2,0.3,0.4}, int64 n = {3}, bool go = {1}> {
  [l] y, a, b, c = Loop(n, go, x, w, v, x) <body = body
    (int64 i, bool on, float[1,4] s, float[4] k, float[4] m, float[1,4] z)
    => (bool more, float[1,4] t, float[4] k, float[4] o, float[1,4] z) {
      [more] more = Identity(on) [p] p = Mul(s, k) [q] q = Mul(p, m) [o] o = Add(m, m) [t] t = Mul(q, z) }> }"""


def test_a_weight_that_a_loop_hands_on_is_rounded_once() -> None:
    """Not one that the loop changes, nor one that is no constant; beyond the range it becomes infinite, as computed."""
    bench = gates(LOOP, white=["Mul"], constants="clamp")
    assert bench.compiler.gated_graph is not None
    assert [t.name for t in bench.compiler.gated_graph.proto.graph.initializer if t.name.startswith(("w_", "v_"))] == [
        "w_float16"
    ]


@pytest.mark.parametrize("gray_policy", ["ascend", "black-wins", "promote"])
def test_a_weight_in_float16_that_a_loop_hands_on_to_a_cast(gray_policy: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
      <float16[4] w = {1,2,3,4}, int64 n = {3}, bool go = {1}> {
      [l] y, a = Loop(n, go, x, w) <body = body (int64 i, bool on, float[1,4] s, float16[4] k)
        => (bool more, float[1,4] t, float16[4] k) {
          [more] more = Identity(on) [ca] c = Cast<to=1>(k) [p] p = Mul(s, c) [t] t = Add(p, c) }> }"""
    gates(text, white=["Mul"], gray_policy=gray_policy)


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16", "fp16"])
def test_a_weight_that_is_converted_on_its_way_into_a_loop(mode: str, constants: str) -> None:
    gates(LOOP, white=["Mul", "Add"], mode=mode, constants=constants)


def test_outputs_that_nobody_wants_and_inputs_left_out() -> None:
    gates(
        """g (float[1,4] x) => (float[1,2] y, float[1,4] z, float[1,4] d) <float hi = {50.5}, int64[2] h = {2,2}> {
      [s] y, unused = Split<axis = 1>(x, h) [c] z = Clip(x, , hi) [o] d, mask = Dropout(x) }""",
        white=["Split", "Clip", "Dropout"],
    )
    gates(
        "g (float[1,4] x) => (float[1,2] v, int64[1,2] i) <int64[1] k = {2}> { [t] v, i = TopK(x, k) }", white=["TopK"]
    )


def test_integers_booleans_and_strings_pass_by() -> None:
    feed = {"x": X["x"], "n": np.array([[1, 2, 3, 4]], np.int64), "s": np.array(["a", "b"]), "d": X["x"].astype(float)}
    gates(
        """g (float[1,4] x, int64[1,4] n, string[2] s, double[1,4] d) => (float[1,4] y, string[2] t, int64[1,4] k,
      double[1,4] e) { [m] m = Mul(x, x) [f] f = Cast<to=1>(n) [g] g = Greater(m, f) [w] y = Where(g, m, f)
      [t] t = Identity(s) [k] k = Add(n, n) [e] e = Mul(d, d) }""",
        feed,
        white=["Mul", "Where", "Add", "Identity", "Greater"],
    )
