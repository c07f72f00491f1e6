"""Weights of 6, 4 and 2 bits, of which several share a byte, in ``raw_data`` and in external files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist.model.weights import PIECE_BYTES, read_pieces

# The types with the first opset that has them, the number of bits, and whether ONNX Runtime has kernels for them.
TYPES = [
    ("INT4", 21, 4, True),
    ("UINT4", 21, 4, True),
    ("FLOAT4E2M1", 23, 4, False),
    ("INT2", 25, 2, True),
    ("UINT2", 25, 2, True),
    ("FLOAT6E2M3", 28, 6, False),
    ("FLOAT6E3M2", 28, 6, False),
]
SIZE, BLOCK = 64, 16


@pytest.fixture(autouse=True)
def skip_what_onnx_lacks(request: pytest.FixtureRequest) -> None:
    """The lowest version of onnx that mixlist runs with ends at opset 24, without types of 2 bits."""
    arguments = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if arguments.get("opset", 0) > onnx.defs.onnx_opset_version() or (
        "name" in arguments and not hasattr(TensorProto, arguments["name"])
    ):
        pytest.skip(f"onnx {onnx.__version__} does not have this type or opset")


def packed(name: str, bits: int, *dims: int) -> TensorProto:
    """Return a tensor of random bytes."""
    size = (int(np.prod(dims)) * bits + 7) // 8
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    return TensorProto(name="w", data_type=TensorProto.DataType.Value(name), dims=dims, raw_data=data)


def quantized(name: str, opset: int, bits: int) -> onnx.ModelProto:
    """Return a network as that of a 4-bit language model: ``DequantizeLinear`` by blocks, ``MatMul``, ``Exp``."""
    scale = np.random.default_rng(1).uniform(0.01, 0.05, (SIZE // BLOCK, SIZE)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], name="dq", axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "wide"], ["product"], name="matmul"),
        helper.make_node("Exp", ["product"], ["y"], name="exp"),
    ]
    x, y = (helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", SIZE]) for value in "xy")
    weights = [packed(name, bits, SIZE, SIZE), numpy_helper.from_array(scale, "s")]
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name, _, bits, _ in TYPES])
@pytest.mark.parametrize("dims", [(3, 5), (7,), (64, 64), ()])
def test_packed_numbers_are_read_as_onnx_reads_them(name: str, bits: int, dims: tuple[int, ...]) -> None:
    tensor = packed(name, bits, *dims)
    (piece,) = read_pieces(tensor, None)
    expected = numpy_helper.to_array(tensor)
    assert piece.dtype == expected.dtype
    assert piece.astype(np.float32).tolist() == expected.reshape(-1).astype(np.float32).tolist()


@pytest.mark.parametrize(("name", "bits"), [("INT4", 4), ("FLOAT6E2M3", 6)])
def test_large_packed_weights_come_in_pieces(name: str, bits: int) -> None:
    size = PIECE_BYTES * 8 // bits
    tensor = packed(name, bits, 2 * size + 1)
    pieces = list(read_pieces(tensor, None))
    assert [piece.size for piece in pieces] == [size, size, 1]
    assert np.array_equal(np.concatenate(pieces), numpy_helper.to_array(tensor))


@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
@pytest.mark.parametrize(("name", "opset", "bits", "runs"), [*TYPES, ("INT4", 25, 4, True)])
def test_a_network_with_packed_weights_goes_through_the_commands(
    tmp_path: Path, name: str, opset: int, bits: int, runs: bool, external: bool
) -> None:
    path, mixed = tmp_path / "m.onnx", tmp_path / "mixed.onnx"
    onnx.save(quantized(name, opset, bits), path, save_as_external_data=external, location="m.data", size_threshold=0)
    policy = mixlist.load_policy()
    plan = mixlist.resolve(path, policy)
    precisions = {decision.ref.name: decision.precision for decision in plan.nodes}
    assert precisions == {"dq": "float32", "matmul": "float16", "exp": "float16"}
    mixlist.rewrite(path, plan).save(mixed)
    weights = {tensor.name: tensor for tensor in onnx.load(mixed).graph.initializer}
    assert weights["w"].raw_data == packed(name, bits, SIZE, SIZE).raw_data
    batches = [{"x": np.full((2, SIZE), 0.01, np.float32)}]
    if runs:
        assert mixlist.check(path, policy, batches).verdict == "pass"
    else:
        with pytest.raises(mixlist.MixlistError, match="ONNX Runtime cannot load the model"):
            mixlist.check(path, policy, batches)


def test_a_dequantization_in_the_domain_ai_onnx_is_that_of_onnx(tmp_path: Path) -> None:
    proto = quantized("INT4", 21, 4)
    proto.graph.node[0].domain = "ai.onnx"
    assert [decision.precision for decision in mixlist.resolve(proto, mixlist.load_policy()).nodes][1] == "float16"
