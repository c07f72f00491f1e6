"""Sessions in a process of their own: the same answers, and what happens when that process dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from mixlist.errors import ModelError, UsageError
from mixlist.runtime import worker_process
from mixlist.runtime.feeds import read_batches
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import DEFAULT_OPTIONS, Session, SessionOptions
from mixlist.runtime.subprocess_session import Crashed, SessionProcess, SubprocessSession
from mixlist.targets.providers import available_providers
from tests.support.builders import model
from tests.support.scripts import interrupt, is_gone, started_script
from tests.support.systems import posix_only

pytestmark = pytest.mark.usefixtures("temporary")  # workers make their folders there
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def start_session(
    proto: onnx.ModelProto, options: SessionOptions = DEFAULT_OPTIONS, process: SessionProcess | None = None
) -> Session:
    """Make a session in this process, or in the one given."""
    if process is None:
        return LocalSession(make_session(proto, options))
    return SubprocessSession(proto, options, process=process)


@pytest.fixture
def double() -> onnx.ModelProto:
    return model("g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Add (x, x) z = Neg (x) }")


def patched(monkeypatch: pytest.MonkeyPatch, patch: str) -> None:
    """Worker processes run ``patch`` before they serve."""
    head = (
        "import sys; sys.path[:] = sys.argv[2:]; import os, signal, time\nfrom mixlist.runtime import local_session\n"
    )
    serve = "from mixlist.runtime.worker_server import serve\nserve(int(sys.argv[1]))"
    monkeypatch.setattr(worker_process, "_COMMAND", f"{head}{patch}\n{serve}")


DIE = "lambda *a, **k: os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize("isolate", [False, True])
def test_both_kinds_run_alike(double: onnx.ModelProto, temporary: Path, isolate: bool) -> None:
    process = SessionProcess() if isolate else None
    with process or nullcontext(), start_session(double, SessionOptions(threads=1), process=process) as runner:
        y, z = runner.run(None, {"x": ROWS})
        np.testing.assert_array_equal(y, 2 * ROWS)
        np.testing.assert_array_equal(z, -ROWS)
        np.testing.assert_array_equal(runner.run(["z"], {"x": ROWS[:0]})[0], ROWS[:0])
    assert not list(temporary.iterdir())


def test_every_kind_of_value_comes_back_as_it_went() -> None:
    proto = model(
        "g (bfloat16[N] a, float16 b, int64[M] c, bool[M] d, uint8[K] e, float[R, S] f)"
        " => (bfloat16[N] A, float16 B, int64[M] C, bool[M] D, uint8[K] E, float[R, S] F)"
        " { A = Identity (a) B = Identity (b) C = Identity (c) D = Identity (d) E = Identity (e) F = Identity (f) }"
    )
    feed = {
        "a": np.array([1, 2.5, 1e38], ml_dtypes.bfloat16),
        "b": np.array(7, np.float16),
        "c": np.array([2**62, -1]),
        "d": np.array([True, False]),
        "e": np.zeros(0, np.uint8),
        "f": np.random.default_rng(0).standard_normal((300, 700)).astype(np.float32).T,  # not contiguous
    }
    with SubprocessSession(proto) as worker:
        for value, got in zip(feed.values(), worker.run(None, feed), strict=True):
            assert (got.dtype, got.shape) == (value.dtype, value.shape)
            assert got.tobytes() == np.ascontiguousarray(value).tobytes()
    texts = model(
        "g (string[N] s, seq(float[K]) q) => (string[N] t, seq(float[K]) r) { t = Identity (s) r = Identity (q) }"
    )
    with SubprocessSession(texts) as worker:
        given = {"s": np.array(["a", "", "ö"], object), "q": [np.ones(2, np.float32), np.zeros(0, np.float32)]}
        text, parts = worker.run(None, given)
    assert text.tolist() == ["a", "", "ö"]
    assert [part.tolist() for part in parts] == [[1, 1], []]


def test_a_model_file_is_read_where_it_lies(double: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(double, path)
    with SubprocessSession(path) as worker:
        np.testing.assert_array_equal(worker.run(["y"], {"x": ROWS})[0], 2 * ROWS)
    assert path.exists()


def test_errors_are_those_of_this_process(double: onnx.ModelProto, temporary: Path) -> None:
    refused = model("g (bfloat16[N] x) => (bfloat16[N] y) { y = Add (x, x) }")
    told = []
    with SessionProcess() as other:
        for process in (None, other):
            with pytest.raises(ModelError) as error:
                start_session(refused, process=process)
            told.append(error.value.message)
            with start_session(double, process=process) as session:
                with pytest.raises(ModelError) as error:
                    session.run(None, {"x": ROWS[0]})
                told.append(error.value.message)
                np.testing.assert_array_equal(session.run(["y"], {"x": ROWS})[0], 2 * ROWS)  # it lives on
    assert told[:2] == told[2:]
    with pytest.raises(ModelError, match=r"cannot load the model: .*exist"):
        SubprocessSession("none.onnx")
    if "cuda" not in available_providers():
        with pytest.raises(UsageError, match="provider cuda cannot be used"):
            SubprocessSession(double, SessionOptions("cuda"))
    assert not list(temporary.iterdir())


@posix_only
def test_a_run_that_dies(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    patched(monkeypatch, f"os.write(2, b'malloc(): broken\\n'); local_session.LocalSession.run = {DIE}")
    with SubprocessSession(double) as worker:
        with pytest.raises(Crashed) as error:
            worker.run(None, {"x": ROWS})
        crash = error.value
        assert (crash.signal, crash.stage) == ("SIGSEGV", "run")
        assert "ONNX Runtime died with SIGSEGV (malloc(): broken) while it ran the model" in crash.message
        assert f"the model is kept at {crash.model}, its input at {crash.feed}" in crash.message
        assert is_gone(worker.pid)
        with pytest.raises(Crashed, match="died with SIGSEGV"):  # every later run says so again
            worker.run(None, {"x": ROWS})
    with pytest.raises(ModelError, match="has ended"):  # closed
        worker.run(None, {"x": ROWS})
    kept = onnx.load(crash.model)
    assert kept == double
    assert crash.feed is not None
    (feed,) = read_batches([crash.feed], kept)
    np.testing.assert_array_equal(feed["x"], ROWS)
    assert crash.model.parent.parent == temporary


@posix_only
def test_a_load_that_dies(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patched(monkeypatch, f"local_session.open_session = {DIE}")
    with pytest.raises(Crashed, match="died with SIGSEGV while it loaded the model") as error:
        SubprocessSession(double)
    assert error.value.stage == "load"
    assert error.value.feed is None
    assert onnx.load(error.value.model) == double
    path = tmp_path / "m.onnx"
    onnx.save(double, path)
    with pytest.raises(Crashed) as error:
        SubprocessSession(path)
    assert error.value.model == path
    assert path.exists()


@posix_only
def test_what_the_system_kills(double: onnx.ModelProto) -> None:
    with SubprocessSession(double) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(Crashed) as error:
            worker.run(None, {"x": np.zeros((200_000, 4), np.float32)})
    assert error.value.signal == "SIGKILL"
    assert "memory" in str(error.value.hint)


def test_a_process_that_exits(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, "local_session.LocalSession.run = lambda *a: os._exit(7)")
    with SubprocessSession(double) as worker, pytest.raises(Crashed, match="died with exit status 7"):
        worker.run(None, {"x": ROWS})


@posix_only
def test_strings_and_bfloat16_of_a_crash_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, f"local_session.LocalSession.run = {DIE}")
    proto = model(
        "g (string[N] s, bfloat16[N] b) => (string[N] t, float[N] c) { t = Identity (s) c = Cast <to = 1> (b) }"
    )
    given = {"s": np.array(["a", "ö"], object), "b": np.array([1, 2.5], ml_dtypes.bfloat16)}
    with SubprocessSession(proto) as worker, pytest.raises(Crashed) as error:
        worker.run(None, given)
    assert error.value.feed is not None
    (feed,) = read_batches([error.value.feed], proto)
    assert feed["s"].tolist() == ["a", "ö"]
    assert feed["b"].dtype == ml_dtypes.bfloat16
    assert feed["b"].tolist() == [1, 2.5]


def test_a_bug_in_the_child_is_a_bug_here(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, "local_session.LocalSession.run = lambda *a: 1 / 0")
    with SubprocessSession(double) as worker, pytest.raises(RuntimeError, match="ZeroDivisionError"):
        worker.run(None, {"x": ROWS})


def test_what_a_library_prints_does_not_disturb(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = (
        "session = local_session.LocalSession\nold = session.run\n"
        "session.run = lambda *a: (os.write(1, b'noise' * 100), old(*a))[1]"
    )
    patched(monkeypatch, noisy)
    with SubprocessSession(double) as worker:
        np.testing.assert_array_equal(worker.run(["y"], {"x": ROWS})[0], 2 * ROWS)


def test_a_worker_that_nobody_closes_ends_all_the_same(double: onnx.ModelProto, temporary: Path) -> None:
    worker = SubprocessSession(double)
    pid = worker.pid
    del worker
    assert not list(temporary.iterdir())
    assert os.name != "posix" or is_gone(pid)


SCRIPT = """
import sys, tempfile
from pathlib import Path
import numpy as np, onnx
from mixlist.runtime import subprocess_session, worker_process
head, call = worker_process._COMMAND.rsplit(";", 1)
slow = "import time; from mixlist.runtime.local_session import LocalSession as S; S.run = lambda *a: time.sleep(60)"
worker_process._COMMAND = f"{head}; {slow};{call}"
tempfile.tempdir = sys.argv[1]
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
)
# No main guard: a child must not run this module again.
with subprocess_session.SubprocessSession(model) as worker:
    print(worker.pid, flush=True)
    worker.run(None, {"x": np.ones(3, np.float32)})
"""


@posix_only
def test_ctrl_c_ends_both_and_leaves_nothing(temporary: Path, tmp_path: Path) -> None:
    with started_script(SCRIPT, tmp_path, str(temporary)) as (process, pid):
        errors = interrupt(process)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1  # the script's own
    assert is_gone(pid)
    assert not list(temporary.iterdir())


@posix_only
def test_a_child_ends_with_its_parent(temporary: Path, tmp_path: Path) -> None:
    source = SCRIPT.replace("time.sleep(60)", "[]").replace("    worker.run", "    input()\n    worker.run")
    with started_script(source, tmp_path, str(temporary)) as (process, pid):
        process.kill()
    for _ in range(100):
        if is_gone(pid):
            break
        time.sleep(0.05)
    assert is_gone(pid)
