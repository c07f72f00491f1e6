"""Compare two policies: their lists, and with a model its nodes, Casts, accuracy and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

from mixlist.checker.options import CheckOptions
from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.errors import UsageError
from mixlist.files.strict_json import JsonObject
from mixlist.lists.diff import ListDiff, SettingChange, find_setting_changes
from mixlist.lists.diff import diff as diff_policies
from mixlist.lists.policy import Policy, require_policy
from mixlist.model.naming import NodeResult
from mixlist.model.operator_names import operator_name
from mixlist.option_fields import with_fields
from mixlist.result_tables import Row, notebook_rows

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.decide.plan import Plan
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.feeds import Batches, Data
    from mixlist.targets.estimate import Work

Keywords = ParamSpec("Keywords")
_DEFAULTS = CheckOptions()


# --- the result ---


@dataclass(frozen=True)
class NodeChange(NodeResult):
    """A node whose precision differs.

    ``base`` and ``other``: its precision under each policy. ``reason``: the reason under other.

    Example::

        report = mixlist.diff(mixlist.load_policy(), mixlist.load_policy(ops_info="mindspore-o2"), "digits.onnx")
        for node in report.nodes:
            print(node.name, node.base, node.other, node.reason)
    """

    base: str
    other: str
    reason: str
    domain: str = ""

    @property
    def operator(self) -> str:
        """Return the op type with its domain, as lists name it."""
        return operator_name(self.domain, self.op_type)


@dataclass(frozen=True)
class SideResult:
    """The effect of one of the two policies on the model.

    ``lists``: the library, and the number of op types that a modify_mixlist moves. ``casts``: the number of Casts that
    ``apply`` inserts. ``check``: the check on the data. ``work``: the estimated operations and bytes of the mixed model
    in the shapes of the first batch. ``check`` and ``work`` are None without data.

    Example::

        report = mixlist.diff(mixlist.load_policy(), mixlist.load_policy(ops_info="mindspore-o2"), "digits.onnx")
        print(report.base.lists, report.base.casts, report.other.lists, report.other.casts)
    """

    lists: str
    casts: int
    check: CheckReport | None = None
    work: Work | None = None


@dataclass(frozen=True, repr=False)
class DiffReport:
    """The changes from the policy ``base`` to the policy ``other``, for one model.

    ``mixlist``: the modify_mixlist that turns the lists of ``base`` into those of ``other``, None if their libraries
    have names of different name spaces. ``settings``: the other settings that differ. ``nodes``: the nodes whose
    precision differs. ``total``: the number of all nodes.

    Example::

        report = mixlist.diff(mixlist.load_policy(), mixlist.load_policy(ops_info="mindspore-o2"), "digits.onnx")
        print(len(report.nodes), "of", report.total, report.base.casts, report.other.casts)
    """

    model: str
    mixlist: ListDiff | None
    settings: tuple[SettingChange, ...]
    nodes: tuple[NodeChange, ...]
    total: int
    base: SideResult
    other: SideResult
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.nodes)} of {self.total} nodes change, Casts {self.base.casts} -> {self.other.casts}"
        return f"<DiffReport of {self.model!r}: {counts}; settings {len(self.settings)}, warnings {len(self.warnings)}>"

    def count_changes(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the number of changed nodes of each operator, by (precision of base, precision of other)."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for node in self.nodes:
            counts.setdefault((node.base, node.other), Counter())[node.operator] += 1
        # The most frequent change first.
        return dict(sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])))

    def to_rows(self) -> list[Row]:
        """Return a flat row for each node that changes, for pandas or polars."""
        return [asdict(node) for node in self.nodes]

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [
            (base or "-", other, str(operators.total()), ", ".join(operators))
            for (base, other), operators in self.count_changes().items()
        ]
        title = f"{self.model}: {len(self.nodes)} of {self.total} nodes change their precision"
        return notebook_rows(title, ("base", "other", "nodes", "operators"), rows)

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.diff/1`` object of schemas/diff.json."""
        changes = [
            {"base": base, "other": other, "nodes": operators.total(), "operators": dict(operators.most_common())}
            for (base, other), operators in self.count_changes().items()
        ]
        sides = {"base": self.base, "other": self.other}
        return {
            "format": "mixlist.diff/1",
            "model": self.model,
            "mixlist": self.mixlist,
            "settings": [asdict(change) for change in self.settings],
            "totals": {
                "nodes": self.total,
                "changed": len(self.nodes),
                "changes": changes,
                "casts": {name: side.casts for name, side in sides.items()},
            },
            "check": {name: side.check.to_json() if side.check else None for name, side in sides.items()},
            "estimate": {
                name: {**asdict(side.work), "low_share": side.work.low_share} if side.work else None
                for name, side in sides.items()
            },
            "nodes": [asdict(node) for node in self.nodes],
            "warnings": warnings_as_text(self.warnings),
        }


