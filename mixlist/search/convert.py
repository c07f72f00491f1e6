"""Convert a model: keep as much of it in low precision as the limits allow, at the least cost.

1. The model is checked under the lists. If that passes, the lists are the result. But if every node low would cost at
   least 1 % less, or be 1 % more low nodes, this choice is checked, too, and is the result if it passes. If it fails
   and would cost at least 4 % less, the search looks for a choice between the two.
2. If the lists fail, the model is checked with every node low that is low in the mode of Rule S3.4 and that a node rule
   can name. Rules of the user, constants out of range and protections stay in force, without that of normalizations:
   the data shows whether their squares overflow. The nodes of a unit (Rule S4.41) move together.
3. Nodes that make or read values beyond the range, also in a trial, are raised. The search then tries the cheapest
   choices of low nodes with small errors. Errors add up as squares: at first each node has the error that it adds to
   exact inputs, and after a trial the errors of its low nodes are scaled to what the trial measured.
4. Then parts of the high nodes become low, those first that lower the cost most, as long as trials pass. The search
   ends if no choice costs less by 2 % of what low precision can gain, or after 25 trials. Of all choices that passed,
   the cheapest is the result. If only float32 keeps the limits, the verdict is ``fail``.

The result is written as node rules over the lists, read back as ``apply`` reads them, and checked on all of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mixlist.checker.limits import describe_near_limit, largest_share_of_limits
from mixlist.checker.load_test import find_crash_of_result
from mixlist.checker.quantized_reference import DIFFERS
from mixlist.checker.result import CheckReport, NodeFinding, Verdict
from mixlist.checker.run import run_check
from mixlist.decide import Plan, Resolver
from mixlist.decide.solution import Solution, count_low_nodes
from mixlist.diagnostics import warning
from mixlist.errors import UsageError
from mixlist.lists.load import load_policy, replace_rules
from mixlist.lists.node_rules import is_valid_rule_name
from mixlist.lists.policy import Mode, Policy, require_policy
from mixlist.model import dtypes
from mixlist.model.dataflow import trace_dataflow
from mixlist.model.graph import Node
from mixlist.model.low_precision import overflow_bound
from mixlist.model.naming import NodeRef, node_ref, unique_names
from mixlist.model.signature import TypeGroup
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell
from mixlist.progress import PhaseTimer
from mixlist.run import executors
from mixlist.run.feeds import as_batches, find_shapes, random_batches
from mixlist.search.candidates import make_node_edit
from mixlist.search.cheapest_nodes import ChoiceCosts, LowSlots
from mixlist.search.checks import (
    SearchData,
    check_in_float32,
    explain_failed_reference,
    find_evidence_gaps,
    hold_out_batches,
)
from mixlist.search.chosen_interface import choose_interface
from mixlist.search.convert_result import (
    BEYOND_RANGE,
    INTEGER_PRODUCTS,
    RANDOM_DATA,
    ConvertReport,
    ConvertResult,
    ConvertTrial,
)
from mixlist.search.convert_summary import (
    describe_high_nodes,
    find_large_inputs,
    find_later_opset,
    has_integer_products,
    measure_models,
)
from mixlist.search.edits import (
    NO_EDITS,
    Edit,
    EditSet,
    NodeEdit,
    edit_policy,
    read_tuned_rules,
    render_customize_dtypes,
)
from mixlist.search.options import ConvertOptions
from mixlist.search.search_state import SearchState
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import Outcome, TrialLimits, find_kept_limit
from mixlist.search.trials import Trials, most_workers
from mixlist.search.tune import MAX_JOINS, trial_segment_bytes
from mixlist.targets.estimate import Costs, compute_low_share, describe_uncounted, estimate_costs
from mixlist.write import rewrite

if TYPE_CHECKING:
    from mixlist.checker.options import CheckOptions
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.feeds import Batches, Data
    from mixlist.targets.target import Target

Groups = frozenset[int]  # positions in ``_Space.groups``
ALL_HIGH: Groups = frozenset()  # the low groups of float32
_DEFAULTS = ConvertOptions()
RANDOM_BATCHES = 4  # of random data, if no data is given
RANKED_BATCHES = 1  # for the errors of single nodes: enough for an order, and the ranking takes longer than a check
MAX_TRIALS = 25  # of one search; the best choice so far is the result then
MAX_FINAL_CHECKS = 4  # a search is repeated if its result fails the final check
# The trials end if what they could still gain is less than this share of what low precision can gain at all.
LEAST_GAIN = 0.02
# A part of the nodes is left high without a trial if low precision gains less in it than this share.
LEAST_PART = 0.002
# With lists that pass, every node low is worth a check if it saves this share of the cost, or lowers this share of the
# nodes. If that check fails, a search is worth its trials if every node low saves the second share of the cost.
LEAST_SAVING = 0.01
LEAST_SEARCHED_SAVING = 0.04
AIMED_SHARE = 0.8  # the share of a limit that a trial aims at
MAX_FAILS = 2  # in a row, of choices that errors suggest
LARGEST_ERROR = 1e3  # the error of a node that overflows on exact inputs counts as this
LEAST_ERROR = 1e-2  # of the mean error, added to each group: a node may pass an error on
FAILING_SHARE = 1.5  # of a limit, where a check fails for another reason than a measured error
FITTING_STEPS = 30
LARGE_PART = 0.25  # of all errors: a node with more of them is the likely cause
SMALL_PART = 0.01  # of the errors of the raised nodes: nodes that together have less are hardly raised for them
DEFAULT_LIMIT = 0.01  # of the normalized error, if the user turned its limit off
EXPONENT_STEP = 0.5


# --- the public function ---


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(ConvertOptions):
        model: Model
        data: Data | None = None
        policy: Policy | None = None

else:
    _Arguments = ConvertOptions


@with_fields(_Arguments)
def convert(
    model: Model, data: Data | None = None, policy: Policy | None = None, options: ConvertOptions = _DEFAULTS
) -> ConvertResult:
    """Convert a model to mixed precision, so that it keeps the limits of ``check`` on data at the least cost.

    The keyword arguments are options of ``mixlist convert --help-all``. ``data`` has the forms that ``check`` accepts;
    with None it is random. ``policy``: the lists to begin with, None for the default ones. The model is not changed.
    Nothing is written: ``save`` of the result writes the model. Raises UsageError for wrong arguments, and the errors
    that ``check`` raises.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        result = mixlist.convert("digits.onnx", batches)
        print(result.report.verdict, result.report.after)
    """
    return run_convert(model, data, policy, options)


def run_convert(model: Model, data: Data | None, policy: Policy | None, options: ConvertOptions) -> ConvertResult:
    """Do what ``convert`` does, with the options in one object."""
    job = _prepare(model, data, _choose_policy(policy, options.low_type), options)
    with job.timer.phase("check of the lists"):
        # The nodes are ranked if a search follows, and no other check shows more of them in low precision.
        base = job.check(job.target_policy, lambda check: check.verdict == "fail" and not job.space.kept_by_lists)
    found = _Found(base)
    if base.verdict == "pass" or base.passes_without_low:
        found = _lower_more(job, base)
    elif base.verdict == "fail":
        found = _search_on_all_data(job, base)
    with job.timer.phase("result"):
        return _make_result(job, found)


def _lower_more(job: _Job, base: CheckReport) -> _Found:
    """Return the lists as the result, every node low if that passes, too, or what a search finds between the two."""
    found, space = _Found(base, edits=NO_EDITS), job.space
    costs = job.choice_costs(job.costs)
    by_lists, least = costs.cost(space.every - space.kept_by_lists), costs.cost(space.every)
    kept_nodes = space.count_nodes(space.kept_by_lists)
    if by_lists - least < LEAST_SAVING * by_lists and kept_nodes < LEAST_SAVING * space.count_nodes(space.every):
        return found
    is_searched = not base.passes_without_low and by_lists - least >= LEAST_SEARCHED_SAVING * by_lists
    checked = _check_choice(job, space.every, ranks_nodes=is_searched)
    if checked.check.verdict == "pass":
        return replace(found, check=checked.check, edits=checked.edits, low=space.every)
    if not is_searched:
        return found
    searched = _search_on_all_data(job, base, checked.check)
    is_cheaper = searched.low is not None and by_lists - costs.cost(searched.low) >= LEAST_SAVING * by_lists
    return searched if is_cheaper else replace(found, log=searched.log, trials=searched.trials, costs=searched.costs)


def _choose_policy(policy: Policy | None, low_type: str | None) -> Policy:
    """Return the policy of the conversion. Raises UsageError if it makes no node low, or has another low type."""
    if policy is None:
        return load_policy(precision_mode_v2="mixed_bfloat16" if low_type == "bfloat16" else "mixed_float16")
    require_policy(policy)
    if policy.mode.action in ("origin", "raise"):
        raise UsageError(f"the precision mode {policy.mode.name} makes no node low", hint="use mixed_float16")
    if low_type is not None and policy.mode.low != low_type:
        raise UsageError(
            f"{spell('low_type', low_type)}, and the mode {policy.mode.name} has the low type {policy.mode.low}",
            hint="give one of them",
        )
    return policy


@dataclass
class _Job:
    """One conversion: the model, the lists, the data and the limits.

    ``policy``: the lists of the user. ``target_policy``: the same lists with a rule for each node that the target
    cannot run in the low type; ``policy`` without a target.
    """

    resolver: Resolver
    policy: Policy
    target_policy: Policy
    batches: Batches
    is_random: bool
    check_options: CheckOptions
    limits: TrialLimits
    options: ConvertOptions
    timer: PhaseTimer

    @property
    def loaded(self) -> LoadedModel:
        """Return the model."""
        return self.resolver.loaded

    @cached_property
    def space(self) -> _Space:
        """Return the nodes that a rule can make low."""
        return _find_space(self)

    @cached_property
    def costs(self) -> Costs:
        """Return the costs of the nodes in the shapes of the first batch."""
        return estimate_costs(self.resolver.graph, {}, find_shapes(next(iter(self.batches))))

    def choice_costs(self, costs: Costs) -> ChoiceCosts:
        """Return the costs of the choices of low groups, from the costs of the nodes."""
        return ChoiceCosts(self.resolver.graph, costs, self.space.low_slots, len(self.space.groups))

    def check(self, policy: Policy, ranks_nodes: Callable[[CheckReport], bool]) -> CheckReport:
        """Check the model under a policy, with all ranges. ``ranks_nodes``: the ``rank_if`` of ``run_check``."""
        options = replace(self.check_options, layerwise=True, per_tensor=True)
        return run_check(
            self.loaded, policy, self.batches, options, rank_if=ranks_nodes, layerwise_batches=RANKED_BATCHES
        )

    def plan_for_target(self, policy: Policy) -> Plan:
        """Return the plan under a policy; nodes that the target cannot run in the low type stay as authored."""
        plan = self.resolver.plan(policy)
        if self.target is None:
            return plan
        from mixlist.targets.target_plan import keep_nodes_for_target

        return keep_nodes_for_target(plan, self.target)[1]

    @cached_property
    def target(self) -> Target | None:
        """Return the table of the target; None without one."""
        if self.options.target is None:
            return None
        from mixlist.targets.target import load_target

        return load_target(self.options.target)


def _prepare(model: Model, data: Data | None, policy: Policy, options: ConvertOptions) -> _Job:
    """Read everything that can fail at once, before the first check."""
    loaded = choose_interface(model, options, policy.mode.low, options.type_hints)
    if options.io != "keep":
        # The Casts of a new interface are not the author's: an output beyond float16 must not be lost in the reference.
        options = replace(options, reference_type="float32")
    resolver = Resolver(loaded, type_hints=options.type_hints)
    if data is None:
        batches = random_batches(resolver.loaded, options.max_batches or RANDOM_BATCHES)
    else:
        batches = as_batches(data, resolver.loaded.proto, options.max_batches)
        batches = batches.select(range(min(len(batches), options.max_batches or len(batches))))
    limits = TrialLimits(options.output_limits, options.max_exception_rate, options.user_judge)
    job = _Job(
        resolver, policy, policy, batches, data is None, options.check_options(), limits, options, PhaseTimer()
    )  # fmt: skip
    if options.target is not None:
        job.target_policy = job.plan_for_target(policy).policy
    return job


# --- the candidates: groups of nodes that move together ---


@dataclass(frozen=True)
class _Group:
    """Nodes that are low or high together, with the edits that make them so.

    ``kept_by_lists``: True if the lists keep the nodes high.
    """

    nodes: tuple[NodeRef, ...]
    low: tuple[NodeEdit, ...]
    high: tuple[NodeEdit, ...]
    kept_by_lists: bool

    def rules(self, is_low: bool) -> Iterator[tuple[NodeRef, NodeEdit]]:
        """Yield the rule of each node that makes the group low or high."""
        return zip(self.nodes, self.low if is_low else self.high, strict=True)


@dataclass(frozen=True)
class _Space:
    """The groups of all nodes that can be low, and the group of each node. ``low_slots``: for the costs."""

    groups: tuple[_Group, ...]
    group_of: Mapping[NodeRef, int]
    low_slots: Mapping[Node, LowSlots]

    @cached_property
    def group_of_name(self) -> dict[str, int]:
        """Return the group of each node by the name that a trial shows."""
        return {str(ref): group for ref, group in self.group_of.items()}

    @property
    def every(self) -> Groups:
        """Return all groups."""
        return frozenset(range(len(self.groups)))

    @property
    def kept_by_lists(self) -> Groups:
        """Return the groups that the lists keep high."""
        return frozenset(index for index, group in enumerate(self.groups) if group.kept_by_lists)

    def edits(self, low: AbstractSet[int]) -> EditSet:
        """Return the edits of all groups, if the groups ``low`` are low and all others high."""
        chosen = (group.low if index in low else group.high for index, group in enumerate(self.groups))
        return frozenset().union(*chosen)

    def count_nodes(self, groups: Iterable[int]) -> int:
        """Return the number of nodes of some groups."""
        return sum(len(self.groups[group].nodes) for group in groups)


def _all_low_policy(policy: Policy) -> Policy:
    """Return the policy under which every node is low that can be, with the rules and protections of ``policy``.

    It does not keep the squares of normalizations (Rule S4.47): data shows whether they overflow.
    """
    return replace(policy, mode=Mode("fp16", "force", policy.mode.low))


def _find_space(job: _Job) -> _Space:
    """Return the nodes that a rule can make low, in groups that move together."""
    graph, policy = job.resolver.graph, job.target_policy
    all_low = job.plan_for_target(_all_low_policy(policy)).solution
    by_lists = job.resolver.plan(policy).solution
    low_type = dtypes.ELEMENT_BY_NAME[policy.mode.low]
    names = unique_names(node_ref(node) for node in graph.nodes)
    candidates = {
        node: names[node_ref(node)]
        for node in graph.nodes
        if _find_low_groups(all_low, node, low_type) and is_valid_rule_name(names.get(node_ref(node), ""))
    }
    groups: list[_Group] = []
    group_of: dict[NodeRef, int] = {}
    low_slots: dict[Node, LowSlots] = {}
    for first in candidates:
        if node_ref(first) in group_of:
            continue
        unit_nodes = {node for unit in by_lists.units.get(first.id, ()) for node in unit.nodes}
        nodes = sorted((unit_nodes | {first}) & candidates.keys(), key=lambda node: node.id)
        edits: tuple[list[NodeEdit], list[NodeEdit]] = [], []
        for node in nodes:
            types = _find_low_groups(all_low, node, low_type)
            for precision, same_type in zip((policy.mode.low, "float32"), edits, strict=True):
                same_type.append(make_node_edit(candidates[node], node, types, precision))
            inputs, outputs = (frozenset(slot for t in types for slot in getattr(t, s)) for s in ("inputs", "outputs"))
            low_slots[node] = LowSlots(len(groups), inputs, outputs)
            group_of[node_ref(node)] = len(groups)
        is_kept = not any(_find_low_groups(by_lists, node, low_type) for node in nodes)
        groups.append(_Group(tuple(map(node_ref, nodes)), tuple(edits[0]), tuple(edits[1]), is_kept))
    return _Space(tuple(groups), group_of, low_slots)


def _find_low_groups(solution: Solution, node: Node, low_type: int) -> list[TypeGroup]:
    """Return the type groups of a node that are float32 in the model and low in a solution.

    Return [] for a node that a rule of the user decides, or whose type an attribute fixes.
    """
    signature, assignment = node.signature, solution.assignments[node.id]
    is_fixed = signature is None or assignment is None or signature.has_fixed_output
    if is_fixed or solution.classifications[node.id].kind == "rule":
        return []
    assert signature is not None and assignment is not None
    pairs = zip(signature.groups, assignment.elements, strict=True)
    return [group for group, elem in pairs if group.authored == dtypes.FLOAT and elem == low_type]


# --- the evidence: what happens if every node is low ---


class _Evidence(NamedTuple):
    """The evidence of the checks about the groups.

    ``overflowing``: the groups with values that the low type cannot hold, with the reason. ``errors``: by group, the
    sum of the squares of the errors that its nodes add to exact inputs. ``measured``: by low groups, how much of a
    limit the outputs use, for the checks in which nothing overflows. ``all_low``: the check with every group low.
    """

    overflowing: dict[int, str]
    errors: list[float]
    measured: tuple[tuple[Groups, float], ...]
    all_low: CheckReport


def _gather_evidence(job: _Job, space: _Space, base: CheckReport, all_low: CheckReport | None = None) -> _Evidence:
    """Return what the check of the lists shows, and that with every node low that can be, ``all_low`` if it was made.

    If the lists keep no node high that can be low, ``base`` is this check.
    """
    if not space.kept_by_lists:
        all_low = base
    elif all_low is None:
        policy = job.plan_for_target(_all_low_policy(job.target_policy)).policy
        with job.timer.phase("check with every node low"):
            all_low = job.check(policy, lambda check: check.verdict != "pass")
    errors = [0.0] * len(space.groups)
    for error in all_low.layerwise:
        if error.ref in space.group_of:
            errors[space.group_of[error.ref]] += min(error.normalized_error, LARGEST_ERROR) ** 2
    overflowing = _find_overflowing(job, space, all_low)
    if not all_low.batches:
        # ONNX Runtime refuses this model or crashes on it. Only the nodes that the lists make low are known to run.
        reason = f"the lists keep it too: with every node in {base.precision}, ONNX Runtime does not run the model"
        overflowing = dict.fromkeys(space.kept_by_lists, reason) | _find_overflowing(job, space, base) | overflowing
    shares = ((space.every, _used_share(all_low)), (space.every - space.kept_by_lists, _used_share(base)))
    measured = {low: share for low, share in shares if math.isfinite(share)}
    return _Evidence(overflowing, errors, tuple(measured.items()), all_low)


def _used_share(report: CheckReport) -> float:
    """Return how much of a limit the outputs of a check use: infinite after an overflow or without a batch."""
    if not report.batches or report.exception_rate:
        return math.inf
    share = largest_share_of_limits(report.outputs, report.limits)
    # A failure for another reason, such as the judge of the user, may come with small errors.
    return share if report.verdict == "pass" else max(share, FAILING_SHARE)


def _find_overflowing(job: _Job, space: _Space, report: CheckReport) -> dict[int, str]:
    """Return the groups that make or read values which the low type cannot hold, each with the reason."""
    bound, precision = overflow_bound(dtypes.ELEMENT_BY_NAME[report.precision]), report.precision
    overflowing: dict[int, str] = {}
    beyond: dict[NodeRef, float] = {}  # the nodes that make such values, which low readers would lose
    for finding in report.nodes:
        group = space.group_of.get(finding.ref)
        magnitude = _finite_magnitude(finding)
        if finding.kind == "refused" and group is not None:
            overflowing.setdefault(group, f"ONNX Runtime refuses it in {precision}")
        # A value that is propagated matters only if float32 itself needs the range.
        if finding.kind not in ("overflow", "saturated", "propagated") or (
            finding.kind == "propagated" and magnitude < bound
        ):
            continue
        if group is not None:
            reason = _describe_overflow(finding, magnitude, precision, in_unit=len(space.groups[group].nodes) > 1)
            overflowing.setdefault(group, reason)
        if not finding.input and magnitude >= bound:
            beyond[finding.ref] = magnitude
    for node in trace_dataflow(job.resolver.graph):
        group = space.group_of.get(node.ref)
        for tensor in node.inputs:
            if group is not None and tensor.ref.producer in beyond:
                magnitude = beyond[tensor.ref.producer]
                reads = "reads" if len(space.groups[group].nodes) == 1 else "its unit reads"
                reason = f"{reads} values up to {magnitude:.4g} of {tensor.ref.producer}, {BEYOND_RANGE} {precision}"
                overflowing.setdefault(group, reason)
    return overflowing


def _finite_magnitude(finding: NodeFinding) -> float:
    """Return the largest magnitude of a finding's tensor in float32; 0 if it is not finite."""
    return finding.max_abs_fp32 if math.isfinite(finding.max_abs_fp32) else 0.0


