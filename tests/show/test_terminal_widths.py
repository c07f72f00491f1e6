"""Every number and every word of a report is on a terminal of any width: no cell is cut and no word is broken."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from mixlist import (
    OutputErrors,
    RaisedNode,
    RepairEdit,
    RepairReport,
)
from mixlist.cli import demo, main
from mixlist.show import terminal
from mixlist.show.bench_document import bench_document, estimate_document
from mixlist.show.check_document import check_document
from mixlist.show.convert_document import convert_document
from mixlist.show.diff_document import diff_document
from mixlist.show.document import Block, Document, Table
from mixlist.show.repair_document import repair_document
from mixlist.show.train_document import train_document
from mixlist.show.tune_document import tune_document
from tests.show.test_pages import CHANGES
from tests.support import bench_reports, check_reports, convert_reports, train_reports, tune_reports
from tests.support.package import data_folder
from tests.support.pseudo_terminal import written_to_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo terminals")
WIDTHS = (60, 80, 140)
every_width = pytest.mark.parametrize("width", WIDTHS)
ERRORS = OutputErrors(
    "logits", check_reports.FAILING.outputs[0], replace(check_reports.PASSING.outputs[0], cosine=0.99989)
)
RAISED = RaisedNode("", "/encoder/layer.0/attention/MatMul", "MatMul", "float16")
REPAIRED = RepairReport(
    model="model.onnx",
    precision="float16",
    verdict="fail",
    complete=True,
    reasons=("the repaired model does not keep the limits on the validation data",),
    first_offenders=check_reports.FAILING.nodes[1:3],
    edits=(
        RepairEdit("raise", (RAISED, RAISED), "", None, "MatMul overflows", "overflow in 1 or more of 4 batches", 0.1),
        RepairEdit("clip", (), "/encoder/layer.0/attention/Softmax_output_0", 65504.0, "Exp overflows", "", None),
    ),
    errors=(ERRORS,),
    low_nodes=109,
    raised_nodes=2,
    low_share={"base": 1.0, "repaired": 0.9},
    customize_dtypes="",
    trials=12,
    remembered=3,
    check=None,
    seconds={"search": 1.5},
)
DOCUMENTS = {
    "check": check_document(replace(check_reports.FAILING, next_command="mixlist tune m.onnx -o modify.json")),
    "check-passing": check_document(check_reports.PASSING),
    "check-large": check_document(check_reports.large(300)),
    "tune": tune_document(tune_reports.TUNED),
    "tune-keeps-little": tune_document(tune_reports.KEEPS_LITTLE),
    "tune-without-list": tune_document(tune_reports.WITHOUT_LIST),
    "train": train_document(train_reports.FAILING),
    "train-passing": train_document(train_reports.PASSING),
    "train-extreme": train_document(train_reports.EXTREME),
    "bench": bench_document(bench_reports.SLOWER),
    "bench-inconclusive": bench_document(bench_reports.INCONCLUSIVE),
    "bench-not-timed": bench_document(bench_reports.NOT_TIMED),
    "estimate": estimate_document(bench_reports.work("a.onnx", False), bench_reports.work("b.onnx", True)),
    "diff": diff_document(CHANGES),
    "repair": repair_document(REPAIRED),
    "convert": convert_document(convert_reports.CONVERTED),
    "convert-little": convert_document(convert_reports.LITTLE),
    "convert-without-result": convert_document(convert_reports.WITHOUT_RESULT),
}
MODEL = "digits.onnx"
COMMANDS = {
    "validate": ("validate", "digits_mixlist.json", "odd.json", "--ops-info", "ascend910b"),
    "lists": ("lists", "--mixlist", "digits_mixlist.json"),
    "presets": ("presets",),
    "resolve": ("resolve", MODEL, "--mixlist", "digits_mixlist.json", "--all"),
    "explain": ("resolve", MODEL, "--mixlist", "digits_mixlist.json", "--explain", "/energy/Div_1"),
    "resolve-target": ("resolve", MODEL, "--target", "cpu", "--precision-mode-v2", "mixed_bfloat16", "--all"),
    "apply": ("apply", MODEL, "-o", "out.onnx", "--force"),
    "apply-target": ("apply", MODEL, "-o", "out.onnx", "--force", "--target", "tensorrt"),
    "export": ("export", MODEL, "--for", "ort"),
    "estimate": ("bench", MODEL, "--estimate"),
    "diff": ("diff", "onnx", "ascend910b", "--model", MODEL, "--all"),
    "demo": ("demo",),
}


def words(text: str) -> Counter[str]:
    """Return the words and numbers of a text; a line of dashes below the titles of columns is none."""
    stripped = (word.strip(":,") for word in text.split())
    return Counter(word for word in stripped if word.strip("-") or word == "-")


def lost_words(text: str, shown: str) -> Counter[str]:
    """Return the words of a piped text that a terminal does not show, or shows less often.

    The titles of columns are once in a table and several times in its records, so no number grows too large by them.
    """
    return words(text) - words(shown)


def without_wide_columns(document: Document) -> Document:
    """Return a document whose tables have only the columns that a terminal of any width shows."""

    def narrow(block: Block) -> Block:
        if not isinstance(block, Table):
            return block
        kept = [at for at, column in enumerate(block.columns) if not column.wide]
        rows = [[row[at] for at in kept] for row in block.rows]
        return block._replace(columns=tuple(block.columns[at] for at in kept), rows=rows)

    sections = [section._replace(blocks=tuple(map(narrow, section.blocks))) for section in document.sections]
    return document._replace(sections=tuple(sections))


@every_width
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_report_loses_nothing_on_a_terminal(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = io.StringIO()
    terminal.write_document(DOCUMENTS[name] if width > 100 else without_wide_columns(DOCUMENTS[name]), piped)
    shown = written_to_terminal(width, lambda stream: terminal.write_document(DOCUMENTS[name], stream))
    assert lost_words(piped.getvalue(), shown) == Counter()
    # A line that is wider than the terminal has a word that does not fit, or is made to be copied: a command or a file.
    wide = [line for line in shown.splitlines() if len(line) > width]
    assert all(max(map(len, line.split())) > 30 or "mixlist " in line or "{" in line for line in wide), wide


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (MODEL, "digits_mixlist.json"):
        (tmp_path / name).write_bytes((data_folder("demo_data") / name).read_bytes())
    (tmp_path / "odd.json").write_text('{"black-list": {"to-add": ["Expp", "Exp"]}}')
    return tmp_path


def run_command(arguments: tuple[str, ...], stream: TextIO) -> None:
    """Run a command whose standard output and error are both ``stream``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        assert main(list(arguments)) in (0, 1)


