"""Tests of steps with several symbolic sizes, as graph networks have them (``dynamic_axes``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch
from torch import nn

import mixlist
from mixlist.errors import ModelError, UsageError
from mixlist.training import Settings, export_step, train
from tests.support.training_steps import TOLERANCE, open_step, reference

AXES = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "y": {0: "nodes"}}


class GraphConvolution(nn.Module):
    """The mean of the neighbors, through a layer each for the node and its neighbors."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.neighbors = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index[0], edge_index[1]
        total = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros_like(x[:, :1]).index_add(0, target, torch.ones_like(x[source][:, :1]))
        return self.own(x) + self.neighbors(total / count.clamp(min=1))


class GraphNetwork(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = GraphConvolution(4, 16), GraphConvolution(16, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(torch.relu(self.first(x, edge_index))), edge_index)


def loss(module: Any, x: torch.Tensor, edge_index: torch.Tensor, y: torch.Tensor) -> Any:
    logits = module(x, edge_index)
    return nn.functional.cross_entropy(logits, y), {"logits": logits}


def graphs(count: int, seed: int = 0) -> Iterator[dict[str, torch.Tensor]]:
    """Yield graphs of different sizes, in which the class of a node is that of its largest input."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        nodes, edges = (int(torch.randint(*bounds, (1,), generator=generator)) for bounds in ((6, 20), (20, 70)))
        x = torch.randn(nodes, 4, generator=generator)
        yield {
            "x": x,
            "edge_index": torch.randint(0, nodes, (2, edges), generator=generator),
            "y": x[:, :3].argmax(1),
        }


def test_a_graph_network_has_the_gradients_of_torch_for_every_size() -> None:
    torch.manual_seed(0)
    module = GraphNetwork()
    proto = export_step(module, loss, next(graphs(1)), dynamic_axes=AXES)
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in proto.graph.input
    }
    assert (shapes["x"], shapes["edge_index"], shapes["y"]) == (["nodes", 4], [2, "edges"], ["nodes"])
    step = open_step(proto, module)
    for batch in graphs(3, seed=1):
        outputs = step.run(batch)
        for name, expected in reference(module, loss, batch).items():
            np.testing.assert_allclose(outputs[name], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_graph_network_trains_on_batches_of_different_sizes() -> None:
    torch.manual_seed(0)
    proto = export_step(GraphNetwork(dropout=0.1).train(), loss, next(graphs(1)), dynamic_axes=AXES)
    data = [{name: value.numpy() for name, value in batch.items()} for batch in graphs(40)]
    lists = mixlist.load_policy(ops_info="onnx")
    report = train(proto, lists, data, epochs=6, optimizer=Settings(lr=0.01), scaler_parameters={"init_scale": 1024.0})
    assert (report.verdict, report.metric) == ("pass", "accuracy"), report.reasons
    assert [run.float32.metric > 0.8 for run in report.runs] == [True] * 3


def test_wrong_axes_are_refused() -> None:
    module, batch = GraphNetwork(), next(graphs(1))
    with pytest.raises(UsageError, match="dynamic_axes has 'z', which is not in the batch"):
        export_step(module, loss, batch, dynamic_axes={"z": {0: "nodes"}})
    with pytest.raises(UsageError, match="dynamic_axes has axis 2 of edge_index, which has 2 axes"):
        export_step(module, loss, batch, dynamic_axes={"edge_index": {2: "edges"}})
    with pytest.raises(UsageError, match=r"differ in their number of rows: x .*, edge_index 2") as caught:
        export_step(module, loss, batch)
    assert "dynamic_axes" in str(caught.value.hint)


def test_a_size_that_is_read_as_a_number_is_named() -> None:
    def reads_a_number(module: Any, x: torch.Tensor, edge_index: torch.Tensor, y: torch.Tensor) -> Any:
        return loss(module, x, edge_index, y)[0] * (2.0 if edge_index.shape[1] > 30 else 1.0)

    with pytest.raises(ModelError, match="for some edges sizes only"):
        export_step(GraphNetwork(), reads_a_number, next(graphs(1)), dynamic_axes=AXES)
