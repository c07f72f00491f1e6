"""Resolve a model under a policy: load it, decide all of its graphs, and collect the warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic
from mixlist.graph.build import build_graph
from mixlist.graph.gc_pause import pause_gc
from mixlist.graph.load import LoadedModel, load_model
from mixlist.graph.model import POLICY_KEY
from mixlist.lists.policy import Policy, require_policy
from mixlist.ops import types
from mixlist.ops.name_warnings import find_name_warnings
from mixlist.patterns.constants import ConstantRanges
from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.resolver.classification import Classifier, unknown_inputs
from mixlist.resolver.decisions import GraphSolution, ModelSolution, reachable_solutions
from mixlist.resolver.function_calls import settle_constant_arguments
from mixlist.resolver.incremental_solver import IncrementalSolver
from mixlist.resolver.mask_protection import mask_warnings, masks_of
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.plan import Plan
from mixlist.resolver.position_protection import position_warnings
from mixlist.resolver.solver import ModelSolver

if TYPE_CHECKING:
    from mixlist.graph.proto_types import ModelSource

_SHOWN = 5  # names in a warning


class Resolver:
    """One model, which can be resolved under several policies: the work that needs no policy is done once.

    Arguments and errors are those of ``resolve``.
    """

    @pause_gc()
    def __init__(
        self,
        model: ModelSource | LoadedModel,
        *,
        type_hints: Mapping[str, str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.loaded = load_model(model)
        hints = {name: types.parse_name(text) for name, text in (type_hints or {}).items()}
        self.graph = build_graph(self.loaded.proto, hints)
        self.ranges = ConstantRanges(self.loaded.folder, ProgressCounter(progress, "bytes"))

    def incremental_solver(self, policy: Policy) -> IncrementalSolver:
        """Return a solver for many policies that differ little from this one."""
        return IncrementalSolver(self.graph, policy, self.ranges)

    @pause_gc()
    def plan(self, policy: Policy) -> Plan:
        """Decide the precision of every node under ``policy``."""
        facts, rules = Classifier(policy), NodeRules(policy)
        resolution = ModelSolver(facts, rules, self.ranges)
        main = resolution.solve(self.graph)
        settle_constant_arguments(main, resolution.fits, set())
        solutions = _numbered(main)
        resolved = ModelSolution(self.loaded, self.graph, policy, facts.low, solutions, rules, facts.cast_is_black)
        warnings = (*_warnings(resolved, self.ranges), *_unknown_constants(resolution))
        return Plan(self.loaded.name, policy, warnings, resolved)


def resolve(
    model: ModelSource | LoadedModel,
    policy: Policy,
    *,
    type_hints: Mapping[str, str] | None = None,
    progress: ProgressCallback | None = None,
) -> Plan:
    """Decide the precision of every node of ``model`` under ``policy`` (docs/semantics.md, S4).

    ``model`` is a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed. ``type_hints`` gives the
    types (``float32``, ``int64``, ...) of tensors that custom operators make and the model does not declare.
    ``progress`` gets a Progress that counts the bytes of weights read. Raises ModelError for a model that cannot be
    read, ListError for a node rule that cannot hold, and TypeError if ``policy`` is not a Policy.
    """
    require_policy(policy)
    return Resolver(model, type_hints=type_hints, progress=progress).plan(policy)


def _numbered(main: GraphSolution) -> tuple[GraphSolution, ...]:
    """Return the main solution and all specializations, after numbering those of one function."""
    solutions = reachable_solutions(main)
    per_function = Counter(s.graph.path for s in solutions)
    numbers: Counter[str] = Counter()
    for solution in solutions:
        path = solution.graph.path
        if per_function[path] > 1 and path:
            solution.number = f"#{numbers[path]}"
            numbers[path] += 1
    return tuple(solutions)


def _warnings(resolved: ModelSolution, ranges: ConstantRanges) -> Iterator[Diagnostic]:
    yield from _other_policy(resolved)
    counts = Counter((n.domain, n.op_type) for s in resolved.solutions for n in s.graph.nodes)
    functions = {name for _, name, _ in resolved.graph.functions}
    yield from find_name_warnings(resolved.policy, counts, functions)
    yield from resolved.rules.findings()
    yield from position_warnings(resolved)
    yield from _broken_masks(resolved, ranges)
    yield from _unknown_types(resolved)


def _broken_masks(resolved: ModelSolution, ranges: ConstantRanges) -> Iterator[Diagnostic]:
    """Warn if a fully masked row becomes NaN: no policy protects it (Rule S4.34), or a node rule decides otherwise."""
    policy = resolved.policy
    if "masks" in policy.protect:
        for solution in resolved.solutions:
            yield from mask_warnings(solution, solution.kept_masks, resolved.low)
        return
    plan = masks_of(resolved.graph, ranges, policy)
    waiting = [(resolved.solutions[0], plan)] if plan is not None and not plan.is_empty else []
    seen = set(waiting)
    for solution, of_graph in waiting:
        yield from mask_warnings(solution, of_graph.groups, resolved.low)
        for node in solution.graph.nodes:
            callee, called = solution.callees.get(node.id), of_graph.of_call(node)
            if callee is not None and called is not None and (callee, called) not in seen:
                seen.add((callee, called))
                waiting.append((callee, called))


def _unknown_types(resolved: ModelSolution) -> Iterator[Diagnostic]:
    """Warn about the nodes that stay as authored because of tensors of unknown type, and name these (Rule S4.40)."""
    readers = [
        node
        for solution in resolved.solutions
        if solution.graph.has_undeclared_types
        for node, fact in zip(solution.graph.nodes, solution.classifications, strict=True)
        if fact.kind == "unknown"
    ]
    if not readers:
        return
    affected = set(readers)
    unknown = [value for node in readers for value in unknown_inputs(node)]
    # A type behind another reader follows as soon as the type before it is known.
    sources = dict.fromkeys(v.name for v in unknown if v.producer is None or v.producer not in affected)
    shown = ", ".join(map(repr, [*sources][:_SHOWN])) + (", ..." if len(sources) > _SHOWN else "")
    nodes = "1 node stays" if len(readers) == 1 else f"{len(readers)} nodes stay"
    yield Diagnostic(
        "ML409",
        "warning",
        f"nothing tells the type of {shown}: {nodes} as authored",
        hint='give the types with --type-hints, a JSON file such as {"tensor": "float32"}',
    )


def _other_policy(resolved: ModelSolution) -> Iterator[Diagnostic]:
    """Warn if mixlist wrote the file under another policy (Rule S4.32)."""
    digest = next((p.value for p in resolved.loaded.proto.metadata_props if p.key == POLICY_KEY), None)
    if digest is not None and digest != resolved.policy.digest:
        yield Diagnostic(
            "ML501",
            "warning",
            f"mixlist wrote {resolved.loaded.name} under another policy or by other rules: "
            "what that made low is authored low now",
            hint="start from the original model",
        )


def _unknown_constants(resolution: ModelSolver) -> Iterator[Diagnostic]:
    """Warn of constants that count as fitting because their value is not known (Rule S4.20)."""
    for reason, constants in resolution.unknown.items():
        others = f" and {len(constants) - 1} more" if len(constants) > 1 else ""
        name = next(iter(constants)).value.name
        yield Diagnostic(
            "ML504",
            "warning",
            f"constant {name!r}{others} may be out of the range of the low type; its value is not known: {reason}",
            hint="mixlist check runs the model; keep_dtype keeps a node as authored",
        )
