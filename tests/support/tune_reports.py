"""Tune reports made by hand, for the tests of what shows them."""

from __future__ import annotations

from dataclasses import replace

from mixlist import TunedEdit, TuneReport

from .check_reports import FAILING, PASSING

EXP = TunedEdit("Exp", "white", "/a/Exp overflows", 3, 0.0, "overflow at /a/Exp, in 1 or more of 4 batches")
CONV = TunedEdit("Conv", "gray", "/b/Conv adds an error of 0.1", 1, 0.125, "output 'y': cosine")

TUNED = TuneReport(
    model="good.onnx",
    verdict="pass",
    complete=True,
    minimal=True,
    reasons=("the lists keep every limit",),
    edits=(EXP, CONV),
    modify_mixlist='{"black-list": {"to-add": ["Conv", "Exp"]}}\n',
    low_share={"base": 1.0, "tuned": 0.95},
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
KEEPS_LITTLE = replace(
    TUNED,
    low_share={"base": 1.0, "tuned": 0.125},
    next_command="mixlist convert good.onnx -o mixed.onnx",
    validation=PASSING,
    log=(
        {"edits": [], "passed": False, "why": "overflow at /a/Exp", "remembered": False},
        {"edits": ["Exp: white to black"], "passed": True, "why": "", "remembered": True},
    ),
)
