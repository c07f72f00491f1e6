"""Compare two policies: their lists, and with a model its nodes, Casts, accuracy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

from mixlist.checker.options import CheckOptions
from mixlist.comparison.result import DiffReport, NodeChange, SideResult
from mixlist.errors import UsageError
from mixlist.lists.diff import ListDiff
from mixlist.lists.diff import diff as diff_policies
from mixlist.lists.policy import Policy, require_policy
from mixlist.lists.setting_changes import find_setting_changes
from mixlist.option_fields import with_fields

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.cost.estimate import Work
    from mixlist.graph.load import LoadedModel, Model
    from mixlist.resolver.plan import Plan
    from mixlist.runtime.feeds import Batches

Keywords = ParamSpec("Keywords")
_DEFAULTS = CheckOptions()


class _Diff(Protocol[Keywords]):
    """A function of two policies, or of two policies, a model, data and the fields of CheckOptions."""

    @overload
    def __call__(self, base: Policy, target: Policy) -> ListDiff: ...
    @overload
    def __call__(
        self,
        base: Policy,
        target: Policy,
        model: Model,
        data: object = None,
        *positional: Keywords.args,
        **keywords: Keywords.kwargs,
    ) -> DiffReport: ...


def _as_diff(options_class: Callable[Keywords, CheckOptions]) -> Callable[[Callable[..., Any]], _Diff[Keywords]]:
    return with_fields(options_class)  # type: ignore[return-value]


@_as_diff(CheckOptions)
def diff(
    base: Policy, target: Policy, model: Model | None = None, data: object = None, options: CheckOptions = _DEFAULTS
) -> ListDiff | DiffReport:
    """Return the difference of two policies.

    Without ``model``, it is the modify_mixlist object that turns the lists of ``base`` into those of ``target``. With
    ``model``, it is a DiffReport: the changes of nodes and Casts, and with ``data`` a check of each policy on the same
    batches, and the estimated cost. ``data`` and the keyword arguments are those of ``mixlist.check``.

    Raises UsageError for data without a model, and, without a model, for libraries of different name spaces.
    """
    require_policy(base)
    require_policy(target)
    if model is None:
        if data is not None or options != _DEFAULTS:
            raise UsageError("data and options of a check need a model", hint="pass model=...")
        return diff_policies(base, target)
    if options.against is not None:
        raise UsageError("a diff judges two policies, and no other model", hint="leave against out")
    from mixlist.graph.load import load_model
    from mixlist.runtime.feeds import as_batches

    source = load_model(model)
    batches = None if data is None else as_batches(data, source.proto, options.steps)
    return compare_policies(base, target, source, batches, options)


def compare_policies(
    base: Policy, target: Policy, source: LoadedModel, batches: Batches | None, options: CheckOptions
) -> DiffReport:
    """Return the changes of a model between two policies. Without batches, nothing is checked or estimated."""
    from mixlist.resolver import Resolver

    resolver = Resolver(source, type_hints=options.type_hints, progress=options.progress if batches is None else None)
    plans = resolver.plan(base), resolver.plan(target)
    sides = [SideResult(plan.policy.lists.title, _count_casts(plan)) for plan in plans]
    if batches is not None:
        checks = [_check(source, policy, batches, options) for policy in (base, target)]
        works = [_estimate(source, plan, batches) for plan in plans]
        sides = [replace(side, check=check, work=work) for side, check, work in zip(sides, checks, works, strict=True)]
    found_warnings = [*plans[0].warnings, *plans[1].warnings]
    found_warnings += [warning for side in sides if side.check for warning in side.check.warnings]
    return DiffReport(
        model=source.name,
        mixlist=diff_policies(base, target) if base.space == target.space else None,
        settings=find_setting_changes(base, target),
        nodes=_changed_nodes(*plans),
        total=len(plans[1].nodes),
        base=sides[0],
        target=sides[1],
        # A warning about both sides appears once.
        warnings=tuple(dict.fromkeys(found_warnings)),
    )


def _changed_nodes(base: Plan, target: Plan) -> tuple[NodeChange, ...]:
    """Return the nodes of ``target`` whose precision is another one under ``base``."""
    return tuple(
        NodeChange(
            *(node.scope, node.name, node.op_type), *(base_node.precision, node.precision, node.reason, node.domain)
        )
        for base_node, node in zip(base.nodes, target.nodes, strict=True)
        if base_node.precision != node.precision
    )


def _count_casts(plan: Plan) -> int:
    """Return the number of Casts that ``rewrite`` inserts."""
    from mixlist.rewriter.rewrite_model import lay_out_plan

    return sum(map(len, lay_out_plan(plan).casts.values()))


def _check(source: LoadedModel, policy: Policy, batches: Batches, options: CheckOptions) -> CheckReport:
    from mixlist.checker.run import run_check

    return run_check(source, policy, batches, options)


def _estimate(source: LoadedModel, plan: Plan, batches: Batches) -> Work:
    """Return the work of the mixed model in the shapes of the first batch."""
    from mixlist.cost.estimate import estimate_work
    from mixlist.rewriter import rewrite

    mixed = replace(source, proto=rewrite(source, plan).proto, name=f"{source.name}, mixed")
    # A sequence input is a list, which has no shape.
    feed = next(iter(batches))
    shapes = {name: value.shape for name, value in feed.items() if hasattr(value, "shape")}
    return estimate_work(mixed, inputs=shapes)
