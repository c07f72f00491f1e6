"""Test sessions in another process: they give the same results, and a crash of the process is reported."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from mixlist.errors import ModelError, UsageError
from mixlist.run import remote_session as remote_session_module
from mixlist.run.executors import open_process
from mixlist.run.feeds import read_data
from mixlist.run.local_session import LocalSession
from mixlist.run.remote_session import Crashed, RemoteSession
from mixlist.run.session import SessionOptions
from tests.support.builders import model
from tests.support.local_sessions import make_session
from tests.support.package import available_providers
from tests.support.scripts import interrupt, is_gone, started_script
from tests.support.systems import posix_only
from tests.support.workers import DIE, patch_workers, pid_of, remote_session, use_own_helper

pytestmark = pytest.mark.usefixtures("temporary")  # workers create their folders there
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def double() -> onnx.ModelProto:
    return model("g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Add (x, x) z = Neg (x) }")


@pytest.mark.parametrize("remote", [False, True])
def test_local_and_remote_sessions_give_the_same_results(
    double: onnx.ModelProto, temporary: Path, remote: bool
) -> None:
    options = SessionOptions(threads=1)
    with remote_session(double, options) if remote else LocalSession(make_session(double, options)) as runner:
        y, z = runner.run(None, {"x": ROWS})
        np.testing.assert_array_equal(y, 2 * ROWS)
        np.testing.assert_array_equal(z, -ROWS)
        np.testing.assert_array_equal(runner.run(["z"], {"x": ROWS[:0]})[0], ROWS[:0])
    assert not list(temporary.iterdir())


def test_values_of_every_type_pass_through_the_pipe() -> None:
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
    with remote_session(proto) as worker:
        for value, result in zip(feed.values(), worker.run(None, feed), strict=True):
            assert (result.dtype, result.shape) == (value.dtype, value.shape)
            assert result.tobytes() == np.ascontiguousarray(value).tobytes()
    texts = model(
        "g (string[N] s, float[K] p, float[L] q) => (string[N] t, seq(float[M]) r)"
        " { t = Identity (s) r = SequenceConstruct (p, q) }"
    )
    with remote_session(texts) as worker:
        feed = {"s": np.array(["a", "", "ö"], object), "p": np.ones(2, np.float32), "q": np.zeros(0, np.float32)}
        text, parts = worker.run(None, feed)
    assert text.tolist() == ["a", "", "ö"]
    assert [part.tolist() for part in parts] == [[1, 1], []]


def test_a_model_file_is_read_in_place(double: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(double, path)
    with remote_session(path) as worker:
        np.testing.assert_array_equal(worker.run(["y"], {"x": ROWS})[0], 2 * ROWS)
    assert path.exists()


def test_errors_are_the_same_in_both_processes(double: onnx.ModelProto, temporary: Path) -> None:
    refused = model("g (bfloat16[N] x) => (bfloat16[N] y) { y = Add (x, x) }")
    messages = []
    with open_process() as workers:
        for open_session in (
            lambda proto: LocalSession(make_session(proto)),
            lambda proto: RemoteSession(proto, workers=workers),
        ):
            with pytest.raises(ModelError) as error:
                open_session(refused)
            messages.append(error.value.message)
            with open_session(double) as session:
                with pytest.raises(ModelError) as error:
                    session.run(None, {"x": ROWS[0]})
                messages.append(error.value.message)
                np.testing.assert_array_equal(session.run(["y"], {"x": ROWS})[0], 2 * ROWS)  # the session still works
        assert messages[:2] == messages[2:]
        with pytest.raises(ModelError, match=r"cannot load the model: .*exist"):
            RemoteSession("none.onnx", workers=workers)
        if "cuda" not in available_providers():
            with pytest.raises(UsageError, match="provider cuda cannot be used"):
                RemoteSession(double, SessionOptions("cuda"), workers=workers)
    assert not list(temporary.iterdir())


@posix_only
def test_a_crash_in_a_run(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    patch_workers(
        monkeypatch, f"local_session.LocalSession.run = lambda *a: (os.write(2, b'malloc(): broken\\n'), ({DIE})())"
    )
    with remote_session(double) as worker:
        pid = pid_of(worker)
        with pytest.raises(Crashed) as error:
            worker.run(None, {"x": ROWS})
        crash = error.value
        assert (crash.signal, crash.stage) == ("SIGSEGV", "run")
        assert "ONNX Runtime died with SIGSEGV (malloc(): broken) while it ran the model" in crash.message
        assert f"the model is kept at {crash.model}, its input at {crash.feed}" in crash.message
        assert is_gone(pid)
        with pytest.raises(Crashed, match="died with SIGSEGV"):  # every later run raises the crash again
            worker.run(None, {"x": ROWS})
    with pytest.raises(ModelError, match="has ended"):  # closed
        worker.run(None, {"x": ROWS})
    kept_model = onnx.load(crash.model)
    assert kept_model == double
    assert crash.feed is not None
    (feed,) = read_data(kept_model, [crash.feed])
    np.testing.assert_array_equal(feed["x"], ROWS)
    assert crash.model.parent.parent == temporary


@posix_only
def test_a_crash_while_loading(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_workers(monkeypatch, f"local_session.open_session = {DIE}")
    with (
        open_process() as workers,
        pytest.raises(Crashed, match="died with SIGSEGV while it loaded the model") as error,
    ):
        RemoteSession(double, workers=workers)
    assert error.value.stage == "load"
    assert error.value.feed is None
    assert onnx.load(error.value.model) == double
    path = tmp_path / "m.onnx"
    onnx.save(double, path)
    with open_process() as workers, pytest.raises(Crashed) as error:
        RemoteSession(path, workers=workers)
    assert error.value.model == path
    assert path.exists()


@posix_only
def test_a_process_that_the_system_kills(double: onnx.ModelProto) -> None:
    with remote_session(double) as worker:
        os.kill(pid_of(worker), signal.SIGKILL)
        with pytest.raises(Crashed) as error:
            worker.run(None, {"x": np.zeros((200_000, 4), np.float32)})
    assert error.value.signal == "SIGKILL"
    assert "memory" in str(error.value.hint)


def test_a_process_that_exits(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(monkeypatch, "local_session.LocalSession.run = lambda *a: os._exit(7)")
    with remote_session(double) as worker, pytest.raises(Crashed, match="died with exit status 7"):
        worker.run(None, {"x": ROWS})


@posix_only
def test_a_kept_feed_has_strings_and_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(monkeypatch, f"local_session.LocalSession.run = {DIE}")
    proto = model(
        "g (string[N] s, bfloat16[N] b) => (string[N] t, float[N] c) { t = Identity (s) c = Cast <to = 1> (b) }"
    )
    feed = {"s": np.array(["a", "ö"], object), "b": np.array([1, 2.5], ml_dtypes.bfloat16)}
    with remote_session(proto) as worker, pytest.raises(Crashed) as error:
        worker.run(None, feed)
    assert error.value.feed is not None
    (feed,) = read_data(proto, [error.value.feed])
    assert feed["s"].tolist() == ["a", "ö"]
    assert feed["b"].dtype == ml_dtypes.bfloat16
    assert feed["b"].tolist() == [1, 2.5]


def test_a_bug_in_the_worker_is_raised_here(double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(monkeypatch, "local_session.LocalSession.run = lambda *a: 1 / 0")
    with remote_session(double) as worker, pytest.raises(RuntimeError, match="ZeroDivisionError"):
        worker.run(None, {"x": ROWS})


def test_output_of_a_library_does_not_mix_with_the_answers(
    double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = (
        "session = local_session.LocalSession\nold = session.run\n"
        "session.run = lambda *a: (os.write(1, b'noise' * 100), old(*a))[1]"
    )
    patch_workers(monkeypatch, noisy)
    with remote_session(double) as worker:
        np.testing.assert_array_equal(worker.run(["y"], {"x": ROWS})[0], 2 * ROWS)


def test_the_files_of_a_session_that_is_not_closed_are_removed_with_it(
    double: onnx.ModelProto, temporary: Path
) -> None:
    with open_process() as workers:
        session = RemoteSession(double, workers=workers)
        assert list(temporary.iterdir())
        del session
        assert not list(temporary.iterdir())


def test_a_closed_session_is_released_and_its_process_is_kept(
    double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_own_helper(monkeypatch)
    pids = set[int]()
    for _ in range(3):
        with open_process() as workers:
            with RemoteSession(double, workers=workers) as session:
                pids.add(pid_of(session))
            assert workers.executor.submit(count_sessions).result() == 0
    assert len(pids) == 1


def count_sessions() -> int:
    """Return the number of sessions that are loaded in this process."""
    return len(remote_session_module._sessions._values)


def test_other_sessions_of_a_process_that_died_are_loaded_again(
    double: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the session whose run killed the process has crashed."""
    use_own_helper(monkeypatch)
    with open_process() as workers:
        first, second = RemoteSession(double, workers=workers), RemoteSession(double, workers=workers)
        os.kill(pid_of(first), signal.SIGKILL)
        with pytest.raises(Crashed):
            first.run(None, {"x": np.zeros((200_000, 4), np.float32)})
        np.testing.assert_array_equal(second.run(["y"], {"x": ROWS})[0], 2 * ROWS)


