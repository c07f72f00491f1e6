"""The two models of a check: the reference in float32 and the mixed one, observed and ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mixlist.emulation.emulate import emulate, holds_low, raise_low, widen
from mixlist.emulation.float64_reference import computes_double, describe_float32_nodes
from mixlist.emulation.instrument import Instrumented, instrument
from mixlist.emulation.observer import Observer
from mixlist.emulation.shared_weights import SharedWeights
from mixlist.errors import ModelError, UsageError
from mixlist.graph.build import build_main
from mixlist.graph.dataflow import DataflowNode, trace_dataflow
from mixlist.graph.gc_pause import no_collection
from mixlist.graph.io import Loaded, load
from mixlist.graph.model import POLICY_KEY
from mixlist.graph.prune import trim
from mixlist.graph.refs import TensorRef
from mixlist.lists.policy import Policy
from mixlist.ops.low_precision import LOW
from mixlist.resolver import Plan, resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.executors import Workers
from mixlist.runtime.inputs import model_inputs
from mixlist.runtime.remote_session import RemoteRunner
from mixlist.runtime.sessions import begin_probes
from mixlist.runtime.subprocess_session import Process, make_runner


@dataclass(frozen=True)
class SessionConfig:
    """How the two models run: on which provider, in which process (False: this one), saturating or not."""

    provider: str
    isolate: bool | Process
    saturate: bool
    wide: bool = False  # the reference in float64 where the operators allow it
    quick: bool = False  # for few batches: sessions load as they are, since to optimise them would take longer
    weights: SharedWeights = field(default_factory=SharedWeights)
    workers: Workers | None = None  # sessions run there: every model is sent whole

    @property
    def mode(self) -> Literal["emulated", "native"]:
        """Real low precision where the provider has it; the CPU provider hides it, and no GPU saturates."""
        return "emulated" if self.provider == "cpu" or self.saturate else "native"

    @property
    def guard(self) -> bool:
        """Whether reductions need a value at least."""
        return self.provider == "cuda"

    def observe_mixed(self, mixed: Loaded, observed: Instrumented, own: list[str]) -> Observer:
        """The mixed model, observed: emulated in float32, or as it is."""
        if self.mode == "native":
            return Observer(observed, self._runner(observed.proto, mixed), own)
        proto = emulate(replace(mixed, proto=observed.proto), saturate=self.saturate, outside=self._spilled(mixed))
        trim(proto, [*own, *observed.widths])
        return Observer(observed, self._runner(proto, mixed), own, model_inputs(mixed.proto))

    def observe_reference(self, original: Loaded, exact: Instrumented, own: list[str]) -> Observer:
        """The original in float32, observed."""
        raised = replace(original, proto=self.raised(replace(original, proto=exact.proto)))
        trim(raised.proto, [*own, *exact.widths])
        inputs = model_inputs(original.proto)
        if not self.wide:
            return Observer(exact, self._runner(raised.proto, original), own, inputs)
        try:
            runner = self.plain_runner(widen(raised, computes_double), original)
        except ModelError as problem:
            raise ModelError(
                f"the reference of {original.name} cannot be computed in float64: {problem.message}",
                hint="use --baseline float32",
            ) from None
        return Observer(exact, runner, own, inputs, wide=True)

    def plain_runner(self, proto: Any, loaded: Loaded) -> Any:
        """A session of a float32 graph on the CPU."""
        return self._make(proto, loaded.folder)

    def share(self, loaded: Loaded, clamp: bool = False) -> Loaded:
        """The model with its large weights where all sessions find them; ``clamp``: what conversions do."""
        return self.weights.share(loaded, raised=self.mode == "emulated", clamp=clamp)

    def raised(self, loaded: Loaded) -> Any:
        """The float32 graph of a model, exact; the model itself where that is what it is."""
        if self._spilled(loaded) and not holds_low(loaded.proto):
            return loaded.proto
        return raise_low(loaded, outside=self._spilled(loaded))

    def _spilled(self, loaded: Loaded) -> bool:
        return loaded.folder == self.weights.folder

    def _runner(self, proto: Any, loaded: Loaded) -> Any:
        return self._make(proto, loaded.folder, provider=self.provider, wait=False)

    def _make(self, proto: Any, folder: Path | None, **others: Any) -> Any:
        options = {"optimise": not self.quick, "lean": True, **others}
        if self.workers is None:
            return make_runner(proto, isolate=self.isolate, folder=folder, **options)
        options.pop("wait", None)
        return RemoteRunner(proto, folder, self.workers, options)

    def begin_probes(self) -> Callable[[], str | None]:
        """Ask why the sessions of this way do not round as they should: None if they do."""

        def open_probe(proto: Any) -> Any:
            return self._make(proto, None, provider=self.provider, threads=1, wait=False)

        return begin_probes(self.provider, open_probe)


@dataclass
class Pair:
    """The two models of a check: the reference in float32 and the mixed one, both observed."""

    original: Loaded
    mixed: Loaded
    plan: Plan | None
    way: SessionConfig
    reference: Observer
    ours: Observer
    wired: list[DataflowNode]
    low: dict[TensorRef, int]
    renamed: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Let both sessions go."""
        self.reference.close()
        self.ours.close()


