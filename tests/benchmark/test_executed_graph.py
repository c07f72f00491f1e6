"""Casts that ONNX Runtime inserts, counted in graphs written by hand and in graphs that it optimized."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from mixlist.benchmark.executed_graph import compare_graphs, count_nodes_with_low_kernel
from mixlist.targets.target import load_target
from tests.support.builders import model
from tests.support.package import SessionOptions, load_model, open_session

FILE = """g (float[4] x) => (float[4] y)
{ a = Cast <to = 10> (x)  b = Sigmoid (a)  c = Sigmoid (b)  y = Cast <to = 1> (c) }"""
OPTIMIZED = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[4] x) => (float[4] y)
{ a = Cast <to = 10> (x)  a32 = Cast <to = 1> (a)  b32 = Sigmoid (a32)  c32 = com.microsoft.QuickGelu (b32)
  c = Cast <to = 10> (c32)  y = Cast <to = 1> (c) }"""


def test_casts_that_are_not_in_the_file_count_as_inserted() -> None:
    changes = compare_graphs(model(FILE), model(OPTIMIZED, check=False))
    assert (changes.nodes, changes.casts) == (4, 2)
    assert (changes.optimised_nodes, changes.optimised_casts, changes.inserted_casts) == (6, 4, 2)
    assert changes.new_ops == {"com.microsoft::QuickGelu": 1}


def test_an_equal_graph_has_no_changes() -> None:
    changes = compare_graphs(model(FILE), model(FILE))
    assert (changes.inserted_casts, changes.new_ops) == (0, {})
    assert changes.optimised_casts == changes.casts == 2


def test_subgraphs_count() -> None:
    branches = """g (float[4] x, bool c) => (float[4] y) {{ y = If (c) <
      then_branch = a () => (float[4] t) {{ h = Cast <to = 10> (x)  t = Cast <to = 1> (h) }},
      else_branch = b () => (float[4] e) {{ {} e = Relu (x) }}> }}"""
    before = model(branches.format(""))
    after = model(branches.format("extra = Cast <to = 10> (x) "))
    changes = compare_graphs(before, after)
    assert (changes.nodes, changes.casts, changes.optimised_casts, changes.inserted_casts) == (4, 2, 3, 1)


def optimize(model_proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return the graph into which ONNX Runtime's CPU provider optimizes a model."""
    open_session(model_proto.SerializeToString(), SessionOptions(optimized_model=folder / "optimized.onnx"))
    return onnx.load(folder / "optimized.onnx", load_external_data=False)


@pytest.fixture
def without_float16_sigmoid() -> None:
    if load_target("cpu").runs("", "Sigmoid", 17, "float16", (0,)):
        pytest.skip("this ONNX Runtime has a float16 Sigmoid on the CPU: it would insert no Casts")


def test_casts_around_a_node_without_a_kernel_count_as_inserted(without_float16_sigmoid: None, tmp_path: Path) -> None:
    model_proto = model("g (float16[4] x) => (float16[4] y) { a = Sigmoid (x)  y = Softplus (a) }", check=False)
    changes = compare_graphs(model_proto, optimize(model_proto, tmp_path))
    # Both Casts are around the Sigmoid.
    assert (changes.casts, changes.optimised_casts, changes.inserted_casts) == (0, 2, 2)


def test_casts_of_the_user_do_not_count_as_inserted(without_float16_sigmoid: None, tmp_path: Path) -> None:
    model_proto = model("g (float[4] x) => (float16[4] y) { a = Sigmoid (x)  y = Cast <to = 10> (a) }")
    changes = compare_graphs(model_proto, optimize(model_proto, tmp_path))
    assert (changes.casts, changes.optimised_casts, changes.inserted_casts) == (1, 1, 0)


def test_low_nodes_and_their_kernels() -> None:
    model_proto = model(
        """g (float16[4] x, float[4] z) => (float16[4] y, bool[4] e, float[4] f)
        { a = Sigmoid (x)  y = Identity (a)  e = Equal (x, a)  f = Relu (z)  c = Cast <to = 1> (x)
          s = Shape (x)  n = Size (a) }""",
        check=False,
    )
    kernels = [
        load_target("cpu").runs("", "Sigmoid", 17, "float16", (0,)),
        load_target("cpu").runs("", "Identity", 17, "float16", (0,)),
        load_target("cpu").runs("", "Equal", 17, "float16", ()),
    ]
    assert count_nodes_with_low_kernel(load_model(model_proto), "cpu") == (3, sum(kernels))


def test_low_nodes_inside_bodies() -> None:
    model_proto = model(
        """g (float16[4] x, bool c) => (float16[4] y)
        { a = Exp (x)  y = If (c) <then_branch = t () => (float16[4] u) { u = Relu (a) },
                                    else_branch = e () => (float16[4] v) { v = Sigmoid (a) }> }""",
        check=False,
    )
    assert count_nodes_with_low_kernel(load_model(model_proto), "cpu")[0] == 3
