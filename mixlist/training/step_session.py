"""Run a step graph in ONNX Runtime, in float32 or in mixed precision: whole training steps, or the forward pass alone.

On the CPU, the mixed step is emulated: it computes in float32 and rounds every low-precision value with a pair of
Casts. ONNX Runtime's CPU provider computes most float16 nodes in float32, so the mixed model itself would show neither
overflow nor underflow there. On CUDA, the mixed model itself runs, except for an accelerator that saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mixlist.diagnostics import Diagnostic, warning
from mixlist.emulation.emulate import emulate, widen_to_float32
from mixlist.errors import ModelError
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.prune import prune_model
from mixlist.lists.policy import Policy
from mixlist.resolver import resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.feeds import make_emulation_feed
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions
from mixlist.torch_export.step_names import LOSS_SCALE
from mixlist.training.overflow_detection import NodeOverflowDetector
from mixlist.training.step_graph import Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.runtime.session import Array, Feed, Outputs
    from mixlist.training.options import TrainOptions

    Float32Array = NDArray[np.float32]


class FlatArrays:
    """One float32 value for each element of all parameters, in a single array, so that one operation updates all.

    ``flat`` is the array of rank 1. ``views`` has the part of each parameter by name, in the parameter's shape; views
    and ``flat`` share memory.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        # np.split of the flat array gives views, and reshape of a contiguous view keeps the memory.
        sizes = [int(np.prod(parameter.shape, dtype=np.int64)) for parameter in parameters]
        self.flat: Float32Array = np.zeros(sum(sizes), np.float32)
        parts = np.split(self.flat, np.cumsum(sizes)[:-1])
        self.views = {
            parameter.name: part.reshape(parameter.shape) for parameter, part in zip(parameters, parts, strict=True)
        }


@dataclass
class StepResult:
    """The results of one step.

    ``loss`` is not scaled. ``gradient`` holds the gradients of the scaled loss in one flat array, which the next step
    of the session overwrites. ``state`` has the new values of the buffers by name. ``overflows``: True if the session
    examines every node, and one of them overflows.
    """

    loss: float
    gradient: Float32Array
    state: dict[str, Array]
    overflows: bool