@no_collection()
def make_pair(
    model: Any, policy: Policy, against: Any, way: SessionConfig, first: Mapping[str, Any] | None = None
) -> Pair:
    """Resolve, rewrite, observe and load both; ``against`` is a mixed model to judge instead of the policy's.

    The reference begins with the batch ``first`` while the mixed model is made, if it runs in another process.
    """
    original = load(model)
    slim = way.share(original)
    exact = instrument(slim.proto, guard=way.guard)
    reference = way.observe_reference(slim, exact, _names(slim.proto))
    unfaithful = way.begin_probes()
    reference.begin(first)
    warnings = []
    if against is None:
        plan = resolve(slim, policy)
        result = rewrite(slim, plan)
        mixed = replace(slim, proto=result.proto)
        warnings += [str(w) for w in plan.warnings]
        if any(p.key == POLICY_KEY for p in original.proto.metadata_props):
            warnings.append(
                f"{original.name} is an output of mixlist: what it lost to rounding of constants is not seen; "
                "check its original with --against"
            )
    else:
        plan, mixed = None, load(against)
        _same_outputs(original, mixed)
    mixed = way.share(mixed, clamp=policy.constants == "clamp")
    observed = instrument(mixed.proto, guard=way.guard)
    renamed = _renamed(mixed.proto)
    low = {replace_scope(p.key, renamed): p.elem for p in observed.probes if p.elem in LOW}
    if not low:
        warnings.append("no node is low: the mixed model is the original")
    wired = trace_dataflow(build_main(original.proto))
    if way.wide and (note := describe_float32_nodes(wired)):
        warnings.append(note)
    ours = way.observe_mixed(mixed, observed, _names(original.proto))
    reason = unfaithful()
    if reason:
        raise ModelError(f"this ONNX Runtime cannot be trusted to check: {reason}")
    return Pair(
        slim,
        mixed,
        plan,
        way,
        reference,
        ours,
        wired,
        low,
        renamed,
        warnings,
    )


def _names(proto: Any) -> list[str]:
    return [o.name for o in proto.graph.output]


def _same_outputs(original: Loaded, mixed: Loaded) -> None:
    missing = [n for n in _names(original.proto) if n not in _names(mixed.proto)]
    if missing:
        raise UsageError(f"{mixed.name} has no output {missing[0]!r}, which {original.name} has")


def _renamed(proto: Any) -> dict[str, str]:
    """Scope of a function that mixlist specialised, to the scope of the function it was made from."""
    found = {}
    for function in proto.functions:
        for entry in function.metadata_props:
            if entry.key == "pkg.mixlist.function":
                base = f"function:{function.domain}:"
                found[f"{base}{function.name}"] = f"{base}{entry.value}"
    return found


def replace_scope(key: TensorRef, renamed: Mapping[str, str]) -> TensorRef:
    """The TensorRef by the name that the original gives the function."""
    if not renamed or not key.scope.startswith("function:"):
        return key
    head, slash, rest = key.scope.partition("/")
    return TensorRef(f"{renamed.get(head, head)}{slash}{rest}", key.node, key.slot)
