"""Compare the gated graph of a search with the emulation of the rewritten model, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.checker.intended_infinities import find_absorbing_softmaxes
from mixlist.decide import Resolver
from mixlist.lists.policy import Mode
from mixlist.model.naming import node_ref
from mixlist.search.candidates import Candidate, find_list_candidates, find_node_candidates
from mixlist.search.edits import EditSet, NodeEdit
from mixlist.search.gated_graph import split_graph
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.write import rewrite
from tests.support.builders import policy
from tests.support.graphs import Case, cases
from tests.support.local_sessions import make_session
from tests.support.package import GRAY_POLICIES, LocalSession, SessionOptions, edit_policy, emulate
from tests.support.scopes import View

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "30"))
PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes: each try makes six sessions
    suppress_health_check=list(HealthCheck),
)


class PlainSession:
    """A session without graph optimizations, which converts its feeds to the declared types."""

    def __init__(self, proto: Any) -> None:
        numpy_type = onnx.helper.tensor_dtype_to_np_dtype
        self.input_types = {i.name: numpy_type(i.type.tensor_type.elem_type) for i in proto.graph.input}
        self.session = LocalSession(make_session(proto, SessionOptions(optimize=False, threads=1)))

    def run(self, names: tuple[str, ...], feed: Mapping[str, Any]) -> list[Any]:
        return self.session.run(
            names, {n: np.asarray(v, self.input_types[n]) for n, v in feed.items() if n in self.input_types}
        )


class GateComparison:
    """Compare a gated graph with the emulation of rewritten models; ``builds`` counts the built graphs.

    ``segment_bytes``: if it is given, the branches of the gated graph round the weights in each run.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        rules: Policy,
        feed: Mapping[str, Any],
        saturate: bool = False,
        segment_bytes: int | None = None,
    ) -> None:
        self.compiler = TrialCompiler(
            Resolver(proto), rules, [feed], (), saturate=saturate, segment_bytes=segment_bytes
        )
        self.feed, self.saturate = feed, saturate
        self.compiler.add_gates(frozenset())
        self.builds = 0
        self.session: PlainSession | None = None
        self.token = ""

    def run_gated(self, flags: bytes) -> list[Any]:
        compiler = self.compiler
        assert compiler.gated_graph is not None
        if self.token != compiler.token:
            (self.segment,) = split_graph(compiler.gated_graph, ())
            self.session = PlainSession(onnx.ModelProto.FromString(self.segment.model))
            self.token, self.builds = compiler.token, self.builds + 1
        count = len(compiler.gated_graph.gates)
        bits = np.unpackbits(np.frombuffer(flags, np.uint8), count=count).astype(bool)
        assert self.session is not None
        feed = {**self.feed, self.segment.flags_input: bits[list(self.segment.gates)]}
        return self.session.run(compiler.gated_graph.output_names[: len(compiler.output_names)], feed)

    def run_mixed(self, edits: EditSet) -> list[Any]:
        plan = self.compiler.resolver.plan(edit_policy(self.compiler.base, edits))
        rewritten = rewrite(plan.solution.loaded, plan)
        resolver = self.compiler.resolver
        absorbing = find_absorbing_softmaxes(resolver.graph)
        loaded = resolver.loaded._replace(proto=rewritten.proto)
        proto = emulate(loaded, saturate=self.saturate, absorbing=absorbing)
        return PlainSession(proto).run(self.compiler.output_names, self.feed)

    def compare(self, edits: EditSet) -> None:
        assert_same_values(
            self.run_gated(self.compiler.build_flags(edits)), self.run_mixed(edits), f"edits {sorted(map(str, edits))}"
        )

    def compare_reference(self) -> None:
        """Compare the reference of the trials, which rounds what the author rounds: Rule S8.1."""
        authored = emulate(self.compiler.resolver.loaded, saturate=self.saturate)
        exact = PlainSession(authored).run(self.compiler.output_names, self.feed)
        assert_same_values(self.run_gated(self.compiler.build_flags(None)), exact, "no flags")

    def candidates(self) -> tuple[Candidate, ...]:
        low = self.compiler.low_nodes(frozenset())
        return find_list_candidates(self.compiler.solution(frozenset()), self.compiler.base, low)

    def lowering_candidates(self) -> tuple[Candidate, ...]:
        """Return an edit that makes a node low for each node that can be, as those of ``convert``."""
        compiler = self.compiler
        low_name = compiler.base.mode.low
        all_low = compiler.resolver.solve(replace(compiler.base, mode=Mode("fp16", "force", low_name)))
        # A node may round what it reads although its own types are refused.
        assignments = {node_ref(node): all_low.assignments[node.id] for node in all_low.graph.nodes}
        points = compiler.planner.find_roundings(all_low)
        nodes = {
            p.node for p in points if p.slot < 0 and all_low.low_type in getattr(assignments[p.node], "elements", ())
        }
        candidates = []
        for candidate in find_node_candidates(compiler.solution(frozenset()), nodes):
            assert isinstance(candidate.edit, NodeEdit)
            inputs, outputs = (
                tuple(low_name if name else "" for name in names)
                for names in (candidate.edit.inputs, candidate.edit.outputs)
            )
            candidates.append(candidate._replace(edit=replace(candidate.edit, inputs=inputs, outputs=outputs)))
        return tuple(candidates)

    def nodes(self) -> tuple[Candidate, ...]:
        return find_node_candidates(self.compiler.solution(frozenset()), self.compiler.low_nodes(frozenset()))

    def close(self) -> None:
        self.compiler.close()


def assert_same_values(results: list[Any], expected: list[Any], context: str) -> None:
    """Check that arrays are equal bit by bit, where all NaN are equal and 0 is not -0."""
    for index, (result, expected_value) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_array_equal(result, expected_value, err_msg=f"{context}: output {index}", strict=True)
        if isinstance(result, np.ndarray) and result.dtype.kind == "f":
            np.testing.assert_array_equal(
                np.signbit(result) & ~np.isnan(result), np.signbit(expected_value) & ~np.isnan(expected_value)
            )


def is_loadable(proto: onnx.ModelProto) -> bool:
    try:
        PlainSession(proto)
    except Exception:
        return False
    return True


@st.composite
def models_and_policies(draw: st.DrawFn) -> tuple[Case, Policy]:
    """Draw a model, and a policy whose lists name some of its op types."""
    case = draw(cases())
    types = sorted({node.op_type for scope in View(case.model).scopes() for node in scope.nodes})
    lists = {op: draw(st.sampled_from(["gray", "white", "black", "white", "gray"])) for op in types}
    return case, policy(
        white=[op for op in types if lists[op] == "white"],
        black=[op for op in types if lists[op] == "black"],
        mode=draw(st.sampled_from(["mixed_float16"] * 3 + ["mixed_bfloat16"])),
        gray_policy=draw(st.sampled_from(["ascend", *GRAY_POLICIES])),
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=draw(st.sampled_from([[], ["masks", "positions"]])),
    )


def draw_edits(data: st.DataObject, candidates: tuple[Candidate, ...]) -> EditSet:
    return frozenset(candidate.edit for candidate in candidates if data.draw(st.booleans()))
