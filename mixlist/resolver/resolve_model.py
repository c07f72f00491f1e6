"""Resolve a model under a policy: load the model, decide all of its graphs, and collect the warnings."""

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
from mixlist.ops import dtypes
from mixlist.ops.name_warnings import find_name_warnings, names_in_lists
from mixlist.patterns.constant_ranges import ConstantRanges
from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.resolver.classification import Classifier, find_unknown_inputs
from mixlist.resolver.decisions import GraphSolution, ModelSolution, find_reachable_solutions
from mixlist.resolver.function_calls import settle_constant_arguments
from mixlist.resolver.incremental_solver import IncrementalSolver
from mixlist.resolver.mask_protection import find_mask_warnings, find_masks_at_risk
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.plan import Plan
from mixlist.resolver.position_protection import find_position_warnings
from mixlist.resolver.quantized_protection import find_unit_warnings
from mixlist.resolver.solver import ModelSolver

if TYPE_CHECKING:
    from mixlist.graph.proto_types import ModelSource

_MAX_SHOWN_NAMES = 5  # in one warning


class Resolver:
    """One model that can be resolved under several policies: the work that needs no policy is done once.

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
        hints = {name: dtypes.parse_name(text) for name, text in (type_hints or {}).items()}
        self.graph = build_graph(self.loaded.proto, hints)
        self.constant_ranges = ConstantRanges(self.loaded.folder, ProgressCounter(progress, "bytes"))

    def make_incremental_solver(self, base: Policy) -> IncrementalSolver:
        """Return a solver for many policies that differ little from ``base``."""
        return IncrementalSolver(self.graph, base, self.constant_ranges)

    @pause_gc()
    def plan(self, policy: Policy) -> Plan:
        """Decide the precision of every node under ``policy``."""
        # Phase 1: decide every graph.
        classifier, node_rules = Classifier(policy), NodeRules(policy)
        model_solver = ModelSolver(classifier, node_rules, self.constant_ranges)
        main = model_solver.solve(self.graph)
        # Phase 2: finish the parameters. All calls are decided now, so each parameter's readers are known.
        settle_constant_arguments(main, model_solver.fits_low_type, set())
        model_solution = ModelSolution(
            self.loaded,
            self.graph,
            policy,
            classifier.low_type,
            _assign_suffixes(main),
            node_rules,
            classifier.cast_is_black,
        )
        # Phase 3: collect the warnings. They need the decisions for the whole model.
        warnings = (*_find_warnings(model_solution, self.constant_ranges), *_warn_unknown_constants(model_solver))
        return Plan(self.loaded.name, policy, warnings, model_solution)


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
    read, ListError for a node rule that the model cannot follow, and TypeError if ``policy`` is not a Policy.
    """
    require_policy(policy)
    return Resolver(model, type_hints=type_hints, progress=progress).plan(policy)


def _assign_suffixes(main: GraphSolution) -> tuple[GraphSolution, ...]:
    """Return the solutions of the main graph and of all functions; give those of one function the suffixes #0, #1, ...

    A function with a single specialization gets no suffix.
    """
    solutions = find_reachable_solutions(main)
    # The path is that of the function, without a suffix. The main graph has the empty path.
    per_function = Counter(solution.graph.path for solution in solutions)
    next_numbers: Counter[str] = Counter()
    for solution in solutions:
        path = solution.graph.path
        if per_function[path] > 1 and path:
            solution.suffix = f"#{next_numbers[path]}"
            next_numbers[path] += 1
    return tuple(solutions)


def _find_warnings(model_solution: ModelSolution, ranges: ConstantRanges) -> Iterator[Diagnostic]:
    yield from _warn_other_policy(model_solution)
    policy = model_solution.policy
    model_names = names_in_lists(
        policy, {(n.domain, n.op_type) for s in model_solution.solutions for n in s.graph.nodes}
    )
    function_names = {name for _, name, _ in model_solution.graph.functions}
    yield from find_name_warnings(policy, model_names, function_names)
    # After all graphs were matched: only then is it known which rules name no node.
    yield from model_solution.node_rules.find_warnings()
    yield from find_position_warnings(model_solution)
    yield from find_unit_warnings(model_solution)
    yield from _warn_broken_masks(model_solution, ranges)
    yield from _warn_unknown_types(model_solution)


