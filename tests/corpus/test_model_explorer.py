"""``make campaign``: the ONNX adapter of Model Explorer finds every node of real models that its node data names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import onnx
import pytest

import mixlist
from mixlist.exchange.model_explorer import precision_data
from tests.exchange.test_model_explorer import TEXT

from .conftest import CAMPAIGN, ROWS

pytestmark = [pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it"), pytest.mark.timeout(3600)]
PROGRAM = """
import json, sys, model_explorer_onnx.main as adapter
graphs = adapter.ONNXAdapter().convert(sys.argv[1], {})["graphs"]
print(json.dumps({graph.id: [node.id for node in graph.nodes] for graph in graphs}))
"""


@pytest.mark.xdist_group("model-explorer")
@pytest.mark.parametrize("model_id", ["text", *(row["id"] for row in ROWS)])
def test_the_adapter_finds_every_node(
    model_id: str, corpus: Any, interpreter: Callable[[str], str], tmp_path: Any
) -> None:
    path = tmp_path / "text.onnx" if model_id == "text" else corpus.path(model_id)
    if model_id == "text":
        onnx.save(onnx.parser.parse_model(TEXT), path)
    command = [interpreter("model-explorer"), "-c", PROGRAM, str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    graphs = json.loads(output.splitlines()[-1])
    plan = mixlist.resolve(path, mixlist.load_policy())
    for graph, data in precision_data(plan, plan.nodes).items():
        missing = set(data["results"]) - set(graphs[graph])
        assert not missing
