"""The statistics of observed tensors, and their places in the outputs of an instrumented model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import types

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Build = Callable[[str, str, int, NameGenerator], "list[NodeProto]"]  # (tensor, out, elem, names) -> nodes


@dataclass(frozen=True)
class Probe:
    """An observed tensor; ``source`` is the tensor whose range it shares, or None."""

    ref: TensorRef
    tensor: str
    op_type: str
    elem: int
    source: TensorRef | None = None


@dataclass(frozen=True)
class Statistic:
    """One reduction: how it is computed, how values of several runs join, and the neutral element."""

    name: str
    neutral: float
    join_op_type: str  # the operator that reduces the results of a Loop's iterations
    build: Build
    elem: int = types.UNKNOWN  # the type of the result; UNKNOWN: the tensor's own


def _reduce(op_type: str) -> Build:
    return lambda tensor, out, elem, names: [names.make_node(op_type, [tensor], out, keepdims=0)]


SUM = Statistic("sum", 0.0, "ReduceSum", _reduce("ReduceL1"))
RANGE = (
    Statistic("minimum", float("inf"), "ReduceMin", _reduce("ReduceMin")),
    Statistic("maximum", float("-inf"), "ReduceMax", _reduce("ReduceMax")),
    SUM,
)


@dataclass
class InstrumentedModel:
    """A model with statistics: ``proto``; ``outputs`` where each (TensorRef, statistic) is, in several places where
    a function is called several times; ``widths`` the columns of each output; ``probes`` in order of computation;
    ``parts`` what stands last before each cut: the tensor, and the statistics packed there."""

    proto: ModelProto
    probes: list[Probe] = field(default_factory=list)
    outputs: dict[tuple[TensorRef, str], list[OutputColumn]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    cut_outputs: list[tuple[str, ...]] = field(default_factory=list)


def has_where(model: ModelProto) -> bool:
    """Return True if every scope of a model can use Where and IsNaN, which are new in opset 9."""
    imports = [*model.opset_import, *(entry for body in model.functions for entry in body.opset_import)]
    return min((entry.version for entry in imports if not entry.domain), default=0) >= 9


@dataclass(frozen=True)
class OutputColumn:
    """A column of a graph output: of shape [columns], or [iterations, columns] out of a Loop or Scan (``stacked``)."""

    output: str
    column: int
    stacked: bool
