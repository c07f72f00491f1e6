"""Decide a plan for a target: ``mixlist.plan_for_target``, the counterpart of ``apply --target`` in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.decide.plan import Plan
from mixlist.model.load import LoadedModel, load_model
from mixlist.targets.low_nodes import LowNode, find_low_nodes, keep_nodes_for_target
from mixlist.targets.model_check import ModelCheck, check_model
from mixlist.targets.target import Target, load_target

if TYPE_CHECKING:
    from mixlist.model.proto_types import ModelSource


@dataclass(frozen=True, repr=False)
class TargetPlan:
    """A plan that a target accepts, and what the target does with the plan that was given.

    ``target``: the name of the target. ``source``: the release of its table; "" for the kernels of the installed ONNX
    Runtime. ``given_plan``: the plan before. ``plan``: the plan for ``mixlist.rewrite``, in which the nodes of ``kept``
    stay as authored. ``refused``: the low-precision nodes of ``plan`` with which the target does not load the model.
    """

    target: str
    source: str
    given_plan: Plan
    plan: Plan
    kept: tuple[LowNode, ...]
    refused: tuple[LowNode, ...]
    table: Target = field(compare=False)

    def __repr__(self) -> str:
        counts = f"kept nodes {len(self.kept)}, refused nodes {len(self.refused)}"
        return f"<TargetPlan of {self.plan.model!r} for {self.target}: {counts}>"

    @cached_property
    def low_nodes(self) -> tuple[LowNode, ...]:
        """Return the low-precision nodes of the given plan, as ``resolve --target`` shows them (Rule S13.2)."""
        return find_low_nodes(self.given_plan, self.table)

    def check_model(self, model: ModelSource | LoadedModel) -> ModelCheck | None:
        """Check a rewritten model by the type rules of the target (Rules S13.5, S13.6).

        ``model``: the path of the written file, or ``RewriteResult.model``. Returns None if the target is not strongly
        typed.
        """
        return check_model(load_model(model), self.table) if self.table.strongly_typed else None


def plan_for_target(plan: Plan, target: str) -> TargetPlan:
    """Decide a plan again with the nodes as authored that a target cannot run in low precision (Rule S13.4).

    ``target``: ``cpu``, ``cuda``, ``tensorrt``, or the path of a table. Raises TypeError if ``plan`` is no Plan,
    UsageError for an unknown target, and FileError or ListError for a table that cannot be read.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: pass the Plan that mixlist.resolve(model, policy) returns")
    table = load_target(str(target))
    kept, kept_plan = keep_nodes_for_target(plan, table)
    refused = tuple(node for node in find_low_nodes(kept_plan, table) if node.otherwise == "refusal")
    return TargetPlan(table.name, table.source, plan, kept_plan, kept, refused, table)