def _describe_overflow(finding: NodeFinding, magnitude: float, precision: str, *, in_unit: bool) -> str:
    """Return the reason of the overflowing node; ``in_unit``: of all nodes of its unit."""
    what = "its sums inside it" if finding.inside else "its values"
    what = f"reads {finding.input}, whose values" if finding.input else what
    if in_unit:
        whose = f"which {what}" if finding.input else "whose sums inside it" if finding.inside else "whose values"
        what = f"its unit has {finding.ref}, {whose}"
    reach = f"reach {magnitude:.4g}, {BEYOND_RANGE} {precision}" if magnitude else f"overflow in {precision}"
    return f"{what} {reach}"


# --- the search ---


@dataclass
class _Search:
    """One search on some batches.

    ``overflowing``: the groups that overflow, with the reason. ``measured``: the choices whose outputs were compared:
    the low groups, and how much of a limit they used. ``checked``: the choices that passed a check before. ``passing``:
    these, and those that passed a trial, by their low groups, with their costs. ``failing``: the low groups of those
    that failed.
    """

    space: _Space
    costs: ChoiceCosts
    trials: Trials
    evidence: _Evidence
    overflowing: dict[int, str]
    measured: list[tuple[Groups, float]]
    log: list[ConvertTrial]
    checked: tuple[Groups, ...]
    passing: dict[Groups, int] = field(default_factory=dict)
    failing: list[Groups] = field(default_factory=list)
    trials_left: int = MAX_TRIALS

    @property
    def gain(self) -> int:
        """Return what low precision can gain at all, in bytes."""
        return max(self.costs.cost(ALL_HIGH) - self.costs.cost(self.space.every), 1)


