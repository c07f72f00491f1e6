"""Repair a model: search the nodes to raise with the machinery of ``tune``, then write them into the model.

The search runs under a policy that changes no node (``origin``). So the given model is the mixed model of the search,
and its reference is the same model in float32: low weights keep their rounded values, and nodes that are float32 in the
file stay so. The candidates are the low nodes that a node rule can raise, and no batch is held out, because an overflow
may be in any. The repaired model is what ``apply`` writes for the given model with the node rules of the result.

Raised nodes are in one edit if one reads an output of the other.
With ``clip``, a Clip at half of the largest finite value replaces a group in which the output of a node of the main
graph overflows first, if two checks pass on all data: the model with the Clip against itself in float32, where Rule
S8.30 holds, and its outputs against the reference without the Clip.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from mixlist.checker.finding_rules import EXCEPTION_KINDS
from mixlist.checker.load_test import find_crash_of_result
from mixlist.checker.result import CheckReport, OutputFinding
from mixlist.checker.run import run_check
from mixlist.decide import Plan, Resolver
from mixlist.errors import ModelError
from mixlist.lists.load import load_policy, replace_rules
from mixlist.lists.node_rules import format_customize_line, parse_customize_dtypes
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.dataflow import trace_dataflow
from mixlist.model.graph import Graph
from mixlist.model.load import load_model
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.model.naming import NameGenerator, NodeRef, names_in, node_ref, unique_names
from mixlist.model.protos import copy_message
from mixlist.number_text import pluralize
from mixlist.option_fields import with_fields
from mixlist.run.feeds import as_batches
from mixlist.search.chosen_interface import choose_interface
from mixlist.search.edits import NO_EDITS, NodeEdit, render_customize_dtypes
from mixlist.search.options import RepairOptions
from mixlist.search.repair_result import OutputErrors, RaisedNode, RepairEdit, RepairReport
from mixlist.search.search_result import ExplainedEdit, SearchResult
from mixlist.search.tune import run_search
from mixlist.search.type_corrections import correct_types
from mixlist.write import rewrite

if TYPE_CHECKING:
    from mixlist.checker.options import CheckOptions
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.feeds import Batches, Data

Group = tuple[NodeRef, ...]  # connected raised nodes, in order of computation
MANY_RAISED = 0.5  # of the low nodes
MAY_GAIN_MORE = "mixlist convert may gain more from the float32 model, if you have it"
CLIP_SHARE = 0.5  # of the largest finite value: two clipped values can be added


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(RepairOptions):
        model: Model
        data: Data

else:
    _Arguments = RepairOptions


@with_fields(_Arguments)
def repair(model: Model, data: Data, options: RepairOptions) -> RepairReport:
    """Find the fewest nodes of a float16 or bfloat16 model to raise to float32, so that it keeps the limits on data.

    The keyword arguments are options of ``mixlist repair --help-all``. ``data`` has the forms that ``check`` accepts.
    The reference is the model in float32 with its weights as they are. Nothing is written: ``save`` of the report
    writes the repaired model. Raises ModelError if the model has no node in low precision, UsageError for wrong
    arguments, and the errors that ``check`` raises.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(precision_mode_v2="fp16"))
        mixlist.rewrite("digits.onnx", plan).save("half.onnx")
        batches = mixlist.random_batches("half.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.repair("half.onnx", batches)
        report.save("repaired.onnx")
    """
    return run_repair(model, data, options)


def run_repair(model: Model, data: Data, options: RepairOptions) -> RepairReport:
    """Do what ``repair`` does, with the options in one object."""
    corrected = correct_types(load_model(model), options.type_hints)
    resolver = Resolver(corrected, type_hints=options.type_hints)
    low_nodes = _find_low_precisions(_plan_with_rules(resolver, ""))
    if not low_nodes and corrected.corrections:  # see ``needs_data``
        return _corrected_report(resolver)
    if not low_nodes:
        raise ModelError(
            f"{resolver.loaded.name} has no node in float16 or bfloat16 that could be raised",
            hint="repair is for models that were authored in low precision; mixlist tune finds lists for other models",
        )
    # The low type of the search is the one that most nodes have.
    ((precision, _),) = Counter(low_nodes.values()).most_common(1)
    loaded = choose_interface(resolver.loaded, options, precision, options.type_hints)
    if loaded is not resolver.loaded:
        resolver = Resolver(loaded, type_hints=options.type_hints)
    batches = as_batches(data, loaded.proto, options.max_batches)
    validation = None if options.validate_on is None else as_batches(options.validate_on, loaded.proto)
    tune_options = replace(options.tune_options(), validate_on=validation)
    policy = _with_low_type(_policy_with_rules(""), precision)
    searched = run_search(resolver, policy, batches, tune_options)
    customize_dtypes = render_customize_dtypes(policy, searched.edits or NO_EDITS)
    result = _Repair(resolver, low_nodes, searched, customize_dtypes, options)
    if options.clip and result.clipped is not None:
        # The Clips must keep the limits on the validation data too, so no further validation is needed.
        all_data = [batches] if validation is None else [batches, validation]
        candidates, check_options = result.clip_candidates(), tune_options.check_options()
        result.clipped = _replace_by_clips(result.clipped, candidates, all_data, check_options)
    return result.report()


class _Repair:
    """The outcome of a search for nodes to raise, of which ``report`` makes the report.

    ``searched``: the result of the search, whose ``base`` is the check of the given model, and ``customize_dtypes``
    its edits as node rules. ``low_nodes``: the precision of each low-precision node of the given model. ``groups``: the
    raised nodes. ``clipped``: the node rules and Clips of the repair; None if the search found no repair or was
    stopped.
    """

    def __init__(
        self,
        resolver: Resolver,
        low_nodes: dict[NodeRef, str],
        searched: SearchResult,
        customize_dtypes: str,
        options: RepairOptions,
    ) -> None:
        self.resolver, self.low_nodes, self.searched, self.base = resolver, low_nodes, searched, searched.base
        self.options = options
        self.op_types = {decision.ref: decision.op_type for decision in _plan_with_rules(resolver, "").nodes}
        names = unique_names(self.low_nodes)
        edits = {item.edit.pattern: item for item in searched.explained if isinstance(item.edit, NodeEdit)}
        self.edits: dict[NodeRef, ExplainedEdit] = {ref: edits[name] for ref, name in names.items() if name in edits}
        self.groups: list[Group] = []
        self.clipped: _ClippedRepair | None = None
        # After Ctrl-C the nodes so far are not checked.
        if searched.edits is not None and searched.complete:
            self.clipped = _ClippedRepair(resolver, customize_dtypes)
            plan = _plan_with_rules(resolver, customize_dtypes)
            raised = low_nodes.keys() - _find_low_precisions(plan).keys()
            self.groups = [tuple(group) for group in _find_connected_groups(resolver.graph, raised)]

    def clip_candidates(self) -> dict[Group, _Clip]:
        """Return a Clip for each group in which an output of a node of the main graph overflows first."""
        candidates = {}
        for group in self.groups:
            edits = [self.edits[ref].edit for ref in group if ref in self.edits]
            rules = frozenset(format_customize_line(edit.rule) for edit in edits if isinstance(edit, NodeEdit))
            tensors = [
                finding.tensor
                for finding in self.base.nodes
                if finding.ref in group and finding.first and finding.kind in EXCEPTION_KINDS and not finding.input
            ]
            if tensors and not group[0].scope:
                candidates[group] = _Clip(tensors[0], self.base.precision, rules)
        return candidates

    @property
    def raised_count(self) -> int:
        """The number of nodes that are raised."""
        return sum(len(group) for group in self.groups if self.clipped is None or group not in self.clipped.clips)

    @property
    def wide_outputs(self) -> tuple[str, ...]:
        """The low outputs of the model whose values in float32 are beyond the low type, with the interface kept."""
        if self.options.io != "keep":
            return ()
        root, largest = self.resolver.graph.root, FINITE_MAX[dtypes.ELEMENT_BY_NAME[self.base.precision]]
        types = zip(root.output_names(), root.outputs, strict=True)
        low = {name for name, value in types if dtypes.element(value.type) in LOW_TYPES}
        beyond = [f for f in self.base.nodes if not f.scope and not f.input and largest < f.max_abs_fp32 < math.inf]
        return tuple(finding.tensor for finding in beyond if finding.tensor in low)

    def report(self) -> RepairReport:
        """Return the report, with the repaired model if there is one."""
        searched, repaired = self.searched, self.clipped
        corrections = self.resolver.loaded.corrections
        edits = (*map(self._edit, self.groups), *_type_edits(self.resolver.loaded))
        check, after = self._find_check(repaired)
        rewritten = None
        if repaired is not None:
            plan = _plan_with_rules(repaired.resolver, repaired.customize_dtypes)
            rewritten = rewrite(repaired.resolver.loaded, plan)
        return RepairReport(
            model=searched.model,
            precision=self.base.precision,
            verdict=searched.verdict,
            complete=searched.complete,
            reasons=self._reasons(),
            first_offenders=tuple(finding for finding in self.base.nodes if finding.first),
            edits=edits,
            # Nothing computes the outputs of a given model whose types clash.
            errors=_output_errors(() if corrections else self.base.outputs, after),
            low_nodes=len(self.low_nodes),
            raised_nodes=self.raised_count,
            low_share={"base": searched.low_share["base"], "repaired": self._low_share(edits)},
            customize_dtypes=repaired.customize_dtypes if repaired is not None else "",
            trials=searched.trials,
            remembered=searched.remembered,
            check=check,
            validation=searched.validation,
            warnings=(*searched.warnings, *([] if rewritten is None else find_crash_of_result(rewritten))),
            seconds=searched.seconds,
            wide_outputs=self.wide_outputs if rewritten is None else (),
            rewritten=rewritten,
        )

    def _find_check(self, repaired: _ClippedRepair | None) -> tuple[CheckReport | None, tuple[OutputFinding, ...]]:
        """Return the check of the repaired model and the errors of its outputs; without a repair, another check and ().

        The other check is the last one of the search.
        """
        if repaired is None:
            return self.searched.check, ()
        if repaired.check is not None:
            return repaired.check, repaired.outputs
        return self.searched.check, self.searched.check.outputs if self.searched.check is not None else ()

    def _low_share(self, edits: Sequence[RepairEdit]) -> float | None:
        """Return the share of the matrix work that stays low: what the edits do not take."""
        base = self.searched.low_share["base"]
        return None if base is None else base - sum(edit.cost or 0.0 for edit in edits)

    def _edit(self, group: Group) -> RepairEdit:
        """Return the edit for a group of nodes, explained by the trials of the search."""
        edits = [self.edits[ref] for ref in group if ref in self.edits]
        why = next((edit.why for edit in edits if edit.why), "")
        clip = self.clipped.clips.get(group) if self.clipped is not None else None
        if clip is not None:
            return RepairEdit("clip", (), clip.tensor, clip.limit, why, "", None)
        without = next((edit.without for edit in edits if edit.without), "")
        nodes = tuple(RaisedNode(*ref, self.op_types[ref], self.low_nodes[ref]) for ref in group)
        costs = [edit.cost for edit in edits if edit.cost is not None]
        return RepairEdit("raise", nodes, "", None, why, without, sum(costs) if costs else None)

    def _reasons(self) -> tuple[str, ...]:
        """Return why the verdict is what it is, one sentence each."""
        searched = self.searched
        if searched.verdict == "pass":
            is_changed = bool(self.groups or self.resolver.loaded.corrections)
            state = "the repaired model" if is_changed else "nothing to repair: the model as it is"
            is_many = self.raised_count > MANY_RAISED * len(self.low_nodes)
            share = "all" if self.raised_count == len(self.low_nodes) else "most"
            remark = f", and {share} of it is float32 now: {MAY_GAIN_MORE}" if is_many else ""
            return (f"{state} keeps every limit{remark}", *self._describe_clips())
        if searched.verdict == "inconclusive":
            return searched.reasons
        if searched.complete and self.clipped is None:
            return (*searched.reasons, *_explain_failure(searched))
        return searched.reasons

    def _describe_clips(self) -> tuple[str, ...]:
        """Return how many Clips were tried and kept, one sentence; () without ``clip`` or raised nodes."""
        if not self.options.clip or not self.groups or self.clipped is None:
            return ()
        tried, kept = len(self.clip_candidates()), len(self.clipped.clips)
        cause = "" if kept == tried else "; with another one, a limit breaks" if kept else ": a limit breaks"
        groups = f"{pluralize(len(self.groups), 'group')} of raised nodes"
        return (f"{pluralize(tried, 'Clip')} tried in place of {groups}, {kept} kept{cause}",)


def _type_edits(loaded: LoadedModel) -> tuple[RepairEdit, ...]:
    """Return the edits that correct clashes of types (Rule S4.52)."""
    return tuple(
        RepairEdit(correction.kind, (), correction.tensor, None, f"to {correction.to}: {correction.why}", "", None)
        for correction in loaded.corrections
    )


def needs_data(corrected: LoadedModel, options: RepairOptions) -> bool:
    """Return False if a model, once its types are corrected, has no low node: then there is nothing to search."""
    if not corrected.corrections:
        return True
    resolver = Resolver(corrected, type_hints=options.type_hints)
    return bool(_find_low_precisions(_plan_with_rules(resolver, "")))


def _corrected_report(resolver: Resolver) -> RepairReport:
    """Return the report of a model that has no low node once its types are corrected: there is nothing to search."""
    return RepairReport(
        model=resolver.loaded.name,
        precision="float16",
        verdict="pass",
        complete=True,
        reasons=("its types agree now, and no node is in float16 or bfloat16: there is nothing to search",),
        first_offenders=(),
        edits=_type_edits(resolver.loaded),
        errors=(),
        low_nodes=0,
        raised_nodes=0,
        low_share={"base": None, "repaired": None},
        customize_dtypes="",
        trials=0,
        remembered=0,
        check=None,
        rewritten=rewrite(resolver.loaded, _plan_with_rules(resolver, "")),
    )


def _explain_failure(searched: SearchResult) -> tuple[str, ...]:
    """Return why the trial failed that raises every node that a rule can raise; () without such a trial."""
    # If this trial fails, the search ends. It has the most edits, because every other trial raises fewer nodes.
    failed = [trial for trial in searched.log if not trial["passed"] and trial["edits"]]
    if not failed:
        return ()
    largest = max(failed, key=lambda trial: len(cast("Sequence[str]", trial["edits"])))
    return (f"with every node raised that a node rule can raise: {largest['why']}",)


def _output_errors(before: Sequence[OutputFinding], after: Sequence[OutputFinding]) -> tuple[OutputErrors, ...]:
    """Return the errors of each output before the repair, and after it if there is a repaired model."""
    errors_before, errors_after = ({output.name: output for output in outputs} for outputs in (before, after))
    return tuple(
        OutputErrors(name, errors_before.get(name), errors_after.get(name)) for name in errors_before | errors_after
    )


# --- low nodes, and groups of raised nodes ---


def _find_low_precisions(plan: Plan) -> dict[NodeRef, str]:
    """Return the precision of each node that a plan computes in float16 or bfloat16, in the order of the plan.

    Casts are left out, because no rule raises them (Rule S4.13).
    """
    low_nodes: dict[NodeRef, str] = {}
    solution = plan.solution
    for node in solution.graph.nodes:
        assignment, signature = solution.assignments[node.id], node.signature
        primary = signature.primary_group if signature is not None else None
        if assignment is None or signature is None or primary is None or signature.has_fixed_output:
            continue
        # Not ``find_precision``: to a policy for float16, a bfloat16 node has no types to vary (Rule S4.9).
        elem = assignment.elements[signature.groups.index(primary)]
        if elem in LOW_TYPES:
            low_nodes[node_ref(node)] = dtypes.type_name(elem)
    return low_nodes


def _find_connected_groups(graph: Graph, raised: Iterable[NodeRef]) -> list[list[NodeRef]]:
    """Return the raised nodes in groups; the groups and their nodes are in order of computation.

    Two nodes are in one group if one of them reads an output of the other, directly or through nodes of the group.
    """
    raised = set(raised)
    ordered = [node for node in trace_dataflow(graph) if node.ref in raised]
    # First all edges, because the state of a loop is read before it is computed.
    neighbors: dict[NodeRef, set[NodeRef]] = {node.ref: set() for node in ordered}
    for node in ordered:
        for producer in {tensor.ref.producer for tensor in node.inputs} & raised:
            neighbors[node.ref].add(producer)
            neighbors[producer].add(node.ref)
    groups: list[list[NodeRef]] = []
    group_of: dict[NodeRef, list[NodeRef]] = {}
    for node in ordered:
        # The first node of a group reserves an empty group for all nodes that are connected with it.
        if node.ref not in group_of:
            groups.append([])
            waiting = [node.ref]
            while waiting:
                ref = waiting.pop()
                group_of[ref] = groups[-1]
                waiting += [neighbor for neighbor in neighbors[ref] if neighbor not in group_of]
        group_of[node.ref].append(node.ref)
    return groups


# --- plans and checks under node rules ---


def _policy_with_rules(customize_dtypes: str) -> Policy:
    """Return the policy under which only these node rules change a model."""
    return replace_rules(load_policy(precision_mode_v2="origin"), parse_customize_dtypes(customize_dtypes)[0])


def _plan_with_rules(resolver: Resolver, customize_dtypes: str) -> Plan:
    """Return the plan that ``apply`` makes with these node rules."""
    return resolver.plan(_policy_with_rules(customize_dtypes))


def _with_low_type(policy: Policy, precision: str) -> Policy:
    """Return a policy with another low type."""
    return replace(policy, mode=policy.mode._replace(low=cast("Any", precision)))


def _check_rules(
    loaded: LoadedModel, customize_dtypes: str, precision: str, data: Sequence[Batches], options: CheckOptions
) -> list[CheckReport]:
    """Return a check of a model under node rules for each of several sets of data. ``precision``: the low type."""
    policy = _with_low_type(_policy_with_rules(customize_dtypes), precision)
    return [run_check(loaded, policy, batches, options) for batches in data]


# --- Clips in place of raised nodes ---


@dataclass(frozen=True)
class _Clip:
    """A Clip behind the tensor ``tensor`` of the main graph, between ``-limit`` and ``limit``.

    ``rules``: the lines of the node rules that are not needed with the Clip.
    """

    tensor: str
    precision: str
    rules: frozenset[str]

    @property
    def limit(self) -> float:
        """The magnitude that the Clip leaves."""
        return CLIP_SHARE * FINITE_MAX[dtypes.ELEMENT_BY_NAME[self.precision]]


@dataclass(frozen=True)
class _ClippedRepair:
    """A repair of which some groups of raised nodes are replaced by Clips.

    ``resolver``: the given model with the Clips. ``customize_dtypes``: the rules of the remaining raised nodes.
    ``clips``: the Clips by the group that they replace. ``check``: the check of the repaired model against the model
    with the same Clips in float32. ``outputs``: its errors against the given model in float32. Without Clips, ``check``
    is None and ``outputs`` is ().
    """

    resolver: Resolver
    customize_dtypes: str
    clips: Mapping[Group, _Clip] = field(default_factory=dict)
    check: CheckReport | None = None
    outputs: tuple[OutputFinding, ...] = ()


def _replace_by_clips(
    repair: _ClippedRepair,
    candidates: Mapping[Group, _Clip],
    data: Sequence[Batches],
    options: CheckOptions,
) -> _ClippedRepair:
    """Return the repair with each group replaced by its Clip, if the result keeps the limits.

    ``candidates``: the Clips by their group, in the order in which they are tried. ``data`` and ``options``: those of
    the checks.
    """
    unclipped = repair.resolver.loaded
    for group, clip in candidates.items():
        clipped = _insert_clip(repair.resolver.loaded, clip)
        if clipped is None:
            continue
        lines = repair.customize_dtypes.splitlines(keepends=True)
        rules = "".join(line for line in lines if line.rstrip("\n") not in clip.rules)
        # First against the same Clips in float32: this finds overflow. Then against the model without them.
        reports = _check_rules(clipped, rules, clip.precision, data, options)
        if any(report.verdict != "pass" for report in reports):
            continue
        resolver = Resolver(clipped, type_hints=options.type_hints)
        repaired = rewrite(clipped, _plan_with_rules(resolver, rules)).model
        judged = replace(options, mixed_model=repaired)
        judged_reports = _check_rules(unclipped, "", clip.precision, data, judged)
        if all(output.passed for report in judged_reports for output in report.outputs):
            clips = {**repair.clips, group: clip}
            repair = _ClippedRepair(resolver, rules, clips, reports[0], judged_reports[0].outputs)
    return repair


def _insert_clip(loaded: LoadedModel, clip: _Clip) -> LoadedModel | None:
    """Return a copy of a model with a Clip behind a tensor; None if no node of the main graph makes the tensor.

    The Clip takes over the name of the tensor, so that its readers and the graph outputs do not change.
    """
    proto = copy_message(loaded.proto)
    nodes, elem = proto.graph.node, dtypes.ELEMENT_BY_NAME[clip.precision]
    index = next((index for index, node in enumerate(nodes) if clip.tensor in node.output), None)
    if index is None:
        return None
    names = NameGenerator(names_in(proto.graph))
    unclipped = names.make_name(f"{clip.tensor}_unclipped")
    nodes[index].output[list(nodes[index].output).index(clip.tensor)] = unclipped
    bounds = {names.make_name(f"{clip.tensor}_{side}"): sign * clip.limit for side, sign in (("min", -1), ("max", 1))}
    added = [names.make_constant(name, elem, [], [number]) for name, number in bounds.items()]
    added.append(names.make_node("Clip", [unclipped, *bounds], clip.tensor))
    for offset, node in enumerate(added, start=1):
        nodes.insert(index + offset, node)
    return loaded._replace(proto=proto)
