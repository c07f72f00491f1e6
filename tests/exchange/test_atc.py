"""The export for atc: lists in Ascend names under which mixlist's rules for Ascend decide as the plan does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.files.package_data import data_folder
from mixlist.lists.policy import InterfaceTypes
from tests.support.builders import keep, model, policy
from tests.support.package import Constants

TEXT = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> {
 [m] a = MatMul(x, w) [r] b = Relu(a) [e] c = Exp(b) [s] d = Softmax(c) [n] y = MatMul(d, w) }"""


def resolve_files(folder: Path, source: object, library: str) -> dict[str, str]:
    """Return the precision of each node under the files of an export, as atc would read them."""
    names = {
        "mixlist": "modify_mixlist.json",
        "keep_dtype": "keep_dtype.cfg",
        "customize_dtypes": "customize_dtypes.cfg",
    }
    files = {option: folder / name for option, name in names.items() if (folder / name).exists()}
    options = {"ops_info": library, "constants": "ieee", "protect": "none", **files}
    plan = mixlist.resolve(source, mixlist.load_policy(**options))  # type: ignore[arg-type]
    return {node.name: node.precision for node in plan.nodes}


@pytest.mark.parametrize(
    "lists",
    [
        policy(white=["MatMul", "Relu", "Exp", "Softmax"]),
        policy(white=["MatMul"], black=["Exp"]),
        policy(white=["Exp"], black=["MatMul", "Relu"]),
        policy(white=["MatMul", "Exp"], rules=keep("n")),
        policy(white=["MatMul", "Exp"], gray_policy="promote", rules=keep("r")),
    ],
    ids=["all low", "black Exp", "black MatMul", "one of two", "promote"],
)
def test_the_files_give_the_precisions_of_the_plan(lists: mixlist.Policy, tmp_path: Path) -> None:
    source = model(TEXT)
    result = mixlist.export(source, lists, "atc")
    result.save(tmp_path / "lists")
    assert not result.exceptions
    wanted = {node.name: node.precision for node in mixlist.resolve(source, lists).nodes}
    assert resolve_files(tmp_path / "lists", source, "ascend910b") == wanted


def test_a_plan_over_the_same_library_keeps_the_lists_of_the_user(tmp_path: Path) -> None:
    edits = {"black-list": {"to-add": ["BatchMatMulV2"]}, "white-list": {"to-remove": ["BatchMatMulV2"]}}
    (tmp_path / "modify.json").write_text(json.dumps(edits))
    lists = mixlist.load_policy(ops_info="ascend310p", mixlist=tmp_path / "modify.json")
    result = mixlist.export(model(TEXT), lists, "atc")
    assert (result.lists["library"], result.lists["modify_mixlist"]) == ("ascend310p", edits)
    assert result.lists["keep_dtype"] == [] and not result.exceptions


@pytest.mark.parametrize("line", ["m*", "./m", "OpType::Softmax"], ids=["wildcard", "scope", "ONNX name"])
def test_a_rule_that_atc_reads_otherwise_becomes_rules_of_names(line: str, tmp_path: Path) -> None:
    text = TEXT.replace("[n] y", "[m2] y") if line == "m*" else TEXT
    (tmp_path / "keep.cfg").write_text(f"{line}\n")
    lists = mixlist.load_policy(ops_info="ascend310p", keep_dtype=tmp_path / "keep.cfg")
    result = mixlist.export(model(text), lists, "atc")
    kept = {"m*": ["m", "m2"], "./m": ["m"], "OpType::Softmax": ["s"]}[line]
    assert result.lists["modify_mixlist"] or result.lists["keep_dtype"] == kept
    result.save(tmp_path / "lists")
    wanted = {node.name: node.precision for node in mixlist.resolve(model(text), lists).nodes}
    assert not result.exceptions
    assert resolve_files(tmp_path / "lists", model(text), "ascend310p") == wanted


def test_a_newer_op_type_is_what_the_lists_and_rules_of_its_chip_name(tmp_path: Path) -> None:
    """Rule S5.9: MatMulV2 would change nothing on the Ascend 950."""
    result = mixlist.export(model(TEXT), policy(black=["MatMul"], white=["Exp"]), "atc", library="ascend950")
    moved = ["BatchMatMulV3", "Relu"]
    assert result.lists["modify_mixlist"] == {"black-list": {"to-add": moved}, "white-list": {"to-remove": moved}}
    (tmp_path / "types.cfg").write_text("OpType::BatchMatMulV3:InputDtype:float32,float32,OutputDtype:float32\n")
    lists = mixlist.load_policy(ops_info="ascend950", customize_dtypes=tmp_path / "types.cfg")
    plan = mixlist.resolve(model(TEXT), lists)
    assert {node.precision for node in plan.nodes if node.op_type == "MatMul"} == {"float32"}
    assert not [item for item in plan.warnings if item.code in ("ML307", "ML406")]


