"""One graph that can round as any plan does, as ``gate_builder.py`` builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.naming import NodeRef
from mixlist.search.rounding_plan import Rounding, RoundingPoint

if TYPE_CHECKING:
    from onnx import ModelProto

Gate = tuple[RoundingPoint, Rounding]


@dataclass(frozen=True)
class GatedGraph:
    """A gated graph, and the positions of its gates.

    ``proto``: the model. Its nodes read one flag (bool [1]) for each gate; ``flag_names`` are the names of the flags.
    The model does not declare these inputs: ``split_graph`` adds them. ``gates``: the point and the rounding that each
    flag turns on. ``flags_input``: a name for an input that holds several flags. ``output_names``: the names of the
    graph's outputs in the model's order; an output that may be rounded has a new name. ``tensor_types``: the types of
    the main graph's tensors by name. ``computed_constants``: the tensors that nodes compute from constants alone.
    ``origins``: the node of the model that a copy in a branch stands for, by the copy's name.
    """

    proto: ModelProto
    flags_input: str
    gates: tuple[Gate, ...]
    flag_names: tuple[str, ...]
    output_names: tuple[str, ...]
    tensor_types: Mapping[str, dtypes.Type]
    computed_constants: frozenset[str]
    origins: Mapping[str, NodeRef]

    @cached_property
    def _flags_by_point(self) -> dict[RoundingPoint, list[int]]:
        flags: dict[RoundingPoint, list[int]] = {}
        for flag, (point, _) in enumerate(self.gates):
            flags.setdefault(point, []).append(flag)
        return flags

    def find_flag(self, point: RoundingPoint, needed: Rounding) -> int | None:
        """Return the index of a flag that gives a point the needed rounding; None if no gate does.

        A gate with exactly that rounding comes first. One that rounds more inputs than needed takes more time.
        """
        flags = self._flags_by_point.get(point, ())
        exact = next((flag for flag in flags if self.gates[flag][1] == needed), None)
        if exact is not None:
            return exact
        return next((flag for flag in flags if self.gates[flag][1].covers(needed)), None)
