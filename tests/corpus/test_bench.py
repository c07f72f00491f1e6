"""``bench`` times two small real models, and the work that it estimates from shapes is right."""

from __future__ import annotations

from typing import Any

import pytest

import mixlist
from tests.corpus.feeds import feeds
from tests.support.package import estimate_work

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download
# Operations of the products at the first batch's sizes, by hand. The mel spectrogram of a second of sound: two Convs
# of 257 filters of 512 samples at 97 places, and 257 x 32 mel weights. The speech detector over 10 pieces of sound:
# 258 filters of 256 samples at 5 places, Convs of width 3 to 128, 64, 64 and 128 channels, an LSTM of 128, a Conv.
MEL = 97 * (2 * 257 * 512 * 2 + 2 * 257 * 32)
CONVS = 4 * 128 * (2 * 129 * 3 + 1) + 2 * 64 * (2 * 128 * 3 + 1) + (64 + 128) * (2 * 64 * 3 + 1) + 2 * 128 + 1
SILERO = 10 * (5 * 258 * 2 * 256 + CONVS + 2 * 4 * 128 * (128 + 128))


def test_bench_times_both_models(corpus: Any) -> None:
    path, batches = corpus.path("oww_melspectrogram"), feeds("oww_melspectrogram")
    report = mixlist.bench(path, mixlist.load_policy(), batches, rounds=10)
    assert (report.original.failure, report.other.failure) == ("", "")
    assert report.ratio is not None
    assert report.other.profile is not None
    assert 0 < report.other.profile.low_nodes <= report.other.low_nodes


@pytest.mark.parametrize("model_id, products", [("oww_melspectrogram", MEL), ("silero_vad_16k_sequence", SILERO)])
def test_the_work_of_both_models_is_estimated(model_id: str, products: int, corpus: Any) -> None:
    path = corpus.path(model_id)
    mixed = mixlist.rewrite(path, mixlist.resolve(path, mixlist.load_policy())).model
    shapes = {name: array.shape for name, array in feeds(model_id)[0].items()}
    original, mixed_work = estimate_work(path, None, shapes), estimate_work(mixed, None, shapes)
    assert original.matrix_flops == mixed_work.matrix_flops == products
    assert original.unknown == mixed_work.unknown == ()
    assert mixed_work.low_share == 1
    assert mixed_work.bytes < original.bytes
