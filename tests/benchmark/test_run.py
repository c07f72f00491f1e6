"""``bench``: the order of turns, with sessions that only record their calls, and real sessions of small models."""

from __future__ import annotations

import os
import pkgutil
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.benchmark import run
from mixlist.benchmark.timed_session import TimedSession
from mixlist.errors import ModelError, UsageError
from mixlist.progress import Progress
from mixlist.worker_processes import WorkerDied
from tests.support.builders import model, policy
from tests.support.package import RemoteSession, SessionOptions, data_folder
from tests.support.versions import PROFILES_HAVE_ARENA
from tests.support.workers import pid_of

DIGITS = data_folder("demo_data") / "digits.onnx"
SMALL = "g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { a = MatMul (x, w)  y = Softmax (a) }"
WHITE = policy(white=["MatMul"], black=["Softmax"])


def make_batch(rows: int) -> dict[str, Any]:
    return {"x": np.ones((rows, 4), np.float32), "w": np.ones((4, 4), np.float32)}


def pixels(count: int) -> dict[str, Any]:
    with np.load(data_folder("demo_data") / "digits.npz") as arrays:
        return {"pixels": arrays["pixels"][:count].astype(np.float32)}


# --- the warm-up of a turn ---


class ScriptedSession(TimedSession):
    """A session whose runs take the given seconds, and the last of them for ever."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.runs = 0

    def time_runs(self, batch: int, runs: int) -> float:
        assert (batch, runs) == (1, 1)
        self.runs += 1
        return self.seconds[min(self.runs, len(self.seconds)) - 1]


@pytest.mark.parametrize(
    ("seconds", "runs"),
    [
        ((0.01,), 3),
        ((0.05, 0.03, 0.02, 0.0104, 0.01, 0.0105), 6),
        ((0.0106, 0.01, 0.01, 0.01), 4),  # 6 % is too much
        (tuple(0.01 * 0.9**k for k in range(40)), 20),  # never steady
        ((30.0, 10.0), 2),  # a large model
        ((9.0, 0.2, 0.12, 0.2), 3),
        ((9.0, 0.1, 0.12, 0.1), 4),
    ],
)
def test_a_turn_warms_up_until_three_runs_agree(seconds: tuple[float, ...], runs: int) -> None:
    session = ScriptedSession(*seconds)
    session.warm_up(1)
    assert session.runs == runs


# --- turns ---


class RecordingSession:
    """Replaces RemoteSession: runs nothing, reports ``SECONDS`` for each run of a model, and records its calls.

    ``timed_runs``: the name of the model, the rows of the batch, and the number of runs.
    """

    timed_runs: list[tuple[str, int, int]]
    SECONDS: Mapping[str, float]
    feeds: Mapping[str, Sequence[Any]]
    paths: dict[str, Path]
    loaded: list[str]  # the names of the models, by session

    def __init__(self, path: Path, options: SessionOptions, **_: object) -> None:
        if options.profile is not None:
            raise ModelError("no profile in this test")
        # The original is the first model that is loaded.
        self.name = "original" if path == RecordingSession.paths.setdefault("original", path) else "mixed"
        RecordingSession.loaded.append(self.name)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return getattr(self, method.__name__)(*arguments)

    def load_batches(self, feeds: Sequence[Any], transfers: bool) -> bool:
        RecordingSession.feeds = {**RecordingSession.feeds, self.name: feeds}
        self.rows = [len(feed["x"]) for feed in feeds]
        return transfers

    def warm_up(self, batch: int) -> None:
        self.time_runs(batch, 1)

    def time_runs(self, batch: int, runs: int) -> float:
        RecordingSession.timed_runs.append((self.name, self.rows[batch], runs))
        return self.SECONDS[self.name]

    def peak_added_memory(self) -> int:
        return 1000

    def close(self) -> None:
        pass

    def __enter__(self) -> RecordingSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[RecordingSession]:
    RecordingSession.timed_runs, RecordingSession.loaded = [], []
    RecordingSession.feeds, RecordingSession.paths = {}, {}
    RecordingSession.SECONDS = {"original": 0.02, "mixed": 0.01}
    monkeypatch.setattr(run, "RemoteSession", RecordingSession)
    return RecordingSession


def test_the_models_take_turns_and_change_their_order(recorder: type[RecordingSession]) -> None:
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=10)
    assert recorder.timed_runs[:6] == [("original", 1, 1)] * 3 + [("mixed", 1, 1)] * 3
    turns = [name for name, _, runs in recorder.timed_runs[6:] if runs > 1]
    assert turns == ["original", "mixed", "mixed", "original"] * 5
    assert report.ratio is not None
    assert report.verdict == "faster"
    assert report.ratio.value == pytest.approx(0.5)
    assert report.original.seconds is not None
    assert report.original.seconds.median == pytest.approx(0.02)
    assert (report.original.host_memory, report.repeats, report.rounds) == (1000, 10, 10)
    assert any("no profile in this test" in note for note in report.notes)


class GraphSession(RecordingSession):
    """Records which sessions run as CUDA graphs; models of the class variable ``refused`` refuse to."""

    graphs: list[tuple[str, bool]]
    refused: frozenset[str]
    processes: list[Any]
    error: type[ModelError]

    def __init__(self, path: Path, options: SessionOptions, *, workers: Any, **_: object) -> None:
        super().__init__(path, options)
        GraphSession.graphs.append((self.name, options.cuda_graph))
        GraphSession.processes.append(workers)
        if options.cuda_graph and self.name in self.refused:
            raise self.error("not all nodes are on CUDA")


@pytest.fixture
def graphs(recorder: type[RecordingSession], monkeypatch: pytest.MonkeyPatch) -> type[GraphSession]:
    assert recorder is RecordingSession
    GraphSession.graphs, GraphSession.processes = [], []
    GraphSession.refused, GraphSession.error = frozenset(), ModelError
    monkeypatch.setattr(run, "RemoteSession", GraphSession)
    return GraphSession


@pytest.mark.parametrize("refused", [set(), {"original"}, {"mixed"}])
def test_both_models_or_none_are_timed_as_cuda_graphs(refused: set[str], graphs: type[GraphSession]) -> None:
    graphs.refused = frozenset(refused)
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=2, provider="cuda")
    tried = [("original", True)] if "original" in refused else [("original", True), ("mixed", True)]
    turns = [(name, not refused) for name in ("original", "mixed", "mixed", "original")]
    assert graphs.graphs == [("original", False), ("mixed", False), *tried, *turns]
    assert (report.original.failure, report.other.failure) == ("", "")
    assert any("were timed as CUDA graphs" in note for note in report.notes) != bool(refused)
    assert any("without CUDA graphs" in note and "not all nodes" in note for note in report.notes) == bool(refused)


@pytest.mark.parametrize("error", [ModelError, WorkerDied])
def test_a_crash_of_a_cuda_graph_ends_its_process_only(error: type[ModelError], graphs: type[GraphSession]) -> None:
    graphs.refused, graphs.error = frozenset({"mixed"}), error
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=1, provider="cuda")
    assert report.other.seconds is not None
    assert (graphs.processes[1] is graphs.processes[-1]) == (error is ModelError)


def test_no_cuda_graph_is_tried_on_the_cpu(graphs: type[GraphSession]) -> None:
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=1, provider="cpu")
    assert not any(is_graph for _, is_graph in graphs.graphs)
    assert not any("CUDA graph" in note for note in report.notes)


def test_each_batch_is_timed_in_both_orders(recorder: type[RecordingSession]) -> None:
    run.bench(model(SMALL), WHITE, [make_batch(1), make_batch(2)], rounds=4)
    assert [(name, rows) for name, rows, runs in recorder.timed_runs if runs == 10] == [
        *(("original", 1), ("mixed", 1)),
        *(("mixed", 2), ("original", 2)),
        *(("mixed", 1), ("original", 1)),
        *(("original", 2), ("mixed", 2)),
    ]


def test_each_turn_loads_the_model_anew(recorder: type[RecordingSession]) -> None:
    """Sessions of the same model differ in speed, so one session for all rounds would make equal models differ."""
    run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=3)
    assert recorder.loaded == ["original", "mixed", "original", "mixed", "mixed", "original", "original", "mixed"]


def test_a_fast_model_runs_more_often_in_a_turn(recorder: type[RecordingSession]) -> None:
    recorder.SECONDS = {"original": 0.04 * run.TURN_SECONDS, "mixed": 0.03 * run.TURN_SECONDS}
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=1)
    assert report.repeats == 34
    assert recorder.timed_runs[6:] == [("original", 1, 1), ("original", 1, 34), ("mixed", 1, 1), ("mixed", 1, 34)]
    assert report.other.seconds is not None
    assert report.other.seconds.median == pytest.approx(0.03 * run.TURN_SECONDS)


def test_nothing_is_claimed_of_fewer_than_ten_rounds(recorder: type[RecordingSession]) -> None:
    report = run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=9)
    assert (report.ratio, report.verdict, report.failed) == (None, "inconclusive", False)
    assert run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=10).ratio is not None


def test_no_more_batches_are_read_than_there_are_rounds(recorder: type[RecordingSession]) -> None:
    report = run.bench(model(SMALL), WHITE, [make_batch(1), make_batch(2), make_batch(3)], rounds=2)
    assert report.batches == 2


def test_progress_is_reported_after_each_round(recorder: type[RecordingSession]) -> None:
    steps: list[Progress] = []
    run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=3, progress=steps.append)
    assert [step[:3] for step in steps] == [(done, 3, "rounds") for done in (1, 2, 3)]


def test_progress_has_the_expected_seconds_of_all_rounds(
    recorder: type[RecordingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The start of the warm-up and of the rounds, and the end of each round.
    seconds = iter([90.0, 100.0, 102.0, 103.0, 106.0])
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(seconds))
    steps: list[Progress] = []
    run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=3, progress=steps.append)
    assert [step.detail for step in steps] == [6.0, 4.5, 6.0]


@pytest.mark.parametrize(
    ("warm_up", "round_seconds", "rounds"),
    [(1.0, 0.5, 30), (5.0, 2.0, 20), (5.0, 2.6, 15), (40.0, 60.0, 15)],
)
def test_a_slow_model_has_fewer_rounds_by_default(
    recorder: type[RecordingSession],
    monkeypatch: pytest.MonkeyPatch,
    warm_up: float,
    round_seconds: float,
    rounds: int,
) -> None:
    """The first round decides, so that the bench takes at most about a minute, but never fewer than 15 rounds."""
    seconds = chain([0.0, warm_up], count(warm_up + round_seconds, round_seconds))
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(seconds))
    steps: list[Progress] = []
    report = run.bench(model(SMALL), WHITE, [make_batch(1)] * 20, progress=steps.append)
    assert (report.rounds, steps[0].total, len(steps)) == (rounds, rounds, rounds)
    assert report.original.seconds is not None and report.original.seconds.count == rounds
    assert report.batches == 15
    assert run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=31).rounds == 31


def test_a_slow_model_runs_twice_in_a_turn_and_once_on_each_batch_before(recorder: type[RecordingSession]) -> None:
    recorder.SECONDS = {"original": 0.4, "mixed": 0.3}
    assert run.bench(model(SMALL), WHITE, [make_batch(1)] * 5, rounds=5).repeats == 2
    assert recorder.timed_runs[:11] == [("original", 1, 1)] * 5 + [("mixed", 1, 1)] * 5 + [("original", 1, 1)]


def test_the_other_model_gets_the_batches_in_its_own_types(recorder: type[RecordingSession]) -> None:
    low = model(SMALL.replace("float[", "float16["), check=False)
    run.bench(model(SMALL), low, [make_batch(2)], rounds=1)
    assert [feed["x"].dtype for feed in recorder.feeds["original"]] == [np.float32]
    assert [feed["x"].dtype for feed in recorder.feeds["mixed"]] == [np.float16]


# --- errors ---


def test_if_one_model_is_refused_the_report_says_so_and_the_other_is_timed(tmp_path: Path) -> None:
    unknown = model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { y = mine.Thing (x, w) }""",
        check=False,
    )
    report = run.bench(model(SMALL), unknown, [make_batch(2)], rounds=2)
    assert report.failed
    assert (report.ratio, report.verdict) == (None, "not timed")
    assert report.other.failure.startswith("ONNX Runtime cannot load the model")
    assert report.other.seconds is report.other.profile is report.other.host_memory is None
    assert report.original.seconds is not None
    assert report.original.seconds.count == 2


