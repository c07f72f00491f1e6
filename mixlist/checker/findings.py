"""Build the findings of a report, the worst first, each with the reason of its decision and with advice.

A finding names the list entry or rule that made the node low precision and, for ``overflow`` and ``saturated``, the
smallest change that keeps it in high precision, in the names of the library: an advice in the other name space has no
effect. The change gives a node by a name that no other node has (Rules S6.4, S6.5). If a node rule made the node low,
the change is another rule (Rule S6.3). Where an unprotected mask (Rule S4.35) makes NaN in a softmax, the change is
``--protect masks``, or all low nodes on the way that read or make the mask out of range.

If the node is high, both are those of the nearest low node whose values it computes with, because to make a high node
high has no effect. A low node with a finding of its own comes before a nearer one without. Without such a node, that of
a Div is upstream of its divisor, which underflowed. A gray value mover is passed over, because its type comes from its
input. The low node of a ``refused`` is one from whose values an integer is computed that the refused node depends on.
``Advisor`` finds them, also for the nodes that add most error. ``describe_helpful_options`` finds the options that help
the whole check.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from mixlist.checker.finding_rules import EXCEPTION_KINDS, FindingRecord
from mixlist.checker.observer import ObservedRange
from mixlist.checker.result import FindingKind, LowSource, NodeError, NodeFinding, TensorRange
from mixlist.decide import Decision, Plan
from mixlist.decide.classification import Classifier
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.plan_masks import find_masks_at_risk
from mixlist.lists.policy import Protection
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode
from mixlist.model.graph import Node, float_values
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.model.naming import NodeRef, TensorRef, node_ref, unique_names
from mixlist.model.schema import find_later_opsets
from mixlist.model.traits import Trait, operators
from mixlist.option_spelling import spell

KIND_ORDER: tuple[FindingKind, ...] = (  # the worst first
    "refused", "overflow", "saturated", "propagated", "underflow", "near-limit", "preexisting", "intended",
    "internal-risk",
)  # fmt: skip
FAILING_KINDS: tuple[FindingKind, ...] = ("refused", "overflow", "saturated")  # kinds that may fail a check
RangePairs = Mapping[TensorRef, tuple[ObservedRange, ObservedRange]]  # in the reference and in the mixed model


def node_findings(
    advisor: Advisor, nodes: Sequence[DataflowNode], records: Iterable[FindingRecord]
) -> tuple[NodeFinding, ...]:
    """Return one finding per tensor and kind: the worst kind first, and within a kind in order of computation.

    ``nodes`` are those of the original in order of computation. The converted inputs of a node come before its outputs.
    """
    position_of = {node.ref: position for position, node in enumerate(nodes)}

    def order(record: FindingRecord) -> tuple[int, bool, int]:
        tensor = record.tensor
        # Control-flow nodes that read a conversion are not among ``nodes``: they come last.
        return position_of.get(tensor.producer, len(position_of)), not record.input_name, tensor.slot

    records = sorted(records, key=order)
    return tuple(_finding(record, kind, advisor) for kind in KIND_ORDER for record in records if kind in record.batches)


def _finding(record: FindingRecord, kind: FindingKind, advisor: Advisor) -> NodeFinding:
    """Return the finding of one kind."""
    node, ref = record.node.node, record.node.ref
    output, decision = node.outputs[record.tensor.slot] if node.outputs else None, advisor.decision(ref)
    is_failing, is_refused = kind in FAILING_KINDS, kind == "refused"
    # Advice is only for kinds that may fail the check. A node is refused because of an integer that it reads, so the
    # low node from whose values this integer comes is named.
    source = None
    if is_failing:
        source = advisor.integer_source(ref) if is_refused else advisor.low_source(ref)
    suggestion = source.suggestion if source is not None else advisor.suggestion(ref)
    if is_failing and not record.input_name and math.isnan(record.mixed_magnitude):
        suggestion = advisor.mask_suggestion(ref) or suggestion
    return NodeFinding(
        scope=ref.scope,
        name=ref.name,
        op_type=node.op_type,
        tensor=record.input_name or (output.name if output is not None else ""),
        kind=kind,
        # The record of a first offender may have harmless kinds from other batches, such as near-limit.
        first=is_refused or (record.is_first_offender and kind in EXCEPTION_KINDS),
        count=record.counts.get(kind),
        batches=tuple(record.batches[kind]),
        max_abs_fp32=record.reference_magnitude,
        # A refused node computes nothing in the mixed model.
        max_abs_low=record.mixed_magnitude if not is_refused else math.nan,
        list=decision.list if decision is not None else "none",
        source=decision.reason if decision is not None else "",
        suggestion=suggestion if is_failing else "",
        low_source=source,
        input=record.input_name,
        inside=record.is_inside,
    )


def with_advice(errors: Iterable[NodeError], advisor: Advisor) -> tuple[NodeError, ...]:
    """Return the errors of nodes, each with the reason why the node is low, and the change that keeps it high."""
    advised = []
    for error in errors:
        decision = advisor.decision(error.ref)
        source = decision.reason if decision is not None else ""
        advised.append(replace(error, source=source, suggestion=advisor.suggestion(error.ref)))
    return tuple(advised)


def tensor_ranges(
    nodes: Iterable[DataflowNode], range_pairs: RangePairs, low_type_of: Mapping[TensorRef, int]
) -> tuple[TensorRange, ...]:
    """Return the range of every observed tensor over all batches, in order of computation."""
    tensors = []
    for node in nodes:
        for slot, value in enumerate(node.node.outputs):
            tensor = TensorRef(*node.ref, slot)
            range_pair = range_pairs.get(tensor)
            if value is None or range_pair is None:
                continue
            reference, mixed = range_pair
            tensors.append(
                TensorRange(
                    scope=node.ref.scope,
                    tensor=value.name,
                    node=node.ref.name,
                    op_type=node.node.op_type,
                    low=tensor in low_type_of,
                    minimum=_end_or_nan(reference, reference.minimum),
                    maximum=_end_or_nan(reference, reference.maximum),
                    low_minimum=_end_or_nan(mixed, mixed.minimum),
                    low_maximum=_end_or_nan(mixed, mixed.maximum),
                    nan=reference.nan,
                    low_nan=mixed.nan,
                )
            )
    return tuple(tensors)


def _end_or_nan(observed_range: ObservedRange, end: float) -> float:
    """Return an end of a range for a report: NaN if a NaN hides all other values."""
    return math.nan if observed_range.hidden_by_nan else end


_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)
_INT32 = 6  # onnx.TensorProto.INT32, for which ``dtypes`` has no name
# Types of lengths, indices and conditions. A wrong value of such a type can make ONNX Runtime refuse a run.
_INTEGERS = frozenset({_INT32, dtypes.INT64, dtypes.BOOL})

# For each rule that keeps the values of a node, the option that turns it off.
_PROTECTIONS = {"mask": ("protect", "none"), "position": ("protect", "none")}
_PROTECTIONS |= {"constant": ("constants", "ieee"), "guard": ("constants", "ieee")}


class _UpstreamLowNode(NamedTuple):
    """A low node upstream of another node; ``distance`` is the number of nodes between the two."""

    has_no_finding: bool
    distance: int
    node: NodeRef


class Advisor:
    """Advice for the nodes of one plan. Without a plan (``--mixed-model``) there is no advice.

    ``nodes`` are those of the original, in order of computation. Of the low nodes upstream of a node, one of
    ``nodes_with_findings`` comes before a nearer one without a finding.
    """

    def __init__(
        self, plan: Plan | None, nodes: Sequence[DataflowNode], nodes_with_findings: Collection[NodeRef]
    ) -> None:
        self._decisions = {decision.ref: decision for decision in plan.nodes} if plan is not None else {}
        self._plan = plan
        self._classifier = Classifier(plan.policy) if plan is not None else None
        self._has_lists = plan is not None and plan.policy.mode.action == "lists"
        self._nodes = {node.ref: node for node in nodes}
        self._nodes_with_findings = frozenset(nodes_with_findings)

    def decision(self, node: NodeRef) -> Decision | None:
        """Return the decision for a node; None if the plan does not have it."""
        return self._decisions.get(node)

    def suggestion(self, node: NodeRef) -> str:
        """Return the smallest change that keeps a low node high; "" for a node that is not low.

        The text has the operator's name in the lists, which is Conv2D for Conv in an Ascend library.
        """
        decision = self._decisions.get(node)
        if decision is None or node not in self._nodes or not _is_low(decision):
            return ""
        # Lists leave the authored type of a node, so only a node rule raises a node that was authored low.
        if not decision.changed:
            return (
                f"the model has the node in {decision.precision}, which no list raises; a rule in a customize_dtypes"
                " file does; mixlist repair finds the fewest"
            )
        entry = self._list_entry(node)
        name = self._main_graph_names.get(node, str(node))
        if decision.rule == "node-rule":  # it comes before the lists and keep_dtype (Rules S6.1, S6.3)
            return f'give the node "{name}" float32 in the customize_dtypes file'
        # A low node that is on the black list or on no list was made low by a mode, so no list entry can raise it.
        if decision.list in ("white", "gray") and entry:
            return f'add "{entry}" to black-list to-add, or the node "{name}" to a keep_dtype file'
        return f'add the node "{name}" to a keep_dtype file'

    def _list_entry(self, node: NodeRef) -> str:
        """Return the name of a node's operator in the lists; "" if they do not have it."""
        dataflow_node = self._nodes.get(node)
        if self._plan is None or self._classifier is None or dataflow_node is None:
            return ""
        entry = self._classifier.classify_by_list(self._plan.solution.graph, dataflow_node.node).list_match
        return entry.op if entry is not None else ""

    def mask_suggestion(self, node: NodeRef) -> str:
        """Return what keeps a mask finite that makes NaN in a node; "" for a node that no mask breaks.

        To raise the softmax alone does not help, because the nodes before it make the mask infinite.
        """
        low_nodes = self._mask_nodes.get(node, ())
        if self._plan is None or not low_nodes or any(self._decisions[ref].rule == "node-rule" for ref in low_nodes):
            return ""  # a node rule comes before the protection
        option = _protection_option(self._plan, "masks")
        entries = list(dict.fromkeys(f'"{entry}"' for ref in low_nodes if (entry := self._list_entry(ref))))
        if not self._has_lists or not entries:
            return f"give {option}"
        return f"give {option}, or add {' and '.join(entries)} to black-list to-add"

    @cached_property
    def _mask_nodes(self) -> dict[NodeRef, tuple[NodeRef, ...]]:
        """Return for each node on the way of a mask, softmaxes included, the low nodes that must be high for the mask.

        It is empty if the policy protects masks.
        """
        plan = self._plan
        if plan is None or "masks" in plan.policy.protect:
            return {}
        graph, ranges = plan.solution.graph, ConstantRanges(plan.solution.loaded.folder)
        nodes_of: dict[NodeRef, tuple[NodeRef, ...]] = {}
        for group in find_masks_at_risk(graph, ranges, plan.policy):
            exceeding = [node_ref(node) for node in group.exceeding_nodes]
            low_nodes = tuple(ref for ref in exceeding if _is_low(self._decisions[ref]))
            nodes_of |= dict.fromkeys((*exceeding, *map(node_ref, group.softmaxes)), low_nodes)
        return nodes_of

    @cached_property
    def _main_graph_names(self) -> dict[NodeRef, str]:
        """Return the name of each node of the main graph in node rules: ``./NAME`` if another scope has NAME too."""
        shortest = unique_names(self._decisions)
        return {ref: name for ref, name in shortest.items() if not ref.scope}

    def low_source(self, node: NodeRef) -> LowSource | None:
        """Return the nearest low node upstream of a high node; None for a low node, or if no node upstream is low."""
        decision = self._decisions.get(node)
        if decision is None or _is_low(decision):
            return None
        nearest = self._nearest_low_nodes.get(node)
        if nearest is not None and nearest.has_no_finding:
            # A divisor that underflows in few places has no finding, but a quotient that is not finite shows it: a
            # dividend without a finding is finite.
            nearest = self._nearest_before_divisor(node) or nearest
        return self._describe_source(nearest.node) if nearest is not None else None

    def _nearest_before_divisor(self, node: NodeRef) -> _UpstreamLowNode | None:
        """Return the nearest low node upstream of the divisor of a Div; None if there is none, or for another node."""
        dataflow_node = self._nodes.get(node)
        if dataflow_node is None or dataflow_node.node.domain or dataflow_node.node.op_type != "Div":
            return None
        divisor = dataflow_node.node.inputs[1]
        if divisor is None or divisor.producer is None:
            return None
        return self._nearest_through(node_ref(divisor.producer), self._nearest_low_nodes)

    def integer_source(self, node: NodeRef) -> LowSource | None:
        """Return the low node whose values become an integer that a node depends on, such as a length or an index.

        ONNX Runtime refuses a run because of such an integer. If there is none, return ``low_source``.
        """
        source = self._integer_sources.get(node)
        return self._describe_source(source) if source is not None else self.low_source(node)

    def _describe_source(self, node: NodeRef) -> LowSource:
        decision = self._decisions[node]
        return LowSource(*node, decision.op_type, decision.reason, self.suggestion(node))

    @cached_property
    def _integer_sources(self) -> dict[NodeRef, NodeRef]:
        """Return for each node the low node upstream whose values became integers.

        Example: of ``x -> ReduceMax (low) -> Cast to int64 -> Range``, the ReduceMax is the source of Cast and Range.
        """
        source_of: dict[NodeRef, NodeRef] = {}
        # One pass is enough, because the nodes are in order of computation: the inputs of a node come before it.
        for ref, node in self._nodes.items():
            producers = [tensor.ref.producer for tensor in node.inputs]
            sources = [source_of[producer] for producer in producers if producer in source_of]
            # A node that makes integers itself is nearer to the refused node than the integers that it reads.
            if _makes_integers(node.node) and ref in self._nearest_low_nodes:
                sources = [self._nearest_low_nodes[ref].node]
            if sources:
                source_of[ref] = sources[0]
        return source_of

    @cached_property
    def _nearest_low_nodes(self) -> dict[NodeRef, _UpstreamLowNode]:
        """Return for each node the nearest low node upstream; one with a finding comes before a nearer one without.

        A gray node that rounds nothing itself is passed over, because it is low only because of its inputs. Example: of
        ``MatMul (white) -> Reshape (gray) -> Softmax (black)``, the MatMul is the nearest low node of the Softmax. A
        state that a loop passes to its next iteration is not followed, because its node comes later in this order.
        """
        nearest: dict[NodeRef, _UpstreamLowNode] = {}
        for ref, node in self._nodes.items():
            upstream = (self._nearest_through(tensor.ref.producer, nearest) for tensor in node.inputs)
            candidates = [candidate for candidate in upstream if candidate is not None]
            # A node with a finding comes first (False before True), then the nearest one. The names do not count.
            if candidates:
                nearest[ref] = min(candidates, key=lambda candidate: candidate[:2])
        return nearest

    def _nearest_through(
        self, producer: NodeRef, nearest: Mapping[NodeRef, _UpstreamLowNode]
    ) -> _UpstreamLowNode | None:
        """Return the nearest low node on the way through the producer of an input: the producer itself, if it is one.

        ``nearest``: the nearest low nodes upstream of the producers, as far as they are known.
        """
        decision = self._decisions.get(producer)
        # A gray node is passed over only if there is a low node upstream of it. A gray node that follows a low graph
        # input has none, so it is a candidate itself.
        passed_over = producer in nearest and decision is not None and _only_follows(decision)
        if decision is not None and _is_low(decision) and not passed_over:
            return _UpstreamLowNode(producer not in self._nodes_with_findings, 0, producer)
        upstream = nearest.get(producer)
        return upstream._replace(distance=upstream.distance + 1) if upstream is not None else None