def _warn_broken_masks(model_solution: ModelSolution, ranges: ConstantRanges) -> Iterator[Diagnostic]:
    """Warn about masks that break in the low type: a fully masked row becomes NaN.

    This happens if the policy does not protect masks (Rule S4.34), or if a node rule asks for the low type.
    """
    policy = model_solution.policy
    if "masks" in policy.protect:
        # The other groups are reduced, so they do not break.
        for solution in model_solution.solutions:
            yield from find_mask_warnings(solution, solution.kept_masks, model_solution.low_type)
        return
    main_masks = find_masks_at_risk(model_solution.graph, ranges, policy)
    if main_masks is None or main_masks.is_empty:
        return
    waiting = [(model_solution.solutions[0], main_masks)]
    visited = set(waiting)
    for solution, masks in waiting:  # the loop also reaches what it appends
        yield from find_mask_warnings(solution, masks.groups, model_solution.low_type)
        for node in solution.graph.nodes:
            callee, callee_masks = solution.callees.get(node.id), masks.of_call(node)
            if callee is not None and callee_masks is not None and (callee, callee_masks) not in visited:
                visited.add((callee, callee_masks))
                waiting.append((callee, callee_masks))


def _warn_unknown_types(model_solution: ModelSolution) -> Iterator[Diagnostic]:
    """Warn about the nodes that stay as authored because of tensors of unknown type, and name these (Rule S4.40)."""
    readers = [
        node
        for solution in model_solution.solutions
        if solution.graph.had_unknown_types
        for node, classification in zip(solution.graph.nodes, solution.classifications, strict=True)
        if classification.kind == "unknown"
    ]
    if not readers:
        return
    affected = set(readers)
    unknown = [value for node in readers for value in find_unknown_inputs(node)]
    # custom -> u -> Relu -> v -> Neg: a hint for `u` also gives the type of `v`, so the warning names only `u`.
    sources = dict.fromkeys(v.name for v in unknown if v.producer is None or v.producer not in affected)
    names = ", ".join(map(repr, [*sources][:_MAX_SHOWN_NAMES])) + (", ..." if len(sources) > _MAX_SHOWN_NAMES else "")
    subject = f"the type of {names} is" if len(sources) == 1 else f"the types of {names} are"
    effect = "1 node stays" if len(readers) == 1 else f"{len(readers)} nodes stay"
    yield Diagnostic(
        "ML409",
        "warning",
        f"{subject} not known: {effect} as authored",
        hint='give the types with --type-hints, a JSON file such as {"tensor": "float32"}',
    )


def _warn_other_policy(model_solution: ModelSolution) -> Iterator[Diagnostic]:
    """Warn if mixlist wrote the file under another policy (Rule S4.32)."""
    metadata = model_solution.loaded.proto.metadata_props
    digest = next((entry.value for entry in metadata if entry.key == POLICY_KEY), None)
    if digest is not None and digest != model_solution.policy.digest:
        yield Diagnostic(
            "ML501",
            "warning",
            f"mixlist wrote {model_solution.loaded.name} under another policy or by other rules: "
            "the nodes that it made low precision count as authored in low precision",
            hint="start from the original model",
        )


def _warn_unknown_constants(model_solver: ModelSolver) -> Iterator[Diagnostic]:
    """Warn of constants that count as fitting because their value is not known (Rule S4.20)."""
    for reason, constants in model_solver.unknown_constants.items():
        more = f" and {len(constants) - 1} more" if len(constants) > 1 else ""
        name = next(iter(constants)).value.name
        yield Diagnostic(
            "ML504",
            "warning",
            f"constant {name!r}{more} may be out of the range of the low type; its value is not known: {reason}",
            hint="mixlist check runs the model; keep_dtype keeps a node as authored",
        )
