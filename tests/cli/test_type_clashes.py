"""Every command names the node, the slots and the types of a clash (Rule S4.52)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.conftest import Run
from tests.support.builders import model

CONV = "g (bfloat16[1,1,4,4] x, bfloat16[1,1,1,1] w) => (bfloat16[1,1,4,4] y) { [c] y = Conv(x, w) }"
CLASH = "g (float[4] x) => (float[4] y) <float16[4] k = {1,2,3,4}> { [a] y = Add(x, k) }"


@pytest.mark.parametrize("command", ["apply", "check", "convert", "tune", "repair", "resolve", "view", "bench"])
def test_every_command_refuses_a_clash(command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(CONV, check=False), "conv.onnx")
    onnx.save(model(CLASH, check=False), "clash.onnx")
    outputs = [] if command in ("check", "resolve", "bench") else ["-o", "out"]
    data = [] if command in ("apply", "resolve", "view") else ["--random", "1"]
    # A model that has no low node once its types are corrected needs no data.
    data_of_clash = [] if command == "repair" else data
    refused = run(command, "conv.onnx", *outputs, *data)
    assert refused.status == 2
    assert "node 'c' (Conv) reads bfloat16 'x' at input 0, which opset 17 does not admit\n" in refused.err
    assert "--opset 22" in refused.err
    assert not Path("out").exists()
    clash = run(command, "clash.onnx", *outputs, *data_of_clash)
    assert clash.status == (0 if command == "repair" else 2)
    message = "node 'a' (Add) reads float32 'x' at input 0 and float16 'k' at input 1, which must have one type"
    assert message in (clash.out if command == "repair" else clash.err)
    assert Path("out").exists() == (command == "repair")
    assert run("apply", "conv.onnx", "-o", "converted.onnx", "--opset", "22").status == 0


REFUSED = [  # the model, the clash, and the Cast that is missing
    (
        "g (float[2,2] x, int32[2,2] i) => (float[2,2] y) { [a] y = MatMul(x, i) }",
        "node 'a' (MatMul) reads float32 'x' at input 0 and int32 'i' at input 1, which must have one type",
        "insert a Cast of 'i' to float32",
    ),
    (
        "g (int64[4] i, int32[4] j) => (int64[4] y) { [a] y = Add(i, j) }",
        "node 'a' (Add) reads int64 'i' at input 0 and int32 'j' at input 1, which must have one type",
        "insert a Cast of 'j' to int64",
    ),
    (
        "g (int64[4] i) => (float[4] y) { [a] y = Exp(i) }",
        "node 'a' (Exp) reads int64 'i' at input 0, which opset 17 does not admit",
        "insert a Cast of 'i' to float32: no opset of Exp admits the type",
    ),
    (
        "g (float[4] x, int32[2] i) => (float[2,2] y) { [a] y = Reshape(x, i) }",
        "node 'a' (Reshape) reads int32 'i' at input 1, which opset 17 does not admit",
        "insert a Cast of 'i' to int64: no opset of Reshape admits the type",
    ),
    (
        "g (float[4] x, float[4] c) => (float[4] y) { [a] y = Where(c, x, x) }",
        "node 'a' (Where) reads float32 'c' at input 0, which opset 17 does not admit",
        "insert a Cast of 'c' to bool: no opset of Where admits the type",
    ),
    (
        "g (float[4] x) => (int64[4] y) { [a] y = Exp(x) }",
        "the graph output 'y' is declared int64, but node 'a' (Exp) makes it float32",
        "declare the type that the node makes, or insert a Cast behind the node",
    ),
    (
        "g (int64[4] x) => (float[4] y) <int64 n = {3}, bool b = {1}> {"
        " [l] y = Loop (n, b, x) <body = l (int64 i, bool c, float[4] s) => (bool d, float[4] t)"
        " { [d] d = Identity(c) [t] t = Cast<to=1>(s) }> }",
        "(op_type:Loop, node name: l): Input element type of float32 does not match existing output type of int64",
        "correct this node, or what it reads",
    ),
    (  # repair corrects the float16 constant, and then meets the integer
        "g (float[4] x, int64[4] i) => (float[4] y) <float16[4] k = {1,2,3,4}> { [b] b = Add(x, k) [a] y = Mul(b, i) }",
        "node 'a' (Mul) reads float32 'b' at input 0 and int64 'i' at input 1, which must have one type",
        "insert a Cast of 'i' to float32",
    ),
]


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED)
def test_no_command_guesses_a_cast_between_floats_and_integers(
    text: str, message: str, hint: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(text, check=False), "m.onnx")
    refused = run("repair", "m.onnx", "-o", "out.onnx", "--random", "1")
    assert refused.status == 2 and not Path("out.onnx").exists()
    assert message in refused.err and hint in refused.err
    applied = run("apply", "m.onnx", "-o", "out.onnx")
    assert applied.status == 2 and not Path("out.onnx").exists()
    assert message in applied.err or "float16 'k'" in applied.err


@pytest.mark.parametrize(
    ("output", "nodes", "step"),
    [
        # No node rule changes the Cast, whose result is infinite. In the other model, it is an output.
        (
            "float[4] y",
            "[p] p = Mul(a, a) [o] o = Cast<to=10>(p) [n] n = Neg(o) [d] y = Cast<to=1>(n)",
            "Convert the float32 model with mixlist convert, if you have it.",
        ),
        ("float16[4] n", "[g] g = Neg(h) [n] n = Mul(g, g)", "Output 'n' is beyond float16: add --io float32:"),
    ],
)
def test_nothing_is_written_without_a_repair(
    output: str, nodes: str, step: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = "<float16[4] k = {1,2,3,4}> { [a] a = Add(x, k) [c] h = Cast<to=10>(a)"
    text = f"g (float[4] x) => ({output}) {start} {nodes} }}"
    onnx.save(model(text, check=False), "m.onnx")
    np.savez("data.npz", x=np.full(4, 300, np.float32))
    completed = run("repair", "m.onnx", "-o", "out.onnx", "--data", "data.npz", "--jobs", "1")
    assert completed.status == 1 and completed.err == "nothing was written\n"
    assert completed.out.startswith("FAIL  m.onnx: no repair\n") and "error before" not in completed.out
    assert f"\n  {step}" in completed.out
    assert not Path("out.onnx").exists()
    for line in completed.out.splitlines():
        if line.startswith("    mixlist "):
            assert run(*line.split()[1:]).status == 0


def test_a_limit_that_is_too_small_can_be_set(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "g (float[4] x) => (float[4] y) { [c] h = Cast<to=10>(x) [s] n = Softmax(h) [d] y = Cast<to=1>(n) }"
    onnx.save(model(text, check=False), "m.onnx")
    limit = ("--max-normalized-error", "1e-9")
    completed = run("repair", "m.onnx", "-o", "out.onnx", "--random", "1", "--jobs", "1", *limit)
    assert completed.status == 1 and not Path("out.onnx").exists()
    step = "Convert the float32 model with mixlist convert, if you have it, or set limits that the model can keep."
    assert step in completed.out


def test_an_invalid_float16_model_is_to_be_converted_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, float_type in (("low", "float16"), ("high", "float")):
        text = f"g ({float_type}[4,5] x, {float_type}[4,4] w) => ({float_type}[4,4] y) {{ [m] y = MatMul(x, w) }}"
        onnx.save(model(text, check=False), f"{name}.onnx")
    hint = "convert the float32 one with mixlist convert"
    assert hint in run("repair", "low.onnx", "-o", "out.onnx", "--random", "1").err
    assert hint not in run("repair", "high.onnx", "-o", "out.onnx", "--random", "1").err


def test_check_says_that_onnxruntime_refuses_the_declarations_of_a_mixed_model(run: Run, tmp_path: Path) -> None:
    """Its types are right under Rule S4.12, so it is judged; but no runtime loads the file."""
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) DECLARED { BODY }'
    body = "h = Cast<to = 10>(x) r = Relu(h) y = Cast<to = 1>(r)"
    files = {"original": ("", "y = Relu(x)"), "right": ("<float16[4] h>", body), "wrong": ("<float[4] h>", body)}
    for name, (declared, nodes) in files.items():
        proto = onnx.parser.parse_model(text.replace("DECLARED", declared).replace("BODY", nodes))
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
    for name in ("right", "wrong"):
        result = run("check", tmp_path / "original.onnx", tmp_path / f"{name}.onnx", "--random", 2)
        assert ("ML623" in result.err) == (name == "wrong") and result.out.startswith("PASS"), result.err
        assert ("and can be used" in result.out) == (name == "right")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if name == "wrong":
            with pytest.raises(Exception, match="does not match expected type"):
                onnxruntime.InferenceSession(tmp_path / "wrong.onnx", options, providers=["CPUExecutionProvider"])


def test_the_output_of_apply_has_no_wrong_declaration(run: Run, tmp_path: Path) -> None:
    """The exporter declares the output of the graph among the inner tensors, too; the new Cast makes it."""
    proto = model("g (float[4,4] x) => (float[4,4] y) { [mm] y = MatMul(x, x) }")
    proto.graph.value_info.append(proto.graph.output[0])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert run("apply", tmp_path / "m.onnx", "-o", tmp_path / "half.onnx").status == 0
    result = run("check", tmp_path / "m.onnx", tmp_path / "half.onnx", "--random", 2)
    assert "ML623" not in result.err and "and can be used" in result.out


def test_repair_casts_what_no_opset_admits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that makes a quantized model float16 leaves DynamicQuantizeLinear a float16 input."""
    monkeypatch.chdir(tmp_path)
    text = "g (float16[2,3] x) => (uint8[2,3] y) { [r] r = Relu(x) [q] y, s, z = DynamicQuantizeLinear(r) }"
    onnx.save(model(text, check=False), "m.onnx")
    refused = run("check", "m.onnx", "--random", "1")
    assert refused.status == 2 and "node 'q' (DynamicQuantizeLinear) reads float16 'r' at input 0" in refused.err
    assert "try mixlist repair" in refused.err
    repaired = run("repair", "m.onnx", "-o", "out.onnx", "--random", "2", "--rules", "rules.txt")
    assert repaired.out.startswith("PASS  m.onnx: 1 type corrected, 0 edits, 0 of 1 float16 node raised to float32\n")
    assert "1 type corrected, so that the model loads\ntensor  what  why\n" in repaired.out
    assert repaired.err == "wrote out.onnx and rules.txt, whose rules are for the model with the corrected types\n"
    onnxruntime.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
