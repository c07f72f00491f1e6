"""Find the largest magnitudes in the tensors of findings that hold a NaN, which hides them from the ranges (Rule S8.3).

ReduceMax and ReduceMin of ONNX Runtime may drop other values when they meet a NaN. Only this file replaces NaN before
the reduction. That takes time, so it is done only for tensors with a finding and a NaN, in the first batch of each
finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.counting_sessions import CountingSession, keys_by_first_batch, probed_tensor
from mixlist.checker.finding_records import FindingRecord, OperandKey, OperandRecord
from mixlist.checker.model_pair import ModelPair
from mixlist.checker.operand_rules import ConvertedRange
from mixlist.checker.value_counts import LARGEST, Totals, largest_magnitude
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.opsets import supports_where
from mixlist.graph.refs import TensorRef

if TYPE_CHECKING:
    from mixlist.runtime.feeds import Batches


def find_magnitudes_without_nan(
    pair: ModelPair,
    batches: Batches,
    records: Mapping[TensorRef, FindingRecord],
    operand_records: Mapping[OperandKey, OperandRecord],
) -> None:
    """Add the largest magnitudes without NaN to the records that hold a NaN.

    Below opset 9 this does nothing, because no operator of that opset replaces NaN.
    """
    # Which records hold a NaN, by the batches in which their findings begin.
    outputs = keys_by_first_batch({tensor: record for tensor, record in records.items() if record.holds_nan})
    operands = keys_by_first_batch({operand: record for operand, record in operand_records.items() if record.holds_nan})
    models = (pair.reference, pair.mixed)
    if not (outputs or operands) or not all(supports_where(model.loaded.proto) for model in models):
        return
    # The output of a node is needed in both models, an operand only in the model that observes its conversion.
    reference_tensors = set[TensorRef]().union(*outputs.values())
    mixed_tensors = set(reference_tensors)
    for operand in set[OperandKey]().union(*operands.values()):
        conversion = operand_records[operand].conversion
        model_tensors = reference_tensors if conversion.in_reference else mixed_tensors
        model_tensors.add(probed_tensor(pair, conversion))
    with ExitStack() as stack:
        # A model without such tensors gets no session: it would be loaded for nothing.
        sessions = [
            stack.enter_context(closing(CountingSession(model, (largest_magnitude(),), tensors))) if tensors else None
            for model, tensors in zip(models, (reference_tensors, mixed_tensors), strict=True)
        ]
        # One pass over the batches serves outputs and operands, so that each model runs at most once per batch.
        for index, feed in enumerate(islice(batches, max((*outputs, *operands)) + 1)):
            if index not in outputs and index not in operands:
                continue
            reference, mixed = (session.count(feed) if session is not None else {} for session in sessions)
            for tensor in outputs.get(index, ()):
                records[tensor].add_magnitudes_without_nan(_magnitude(tensor, reference), _magnitude(tensor, mixed))
            for operand in operands.get(index, ()):
                _add_operand_magnitudes(pair, operand_records[operand], reference, mixed)


def _add_operand_magnitudes(pair: ModelPair, record: OperandRecord, reference: Totals, mixed: Totals) -> None:
    """Add the largest magnitude of an operand before its conversion, and the one that the conversion makes of it."""
    conversion = record.conversion
    before = _magnitude(probed_tensor(pair, conversion), reference if conversion.in_reference else mixed)
    if before is not None:
        # Only the magnitude is known, not its sign. Rounding is symmetric, so a range of both signs gives the result.
        value_range = ObservedRange(-before, before, nan=False, first_nonfinite=0 if math.isinf(before) else None)
        after = ConvertedRange(conversion, value_range).after(pair.config.saturate)
        record.add_magnitudes_without_nan(before, after.magnitude)


def _magnitude(tensor: TensorRef, totals: Totals) -> float | None:
    """Return the largest magnitude of a tensor; None if it has no values, or holds only NaN."""
    magnitude = totals.get((tensor, LARGEST))
    return magnitude if magnitude is not None and magnitude >= 0 else None  # NO_LARGEST is negative
