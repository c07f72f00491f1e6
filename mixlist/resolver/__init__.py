"""Which precision each node gets, and why. Deciding only: ``resolve`` changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.diagnostics import Diagnostic
from mixlist.graph.build import build_main
from mixlist.graph.gc_pause import no_collection
from mixlist.graph.io import Loaded, load
from mixlist.graph.model import POLICY_KEY, Graph
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.patterns.constants import ConstantRanges, Progress
from mixlist.resolver.classification import Facts
from mixlist.resolver.decisions import Solution, reached
from mixlist.resolver.node_rules import Rules
from mixlist.resolver.plan import Decision, Plan
from mixlist.resolver.solve import Resolution
from mixlist.resolver.uses import settle_constant_arguments

if TYPE_CHECKING:
    from mixlist.resolver.incremental import IncrementalSolver

__all__ = ["Decision", "Plan", "Resolved", "Resolver", "resolve"]


@dataclass(frozen=True, eq=False)
class Resolved:
    """What rewrite needs of a resolution.

    ``solutions``: the main graph's first, then one per function specialisation in order of first call.
    """

    loaded: Loaded
    graph: Graph
    policy: Policy
    low: int
    solutions: tuple[Solution, ...]
    rules: Rules
    ranges: ConstantRanges
    cast_is_black: bool


class Resolver:
    """One model, to be resolved under several policies: what does not depend on a policy is done once.

    Arguments and errors are those of ``resolve``.
    """

    @no_collection()
    def __init__(
        self, model: Any, *, type_hints: Mapping[str, str] | None = None, progress: Progress | None = None
    ) -> None:
        self.loaded = load(model)
        hints = {name: types.parse_name(text) for name, text in (type_hints or {}).items()}
        self.graph = build_main(self.loaded.proto, hints)
        self.ranges = ConstantRanges(self.loaded.folder, progress)

    def again(self, policy: Policy) -> IncrementalSolver:
        """What decides under many policies that are much like this one."""
        from mixlist.resolver.incremental import IncrementalSolver

        return IncrementalSolver(self.graph, policy, self.ranges)

    @no_collection()
    def plan(self, policy: Policy) -> Plan:
        """Decide the precision of every node under ``policy``."""
        facts, rules, ranges = Facts(policy), Rules(policy), self.ranges
        resolution = Resolution(facts, rules, ranges)
        main = resolution.solve(self.graph)
        settle_constant_arguments(main, resolution.fits, set())
        solutions = _numbered(main)
        resolved = Resolved(self.loaded, self.graph, policy, facts.low, solutions, rules, ranges, facts.cast_is_black)
        return Plan(self.loaded.name, policy, _warnings(resolved), resolved)


def resolve(
    model: Any, policy: Policy, *, type_hints: Mapping[str, str] | None = None, progress: Progress | None = None
) -> Plan:
    """Decide the precision of every node of ``model`` under ``policy`` (docs/semantics.md, S4).

    ``model`` is a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed. ``type_hints``
    names the types (``float32``, ``int64``, ...) of tensors that custom operators make, where the model does not
    declare them; ``progress`` is told the bytes of weights read. Raises ModelError for a model that cannot be
    read and ListError for a node rule that cannot hold.
    """
    return Resolver(model, type_hints=type_hints, progress=progress).plan(policy)


def _numbered(main: Solution) -> tuple[Solution, ...]:
    """The main solution and the specialisations that its calls reach; numbers them per function."""
    found = reached(main)
    per_function = Counter(s.graph.path for s in found)
    numbers: Counter[str] = Counter()
    for solution in found:
        path = solution.graph.path
        if per_function[path] > 1 and path:
            solution.number = f"#{numbers[path]}"
            numbers[path] += 1
    return tuple(found)


def _warnings(resolved: Resolved) -> tuple[Diagnostic, ...]:
    from mixlist.ops.crosscheck import cross_check

    found = list(_other_policy(resolved))
    counted: Counter[tuple[str, str]] = Counter()
    for solution in resolved.solutions:
        counted.update((n.domain, n.op_type) for n in solution.graph.order)
    names = {name for _, name, _ in resolved.graph.functions}
    return (*found, *cross_check(resolved.policy, counted, names), *resolved.rules.unmatched())


def _other_policy(resolved: Resolved) -> Iterator[Diagnostic]:
    """A file's types are its authored types: black cannot bring back the float32 that an earlier list took away."""
    before = next((p.value for p in resolved.loaded.proto.metadata_props if p.key == POLICY_KEY), None)
    if before is not None and before != resolved.policy.digest:
        yield Diagnostic(
            "ML501",
            "warning",
            f"mixlist wrote {resolved.loaded.name} under another policy: what that made low is authored low now",
            hint="start from the original model",
        )
