"""Test that models are saved whole or not at all, with external data converted, and never over their input."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mixlist
from mixlist.errors import FileError, MixlistError, ModelError, UsageError
from mixlist.model import save, weights
from mixlist.model.load import load_model
from mixlist.model.protos import tensors_in_model
from mixlist.progress import Progress
from tests.support.builders import policy
from tests.support.external_models import write_external

LISTS = policy(white=["MatMul"], black=["Softmax"])


def write_model(folder: Path, *, location: str = "m.data", size: int = 64) -> Path:
    """Write a model with MatMul (low), Softmax (high) and Mul (high), and all weights in one data file."""
    return write_external(folder / "m.onnx", seed=0, size=size, location=location)


def apply(path: Path, out: Path, **options: Any) -> Any:
    result = mixlist.rewrite(path, mixlist.resolve(path, LISTS))
    result.save(out, **options)
    return result


def arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_external_data_is_converted_while_saving(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    result = apply(source, tmp_path / "o.onnx")
    old, new = arrays(source), arrays(tmp_path / "o.onnx")
    assert new["W"].dtype == np.float16 and np.array_equal(new["W"], old["W"].astype(np.float16))
    assert new["B"].dtype == np.float32 and np.array_equal(new["B"], old["B"])
    assert [c.name for c in result.constants] == ["W"]
    assert result.constants[0].max_abs == float(np.abs(old["W"]).max())
    onnx.checker.check_model(str(tmp_path / "o.onnx"), full_check=True)
    assert {n: (tmp_path / n).read_bytes() for n in before} == before
    stored = [t.external_data for t in onnx.load(tmp_path / "o.onnx", load_external_data=False).graph.initializer]
    assert all({e.key for e in entries} == {"location", "offset", "length"} for entries in stored)


def test_applying_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """Rule S7.9: ... for the same name of the output."""
    source = write_model(tmp_path)
    apply(source, tmp_path / "one.onnx")
    (tmp_path / "again").mkdir()
    apply(tmp_path / "one.onnx", tmp_path / "again" / "one.onnx")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert len(list(tmp_path.glob("*-*.data"))) == 1


def test_other_weights_get_another_data_file(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    apply(source, tmp_path / "o.onnx")
    first = arrays(tmp_path / "o.onnx")["W"]
    (tmp_path / "keep.onnx").write_bytes((tmp_path / "o.onnx").read_bytes())
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[:4] = np.float32(2.5).tobytes()
    (tmp_path / "m.data").write_bytes(bytes(data))
    apply(source, tmp_path / "o.onnx", force=True)
    assert arrays(tmp_path / "o.onnx")["W"][0, 0] == 2.5
    # The copy of the older model still has its data file.
    assert np.array_equal(arrays(tmp_path / "keep.onnx")["W"], first)


@pytest.mark.parametrize("external_data", ["yes", "no"])
def test_weights_become_external_or_inline_on_request(tmp_path: Path, external_data: str) -> None:
    source = write_model(tmp_path)
    if external_data == "yes":
        inner = onnx.load(source)
        onnx.save(inner, tmp_path / "inner.onnx")
        source = tmp_path / "inner.onnx"
    apply(source, tmp_path / "o.onnx", external_data=external_data)
    are_external = [
        weights.is_external(t) for t in onnx.load(tmp_path / "o.onnx", load_external_data=False).graph.initializer
    ]
    assert are_external == ([True, False] if external_data == "yes" else [False, False])  # B is too small
    assert arrays(tmp_path / "o.onnx")["W"].dtype == np.float16


def test_large_tensors_start_on_a_page(tmp_path: Path) -> None:
    source = write_model(tmp_path, size=1024)
    apply(source, tmp_path / "o.onnx")
    for tensor in onnx.load(tmp_path / "o.onnx", load_external_data=False).graph.initializer:
        _, offset, length = weights.locate_external_data(tensor, tmp_path)
        assert length < 2**20 or offset % 4096 == 0


def test_the_model_property_holds_its_weights(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    model = mixlist.rewrite(source, mixlist.resolve(source, LISTS)).model
    assert {t.name: (t.data_type, t.data_location) for t in model.graph.initializer} == {"W": (10, 0), "B": (1, 0)}
    onnx.checker.check_model(model, full_check=True)


def test_pieces_are_bounded_inside_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)
    source = write_model(tmp_path)
    tensor = onnx.load(source, load_external_data=False).graph.initializer[0]
    sizes = [p.nbytes for p in weights.read_pieces(tensor, tmp_path)]
    assert sum(sizes) == 64 * 64 * 4 and max(sizes) <= 1000
    apply(source, tmp_path / "o.onnx")
    assert np.array_equal(arrays(tmp_path / "o.onnx")["W"], arrays(source)["W"].astype(np.float16))


# --- links, locations and targets ---


def test_a_link_to_the_data_is_followed(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    snapshot = tmp_path / "snapshot"
    blobs.mkdir(), snapshot.mkdir()
    source = write_model(snapshot)
    (snapshot / "m.data").rename(blobs / "abc")
    (snapshot / "m.data").symlink_to("../blobs/abc")
    source.rename(blobs / "def")
    source.symlink_to("../blobs/def")
    apply(source, snapshot / "o.onnx")
    assert arrays(snapshot / "o.onnx")["W"].dtype == np.float16


@pytest.mark.parametrize("location", ["../m.data", "sub/../../m.data", "/m.data", "..\\m.data", "C:\\m.data"])
def test_a_location_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    source = write_model(tmp_path)
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="points out of the model's folder"):
        apply(source, tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_missing_and_truncated_data_is_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    data = tmp_path / "m.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"m\.data is truncated: tensor 'B' needs bytes"):
        apply(source, tmp_path / "o.onnx")
    data.unlink()
    with pytest.raises(FileError, match="external data of tensor 'W' is missing"):
        apply(source, tmp_path / "o.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_the_input_and_its_data_are_never_written(tmp_path: Path) -> None:
    """Rule S7.14: The output appears whole or not at all."""
    source = write_model(tmp_path)
    for target in (source, tmp_path / "m.data"):
        with pytest.raises(UsageError, match="is the input itself"):
            apply(source, target, force=True)
    os.link(source, tmp_path / "alias.onnx")
    with pytest.raises(UsageError, match="is the input itself"):
        apply(source, tmp_path / "alias.onnx", force=True)


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    """Rule S7.14: The output appears whole or not at all."""
    source = write_model(tmp_path)
    out = tmp_path / "o.onnx"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        apply(source, out)
    assert out.read_bytes() == b"mine"
    apply(source, out, force=True)
    onnx.checker.check_model(str(out))


@pytest.mark.parametrize("target", ["none/o.onnx", "."])
def test_targets_that_cannot_be_written_are_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(FileError):
        apply(write_model(tmp_path), tmp_path / target)


def test_an_interrupted_save_leaves_nothing(tmp_path: Path) -> None:
    """Rule S7.14: The output appears whole or not at all."""
    source = write_model(tmp_path)
    result = mixlist.rewrite(source, mixlist.resolve(source, LISTS))

    def interrupt(now: Progress) -> None:
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        result.save(tmp_path / "o.onnx", progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before
    result.save(tmp_path / "o.onnx")  # the result can still be saved
    assert arrays(tmp_path / "o.onnx")["W"].dtype == np.float16


def test_a_model_without_a_path_cannot_have_external_data(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path), load_external_data=False)
    with pytest.raises(MixlistError, match=r"is in the file .* but the model has no path"):
        mixlist.resolve(model, LISTS)


def test_a_model_over_the_limit_gets_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "INLINE_LIMIT", 10_000)
    inner = onnx.load(write_model(tmp_path, size=128))
    onnx.save(inner, tmp_path / "inner.onnx")
    apply(tmp_path / "inner.onnx", tmp_path / "o.onnx")
    assert len(list(tmp_path.glob("*-*.data"))) == 1
    assert arrays(tmp_path / "o.onnx")["W"].dtype == np.float16


def test_a_model_over_the_limit_only_when_serialized_gets_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights in raw_data are below the limit; float_data, names and nodes also take bytes of the message."""
    inner = onnx.load(write_model(tmp_path, size=128))
    tensor = inner.graph.initializer[1]
    tensor.float_data.extend(numpy_helper.to_array(tensor).tolist() * 128)
    tensor.ClearField("raw_data")
    tensor.dims.insert(0, 128)
    onnx.save(inner, tmp_path / "inner.onnx")
    serialize = save._serialize

    def limited(proto: onnx.ModelProto) -> bytes | None:
        data = serialize(proto)
        return data if data is not None and len(data) < 40_000 else None

    monkeypatch.setattr(save, "_serialize", limited)
    apply(tmp_path / "inner.onnx", tmp_path / "o.onnx")
    assert {t.data_location for t in onnx.load(tmp_path / "o.onnx", load_external_data=False).graph.initializer} == {1}
    assert np.array_equal(arrays(tmp_path / "o.onnx")["B"], arrays(tmp_path / "inner.onnx")["B"])
    with pytest.raises(FileError, match="2 GiB"):
        apply(tmp_path / "inner.onnx", tmp_path / "o.onnx", force=True, external_data="no")


