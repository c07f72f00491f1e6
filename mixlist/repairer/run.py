"""Repair a model: search the nodes to raise with the machinery of ``tune``, then write them into the model.

The search runs under a policy that changes no node (``origin``). So the given model is the mixed model of the search,
and its reference is the same model in float32: low weights keep their rounded values (Rules S12.1 to S12.5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mixlist.checker.result import CheckReport, Verdict
from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.graph.refs import NodeRef, unique_names
from mixlist.lists.load import load_policy
from mixlist.lists.policy import Policy
from mixlist.option_fields import field_signature
from mixlist.repairer.options import RepairOptions
from mixlist.repairer.raised_groups import find_connected_groups, find_low_nodes
from mixlist.repairer.result import OutputErrors, RaisedNode, RepairEdit, RepairReport
from mixlist.resolver import Plan, Resolver
from mixlist.rewriter import rewrite
from mixlist.tuner.run import Search, run_search

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model
    from mixlist.tuner.result import TunedEdit, TuneReport

# Rule S12.4: a model of which more nodes must be raised needs another type, not a repair.
MAX_RAISED_SHARE = 0.5


def repair(model: Model, data: object, **options: Any) -> RepairReport:
    """Find the fewest nodes of a float16 or bfloat16 model to raise to float32, so that it keeps the limits on data.

    The keyword arguments are the fields of ``RepairOptions``. ``data`` has the forms that ``check`` accepts. The
    reference is the model in float32 with its weights as they are. Nothing is written: ``save`` of the report writes
    the repaired model. Raises ModelError if the model has no node in low precision, UsageError for wrong arguments, and
    the errors that ``check`` raises.
    """
    return run_repair(model, data, RepairOptions(**options))


def run_repair(model: Model, data: object, options: RepairOptions) -> RepairReport:
    """Do what ``repair`` does, with the options in one object."""
    resolver = Resolver(model, type_hints=options.type_hints)
    authored_plan = resolver.plan(load_policy(precision_mode_v2="origin"))
    low_nodes = find_low_nodes(authored_plan)
    if not low_nodes:
        raise ModelError(
            f"{resolver.loaded.name} has no node in float16 or bfloat16 that could be raised",
            hint="repair is for models that were authored in low precision; mixlist tune finds lists for other models",
        )
    search = run_search(resolver.loaded, _search_policy(low_nodes), data, options.tune_options())
    return _Repair(resolver, authored_plan, low_nodes, search).report()


def _search_policy(low_nodes: dict[NodeRef, str]) -> Policy:
    """Return the policy that changes no node, with the low type that most nodes have."""
    policy = load_policy(precision_mode_v2="origin")
    ((precision, _),) = Counter(low_nodes.values()).most_common(1)
    return replace(policy, mode=replace(policy.mode, low=cast("Any", precision)))


class _Repair:
    """Makes the report of one repair from the search for it.

    ``low_nodes``: the precision of each node of the model that may be raised.
    """

    def __init__(self, resolver: Resolver, authored_plan: Plan, low_nodes: dict[NodeRef, str], search: Search) -> None:
        self.resolver, self.authored_plan, self.low_nodes = resolver, authored_plan, low_nodes
        self.tuned, self.base = search.report, search.base
        # Without a modify_mixlist the search found no set of nodes. After Ctrl-C the nodes so far are not checked.
        has_result = bool(self.tuned.modify_mixlist) and self.tuned.complete
        self.plan = self._plan_with_rules(self.tuned.customize_dtypes) if has_result else None
        raised = low_nodes.keys() - find_low_nodes(self.plan).keys() if self.plan is not None else set()
        self.groups = find_connected_groups(resolver.graph, raised)
        self.raised_count = len(raised)
        # Rule S12.4
        self.is_excessive = len(raised) > MAX_RAISED_SHARE * len(low_nodes)

    def _plan_with_rules(self, customize_dtypes: str) -> Plan:
        """Return the plan of the repaired model: that of ``apply`` with the node rules that the user gets."""
        if not customize_dtypes:
            return self.authored_plan
        with ScratchFolder() as folder:
            path = folder / "customize_dtypes.txt"
            write_scratch(path, customize_dtypes.encode())
            return self.resolver.plan(load_policy(precision_mode_v2="origin", customize_dtypes=path))

    def report(self) -> RepairReport:
        """Return the report, with the repaired model if there is one."""
        tuned, is_repaired = self.tuned, self.plan is not None and not self.is_excessive
        verdict: Verdict = "fail" if self.is_excessive else tuned.verdict
        low_share = tuned.low_share
        return RepairReport(
            model=tuned.model,
            precision=self.base.precision,
            verdict=verdict,
            complete=tuned.complete,
            reasons=self._reasons(),
            first_offenders=tuple(finding for finding in self.base.nodes if finding.first),
            edits=tuple(map(self._edit, self.groups)),
            errors=_output_errors(self.base, tuned.check if is_repaired else None),
            low_nodes=len(self.low_nodes),
            raised_nodes=self.raised_count,
            low_share={"base": low_share["base"], "repaired": low_share["tuned"]},
            customize_dtypes=tuned.customize_dtypes if is_repaired else "",
            trials=tuned.trials,
            remembered=tuned.remembered,
            check=tuned.check,
            validation=tuned.validation,
            warnings=tuned.warnings,
            seconds=tuned.seconds,
            rewritten=rewrite(self.resolver.loaded, self.plan) if is_repaired and self.plan is not None else None,
        )

    def _edit(self, group: Sequence[NodeRef]) -> RepairEdit:
        """Return the edit that raises a group of nodes, explained by the trials of the search."""
        nodes = {decision.ref: decision for decision in self.authored_plan.nodes}
        names = unique_names(nodes)
        tuned = {edit.node: edit for edit in self.tuned.edits}
        edits: list[TunedEdit] = [tuned[names[ref]] for ref in group if names.get(ref) in tuned]
        costs = [edit.cost for edit in edits if edit.cost is not None]
        return RepairEdit(
            kind="raise",
            nodes=tuple(RaisedNode(*ref, nodes[ref].op_type, self.low_nodes[ref]) for ref in group),
            why=next((edit.why for edit in edits if edit.why), ""),
            without=next((edit.without for edit in edits if edit.without), ""),
            cost=sum(costs) if costs else None,
        )

    def _reasons(self) -> tuple[str, ...]:
        """Return why the verdict is what it is, one sentence each."""
        tuned = self.tuned
        if self.is_excessive:
            counts = f"{self.raised_count} of {len(self.low_nodes)} {self.base.precision} nodes"
            return (f"{counts} would have to be raised, more than half: the model needs float32 or bfloat16",)
        if tuned.verdict == "pass":
            state = "the repaired model" if self.raised_count else "nothing to repair: the model as it is"
            return (f"{state} keeps every limit",)
        if tuned.verdict == "fail" and self.plan is None:
            return (*tuned.reasons, *_explain_failure(tuned))
        return tuned.reasons


def _explain_failure(tuned: TuneReport) -> tuple[str, ...]:
    """Return what fails even with every node raised that a rule can raise; () if that was not tried."""
    # The search ends with this trial if it fails. Every other trial raises fewer nodes.
    failed = [trial for trial in tuned.log if not trial["passed"] and trial["edits"]]
    if not failed:
        return ()
    largest = max(failed, key=lambda trial: len(cast("Sequence[str]", trial["edits"])))
    return (f"with every node raised that a node rule can raise: {largest['why']}",)


def _output_errors(base: CheckReport, repaired: CheckReport | None) -> tuple[OutputErrors, ...]:
    """Return the errors of each output before the repair, and after it if there is a repaired model."""
    before = {output.name: output for output in base.outputs}
    after = {output.name: output for output in repaired.outputs} if repaired is not None else {}
    return tuple(OutputErrors(name, before.get(name), after.get(name)) for name in before | after)


repair.__signature__ = field_signature(run_repair, RepairOptions)  # type: ignore[attr-defined]
