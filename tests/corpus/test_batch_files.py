"""Batches of the corpus, saved as files and read again: the same arrays, and the same outputs in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mixlist import read_data
from tests.corpus.conftest import QUICK_MODELS, Corpus
from tests.corpus.feeds import feeds
from tests.support.local_sessions import make_session
from tests.support.package import LocalSession, SessionOptions
from tests.support.workers import remote_session

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download


def write_test_set(folder: Path, proto: Any, feed: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    names = [value.name for value in proto.graph.input]
    defaults = {tensor.name for tensor in proto.graph.initializer}
    fed_names = [name for name in names if name not in defaults]
    for number, name in enumerate(fed_names):
        (folder / f"input_{number}.pb").write_bytes(numpy_helper.from_array(feed[name]).SerializeToString())


@pytest.mark.parametrize("model_id", QUICK_MODELS)
def test_batches_read_from_files_equal_the_saved_arrays(corpus: Corpus, tmp_path: Path, model_id: str) -> None:
    proto = onnx.load(corpus.path(model_id))
    batches = feeds(model_id)
    (tmp_path / "npz").mkdir()
    for number, feed in enumerate(batches):
        wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feed.items()}
        np.savez(tmp_path / "npz" / f"batch_{number}.npz", **wide)
        write_test_set(tmp_path / "sets" / f"test_data_set_{number}", proto, feed)
    forms = [read_data(proto, [tmp_path / form]) for form in ("npz", "sets")]
    for expected, *loaded in zip(batches, *forms, strict=True):
        for feed in loaded:
            assert feed.keys() == expected.keys()
            for name, array in expected.items():
                assert feed[name].dtype == array.dtype
                np.testing.assert_array_equal(feed[name], array)
    assert forms[0].warnings == forms[1].warnings == ()
    options = SessionOptions(threads=1)
    with LocalSession(make_session(proto, options)) as local, remote_session(proto, options) as remote:
        for feed in forms[0]:
            for expected_output, output in zip(local.run(None, feed), remote.run(None, feed), strict=True):
                np.testing.assert_array_equal(expected_output, output)
