"""Export a plan to one of the tools."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mixlist.decide.plan import Plan
from mixlist.errors import UsageError
from mixlist.exchange import TOOLS
from mixlist.exchange.export_result import ExportResult
from mixlist.lists.policy import Policy
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource


def export(
    model: ModelSource | None, policy_or_plan: Policy | Plan, tool: str, *, library: str | None = None
) -> ExportResult:
    """Return the lists that make a tool decide as a policy or a plan does.

    ``model`` is as in ``mixlist.resolve``; with a Plan it may be None, because the plan has its model. ``tool`` is
    ``"modelopt"``, ``"ort"``, ``"onnxconverter"`` or ``"atc"``.
    Of a plan with other types of inputs and outputs (``io`` of ``mixlist.resolve``), atc takes those of float16.
    ``library``, only for ``"atc"``: the operator library of the chip, a built-in library or a path; by default that of
    the policy, or ascend910b for a policy in ONNX names. Raises UsageError for a plan that the tool cannot have, such
    as one in bfloat16, and the errors of ``mixlist.resolve``.

    Example::

        result = mixlist.export("digits.onnx", mixlist.load_policy(), "ort")
        print(result.lists, result.exceptions)
    """
    if tool not in TOOLS:
        raise UsageError(f"no tool is called {tool!r}", hint=f"the tools are {', '.join(TOOLS)}")
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
    if tool != "atc" and plan.solution.interface.io != "keep":
        raise UsageError(
            f"{tool} keeps the types of inputs and outputs", hint=f"{spell('io')} is for {spell('tool', 'atc')}"
        )
    if tool != "atc" and library is not None:
        raise UsageError(f"{tool} has no operator library", hint=f"{spell('library')} is for {spell('tool', 'atc')}")
    arguments = (plan,) if library is None else (plan, library)
    result: ExportResult = getattr(import_module(f"mixlist.exchange.{tool}"), f"export_for_{tool}")(*arguments)
    return result
