"""Export a plan for the float16 conversion of ``onnxruntime.transformers``.

The facts were read from ``transformers/float16.py`` of onnxruntime 1.31.1:

- A list that is given replaces the tool's default list; op types match in every domain.
- An initializer that a converted node reads becomes float16, and blocked nodes read a Cast of it.
- Casts around a node in a body are written into the main graph. The nodes of the result are not sorted.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.decide.plan import Plan
from mixlist.exchange.block_lists import PlannedNode
from mixlist.exchange.converter_facts import ConverterModel, require_float16
from mixlist.exchange.export_result import ExportException, ExportResult
from mixlist.model import dtypes
from mixlist.model.graph import Value

MEASURED_WITH = "onnxruntime 1.31.1"
_KEPT_INPUTS: dict[str, tuple[int, ...]] = {"Resize": (2,), "GroupNorm": (1, 2), "SkipGroupNorm": (1, 2)}


def export_for_ort(plan: Plan) -> ExportResult:
    """Return the block lists for ``onnxruntime.transformers``.

    Raises UsageError for a plan in bfloat16, to which the tool does not convert.
    """
    require_float16(plan, "onnxruntime.transformers")
    opset = plan.solution.graph.opsets.get("", 0)
    kept_inputs = _KEPT_INPUTS if opset > 10 else _KEPT_INPUTS | {"Resize": (1,)}
    model = ConverterModel(plan, kept_inputs)
    return model.make_result("ort", MEASURED_WITH, "onnxruntime.transformers.float16", _find_exceptions(model))


def _find_exceptions(model: ConverterModel) -> Iterator[ExportException]:
    for planned in model.visited_and_blocked():
        if planned.node.scope.owner is not None:
            why = "is high precision in a body: the tool writes its Casts into the main graph"
            yield ExportException(planned.ref, f"{why}, so that the result is invalid", invalid=True)
    yield from _find_rounded_initializers(model)


def _find_rounded_initializers(model: ConverterModel) -> Iterator[ExportException]:
    """Yield the blocked nodes of bodies that read an initializer which a converted node reads too.

    The program gives a blocked node of the main graph a copy of such an initializer.
    """
    converted = {v for planned in model.converted_nodes() for v in _converted_inputs(model, planned)}
    for planned in model.graph.nodes:
        if not model.is_high(planned) or planned.node.scope.owner is None:
            continue
        shared = [v for v in planned.node.inputs if v is not None and v in converted]
        if shared:
            names = ", ".join(repr(value.name) for value in shared)
            invalid = planned.node in model.skipped
            effect = "the result is invalid" if invalid else "it is rounded for this node too"
            why = f"a converted node reads its initializer {names} too: {effect}; give each its own initializer"
            yield ExportException(planned.ref, why, invalid)


def _converted_inputs(model: ConverterModel, planned: PlannedNode) -> Iterator[Value]:
    """Yield the float32 initializers that the tool converts because this node reads them."""
    float_slots = model.float_inputs.get(planned.op_type, ())
    for slot, value in enumerate(planned.node.inputs):
        if value is not None and value.kind == "initializer" and slot not in float_slots and value.type == dtypes.FLOAT:
            yield value
