"""The tools for which a plan can be exported, and the function that adds a tool.

A tool is a function from a Plan to an ExportResult. To add one, call ``register_exporter``, or let an installed package
name the function in the entry-point group ``mixlist.exporters``: the command line then has the tool as well.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from mixlist.decide.plan import Plan
from mixlist.errors import UsageError
from mixlist.exchange.export_result import ExportResult
from mixlist.lists.policy import Policy
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource

Exporter = Callable[[Plan], ExportResult]
ENTRY_POINT_GROUP = "mixlist.exporters"
# By the name of the tool, the module and the function. The modules are imported when they are used.
_BUILT_IN = {
    "modelopt": ("mixlist.exchange.modelopt", "export_for_modelopt"),
    "ort": ("mixlist.exchange.ort", "export_for_ort"),
    "onnxconverter": ("mixlist.exchange.onnxconverter", "export_for_onnxconverter"),
    "atc": ("mixlist.exchange.atc", "export_for_atc"),
}
_registered: dict[str, Exporter] = {}


def register_exporter(tool: str, exporter: Exporter) -> None:
    """Add a tool, or replace one: ``exporter`` returns the ExportResult for a Plan.

    The name is known to ``mixlist.export`` in this process. For the command line, name the function in the entry-point
    group ``mixlist.exporters`` of an installed package. The guide "A library of your own" has an example.
    """
    _registered[tool] = exporter


def tool_names() -> list[str]:
    """Return the names of all tools: those of mixlist first."""
    from importlib.metadata import entry_points

    names = [*_BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))]
    return list(dict.fromkeys(names))


def find_exporter(tool: str) -> Exporter:
    """Return the exporter of a tool; raise UsageError for an unknown name."""
    if tool in _registered:
        return _registered[tool]
    if tool in _BUILT_IN:
        module, function = _BUILT_IN[tool]
        return cast(Exporter, getattr(import_module(module), function))
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=tool):
        return cast(Exporter, point.load())
    raise UsageError(f"no tool is called {tool!r}", hint=f"the tools are {', '.join(tool_names())}")


def export(
    model: ModelSource | None, policy_or_plan: Policy | Plan, tool: str, *, library: str | None = None
) -> ExportResult:
    """Return the lists that make a tool decide as a policy or a plan does.

    ``model`` is as in ``mixlist.resolve``; with a Plan it may be None, because the plan has its model. ``tool`` is
    ``"modelopt"``, ``"ort"``, ``"onnxconverter"``, ``"atc"``, or a name that ``register_exporter`` was called with.
    Of a plan with other types of inputs and outputs (``io`` of ``mixlist.resolve``), atc takes those of float16.
    ``library``, only for ``"atc"``: the operator library of the chip, a built-in library or a path; by default that of
    the policy, or ascend910b for a policy in ONNX names. Raises UsageError for a plan that the tool cannot have, such
    as one in bfloat16, and the errors of ``mixlist.resolve``.

    Example::

        result = mixlist.export("digits.onnx", mixlist.load_policy(), "ort")
        print(result.lists, result.exceptions)
    """
    exporter = find_exporter(tool)
    if isinstance(policy_or_plan, Plan):
        plan = policy_or_plan
    else:
        from mixlist.decide import resolve

        if model is None:
            raise TypeError("model is None: pass the model of the policy, or a Plan instead of the policy")
        if tool == "atc" and policy_or_plan.mode.low == "hifloat8":
            from mixlist.exchange.atc import export_lists_for_atc
            from mixlist.model.load import load_model

            return export_lists_for_atc(load_model(model).name, policy_or_plan, library)
        plan = resolve(model, policy_or_plan)
    if tool in _BUILT_IN and tool != "atc" and plan.solution.interface.io != "keep":
        raise UsageError(
            f"{tool} keeps the types of inputs and outputs", hint=f"{spell('io')} is for {spell('tool', 'atc')}"
        )
    if library is None:
        return exporter(plan)
    if tool != "atc":
        raise UsageError(f"{tool} has no operator library", hint=f"{spell('library')} is for {spell('tool', 'atc')}")
    from mixlist.exchange.atc import export_for_atc

    return export_for_atc(plan, library)
