"""Replace a group of raised nodes by one Clip, where the outputs allow it (Rule S12.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mixlist.checker.result import CheckReport, OutputFinding
from mixlist.decide import Resolver
from mixlist.model import dtypes
from mixlist.model.low_precision import FINITE_MAX
from mixlist.model.naming import NameGenerator, NodeRef, names_in
from mixlist.model.protos import copy_message
from mixlist.search.rule_plans import RuleChecks, plan_with_rules
from mixlist.write import rewrite

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel

CLIP_SHARE = 0.5  # of the largest finite value: two clipped values can be added
Group = tuple[NodeRef, ...]  # connected raised nodes, in order of computation


@dataclass(frozen=True)
class Clip:
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
class ClippedRepair:
    """A repair of which some groups of raised nodes are replaced by Clips.

    ``resolver``: the given model with the Clips. ``customize_dtypes``: the rules of the remaining raised nodes.
    ``clips``: the Clips by the group that they replace. ``check``: the check of the repaired model against the model
    with the same Clips in float32. ``outputs``: its errors against the given model in float32. Without Clips, ``check``
    is None and ``outputs`` is ().
    """

    resolver: Resolver
    customize_dtypes: str
    clips: Mapping[Group, Clip] = field(default_factory=dict)
    check: CheckReport | None = None
    outputs: tuple[OutputFinding, ...] = ()


def replace_by_clips(repair: ClippedRepair, candidates: Mapping[Group, Clip], checks: RuleChecks) -> ClippedRepair:
    """Return the repair with each group replaced by its Clip, if the result keeps the limits.

    ``candidates``: the Clips by their group, in the order in which they are tried.
    """
    unclipped = repair.resolver.loaded
    for group, clip in candidates.items():
        clipped = insert_clip(repair.resolver.loaded, clip)
        if clipped is None:
            continue
        lines = repair.customize_dtypes.splitlines(keepends=True)
        rules = "".join(line for line in lines if line.rstrip("\n") not in clip.rules)
        # First against the same Clips in float32: this finds overflow. Then against the model without them.
        reports = checks.run(clipped, rules)
        if any(report.verdict != "pass" for report in reports):
            continue
        resolver = Resolver(clipped, type_hints=checks.options.type_hints)
        repaired = rewrite(clipped, plan_with_rules(resolver, rules)).model
        outputs = [report.outputs for report in checks.run(unclipped, "", repaired)]
        if all(output.passed for output in _flatten(outputs)):
            repair = ClippedRepair(resolver, rules, {**repair.clips, group: clip}, reports[0], outputs[0])
    return repair


def insert_clip(loaded: LoadedModel, clip: Clip) -> LoadedModel | None:
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
    return replace(loaded, proto=proto)


def _flatten(outputs: Sequence[Sequence[OutputFinding]]) -> list[OutputFinding]:
    return [output for outputs_of_one_check in outputs for output in outputs_of_one_check]
