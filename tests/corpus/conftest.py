"""Fetch the corpus once per session, and say at the end how much of it ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROWS: list[dict[str, str]] = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
MODELS: list[str] = [row["id"] for row in ROWS if row.get("use") != "campaign"]
CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"  # ``make campaign``: all models of models.json
FETCH_SECONDS = 900 if CAMPAIGN else 240
WANTED: list[str] = [row["id"] for row in ROWS] if CAMPAIGN else MODELS


@dataclass(frozen=True)
class Corpus:
    """The folder of the models, and by model the reason why it is missing."""

    folder: Path
    missing: Mapping[str, str]

    def path(self, model_id: str) -> Path:
        """The model's file; skips the test where it could not be had."""
        if model_id in self.missing:
            pytest.skip(f"corpus model not available: {self.missing[model_id]}")
        return self.folder / f"{model_id}.onnx"


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> Corpus:
    """The models, fetched into MIXLIST_CORPUS (default: .corpus in the checkout) as far as they are not there."""
    folder = Path(os.environ.get("MIXLIST_CORPUS") or pytestconfig.rootpath / ".corpus")
    command = [sys.executable, str(HERE / "fetch.py"), str(folder), *WANTED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        there = {path.stem for path in folder.glob("*.onnx")}
        return Corpus(folder, {name: f"not fetched in {FETCH_SECONDS} s" for name in WANTED if name not in there})
    assert done.stdout, f"fetch.py failed:\n{done.stderr}"
    return Corpus(folder, json.loads(done.stdout))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line that says how many models ran (pytest lists what was skipped, and why), then what to know of those."""
    ran: set[str] = set()
    notes = Counter[str]()
    for report in terminalreporter.stats.get("passed", []):
        found = dict(report.user_properties)
        ran |= {found["corpus_model"]} if "corpus_model" in found else set()
        notes.update([found["corpus_note"]] if "corpus_note" in found else [])
    skipped = any(
        "corpus model not available" in str(one.longrepr) for one in terminalreporter.stats.get("skipped", [])
    )
    if ran or skipped:
        terminalreporter.write_sep("-", "corpus")
        terminalreporter.write_line(f"corpus: {len(ran)} of {len(WANTED)} real models were rewritten and ran")
        for text, count in notes.items():
            terminalreporter.write_line(f"  {text} ({count} x)")