def test_tensors_of_training_graphs_and_of_lists_get_new_data_files(tmp_path: Path) -> None:
    """External data of the input is written again for the output, wherever in the model its tensor is."""
    source = write_model(tmp_path)
    model = onnx.load(source, load_external_data=False)
    external = model.graph.initializer[1]
    model.training_info.add().initialization.CopyFrom(helper.make_graph([], "i", [], []))
    model.training_info[0].initialization.initializer.append(external)
    custom = helper.make_node("Own", ["y"], ["z"], domain="c")
    custom.attribute.add(name="list", type=onnx.AttributeProto.TENSORS).tensors.append(external)
    model.graph.node.append(custom)
    model.opset_import.add(domain="c", version=1)
    onnx.save_model(model, source)
    (tmp_path / "elsewhere").mkdir()
    apply(source, tmp_path / "elsewhere" / "o.onnx")
    (tmp_path / "m.data").unlink()
    saved = onnx.load(tmp_path / "elsewhere" / "o.onnx", load_external_data=False)
    for tensor in (saved.training_info[0].initialization.initializer[0], saved.graph.node[-1].attribute[0].tensors[0]):
        assert (
            b"".join(weights.read_raw_pieces(tensor, tmp_path / "elsewhere"))
            == arrays(tmp_path / "elsewhere" / "o.onnx")["B"].tobytes()
        )


