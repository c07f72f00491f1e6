"""Export a plan for the Ascend compiler: a modify_mixlist, node rules and the command line of ``atc``.

mixlist's own rules for Ascend libraries describe how atc decides (docs/semantics.md). So the lists are found by
resolving the model as atc would: in Ascend names, with gray nodes that follow upstream, without protections, and with
constants that the hardware converts. The options are those of the documents of atc of CANN 8.1.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from mixlist.exchange.ascend_search import AscendLists, AscendSearch
from mixlist.exchange.result import ExportException, ExportResult
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Lists
from mixlist.lists.node_rules import format_customize_line
from mixlist.lists.policy import NEW_MODES

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan
    from mixlist.lists.library import Library
    from mixlist.lists.policy import Policy

MEASURED_WITH = "the documents of atc, CANN 8.1"
DEFAULT_LIBRARY = "ascend910b"
_FRAMEWORK_ONNX = 5
_NOTES = (
    "atc was not run: the exceptions compare the plan with mixlist's rules for Ascend libraries",
    "atc matches names after its own fusion, so that a rule for a node that is fused has no effect",
)
_CLAMP_NOTE = "the plan clamps constants beyond the range of the low type, and atc makes them infinite"


def export_for_atc(plan: Plan, library: str | None = None) -> ExportResult:
    """Return the modify_mixlist, the node rules and the command for ``atc``.

    ``library`` is a built-in library in Ascend names, or the path of one; by default that of the plan's policy, or
    ascend910b if the policy is in ONNX names. Raises UsageError for a library in ONNX names.
    """
    target = _find_library(plan.policy, library)
    ascend_lists = AscendSearch(plan, target).run()
    lists: dict[str, object] = {
        "modify_mixlist": diff_lists(Lists(target), ascend_lists.policy.lists),
        "keep_dtype": [
            rule.pattern if rule.by == "name" else f"OpType::{rule.pattern}" for rule in ascend_lists.keep_rules
        ],
        "customize_dtypes": [format_customize_line(rule) for rule in ascend_lists.type_rules],
    }
    files = _make_files(lists)
    arguments = _find_arguments(plan, ascend_lists, files)
    call = _show_command(plan.model, arguments)
    return ExportResult(
        tool="atc",
        measured_with=MEASURED_WITH,
        model=plan.model,
        precision=plan.policy.mode.low,
        lists={"library": target.name, **lists},
        arguments=arguments,
        call=call,
        exceptions=tuple(_find_exceptions(plan, ascend_lists)),
        notes=(*_NOTES, *([_CLAMP_NOTE] if plan.policy.constants == "clamp" else [])),
        files={**files, "atc.sh": _show_script(plan.model, arguments)},
        warnings=plan.warnings,
    )


def _find_library(policy: Policy, library: str | None) -> Library:
    from mixlist.errors import UsageError
    from mixlist.lists.load import load_policy

    if library is None and policy.space == "ascend":
        return policy.lists.library
    target = load_policy(ops_info=library or DEFAULT_LIBRARY)
    if target.space != "ascend":
        raise UsageError(
            f"--library {library} is in ONNX names, and atc has Ascend names",
            hint="give the chip's library, such as ascend910b; mixlist presets lists the built-in ones",
        )
    return target.lists.library


def _make_files(lists: dict[str, object]) -> dict[str, str]:
    """Return the text of each file that has content, by its name."""
    files: dict[str, str] = {}
    if lists["modify_mixlist"]:
        text = json.dumps(lists["modify_mixlist"])
        files["modify_mixlist.json"] = format_text(text, "modify_mixlist.json", "modify-mixlist")
    for key in ("keep_dtype", "customize_dtypes"):
        lines = lists[key]
        assert isinstance(lines, list)
        if lines:
            files[f"{key}.cfg"] = "".join(f"{line}\n" for line in lines)
    return files


def _find_arguments(plan: Plan, ascend_lists: AscendLists, files: dict[str, str]) -> dict[str, object]:
    mode = ascend_lists.policy.mode.name
    arguments: dict[str, object] = {"framework": _FRAMEWORK_ONNX}
    arguments["precision_mode_v2" if mode in NEW_MODES else "precision_mode"] = mode
    return arguments | {posixpath.splitext(name)[0]: name for name in files}


def _show_command(model: str, arguments: dict[str, object]) -> str:
    words = [f"atc --model={quote(model)}", "--output=mixed", '--soc_version="$SOC_VERSION"']
    words += [f"--{name}={value}" for name, value in arguments.items()]
    return " \\\n  ".join(words) + "\n"


def _show_script(model: str, arguments: dict[str, object]) -> str:
    """Return a shell script that calls atc with the files of its own folder, wherever it is called."""
    files = {name: f'"$(dirname "$0")/{value}"' for name, value in arguments.items() if "." in str(value)}
    head = "#!/bin/sh\n# Call this where mixlist export was called, with SOC_VERSION set to the name of the chip.\n"
    return head + _show_command(model, {**arguments, **files})


def _find_exceptions(plan: Plan, ascend_lists: AscendLists) -> Iterator[ExportException]:
    for ref, why in ascend_lists.unnamed:
        yield ExportException(ref, why)
    for decision, planned_precision in ascend_lists.differing:
        yield ExportException(
            decision.ref, f"atc makes it {decision.precision}, the plan {planned_precision}: {decision.reason}"
        )
    main = plan.solution.graph_solution
    if main.reduced_slots:
        from mixlist.model.naming import node_ref

        for node in main.reduced_slots:
            why = "mixlist reduces the mask that it reads (S4.36), and atc does not: a fully masked row can become NaN"
            yield ExportException(node_ref(node), why)
