"""List files of public projects, rebuilt, through ``validate``, ``resolve`` and the export for ATC.

The files come from MindSpore Lite and ATC conversions of language and vision models, and from the documents of CANN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mixlist
from mixlist.errors import ListError
from tests.support.builders import model

LIBRARY = "ascend910b"
# By name: the text, the codes that ``validate`` finds, and the precision of nodes of MODEL that the file decides.
LISTS: dict[str, tuple[str, set[str], dict[str, str]]] = {
    "a prefix encoder": (
        '{"black-list": {"to-add": ["Square", "Add"]}}',
        set(),
        {"square": "float32", "mul_self": "float32", "add": "float32", "product": "float16"},
    ),
    "a denoiser": (
        '{"black-list": {"to-add": ["Square"]}}',
        set(),
        {"square": "float32", "mul_self": "float32", "add": "float32", "product": "float16"},
    ),
    "a decoder with RMS norms": (
        '{"black-list": {"to-add": ["RealDiv", "SquareSumV1", "Square", "Sqrt", "ReduceMean"]}}',
        set(),
        {"square": "float32", "mean": "float32", "root": "float32", "div": "float32", "product": "float16"},
    ),
    "a slow sum": ('{"black-list": {"to-add": ["ReduceSumD"]}}', set(), {"product": "float16"}),
    "the document's example": (
        '{\n  "black-list": { // Blocklist\n    "to-remove": ["Xlog1py"],\n    "to-add": ["MatMul", "Cast"]\n  },\n'
        '  "white-list": {"to-remove": ["Conv2D"], "to-add": ["Bias"]}\n}\n',
        {"ML006", "ML405"},
        {},
    ),
}
# None: a model in float32 has no such kernel, so that ``resolve`` refuses the file.
CUSTOM: dict[str, tuple[str, set[str], dict[str, str] | None]] = {
    "products that add in float32": (
        "OpType::MatMulV2:InputDtype:float16,float16,float32,OutputDtype:float32\n"
        "OpType::BatchMatMulV2:InputDtype:float16,float16,OutputDtype:float32\n",
        set(),
        {"gemm": "float32", "product": "float32"},
    ),
    "one type for two inputs": (
        "OpType::MatMulV2:InputDtype:float16,OutputDtype:float16\n",
        set(),
        {"gemm": "float16"},
    ),
    "the document's example": (
        "relu::InputDtype:float16,OutputDtype:int8\nOpType::Relu:InputDtype:float16,OutputDtype:int8\n",
        set(),
        None,
    ),
}
MODEL = """g (float[4, 8] x, float[8, 8] w, float[8] c) => (float[4, 8] y) <float two = {2}, float eps = {0.00001}> {
    [relu] h = Relu(x) [gemm] g = Gemm(h, w, c) [product] p = MatMul(g, w)
    [square] q = Pow(p, two) [mul_self] s = Mul(p, p) [add] a = Add(q, s)
    [mean] m = ReduceMean<axes = [-1]>(a) [eps] e = Add(m, eps) [root] r = Sqrt(e) [div] y = Div(p, r) }"""


def _check(path: Path, option: str, codes: set[str], precisions: dict[str, str] | None) -> None:
    found = mixlist.validate(path, ops_info=LIBRARY)
    assert {finding.code for finding in found.findings} == codes
    if any(finding.severity == "error" for finding in found.findings):
        return
    options: dict[str, Any] = {option: path}
    policy = mixlist.load_policy(ops_info=LIBRARY, **options)
    if precisions is None:
        with pytest.raises(ListError, match="the rule asks for int8"):
            mixlist.resolve(model(MODEL), policy)
        return
    decided = {node.name: node.precision for node in mixlist.resolve(model(MODEL), policy).nodes}
    assert {name: decided[name] for name in precisions} == precisions
    exported = mixlist.export(model(MODEL), policy, "atc")
    assert exported.exceptions == ()


@pytest.mark.parametrize("name", LISTS)
def test_a_public_list(name: str, tmp_path: Path) -> None:
    text, codes, precisions = LISTS[name]
    (tmp_path / "ops_info.json").write_text(text)
    _check(tmp_path / "ops_info.json", "mixlist", codes, precisions)


@pytest.mark.parametrize("name", CUSTOM)
def test_a_public_file_of_types(name: str, tmp_path: Path) -> None:
    text, codes, precisions = CUSTOM[name]
    (tmp_path / "customize_dtypes.cfg").write_text(text)
    _check(tmp_path / "customize_dtypes.cfg", "customize_dtypes", codes, precisions)


def test_a_configuration_names_its_list(tmp_path: Path) -> None:
    """MindSpore Lite reads the list from the section of its builder."""
    path = tmp_path / "config.ini"
    path.write_text('[acl_build_options]\nge.exec.precision_mode=mix\nge.exec.modify_mixlist="./op_fp32.json"\n')
    (finding,) = mixlist.validate(path).findings
    assert finding.code == "ML016" and "./op_fp32.json" in (finding.hint or "")
