"""Decide how the two models of a check run, and open their sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mixlist.checker.emulation import emulate, has_low_types, updates_running_statistics, widen_to_float32
from mixlist.checker.instrument import InstrumentedModel
from mixlist.checker.observer import Observer
from mixlist.checker.shared_weights import SharedWeights
from mixlist.checker.widened_nodes import number_low_nodes, round_widened_nodes
from mixlist.errors import ModelError
from mixlist.model.graph import Node
from mixlist.model.load import LoadedModel
from mixlist.model.naming import NodeRef
from mixlist.model.protos import copy_message
from mixlist.model.prune import prune_model
from mixlist.run.executors import Workers
from mixlist.run.inputs import model_inputs
from mixlist.run.model_files import external_tensors, is_readable_in_place
from mixlist.run.profiled_session import ProfiledSession
from mixlist.run.provider_rounding import start_rounding_tests
from mixlist.run.remote_session import RemoteSession
from mixlist.run.segments import SegmentedSession
from mixlist.run.session import Session, SessionOptions
from mixlist.worker_processes import WorkerDied

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.lists.policy import Clamp
    from mixlist.run.session import Feed


@dataclass(frozen=True)
class CheckSessions:
    """Opens all sessions of a check, and knows what they have in common.

    ``provider``: ``cpu`` or ``cuda``. ``workers``: the processes that run the sessions. ``saturate``: values out of
    range become the largest finite value. ``authored_reference``: the reference rounds what the author rounds.
    ``skip_optimization``: do not let ONNX Runtime optimize models, which for few batches takes longer than it saves.
    ``segment_bytes``: run models in segments of at most so many bytes of weights, None to run them whole.
    ``widened_nodes``: what ``find_widened_nodes`` found. ``absorbing``: what ``find_absorbing_softmaxes`` found in the
    original.
    """

    provider: str
    workers: Workers
    saturate: bool
    authored_reference: bool = False
    skip_optimization: bool = False
    weights: SharedWeights = field(default_factory=SharedWeights)
    segment_bytes: int | None = None
    widened_nodes: tuple[Node, ...] = ()
    absorbing: frozenset[NodeRef] = frozenset()

    @property
    def mode(self) -> Literal["emulated", "native"]:
        """Return ``emulated`` if the mixed model is emulated in float32, ``native`` if it runs as it is (Rule S8.2).

        ONNX Runtime's CPU provider computes most float16 nodes in float32, which hides overflow. No GPU saturates.
        """
        return "emulated" if self.provider == "cpu" or self.saturate else "native"

    @property
    def safe_reductions(self) -> bool:
        """Return True if statistics must not reduce an empty tensor, which the CUDA provider refuses to do."""
        return self.provider == "cuda"

    def open_mixed_observer(self, mixed: LoadedModel, instrumented: InstrumentedModel, outputs: list[str]) -> Observer:
        """Load the mixed model with its statistics, emulated in float32 or as it is."""
        # The graph of the mixed model runs as it is, with the probes and the Casts of widened nodes added and nothing
        # removed.
        if self.mode == "native":
            proto = round_widened_nodes(mixed._replace(proto=instrumented.proto), self.widened_nodes)
            session = self._provider_session(proto, mixed)
            return Observer(instrumented, session, outputs, proto)
        # The probes are in the graph before it is emulated, so that they observe the rounded tensors.
        instrumented_model = mixed._replace(proto=instrumented.proto)
        is_shared = self._is_shared(mixed)
        proto = emulate(instrumented_model, saturate=self.saturate, keep_external=is_shared, absorbing=self.absorbing)
        # A counting session requests no output of the model: then only the nodes that its statistics need remain.
        prune_model(proto, [*outputs, *instrumented.observed_outputs])
        # The emulation declares low inputs as float32. By the inputs of the mixed model the observer rounds their
        # values.
        session = self._provider_session(proto, mixed)
        return Observer(instrumented, session, outputs, proto, model_inputs(mixed.proto))

    def open_reference_observer(
        self, original: LoadedModel, instrumented: InstrumentedModel, outputs: list[str]
    ) -> Observer:
        """Load the original with its statistics, in float32."""
        instrumented_model = original._replace(proto=instrumented.proto)
        proto = self.reference_graph(instrumented_model)
        prune_model(proto, [*outputs, *instrumented.observed_outputs])
        session = self._provider_session(proto, original)
        return Observer(instrumented, session, outputs, proto, model_inputs(original.proto))

    def open_tensors(
        self,
        observer: Observer,
        loaded: LoadedModel,
        tensors: Sequence[str],
        edit: Callable[[ModelProto], None] | None = None,
    ) -> Observer | None:
        """Load the model of an observer once more, with tensors of its main graph as its only outputs.

        ``edit`` changes the model before that. Return None if the model of the session lacks one of the tensors.
        """
        proto = copy_message(observer.proto)
        if edit is not None:
            edit(proto)
        computed = {name for node in proto.graph.node for name in node.output}
        if not computed.issuperset(tensors):
            return None
        declared = {output.name for output in proto.graph.output}
        tensors = list(dict.fromkeys(tensors))
        for name in tensors:
            if name not in declared:
                proto.graph.output.add(name=name)  # ONNX Runtime infers the type
        prune_model(proto, tensors)
        return observer.with_session(self._provider_session(proto, loaded), tensors)

    def find_widened_nodes(self, mixed: LoadedModel, feed: Feed | None) -> tuple[Node, ...]:
        """Return the low nodes of the mixed model that ONNX Runtime computes in float32 in a run of one batch.

        Only a model that runs as it is has such nodes. There are none if the model does not run: the check runs the
        batch again, and reports why.
        """
        if self.mode != "native" or feed is None:
            return ()
        numbered, node_of = number_low_nodes(mixed.proto)
        float32_nodes: set[str] = set()
        # Without optimization, no node is fused with others.
        options = SessionOptions(provider=self.provider, optimize=False)

        def open_part(part: ModelProto) -> Session:
            return ProfiledSession(part, options, float32_nodes, workers=self.workers, folder=mixed.folder)

        try:
            size = self.segment_bytes
            with open_part(numbered) if size is None else SegmentedSession(numbered, size, open_part) as session:
                session.run(None, feed)
        except WorkerDied:
            raise
        except ModelError:
            return ()
        return tuple(node for name, node in node_of.items() if name in float32_nodes)

    def cpu_session(self, proto: ModelProto, loaded: LoadedModel) -> Session:
        """Return a session on the CPU; ``loaded`` says where the weights are."""
        return self._open(proto, loaded.folder, SessionOptions(), wait=True)

    def open_optimized(self, loaded: LoadedModel) -> Session:
        """Return a session of the reference without statistics, with the optimizations that ONNX Runtime has for it."""
        options, workers = SessionOptions(provider=self.provider), replace(self.workers, reports_crashes=False)
        return RemoteSession(self.reference_graph(loaded), options, workers=workers, folder=loaded.folder)

    def share_weights(self, loaded: LoadedModel, clamp: Clamp = "") -> LoadedModel:
        """Return the model with its large weights in the folder that all sessions of the check read.

        ``clamp``: weights that are still to be converted to a low type are clamped to its range. A model that runs in
        segments is returned as it is, if every session can read its data where they are.
        """
        if self._stays_in_its_folder(loaded):
            return loaded
        return self.weights.share(loaded, widened=self.mode == "emulated", clamp=clamp)

    def reference_graph(self, loaded: LoadedModel) -> ModelProto:
        """Return the model with all low types widened to float32; an authored reference still rounds to them.

        A model that has shared weights and no low type is returned as it is, not as a copy.
        """
        # Every other model is copied even if nothing in it is low, because the copy holds its external data.
        is_shared = self._is_shared(loaded)
        if is_shared and not has_low_types(loaded.proto):
            return loaded.proto
        if self.authored_reference:
            return emulate(loaded, saturate=self.saturate, keep_external=is_shared)
        return widen_to_float32(loaded, keep_external=is_shared)

    def _is_shared(self, loaded: LoadedModel) -> bool:
        return loaded.folder == self.weights.folder or self._stays_in_its_folder(loaded)

    def _stays_in_its_folder(self, loaded: LoadedModel) -> bool:
        """Return True for a model that runs in segments, and whose external data ONNX Runtime reads where they are."""
        # The data of an emulated low tensor must change, and data in the model would be copied with the model.
        if self.segment_bytes is None or not external_tensors(loaded.proto) or has_low_types(loaded.proto):
            return False
        return is_readable_in_place(loaded.proto, loaded.folder)

    def _provider_session(self, proto: ModelProto, loaded: LoadedModel) -> Session:
        return self._open(proto, loaded.folder, SessionOptions(provider=self.provider))

    def _open(self, proto: ModelProto, folder: Path | None, options: SessionOptions, *, wait: bool = False) -> Session:
        """Open a session of a model, whole or in segments."""
        if self.segment_bytes is None:
            return self._open_whole(proto, folder, options, wait=wait)
        options = replace(options, prepack=False)
        return SegmentedSession(
            proto, self.segment_bytes, lambda part: self._open_whole(part, folder, options, wait=True)
        )

    def _open_whole(
        self, proto: ModelProto, folder: Path | None, options: SessionOptions, *, wait: bool = False
    ) -> Session:
        """Open a session of a model that is not cut."""
        proto = _with_running_statistics_as_outputs(proto)
        # Every tensor of these models has a probe: ``lean`` releases each tensor as soon as it is reduced. For few
        # batches, to pack weights takes longer than it saves, too.
        is_short = self.skip_optimization
        options = replace(options, optimize=not is_short, prepack=options.prepack and not is_short, lean=True)
        return RemoteSession(proto, options, workers=self.workers, folder=folder, wait=wait)

    def start_rounding_tests(self) -> Callable[[], None]:
        """Start to test whether these sessions keep the Casts that round.

        The returned function waits for the result. It raises ModelError if the sessions do not round.
        """
        # One thread is enough for the tiny models of the tests.
        options = SessionOptions(provider=self.provider, threads=1)
        find_problem = start_rounding_tests(self.provider, lambda proto: self._open_whole(proto, None, options))

        def wait() -> None:
            if problem := find_problem():
                raise ModelError(f"a check with this ONNX Runtime is not reliable: {problem}")

        return wait


def _with_running_statistics_as_outputs(proto: ModelProto) -> ModelProto:
    """Return a model in which no run changes the running mean and variance that the next run reads.

    ONNX Runtime writes these outputs of a BatchNormalization in training mode into the initializers that the node
    reads, unless they are outputs of the graph. A model without such a node is returned as it is.
    """
    outputs = {output.name for output in proto.graph.output}
    running = [
        name
        for node in proto.graph.node
        if updates_running_statistics(node)
        for name in node.output[1:]
        if name and name not in outputs
    ]
    if running:
        proto = copy_message(proto)
        for name in running:
            proto.graph.output.add(name=name)  # ONNX Runtime infers the type
    return proto
