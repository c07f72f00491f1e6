"""ONNX Runtime sessions: of a model of any size, quiet, with errors of one line; and whether a provider rounds.

Sessions log nothing; what goes wrong comes as a ModelError with the first line of ONNX Runtime's message.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.errors import MixlistError, ModelError, UsageError
from mixlist.targets.providers import PROVIDERS, providers

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # of a model that is given as bytes
_OPTIMISED_DATA = "session.optimized_model_external_initializers_file_name"
_BFLOAT16 = 16  # TensorProto.BFLOAT16

_threads_are_shared = False


def make_session(
    proto: Any,
    *,
    provider: str = "cpu",
    folder: Path | None = None,
    optimise: bool = True,
    threads: int | None = None,
    profile: str | os.PathLike[str] | None = None,
    tf32: bool = False,
    lean: bool = False,
) -> InferenceSession:
    """A session of a ModelProto of any size; ``folder`` is where its external data lies.

    A model that outgrows protobuf's 2 GiB, or whose data ONNX Runtime would refuse where it lies (behind a symbolic
    link, or still to be converted), is written to a temporary folder that lives as long as the session.
    The other options are those of ``open_session``, which names the errors.
    """
    options: dict[str, Any] = {
        "provider": provider, "optimise": optimise, "threads": threads, "profile": profile, "tf32": tf32, "lean": lean,
    }  # fmt: skip
    outside = outside_of(proto)
    if not _outgrows_protobuf(proto):
        if not outside:
            return open_session(proto.SerializeToString(), **options)
        if lies_ready(outside, folder):
            return open_session(proto.SerializeToString(), folder=folder, **options)
    home = Path(tempfile.mkdtemp(prefix="mixlist-"))
    try:
        session = open_session(write_model(proto, home, folder), **options)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    weakref.finalize(session, shutil.rmtree, home, ignore_errors=True)
    return session


def write_model(proto: Any, home: Path, folder: Path | None) -> Path:
    """Write a model of any size as ``model.onnx`` into the folder ``home``, its data beside it; returns the path.

    ``folder`` is where the model's external data lies now. ``proto`` is left as it is. Raises FileError and ModelError.
    """
    from mixlist.graph.io import Loaded
    from mixlist.graph.save import Options, save, tensors
    from mixlist.graph.weights import is_external
    from mixlist.rewriter.convert import stream

    path = home / "model.onnx"
    large = _outgrows_protobuf(proto)
    if large or any(is_external(tensor) for tensor in tensors(proto)):
        loaded = Loaded(proto, "model", None, folder, "proto")
        options = Options(external_data="yes" if large else "auto")
        save(proto, path, loaded, lambda tensor: stream(tensor, folder, False, {}), options)
    else:
        path.write_bytes(proto.SerializeToString())
    return path


def _outgrows_protobuf(proto: Any) -> bool:
    from mixlist.graph.save import INLINE_LIMIT, tensors
    from mixlist.graph.weights import declared_size, is_external

    return sum(declared_size(t) for t in tensors(proto) if not is_external(t)) > INLINE_LIMIT


def outside_of(proto: Any) -> list[Any]:
    """The tensors of a model whose data lie in other files."""
    from mixlist.graph.save import tensors
    from mixlist.graph.weights import is_external

    return [tensor for tensor in tensors(proto) if is_external(tensor)]


def lies_ready(outside: Sequence[Any], folder: Path | None) -> bool:
    """Whether ONNX Runtime takes the external tensors where they lie: no links out of the folder, none to convert."""
    from mixlist.graph.weights import external, stored_type

    home = folder.resolve() if folder is not None else None
    for tensor in outside:
        path = external(tensor, folder).path  # tells in our words what is missing or truncated
        if home is None or not path.resolve().is_relative_to(home) or stored_type(tensor) != tensor.data_type:
            return False
    return True


def open_session(
    model: bytes | str | os.PathLike[str],
    *,
    provider: str = "cpu",
    folder: Path | None = None,
    optimise: bool = True,
    threads: int | None = None,
    profile: str | os.PathLike[str] | None = None,
    tf32: bool = False,
    optimised: str | os.PathLike[str] | None = None,
    spin: bool = False,
    lean: bool = False,
    reuse: bool = False,
) -> InferenceSession:
    """A session of a model file, or of a serialised model, whose external data lies in ``folder``.

    ``optimise``: all graph optimisations or none. ``threads``: within an operator, None for ONNX Runtime's own choice;
    of no account after ``share_threads``.
    ``profile``: prefix of the profile's file. ``tf32``: lets CUDA multiply float32 in TF32, with the mantissa of
    float16; off, because a reference in float32 would lose what it is the reference for. ``optimised``: where the
    optimised graph is written, with its weights in a file beside it. ``spin``: whether threads stay awake for a while
    after a run, as is ONNX Runtime's habit. They do not here, because a check runs two sessions in turn, and a session
    at rest would slow the other down (by half, measured on two cores). ``lean``: for a graph of which every tensor is
    reduced: nodes run in the order in which they stand, so that a tensor can go as soon as it has been reduced, and
    its memory is given back instead of planned for. (ONNX Runtime's plan would take longer than the runs: 0.3 s for a
    graph of 3,400 nodes, since it looks for tensors of the same size among all that are free.) Layouts stay as they
    are: the nodes that change one are new, come last in that order, and would keep every tensor until then. ``reuse``:
    memory is planned for all the same, which makes runs of small lean graphs up to a sixth faster (measured on nine).

    Raises UsageError where the provider is not there and ModelError where ONNX Runtime refuses the model.
    """
    import onnxruntime

    if provider not in providers():
        raise _no_provider(provider, "the installed onnxruntime has no such provider")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what fails is told by the exception
    if _threads_are_shared:
        settings.use_per_session_threads = False
    else:
        settings.intra_op_num_threads = threads or 0
    levels = onnxruntime.GraphOptimizationLevel
    best = levels.ORT_ENABLE_EXTENDED if lean else levels.ORT_ENABLE_ALL
    settings.graph_optimization_level = best if optimise else levels.ORT_DISABLE_ALL
    if folder is not None:
        settings.add_session_config_entry(_DATA_FOLDER, os.fspath(folder.resolve()))
    if profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = os.fspath(profile)
    if optimised is not None:
        settings.optimized_model_filepath = os.fspath(optimised)
        settings.add_session_config_entry(_OPTIMISED_DATA, f"{Path(optimised).name}.data")
    if lean:
        settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        settings.enable_mem_pattern = settings.enable_mem_reuse = reuse
        _share_memory()
        settings.add_session_config_entry("session.use_env_allocators", "1")
    if not spin:
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    chosen: list[Any] = [PROVIDERS["cpu"]]
    if provider == "cuda":
        with redirect_stdout(sys.stderr):  # it prints what it misses
            onnxruntime.preload_dlls()  # CUDA's libraries where they were installed as Python packages
        chosen.insert(0, (PROVIDERS["cuda"], {"use_tf32": str(int(tf32))}))
    with _told("load the model"):
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model), settings, providers=chosen, enable_fallback=0
        )
    if PROVIDERS[provider] not in session.get_providers():
        raise _no_provider(provider, "ONNX Runtime could not start it (CUDA's or cuDNN's libraries, or the driver)")
    session._model_bytes = None  # kept for falling back to other providers only, which is off: as large as the model
    return session


def share_threads(count: int) -> None:
    """From now on all sessions of this process draw on one pool of ``count`` threads.

    A graph in many pieces is faster so: up to a quarter (measured on eight models, of which most gain little).
    Raises RuntimeError where the pool is there already.
    """
    global _threads_are_shared
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(count, 1)
    _threads_are_shared = True  # ONNX Runtime refuses sessions with threads of their own then


@cache
def _share_memory() -> None:
    """One pool of memory on the host for all lean sessions: a check's two run in turn, and one's is free meanwhile."""
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    where = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    no_more_than_asked = {"arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg(no_more_than_asked))


def _no_provider(provider: str, why: str) -> UsageError:
    if provider not in PROVIDERS:
        return UsageError(f"{provider!r} is no provider", hint=f"it is one of {', '.join(PROVIDERS)}")
    return UsageError(
        f"the provider {provider} cannot be used: {why}",
        hint="onnxruntime and onnxruntime-gpu are one module, so one replaces the other:"
        " pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'",
    )


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of ONNX Runtime as ModelError: it has no base class for them, and raises RuntimeError and ValueError."""
    try:
        yield
    except (MixlistError, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ModelError(f"ONNX Runtime cannot {what}: {lines[0]}") from error


class Runner:
    """A session in this process, and its runs; ``isolated.Worker`` has the same methods."""

    def __init__(self, session: InferenceSession) -> None:
        self._session: InferenceSession | None = session
        self._names = [output.name for output in session.get_outputs()]
        self._bfloat16 = {output.name for output in session.get_outputs() if output.type == "tensor(bfloat16)"}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, in the model's order."""
        return tuple(self._names)

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs named (None: all, in the model's order) for a feed: input name -> array.

        bfloat16 arrays are those of ml_dtypes, in the feed and in the result. Raises ModelError.
        """
        assert self._session is not None, "run after close"
        names = self._names if outputs is None else list(outputs)
        with _told("run the model"):
            given = {name: _as_value(value) if _is_bfloat16(value) else value for name, value in feed.items()}
            if self._bfloat16.isdisjoint(names):
                return list(self._session.run(names, given))
            return self._run_bound(self._session, names, given)

    def start(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """A run when its outputs are asked for; ``isolated.Worker`` begins at once."""
        return partial(self.run, outputs, feed)

    def _run_bound(self, session: InferenceSession, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """With outputs in bfloat16, which ONNX Runtime hands out as values of its own alone."""
        binding = session.io_binding()
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, value if _is_value(value) else _as_value(value))
        for name in names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        values = zip(names, binding.get_outputs(), strict=True)
        return [_from_bfloat16(value) if name in self._bfloat16 else value.numpy() for name, value in values]

    def close(self) -> None:
        """Let the session go."""
        self._session = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_bfloat16(value: Any) -> bool:
    return bool(getattr(getattr(value, "dtype", None), "name", "") == "bfloat16")


def _is_value(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def _as_value(array: Any) -> OrtValue:
    import numpy as np
    from onnxruntime import OrtValue

    if _is_bfloat16(array):
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(np.uint16), _BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)


def _from_bfloat16(value: OrtValue) -> Any:
    import ctypes

    import ml_dtypes
    import numpy as np

    shape = value.shape()
    raw = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)


# A sum whose result the low type cannot hold, made small again, and a whole number between two neighbours of the low
# type: if either shows the float32 result, the Casts around it were dropped.
_PROBE = """<ir_version: 8, opset_import: ["" : 17]>
probe (float[1, 64] row, float[64, 1] column, float[1] even) => (float[1, 1] overflow, float[1] rounding)
<float one = {1}, float small = {0.001}>
{
    sum = MatMul (row, column)
    sum_low = Cast <to = LOW> (sum)
    sum_back = Cast <to = 1> (sum_low)
    overflow = Mul (sum_back, small)
    odd = Add (even, one)
    odd_low = Cast <to = LOW> (odd)
    odd_back = Cast <to = 1> (odd_low)
    rounding = Mul (odd_back, one)
}"""
# Low type: its number in ONNX, a factor whose 64 products overflow it but not float32, an even number whose odd
# neighbour it does not have (float16 has 11 bits of mantissa, bfloat16 has 8).
_PROBES = {"float16": (10, 300.0, 2048.0), "bfloat16": (16, 2.305e18, 256.0)}


@cache
def faithful(provider: str, optimise: bool = True) -> str | None:
    """Why a float32 graph with Casts to the low types and back does not round on this provider; None if it does.

    Tested once per process with a tiny model for float16 and one for bfloat16: overflow and rounding have to survive
    ONNX Runtime's optimisations. Raises UsageError where the provider is not there.
    """

    def open_probe(proto: Any) -> Runner:
        return Runner(make_session(proto, provider=provider, optimise=optimise, threads=1))

    return begin_probes(provider, open_probe)()


def begin_probes(provider: str, open_probe: Callable[[Any], Any]) -> Callable[[], str | None]:
    """``faithful`` for sessions as ``open_probe`` makes them of a ModelProto; what is returned waits for the answer.

    Sessions in other processes run meanwhile. If one dies, that is raised.
    """
    begun = {low: _probe(open_probe, *probe) for low, probe in _PROBES.items()}

    def told() -> str | None:
        for low, wait in begun.items():
            _, factor, even = _PROBES[low]
            try:
                overflow, rounding = wait()
            except ModelError as error:
                if type(error) is not ModelError:
                    raise
                return f"the test model for {low} does not run on {provider}: {error.message}"
            dropped = f"ONNX Runtime's {provider} provider drops the Casts that round to {low}"
            if overflow != math.inf:
                return f"{dropped}: 64 x {factor:g} x {factor:g} x 0.001 gave {overflow:g} instead of inf"
            if rounding != even:
                return f"{dropped}: {even + 1:g} stayed {rounding:g} instead of {even:g}"
        return None

    return told


def _probe(open_probe: Callable[[Any], Any], low: int, factor: float, even: float) -> Callable[[], tuple[float, float]]:
    """Begin with one test model; what is returned waits for its two outputs."""
    import numpy as np
    from onnx import parser

    proto = parser.parse_model(_PROBE.replace("LOW", str(low)))
    row = np.full((1, 64), factor, np.float32)
    feed = {"row": row, "column": row.T.copy(), "even": np.array([even], np.float32)}
    try:
        runner = open_probe(proto)
        outputs = runner.start(None, feed)
    except ModelError as problem:
        return partial(_raise, problem)

    def wait() -> tuple[float, float]:
        overflow, rounding = outputs()
        runner.close()
        return float(overflow[0, 0]), float(rounding[0])

    return wait


def _raise(problem: ModelError) -> tuple[float, float]:
    raise problem
