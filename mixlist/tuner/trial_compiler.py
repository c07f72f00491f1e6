"""The side of a trial that decides: a choice of edits becomes a plan, the plan becomes flags of the gated graph."""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from mixlist.checker.result import TensorRange
from mixlist.cost.estimate import costs, low_share
from mixlist.errors import ModelError
from mixlist.graph.constness import is_random
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import NodeRef
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.resolver import Plan, Resolver
from mixlist.resolver.decisions import Solution
from mixlist.runtime.feeds import as_float32
from mixlist.runtime.inputs import model_inputs
from mixlist.tuner.candidates import Choice, policy_of
from mixlist.tuner.gated_graph import GatedGraph, gate
from mixlist.tuner.graph_partition import cuts, split
from mixlist.tuner.mask_judge import Masked
from mixlist.tuner.rounding_plan import Calls, Rounding, RoundingPlanner, RoundingPoint
from mixlist.tuner.trial_outcome import Goal
from mixlist.tuner.trial_statistics import Watch, watched
from mixlist.tuner.trial_worker import Batch, Payload, pack

INLINE_LIMIT = 2**31 - 2**20  # protobuf holds no larger model, and a session of bytes takes no other


class Rig:
    """One model to be tried under many choices; ``feeds`` and ``labels`` are the data of the trials.

    ``tensors`` is what the reference's values are like; ``goal`` is what trials are judged by. Raises
    ModelError for a model that outgrows protobuf.
    """

    def __init__(
        self,
        resolver: Resolver,
        base: Policy,
        feeds: Sequence[Mapping[str, Any]],
        tensors: Sequence[TensorRange],
        *,
        labels: Any = None,
        saturate: bool = False,
        threads: int | None = None,
        goal: Goal | None = None,
    ) -> None:
        self.resolver, self.base = resolver, base
        self.goal = goal
        self.saturate, self.threads, self.labels = saturate, threads, labels
        inputs = model_inputs(resolver.loaded.proto)
        self.feeds = tuple(as_float32(feed, inputs) for feed in feeds)  # as the gated graph takes them
        self.low = types.ELEMENT[base.mode.low]
        self.own = tuple(o.name for o in resolver.loaded.proto.graph.output)
        self.masked = Masked(resolver.loaded, resolver.graph, self.low, saturate)
        self.costs = costs(resolver.graph, {}, self.shapes)
        self.places = cuts(resolver.graph, self.costs)
        self.tensors = tensors
        self.proto, self.watch = self._watched(self.masked.wired)
        self.again = resolver.incremental_solver(base)
        self.planner = RoundingPlanner()
        self.wanted: dict[RoundingPoint, tuple[Rounding, ...]] = {}
        self.gated: GatedGraph | None = None
        # the flags that are on, of this gated graph
        self._on: WeakKeyDictionary[Solution, dict[Calls, list[int | None]]] = WeakKeyDictionary()
        self.token = ""
        self.payload: str = ""
        self._home = tempfile.TemporaryDirectory(prefix="mixlist-")
        self._shares: dict[Choice, float | None] = {}

    def plan(self, choice: Choice) -> Plan:
        """What ``resolve`` says under the choice."""
        return self.resolver.plan(policy_of(self.base, choice))

    def solution(self, choice: Choice) -> Solution:
        """The same decisions without the plan around them: from those of an earlier choice, where that can be."""
        return self.again.decide(policy_of(self.base, choice))

    def offer(self, choice: Choice) -> None:
        """Let the gated graph round as under the choice, also where one of its low nodes alone is low.

        The two differ in the inputs that are rounded already: to round them again changes nothing, but takes time.
        """
        main = self.solution(choice)
        for every in (True, False):  # what comes last is tried first
            for site, rounding in self.planner.roundings(main, every=every).items():
                known = self.wanted.get(site, ())
                spares = not every and len(known) == 1 and known[0] != rounding
                if spares or not any(offered.covers(rounding) for offered in known):
                    self.wanted[site] = (*known, rounding)
                    self.gated = None
                    self._on.clear()

    def flags(self, choice: Choice) -> bytes:
        """The flags of a choice, packed; makes the gated graph where there is none that serves."""
        found = self.flags_if_served(choice)
        if found is None:
            self.offer(choice)
            self._build()
            found = self.flags_if_served(choice)
            assert found is not None, "a plan that was offered is served"
        return found

    def flags_if_served(self, choice: Choice) -> bytes | None:
        """The flags of a choice, packed; None where there is no gated graph yet that can round as it says."""
        if self.gated is None:
            return None
        found: list[int] = []
        for calls, solution in self.planner.reached(self.solution(choice)):
            known = self._on.setdefault(solution, {})
            if calls not in known:
                local = self.planner.local(solution, self.again.origin)
                wanted = (*local.nodes.items(), *local.slots.items())
                known[calls] = [self.gated.find(site.under(calls), what) for site, what in wanted]
            for at in known[calls]:
                if at is None:
                    return None
                found.append(at)
        return pack(found, len(self.gated.gates))

    def settle(self, choice: Choice, at: int, batch: Batch) -> Batch:
        """A batch of a trial with its doubtful ranges judged."""
        if batch.doubtful is None:
            return batch
        overflow = self.masked.overflow(self.feeds[at], batch.doubtful, self.solution(choice))
        return replace(batch, overflow=overflow, doubtful=None)

    def share(self, choice: Choice) -> float | None:
        """Share of the work of matrix products and convolutions that is low; None where there is none."""
        if choice not in self._shares:
            self._shares[choice] = low_share(self.solution(choice), self.base.mode.low, self.costs)
        return self._shares[choice]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The input shapes of the first batch."""
        first = self.feeds[0] if self.feeds else {}
        return {name: tuple(value.shape) for name, value in first.items() if hasattr(value, "shape")}

    def low_nodes(self, choice: Choice) -> set[NodeRef]:
        """The nodes that round anything under the choice."""
        reached = self.planner.reached(self.solution(choice))
        sites = (self.planner.local(solution, self.again.origin).nodes for _, solution in reached)
        return {site.node for each in sites for site in each}

    def no_flags(self) -> bytes:
        """The flags of the reference: nothing is rounded."""
        if self.gated is None:
            self._build()
        assert self.gated is not None
        return pack([], len(self.gated.gates))

    def distrust(self) -> None:
        """Watch every tensor from now on, also those that ``spared`` takes to be finite."""
        self.proto, self.watch = self._watched(())
        self.gated = None
        self._on.clear()

    def _watched(self, wired: Sequence[DataflowNode]) -> tuple[Any, Watch]:
        ranges, masks = self.resolver.ranges, self.masked.masks
        proto = self.resolver.loaded.proto
        return watched(proto, self.tensors, masks, self.low, self.saturate, wired, self.places, ranges.of)

    def _build(self) -> None:
        loaded = replace(self.resolver.loaded, proto=self.proto)
        made = gate(loaded, self.wanted, clamp=self.base.constants == "clamp", saturate=self.saturate)
        if made.proto.ByteSize() > INLINE_LIMIT:
            raise ModelError(
                f"{self.resolver.loaded.name} is too large to be tuned: its weights, rounded and not, outgrow 2 GiB",
                hint="check single lists with mixlist check",
            )
        payload = Payload(
            split(made, self.watch.ends),
            len(made.gates),
            self.own,
            made.outputs[: len(self.own)],
            self.watch,
            self.feeds,
            self.goal is not None and self.goal.first_counts(len(self.feeds)),
            self.goal.limits if self.goal is not None else None,
            not any(is_random(node) for graph in self.again.graphs.values() for node in graph.order),
            self.labels,
            self.threads,
        )
        data = pickle.dumps(payload, protocol=5)
        self.token = hashlib.sha256(data).hexdigest()[:16]
        path = Path(self._home.name, f"{self.token}.station")
        path.write_bytes(data)
        self.gated, self.payload = made, str(path)

    def close(self) -> None:
        """Remove what was written for the processes."""
        self.masked.close()
        self._home.cleanup()