def _find_cheapest_passing(search: _Search) -> Groups | None:
    """Return the low groups of the cheapest choice that passes; None if none does."""
    search.passing = {low: search.costs.cost(low) for low in search.checked}
    _search_by_errors(search)
    _lower_parts(search)
    best = _find_best(search)
    # Without another choice, a trial tells whether the limits can hold at all.
    return None if best == ALL_HIGH and not _try_low(search, ALL_HIGH).passed else best


def _search_by_errors(search: _Search) -> None:
    """Try the cheapest choices with errors of a certain sum, as far as the errors are known, until two in a row fail.

    Until a choice passes, the sum is what should keep the limits. Then it grows: few nodes hold most of the error, so a
    choice with half of the remaining error often passes, too. A choice that fails shows where the error is.
    """
    aimed, added_share, fails = AIMED_SHARE**2, 1.0, 0
    while search.trials_left and fails < MAX_FAILS:
        errors, best = _estimate_errors(search), _find_best(search)
        if best != ALL_HIGH:
            passed_error = max(AIMED_SHARE**2, _sum_of(errors, best))
            added_share /= 2
            error_of_all = _sum_of(errors, search.space.every - search.overflowing.keys())
            aimed = passed_error + added_share * max(error_of_all - passed_error, 0.0)
        low = _choose_low(search, errors, aimed)
        if not low or low in search.failing or (best != ALL_HIGH and not _is_worth_a_trial(search, low)):
            return
        fails += 1
        if _try_low(search, low).passed:
            added_share, fails = 1.0, 0


