"""Describe the probes of tensors, the statistics that they compute, and where an instrumented model outputs these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import dtypes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# Returns the nodes that compute a statistic: (name of the tensor, name of the result, element type of the tensor, new
# names).
NodeBuilder = Callable[[str, str, int, NameGenerator], "list[NodeProto]"]


@dataclass(frozen=True)
class Probe:
    """A tensor to observe.

    ref: its identity.
    tensor: its name in the file.
    op_type: the operator that computes it; "" if no node of the scope does.
    elem: its element type.
    source: another tensor with the same values, which is observed instead; None if this tensor itself is observed.
    """

    ref: TensorRef
    tensor: str
    op_type: str
    elem: int
    source: TensorRef | None = None


@dataclass(frozen=True)
class Statistic:
    """A number that probes compute of a tensor, for example its minimum.

    neutral: the neutral element of the reduction (inf for a minimum). It is the result for a tensor that a run does not
        compute.
    iterations_op_type: the operator that reduces the values of a loop's iterations to one value.
    build: returns the nodes that compute the number.
    elem: the element type of the number; UNKNOWN if it is that of the tensor.
    """

    name: str
    neutral: float
    iterations_op_type: str
    build: NodeBuilder
    elem: int = dtypes.UNKNOWN


def _build_reduction(op_type: str) -> NodeBuilder:
    """Return a builder of one node that reduces all elements of a tensor to a scalar."""
    return lambda tensor, out, elem, names: [names.make_node(op_type, [tensor], out, keepdims=0)]


# The sum of magnitudes is part of a range because it shows every NaN. ONNX Runtime's ReduceMin and ReduceMax ignore a
# NaN that is not the first value (1.31.1, CPU).
SUM = Statistic("sum", 0.0, "ReduceSum", _build_reduction("ReduceL1"))
RANGE_STATISTICS = (
    Statistic("minimum", float("inf"), "ReduceMin", _build_reduction("ReduceMin")),
    Statistic("maximum", float("-inf"), "ReduceMax", _build_reduction("ReduceMax")),
    SUM,
)


@dataclass
class InstrumentedModel:
    """A model that also yields statistics.

    proto: the model.
    probes: the observed tensors in the order of computation.
    columns: the columns that hold a statistic of a tensor, by tensor and name of the statistic. A tensor in a function
        has a column for each call.
    column_counts: the number of columns of each output with statistics.
    whole_outputs: the observed tensors that are outputs of the graph themselves, by identity; these have no statistics.
    cut_outputs: for each place where the graph can be cut (``cut_tensors`` of ``instrument``), the names of the tensors
        that are computed right before it: the outputs of the last node, and the statistics that are packed there. The
        stacked statistics of loops are left out.
    """

    proto: ModelProto
    probes: list[Probe] = field(default_factory=list)
    columns: dict[tuple[TensorRef, str], list[OutputColumn]] = field(default_factory=dict)
    column_counts: dict[str, int] = field(default_factory=dict)
    whole_outputs: dict[TensorRef, str] = field(default_factory=dict)
    cut_outputs: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def observed_outputs(self) -> list[str]:
        """Return the outputs of the graph that a run needs to observe all tensors."""
        return [*self.column_counts, *self.whole_outputs.values()]


@dataclass(frozen=True)
class OutputColumn:
    """One column of a graph output that holds statistics.

    The output has the shape [columns], or with ``stacked`` (from a Loop or Scan) the shape [iterations, columns].
    """

    output: str
    column: int
    stacked: bool
