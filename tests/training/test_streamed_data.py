"""Tests of data in shards and in whole batches, which are read part by part (Rule S10.26)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixlist.errors import UsageError
from mixlist.training import Settings, train
from mixlist.training.dataset import BatchOrder, Dataset
from mixlist.training.random_values import draw_random_inputs
from mixlist.training.step_graph import load_step_graph
from mixlist.training.streamed_data import PARTS_IN_MEMORY, StreamedDataset, read_dataset
from tests.support.builders import policy
from tests.support.training_network import classifier, clusters, mixed, samples, squares, step

SHARDS = (70, 50, 90, 30)  # samples


def write_shards(folder: Path, data: dict[str, Any]) -> Path:
    folder.mkdir()
    starts = np.cumsum([0, *SHARDS])
    for index, start in enumerate(starts[:-1]):
        part = {name: array[start : start + SHARDS[index]] for name, array in data.items()}
        np.savez(folder / f"shard_{index}.npz", **part)
    return folder


def streamed(graph: Any, source: Any) -> StreamedDataset:
    data = read_dataset(load_step_graph(graph), source, "the data")
    assert isinstance(data, StreamedDataset)
    return data


def test_shards_are_the_samples_of_one_dataset(tmp_path: Path) -> None:
    data = clusters(sum(SHARDS))
    shards = streamed(classifier(), write_shards(tmp_path / "train", data))
    assert (shards.count, shards.has_whole_batches, shards.largest_value("y")) == (240, False, 2)
    whole = Dataset(load_step_graph(classifier()), data, "data")
    for rows in (slice(60, 130), np.array([239, 0, 1, 75]), slice(200, 300)):
        for name, array in whole.batch(rows).items():
            np.testing.assert_array_equal(shards.batch(rows)[name], array)


def test_an_epoch_has_each_sample_once_and_reads_each_shard_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = streamed(classifier(), write_shards(tmp_path / "train", clusters(sum(SHARDS))))
    reads: list[int] = []
    read: Callable[[int], Dataset] = shards._read
    monkeypatch.setattr(shards, "_read", lambda index: reads.append(index) or read(index))
    order = BatchOrder(shards, 16, seed=3)
    epoch = [order.indices(at) for at in range(15)]
    assert sorted(np.concatenate(epoch)) == list(range(240))
    for indices in epoch:
        shards.batch(indices)
    assert sorted(reads) == [0, 1, 2, 3] and len(shards._parts._values) <= PARTS_IN_MEMORY
    assert (BatchOrder(shards, 16, seed=3).indices(7) == epoch[7]).all()
    assert sorted(order.indices(15)) != sorted(epoch[0])  # the next epoch has another order


def test_a_training_on_shards_passes(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "train", clusters(sum(SHARDS)))
    options: dict[str, Any] = {"epochs": 5, "batch_size": 16, "optimizer": Settings(lr=0.01)}
    report = train(classifier(), mixed(), folder, eval_data=folder, **options)
    assert (report.verdict, report.steps) == ("pass", 75)
    assert [run.float32.metric for run in report.runs] > [0.95] * 3


def test_a_shard_that_does_not_fit_is_named_before_the_training(tmp_path: Path) -> None:
    data = clusters(sum(SHARDS))
    data["x"][-1, 0] = np.nan
    with pytest.raises(UsageError, match=r"shard_3\.npz: x holds a value that is not finite, first in row 29"):
        train(classifier(), mixed(), write_shards(tmp_path / "train", data))


# Each edge predicts a target from the difference of its two nodes: z = (x[from] - x[to]) w.
EDGES = """step (float[3, 2] w, float[nodes, 3] x, int64[2, edges] edge_index, float[edges, 2] t, float[edges, 2] keep,
  float loss_scale) => (float loss, float[3, 2] grad_w) <float half = {0.5}, int64 zero = {0}, int64 one = {1}> {
    start = Gather (edge_index, zero)
    end = Gather (edge_index, one)
    [from] from = Gather (x, start)
    [to] to = Gather (x, end)
    [edge] edge = Sub (from, to)
    [z] z = MatMul (edge, w)
    [error] e = Sub (z, t)
    [square] s = Mul (e, e)
    [kept] kept = Mul (s, keep)
    [mean_1] m = ReduceMean <axes = [1], keepdims = 0> (kept)
    [mean_0] loss = ReduceMean <axes = [0], keepdims = 0> (m)
    [masked] masked = Mul (e, keep)
    [scaled] es = Mul (masked, loss_scale)
    [count] count = Shape <start = 0, end = 1> (e)
    [float] rows = Cast <to = 1> (count)
    [gz] gz = Div (es, rows)
    [turned] turned = Transpose <perm = [1, 0]> (edge)
    [of_w] grad_w = MatMul (turned, gz)
}"""
WEIGHT = np.array([[1, 2], [-1, 0.5], [0.25, -2]], np.float32)


def graphs(count: int) -> Iterator[dict[str, Any]]:
    """Yield graphs with different numbers of nodes and edges."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        nodes, edges = rng.integers(5, 12), rng.integers(20, 60)
        x = rng.normal(size=(nodes, 3)).astype(np.float32)
        edge_index = rng.integers(0, nodes, (2, edges))
        yield {"x": x, "edge_index": edge_index, "t": (x[edge_index[0]] - x[edge_index[1]]) @ WEIGHT}