def test_a_rule_for_a_name_that_mixlist_gave_is_an_exception(tmp_path: Path) -> None:
    text = TEXT.replace("[m] ", "")
    (tmp_path / "keep.cfg").write_text("MatMul_0\n")
    lists = mixlist.load_policy(ops_info="ascend310p", keep_dtype=tmp_path / "keep.cfg")
    assert dict(mixlist.resolve(model(text), lists).nodes[0].outputs) == {"a": "float32"}
    result = mixlist.export(model(text), lists, "atc")
    assert result.lists["keep_dtype"] == []
    (reason,) = [item.why for item in result.exceptions if item.node.name == "MatMul_0"]
    assert reason.startswith("has no name of its own")


def test_the_command_names_only_the_files_that_exist(tmp_path: Path) -> None:
    result = mixlist.export(model(TEXT), policy(white=["MatMul", "Exp"], rules=keep("n")), "atc")
    paths = result.save(tmp_path / "new")
    assert {path.name for path in paths} == set(result.files)
    for name, text in result.files.items():
        assert (tmp_path / "new" / name).read_text() == text
        assert (f"={name}" in result.call) == (name != "atc.sh")
    assert "--framework=5" in result.call and "--precision_mode_v2=mixed_float16" in result.call


@pytest.mark.parametrize(("constants", "clips"), [("keep", 1), ("clamp", 1), ("ieee", 0)])
def test_atc_clips_constants_as_the_policy_says(constants: Constants, clips: int) -> None:
    """Rule S4.19. ``--is_weight_clip`` is 1 by default, in the documents of atc from CANN 8.0.RC2 to 9.1."""
    result = mixlist.export(model(TEXT), replace(policy(white=["MatMul"]), constants=constants), "atc")
    assert result.arguments["is_weight_clip"] == clips
    assert f"--is_weight_clip={clips}" in result.call and not any("infinite" in note for note in result.notes)


def decoder(past: str = "past.0", split: str = "split") -> onnx.ModelProto:
    """Return a model with a cache, whose float inputs are x and ``past``."""
    source = model("""g (float[2] x, int64[2] ids, float[2] past) => (float[2] y, float[2] present, int64[2] next)
        { [a] y = Add(x, past) [c] both = Concat<axis = 0>(x, past) [s] present, rest = Split(both)
          [n] next = Identity(ids) }""")
    add, concat, split_node, _ = source.graph.node
    source.graph.input[2].name = add.input[1] = concat.input[1] = past
    split_node.name = split
    return source


def test_float16_inputs_and_outputs_are_arguments_of_atc(tmp_path: Path) -> None:
    """A decoder hands its float16 caches from step to step. atc names inputs, and outputs by their nodes."""
    source, lists = decoder(), policy(white=["Add"])
    plan = mixlist.resolve(source, lists, io="low", keep_io=["x", "y"])
    result = mixlist.export(None, plan, "atc")
    assert {name: result.arguments.get(name) for name in ("input_fp16_nodes", "out_nodes", "output_type")} == {
        "input_fp16_nodes": "past.0",
        "out_nodes": "a:0;split:0;n:0",  # atc wants all outputs where it gets the type of one
        "output_type": "split:0:FP16",
    }
    result.save(tmp_path / "lists")
    script = (tmp_path / "lists/atc.sh").read_text()
    for text in (script, result.call):
        assert "--input_fp16_nodes=past.0 " in text and "--out_nodes='a:0;split:0;n:0' " in text
    assert "output_type" not in mixlist.export(source, lists, "atc").arguments


def test_one_type_for_all_outputs_needs_no_names() -> None:
    plan = mixlist.resolve(model("g (float[2] x) => (float[2] y) { y = Exp(x) }"), policy(), io="low")
    arguments = mixlist.export(None, plan, "atc").arguments
    assert (arguments["input_fp16_nodes"], arguments["output_type"]) == ("x", "FP16")
    assert "out_nodes" not in arguments