class StepSession:
    """The ONNX Runtime sessions of a step graph: one for steps, one for the forward pass alone.

    Parameters and buffers are inputs, so each step feeds them.

    ``proto`` is the model to run: the step graph in float32, emulated, or mixed. ``inputs_widened`` is True if
    ``proto`` declares float32 for the float16 and bfloat16 inputs of the graph. ``gradient_arrays`` holds the gradients
    of the last step by parameter. ``warnings`` has the warnings about the lists. ``detector`` examines every node of a
    step; None if the gradients alone tell whether it overflows.
    """

    warnings: tuple[Diagnostic, ...] = ()
    detector: NodeOverflowDetector | None = None

    def __init__(
        self,
        graph: StepGraph,
        proto: ModelProto,
        provider: str = "cpu",
        threads: int | None = None,
        *,
        inputs_widened: bool,
    ) -> None:
        self.graph = graph
        self._inputs_widened = inputs_widened
        self.gradient_arrays = FlatArrays(graph.parameters)
        self._output_names = graph.step_outputs
        self._options = SessionOptions(provider=provider, threads=threads)
        self._proto = proto
        self._step_session = self._make_session(self._pruned(self._output_names) if graph.has_evaluation else proto)
        self._forward_session: LocalSession | None = None  # made by the first ``run_forward``
        scale_input = next(value for value in graph.loaded.proto.graph.input if value.name == LOSS_SCALE)
        self._scale_shape = (1,) * len(
            scale_input.type.tensor_type.shape.dim
        )  # one element of any rank: (), (1,), (1, 1), ...

    def _make_session(self, proto: ModelProto) -> LocalSession:
        return LocalSession(make_session(proto, self._options, folder=self.graph.loaded.folder))

    def _pruned(self, names: Sequence[str]) -> ModelProto:
        """Return a copy of the model with the nodes that compute the outputs ``names``."""
        proto = copy_message(self._proto)
        prune_model(proto, names)
        return proto

    def step(self, feed: Feed, scale: float) -> StepResult:
        """Run one forward and backward pass.

        ``feed`` holds every input except the loss scale, which is ``scale``. Raises ModelError if the loss or a
        gradient has another shape than the step graph needs.
        """
        loss, *arrays = self._step_session.run(self._output_names, self._complete_feed(feed, scale))
        if loss.size != 1:
            raise ModelError(f"{self.graph.name}: the loss has {loss.size} values", hint="reduce it to its mean")
        parameter_count = len(self.graph.parameters)
        gradients, buffer_values = arrays[:parameter_count], arrays[parameter_count:]
        for (name, view), gradient in zip(self.gradient_arrays.views.items(), gradients, strict=True):
            if gradient.shape != view.shape:
                shapes = f"the gradient of {name!r} is {list(gradient.shape)}, the parameter {list(view.shape)}"
                hint = "give each gradient the shape of its parameter"
                raise ModelError(f"{self.graph.name}: {shapes}", hint=hint)
            view[...] = gradient
        buffer_names = (buffer.name for buffer in self.graph.buffers)
        state = dict(zip(buffer_names, buffer_values, strict=True))
        overflows = self.detector is not None and self.detector.overflows(
            {**feed, LOSS_SCALE: self.loss_scale_input(scale)}
        )
        return StepResult(float(loss.item()), self.gradient_arrays.flat, state, overflows)

    def loss_scale_input(self, scale: float) -> Float32Array:
        """Return a loss scale as the input ``loss_scale``: one float32 number in an array of the declared rank."""
        # A scale above the float32 range becomes infinite. The step is an exception then, and the scaler lowers it.
        with np.errstate(over="ignore"):
            return np.full(self._scale_shape, scale, np.float32)

    def run_forward(self, feed: Feed, names: Sequence[str]) -> Outputs:
        """Return the outputs ``names`` without a backward pass, for evaluation.

        The first call makes the session, for these ``names`` only. So every later call must have the same ``names``.
        """
        if self._forward_session is None:
            self._forward_session = self._make_session(self._pruned(names))
        return self._forward_session.run(list(names), self._complete_feed(feed, 1.0))

    def _complete_feed(self, feed: Feed, scale: float) -> Feed:
        """Return the feed of the session: cast to the types that ``proto`` declares, and with the loss scale."""
        model_feed = make_emulation_feed(feed, self.graph.batch_inputs) if self._inputs_widened else feed
        return {**model_feed, LOSS_SCALE: self.loss_scale_input(scale)}

    def close(self) -> None:
        """Close the sessions of ONNX Runtime."""
        for session in (self._step_session, self._forward_session, self.detector):
            if session is not None:
                session.close()


def make_float32_session(graph: StepGraph, provider: str, threads: int | None) -> StepSession:
    """Return a session that runs every node of the step in float32, whatever its authored type is."""
    return StepSession(graph, widen_to_float32(graph.loaded), provider, threads, inputs_widened=True)


def make_mixed_session(graph: StepGraph, policy: Policy, options: TrainOptions) -> StepSession:
    """Return a session that runs the step under the policy: emulated, or the mixed model itself."""
    # The lists apply to a step graph as to any model: nodes of the backward pass are nodes like others.
    plan = resolve(graph.loaded, policy)
    mixed = replace(graph.loaded, proto=rewrite(graph.loaded, plan).proto)
    emulated = options.emulated
    proto = emulate(mixed, saturate=options.saturate) if emulated else mixed.proto
    session = StepSession(graph, proto, options.provider, options.threads, inputs_widened=emulated)
    if options.examines_every_node:
        session.detector = NodeOverflowDetector(graph, mixed, policy, options.provider, saturate=options.saturate)
    session.warnings = tuple(plan.warnings)
    if policy.mode.low not in plan.counts:
        session.warnings += (
            warning("ML605", "no node is low: the mixed training is the same as the float32 training"),
        )
    return session
