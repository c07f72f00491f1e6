"""A step graph in sessions: one training step, and evaluation, in float32 or as the lists make it.

On the CPU the mixed step is emulated: every low value is rounded through a pair of Casts, since ONNX Runtime's CPU
provider hides float16. On CUDA it runs as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mixlist.emulation.emulate import emulate, raise_low
from mixlist.errors import ModelError
from mixlist.graph.messages import copied
from mixlist.graph.prune import trim
from mixlist.lists.policy import Policy
from mixlist.resolver import resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions
from mixlist.training.stepgraph import GRADIENT, LOSS, SCALE, STATE, Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Flat:
    """Parameters, one behind the other in a flat float32 array; ``views`` are the arrays in it, by name."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        import numpy as np

        sizes = [int(np.prod(p.shape, dtype=np.int64)) for p in parameters]
        self.data: Array = np.zeros(sum(sizes), np.float32)
        self.views: dict[str, Array] = {}
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            self.views[parameter.name] = self.data[start : start + size].reshape(parameter.shape)
            start += size


@dataclass
class Stepped:
    """What one step gave: the unscaled loss, the scaled gradients flat, the buffers' new values."""

    loss: float
    gradient: Array
    state: dict[str, Array]


class Machine:
    """A session of a step graph; parameters and buffers are fed with every step. ``warnings``: of what was made low."""

    warnings: tuple[str, ...] = ()

    def __init__(self, graph: StepGraph, proto: Any, folder: Any, provider: str = "cpu", threads: int | None = None):
        self.graph = graph
        self.gradient = Flat(graph.parameters)
        self._names = [LOSS, *(GRADIENT + p.name for p in graph.parameters), *(STATE + b.name for b in graph.buffers)]
        self._options = SessionOptions(provider=provider, threads=threads)
        self._session = LocalSession(make_session(proto, self._options, folder=folder))
        self._eval: LocalSession | None = None  # the forward pass alone, made for the first outputs that are asked for
        scale = next(i for i in graph.loaded.proto.graph.input if i.name == SCALE)
        self._scale_shape = tuple(1 for _ in scale.type.tensor_type.shape.dim)
        self._proto, self._folder = proto, folder

    def step(self, feed: Mapping[str, Any], scale: float) -> Stepped:
        """One forward and backward pass; ``feed`` holds everything but the scale."""
        loss, *rest = self._session.run(self._names, {**feed, SCALE: self.scale(scale)})
        if loss.size != 1:
            raise ModelError(f"{self.graph.name}: the loss has {loss.size} values", hint="reduce it to its mean")
        count = len(self.graph.parameters)
        for (name, view), made in zip(self.gradient.views.items(), rest[:count], strict=True):
            if made.shape != view.shape:
                told = f"the gradient of {name!r} is {list(made.shape)}, the parameter {list(view.shape)}"
                raise ModelError(f"{self.graph.name}: {told}", hint="a gradient has the shape of its parameter")
            view[...] = made
        state = dict(zip((b.name for b in self.graph.buffers), rest[count:], strict=True))
        return Stepped(float(loss.reshape(())), self.gradient.data, state)

    def scale(self, value: float) -> Array:
        """The loss scale as the graph takes it; one beyond float32 is infinite there, and the step is bad."""
        import numpy as np

        with np.errstate(over="ignore"):
            return np.full(self._scale_shape, value, np.float32)

    def outputs(self, feed: Mapping[str, Any], names: Sequence[str]) -> list[Array]:
        """Outputs of the forward pass, the same ones in every call, for evaluation: the backward pass is left out."""
        if self._eval is None:
            proto = copied(self._proto)
            trim(proto, names)
            self._eval = LocalSession(make_session(proto, self._options, folder=self._folder))
        found: list[Array] = self._eval.run(list(names), {**feed, SCALE: self.scale(1.0)})
        return found

    def close(self) -> None:
        """Let the sessions go."""
        for session in (self._session, self._eval):
            if session is not None:
                session.close()


def exact_machine(graph: StepGraph, provider: str, threads: int | None) -> Machine:
    """The step in float32."""
    return Machine(graph, raise_low(graph.loaded), graph.loaded.folder, provider, threads)


def mixed_machine(graph: StepGraph, policy: Policy, provider: str, threads: int | None) -> Machine:
    """The step as the lists make it."""
    plan = resolve(graph.loaded, policy)
    mixed = replace(graph.loaded, proto=rewrite(graph.loaded, plan).proto)
    proto = emulate(mixed) if provider == "cpu" else mixed.proto
    made = Machine(graph, proto, mixed.folder, provider, threads)
    made.warnings = tuple(map(str, plan.warnings))
    if policy.mode.low not in plan.counts:
        made.warnings += ("no node is low: the mixed training is the one in float32",)
    return made
