"""Explain outputs that are NaN or infinite in the reference already (Rule S8.40).

No verdict on the lists says that such a model is right. The report names the first node that is not finite, the
constant behind it, and the change of the model that helps: ``repair`` if the model computes the node in a low type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from mixlist.checker.finding_rules import FindingRecord
from mixlist.checker.observer import Ranges
from mixlist.checker.result import NodeFinding
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode
from mixlist.model.graph import Graph, Value
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, TensorRef, output_ref
from mixlist.model.traits import Trait, operators
from mixlist.option_spelling import spell
from mixlist.run.feeds import find_nonfinite
from mixlist.run.session import Feed

# On the way from a guard, such as Add(v, eps), to the operator that fails where the guarded value is zero.
_GUARDS = frozenset({"Add", "Clip", "Max", "Sub"})
_PASS_ZEROS = operators(Trait.PICKS) | operators(Trait.SAME_VALUES) | {"Abs", "Cast", "Expand", "Mul", "Sqrt"} | _GUARDS
_DIVIDES = frozenset({"Div", "Reciprocal"})
# The input where a zero makes NaN or an infinity.
_DIVISOR_SLOTS = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
_LEAST_MASK = 1e37  # the magnitude from which on a constant is a mask's (Rule S8.11)


class BrokenReference:
    """The outputs of the model that are not finite in the reference, although the data is, and no mask explains it.

    ``graph`` and ``constants`` are those of the reference, ``nodes`` its nodes in order of computation.
    """

    def __init__(self, graph: Graph, constants: ConstantRanges, nodes: Sequence[DataflowNode]) -> None:
        self._constants = constants
        self._order = {node.ref: index for index, node in enumerate(nodes)}
        self._nodes = {node.ref: node for node in nodes}
        self._outputs: dict[str, TensorRef] = {}
        for name, value in zip(graph.root.output_names(), graph.root.outputs, strict=True):
            if value.producer is not None:
                self._outputs[name] = output_ref(value.producer, value.output_slot)
        self.reasons: dict[str, str] = {}  # by output, why it is not finite; the first batch decides

    def add(self, index: int, feed: Feed, reference: Ranges, records: Mapping[TensorRef, FindingRecord]) -> None:
        """Add one batch, whose findings are in ``records`` already."""

        def is_broken(tensor: TensorRef) -> bool:
            record = records.get(tensor)
            return record is not None and record.batches.get("preexisting", [])[-1:] == [index]

        broken = {name: tensor for name, tensor in self._outputs.items() if is_broken(tensor)}
        if not broken.keys() - self.reasons.keys():
            return
        has_nan, has_infinity = find_nonfinite(feed)
        for name, tensor in broken.items():
            # NaN of the data explains everything, and an infinity of the data an infinity.
            is_nan = reference[tensor].nan
            if name not in self.reasons and not has_nan and (is_nan or not has_infinity):
                node = self._first_broken(tensor, is_broken)
                values = "NaN" if is_nan else "infinite"
                cause = self._describe_cause(node, reference)
                place = f"first at {node.ref} ({node.node.op_type})"
                self.reasons[name] = f"output {name!r} is {values} in the reference, {place}: {cause}"

    def _first_broken(self, tensor: TensorRef, is_broken: Callable[[TensorRef], bool]) -> DataflowNode:
        """Return the first node on the way to a tensor that makes NaN or an infinity of finite values."""
        seen, pending, first = {tensor.producer}, [tensor.producer], list[NodeRef]()
        while pending:
            ref = pending.pop()
            earlier = {s.ref.producer for s in self._nodes[ref].inputs if is_broken(s.ref)}
            first += [] if earlier else [ref]
            pending += earlier - seen
            seen |= earlier
        # In a loop, every node of a cycle may read the infinity of another one.
        return self._nodes[min(first or seen, key=self._order.__getitem__)]

    def _describe_cause(self, node: DataflowNode, reference: Ranges) -> str:
        """Return why a node makes NaN or an infinity, and what helps."""
        if constant := self._describe_constant(node, reference):
            return f"{constant}; no precision cures this"
        op_type = node.node.op_type
        remedy = "add a constant such as 1e-6 before it, or bound its input with a Clip"
        if op_type not in _DIVISOR_SLOTS:
            failure = "its result leaves the range of"
            remedy = "scale its inputs down, or bound them with a Clip"
        else:
            failure = "it divides by zero in" if op_type in _DIVIDES else "it reads a value beyond its domain in"
        low = next((value.type for value in node.node.outputs if value is not None and value.type in LOW_TYPES), None)
        if low is not None:
            low_name = dtypes.type_name(low)
            remedy = f"mixlist repair raises such nodes; {_float32_reference()}"
            return f"{failure} {low_name}, in which the model has it; {remedy}"
        return f"{failure} float32; {remedy}; no precision cures this"

    def _describe_constant(self, node: DataflowNode, reference: Ranges) -> str:
        """Return which constant makes NaN or an infinity in every precision, and what helps; "" if none does."""
        mask = self._find_mask(node, reference)
        if mask is not None:
            value, size = mask
            text = "a row that it masks whole has no result; give it a value such as"
            return f"constant {value.name_in_file!r} is {size:.4g}, and {text} {'-' if size < 0 else ''}1e4"
        epsilon = next((a.f for a in node.node.proto.attribute if a.name == "epsilon"), None)
        if epsilon == 0:
            return "its epsilon is 0; set one, such as 1e-5"
        slot = _DIVISOR_SLOTS.get(node.node.op_type)
        divisor = node.node.inputs[slot] if slot is not None else None
        guard = self._find_zero_guard(divisor) if divisor is not None else None
        if guard is None:
            return ""
        return f"constant {guard.name_in_file!r} before it is 0, as an epsilon; store one such as 1e-6"

    def _find_mask(self, node: DataflowNode, reference: Ranges) -> tuple[Value, float] | None:
        """Return the constant of a mask that reaches a node, with its extreme value; None if there is none."""
        seen, pending = {node.ref}, [node]
        while pending:
            reader = pending.pop()
            for value in reader.node.inputs:
                size = self._extreme(value)
                if value is not None and size is not None and abs(size) >= _LEAST_MASK:
                    return value, size
            for source in reader.inputs:
                has_mask = source.ref in reference and reference[source.ref].magnitude >= _LEAST_MASK
                if has_mask and source.ref.producer in self._nodes and source.ref.producer not in seen:
                    seen.add(source.ref.producer)
                    pending.append(self._nodes[source.ref.producer])
        return None

    def _extreme(self, value: Value | None) -> float | None:
        """Return the element of a constant with the largest magnitude; None for any other value."""
        found = self._constants.known_range_of(value) if value is not None and value.is_constant else None
        return max(found.smallest, found.largest, key=abs) if found is not None else None

    def _find_zero_guard(self, divisor: Value) -> Value | None:
        """Return the constant 0 that an Add, Max or Clip before a divisor reads; None if there is none."""
        seen, pending = {divisor}, [divisor]
        while pending:
            node = pending.pop(0).producer
            if node is None or node.domain or node.op_type not in _PASS_ZEROS:
                continue
            for value in node.inputs:
                if value is None or value in seen:
                    continue
                if node.op_type in _GUARDS and self._is_zero(value):
                    return value
                seen.add(value)
                pending.append(value)
        return None

    def _is_zero(self, value: Value) -> bool:
        found = self._constants.known_range_of(value) if value.is_constant else None
        return found is not None and found.smallest == found.largest == 0


def describe_low_reference(nodes: Iterable[DataflowNode], findings: Iterable[NodeFinding]) -> tuple[str, ...]:
    """Return what helps if low values of the reference overflow and the mixed model holds them; () otherwise.

    ``nodes``: those of the reference. A repaired model differs so from the float16 model that was given.
    """
    node_of = {node.ref: node.node for node in nodes}
    for finding in findings:
        if finding.kind != "preexisting" or not math.isfinite(finding.max_abs_low) or finding.ref not in node_of:
            continue
        values = [value for value in node_of[finding.ref].outputs if value is not None]
        types = {value.type for value in values if value.name == finding.tensor}
        for low in LOW_TYPES & types:
            place = f"the reference overflows in {dtypes.type_name(low)} at {finding.ref} ({finding.op_type})"
            return (f"{place}, and the mixed model does not: {_float32_reference()}",)
    return ()


def _float32_reference() -> str:
    return f"{spell('reference_type', 'float32')} compares with the model in float32"
