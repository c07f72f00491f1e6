"""Rule S6.10: a matrix operator reads the low type and writes float32, as the matrix unit of an Ascend chip does.

``OpType::MatMulV2:InputDtype:float16,float16,float32,OutputDtype:float32`` is a line that people run on chips.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

import mixlist
from mixlist.errors import MixlistError
from tests.support.builders import model
from tests.support.reference import Reference
from tests.support.reference_compare import differences

LINE = "OpType::MatMulV2:InputDtype:float16,float16,float32,OutputDtype:float32\n"
RNG = np.random.default_rng(3)
WEIGHT, BIAS = (RNG.normal(size=size).astype(np.float32) for size in ((8, 8), (8,)))


def network(bias: bool = True) -> onnx.ModelProto:
    """Return ``y = Relu(Gemm(x, w, b))``; the sums of Gemm exceed float16 for x around 3e4."""
    product = "Gemm(x, w, b)" if bias else "Gemm(x, w)"
    weight, addend = (", ".join(map(str, array.ravel().tolist())) for array in (WEIGHT, BIAS))
    constants = f"float[8,8] w = {{{weight}}}" + (f", float[8] b = {{{addend}}}" if bias else "")
    return model(f"g (float[4,8] x) => (float[4,8] y) <{constants}> {{ [g] h = {product} [r] y = Relu(h) }}")


def load(tmp_path: Path, line: str = LINE, library: str = "ascend910b", **options: str) -> mixlist.Policy:
    (tmp_path / "rules.txt").write_text(line)
    return mixlist.load_policy(library, customize_dtypes=tmp_path / "rules.txt", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["mixed_float16", "origin"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_factors_are_rounded_and_the_sums_are_float32(tmp_path: Path, mode: str, bias: bool) -> None:
    policy = load(tmp_path, precision_mode_v2=mode)
    source = network(bias)
    result = mixlist.rewrite(source, mixlist.resolve(source, policy))
    onnx.checker.check_model(result.model, full_check=True)
    x = (RNG.normal(size=(4, 8)) * 3e4).astype(np.float32)
    low_x = x.clip(-65504, 65504).astype(np.float16).astype(np.float32)
    (y,) = onnx.reference.ReferenceEvaluator(result.model).run(None, {"x": low_x})
    expected = np.maximum(low_x @ WEIGHT.astype(np.float16).astype(np.float32) + (BIAS if bias else 0), 0)
    assert expected.max() > 65504 and np.allclose(y, expected, rtol=1e-5, atol=1e-2)
    again = mixlist.rewrite(result.model, mixlist.resolve(result.model, policy)).model
    assert again.SerializeToString() == result.model.SerializeToString()


def test_check_sees_the_loss_of_the_factors_alone(tmp_path: Path) -> None:
    policy, source = load(tmp_path), network()
    batch = {"x": np.full((4, 8), 3e4, np.float32)}
    assert mixlist.check(source, policy, data=[batch]).verdict == "pass"
    batch = {"x": np.full((4, 8), 7e4, np.float32)}
    report = mixlist.check(source, policy, data=[batch])
    assert report.verdict == "fail"
    finding = report.nodes[0]
    assert (finding.name, finding.kind, finding.first, finding.input) == ("g", "overflow", True, "x")


def test_the_rule_is_exported_unchanged(tmp_path: Path) -> None:
    result = mixlist.export(network(), load(tmp_path), "atc")
    assert result.files["customize_dtypes.cfg"] == LINE and not result.exceptions


@pytest.mark.parametrize(
    ("line", "library"),
    [
        (LINE.replace("MatMulV2", "Gemm"), "onnx"),
        ("OpType::Relu:InputDtype:float16,OutputDtype:float32\n", "ascend910b"),
        (LINE.replace("float16,float16", "float16,float32"), "ascend910b"),
        (LINE.replace("float32\n", "float16\n"), "ascend910b"),
    ],
)
def test_other_mixtures_stay_errors(tmp_path: Path, line: str, library: str) -> None:
    """Rule S6.7: A rule that the schema refuses is an error."""
    with pytest.raises(MixlistError, match="must agree"):
        mixlist.resolve(network(), load(tmp_path, line, library))


def test_one_type_for_three_inputs_warns(tmp_path: Path) -> None:
    short = "OpType::MatMulV2:InputDtype:float16,OutputDtype:float16\n"
    codes = [warning.code for warning in mixlist.resolve(network(), load(tmp_path, short)).warnings]
    assert codes == ["ML311"]
    assert "ML311" not in [warning.code for warning in mixlist.resolve(network(), load(tmp_path)).warnings]


def test_the_reference_decides_alike(tmp_path: Path) -> None:
    policy, source = load(tmp_path, LINE.replace("OpType::MatMulV2:", "g::")), network()
    reference = Reference(source, policy)
    reference.solve()
    plan = mixlist.resolve(source, policy)
    assert [decision.precision for decision in plan.nodes] == ["float32", "float32"]
    assert not differences(plan, {node: reference.decided(node) for node in reference.nodes})
