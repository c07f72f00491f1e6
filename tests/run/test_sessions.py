"""Test sessions: models of any size, errors of one line, bfloat16, and the rounding of the provider."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import mixlist
from mixlist.errors import FileError, ModelError, UsageError
from mixlist.model import save
from mixlist.run import local_session, provider_rounding
from mixlist.run.local_session import LocalSession, open_session
from mixlist.run.model_files import write_model
from mixlist.run.session import Session, SessionOptions
from tests.support.builders import model, policy
from tests.support.local_sessions import make_session
from tests.support.package import available_providers
from tests.support.rounding import rounding_defect
from tests.support.workers import remote_session

pytestmark = pytest.mark.usefixtures("temporary")
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
WEIGHTS = np.arange(4 * 1000, dtype=np.float32).reshape(4, 1000) / 7


@pytest.fixture
def product() -> onnx.ModelProto:
    proto = model("g (float[N, 4] x) => (float[N, 1000] y) <float[4, 1000] w> { y = MatMul (x, w) }", check=False)
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    return proto


@pytest.fixture
def external(product: onnx.ModelProto, tmp_path: Path) -> Path:
    """Return the path of the product model, with its weights in a file next to it."""
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    onnx.save(product, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def check_product(session: Session) -> None:
    np.testing.assert_allclose(session.run(None, {"x": ROWS})[0], ROWS @ WEIGHTS, rtol=1e-6)


def load_without_weights(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def test_a_session_names_its_outputs(product: onnx.ModelProto) -> None:
    with LocalSession(make_session(product)) as session:
        assert session.output_names == ("y",)
        check_product(session)


def test_external_data_is_read_in_place(external: Path, temporary: Path) -> None:
    with remote_session(load_without_weights(external), folder=external.parent) as session:
        assert sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file()) < WEIGHTS.nbytes
        check_product(session)


def test_external_data_behind_a_symbolic_link(external: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "w.bin").symlink_to(external.parent / "w.bin")
    with remote_session(load_without_weights(external), folder=linked) as session:
        check_product(session)


def test_the_files_of_a_large_model_are_removed(
    product: onnx.ModelProto, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "INLINE_LIMIT", 1000)  # stands for protobuf's 2 GiB
    before = product.SerializeToString(deterministic=True)
    with remote_session(product) as session:
        check_product(session)
    assert not list(temporary.iterdir())
    assert product.SerializeToString(deterministic=True) == before


def test_a_refused_model_leaves_no_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "INLINE_LIMIT", -1)
    refused = model("g (bfloat16[N] x) => (bfloat16[N] y) { y = Add (x, x) }")
    with pytest.raises(ModelError), remote_session(refused):
        pass
    assert not list(temporary.iterdir())


def test_weights_with_a_pending_conversion(external: Path) -> None:
    result = mixlist.rewrite(external, mixlist.resolve(external, policy(white=["MatMul"])))
    assert result.casts_inserted
    with remote_session(result.proto, folder=external.parent) as session:
        (got,) = session.run(None, {"x": ROWS})
    np.testing.assert_allclose(got, ROWS @ WEIGHTS.astype(np.float16).astype(np.float32), rtol=2e-3)


def test_missing_external_data(external: Path) -> None:
    proto = load_without_weights(external)
    (external.parent / "w.bin").unlink()
    with pytest.raises(FileError, match=r"'w' is missing.*w\.bin"), remote_session(proto, folder=external.parent):
        pass
    with pytest.raises(ModelError, match="has no path"), remote_session(proto):
        pass


def test_a_written_model_has_its_weights(external: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = write_model(load_without_weights(external), home, external.parent)
    external.unlink()
    (external.parent / "w.bin").unlink()
    check_product(LocalSession(open_session(path)))


def test_a_refused_model_is_reported_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load the model: .*NOT_IMPLEMENTED.*Add") as error:
        make_session(model("g (bfloat16[N] x) => (bfloat16[N] y) { y = Add (x, x) }"))
    assert "\n" not in error.value.message
    with pytest.raises(ModelError, match=r"cannot load the model: .*INVALID"):
        open_session(b"no model")
    with pytest.raises(ModelError, match=r"cannot load the model: .*exist"):
        open_session("none.onnx")
    assert capfd.readouterr() == ("", "")


def test_a_failed_run_is_reported_in_one_line(product: onnx.ModelProto, capfd: pytest.CaptureFixture[str]) -> None:
    runner = LocalSession(make_session(product))
    for feed in ({"x": np.zeros((2, 5), np.float32)}, {}, {"z": ROWS}, {"x": ROWS.astype(np.float64)}):
        with pytest.raises(ModelError, match="ONNX Runtime cannot run the model: ") as error:
            runner.run(None, feed)
        assert "\n" not in error.value.message
    reshape = LocalSession(make_session(model("g (float[N] x, int64[1] s) => (float[M] y) { y = Reshape (x, s) }")))
    with pytest.raises(ModelError, match="cannot run the model"):
        reshape.run(None, {"x": np.zeros(3, np.float32), "s": np.array([2])})
    assert capfd.readouterr() == ("", "")


def test_providers() -> None:
    assert available_providers()[0] == "cpu"
    with pytest.raises(UsageError, match="unknown provider 'tpu'") as error:
        make_session(model("g (float x) => (float y) { y = Identity (x) }"), SessionOptions("tpu"))
    assert error.value.hint == "use one of cpu, cuda"


@pytest.mark.skipif("cuda" in available_providers(), reason="this machine has a CUDA provider")
def test_the_hint_says_how_to_install_cuda() -> None:
    for use_cuda in (lambda: open_session(b"", SessionOptions("cuda")), lambda: rounding_defect("cuda")):
        with pytest.raises(UsageError, match="provider cuda cannot be used") as error:
            use_cuda()
        hint = str(error.value.hint)
        assert "pip uninstall onnxruntime" in hint
        assert "pip install 'onnxruntime-gpu" in hint


@pytest.mark.skipif("cuda" not in available_providers(), reason="the installed onnxruntime has no CUDA provider")
def test_cuda_runs_and_rounds() -> None:
    proto = model("g (float[N] x) => (float16[N] y) { y = Cast <to = 10> (x) }")
    (got,) = LocalSession(make_session(proto, SessionOptions("cuda"))).run(
        None, {"x": np.array([1, 70000], np.float32)}
    )
    np.testing.assert_array_equal(got, np.array([1, np.inf], np.float16))
    assert rounding_defect("cuda") is None


def test_bfloat16_inputs_and_outputs() -> None:
    proto = model(
        "g (bfloat16[A, B] x, int64[N] n) => (bfloat16[A, B] y, float[A, B] z, int64[N] m)"
        " { y = Identity (x) z = Cast <to = 1> (x) m = Neg (n) }"
    )
    n = np.array([1, 2])
    with LocalSession(make_session(proto)) as runner:
        for shape in ((2, 3), (0, 3), (1, 1)):
            x = (np.arange(np.prod(shape)).reshape(shape) * 0.37).astype(ml_dtypes.bfloat16)
            y, z, m = runner.run(None, {"x": x, "n": n})
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))
            np.testing.assert_array_equal(z, x.astype(np.float32))
            assert m.tolist() == [-1, -2]
        transposed = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16).T
        (z,) = runner.run(["z"], {"x": transposed, "n": n})
        np.testing.assert_array_equal(z, transposed.astype(np.float32))


def test_strings() -> None:
    runner = LocalSession(make_session(model("g (string[N] x) => (string[N] y) { y = Identity (x) }")))
    assert runner.run(None, {"x": np.array(["a", "", "ö"], object)})[0].tolist() == ["a", "", "ö"]


def test_sequences() -> None:
    proto = model(
        "g (float[N] a, float[M] b) => (float[K] y, seq(float[L]) z)"
        " { z = SequenceConstruct (a, b) y = ConcatFromSequence <axis = 0> (z) }"
    )
    y, z = LocalSession(make_session(proto)).run(None, {"a": np.ones(2, np.float32), "b": np.zeros(1, np.float32)})
    assert y.tolist() == [1, 1, 0]
    assert [part.tolist() for part in z] == [[1, 1], [0]]


def test_a_profile_is_written(product: onnx.ModelProto, tmp_path: Path) -> None:
    session = make_session(product, SessionOptions(profile=tmp_path / "profile", threads=1))
    session.run(None, {"x": ROWS})
    written = Path(session.end_profiling())
    assert written.parent == tmp_path
    assert written.stat().st_size


def test_the_cpu_provider_keeps_pairs_of_casts() -> None:
    assert rounding_defect("cpu") is None
    assert rounding_defect("cpu", optimize=False) is None


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("drops the Casts that round to float16: 64 x 300 x 300 x 0.001 gave 5760 instead of inf", ("LOW", "1")),
        ("to float16: 2049 stayed 2049 instead of 2048", ("odd_low = Cast <to = LOW>", "odd_low = Cast <to = 1>")),
        ("the test model for float16 does not run on cpu: ONNX Runtime cannot load", ("Mul", "Nonesuch")),
    ],
)
def test_a_provider_that_drops_casts_is_recognized(
    monkeypatch: pytest.MonkeyPatch, message: str, change: tuple[str, str]
) -> None:
    monkeypatch.setattr(provider_rounding, "_TEST_MODEL", provider_rounding._TEST_MODEL.replace(*change))
    reason = rounding_defect("cpu")
    assert reason is not None
    assert message in reason


def test_the_model_is_not_kept_twice_in_memory(product: onnx.ModelProto) -> None:
    """The serialized model is released after ONNX Runtime has read it."""
    assert getattr(make_session(product), "_model_bytes", None) is None


def test_a_relative_folder_of_external_data(external: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper process follows when this process changes its folder."""
    for folder, relative in ((external.parent.parent, external.parent.name), (external.parent, os.curdir)):
        monkeypatch.chdir(folder)
        proto = load_without_weights(external)
        check_product(LocalSession(make_session(proto, folder=Path(relative))))
        with remote_session(proto, folder=Path(relative)) as session:
            check_product(session)


@pytest.mark.parametrize(("cuda_graph", "setting"), [(False, "0"), (True, "1")])
def test_the_settings_of_cuda(cuda_graph: bool, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph and TF32 are settings of the provider, as texts."""
    import onnxruntime

    given = []

    def refuse(*_: object, providers: object, **__: object) -> None:
        given.append(providers)
        raise RuntimeError("no GPU in this test")

    monkeypatch.setattr(local_session, "available_providers", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(ModelError, match="no GPU in this test"):
        open_session(b"", SessionOptions("cuda", cuda_graph=cuda_graph))
    settings = {"use_tf32": "0", "enable_cuda_graph": setting}
    assert given == [[("CUDAExecutionProvider", settings), "CPUExecutionProvider"]]
