"""Record the batches on which ONNX Runtime refuses to run the mixed model, although it runs the reference.

Rule S8.25: Such a batch is a finding ``refused`` at the node where the run ended, and fails the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.checker.finding_rules import FindingRecord
from mixlist.emulation.observer import Ranges
from mixlist.errors import ModelError
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import TensorRef
from mixlist.runtime.feeds import has_empty_array, holds_only_nan
from mixlist.runtime.local_session import Refusal, RunRefused

if TYPE_CHECKING:
    from mixlist.runtime.session import Array, Feed


def describe_batch(name: str, feed: Feed) -> str:
    """Return the name of a batch for an error message, with the inputs that most likely cause the error."""
    problems = [f"input {input_name!r} {problem}" for input_name, value in feed.items() if (problem := _problem(value))]
    return f"{name}, whose {' and '.join(problems)}" if problems else name


def make_reference_error(name: str, feed: Feed, refused: RunRefused) -> ModelError:
    """Return the error for a batch that the reference refuses; for random data with the sizes that may not fit."""
    hint = None
    if name.startswith("random "):
        shapes = ", ".join(f"{input_name} {list(value.shape)}" for input_name, value in feed.items())
        hint = f"the inputs are {shapes}: give open sizes that fit together with --dim, or real data with --data"
    return ModelError(f"{describe_batch(name, feed)}: {refused.message}", hint=hint)


def _problem(value: Array) -> str:
    """Return why ONNX Runtime may refuse the value of an input; "" for an ordinary value."""
    if has_empty_array({"": value}):
        return "has no elements"
    return "holds nothing but NaN" if holds_only_nan({"": value}) else ""


class RefusedBatches:
    """The refused batches of one check; ``nodes`` are those of the original model."""

    def __init__(self, nodes: Sequence[DataflowNode]) -> None:
        self._nodes = nodes
        self._refusals: dict[int, Refusal] = {}  # by the index of the batch

    def add(self, index: int, refused: RunRefused, reference: Ranges, records: dict[TensorRef, FindingRecord]) -> None:
        """Add a refused batch, and its finding to ``records``; ``reference`` are the ranges of the reference."""
        # A refusal names no scope: the first node with this name and operator gets the finding.
        refusal = self._refusals[index] = refused.refusal
        # ONNX Runtime may name an operator that the model does not have, such as FusedMatMul, which its optimizer made.
        # Or the operator has no name. Then no node can have a finding, and only the reason names the operator.
        refused_nodes = (n for n in self._nodes if n.ref.name == refusal.node and n.node.op_type == refusal.op_type)
        node = next(refused_nodes, None)
        if node is None:
            return
        # The finding is recorded at the first output, which may have findings of other batches already.
        tensor = TensorRef(*node.ref, 0)
        record = records.setdefault(tensor, FindingRecord(node, tensor))
        record.batches.setdefault("refused", []).append(index)
        if tensor in reference:
            record.reference_magnitude = max(record.reference_magnitude, reference[tensor].magnitude)

    def reasons(self) -> list[str]:
        """Return why the check fails: one sentence about all refused batches, [] if there is none."""
        if not self._refusals:
            return []
        first, refusal = next(iter(self._refusals.items()))
        more = f", and {len(self._refusals) - 1} more" if len(self._refusals) > 1 else ""
        return [f"ONNX Runtime runs the reference and refuses the mixed model on batch {first}{more}, {refusal}"]
