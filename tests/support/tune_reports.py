"""Tune reports made by hand, for the tests of what shows them."""

from __future__ import annotations

from dataclasses import replace

from mixlist import TunedEdit, TunedList, TuneReport

from .check_reports import FAILING, PASSING

EXP = TunedEdit(
    "Exp", "", "white", "black", "/a/Exp overflows", 3, 0.0, "overflow at /a/Exp, in 1 or more of 4 batches"
)
CONV = TunedEdit(
    "Conv", "/b/Conv", "float16", "float32", "/b/Conv adds an error of 0.1", 1, 0.125, "output 'y': cosine"
)
GAIN = TunedEdit("Gemm", "", "black", "white", "", 2, -0.5, "keeps the limits too")

TUNED = TuneReport(
    model="good.onnx",
    objective="min-edits",
    verdict="pass",
    complete=True,
    minimal=True,
    reasons=("the lists keep every limit",),
    edits=(EXP, CONV),
    modify_mixlist='{"black-list": {"to-add": ["Exp"]}}\n',
    customize_dtypes="/b/Conv::InputDtype:float32,OutputDtype:float32\n",
    low_share={"base": 1.0, "tuned": 0.875},
    trials=12,
    remembered=5,
    check=PASSING,
    seconds={"base check": 1.0, "search": 2.5, "final check": 0.25},
)
WITHOUT_LIST = replace(
    TUNED,
    verdict="fail",
    minimal=False,
    reasons=("no list of op types keeps the limits",),
    edits=(),
    modify_mixlist="",
    check=FAILING,
    seconds={"base check": 1.0, "search": 2.5},
)
LISTS_ALONE = TunedList(
    objective="min-edits",
    recommended=False,
    minimal=False,
    edits=(EXP, GAIN),
    modify_mixlist='{"black-list": {"to-add": ["Exp"]}}\n',
    customize_dtypes="",
    low_share=0.125,
    check=PASSING,
    validation=FAILING,
)
WITH_ALTERNATIVE = replace(
    TUNED,
    objective="max-low",
    edits=(CONV,),
    modify_mixlist="{}\n",
    low_share={"base": 1.0, "tuned": 0.95},
    alternative=LISTS_ALONE,
    next_command="mixlist apply good.onnx --mixlist modify.json --customize-dtypes modify.rules.txt -o mixed.onnx",
    validation=PASSING,
    log=(
        {"edits": [], "passed": False, "why": "overflow at /a/Exp", "remembered": False},
        {"edits": ["Exp: white to black"], "passed": True, "why": "", "remembered": True},
    ),
)