@pytest.mark.parametrize(
    ("source", "io", "message"),
    [
        (decoder(split=""), "low", "the output 'present' comes from no node that has a name"),
        (decoder("past;0"), "low", "'past;0' has a character with which atc separates names"),
        (decoder(), "float32", "atc makes inputs and outputs float16 only"),
    ],
    ids=["unnamed", "separator", "float32"],
)
def test_inputs_and_outputs_that_atc_cannot_have_are_refused(
    source: onnx.ModelProto, io: InterfaceTypes, message: str
) -> None:
    plan = mixlist.resolve(source, policy(), io=io)
    with pytest.raises(UsageError, match=message):
        mixlist.export(None, plan, "atc")


def test_other_tools_refuse_other_types_of_inputs() -> None:
    plan = mixlist.resolve(model(TEXT), policy(), io="low")
    with pytest.raises(UsageError, match="ort keeps the types of inputs and outputs"):
        mixlist.export(None, plan, "ort")


def test_an_unnamed_node_that_needs_a_rule_is_an_exception() -> None:
    source = model("g (float[2] x) => (float[2] y) { [low] a = Exp(x) y = Exp(a) }")
    result = mixlist.export(source, policy(white=["Exp"], rules=keep("Exp_0")), "atc")
    assert [str(item.node) for item in result.exceptions] == ["Exp_0"]
    assert "no rule can name it" in result.exceptions[0].why


def test_a_library_in_onnx_names_is_refused() -> None:
    with pytest.raises(mixlist.MixlistError, match="is in ONNX names, and atc has Ascend names"):
        mixlist.export(model(TEXT), policy(), "atc", library="onnx")
    with pytest.raises(mixlist.MixlistError, match="ort has no operator library"):
        mixlist.export(model(TEXT), policy(), "ort", library="ascend910b")


def test_a_folder_that_holds_something_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("text")
    result = mixlist.export(model(TEXT), policy(black=["MatMul"]), "atc")
    with pytest.raises(mixlist.MixlistError, match="is not empty"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(mixlist.MixlistError, match="ort reads no files"):
        mixlist.export(model(TEXT), policy(), "ort").save(tmp_path / "new")


def test_the_lists_of_hifloat8_are_exported_as_they_are(tmp_path: Path) -> None:
    """Rule S3.9: The modes in HiFloat8 have lists, but no plan."""
    library, edits = tmp_path / "aic-ascend950-ops-info.json", {"white-list": {"to-add": ["Add"]}}
    library.write_text((data_folder("sample_lists") / "presets" / "ascend910b.json").read_text("utf-8"))
    (tmp_path / "modify.json").write_text(json.dumps(edits))
    (tmp_path / "keep.cfg").write_text("m\nOpType::Relu\n")
    options = {"precision_mode_v2": "mixed_hif8", "keep_dtype": tmp_path / "keep.cfg"}
    lists = mixlist.load_policy(ops_info=library, mixlist=tmp_path / "modify.json", **options)  # type: ignore[arg-type]
    result = mixlist.export(model(TEXT), lists, "atc")
    assert (result.lists["modify_mixlist"], result.lists["keep_dtype"]) == (edits, ["m", "OpType::Relu"])
    assert result.precision == "hifloat8" and not result.exceptions
    assert (
        "--precision_mode_v2=mixed_hif8 \\\n  --is_weight_clip=1 \\\n  --modify_mixlist=modify_mixlist.json"
        in result.call
    )
    assert set(result.files) == {"modify_mixlist.json", "keep_dtype.cfg", "atc.sh"}


def test_lists_in_onnx_names_are_no_lists_of_hifloat8() -> None:
    with pytest.raises(UsageError, match="needs lists in the names of the chip"):
        mixlist.export(model(TEXT), mixlist.load_policy(precision_mode_v2="mixed_hif8"), "atc")
    command = mixlist.export(model(TEXT), mixlist.load_policy(precision_mode_v2="cube_hif8"), "atc").call
    assert command.endswith("--precision_mode_v2=cube_hif8 \\\n  --is_weight_clip=1\n")


def test_an_opset_without_bfloat16_is_named() -> None:
    """atc does not ask for the opset, so the plan says less than the chip does."""
    for opset, count in ((9, 1), (22, 0)):
        graph = "g (float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] y) { [c] y = Conv(x, w) }"
        source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')
        lists = mixlist.load_policy(ops_info="ascend910b", precision_mode_v2="mixed_bfloat16")
        result = mixlist.export(source, lists, "atc")
        assert sum("refuses bfloat16" in note for note in result.notes) == count