# --- the comparison ---


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(CheckOptions):
        base: Policy
        other: Policy
        model: Model
        data: Data | None = None

else:
    _Arguments = CheckOptions


class _Diff(Protocol[Keywords]):
    """A function of two policies, a model, data and the fields of CheckOptions, or of two policies alone."""

    @overload
    def __call__(self, *positional: Keywords.args, **keywords: Keywords.kwargs) -> DiffReport: ...
    @overload
    def __call__(self, base: Policy, other: Policy) -> ListDiff: ...


def _as_diff(arguments: Callable[Keywords, CheckOptions]) -> Callable[[Callable[..., Any]], _Diff[Keywords]]:
    decorate: Any = with_fields(arguments)  # whose type has no overloads
    return decorate  # type: ignore[no-any-return]


@_as_diff(_Arguments)
def diff(
    base: Policy, other: Policy, model: Model | None = None, data: Data | None = None, options: CheckOptions = _DEFAULTS
) -> ListDiff | DiffReport:
    """Return the difference of two policies.

    Without ``model``, it is the modify_mixlist object that turns the lists of ``base`` into those of ``other``. With
    ``model``, it is a DiffReport: the changes of nodes and Casts, and with ``data`` a check of each policy on the same
    batches, and the estimated cost. ``data`` and the keyword arguments are those of ``mixlist.check``.

    Example::

        report = mixlist.diff(mixlist.load_policy(), mixlist.load_policy(ops_info="mindspore-o2"), "digits.onnx")
        print(report.nodes)

    Raises UsageError for data without a model, and, without a model, for libraries of different name spaces.
    """
    require_policy(base)
    require_policy(other)
    if model is None:
        if data is not None or options != _DEFAULTS:
            raise UsageError("data and options of a check need a model", hint="pass model=...")
        return diff_policies(base, other)
    if options.mixed_model is not None:
        raise UsageError("a diff judges two policies, and no other model", hint="leave mixed_model out")
    from mixlist.model.load import load_model
    from mixlist.run.feeds import as_batches

    source = load_model(model)
    batches = None if data is None else as_batches(data, source.proto, options.max_batches)
    return compare_policies(base, other, source, batches, options)


def compare_policies(
    base: Policy, other: Policy, source: LoadedModel, batches: Batches | None, options: CheckOptions
) -> DiffReport:
    """Return the changes of a model between two policies. Without batches, nothing is checked or estimated."""
    from mixlist.decide import Resolver

    resolver = Resolver(source, type_hints=options.type_hints, progress=options.progress if batches is None else None)
    plans = resolver.plan(base), resolver.plan(other)
    sides = [SideResult(plan.policy.lists.title, _count_casts(plan)) for plan in plans]
    if batches is not None:
        checks = [_check(source, policy, batches, options) for policy in (base, other)]
        works = [_estimate(source, plan, batches) for plan in plans]
        sides = [replace(side, check=check, work=work) for side, check, work in zip(sides, checks, works, strict=True)]
    found_warnings = [*plans[0].warnings, *plans[1].warnings]
    found_warnings += [warning for side in sides if side.check for warning in side.check.warnings]
    return DiffReport(
        model=source.name,
        mixlist=diff_policies(base, other) if base.space == other.space else None,
        settings=find_setting_changes(base, other),
        nodes=_changed_nodes(*plans),
        total=len(plans[1].nodes),
        base=sides[0],
        other=sides[1],
        # A warning about both sides appears once.
        warnings=tuple(dict.fromkeys(found_warnings)),
    )


def _changed_nodes(base: Plan, other: Plan) -> tuple[NodeChange, ...]:
    """Return the nodes of ``other`` whose precision is another one under ``base``."""
    return tuple(
        NodeChange(node.scope, node.name, node.op_type, base_node.precision, node.precision, node.reason, node.domain)
        for base_node, node in zip(base.nodes, other.nodes, strict=True)
        if base_node.precision != node.precision
    )


def _count_casts(plan: Plan) -> int:
    """Return the number of Casts that ``rewrite`` inserts."""
    from mixlist.write.rewrite_model import lay_out_plan

    return lay_out_plan(plan).new_cast_count


def _check(source: LoadedModel, policy: Policy, batches: Batches, options: CheckOptions) -> CheckReport:
    from mixlist.checker.run import run_check

    return run_check(source, policy, batches, options)


def _estimate(source: LoadedModel, plan: Plan, batches: Batches) -> Work:
    """Return the work of the mixed model in the shapes of the first batch."""
    from mixlist.run.feeds import find_shapes
    from mixlist.targets.estimate import estimate_work
    from mixlist.write import rewrite

    mixed = source._replace(proto=rewrite(source, plan).proto, name=f"{source.name}, mixed")
    return estimate_work(mixed, shapes=find_shapes(next(iter(batches))))