def _is_worth_a_trial(search: _Search, low: Groups) -> bool:
    """Return True if a choice costs so much less than the best one that it is worth a trial, and is not known to fail.

    A choice in which more nodes are low than in one that failed fails, too.
    """
    is_cheaper = search.passing[_find_best(search)] - search.costs.cost(low) >= LEAST_GAIN * search.gain
    return is_cheaper and not any(failed <= low for failed in search.failing)


def _lower_parts(search: _Search) -> None:
    """Make neighboring nodes low, in halves of halves, those first that cost most if they alone stay high.

    Nodes that passed stay low in later trials, also where the cheapest choice needs Casts around them: they are cheap
    once their neighbors are low. A node with a large part of all errors, and more than the limits allow, stays high.
    """
    best, errors = _find_best(search), _estimate_errors(search)
    most = max(AIMED_SHARE**2, LARGE_PART * sum(errors))
    high = {group for group, error in enumerate(errors) if error > most} | search.overflowing.keys()
    low, parts = best, _halve(sorted(search.space.every - best - high))
    while parts and search.trials_left:
        cheapest = search.costs.cost(search.costs.find_cheapest(high))
        if search.passing[_find_best(search)] - cheapest < LEAST_GAIN * search.gain:
            break
        costs = {part: search.costs.cost(search.costs.find_cheapest(high.union(part))) for part in parts}
        part = max(parts, key=lambda part: costs[part])
        parts.remove(part)
        if costs[part] - cheapest < LEAST_PART * search.gain:
            high.update(part)
            continue
        tried = low.union(part)
        if not any(failed <= tried for failed in search.failing) and _try_low(search, tried).passed:
            low = tried
        elif len(part) > 1:
            parts += _halve(part)
        else:
            high.update(part)
    low = search.costs.find_cheapest(search.space.every - low)
    if search.trials_left and low not in search.passing and _is_worth_a_trial(search, low):
        _try_low(search, low)


