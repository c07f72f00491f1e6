"""``make campaign``: other tools convert all real models with exported lists; each node gets the types of the plan."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import mixlist
from tests.support.converted_types import compare, find_downstream

from .conftest import CAMPAIGN, ROWS
from .tool_environments import NOT_CONVERTED_BY_MODELOPT, REQUIREMENTS, last_error_line

pytestmark = [pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it"), pytest.mark.timeout(3600)]
MODELS = [row["id"] for row in ROWS]
POLICIES: dict[str, dict[str, str]] = {
    "onnx": {},
    "ascend910b": {"ops_info": "ascend910b"},
    "mindspore-o2": {"ops_info": "mindspore-o2"},
    "fp16": {"precision_mode_v2": "fp16"},
}
# Only AutoCast converts to bfloat16.
BFLOAT16 = {"bfloat16": {"precision_mode_v2": "mixed_bfloat16", "gray_policy": "promote"}}


def name_all_nodes(graph: onnx.GraphProto, prefix: str = "") -> None:
    """Give every node a name, as the exceptions for unnamed nodes advise."""
    for position, node in enumerate(graph.node):
        node.name = node.name or f"{prefix}{node.op_type}__{position}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                name_all_nodes(attribute.g, f"{node.name}_{attribute.name}_")


def run_tool(result: mixlist.ExportResult, python: str, folder: Path) -> str:
    """Run the program or command of an export in a folder; return the last line of the error, if there is one."""
    if result.tool == "modelopt":
        command = [python, *shlex.split(result.call.replace("\\\n", " "))[1:]]
    else:
        (folder / "program.py").write_text(result.call)
        command = [python, "program.py"]
    return last_error_line(command, folder)


# One process makes the environment of a tool, and then uses it for all models.
@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize(
    "tool", [pytest.param(tool, marks=pytest.mark.xdist_group(tool)) for tool in ("ort", *REQUIREMENTS)]
)
def test_a_tool_gives_each_node_the_types_of_the_plan_or_an_exception_names_it(
    tool: str, model_id: str, corpus: Any, interpreter: Callable[[str], str], tmp_path: Path
) -> None:
    source, python = onnx.load(corpus.path(model_id)), interpreter(tool)
    name_all_nodes(source.graph)
    onnx.save(source, tmp_path / "model.onnx")
    for name, options in (POLICIES | BFLOAT16 if tool == "modelopt" else POLICIES).items():
        plan = mixlist.resolve(tmp_path / "model.onnx", mixlist.load_policy(**options))  # type: ignore[arg-type]
        result = mixlist.export(None, plan, tool)
        error = run_tool(result, python, tmp_path)
        if tool == "modelopt" and model_id in NOT_CONVERTED_BY_MODELOPT:
            assert error, "the tool converts the model: remove it from NOT_CONVERTED_BY_MODELOPT"
            print(f"{tool} {model_id}: not converted: {error[:120]}")
            return
        assert not error
        mixed = mixlist.rewrite(source, plan).model
        exceptions = {str(item.node) for item in result.exceptions}
        invalid = any("the result" in item.why and "invalid" in item.why for item in result.exceptions)
        try:
            comparison = compare(mixed, onnx.load(tmp_path / "mixed.onnx"))
        except onnx.shape_inference.InferenceError as problem:
            assert invalid, f"inference refuses the result: {problem}"
            print(f"{tool} {model_id} {name}: inference refuses the result, {len(exceptions)} exceptions, invalid")
            continue
        # In an invalid result, the nodes after an exception have wrong types, too.
        allowed = find_downstream(mixed, exceptions) if invalid else exceptions
        counts = f"{comparison.equal} equal, {len(comparison.unlike)} of other types, {len(comparison.missing)} removed"
        print(f"{tool} {model_id} {name}: {counts}, {len(exceptions)} exceptions{', invalid' if invalid else ''}")
        if tool != "modelopt" and result.is_valid:
            onnxruntime.InferenceSession(tmp_path / "mixed.onnx", providers=["CPUExecutionProvider"])
        assert comparison.equal > 0
        assert set(comparison.unlike) <= allowed
        assert set(comparison.missing) <= allowed


@pytest.mark.parametrize("model_id", MODELS)
def test_lists_for_atc_decide_as_the_plan_or_an_exception_names_the_node(model_id: str, corpus: Any) -> None:
    for name, options in POLICIES.items():
        plan = mixlist.resolve(corpus.path(model_id), mixlist.load_policy(**options))  # type: ignore[arg-type]
        result = mixlist.export(None, plan, "atc")
        lines = {key: len(result.lists[key]) for key in ("keep_dtype", "customize_dtypes")}  # type: ignore[arg-type]
        print(f"atc {model_id} {name}: {lines}, {len(result.exceptions)} exceptions")
        assert not [item for item in result.exceptions if "the plan" in item.why]