def edge_step() -> Any:
    model = step(EDGES)
    rule = '{"kind": "bernoulli", "p": 0.9, "off": 1}'
    model.metadata_props.add(key="pkg.mixlist.random.keep", value=rule)
    return model


@pytest.mark.parametrize("form", ["dicts", "files"])
def test_graphs_of_different_sizes_are_whole_batches(form: str, tmp_path: Path) -> None:
    source: Any = graphs(30)
    if form == "files":
        for index, graph in enumerate(graphs(30)):
            np.savez(tmp_path / f"{index}.npz", **graph)
        source = tmp_path
    lists = policy(white=["MatMul", "Transpose"], black=["Sub", "Mul", "ReduceMean", "Div", "Gather"])
    report = train(
        edge_step(), lists, source, epochs=8, optimizer=Settings(lr=0.05), scaler_parameters={"init_scale": 64.0}
    )
    assert (report.verdict, report.steps, report.batch_size) == ("pass", 240, None), report.reasons
    first, last = report.runs[0].float32.first_metric, report.runs[0].float32.metric
    assert first is not None and last is not None and last < 0.1 * first
    assert report.to_json()["batch_size"] is None


def test_a_random_input_has_the_size_of_its_own_axis() -> None:
    graph = load_step_graph(edge_step())
    (batch,) = graphs(1)
    assert draw_random_inputs(graph, 0, 0, batch)["keep"].shape == batch["t"].shape


def test_whole_batches_are_permuted_and_stay_as_they_are() -> None:
    data = streamed(edge_step(), graphs(6))
    order = BatchOrder(data, 32, seed=0)
    assert sorted(int(order.indices(at)[0]) for at in range(6)) == list(range(6))
    for index, graph in enumerate(graphs(6)):
        np.testing.assert_array_equal(data.batch(np.array([index]))["edge_index"], graph["edge_index"])


def test_wrong_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the training data holds no batch"):
        train(squares(), mixed(), [])
    with pytest.raises(UsageError, match="the training data: an object of the type int holds no data"):
        train(squares(), mixed(), 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch 0 of the data is an object of the type list"):
        train(squares(), mixed(), [[1]])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="batch 1: no data for input 't'"):
        train(squares(), mixed(), [samples(4), {"x": samples(4)["x"]}])


def parts(count: int, size: int) -> list[dict[str, Any]]:
    """Return whole batches of so many samples."""
    data = clusters(count * size)
    return [{name: array[at * size : (at + 1) * size] for name, array in data.items()} for at in range(count)]


def fixed_step() -> Any:
    """A step that takes batches of 16 samples only."""
    model = classifier()
    for value in model.graph.input:
        if value.name in ("x", "y"):
            value.type.tensor_type.shape.dim[0].dim_value = 16
    return model


def test_samples_beside_whole_batches_are_checked_too() -> None:
    """Without samples for one batch nothing would be measured, and both metrics would be 0."""
    few = {name: array[:8] for name, array in clusters(16).items()}
    with pytest.raises(UsageError, match="a batch has 16 samples, and the evaluation data has 8 in all"):
        train(fixed_step(), mixed(), parts(3, 16), eval_data=few, batch_size=16)
    with pytest.raises(UsageError, match="a batch has 16 samples, and the training data has 8 in all"):
        train(classifier(), mixed(), few, eval_data=parts(3, 16), batch_size=16, steps=4)
    for data, eval_data in ((parts(3, 16), clusters(64)), (clusters(64), parts(3, 16))):
        with pytest.raises(UsageError, match="takes batches of 16 samples, not of 8"):
            train(fixed_step(), mixed(), data, eval_data=eval_data, batch_size=8)


def test_a_batch_that_is_empty_or_does_not_fit_is_named(tmp_path: Path) -> None:
    empty = {name: array[:0] for name, array in clusters(4).items()}
    with pytest.raises(UsageError, match="batch 2 holds no samples"):
        train(classifier(), mixed(), [*parts(2, 16), empty])
    uneven = {"x": np.ones((5, 2), np.float32), "t": np.ones((7, 2), np.float32)}
    with pytest.raises(UsageError, match="batch 0: the size 'N' is 5 in x and 7 in t, and must be one"):
        train(squares(), mixed(), [uneven])
    folder = write_shards(tmp_path / "train", clusters(sum(SHARDS)))
    np.save(folder / "x.npy", np.ones(3))
    with pytest.raises(UsageError, match=r"contains \.npz files and \.npy files"):
        train(classifier(), mixed(), folder)