def _halve(groups: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the two halves of a sequence, without empty ones."""
    middle = (len(groups) + 1) // 2
    return [tuple(part) for part in (groups[:middle], groups[middle:]) if part]


def _find_best(search: _Search) -> Groups:
    """Return the low groups of the cheapest choice that passed; ALL_HIGH if none did."""
    return min(search.passing, key=lambda low: (not low, search.passing[low], -len(low)))


def _try_low(search: _Search, low: Groups) -> Outcome:
    """Run the trial of a choice of low groups, and note what it shows."""
    edits, compiler = search.space.edits(low), search.trials.compiler
    outcome = search.trials.try_edits(edits)
    search.log.append(
        ConvertTrial(
            low_nodes=count_low_nodes(compiler.solution(edits), compiler.base.mode.low),
            low_share=compiler.low_share(edits),
            cost=search.costs.cost(low),
            passed=outcome.passed,
            why=outcome.why,
            kept_limit=outcome.kept_limit,
        )
    )
    search.trials_left -= 1
    # An infinite error says that a node overflows, and nothing about the errors of the others.
    if outcome.limit_share is not None and math.isfinite(outcome.limit_share):
        # A failure for another reason, such as the judge of the user, may come with small errors.
        share = outcome.limit_share if outcome.passed else max(outcome.limit_share, FAILING_SHARE)
        search.measured.append((low, share))
    if outcome.passed:
        search.passing[low] = search.costs.cost(low)
        return outcome
    search.failing.append(low)
    if outcome.overflow in search.space.group_of_name:
        group = search.space.group_of_name[outcome.overflow]
        search.overflowing.setdefault(group, f"overflows in {search.evidence.all_low.precision}")
    return outcome


def _choose_low(search: _Search, errors: Sequence[float], wanted: float) -> Groups:
    """Return the low groups of the cheapest choice whose errors add up to at most ``wanted``.

    The errors of the groups are a second cost, weighted by a factor: the least factor is sought with which the errors
    of the cheapest choice are small enough. If float32 alone is the cheapest then, all groups with small errors are
    low: the user asks for a model in low precision.
    """

    def cheapest(exponent: float) -> Groups:
        low = search.costs.find_cheapest(search.overflowing, [2**exponent * error for error in errors])
        return low or frozenset(_take_smallest(search.space.every - search.overflowing.keys(), errors, wanted))

    if _sum_of(errors, low := cheapest(-math.inf)) <= wanted:
        return low
    # Between these exponents, a byte counts more than any error, or less.
    least, most = 0.0, 60.0
    low = cheapest(most)
    while most - least > EXPONENT_STEP:
        middle = (least + most) / 2
        candidate = cheapest(middle)
        if _sum_of(errors, candidate) <= wanted:
            most, low = middle, candidate
        else:
            least = middle
    return low


def _take_smallest(groups: Iterable[int], errors: Sequence[float], wanted: float) -> Iterator[int]:
    """Yield the groups with the smallest errors, whose sum is at most ``wanted``."""
    total = 0.0
    for group in sorted(groups, key=lambda group: (errors[group], group)):
        total += errors[group]
        if total > wanted:
            return
        yield group


def _sum_of(errors: Sequence[float], groups: Iterable[int]) -> float:
    return sum(errors[group] for group in groups)


def _estimate_errors(search: _Search) -> list[float]:
    """Return for each group the square of its part of the error of the outputs, in shares of a limit.

    Independent errors add up as squares. The parts begin as the errors that the nodes add to exact inputs, as if these
    reached the outputs unchanged, and are scaled until those of every choice that was measured add up to what was
    measured.
    """
    parts = np.array(search.evidence.errors) / (search.trials.compiler.limits.outputs.normalized or DEFAULT_LIMIT) ** 2
    parts[list(search.overflowing)] = 0.0  # these are never low
    parts += max(LEAST_ERROR * parts.mean(), 1e-12)
    choices = [(np.array(sorted(low), np.intp), share**2) for low, share in search.measured if low]
    for _ in range(FITTING_STEPS):
        for groups, square in choices:
            factor = max(square, 1e-12) / parts[groups].sum()
            parts[groups] *= math.sqrt(factor)
    result: list[float] = parts.tolist()
    return result


# --- from the search to a result ---


@dataclass(frozen=True)
class _Found:
    """The result of the search.

    ``check``: the check of the result, or of the lists if there is none. ``low``: the low groups of the result; None if
    the lists are the result, or if there is none. ``edits``: the node rules of the result, None without one.
    ``failures``: why there is no result. ``overflowing``: the groups that overflow, with the reason. ``joined``: the
    names of the held-out batches that joined the search. ``costs``: those of the nodes with the shapes that the search
    observed; None without a search.
    """

    check: CheckReport
    edits: EditSet | None = None
    failures: tuple[str, ...] = ()
    evidence: _Evidence | None = None
    overflowing: Mapping[int, str] = field(default_factory=dict)
    low: Groups | None = None
    log: tuple[ConvertTrial, ...] = ()
    trials: int = 0
    joined: tuple[str, ...] = ()
    is_inconclusive: bool = False
    costs: Costs | None = None


def _search_on_all_data(job: _Job, base: CheckReport, all_low: CheckReport | None = None) -> _Found:
    """Search on data of which a quarter is held out; batches that fail later join it, at most three times.

    The nodes that were raised before stay raised at first. ``all_low``: as of _gather_evidence.
    """
    gaps = find_evidence_gaps(base, job.options)
    if gaps:  # facts about the reference, so no choice of nodes can change them
        return _Found(base, failures=gaps, is_inconclusive=True)
    if not job.space.groups:
        return _Found(base, failures=(*base.reasons, "no node rule can make a node low"))
    evidence = _gather_evidence(job, job.space, base, all_low)
    reference = next((report for report in (evidence.all_low, base) if report.batches == len(job.batches)), None)
    if reference is None:
        reference = check_in_float32(job.loaded, job.policy, job.batches, job.options)
    found = _Found(base, evidence=evidence, overflowing=evidence.overflowing)
    if evidence.all_low.verdict == "pass":
        # Nothing costs less, so no trial is needed.
        checked = _check_choice(job, job.space.every)
        if checked.check.verdict == "pass":
            log = _log_of_checks(job, found, job.costs)
            return replace(found, check=checked.check, edits=checked.edits, low=job.space.every, log=log)
    data, measured = hold_out_batches(job.batches, len(job.batches)), list(evidence.measured)
    for _ in range(MAX_JOINS + 1):
        found, data, is_done = _search_once(job, found, reference, data, measured)
        if is_done:
            break
    return replace(found, joined=data.joined)


def _log_of_checks(job: _Job, found: _Found, node_costs: Costs) -> tuple[ConvertTrial, ...]:
    """Return the entries of the log for the checks before the search: of the lists, and with every node low."""
    assert found.evidence is not None
    base, all_low = found.check, found.evidence.all_low
    space, policy, costs = job.space, job.target_policy, job.choice_costs(node_costs)
    entries = []
    checks = [(base, space.every - space.kept_by_lists), *([(all_low, space.every)] if all_low is not base else [])]
    for check, low in checks:
        solution = job.resolver.solve(edit_policy(policy, space.edits(low)))
        ran_all = check.batches == len(job.batches) and not check.exception_rate
        is_judged = ran_all and (check.verdict == "pass" or job.limits.judge is None)
        entries.append(
            ConvertTrial(
                low_nodes=count_low_nodes(solution, policy.mode.low),
                low_share=compute_low_share(solution, policy.mode.low, node_costs),
                cost=costs.cost(low),
                passed=check.verdict == "pass",
                why="" if check.verdict == "pass" else check.reasons[0],
                kept_limit=find_kept_limit(check.outputs, job.limits.outputs) if is_judged else None,
            )
        )
    return tuple(entries)


def _search_once(
    job: _Job, found: _Found, reference: CheckReport, data: SearchData, measured: list[tuple[Groups, float]]
) -> tuple[_Found, SearchData, bool]:
    """Search on some batches, and check the result on all of them.

    Return what was found, the data of the next search, and True if no further search is needed. ``reference``: a check
    with the float32 ranges of all batches. ``measured``: as in _Search; the measurements of this search are added.
    """
    assert found.evidence is not None
    space, options = job.space, job.options
    feeds = list(data.batches)
    arguments = options.jobs, options.scheduler, options.executor, most_workers(len(feeds))
    segment_bytes = trial_segment_bytes(job.loaded, options, executors.count_local_workers(*arguments))
    with executors.open_workers(*arguments) as workers:
        compiler = TrialCompiler(
            job.resolver, job.target_policy, feeds, reference.tensors,
            saturate=job.check_options.saturate, threads=workers.threads, limits=job.limits,
            segment_bytes=segment_bytes, authored_reference=job.check_options.reference_type == "authored",
        )  # fmt: skip
        try:
            with job.timer.phase("search"):
                compiler.add_gates(space.edits(space.every))
                costs = job.choice_costs(compiler.costs)
                trials = Trials(compiler, workers, SearchState(None, {}), options.progress)
                trials.progress.done, trials.progress.total = found.trials, found.trials + MAX_TRIALS + 1
            log = found.log or _log_of_checks(job, found, compiler.costs)
            checked: tuple[Groups, ...] = (ALL_HIGH,)  # it is the reference, so it needs no trial yet
            if found.check.verdict == "pass":
                checked += (space.every - space.kept_by_lists,)
            search = _Search(
                space, costs, trials, found.evidence, dict(found.overflowing), measured, list(log), checked
            )
            return _search_until_checked(job, search, replace(found, costs=compiler.costs), data)
        finally:
            compiler.close()


def _search_until_checked(
    job: _Job, search: _Search, found: _Found, data: SearchData
) -> tuple[_Found, SearchData, bool]:
    """Search, and check the result on all data; search again if the check fails. The result is that of _search_once."""
    trials_before = found.trials
    for _ in range(MAX_FINAL_CHECKS):
        with job.timer.phase("search"):
            low = _find_cheapest_passing(search)
        trials = trials_before + len(search.trials.log)
        found = replace(found, log=tuple(search.log), trials=trials, overflowing=dict(search.overflowing))
        if not low:
            reason = "every choice of low nodes that was tried misses a limit"
            if low is None:
                wrong = "data or limits" if job.options.io == "keep" else f"data, limits or {spell('io')}"
                cause = explain_failed_reference(job.resolver.graph, wrong)
                reason = f"the limits are missed with every node in float32, too: {cause}"
            return replace(found, failures=(reason, *found.check.reasons)), data, True
        checked = _check_choice(job, low)
        if checked.check.verdict == "pass":
            return replace(found, check=checked.check, edits=checked.edits, low=low), data, True
        share = _used_share(checked.check)
        if math.isfinite(share):
            search.measured.append((low, share))
        search.overflowing |= _find_overflowing(job, search.space, checked.check)
        if data.validation is not None:
            each = data.validation.check_each(job.loaded, checked.policy, job.options)
            joined = data.join([*each])
            if len(joined.batches) > len(data.batches):
                return replace(found, overflowing=dict(search.overflowing)), joined, False
        # The statistics of trials missed something, so from now on trials compute all of them.
        search.trials.reject(search.space.edits(low), f"final check: {checked.check.reasons[0]}")
        search.failing.append(low)
    failures = ("the final check contradicts the search", *checked.check.reasons)
    return replace(found, failures=failures), data, True


class _CheckedChoice(NamedTuple):
    """The rules of a choice of low groups, the policy that reads them, and the check under this policy."""

    edits: EditSet
    policy: Policy
    check: CheckReport


def _check_choice(job: _Job, low: Groups, *, ranks_nodes: bool = False) -> _CheckedChoice:
    """Check a choice of low groups on all data, as ``apply`` with its rules would write it.

    ``ranks_nodes``: whether a check that fails ranks the nodes, for the search that follows.
    """
    with job.timer.phase("final check"):
        edits = _find_needed_rules(job, low)
        policy = job.plan_for_target(_policy_with_rules(job.policy, edits)).policy
        check = job.check(policy, lambda check: ranks_nodes and check.verdict != "pass")
        return _CheckedChoice(edits, policy, check)


def _find_needed_rules(job: _Job, low: Groups) -> EditSet:
    """Return the fewest rules found that make exactly these groups low: none for what the lists decide alike.

    A rule also changes the nodes that follow its node. So rules are added in the order of the graph: at first only for
    the nodes that differ although all that they read is as wanted.
    """
    solver, space = job.resolver, job.space
    every_rule = space.edits(low)
    wanted = solver.solve(edit_policy(job.target_policy, every_rule))
    rule_of = {ref: rule for index, group in enumerate(space.groups) for ref, rule in group.rules(index in low)}
    chosen: set[Edit] = set()
    while True:
        solution = solver.solve(edit_policy(job.target_policy, frozenset(chosen)))
        differing = {
            node
            for node in solver.graph.nodes
            if node_ref(node) in rule_of
            and rule_of[node_ref(node)] not in chosen
            and solution.assignments[node.id] != wanted.assignments[node.id]
        }
        if not differing:
            break
        first = [n for n in differing if not any(v is not None and v.producer in differing for v in n.inputs)]
        chosen |= {rule_of[node_ref(node)] for node in first or differing}
    edits = frozenset(chosen)
    return edits if solution.decided_types == wanted.decided_types else every_rule


def _policy_with_rules(policy: Policy, edits: EditSet) -> Policy:
    """Return the policy that ``apply`` reads from the node rules of a result."""
    return replace_rules(policy, read_tuned_rules(policy, edits))


def _make_result(job: _Job, found: _Found) -> ConvertResult:
    """Return the result with its report."""
    policy = _policy_with_rules(job.policy, found.edits or NO_EDITS)
    plan = job.plan_for_target(policy)
    rewritten = rewrite(job.loaded, plan) if found.edits is not None else None
    before, after = measure_models(plan, rewritten, found.costs or job.costs)
    verdict: Verdict = "inconclusive" if found.is_inconclusive or found.check.verdict == "inconclusive" else "fail"
    reasons = found.failures or found.check.reasons
    if rewritten is not None and not found.check.passes_without_low:
        near_limit = describe_near_limit(found.check)
        verdict, reasons = "pass", (*found.check.reasons, *([near_limit] if near_limit else []))
    if job.is_random:
        reasons = (*reasons, RANDOM_DATA)
    warnings = [*found.check.warnings, *(rewritten.warnings if rewritten is not None else plan.warnings)]
    warnings += [] if rewritten is None else find_crash_of_result(rewritten)
    if uncounted := describe_uncounted(found.costs or job.costs):
        warnings.append(warning("ML618", f"the share of matrix and convolution work {uncounted}"))
    report = ConvertReport(
        model=job.loaded.name,
        precision=job.policy.mode.low,
        verdict=verdict,
        reasons=reasons,
        random_data=job.is_random,
        batches=found.check.batches,
        before=before,
        after=after,
        high_nodes=describe_high_nodes(plan, rewritten, _raised_reasons(job, found)) if rewritten is not None else (),
        customize_dtypes=render_customize_dtypes(job.policy, found.edits) if found.edits is not None else "",
        trials=found.trials,
        check=found.check,
        log=found.log,
        joined=found.joined,
        advice=_find_advice(job, found),
        later_opset=find_later_opset(job.resolver.plan(job.policy), job.target),
        warnings=tuple(dict.fromkeys(warnings)),
        seconds=job.timer.seconds,
    )
    return ConvertResult(report, plan, rewritten)


def _find_advice(job: _Job, found: _Found) -> tuple[str, ...]:
    spread = tuple(text for text in found.check.advice if text.startswith(DIFFERS))
    if has_integer_products(job.resolver.graph):
        return (*spread, INTEGER_PRODUCTS)
    return (*spread, *(find_large_inputs(job.batches) if found.overflowing else ()))


def _raised_reasons(job: _Job, found: _Found) -> dict[NodeRef, str]:
    """Return why the search raised each node that it did: overflow first, then by the error that the nodes add."""
    if found.evidence is None or found.low is None:
        return {}
    errors = found.evidence.errors
    raised = [group for group in range(len(job.space.groups)) if group not in found.low]
    # Errors that together are far below the limit hardly raise a node. Would it be low if only bytes counted?
    by_error = [group for group in raised if group not in found.overflowing]
    far_below = (AIMED_SHARE * (job.limits.outputs.normalized or DEFAULT_LIMIT)) ** 2
    little = set(_take_smallest(by_error, errors, max(SMALL_PART * _sum_of(errors, by_error), far_below)))
    by_casts = little - job.choice_costs(found.costs or job.costs).find_cheapest({*raised} - little)
    reasons: dict[NodeRef, str] = {}
    for group in sorted(raised, key=lambda group: (group not in found.overflowing, -errors[group], group)):
        reason = "between nodes in float32, where Casts would cost more"
        if errors[group] and group not in by_casts:
            # A check has other numbers: of more batches, of the nodes that its lists make low, and of single nodes.
            subject = "adds" if len(job.space.groups[group].nodes) == 1 else "adds, with the nodes of its unit,"
            error = f"{math.sqrt(errors[group]):.2g}"
            reason = f"{subject} an error of {error} by itself, in the first batch"
        reasons |= dict.fromkeys(job.space.groups[group].nodes, found.overflowing.get(group, reason))
    return reasons
