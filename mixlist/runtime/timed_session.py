"""Time the runs of a session in a process of its own: ``TimedSession`` here, ``_TimedLocalSession`` in that process.

The batches are sent first; the worker process runs them and looks at its own clock, so that pipes and pickles are not
timed. It also tells the memory that the session took.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mixlist.runtime.inference_session import runtime_errors
from mixlist.runtime.local_session import LocalSession, as_ort_value
from mixlist.runtime.session import SessionOptions
from mixlist.runtime.subprocess_session import SubprocessSession
from mixlist.targets.providers import PROVIDERS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue

    from mixlist.runtime.session import Array, Feed

_STATUS = Path("/proc/self/status")


class _TimedLocalSession(LocalSession):
    """A session that keeps batches and times its own runs."""

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self._start_memory: int | None = None  # bytes that the process held before it loaded the model
        self._feeds: list[Feed] = []
        self._bindings: list[IOBinding] = []
        self._device = "cuda" if PROVIDERS["cuda"] in session.get_providers() else "cpu"
        self._declared = [output.shape for output in session.get_outputs()]
        self._rebind = False  # before every run, since the model declares an output otherwise than it is

    @classmethod
    def open(cls, path: str, options: SessionOptions, folder: Path | None) -> Self:
        """Load a model file; what the process held before is not counted as the session's memory."""
        import numpy as np  # noqa: F401  numpy and ONNX Runtime are the process's, not the session's
        import onnxruntime  # noqa: F401

        before = _reset_peak()
        session = super().open(path, replace(options, tf32=True), folder)
        session._start_memory = before
        return session

    def load_batches(self, feeds: Sequence[Feed], transfers: bool) -> bool:
        """Keep the batches: on the provider's device, or with ``transfers`` here, to be carried over in each run.

        Sequences and optionals can only be carried over. Returns whether each run transfers its batch.
        """
        tensors = all(hasattr(value, "dtype") for feed in feeds for value in feed.values())
        bind = tensors and not transfers and all(o.type.startswith("tensor") for o in self.live.get_outputs())
        with runtime_errors("take the data"):
            self._feeds = [] if bind else list(feeds)
            self._bindings = [self._bind(feed) for feed in feeds] if bind else []
        return not bind

    def _bind(self, feed: Feed) -> IOBinding:
        binding = self.live.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, _value_on(array, self._device))
        self._bind_outputs(binding)
        return binding

    def _bind_outputs(self, binding: IOBinding) -> None:
        binding.clear_binding_outputs()
        for name in self.names:
            binding.bind_output(name, self._device)

    def time_runs(self, batch: int, runs: int) -> float:
        """Return the seconds for ``runs`` runs of one batch, in a row; a batch's first call must be for one run."""
        session = self.live
        with runtime_errors("run the model"):
            if self._feeds:
                feed, names = self._feeds[batch], list(self.names)
                start = time.perf_counter()
                for _ in range(runs):
                    session.run(names, feed)
                return time.perf_counter() - start
            binding = self._bindings[batch]
            start = time.perf_counter()
            for _ in range(runs):
                if self._rebind:
                    self._bind_outputs(binding)
                session.run_with_iobinding(binding)  # returns when the device is done
            seconds = time.perf_counter() - start
            # A binding keeps its outputs for the next run, which fails where they are not as declared.
            self._rebind = self._rebind or any(map(_contradicts, self._declared, binding.get_outputs()))
            return seconds

    def peak_memory(self) -> int | None:
        """Return the most bytes that the process held since loading began, above what it held before."""
        peak = _peak()
        return None if peak is None or self._start_memory is None else max(peak - self._start_memory, 0)

    def end_profile(self) -> str:
        """End profiling; return the path of the profile."""
        return str(self.live.end_profiling())


class TimedSession(SubprocessSession):
    """A session in a process of its own that keeps batches and times their runs.

    TF32 is as ONNX Runtime has it by default (on), since that is what a user's float32 model runs in.
    """

    kind = _TimedLocalSession

    def load_batches(self, feeds: Sequence[Feed], transfers: bool) -> bool:
        """Send the batches; with ``transfers`` each run carries its batch to the device and the outputs back.

        Returns whether each run does so: sequences and optionals cannot wait on the device.
        """
        return self.call(_TimedLocalSession.load_batches, list(feeds), transfers)

    def time_runs(self, batch: int, runs: int) -> float:
        """Return the seconds for ``runs`` runs of one batch, in a row."""
        return self.call(_TimedLocalSession.time_runs, batch, runs)

    def peak_memory(self) -> int | None:
        """Return the most bytes of host memory that loading and running took, None where the system does not tell."""
        return self.call(_TimedLocalSession.peak_memory)

    def end_profile(self) -> Path:
        """End profiling; return the profile's path."""
        return Path(self.call(_TimedLocalSession.end_profile))


def _contradicts(declared: Sequence[int | str | None] | None, output: OrtValue) -> bool:
    """Return True if an output has another shape than the model declares."""
    shape = output.shape()
    if not declared:  # a scalar, or nothing declared
        return False
    return len(declared) != len(shape) or any(
        isinstance(wanted, int) and wanted != size for wanted, size in zip(declared, shape, strict=True)
    )


def _value_on(array: Array, device: str) -> OrtValue:
    from onnxruntime import OrtValue

    if device == "cpu" or array.dtype.kind in "OSU" or array.dtype.name == "bfloat16":  # these live on the host
        return as_ort_value(array)
    return OrtValue.ortvalue_from_numpy(array, device, 0)


def _reset_peak() -> int | None:
    """Start the count of the peak anew where the system permits it; return the bytes held now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS") if _STATUS.exists() else _peak()


def _peak() -> int | None:
    if _STATUS.exists():  # not getrusage: there a new program inherits the peak of the one that started it
        return _status("VmHWM")
    with suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None


def _status(key: str) -> int | None:
    match = re.search(rf"^{key}:\s*(\d+)", _STATUS.read_text("ascii", "replace"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None
