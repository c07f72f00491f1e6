"""Test that files without a model, or with a model that protobuf cannot read, are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from onnx import AttributeProto, GraphProto, ModelProto

from mixlist.errors import FileError, ModelError
from mixlist.model.load import MAX_FILE_BYTES, load_model


def field(number: int, content: bytes) -> bytes:
    """Return the serialized form of a protobuf field with a length prefix."""
    size, size_bytes = len(content), bytearray()
    while size > 127:  # a varint: seven bits in each byte, the lowest first
        size_bytes.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *size_bytes, size]) + content


def nested(depth: int, op_type: str = "If", attribute: str = "then_branch") -> bytes:
    """Return a serialized model with ``depth`` nested bodies."""
    graph = GraphProto(name="innermost").SerializeToString()
    for _ in range(depth):
        attribute_fields = AttributeProto(name=attribute, type=AttributeProto.GRAPH).SerializeToString()
        node = field(4, op_type.encode()) + field(5, attribute_fields + field(6, graph))
        graph = field(1, node) + field(2, b"g")
    return ModelProto(ir_version=8).SerializeToString() + field(7, graph)


@pytest.mark.parametrize(("op_type", "attribute"), [("If", "then_branch"), ("Loop", "body")])
@pytest.mark.parametrize("depth", [34, 5000])
def test_too_many_nested_bodies_are_refused(tmp_path: Path, depth: int, op_type: str, attribute: str) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(nested(depth, op_type, attribute))
    with pytest.raises(ModelError, match="is not an ONNX model, or it is truncated") as refusal:
        load_model(path)
    assert "nests at most 33 bodies of If, Loop or Scan" in str(refusal.value.hint)


def test_the_deepest_model_that_protobuf_reads_is_accepted() -> None:
    ModelProto.FromString(nested(33))


def test_a_truncated_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(nested(20)[:-200])
    with pytest.raises(ModelError, match="is not an ONNX model, or it is truncated"):
        load_model(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes in folders")
def test_models_must_be_regular_files(tmp_path: Path) -> None:
    """Reading a pipe without a writer never returns, and a device has no end."""
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(FileError, match=r"pipe.onnx is a named pipe, and a regular file is needed"):
        load_model(tmp_path / "pipe.onnx")
    with pytest.raises(FileError, match="/dev/zero is a device, and a regular file is needed"):
        load_model("/dev/zero")


def test_a_model_beyond_two_gibibytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a hole, which takes no space on most file systems
    with pytest.raises(ModelError, match=r"has 2.0 GiB; protobuf reads models up to 2 GiB") as error:
        load_model(path)
    assert error.value.hint == "export the model with its weights as external data"
