"""Measure the time of runs in a process of its own.

A ``RemoteSession`` calls the methods of ``TimedSession`` there. The batches are sent first. The process then runs them
and reads its own clock, so that the time of pipes and pickles does not count. It also measures the memory of the
session.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Self

from mixlist.run.local_session import LocalSession, as_ort_value, translate_runtime_errors
from mixlist.run.session import SessionOptions
from mixlist.targets.providers import PROVIDERS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue

    from mixlist.run.session import Array, Feed

P = ParamSpec("P")
# The warm-up ends when so many runs in a row differ by at most this share.
_STEADY_RUNS, _STEADY_SHARE = 3, 0.05
# It ends after so many runs, too, and when so many seconds have passed since the first one: large models are slow, and
# the times of tiny ones never agree. A slow run that follows is no loss: the fastest run of a turn counts.
_MOST_WARM_UP_RUNS, _MOST_WARM_UP_SECONDS = 20, 0.3
_PROCESS_STATUS = Path("/proc/self/status")  # Linux


class TimedSession(LocalSession):
    """A session in this process that keeps batches and measures the time of its runs.

    TF32 is on, unlike in a check: it is ONNX Runtime's default, so the float32 model of a user runs with it.
    """

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self._memory_before_load: int | None = None  # bytes of the process
        # Either the feeds or the bindings are set, with one entry for each batch.
        self._feeds: list[Feed] = []
        self._bindings: list[IOBinding] = []
        self._device = "cuda" if PROVIDERS["cuda"] in session.get_providers() else "cpu"
        self._declared_shapes = [output.shape for output in session.get_outputs()]
        self._must_rebind = False  # True once an output has had another shape than the model declares

    @classmethod
    def open(cls, model: str | bytes, options: SessionOptions, folder: Path | None = None) -> Self:
        """Load a model. Memory that the process used before does not count as the memory of the session."""
        # Import both first: their memory belongs to the process and not to the session.
        import numpy as np  # noqa: F401
        import onnxruntime  # noqa: F401

        memory_before_load = _reset_peak_memory()
        session = super().open(model, replace(options, tf32=True), folder)
        session._memory_before_load = memory_before_load
        return session

    def load_batches(self, feeds: Sequence[Feed], transfers: bool) -> bool:
        """Keep the batches on the device of the provider, or with ``transfers`` in host memory.

        Batches in host memory are transferred to the device in each run. Sequences and optionals must be in host
        memory. Returns True if each run transfers its batch.
        """
        inputs_are_tensors = all(hasattr(value, "dtype") for feed in feeds for value in feed.values())
        outputs_are_tensors = all(o.type.startswith("tensor") for o in self.inference_session.get_outputs())
        # A bound tensor stays on the device from run to run, so that its transfer is not timed.
        bind = inputs_are_tensors and not transfers and outputs_are_tensors
        with translate_runtime_errors("take the data"):
            self._feeds = [] if bind else list(feeds)
            self._bindings = [self._bind(feed) for feed in feeds] if bind else []
        return not bind

    def _bind(self, feed: Feed) -> IOBinding:
        binding = self.inference_session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, _value_on_device(array, self._device))
        self._bind_outputs(binding)
        return binding

    def _bind_outputs(self, binding: IOBinding) -> None:
        binding.clear_binding_outputs()
        for name in self.output_names:
            binding.bind_output(name, self._device)

    def warm_up(self, batch: int) -> None:
        """Run one batch until the times of three runs in a row agree within 5 %: then caches and clocks are ready."""
        times: list[float] = []
        while len(times) < _MOST_WARM_UP_RUNS and sum(times[1:]) < _MOST_WARM_UP_SECONDS:
            times.append(self.time_runs(batch, 1))
            last = times[-_STEADY_RUNS:]
            if len(last) == _STEADY_RUNS and max(last) <= (1 + _STEADY_SHARE) * min(last):
                return

    def time_runs(self, batch: int, runs: int) -> float:
        """Return the least seconds of a run, of ``runs`` runs of one batch in a row.

        Another load on the machine can only make a run slower, so the least time depends on it less than the mean.

        The first call for a batch must ask for one run: the shapes of its outputs show whether outputs must be bound
        again before each run.
        """
        session = self.inference_session
        with translate_runtime_errors("run the model"):
            if self._feeds:
                feed, names = self._feeds[batch], list(self.output_names)
                return min(_measure_seconds(session.run, names, feed) for _ in range(runs))
            binding = self._bindings[batch]
            least = math.inf
            for _ in range(runs):
                if self._must_rebind:
                    self._bind_outputs(binding)
                # The run returns when the device has finished.
                least = min(least, _measure_seconds(session.run_with_iobinding, binding))
            # A binding passes its outputs to the next run as preallocated buffers. That run fails if their shapes
            # differ from the declared ones.
            self._must_rebind = self._must_rebind or any(
                map(_differs_from_declared, self._declared_shapes, binding.get_outputs())
            )
            return least

    def peak_added_memory(self) -> int | None:
        """Return the most bytes of host memory that loading and running took; None if the system does not show it."""
        peak = _read_peak_memory()
        return None if peak is None or self._memory_before_load is None else max(peak - self._memory_before_load, 0)

    def end_profile(self) -> str:
        """End profiling, and return the path of the profile."""
        return str(self.inference_session.end_profiling())


def _measure_seconds(run: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    start = time.perf_counter()
    run(*args, **kwargs)
    return time.perf_counter() - start


def _differs_from_declared(declared: Sequence[int | str | None] | None, output: OrtValue) -> bool:
    """Return True if an output has another shape than the model declares."""
    shape = output.shape()
    if not declared:  # a scalar, or an output without a declared shape
        return False
    return len(declared) != len(shape) or any(
        isinstance(declared_size, int) and declared_size != size
        for declared_size, size in zip(declared, shape, strict=True)
    )


def _value_on_device(array: Array, device: str) -> OrtValue:
    from onnxruntime import OrtValue

    # ONNX Runtime copies neither strings nor bfloat16 arrays to a GPU here: such inputs stay in host memory.
    if device == "cpu" or array.dtype.kind in "OSU" or array.dtype.name == "bfloat16":
        return as_ort_value(array)
    return OrtValue.ortvalue_from_numpy(array, device, 0)


def _reset_peak_memory() -> int | None:
    """Set the peak memory of this process to its current memory, if the system permits it.

    Returns the current memory in bytes; on systems other than Linux, the peak so far.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # 5 resets VmHWM
    return _read_status("VmRSS") if _PROCESS_STATUS.exists() else _read_peak_memory()


def _read_peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None if the system does not show it."""
    # On Linux, getrusage is not used: a process inherits the peak of the process that started it.
    if _PROCESS_STATUS.exists():
        return _read_status("VmHWM")
    with suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None


def _read_status(key: str) -> int | None:
    """Return an amount of memory in bytes from the line ``VmRSS:  1234 kB`` of the status of this process."""
    match = re.search(rf"^{key}:\s*(\d+)", _PROCESS_STATUS.read_text("ascii", "replace"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None