def evaluate_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `demo` evaluate ten images, and repeat their logits: onnx's evaluator takes most of the time of a demo."""
    evaluate = demo.run_reference_evaluator

    def evaluate_few(path: Path, pixels: Any) -> tuple[Any, str]:
        logits, overflow = evaluate(path, pixels[:10])
        return np.resize(logits, (len(pixels), logits.shape[1])), overflow

    monkeypatch.setattr(demo, "run_reference_evaluator", evaluate_few)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loses_nothing_on_a_terminal(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    evaluate_few_images(monkeypatch)
    piped = io.StringIO()
    run_command(COMMANDS[name], piped)
    assert len(words(piped.getvalue())) > 10
    # The tables of two commands have columns that a narrow terminal leaves out: the test of reports has these tables.
    for width in WIDTHS[-1:] if name in ("demo", "estimate") else WIDTHS:
        shown = written_to_terminal(width, lambda stream: run_command(COMMANDS[name], stream))
        lost = lost_words(piped.getvalue(), shown)
        # The seconds of two runs differ.
        assert not [word for word in lost if not re.fullmatch(r"\d+\.\d\d", word)], width


def test_every_report_is_tested() -> None:
    reports = {path.name for path in Path(terminal.__file__).parent.glob("*_document.py")}
    names = {name.partition("-")[0] for name in (*DOCUMENTS, *COMMANDS)}
    assert {report.removesuffix("_document.py") for report in reports} <= names


@every_width
def test_the_verdict_of_an_output_is_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, the verdict and the cosine of an output were cut once."""
    monkeypatch.delenv("COLUMNS", raising=False)
    output = replace(check_reports.FAILING.outputs[0], name="logits", cosine=0.99989, snr_db=36.2)
    document = check_document(replace(check_reports.FAILING, outputs=(output,)))
    shown = written_to_terminal(width, lambda stream: terminal.write_document(document, stream))
    outputs = shown[shown.index("\nOutputs\n") :]
    assert "1 - 0.00011" in outputs
    assert "fail: normalized, cosine" in outputs
    titles = outputs.splitlines()[2].split()
    narrow = ["output", "normalized", "cosine", "verdict"]
    assert (titles[:2] == ["output", "max"]) if width > 100 else titles == narrow
    assert ("... and 6 more columns (--format json has all)" in outputs) == (width < 100)