def test_the_digest_of_a_model_depends_on_its_weights(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    before = save.content_digest(load_model(path))
    assert save.content_digest(load_model(path)) == before
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[5] ^= 1
    (tmp_path / "m.data").write_bytes(data)
    assert save.content_digest(load_model(path)) != before


# --- every tensor that can be external, and entries that two readers could understand differently ---

FindTensor = Callable[[onnx.ModelProto], onnx.TensorProto]


def _sparse(message: onnx.SparseTensorProto) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(1, 33, dtype=np.float32), "S")
    indices = numpy_helper.from_array(np.arange(32, dtype=np.int64))
    message.CopyFrom(helper.make_sparse_tensor(values, indices, [64]))
    return message


def _constant(model: onnx.ModelProto, **value: object) -> onnx.AttributeProto:
    model.graph.node.append(helper.make_node("Constant", [], ["k"], **value))
    return model.graph.node[-1].attribute[0]


TENSORS: dict[str, FindTensor] = {
    "initializer": lambda m: m.graph.initializer[1],
    "constant": lambda m: _constant(m, value=m.graph.initializer[1]).t,
    "values of a sparse initializer": lambda m: _sparse(m.graph.sparse_initializer.add()).values,
    "indices of a sparse initializer": lambda m: _sparse(m.graph.sparse_initializer.add()).indices,
    "values of a sparse constant": lambda m: (
        _sparse(_constant(m, sparse_value=_sparse(onnx.SparseTensorProto())).sparse_tensor).values
    ),
    "training": lambda m: (
        m.training_info.add().initialization.initializer.append(m.graph.initializer[1])
        or m.training_info[0].initialization.initializer[0]
    ),
}


@pytest.fixture(params=TENSORS)
def model_and_data(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bytes]:
    """Return the path of a model with one tensor in ``far.data``, and the bytes of that tensor."""
    inner = onnx.load(write_model(tmp_path))
    tensor = TENSORS[request.param](inner)
    data = numpy_helper.to_array(tensor).tobytes()
    (tmp_path / "far.data").write_bytes(data)
    save.set_external(tensor, "far.data", 0, len(data))
    (tmp_path / "far.onnx").write_bytes(inner.SerializeToString())
    return tmp_path / "far.onnx", data


def test_no_data_file_of_the_input_is_overwritten(model_and_data: tuple[Path, bytes]) -> None:
    """Rule S7.14: The output appears whole or not at all."""
    source, data = model_and_data
    with pytest.raises(UsageError, match="is the input itself"):
        apply(source, source.with_name("far.data"), force=True)
    assert source.with_name("far.data").read_bytes() == data


def test_every_tensor_gets_a_new_data_file(model_and_data: tuple[Path, bytes]) -> None:
    source, data = model_and_data
    out = source.parent / "elsewhere" / "o.onnx"
    out.parent.mkdir()
    apply(source, out)
    source.with_name("far.data").unlink()
    saved = onnx.load(out, load_external_data=False)
    (tensor,) = (tensor for tensor in tensors_in_model(saved) if weights.is_external(tensor))
    assert {entry.key for entry in tensor.external_data} == {"location", "offset", "length"}
    stored = b"".join(weights.read_raw_pieces(tensor, out.parent))
    assert stored in (data, np.frombuffer(data, np.float32).astype(np.float16).tobytes())


def test_a_repeated_entry_is_refused_in_every_tensor(model_and_data: tuple[Path, bytes]) -> None:
    """The code that protects the input's files and the readers could choose different entries."""
    source, _ = model_and_data
    model = onnx.load(source, load_external_data=False)
    (tensor,) = (tensor for tensor in tensors_in_model(model) if weights.is_external(tensor))
    tensor.external_data.add(key="location", value="o.onnx")
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"has the key 'location' twice: 'far\.data' and 'o\.onnx'"):
        apply(source, source.with_name("o.onnx"))