class CrashingSession(RemoteSession):
    """A session that kills the process of the mixed model in its second turn."""

    started = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        CrashingSession.started += 1
        # 1 and 2 are the sessions of the warm-up. The mixed model is second in the first round, and first in the next.
        self.crashes = CrashingSession.started == 5

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self.crashes and method is TimedSession.time_runs and arguments[1] > 1:
            os.kill(pid_of(self), signal.SIGKILL)
        return super().call(method, *arguments)


def test_a_crash_is_reported_and_the_model_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run, "RemoteSession", CrashingSession)
    CrashingSession.started = 0
    report = run.bench(model(SMALL), WHITE, [make_batch(2)], rounds=3)
    assert "died with SIGKILL while it ran the model" in report.other.failure
    (folder,) = tmp_path.iterdir()
    (saved_model,) = folder.iterdir()
    assert str(saved_model) in report.other.failure
    assert any(node.op_type == "Cast" for node in onnx.load(saved_model).graph.node)
    assert report.original.seconds is not None
    assert report.original.seconds.count == 3
    assert report.original.profile is not None


def test_no_temporary_files_remain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run.bench(model(SMALL), WHITE, [make_batch(2)], rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_wrong_use_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one round"):
        run.bench(model(SMALL), WHITE, [make_batch(1)], rounds=0)
    with pytest.raises(UsageError, match="empty"):
        run.bench(model(SMALL), WHITE, [])
    with pytest.raises(UsageError, match="no data for input 'w'"):
        run.bench(model(SMALL), WHITE, [{"x": np.ones((1, 4), np.float32)}])
    with pytest.raises(UsageError, match="no input 'w'"):
        other_model = model("g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }")
        run.bench(model(SMALL), other_model, [make_batch(1)], rounds=1)


def test_an_unavailable_provider_is_refused() -> None:
    from tests.support.package import available_providers

    if "cuda" in available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(UsageError, match="cuda"):
        run.bench(model(SMALL), WHITE, [make_batch(1)], provider="cuda")


# --- real sessions ---


def test_the_demo_on_the_cpu(tmp_path: Path) -> None:
    report = mixlist.bench(DIGITS, mixlist.load_policy(), [pixels(2), pixels(5)], rounds=10, threads=1)
    assert not report.failed
    assert report.ratio is not None
    assert report.ratio.low <= report.ratio.value <= report.ratio.high
    for timed_model in (report.original, report.other):
        seconds = timed_model.seconds
        assert seconds is not None
        assert 0 < seconds.least <= seconds.q1 <= seconds.median <= seconds.q3
        assert timed_model.profile is not None
        assert timed_model.profile.providers == {"CPUExecutionProvider": timed_model.profile.nodes}
        assert timed_model.profile.runs == 10
    assert (report.original.low_nodes, report.original.low_kernels) == (0, 0)
    assert 0 < report.other.low_kernels < report.other.low_nodes
    original, mixed = report.original.graph, report.other.graph
    assert original is not None
    assert mixed is not None
    assert (original.casts, original.inserted_casts) == (0, 0)
    assert mixed.casts == 4
    assert 0 < mixed.inserted_casts <= mixed.optimised_casts
    assert any("says nothing about an accelerator" in note for note in report.notes)


def test_memory_is_that_of_the_session() -> None:
    """The large model makes and adds 16 million numbers, which take 64 MB. The small model does not."""
    text = """g (float[N, 1] x, float[1, M] w) => (float y)
    {{ a = {} (x, w)  b = ReduceSum <keepdims = 0> (a)  y = Identity (b) }}"""
    small, large = model(text.format("Sum").replace("N, 1", "1, M")), model(text.format("Sum"))
    feeds = {"x": np.ones((4000, 1), np.float32), "w": np.ones((1, 4000), np.float32)}
    report = run.bench(large, large, [feeds], rounds=1)
    tiny = run.bench(small, small, [{"x": feeds["w"], "w": feeds["w"]}], rounds=1)
    for timed_model in (report.original, report.other):
        assert timed_model.profile is not None
        assert timed_model.profile.arena is not None or not PROFILES_HAVE_ARENA
        assert 64e6 <= (timed_model.profile.arena or 64e6) < 200e6
        assert timed_model.host_memory is None or 60e6 <= timed_model.host_memory < 300e6
    assert tiny.original.profile is not None
    assert tiny.original.profile.arena is not None
    assert tiny.original.profile.arena < 2e6
    assert tiny.original.host_memory is None or tiny.original.host_memory < 40e6


def test_twice_the_work_takes_about_twice_as_long() -> None:
    """The bound is loose, because other work may run on the machine: three times the products must take longer."""
    chain = "g (float[64, 512] x, float[512, 512] w) => (float[64, 512] y) {{ {} y = Identity (a{}) }}"

    def layers(count: int) -> onnx.ModelProto:
        steps = " ".join(f"a{k} = MatMul ({'x' if k == 1 else f'a{k - 1}'}, w)" for k in range(1, count + 1))
        return model(chain.format(steps, count))

    feed = {"x": np.ones((64, 512), np.float32), "w": np.full((512, 512), 1 / 512, np.float32)}
    report = run.bench(layers(2), layers(6), [feed], rounds=15, threads=1)
    assert report.ratio is not None
    assert report.ratio.value > 1.5
    assert report.ratio.is_significant


@pytest.mark.parametrize("linked", [False, True])
def test_external_weights(tmp_path: Path, linked: bool) -> None:
    """Model hubs store weights behind symbolic links. ONNX Runtime refuses such weights, so a copy is timed."""
    model_proto = model("g (float[N, 4] x) => (float[N, 4] y) { y = MatMul (x, w) }", check=False)
    model_proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    path = tmp_path / "home" / "m.onnx"
    path.parent.mkdir()
    onnx.save(model_proto, path, save_as_external_data=True, location="w.data", size_threshold=0)
    if linked:
        (tmp_path / "blobs").mkdir()
        data = path.with_name("w.data").rename(tmp_path / "blobs" / "w.data")
        path.with_name("w.data").symlink_to(data)
    feed = {"x": np.ones((2, 4), np.float32)}
    report = run.bench(path, policy(white=["MatMul"]), [feed], rounds=1)
    assert not report.failed


@pytest.mark.parametrize("swapped", [False, True])
def test_both_models_transfer_if_one_must(swapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence cannot stay on the device."""
    transferring = set[RemoteSession]()
    call = RemoteSession.call

    def record(session: RemoteSession, method: Callable[..., Any], *arguments: Any) -> Any:
        if method is TimedSession.time_runs:
            assert session in transferring or arguments[1] == 1  # a warm-up can come before the model that must
            return 1.0
        result = call(session, method, *arguments)
        if method is TimedSession.load_batches and result:
            transferring.add(session)
        return result

    monkeypatch.setattr(RemoteSession, "call", record)
    texts = ["(float[2] y) { y = Neg (x) }", "(float[2] y, seq(float[2]) s) { y = Neg (x) s = SequenceConstruct (y) }"]
    models = [model(f"g (float[2] x) => {text}", check=False) for text in texts]
    first, second = reversed(models) if swapped else models
    report = run.bench(first, second, [{"x": np.ones(2, np.float32)}], rounds=1)
    assert (report.original.failure, report.other.failure, report.transfers) == ("", "", True)
    assert [note for note in report.notes if "transfers" in note] == [
        "inputs or outputs that are no tensors cannot stay on the device: transfers are timed"
    ]


def test_an_output_may_have_another_shape_than_the_model_declares() -> None:
    """Real models have such outputs. A run warns, and a binding that kept its outputs would fail in the second run."""
    model_proto = model("g (float[6] x, int64[R] s) => (float[6] y) { y = Reshape (x, s) }")
    feed = {"x": np.ones(6, np.float32), "s": np.array([2, 3])}
    report = run.bench(model_proto, model_proto, [feed], rounds=2)
    assert (report.original.failure, report.other.failure) == ("", "")


def test_no_module_hides_a_public_function() -> None:
    """Otherwise ``import mixlist.NAME`` would replace the function ``mixlist.NAME`` with the module."""
    assert not {module.name for module in pkgutil.iter_modules(mixlist.__path__)} & set(mixlist.__all__)
