"""A trial that ONNX Runtime refuses to run fails, and the search continues."""

from __future__ import annotations

from typing import cast

import pytest

import mixlist
from mixlist.errors import ModelError
from mixlist.progress import Progress
from mixlist.search.trials import Trial
from tests.checker.test_refused_batches import RULES, TEXT, feeds
from tests.support.builders import model, policy
from tests.support.local_workers import trials


def test_a_refused_trial_fails_and_names_the_node() -> None:
    search_trials = trials(model(TEXT), RULES, feeds(3.0, 7.999))
    outcome = search_trials.try_edits(frozenset())
    search_trials.compiler.close()
    assert not outcome.passed and outcome.batch == 1
    assert outcome.why.startswith("ONNX Runtime refuses it on batch 1, at pick (Gather): ")


def test_the_reason_gives_a_gated_node_its_name_in_the_model() -> None:
    """If Gather can be low too, the gated graph has two copies of it, with other names."""
    search_trials = trials(model(TEXT), policy(white=["Add", "Gather"]), feeds(7.999))
    outcome = search_trials.try_edits(frozenset())
    search_trials.compiler.close()
    assert outcome.why.startswith("ONNX Runtime refuses it, at pick (Gather): ")


@pytest.mark.parametrize("values", [(7.999, 3.0), (7.999, 7.9995)])
def test_the_search_finds_a_list_although_trials_are_refused(values: tuple[float, ...]) -> None:
    """In the second case no batch runs under the base lists."""
    progress_calls: list[Progress] = []
    report = mixlist.tune(model(TEXT), RULES, feeds(*values), progress=progress_calls.append)
    assert (report.verdict, [edit.op for edit in report.edits]) == ("inconclusive", ["Add"])
    assert report.keeps_nothing_low
    assert "ONNX Runtime refuses it" in report.edits[0].without
    assert any("at pick (Gather)" in str(trial["why"]) and not trial["passed"] for trial in report.log)
    assert [cast(Trial, call.detail).to_json() for call in progress_calls] == list(report.log)
    assert [call.done for call in progress_calls] == list(range(1, len(report.log) + 1))


def test_a_model_that_is_refused_in_float32_cannot_be_tuned() -> None:
    with pytest.raises(ModelError, match="out of data bounds"):
        mixlist.tune(model(TEXT), RULES, feeds(9.0))
