"""Find the largest magnitudes in the tensors of findings that hold a NaN, which hides them from the ranges.

A reduction of ONNX Runtime may drop other values when it meets a NaN. Only here NaN is replaced before the reduction,
which takes time: in tensors with a finding and a NaN, and in the first batch of each finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.counting_sessions import CountingSession, first_batches, probe_in_original
from mixlist.checker.finding_rules import FindingRecord
from mixlist.checker.model_pair import ModelPair
from mixlist.checker.operand_rules import ConvertedRange, OperandKey, OperandRecord
from mixlist.checker.value_counts import LARGEST, Totals, largest_magnitude
from mixlist.emulation.graph_statistics import has_where
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.refs import TensorRef

if TYPE_CHECKING:
    from mixlist.runtime.feeds import Batches


def find_largest_numbers(
    pair: ModelPair,
    batches: Batches,
    records: Mapping[TensorRef, FindingRecord],
    operands: Mapping[OperandKey, OperandRecord],
) -> None:
    """Put the largest magnitudes without NaN into the records that hold a NaN.

    Do nothing below opset 9, which has no operator to replace NaN.
    """
    outputs = first_batches({tensor: record for tensor, record in records.items() if record.holds_nan})
    inputs = first_batches({operand: record for operand, record in operands.items() if record.holds_nan})
    if not (outputs or inputs) or not all(has_where(model.loaded.proto) for model in (pair.reference, pair.mixed)):
        return
    in_reference = set[TensorRef]().union(*outputs.values())
    in_mixed = set(in_reference)
    for operand in set[OperandKey]().union(*inputs.values()):
        conversion = operands[operand].conversion
        (in_reference if conversion.in_reference else in_mixed).add(probe_in_original(pair, conversion))
    sessions = [
        CountingSession(model, (largest_magnitude(),), tensors) if tensors else None
        for model, tensors in ((pair.reference, in_reference), (pair.mixed, in_mixed))
    ]
    for index, feed in enumerate(islice(batches, max((*outputs, *inputs)) + 1)):
        if index not in outputs and index not in inputs:
            continue
        reference, mixed = (session.count(feed) if session is not None else {} for session in sessions)
        for tensor in outputs.get(index, ()):
            records[tensor].see_numbers(_number(tensor, reference), _number(tensor, mixed))
        for operand in inputs.get(index, ()):
            _see_operand(pair, operands[operand], reference, mixed)
    for session in sessions:
        if session is not None:
            session.close()


def _see_operand(pair: ModelPair, record: OperandRecord, reference: Totals, mixed: Totals) -> None:
    conversion = record.conversion
    before = _number(probe_in_original(pair, conversion), reference if conversion.in_reference else mixed)
    if before is not None:
        span = ObservedRange(-before, before, nan=False, first_nonfinite=0 if math.isinf(before) else None)
        record.see_numbers(before, ConvertedRange(conversion, span).after(pair.config.saturate).magnitude)


def _number(tensor: TensorRef, totals: Totals) -> float | None:
    """Return the largest magnitude of a tensor; None if it has no values, or only NaN."""
    found = totals.get((tensor, LARGEST))
    return found if found is not None and found >= 0 else None
