"""The lists and node rules that ``recover`` finds behind models that other tools write (Rules S11.2 to S11.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper

import mixlist
from mixlist.errors import FileError, ModelError, UsageError
from mixlist.lists.fmt import format_text
from tests.support.builders import apply, customize, model, policy
from tests.support.package import data_folder

CHAIN = """
g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
{ [mul] a = MatMul(x, w) [exp] b = Exp(a) [relu] c = Relu(b) [soft] d = Softmax(c) [add] y = Add(d, a) }
"""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def recover(original: onnx.ModelProto, mixed: onnx.ModelProto, **options: Any) -> mixlist.RecoverReport:
    """Recover, and check that the texts are canonical and give the report's decisions."""
    report = mixlist.recover(original, mixed, **options)
    assert format_text(report.modify_mixlist, "list", "modify-mixlist") == report.modify_mixlist
    assert format_text(report.customize_dtypes, "rules", "customize-dtypes") == report.customize_dtypes
    schema = json.loads((data_folder("schemas") / "recover.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(json.loads(json.dumps(report.to_json())))
    assert report.complete == (not report.exceptions)
    return report


def decide(report: mixlist.RecoverReport, original: onnx.ModelProto, folder: Path, **options: Any) -> dict[str, str]:
    """Return the precision of each node under the written files."""
    lists, rules = folder / "list.json", folder / "rules.txt"
    report.save(lists, rules, force=True)
    found = mixlist.load_policy(
        mixlist=lists,
        customize_dtypes=rules,
        precision_mode_v2=report.precision_mode_v2,
        constants=report.constants,
        protect=report.protect,
        **options,
    )
    return {node.name: node.precision for node in mixlist.resolve(original, found).nodes}


def edits(report: mixlist.RecoverReport) -> dict[str, tuple[str, str]]:
    return {edit.name: (edit.before, edit.after) for edit in report.edits}


def exceptions(report: mixlist.RecoverReport) -> dict[str, str]:
    return {node.name: node.why for node in report.exceptions}


def half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which everything that is float32 is float16, as converters without a block list do."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    graph.ClearField("value_info")
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype("float16")
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return changed


# --- lists ---


def test_op_types_move_to_the_lists_that_the_other_tool_behaves_by(tmp_path: Path) -> None:
    original = model(CHAIN)
    mixed = apply(original, policy(white=["MatMul", "Softmax", "Add"], black=["Exp", "Relu"]))
    report = recover(original, mixed)
    assert report.complete and report.customize_dtypes == "" and not report.unmatched
    assert edits(report) == {"Softmax": ("black", "white")}  # Exp is black in the library, and Relu follows it
    expected = {"mul": "float16", "exp": "float32", "relu": "float32", "soft": "float16", "add": "float16"}
    assert decide(report, original, tmp_path) == expected
    assert (report.matched, report.differing) == (5, 2)


def test_a_model_in_low_precision_as_a_whole_needs_no_rule() -> None:
    original = model(CHAIN)
    report = recover(original, half(original))
    assert report.complete
    assert edits(report) == {"Exp": ("black", "white"), "Softmax": ("black", "white")}


def test_the_unchanged_model_gives_lists_that_change_nothing(tmp_path: Path) -> None:
    original = model(CHAIN)
    report = recover(original, original)
    assert report.complete
    assert set(decide(report, original, tmp_path).values()) == {"float32"}


@pytest.mark.parametrize(("mode", "low"), [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16")])
def test_the_low_type_is_read_from_the_mixed_model(tmp_path: Path, mode: str, low: str) -> None:
    original = model(CHAIN)
    report = recover(original, apply(original, policy(white=["MatMul"], black=["Exp"], mode=mode)))
    assert report.precision_mode_v2 == mode
    assert decide(report, original, tmp_path)["mul"] == low


def test_lists_over_a_library_of_ascend_names(tmp_path: Path) -> None:
    original = model(CHAIN)
    mixed = apply(original, policy(white=["Exp", "Softmax", "Relu"], black=["MatMul", "Add"]))
    report = recover(original, mixed, ops_info="ascend910b")
    assert report.complete and not report.customize_dtypes
    names = set(edits(report))
    assert "BatchMatMulV2" in names and "MatMul" not in names
    decided = decide(report, original, tmp_path, ops_info="ascend910b")
    assert decided == {"mul": "float32", "exp": "float16", "relu": "float16", "soft": "float16", "add": "float32"}


def test_every_edit_is_needed(tmp_path: Path) -> None:
    """Rule S11.3: without any single edit, a node has other types."""
    original = model(CHAIN.replace("[add] y", "[neg] n = Neg(d) [again] e = Exp(n) [add] y"))
    rules = (customize("again", ["float16"], ["float16"]), customize("neg", ["float32"], ["float32"]))
    mixed = apply(original, policy(white=["MatMul", "Softmax", "Relu"], black=["Exp"], rules=rules))
    report = recover(original, mixed)
    assert report.complete
    expected = decide(report, original, tmp_path)
    kinds = {edit.kind for edit in report.edits}
    assert kinds == {"list", "rule"}
    for edit in report.edits:
        if edit.kind == "list":
            lists = json.loads(report.modify_mixlist)
            for arrays in lists.values():
                for names in arrays.values():
                    names[:] = [name for name in names if name != edit.name]
            other_texts = json.dumps(lists), report.customize_dtypes
        else:
            lines = [line for line in report.customize_dtypes.splitlines() if not line.startswith(f"{edit.name}:")]
            assert len(lines) < len(report.customize_dtypes.splitlines())
            other_texts = report.modify_mixlist, "".join(f"{line}\n" for line in lines)
        (tmp_path / "list.json").write_text(other_texts[0])
        (tmp_path / "rules.txt").write_text(other_texts[1])
        without = mixlist.load_policy(mixlist=tmp_path / "list.json", customize_dtypes=tmp_path / "rules.txt")
        decided = {node.name: node.precision for node in mixlist.resolve(original, without).nodes}
        assert decided != expected, edit


# --- node rules ---


def layers(count: int, low: set[int]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model with Sigmoids ``/layers.i/act/Sigmoid``, and a copy in which those of ``low`` are float16."""
    nodes = [
        helper.make_node("Sigmoid", [f"v{i}"], [f"v{i + 1}"], name=f"/layers.{i}/act/Sigmoid") for i in range(count)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rules = tuple(customize(nodes[i].name, ["float16"], ["float16"]) for i in sorted(low))
    return original, apply(original, policy(black=["Sigmoid"], rules=rules))


def test_a_node_that_differs_from_the_others_of_its_op_type_gets_a_rule(tmp_path: Path) -> None:
    original, mixed = layers(8, {3})
    report = recover(original, mixed)
    assert report.complete
    assert [edit.name for edit in report.edits if edit.kind == "rule"] == ["/layers.3/act/Sigmoid"]
    assert report.customize_dtypes == "/layers.3/act/Sigmoid::InputDtype:float16,OutputDtype:float16\n"
    decided = decide(report, original, tmp_path)
    assert [name for name, precision in decided.items() if precision == "float16"] == ["/layers.3/act/Sigmoid"]


def test_gray_nodes_follow_so_that_one_rule_serves_a_region() -> None:
    original, mixed = layers(20, set(range(5, 15)))
    report = recover(original, mixed)
    assert report.complete
    assert "Sigmoid" not in edits(report)  # it is gray in the library
    assert [edit.name for edit in report.edits if edit.kind == "rule"] == [
        "/layers.15/act/Sigmoid",
        "/layers.5/act/Sigmoid",
    ]


def test_names_that_differ_in_numbers_share_one_rule() -> None:
    text = "".join(
        f"[layers_{i}_a] a{i} = Exp(h{i}) [layers_{i}_b] b{i} = Exp(a{i}) [layers_{i}_c] h{i + 1} = Exp(b{i})"
        for i in range(6)
    )
    original = model(f"g (float[2] h0) => (float[2] h6) {{ {text} }}")
    rules = tuple(customize(f"layers_{i}_b", ["float16"], ["float16"]) for i in range(6))
    report = recover(original, apply(original, policy(black=["Exp"], rules=rules)))
    assert report.complete
    assert report.customize_dtypes == "layers_*_b::InputDtype:float16,OutputDtype:float16\n"
    (rule,) = [edit for edit in report.edits if edit.kind == "rule"]
    assert (rule.nodes, rule.before, rule.after) == (6, "float32", "float16")


def test_shape_arithmetic_that_a_tool_lowers_needs_one_rule_per_op_type() -> None:
    """No list moves shape arithmetic (Rule S4.3), but a rule for its op type does."""
    steps = "".join(f"m{i + 1} = Mul(m{i}, w) " for i in range(6))
    original = model(
        "g (float[N] x) => (float[N] y, float[1] z) <float[1] w = {0.5}>"
        f" {{ s = Shape(x) m0 = Cast<to=1>(s) {steps} z = Identity(m6) y = Mul(x, w) }}"
    )
    report = recover(original, half(original))
    assert report.complete
    assert [edit.name for edit in report.edits if edit.kind == "rule"] == ["Identity_0", "OpType::Mul"]


def test_exceptions_of_a_rule_for_an_op_type_have_rules_by_name(tmp_path: Path) -> None:
    steps = "".join(f"[mul{'abcdefgh'[i]}] m{i + 1} = Mul(m{i}, w) " for i in range(8))
    original = model(
        "g (float[N] x) => (float[N] y, float[1] z) <float[1] w = {0.5}>"
        f" {{ s = Shape(x) m0 = Cast<to=1>(s) {steps} z = Sqrt(m8) [last] y = Mul(x, w) }}"
    )
    rules = tuple(customize(f"mul{letter}", ["float16"], ["float16"]) for letter in "abcdefgh")
    mixed = apply(original, policy(black=["Mul", "Sqrt"], rules=rules))
    report = recover(original, mixed)
    assert report.complete
    assert report.customize_dtypes.splitlines() == [
        "last::InputDtype:float32,float32,OutputDtype:float32",
        "OpType::Mul:InputDtype:float16,OutputDtype:float16",
    ]


# --- constants and protections ---

OUT_OF_RANGE = "g (float[2] x) => (float[2] y) <float c = {1e6}> { [add] a = Add(x, c) [exp] y = Exp(a) }"


def test_constants_are_clamped_if_the_tool_lowers_nodes_that_read_them() -> None:
    original = model(OUT_OF_RANGE)
    mixed = apply(original, policy(white=["Add"], black=["Exp"], constants="clamp"))
    report = recover(original, mixed)
    assert (report.complete, report.constants, report.customize_dtypes) == (True, "clamp", "")


def test_the_given_treatment_of_constants_is_kept_with_a_rule() -> None:
    original = model(OUT_OF_RANGE)
    mixed = apply(original, policy(white=["Add"], black=["Exp"], constants="clamp"))
    report = recover(original, mixed, constants="keep")
    assert report.complete and report.constants == "keep"
    assert report.customize_dtypes == "add::InputDtype:float16,float16,OutputDtype:float16\n"


def test_a_protection_that_the_tool_does_not_have_is_dropped() -> None:
    original = model(
        "g (int64[4] n) => (float[4] y) <float[4] w = {1, 2, 3, 4}>"
        " { p = Cast<to=1>(n) [angle] a = Mul(p, w) [sin] s = Sin(a) [neg] y = Neg(s) }"
    )
    mixed = apply(original, policy(white=["Mul", "Sin", "Neg"]))
    report = recover(original, mixed)
    assert report.complete and report.protect == "masks,quantized"
    kept = recover(original, mixed, protect="masks,positions")
    assert kept.complete and kept.protect == "masks,positions" and kept.customize_dtypes


def test_a_tool_that_breaks_quantized_units_needs_no_protection_of_them() -> None:
    """Rule S4.41: with the protection, rules for single nodes bring the other nodes of the unit back."""
    original = model(
        """<ir_version: 10, opset_import: ["" : 19]>
        g (int8[2, 2] q) => (int8[2, 2] r) <float s = {0.5}, int8 z = {0}, int8[2, 2] w = {1, 2, 3, 4}> {
          [x] x = DequantizeLinear(q, s, z) [w] v = DequantizeLinear(w, s, z)
          [m] m = MatMul(x, v) [r] r = QuantizeLinear(m, s, z) }"""
    )
    mixed = apply(original, policy(white=["MatMul"], black=["QuantizeLinear"]))
    report = recover(original, mixed)
    assert report.complete and report.protect == "masks,positions" and not report.edits
    kept = recover(original, mixed, protect="quantized")
    assert kept.complete and kept.protect == "quantized" and "m::" in kept.customize_dtypes


# --- exceptions ---


def test_a_node_that_computes_with_two_types_is_an_exception() -> None:
    original = model(CHAIN)
    mixed = half(original)
    mixed.graph.initializer[0].CopyFrom(original.graph.initializer[0])  # the weights of MatMul stay float32
    report = recover(original, mixed)
    assert not report.complete
    assert exceptions(report)["mul"] == "it computes with float16 and float32 on type parameter T"


def test_types_that_the_opset_of_the_original_does_not_admit_warn() -> None:
    original = model(CHAIN.replace("Relu", "Mish").replace("g (", '<ir_version: 8, opset_import: ["" : 18]> g (', 1))
    mixed = apply(
        onnx.version_converter.convert_version(original, 22), policy(white=["MatMul", "Mish"], mode="mixed_bfloat16")
    )
    report = recover(original, mixed)
    assert exceptions(report) == {
        "relu": "Mish cannot be bfloat16 at opset 18 of the original; the mixed model has opset 22"
    }
    assert report.precision_mode_v2 == "mixed_bfloat16"
    (warning,) = [warning for warning in report.warnings if warning.code == "ML613"]
    assert "--opset 22" in str(warning.hint)


def test_a_fused_node_has_no_counterpart() -> None:
    original = model(
        "g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 1, 1, 1}>"
        " { [mean] m = ReduceMean<axes=[-1]>(x) [sub] d = Sub(x, m) [scale] s = Mul(d, w) [relu] y = Relu(s) }"
    )
    mixed = half(
        model(
            "g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 1, 1, 1}>"
            " { [fused] s = LayerNormalization(x, w) [relu] y = Relu(s) }"
        )
    )
    report = recover(original, mixed)
    assert [(node.model, node.name, node.op_type) for node in report.exceptions] == [
        ("mixed", "fused", "LayerNormalization")
    ]
    assert {node.name for node in report.unmatched} == {"mean", "sub", "scale"}


def test_a_value_mover_that_a_tool_inserts_does_not_matter() -> None:
    original = model("g (float[2, 2] x) => (float[2, 2] y) { [exp] a = Exp(x) [relu] y = Relu(a) }")
    mixed = half(
        model(
            "g (float[2, 2] x) => (float[2, 2] y)"
            " { [exp] a = Exp(x) [new] b = Transpose(a) [new2] c = Transpose(b) [relu] y = Relu(c) }"
        )
    )
    report = recover(original, mixed)
    assert report.complete and not report.unmatched


def test_an_identity_without_a_name_is_no_node_without_counterpart() -> None:
    original = model(
        "g (float[N, 4] x) => (float[N, 4] y) { [a] c = Exp(x) y = Identity(c) [r] d = Relu(y) [s] e = Relu(d) }"
    )
    rules = policy(white=["Exp", "Relu"])
    report = recover(original, mixlist.rewrite(original, mixlist.resolve(original, rules)).model)
    assert report.complete and not report.unmatched


def test_a_sequence_of_low_elements_is_not_recovered() -> None:
    original = model(
        "g (float[2] x) => (float[2] y)"
        " { [a] a = Exp(x) [s] s = SequenceConstruct(a, a) [at] b = SequenceAt(s, i) [y] y = Relu(b) }".replace(
            "=> (float[2] y)", "=> (float[2] y) <int64 i = {0}>"
        )
    )
    mixed = half(original)
    report = recover(original, mixed)
    assert not report.complete
    assert {node.ref.name: node.why for node in report.exceptions if "S4.29" in node.why}.keys() == {"s", "at"}
    assert "SequenceConstruct" not in report.customize_dtypes


FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[2] x) => (float[2] y, float[2] z)
{ [low] a = Relu(x) [first] y = own.F(a) [high] b = Exp(x) [second] z = own.F(b) }
<domain: "own", opset_import: ["" : 17]> F (a) => (b) { [inner] b = Neg(a) }
"""


def test_a_low_call_of_a_function_is_an_exception() -> None:
    """Rule S4.31: no list gives a call another type than its authored one."""
    original = model(FUNCTION)
    mixed = model(FUNCTION.replace("z = own.F(b)", "bb = Cast<to=10>(b) zz = own.F(bb) z = Cast<to=1>(zz)"))
    report = recover(original, mixed)
    assert not report.complete
    assert exceptions(report).keys() == {"second"}
    assert "its call keeps its types (Rule S4.31)" in exceptions(report)["second"]


def test_nodes_that_no_rule_can_name_are_exceptions() -> None:
    """A name with a star is a pattern in a rule. One of the two nodes needs a rule under every list of Exp."""
    original = model("g (float[2] x) => (float[2] y) { [a] a = Exp(x) [b] b = Exp(a) [c] y = Exp(b) }")
    mixed = apply(original, policy(black=["Exp"], rules=(customize("b", ["float16"], ["float16"]),)))
    for proto in (original, mixed):
        for node in proto.graph.node:
            node.name = f"{node.name}*" if node.op_type == "Exp" else node.name
    report = recover(original, mixed)
    assert exceptions(report) == {"b*": "no node rule can name it: its name is not unique, or reads as a pattern"}
    assert report.customize_dtypes == ""


# --- usage ---


def test_models_that_have_nothing_in_common_are_refused() -> None:
    original = model("g (float[2] x) => (float[2] y) { [a] y = Exp(x) }")
    with pytest.raises(ModelError, match=r"no node of .* corresponds"):
        mixlist.recover(original, model("g (int64[2] i) => (int64[2] j) { [b] j = Abs(i) }"))


def test_wrong_options_are_refused_before_the_models_are_read() -> None:
    with pytest.raises(UsageError, match="--gray-policy"):
        mixlist.recover("missing.onnx", "missing.onnx", gray_policy="purple")
    with pytest.raises(FileError, match=r"missing\.onnx"):
        mixlist.recover("missing.onnx", "missing.onnx")


def test_files_are_written_together_and_replaced_only_with_force(tmp_path: Path) -> None:
    original, mixed = layers(8, {3})
    report = recover(original, mixed)
    with pytest.raises(UsageError, match="node rules"):
        report.save(tmp_path / "list.json")
    with pytest.raises(UsageError, match="both"):
        report.save(tmp_path / "one", tmp_path / "one")
    report.save(tmp_path / "list.json", tmp_path / "rules.txt")
    assert (tmp_path / "list.json").read_text() == report.modify_mixlist
    with pytest.raises(FileError, match="exists"):
        report.save(tmp_path / "list.json", tmp_path / "rules.txt")
    report.save(tmp_path / "list.json", tmp_path / "rules.txt", force=True)


def test_rows_of_a_report() -> None:
    original, mixed = layers(8, {3})
    report = recover(original, mixed)
    assert report.to_rows()[-1] == {
        "kind": "rule",
        "name": "/layers.3/act/Sigmoid",
        "before": "float32",
        "after": "float16",
        "nodes": 1,
    }
    assert report.to_rows("exceptions") == report.to_rows("unmatched") == []
    with pytest.raises(UsageError, match="there is no table 'nodes'"):
        report.to_rows("nodes")


def test_a_report_prints_as_one_line() -> None:
    original, mixed = layers(8, {3})
    assert repr(mixlist.recover(original, mixed)).startswith("<RecoverReport of 'g': complete; matched 8, edits ")


def test_a_model_without_nodes_needs_nothing() -> None:
    original = model("g (float[2] x) => (float[2] x) {}")
    report = recover(original, original)
    assert report.complete and report.edits == ()