# The chips whose libraries lower to float16 only.
_CHIPS_WITHOUT_BFLOAT16 = re.compile(r"ascend(310|910(?!b|_93))", re.IGNORECASE)


def describe_helpful_options(plan: Plan | None, findings: Sequence[NodeFinding]) -> tuple[str, ...]:
    """Return the options that help after a failure, one sentence each.

    ``--protect positions`` if position arithmetic is low. bfloat16 if the magnitudes in the reference of all overflows
    and propagated tensors are in its range, the chip of the library has it, and the model has none of these nodes low.
    """
    if plan is None:
        return ()
    offenders = [finding for finding in findings if finding.first]
    if not offenders and any(warning.code == "ML507" for warning in plan.warnings):
        return (f"positions are in low precision (ML507): give {_protection_option(plan, 'positions')} first",)
    overflows = [finding for finding in findings if finding.kind in (*EXCEPTION_KINDS, "propagated")]
    mode = plan.policy.mode
    if not offenders or not overflows or mode.low != "float16" or mode.action not in ("lists", "force"):
        return ()
    # No list gives another type to a node that the model has in float16.
    refs = {finding.ref for finding in overflows}
    if any(d.ref in refs and _is_low(d) and not d.changed for d in plan.nodes):
        return ()
    largest = max(map(_largest_number, overflows))
    if largest >= FINITE_MAX[dtypes.BFLOAT16] or _CHIPS_WITHOUT_BFLOAT16.search(plan.policy.lists.library.name):
        return ()
    return (
        f"the range of bfloat16 holds the values (up to {largest:.4g}), with fewer digits than float16: try"
        f" {spell('precision_mode_v2', 'mixed_bfloat16')}{_describe_old_opset(plan)}",
    )


