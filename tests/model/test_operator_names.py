"""Rules S5.3 and S5.6: the names of operators in the Ascend libraries."""

from __future__ import annotations

from mixlist.model.operator_names import ambiguous_names, ascend_names, onnx_ops_of


def test_domains_of_plugins() -> None:
    assert ascend_names("npu", "NPURmsNorm") == ("RmsNorm",)
    assert ascend_names("mmdeploy", "RoiAlignRotated") == ("RoiAlignRotated",)
    assert ascend_names("unknown", "NPURmsNorm") == ()
    assert onnx_ops_of("Conv2D") == ["Conv"]
    assert onnx_ops_of("BatchMatMulV2") == ["MatMul"]


def test_names_that_mean_another_op_in_the_other_space() -> None:
    expected = {"MatMul", "Div", "Gather", "Concat", "Slice", "Pad", "GridSample", "Scatter", "Upsample"}
    assert ambiguous_names() == expected  # as the map of today has them
