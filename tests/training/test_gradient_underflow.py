"""Tests of the histograms of gradients, which show in which layers they underflow (Rule S10.21)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixlist.ops import dtypes
from mixlist.training import train
from mixlist.training.gradient_underflow import EXPONENT_EDGES, bins_of_magnitudes
from tests.support.training_network import all_low, samples, squares


def test_histograms_show_where_gradients_underflow() -> None:
    """Rule S10.21: each histogram counts the same values, and the loss scale moves them by its exponent."""
    tiny: dict[str, Any] = {"scaler": "fixed", "scaler_parameters": {"loss_scale": 2.0**10}}
    report = train(squares(), all_low(), samples(size=1e-3), steps=8, runs=1, batch_size=16, **tiny)
    underflow = report.underflow
    assert underflow is not None
    assert {histogram.parameter for histogram in underflow.histograms} == {"w1", "b1", "w2", "b2"}
    totals = [0, 0]
    for histogram in underflow.histograms:
        assert len(histogram.scaled) == len(histogram.unscaled) == len(underflow.exponent_edges) + 2
        assert sum(histogram.scaled) == sum(histogram.unscaled)
        # Two bins of five exponents: none of the scaled values is smaller than an unscaled one.
        scaled, unscaled = (np.cumsum(counts) for counts in (histogram.scaled, histogram.unscaled))
        assert (scaled <= unscaled).all() and (scaled != unscaled).any()
        totals = [
            total + counts[0] for total, counts in zip(totals, (histogram.scaled, histogram.unscaled), strict=True)
        ]
    values = sum(sum(histogram.scaled) for histogram in underflow.histograms)
    assert totals == [pytest.approx(values * share) for share in (underflow.zero, underflow.zero_unscaled)]


def test_the_bins_of_magnitudes() -> None:
    gradient = np.array(
        [0, 2.0**-25, -(2.0**-24), 2.0**-14, 1.9 * 2.0**-20, 65504, 2.0**16, np.inf, np.nan], np.float32
    )
    edges = EXPONENT_EDGES[dtypes.FLOAT16]
    assert bins_of_magnitudes(gradient, edges).tolist() == [0, 1, 2, 4, 2, 9, 10, 10, 10]
