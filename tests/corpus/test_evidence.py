"""Verdicts on poor data are those that a person would give.

One batch of a real model is made worse: all its float inputs are NaN, one value is NaN, it has no sample, or all rows
of its attention mask are zero. The expected verdict follows from the verdict on the unchanged batch, and from ONNX
Runtime's own run of the original in another process: which outputs are NaN, or that the batch is refused or crashes the
process. No expected verdict is stored.

``make campaign`` judges all models of models.json under all built-in libraries; the tests, the quick ones under two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import CheckReport, NodeFinding
from mixlist.errors import ModelError
from mixlist.lists import presets

from . import worker
from .conftest import CAMPAIGN, SELECTED, Corpus
from .feeds import feeds

Feed = dict[str, Any]
QUICK = ["oww_melspectrogram", "silero_vad_16k_sequence", "nsnet2_16k"]
LIBRARIES = presets.names() if CAMPAIGN else ["onnx", "mindspore-o3"]
GRAY_POLICIES = {"tensorflow": "between", "pytorch": "promote"}  # of the others: ascend
DEFAULT_SHARE = 0.5  # of an output that may be ignored
# The axis of the batch, or of the length of a sequence or picture, by input. Other inputs keep their values.
FIRST = {
    "basic_pitch": {"serving_default_input_2:0": 0},
    "ddddocr_common_old": {"input1": 3},
    "hibari_tts": {"ids": 1},
    "magika": {"bytes": 0},
    "minimol": dict.fromkeys(("feat", "edge_feat", "laplacian_eigvec", "laplacian_eigval", "rw_return_probs"), 0)
    | {"batch": 0, "graph_slots": 0, "edge_index": 1},
    "nsnet2_16k": {"input": 0},
    "nudenet_320n": {"images": 0},
    "oww_melspectrogram": {"input": 0},
    "paraphrase_minilm_l3": {"input_ids": 0, "attention_mask": 0},
    "ppocr4_rec": {"x": 0},
    "silero_vad_16k_sequence": {"input": 0},
    "silero_vad_v6": {"input": 0, "state": 1},
    "slanet_1m": {"x": 0},
    "smart_turn_v3_2": {"input_features": 0},
    "yolo11n": {"images": 0},
}

pytestmark = pytest.mark.timeout(3500 if CAMPAIGN else 600)


# --- batches ---


def is_float(array: Any) -> bool:
    return bool(array.dtype.kind == "f")


def all_nan(feed: Feed) -> Feed:
    return {name: np.full_like(array, np.nan) if is_float(array) else array for name, array in feed.items()}


def one_nan(feed: Feed) -> Feed:
    """Return the batch with NaN as the first value of its first float input."""
    changed = next(name for name, array in feed.items() if is_float(array))
    array = feed[changed].copy()
    array.flat[0] = np.nan
    return {**feed, changed: array}


def without_samples(feed: Feed, axes: Mapping[str, int]) -> Feed:
    return {name: np.take(array, [], axis=axes[name]) if name in axes else array for name, array in feed.items()}


def masked(feed: Feed) -> Iterator[tuple[str, Feed]]:
    """Yield batches whose first row is fully masked, all rows are, or the mask is random."""
    mask = feed["attention_mask"]
    first = mask.copy()
    first[0] = 0
    yield "a masked row", {**feed, "attention_mask": first}
    yield "all rows masked", {**feed, "attention_mask": np.zeros_like(mask)}
    for seed in range(2):
        random_mask = np.random.default_rng(seed).integers(0, 2, mask.shape).astype(mask.dtype)
        yield f"mask {seed} at random", {**feed, "attention_mask": random_mask}


# --- the original, run without mixlist ---


@dataclass(frozen=True)
class Original:
    """ONNX Runtime's run of the original on one batch: the size and the number of NaN of each output."""

    fate: str  # ran, refused, or died
    outputs: Mapping[str, list[int]]

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of NaN in each output."""
        return {name: nan / size if size else 1.0 for name, (size, nan) in self.outputs.items()}


def run_original(path: Path, feed: Feed) -> Original:
    with tempfile.TemporaryDirectory() as home:
        batch = Path(home, "batch.npz")
        np.savez(batch, **feed)
        try:
            result = worker.call(worker.shares, path, batch)
        except worker.Crashed:
            return Original("died", {})
    return Original("refused" if "refused" in result else "ran", result.get("outputs", {}))


# --- verdicts ---


@dataclass(frozen=True)
class Verdict:
    """A report, or the message of an error."""

    report: CheckReport | None
    error: str = ""

    @property
    def kind(self) -> str:
        """Return the verdict, and "pass" if every limit is kept because nothing is low (Rule S8.39)."""
        if self.report is None:
            return "error"
        return "pass" if self.report.passes_without_low else self.report.verdict

    @property
    def findings(self) -> set[tuple[str, ...]]:
        """Return the findings that the lists caused, without batches and sizes.

        Preexisting ones are left out: the maximum of no values is -infinity in float32 too.
        """
        nodes = self.report.nodes if self.report is not None else ()
        return {(node.scope, node.name, node.kind, node.input) for node in nodes if node.kind != "preexisting"}

    @property
    def offenders(self) -> list[NodeFinding]:
        return [node for node in self.report.nodes if node.first] if self.report is not None else []

    def __str__(self) -> str:
        return f"{self.kind}: {'; '.join(self.report.reasons) if self.report is not None else self.error}"


class Judge:
    """Check one model under one policy, and collect the verdicts that a person would not give."""

    def __init__(self, path: Path, library: str, good: Feed, originals: dict[str, Original]) -> None:
        self.path, self.good, self.originals = path, good, originals
        self.policy = mixlist.load_policy(ops_info=library, gray_policy=GRAY_POLICIES.get(library, "ascend"))
        self.plan = mixlist.resolve(path, self.policy)
        self.library, self.problems = library, list[str]()

    @property
    def decisions(self) -> tuple[Any, ...]:
        """Return the decisions of the library. Another library with the same decisions needs no runs of its own."""
        nodes = ((node.scope, node.name, node.precision, *sorted(node.outputs.items())) for node in self.plan.nodes)
        return tuple(nodes)

    def check(self, *batches: Feed) -> Verdict:
        try:  # in this process, which has to survive
            return Verdict(mixlist.check(self.path, self.policy, list(batches)))
        except ModelError as problem:
            return Verdict(None, problem.message)

    def original(self, case: str, feed: Feed) -> Original:
        if case not in self.originals:
            self.originals[case] = run_original(self.path, feed)
        return self.originals[case]

    def expect(self, holds: bool, case: str, verdict: Verdict, expected: str) -> None:
        if not holds:
            self.problems.append(f"{self.library}, {case}: {expected}; it is {verdict}")

    def run(self, axes: Mapping[str, int]) -> None:
        self.alone = self.check(self.good)
        self.expect(self.alone.kind in ("pass", "fail"), "the good batch", self.alone, "pass or fail")
        if any(map(is_float, self.good.values())):
            self.expect_no_evidence("all NaN", all_nan(self.good), "holds nothing but NaN")
            self.expect_nan_ignored("one NaN", one_nan(self.good))
        if axes:
            self.expect_no_evidence("no samples", without_samples(self.good, axes), "has no elements")
        for case, feed in masked(self.good) if "attention_mask" in self.good else ():
            self.expect_masked_rows(case, feed)

    def expect_no_evidence(self, case: str, feed: Feed, problem: str) -> None:
        """Expect that a batch without evidence is inconclusive alone, and changes nothing after the good one.

        If ONNX Runtime refuses the batch or dies of it, expect a message that names the batch and its problem.
        """
        original = self.original(case, feed)
        alone, both = self.check(feed), self.check(self.good, feed)
        if original.fate != "ran":
            for verdict, index in ((alone, 0), (both, 1)):
                start = f"batch {index}, whose input "
                named = verdict.error if verdict.report is None else verdict.report.reasons[0]
                self.expect(
                    verdict.kind == ("error" if original.fate == "refused" else "fail")
                    and named.startswith(start)
                    and problem in named,
                    case,
                    verdict,
                    f"batch {index} is {original.fate}, and {problem}",
                )
            return
        self.expect(alone.kind == "inconclusive", case, alone, "nothing was judged")
        assert alone.report is not None and both.report is not None
        self.expect(not alone.findings and alone.report.exception_rate == 0, case, alone, "nothing can be found")
        self.expect({o.ignored_share for o in alone.report.outputs} == {1.0}, case, alone, "every value is ignored")
        self.expect(both.findings == self.alone.findings, f"good and {case}", both, f"as without: {self.alone}")
        sizes = self.original("good", self.good).outputs
        shares = {n: size / (size + sizes[n][0]) if size else 0.0 for n, (size, _) in original.outputs.items()}
        ignored = {o.name: o.ignored_share for o in both.report.outputs}
        if problem != "has no elements":
            self.expect(ignored == pytest.approx(shares), f"good and {case}", both, f"ignored are {shares}")
        too_little = self.alone.kind == "pass" and max(ignored.values()) > DEFAULT_SHARE
        expected = "inconclusive" if too_little else self.alone.kind
        self.expect(both.kind == expected, f"good and {case}", both, f"as without: {self.alone}")

    def expect_nan_ignored(self, case: str, feed: Feed) -> None:
        """Expect that NaN values are ignored, and that only other values cause a failure."""
        original, verdict = self.original(case, feed), self.check(feed)
        if original.fate != "ran":
            self.expect(verdict.kind == "error" and "batch 0" in verdict.error, case, verdict, "the batch is named")
            return
        assert verdict.report is not None
        report, shares = verdict.report, original.shares
        ignored = {output.name: output.ignored_share for output in report.outputs}
        if sum(array.size for array in feed.values() if is_float(array)) > 1:  # else all is NaN
            self.expect(ignored == pytest.approx(shares), case, verdict, f"ignored are {shares}")
        noted = all(
            any(repr(n) in w.message and "NaN" in w.message for w in report.warnings)
            for n, share in shares.items()
            if share
        )
        self.expect(noted, case, verdict, "what is NaN is noted")
        too_little = max(shares.values()) > DEFAULT_SHARE
        self.expect(verdict.kind != "pass" or not too_little, case, verdict, f"too much is NaN: {shares}")
        self.expect(verdict.kind != "inconclusive" or too_little, case, verdict, f"enough was judged: {shares}")
        if verdict.kind == "fail":
            of_values = any(o.verdict == "fail" and shares[o.name] < 1 for o in report.outputs)
            overflows = report.exception_rate > 0 and any(node.first for node in report.nodes)
            self.expect(of_values or overflows, case, verdict, "a failure is of values that were judged")

    def expect_masked_rows(self, case: str, feed: Feed) -> None:
        """Expect no NaN if masks are protected; otherwise a finding that names a low node, and a warning."""
        verdict, both = self.check(feed), self.check(self.good, feed)
        protected = "masks" in self.policy.protect
        warned = any(warning.code == "ML508" for warning in self.plan.warnings)
        if protected:
            self.expect(verdict.kind == self.alone.kind, case, verdict, f"as the good mask: {self.alone}")
            self.expect(not verdict.offenders, case, verdict, "no NaN by a mask that is protected")
        elif verdict.kind != self.alone.kind:
            self.expect(warned, case, verdict, "a mask that breaks warns (ML508)")
        for node in verdict.offenders:
            low = any(d.precision in ("float16", "bfloat16") for d in self.plan.nodes if d.name == node.name)
            self.expect(low or node.low_source is not None, case, verdict, f"{node.name} is high: a low node is named")
            self.expect(bool(node.suggestion), case, verdict, f"{node.name} has an advice")
        worse = "fail" if "fail" in (self.alone.kind, verdict.kind) else "pass"
        self.expect(both.kind == worse, f"good and {case}", both, f"{self.alone}, and masked {verdict}")


@pytest.mark.parametrize("model_id", SELECTED if CAMPAIGN else QUICK)
def test_verdicts_on_poor_data(model_id: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules S8.18 to S8.21, S8.28 and S4.37, and refused batches, on a real model under every library."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where a crash leaves its model
    path, good = corpus.path(model_id), feeds(model_id)[0]
    decided: set[tuple[Any, ...]] = set()
    originals: dict[str, Original] = {}
    problems: list[str] = []
    for library in LIBRARIES:
        judge = Judge(path, library, good, originals)
        if judge.decisions not in decided:
            decided.add(judge.decisions)
            judge.run(FIRST.get(model_id, {}))
            problems += judge.problems
    assert not problems, "\n".join(problems)
