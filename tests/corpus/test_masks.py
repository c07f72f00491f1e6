"""Masks in real transformers: a fully masked row gives the numbers that float32 gives, not NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist

from .feeds import feeds

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download


@pytest.mark.parametrize("rows", [[0], [0, 1]])
def test_a_fully_masked_row_passes(rows: list[int], corpus: Any) -> None:
    """Rule S4.37: No NaN from a fully masked row."""
    path = corpus.path("paraphrase_minilm_l3")
    (feed, *_) = feeds("paraphrase_minilm_l3")
    feed = {**feed, "attention_mask": np.array(feed["attention_mask"])}
    feed["attention_mask"][rows] = 0
    report = mixlist.check(path, mixlist.load_policy(), [feed])
    assert (report.verdict, report.exception_rate) == ("pass", 0)
    policy = mixlist.load_policy(protect="none")
    assert mixlist.check(path, policy, [feed]).exception_rate == 1
    assert "ML508" in [warning.code for warning in mixlist.resolve(path, policy).warnings]
