"""Run a step graph: one training step, and evaluation, in float32 or as the lists make it.

On the CPU the mixed step is emulated: every low value is rounded through a pair of Casts, since ONNX Runtime's CPU
provider hides float16. On CUDA it runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mixlist.diagnostics import Diagnostic, warning
from mixlist.emulation.emulate import emulate, raise_to_float32
from mixlist.errors import ModelError
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.prune import prune_model
from mixlist.lists.policy import Policy
from mixlist.resolver import resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.feeds import as_float32
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions
from mixlist.torch_export.step_format import GRADIENT_PREFIX, LOSS, LOSS_SCALE, STATE_PREFIX
from mixlist.training.step_graph import Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.runtime.session import Array, Feed, Outputs

    Floats = NDArray[np.float32]


class FlatArrays:
    """Parameters, one behind the other in a flat float32 array; ``views`` are the arrays in it, by name."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        sizes = [int(np.prod(p.shape, dtype=np.int64)) for p in parameters]
        self.data: Floats = np.zeros(sum(sizes), np.float32)
        parts = np.split(self.data, np.cumsum(sizes)[:-1])
        self.views = {p.name: part.reshape(p.shape) for p, part in zip(parameters, parts, strict=True)}


@dataclass
class StepResult:
    """The results of one step: the unscaled loss, the scaled gradients flat, the buffers' new values."""

    loss: float
    gradient: Floats
    state: dict[str, Array]


class StepSession:
    """A session of a step graph; parameters and buffers are fed with every step. ``warnings``: of what was made low.

    ``raised``: float16 and bfloat16 inputs of the graph are float32 in ``proto``.
    """

    warnings: tuple[Diagnostic, ...] = ()

    def __init__(
        self, graph: StepGraph, proto: ModelProto, provider: str = "cpu", threads: int | None = None, *, raised: bool
    ) -> None:
        self.graph = graph
        self._raised = raised
        self.gradient = FlatArrays(graph.parameters)
        self._names = [
            LOSS,
            *(GRADIENT_PREFIX + p.name for p in graph.parameters),
            *(STATE_PREFIX + b.name for b in graph.buffers),
        ]
        self._options = SessionOptions(provider=provider, threads=threads)
        self._proto = proto
        self._session = self._load(proto)
        self._evaluation: LocalSession | None = None  # the forward pass, made for the first outputs asked for
        scale = next(i for i in graph.loaded.proto.graph.input if i.name == LOSS_SCALE)
        self._scale_shape = (1,) * len(scale.type.tensor_type.shape.dim)

    def _load(self, proto: ModelProto) -> LocalSession:
        return LocalSession(make_session(proto, self._options, folder=self.graph.loaded.folder))

    def step(self, feed: Feed, scale: float) -> StepResult:
        """Run one forward and backward pass; ``feed`` holds everything but the scale."""
        loss, *rest = self._session.run(self._names, self._fed(feed, scale))
        if loss.size != 1:
            raise ModelError(f"{self.graph.name}: the loss has {loss.size} values", hint="reduce it to its mean")
        gradients, state = rest[: len(self.graph.parameters)], rest[len(self.graph.parameters) :]
        for (name, view), gradient in zip(self.gradient.views.items(), gradients, strict=True):
            if gradient.shape != view.shape:
                shapes = f"the gradient of {name!r} is {list(gradient.shape)}, the parameter {list(view.shape)}"
                raise ModelError(f"{self.graph.name}: {shapes}", hint="a gradient has the shape of its parameter")
            view[...] = gradient
        names = (buffer.name for buffer in self.graph.buffers)
        return StepResult(float(loss.item()), self.gradient.data, dict(zip(names, state, strict=True)))

    def scale(self, value: float) -> Floats:
        """Return the loss scale as the graph takes it; beyond float32 it is infinite there, and the step is bad."""
        with np.errstate(over="ignore"):
            return np.full(self._scale_shape, value, np.float32)

    def outputs(self, feed: Feed, names: Sequence[str]) -> Outputs:
        """Run the forward pass alone, for evaluation; ``names`` must be the same in every call."""
        if self._evaluation is None:
            forward = copy_message(self._proto)
            prune_model(forward, names)
            self._evaluation = self._load(forward)
        return self._evaluation.run(list(names), self._fed(feed, 1.0))

    def _fed(self, feed: Feed, scale: float) -> Feed:
        batch = as_float32(feed, self.graph.batch_inputs) if self._raised else feed
        return {**batch, LOSS_SCALE: self.scale(scale)}

    def close(self) -> None:
        """Let the sessions go."""
        for session in (self._session, self._evaluation):
            if session is not None:
                session.close()


def make_float32_session(graph: StepGraph, provider: str, threads: int | None) -> StepSession:
    """Return a session of the step in float32."""
    return StepSession(graph, raise_to_float32(graph.loaded), provider, threads, raised=True)


def make_mixed_session(graph: StepGraph, policy: Policy, provider: str, threads: int | None) -> StepSession:
    """Return a session of the step as the lists make it."""
    plan = resolve(graph.loaded, policy)
    mixed = replace(graph.loaded, proto=rewrite(graph.loaded, plan).proto)
    emulated = provider == "cpu"
    session = StepSession(graph, emulate(mixed) if emulated else mixed.proto, provider, threads, raised=emulated)
    session.warnings = tuple(plan.warnings)
    if policy.mode.low not in plan.counts:
        session.warnings += (warning("ML605", "no node is low: the mixed training is the one in float32"),)
    return session
