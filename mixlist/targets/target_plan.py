"""Decide a plan for a target: ``mixlist.plan_for_target``, the counterpart of ``apply --target`` in Python.

Rule S13.2: A low-precision node has a kernel if the target runs its operator, at the model's opset and with the
attributes of the node, in the low type.

Rule S13.3: A node without a kernel has one of three outcomes. ``cast``: the target runs it in float32 between Casts.
``fallback``: ONNX Runtime's CPU provider runs it. ``refusal``: the model does not load.

``apply --target`` keeps a node as authored where the target has no kernel for it in the low type. For a
strongly typed target, quantized units stay whole, as with ``--protect quantized`` (Rule S4.41).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.decide import Decision, Plan, resolver_of
from mixlist.decide.node_rules import can_vary
from mixlist.diagnostics import FilePlace
from mixlist.lists.load import strengthen_policy
from mixlist.lists.policy import NodeRule
from mixlist.model.graph import linked_scopes
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.naming import node_ref, scoped_name
from mixlist.option_spelling import spell
from mixlist.targets.model_check import ModelCheck, check_model
from mixlist.targets.providers import TargetName
from mixlist.targets.target import Otherwise, Target, load_target

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource


@dataclass(frozen=True, slots=True)
class LowNode:
    """A low-precision node, and what a target does with it.

    ``otherwise``: what happens to the node; None if the target has a kernel for it. ``name``: its name in node rules.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(precision_mode_v2="mixed_bfloat16"))
        for node in mixlist.plan_for_target(plan, "cpu").kept:
            print(node.name, node.otherwise)
    """

    decision: Decision
    otherwise: Otherwise | None
    name: str

    @property
    def has_kernel(self) -> bool:
        """Return True if the target runs the node in low precision."""
        return self.otherwise is None


def find_low_nodes(plan: Plan, target: Target) -> tuple[LowNode, ...]:
    """Return the low-precision nodes of a plan in its order, with what ``target`` does with each (Rule S13.2)."""
    low = plan.policy.mode.low
    low_nodes = []
    graph = plan.solution.graph
    nodes = (node for scope in linked_scopes(graph.root) for node in scope.nodes)  # in the order of ``plan.nodes``
    for decision, node in zip(plan.nodes, nodes, strict=True):
        # A target runs the nodes inside a function instead of its call.
        if decision.precision != low or node.is_call:
            continue
        # A low-precision node can have outputs of other types: the indices of TopK stay int64.
        low_outputs = tuple(
            index
            for index, value in enumerate(node.outputs)
            if value is not None and decision.outputs[value.name] == low
        )
        # float16 and bfloat16 have the same names in mixlist and in onnx.
        opset = graph.opsets.get(node.domain, 1)
        subject = (node.domain, node.op_type, opset, low, low_outputs, node.text_attributes)
        otherwise = None if target.runs(*subject) else target.find_otherwise(*subject)
        low_nodes.append(LowNode(decision, otherwise, scoped_name(decision.ref)))
    return tuple(low_nodes)


def keep_nodes_for_target(plan: Plan, target: Target) -> tuple[tuple[LowNode, ...], Plan]:
    """Return the low nodes that must stay as authored for ``target``, and the plan in which they do.

    The plan is decided again until no such node is left, because a node that stays can change others. A node whose type
    no rule can choose, such as ConstantOfShape, does not stay.
    """
    resolver = resolver_of(plan)
    if target.strongly_typed and "quantized" not in plan.policy.protect:
        plan = resolver.plan(strengthen_policy(plan.policy, protect=frozenset({"quantized"})))
    kept_nodes: dict[str, LowNode] = {}
    can_stay = {scoped_name(node_ref(node)) for node in resolver.graph.nodes if can_vary(node)}
    while True:
        low_nodes = (node for node in find_low_nodes(plan, target) if node.name in can_stay)
        nodes = [node for node in low_nodes if node.name not in kept_nodes and not node.has_kernel]
        if not nodes:
            return tuple(kept_nodes.values()), plan
        kept_nodes.update((node.name, node) for node in nodes)
        place = FilePlace(spell("target", target.name), 0, 0)
        rules = tuple(NodeRule("name", node.name, True, place) for node in nodes)
        plan = resolver.plan(strengthen_policy(plan.policy, rules=rules))


# --- the plan for a target ---


@dataclass(frozen=True, repr=False)
class TargetPlan:
    """A plan that a target accepts, and what the target does with the plan that was given.

    ``target``: the name of the target. ``source``: the release of its table; "" for the kernels of the installed ONNX
    Runtime. ``given_plan``: the plan before. ``plan``: the plan for ``mixlist.rewrite``, in which the nodes of ``kept``
    stay as authored. ``refused``: the low-precision nodes of ``plan`` with which the target does not load the model.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(precision_mode_v2="mixed_bfloat16"))
        target_plan = mixlist.plan_for_target(plan, "cpu")
        print(len(target_plan.kept), mixlist.rewrite("digits.onnx", target_plan.plan).low)
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
        """Check a rewritten model by the type rules of the target.

        ``model``: the path of the written file, or ``RewriteResult.model``. Returns None if the target is not strongly
        typed.
        """
        return check_model(load_model(model), self.table) if self.table.strongly_typed else None


def plan_for_target(plan: Plan, target: TargetName | str) -> TargetPlan:
    """Decide a plan again with the nodes as authored that a target cannot run in low precision.

    ``target``: ``cpu``, ``cuda``, ``tensorrt``, ``webgpu``, ``dml``, or the path of a table. Raises TypeError if
    ``plan`` is no Plan, UsageError for an unknown target, and FileError or ListError for a table that cannot be read.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        print(mixlist.plan_for_target(plan, "cpu").plan.counts)
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: pass the Plan that mixlist.resolve(model, policy) returns")
    table = load_target(str(target))
    kept, kept_plan = keep_nodes_for_target(plan, table)
    refused = tuple(node for node in find_low_nodes(kept_plan, table) if node.otherwise == "refusal")
    return TargetPlan(table.name, table.source, plan, kept_plan, kept, refused, table)
