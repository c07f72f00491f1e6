"""Masks in real transformers: a fully masked row gives numbers, not NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist

from .feeds import feeds

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download


def test_a_fully_masked_row_gives_no_nan(corpus: Any, tmp_path: Path) -> None:
    """Rule S4.37: with a float32 softmax its values are those of the original, too."""
    path = corpus.path("paraphrase_minilm_l3")
    (feed, *_) = feeds("paraphrase_minilm_l3")
    batches = [{**feed, "attention_mask": np.array(feed["attention_mask"])} for _ in range(2)]
    batches[0]["attention_mask"][0] = 0
    batches[1]["attention_mask"][[0, 1]] = 0
    # In float16 a mask of -32752 leaves no difference between the scores of such a row: its values are not promised.
    assert mixlist.check(path, mixlist.load_policy(), batches).exception_rate == 0
    lists = tmp_path / "softmax.json"
    lists.write_text('{"black-list": {"to-add": ["Softmax"]}}')
    report = mixlist.check(path, mixlist.load_policy(mixlist=lists), batches)
    assert (report.verdict, report.exception_rate) == ("pass", 0)
    policy = mixlist.load_policy(protect="none")
    assert mixlist.check(path, policy, batches).exception_rate == 1
    assert "ML508" in [warning.code for warning in mixlist.resolve(path, policy).warnings]
