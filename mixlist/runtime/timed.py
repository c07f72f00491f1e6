"""A session in a process of its own that times its runs itself (``stopwatch``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixlist.runtime.subprocess_session import Worker


class TimedWorker(Worker):
    """A Worker that keeps batches and times their runs; the options are those of Worker.

    ``profile`` is the prefix of ONNX Runtime's profile, ``optimised`` where it saves the graph that it runs. TF32 is as
    ONNX Runtime has it by default (on), since that is what a user's float32 model runs in; threads sleep between runs,
    so that the session does not slow down the one it is compared with.
    """

    def __init__(
        self,
        model: Any,
        *,
        provider: str = "cpu",
        folder: Path | None = None,
        threads: int | None = None,
        profile: Path | None = None,
        optimised: Path | None = None,
    ) -> None:
        super().__init__(
            model,
            provider=provider,
            folder=folder,
            threads=threads,
            profile=profile,
            optimised=optimised,
            tf32=True,
            spin=False,
            timed=True,
        )

    def hold(self, feeds: Sequence[Mapping[str, Any]], transfers: bool) -> bool:
        """Send the batches; with ``transfers`` each run carries its batch to the device and the outputs back.

        Returns whether each run does so: sequences and optionals cannot wait on the device.
        """
        carried: bool = self._ask("hold", list(feeds), transfers)
        return carried

    def time(self, batch: int, runs: int) -> float:
        """Seconds for ``runs`` runs of one batch, in a row."""
        seconds: float = self._ask("time", batch, runs)
        return seconds

    def peak(self) -> int | None:
        """The most bytes of host memory that loading and running took, None where the system does not tell."""
        peak: int | None = self._ask("peak")
        return peak

    def end_profile(self) -> Path:
        """End profiling; returns the profile's path."""
        return Path(self._ask("end_profile"))
