"""Check reports made by hand, for the tests of what shows them."""

from __future__ import annotations

import math
from dataclasses import replace

from mixlist import CheckReport, NodeError, NodeFinding, OutputFinding, TensorRange
from mixlist.diagnostics import warning

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SUGGESTION = '{"black-list": {"to-add": ["Pow"]}, "white-list": {"to-remove": ["Pow"]}}'


def finding(name: str, kind: str = "overflow", **changed: object) -> NodeFinding:
    node_finding = NodeFinding(
        scope="",
        name=name,
        op_type="Pow",
        tensor=f"{name}_output_0",
        kind=kind,  # type: ignore[arg-type]
        first=kind == "overflow",
        count=12,
        batches=(2,),
        max_abs_fp32=3.2e9,
        max_abs_low=math.inf,
        list="white",
        source="white by library onnx (Pow)",
        suggestion=SUGGESTION,
    )
    return replace(node_finding, **changed)  # type: ignore[arg-type]


def output(name: str = "y", passed: bool = True, **changed: object) -> OutputFinding:
    output_finding = OutputFinding(
        name, 0.002, 0.03, 2e-4, 0.99999998, 73.6, None, 0.98, passed, () if passed else ("cosine",)
    )
    return replace(output_finding, **changed)  # type: ignore[arg-type]


def tensor(name: str, maximum: float, **changed: object) -> TensorRange:
    tensor_range = TensorRange("", name, name, "MatMul", True, -maximum / 2, maximum, -maximum / 2, maximum)
    return replace(tensor_range, **changed)  # type: ignore[arg-type]


PASSING = CheckReport(
    model="good.onnx",
    verdict="pass",
    reasons=("no overflow in 4 batches", "all outputs are within their limits"),
    provider="cpu",
    mode="emulated",
    precision="float16",
    batches=4,
    exception_rate=0.0,
    limits={"normalized": 0.01, "cosine": 0.999, "exception_rate": 0.005},
    nodes=(),
    outputs=(output(),),
)

FAILING = CheckReport(
    model="models/melspec.onnx",
    verdict="fail",
    reasons=("1 of 5 batches overflowed: 20 %, and 0.5 % fails", "output 'mel' breaks its limits: normalized, cosine"),
    provider="cpu",
    mode="emulated",
    precision="float16",
    batches=5,
    exception_rate=0.2,
    limits={"normalized": 0.01, "cosine": 0.999, "exception_rate": 0.005},
    nodes=(
        finding(
            "/mel/Sqrt",
            "propagated",
            op_type="Sqrt",
            list="gray",
            source="gray by library onnx (Sqrt): follows /mel/Pow, whose output is float16",
            suggestion="",
        ),
        finding("/mel/Pow"),
        finding("/If/Mul", scope="If_0/then_branch", op_type="Mul", batches=(2, 4), count=None),
        finding(
            "/norm/LayerNorm",
            "internal-risk",
            op_type="LayerNormalization",
            max_abs_low=210.0,
            suggestion="",
            inside=True,
        ),
        finding("/attn/Softmax", "near-limit", op_type="Softmax", max_abs_fp32=4.1e4, max_abs_low=4.1e4),
        finding("/mask/Where", "intended", op_type="Where", max_abs_fp32=math.inf, suggestion=""),
    ),
    outputs=(
        OutputFinding(
            "mel", math.inf, math.inf, math.inf, math.nan, -math.inf, None, 0.8, False, ("normalized", "cosine")
        ),
        output("ids", mismatches=0.0004, top1=None),
    ),
    tensors=(
        tensor("x", 3.0e4, low=False, op_type=""),
        tensor("/mel/Pow_output_0", 3.2e9, low_maximum=math.inf),
        tensor("/mel/Sqrt_output_0", 5.6e4),
        tensor("/norm/LayerNorm_output_0", 14.0),
        tensor("/tiny/Mul_output_0", 3e-6),
        tensor("/zero/Mul_output_0", 0.0),
        tensor("/mask/Where_output_0", 0.0, minimum=-math.inf, low_minimum=-math.inf),
    ),
    layerwise=(NodeError("", "/mel/Pow", "Pow", math.inf), NodeError("", "/attn/Softmax", "Softmax", 3e-4)),
    warnings=(warning("ML603", "12 of 400 values of 'mel' are NaN in the reference and do not count"),),
    seconds={"resolve": 0.04, "prepare": 0.31, "reference": 1.2, "mixed": 2.3},
)


def large(nodes: int = 5000) -> CheckReport:
    """A report on a model with that many nodes, 1 % of them overflowing, and a few names out to do harm."""
    tensors, findings = [], []
    for at in range(nodes):
        name = f"/encoder/layer.{at // 40}/op_{at}"
        if at % 1000 == 7:
            name += EVIL
        size = 2.0 ** (((at * 7919) % 300) / 10 - 8)
        over = size > 65504
        low = at % 3 != 0
        high = math.inf if over and low else size
        tensors.append(tensor(f"{name}_output_0", size, low=low, low_maximum=high))
        if low and over:
            first = at % 40 == 7
            findings.append(finding(name, "overflow" if first else "propagated", first=first))
        elif low and size > 32752:
            findings.append(finding(name, "near-limit", max_abs_fp32=size, max_abs_low=size))
    return replace(FAILING, tensors=tuple(tensors), nodes=tuple(findings))
