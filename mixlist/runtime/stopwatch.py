"""The child's side of ``timed``: a session that holds its batches and times its own runs, and the memory it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.runtime.sessions import Runner, _as_value, _told, open_session
from mixlist.targets.providers import PROVIDERS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_STATUS = Path("/proc/self/status")


class Stopwatch(Runner):
    """A session whose runs are timed where they happen: pipes and pickles stay outside."""

    def __init__(self, session: InferenceSession, before: int | None) -> None:
        super().__init__(session)
        self._before = before
        self._feeds: list[dict[str, Any]] = []
        self._bindings: list[Any] = []
        self._device = "cpu"
        self._declared = [output.shape for output in session.get_outputs()]
        self._rebind = False  # before every run, since the model declares an output otherwise than it is

    @classmethod
    def open(cls, path: str, options: Mapping[str, Any]) -> Stopwatch:
        """Load a model; what the process takes before that is not counted as the session's."""
        import numpy as np  # noqa: F401  numpy and ONNX Runtime are the process's, not the session's
        import onnxruntime  # noqa: F401

        before = _start_peak()
        return cls(open_session(path, **options), before)

    def hold(self, feeds: Sequence[Mapping[str, Any]], transfers: bool) -> bool:
        """Keep the batches: on the provider's device, or with ``transfers`` here, to be carried over each time.

        Sequences and optionals can only be carried over. Returns whether each run transfers its batch.
        """
        session = self._live()
        self._device = "cuda" if PROVIDERS["cuda"] in session.get_providers() else "cpu"
        tensors = all(hasattr(value, "dtype") for feed in feeds for value in feed.values())
        bind = tensors and not transfers and all(o.type.startswith("tensor") for o in session.get_outputs())
        with _told("take the data"):
            self._feeds = [] if bind else [dict(feed) for feed in feeds]
            self._bindings = [self._bind(session, feed) for feed in feeds] if bind else []
        return not bind

    def _bind(self, session: InferenceSession, feed: Mapping[str, Any]) -> Any:
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, _value_on(array, self._device))
        self._bind_outputs(binding)
        return binding

    def _bind_outputs(self, binding: Any) -> None:
        binding.clear_binding_outputs()
        for name in self.names:
            binding.bind_output(name, self._device)

    def time(self, batch: int, runs: int) -> float:
        """Seconds for ``runs`` runs of one batch, in a row; a batch's first call must be for one run."""
        session = self._live()
        with _told("run the model"):
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

    def peak(self) -> int | None:
        """The most bytes of memory that the process held since loading began, above what it held before."""
        peak = _peak()
        return None if peak is None or self._before is None else max(peak - self._before, 0)

    def end_profile(self) -> str:
        """End profiling; returns the path of the profile."""
        return str(self._live().end_profiling())

    def _live(self) -> InferenceSession:
        assert self._session is not None, "used after close"
        return self._session


def _contradicts(declared: Sequence[int | str | None] | None, output: Any) -> bool:
    shape = output.shape()
    if not declared:  # a scalar, or nothing said
        return False
    return len(declared) != len(shape) or any(
        isinstance(said, int) and said != size for said, size in zip(declared, shape, strict=True)
    )


def _value_on(array: Any, device: str) -> Any:
    from onnxruntime import OrtValue

    if device == "cpu" or array.dtype.kind in "OSU" or array.dtype.name == "bfloat16":  # these live on the host
        return _as_value(array)
    return OrtValue.ortvalue_from_numpy(array, device, 0)


def _start_peak() -> int | None:
    """Start the count of the peak anew where the system lets us; returns the bytes held now."""
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
    for line in _STATUS.read_text("ascii", "replace").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None
