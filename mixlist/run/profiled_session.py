"""Run a model once in another process, and learn from ONNX Runtime's profile which nodes computed in float32."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mixlist.files.scratch_folder import ScratchFolder
from mixlist.run.executors import Workers
from mixlist.run.local_session import LocalSession
from mixlist.run.profile_reader import find_float32_nodes, read_events
from mixlist.run.remote_session import RemoteSession
from mixlist.run.session import SessionOptions

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

    from mixlist.run.session import Feed, Outputs


class ProfiledSession(RemoteSession):
    """A session for one run, which adds the names of the nodes that computed in float32 to ``float32_nodes``."""

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        options: SessionOptions,
        float32_nodes: set[str],
        *,
        workers: Workers,
        folder: Path | None = None,
    ) -> None:
        super().__init__(model, options, workers=workers, folder=folder, session_class=_LocalProfiledSession)
        self._float32_nodes = float32_nodes

    def run(self, output_names: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model, and return the values of the outputs."""
        # One call: the worker that runs the model has the file of the profile.
        outputs, names = self.call(_LocalProfiledSession.run_with_profile, output_names, dict(feed))
        self._float32_nodes |= names
        return outputs


class _LocalProfiledSession(LocalSession):
    """The session in the worker."""

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self._scratch: ScratchFolder | None = None

    @classmethod
    def open(cls, model: str | bytes, options: SessionOptions, folder: Path | None = None) -> Self:
        """Load a model."""
        scratch = ScratchFolder()
        session = super().open(model, replace(options, profile=scratch.path / "profile"), folder)
        session._scratch = scratch  # it is removed with the session
        return session

    def run_with_profile(self, output_names: Sequence[str] | None, feed: Feed) -> tuple[Outputs, set[str]]:
        """Run the model; return the values of the outputs, and the names of the nodes that computed in float32."""
        outputs = self.run(output_names, feed)
        return outputs, find_float32_nodes(read_events(Path(self.inference_session.end_profiling())))
