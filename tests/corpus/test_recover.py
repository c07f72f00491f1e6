"""``make campaign``: other tools convert all real models; the recovered lists and rules give each node its types.

A copy of the model that mixlist writes under the recovered files is compared with the tool's model by names, with code
that does not know ``recover``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.errors import ModelError
from mixlist.model.onnx_conversion import convert_opset
from mixlist.model.protos import standard_opset
from tests.support.converted_types import compare, sort_nodes

from .conftest import CAMPAIGN, ROWS
from .feeds import feeds
from .test_export import name_all_nodes
from .tool_environments import NOT_CONVERTED_BY_MODELOPT, last_error_line

pytestmark = [pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it"), pytest.mark.timeout(3600)]
MODELS = [row["id"] for row in ROWS]
BLOCKED = ["Softmax", "ReduceMean", "Pow", "Sqrt", "Resize", "Div", "Sigmoid"]
CONVERTER = """
import json, sys, onnx
from {module} import float16
model = onnx.load("model.onnx")
onnx.save(float16.convert_float_to_float16(model, keep_io_types=True, **json.loads(sys.argv[1])), "mixed.onnx")
"""
CONVERTERS = {"ort": "onnxruntime.transformers", "onnxconverter": "onnxconverter_common"}
AUTOCAST = "-m modelopt.onnx.autocast --onnx_path model.onnx --output_path mixed.onnx --calibration_data data.npz"
# By tool and name of the setting, the arguments.
SETTINGS: dict[str, dict[str, list[str]]] = {
    **{tool: {"all": ["{}"], "blocked": [json.dumps({"op_block_list": BLOCKED})]} for tool in CONVERTERS},
    "modelopt": {
        "fp16": ["--low_precision_type", "fp16", "--keep_io_types"],
        "fp16 without some op types": ["--low_precision_type", "fp16", "--op_types_to_exclude", *BLOCKED],
        "bf16": ["--low_precision_type", "bf16", "--keep_io_types"],
    },
}
# AutoCast also refuses this model here, where it calibrates with the data of the model.
NOT_CONVERTED = {
    **NOT_CONVERTED_BY_MODELOPT,
    "minimol": "it takes no data whose sizes differ from those that the model declares",
}
# Operators without a precision of their own (Rule S11.2), and control flow.
UNCOMPARED = ("Cast", "Constant", "ConstantOfShape", "If", "Loop", "Scan")


def convert(tool: str, arguments: list[str], python: str, folder: Path) -> str:
    """Convert model.onnx to mixed.onnx; return the last line of the error, if there is one."""
    if tool in CONVERTERS:
        (folder / "program.py").write_text(CONVERTER.format(module=CONVERTERS[tool]))
        command = [python, "program.py", *arguments]
    else:
        command = [python, *AUTOCAST.split(), *arguments]
    (folder / "mixed.onnx").unlink(missing_ok=True)
    return last_error_line(command, folder)


def is_valid(path: Path) -> bool:
    """Return whether ONNX accepts a model, with the types of all nodes; the order of the nodes does not matter."""
    try:
        onnx.checker.check_model(sort_nodes(onnx.load(path)), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def judge(original: Path, mixed: Path, report: mixlist.RecoverReport, folder: Path) -> Counter[str]:
    """Compare what mixlist writes under the recovered files with the tool's model; return counts."""
    report.save(folder / "list.json", folder / "rules.txt", force=True)
    recovered = mixlist.load_policy(
        mixlist=folder / "list.json",
        customize_dtypes=folder / "rules.txt",
        precision_mode_v2=report.precision_mode_v2,
        constants=report.constants,
        protect=report.protect,
    )
    written = mixlist.rewrite(original, mixlist.resolve(original, recovered))
    assert isinstance(written.model, onnx.ModelProto)
    comparison = compare(written.model, onnx.load(mixed))
    exceptions = {str(node.ref) for node in report.exceptions}
    allowed = exceptions | {str(node.ref) for node in report.unmatched}
    unlike = {name: text for name, text in comparison.unlike.items() if text.partition(":")[0] not in UNCOMPARED}
    # In a model that ONNX refuses, the types after a node that computes with two types are not defined.
    assert unlike.keys() <= allowed or not is_valid(mixed), unlike
    return Counter(equal=comparison.equal, unlike=len(unlike), exceptions=len(exceptions))


def recover_at_opset_of_mixed(original: Path, mixed: Path) -> tuple[mixlist.RecoverReport, Path]:
    """Recover; if the opset of the original is too low, raise it first, as ML613 advises. Return the original, too."""
    report = mixlist.recover(original, mixed)
    if all(warning.code != "ML613" for warning in report.warnings):
        return report, original
    raised = original.with_name("raised.onnx")
    onnx.save(convert_opset(onnx.load(original), standard_opset(onnx.load(mixed))), raised)
    return mixlist.recover(raised, mixed), raised


# One process makes the environment of a tool, and then uses it for all models.
@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize("tool", [pytest.param(tool, marks=pytest.mark.xdist_group(tool)) for tool in SETTINGS])
def test_the_recovered_lists_give_the_types_of_the_tool(
    tool: str,
    model_id: str,
    corpus: Any,
    interpreter: Callable[[str], str],
    tmp_path: Path,
) -> None:
    source, python = onnx.load(corpus.path(model_id)), interpreter(tool)
    name_all_nodes(source.graph)
    original, mixed = tmp_path / "model.onnx", tmp_path / "mixed.onnx"
    onnx.save(source, original)
    np.savez(tmp_path / "data.npz", **feeds(model_id)[0])  # type: ignore[arg-type]
    for setting, arguments in SETTINGS[tool].items():
        label = f"{tool} {model_id} {setting}"
        error = convert(tool, arguments, python, tmp_path)
        assert bool(error) == (tool == "modelopt" and model_id in NOT_CONVERTED), error
        if error:
            print(f"{label}: not converted: {error[:120]}")
            continue
        try:
            report, source_path = recover_at_opset_of_mixed(original, mixed)
        except ModelError as error:
            print(f"{label}: invalid: {error.message[:120]}")
            assert not is_valid(mixed)
            continue
        counts = judge(source_path, mixed, report, tmp_path)
        rules = sum(edit.kind == "rule" for edit in report.edits)
        print(
            f"{label}: {'complete' if report.complete else 'incomplete'}, {report.matched} matched,"
            f" {report.differing} differ, {len(report.edits) - rules} op types, {rules} rules, {len(report.unmatched)}"
            f" without a counterpart; {counts['equal']} nodes equal, {counts['unlike']} of other types,"
            f" {counts['exceptions']} exceptions{'' if is_valid(mixed) else ', the result is invalid'}"
        )
        assert counts["equal"] > 0
        assert 4 * rules <= max(report.differing, 4)
