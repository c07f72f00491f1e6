"""Reports of convert for tests of their text, their tables and their pages."""

from __future__ import annotations

from dataclasses import replace

from mixlist import ConvertReport, ConvertTrial, HighNode, ModelSize
from mixlist.checker.result import NOTHING_LOW_REASON
from tests.support import check_reports

HIGH = HighNode(
    "", "/encoder/layer.0/attention/MatMul", "MatMul", True, "its values reach 2.88e+08, beyond the range of float16"
)
KEPT = HighNode("loop/body", "norm", "ReduceSum", False, "black by library onnx (ReduceSum): keeps float32 (S4.5)")
CONVERTED = ConvertReport(
    model="model.onnx",
    precision="float16",
    verdict="pass",
    reasons=("no batch overflowed and every output keeps its limits",),
    random_data=False,
    batches=4,
    before=ModelSize(80, 0, 0.0, 61_000_000, 12_000_000, 2),
    after=ModelSize(80, 78, 0.976, 31_500_000, 6_100_000, 6),
    high_nodes=(HIGH, KEPT),
    customize_dtypes="/encoder/layer.0/attention/MatMul::InputDtype:float32,float32,OutputDtype:float32\n",
    trials=2,
    check=check_reports.PASSING,
    log=(
        ConvertTrial(80, 1.0, 30_000_000, False, "overflow at /encoder/layer.0/attention/MatMul"),
        ConvertTrial(79, 1.0, 30_500_000, False, "output 'y': normalized 0.04 (limit 0.01)", 0.04),
        ConvertTrial(78, 0.976, 31_500_000, True, "", 0.0085),
    ),
    joined=("batches/3.npz",),
    next_command="mixlist apply model.onnx --customize-dtypes keep.txt -o mixed.onnx",
    seconds={"check of the lists": 1.5, "search": 3.25},
)
# Little is low, and other limits would give more.
LITTLE = replace(
    CONVERTED,
    after=ModelSize(80, 20, 0.07, 60_100_000, 11_800_000, 9),
    advice=("values overflow behind input 'x', which reaches 32767, as 16-bit samples do",),
    random_data=True,
    next_command="",
)
WITHOUT_RESULT = replace(
    CONVERTED,
    verdict="fail",
    reasons=("every choice of low nodes that was tried misses a limit",),
    after=None,
    high_nodes=(),
    customize_dtypes="",
    check=check_reports.FAILING,
    next_command="",
)
_CHECK = replace(check_reports.PASSING, verdict="inconclusive", reasons=(NOTHING_LOW_REASON,))
NOTHING_LOW = replace(
    CONVERTED,
    verdict="inconclusive",
    reasons=_CHECK.reasons,
    check=_CHECK,
    after=ModelSize(80, 0, 0.0, 61_000_000, 12_000_000, 2),
    log=(),
    trials=0,
)