def _describe_old_opset(plan: Plan) -> str:
    """Return which low nodes of the plan need a later opset than that of the model to be bfloat16; "" if none does."""
    opset = plan.solution.graph.opsets.get("", 0)
    counts = Counter(node.op_type for node in plan.nodes if _is_low(node) and not node.domain)
    refused = find_later_opsets(counts, opset, dtypes.BFLOAT16)
    if not refused:
        return ""
    count, first = sum(counts[op] for op in refused), max(refused, key=lambda op: counts[op])
    later = max(refused.values())
    return (
        f"; for {count} of {sum(counts.values())} nodes, such as {first}, this needs opset {later}, and the model has"
        f" {opset}: mixlist apply --opset {later}"
    )


def _largest_number(finding: NodeFinding) -> float:
    """Return the largest magnitude of a finding in float32; infinity for NaN."""
    return math.inf if math.isnan(finding.max_abs_fp32) else finding.max_abs_fp32


def describe_protected_nodes(plan: Plan | None) -> tuple[str, ...]:
    """Return a sentence on the nodes that the mode fp16 leaves in float32 to protect their values; () without such.

    A user of this mode asks for everything in float16, and must not believe that a plain conversion would pass too.
    """
    if plan is None or plan.policy.mode.action != "force":
        return ()
    rules = Counter(d.rule for d in plan.nodes if d.rule in _PROTECTIONS and d.precision == "float32")
    if not rules:
        return ()
    options = " ".join(dict.fromkeys(spell(*_PROTECTIONS[rule]) for rule in rules))
    subject = "1 node stays" if rules.total() == 1 else f"{rules.total()} nodes stay"
    return (f"{subject} float32 ({', '.join(sorted(rules))}); lower them as a plain conversion does: {options}",)


def _only_follows(decision: Decision) -> bool:
    """Return True if a node follows its inputs (gray) and rounds nothing itself, because it preserves low values."""
    return decision.list == "gray" and not decision.domain and decision.op_type in _VALUE_PRESERVING


def _makes_integers(node: Node) -> bool:
    """Return True if a node computes lengths, indices or conditions from float values.

    Shape and Size do not, because a shape does not depend on the values. Integers of 8 bits do not count, because they
    are quantized values.
    """
    if node.op_type in _YIELDS_SHAPE or not float_values(node.inputs):
        return False
    return any(value is not None and dtypes.element(value.type) in _INTEGERS for value in node.outputs)


def _protection_option(plan: Plan, protection: Protection) -> str:
    """Return the option that adds a protection to those of the plan."""
    return spell("protect", ",".join(sorted({*plan.policy.protect, protection})))


def _is_low(decision: Decision) -> bool:
    return dtypes.ELEMENT_BY_NAME.get(decision.precision) in LOW_TYPES
