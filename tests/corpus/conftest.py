"""Fetch the corpus once per session, and report at the end how many of its models ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .tool_environments import make_environment

HERE = Path(__file__).parent
ROWS: list[dict[str, str]] = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
MODELS: list[str] = [row["id"] for row in ROWS if row.get("use") != "campaign"]
CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"  # ``make campaign``: all models of models.json
FETCH_SECONDS = 900 if CAMPAIGN else 240
SELECTED: list[str] = [row["id"] for row in ROWS] if CAMPAIGN else MODELS
# Where one model shows as much as another, the suite runs these fast ones. The campaign runs all, on longer data.
FAST = ["magika", "silero_vad_v6", "silero_vad_16k_sequence", "basic_pitch", "nsnet2_16k", "oww_melspectrogram"]
QUICK_MODELS = MODELS if CAMPAIGN else FAST


@dataclass(frozen=True)
class Corpus:
    """The folder of the models, and for each missing model the reason."""

    folder: Path
    missing: Mapping[str, str]

    def path(self, model_id: str) -> Path:
        """Return the model's file; skip the test if the model is missing."""
        if model_id in self.missing:
            pytest.skip(f"corpus model not available: {self.missing[model_id]}")
        return self.folder / f"{model_id}.onnx"


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> Corpus:
    """Fetch the missing models into MIXLIST_CORPUS, by default .corpus in the checkout, and return the corpus."""
    folder = Path(os.environ.get("MIXLIST_CORPUS") or pytestconfig.rootpath / ".corpus")
    command = [sys.executable, str(HERE / "fetch.py"), str(folder), *SELECTED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        fetched = {path.stem for path in folder.glob("*.onnx")}
        return Corpus(folder, {name: f"not fetched in {FETCH_SECONDS} s" for name in SELECTED if name not in fetched})
    assert done.stdout, f"fetch.py failed:\n{done.stderr}"
    return Corpus(folder, json.loads(done.stdout))


@pytest.fixture(scope="session")
def interpreter(corpus: Corpus) -> Callable[[str], str]:
    """Return a function from a tool that converts models to the Python of its environment."""
    return lambda tool: make_environment(tool, corpus.folder / "tools" / tool)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many models ran, then the notes of their tests. pytest itself lists skipped tests with the reason."""
    ran: set[str] = set()
    notes = Counter[str]()
    for report in terminalreporter.stats.get("passed", []):
        properties = dict(report.user_properties)
        ran |= {properties["corpus_model"]} if "corpus_model" in properties else set()
        notes.update([properties["corpus_note"]] if "corpus_note" in properties else [])
    skipped = any(
        "corpus model not available" in str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])
    )
    if ran or skipped:
        terminalreporter.write_sep("-", "corpus")
        terminalreporter.write_line(f"corpus: {len(ran)} of {len(SELECTED)} real models were rewritten and ran")
        for text, count in notes.items():
            terminalreporter.write_line(f"  {text} ({count} x)")