SCRIPT = """
import sys, tempfile
from pathlib import Path
import numpy as np, onnx
from mixlist import worker_processes
from mixlist.run.executors import open_process
from mixlist.run.remote_session import RemoteSession
head, call = worker_processes._COMMAND.rsplit(";", 1)
slow = "import time; from mixlist.run.local_session import LocalSession as S; S.run = lambda *a: time.sleep(60)"
worker_processes._COMMAND = f"{head}; {slow};{call}"
tempfile.tempdir = sys.argv[1]
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
)
# There is no `if __name__ == "__main__"`: a worker must not run this module again.
with open_process() as workers, RemoteSession(model, workers=workers) as worker:
    print(*[process.pid for process in workers.executor._workers.values()], flush=True)
    worker.run(None, {"x": np.ones(3, np.float32)})
"""


@posix_only
def test_ctrl_c_ends_both_processes_and_removes_temporary_files(temporary: Path, tmp_path: Path) -> None:
    with started_script(SCRIPT, tmp_path, str(temporary)) as (process, pid):
        errors = interrupt(process)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1  # that of the script
    assert is_gone(pid)
    assert not list(temporary.iterdir())


@posix_only
def test_a_worker_ends_with_its_parent(temporary: Path, tmp_path: Path) -> None:
    source = SCRIPT.replace("time.sleep(60)", "[]").replace("    worker.run", "    input()\n    worker.run")
    with started_script(source, tmp_path, str(temporary)) as (process, pid):
        process.kill()
    for _ in range(100):
        if is_gone(pid):
            break
        time.sleep(0.05)
    assert is_gone(pid)
