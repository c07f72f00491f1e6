"""Golden files: one small case per rule, with the expected result written by hand from the rules.

A file opens with ``#`` lines: the rule's number and what the case shows. Settings follow, one ``name: value`` a line;
those of the policy are ``white:``, ``black:``, ``mode:``, ``gray-policy:``, ``constants:``, ``protect:`` and ``keep:``
(node names of a keep_dtype file). Sections follow, each under a line ``--- NAME``. Models are ONNX text for
``builders.model``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlist import Policy
from tests.support.builders import keep, policy

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenFile:
    """One file: its comment, its settings, and its sections by name."""

    comment: str
    settings: dict[str, str]
    sections: dict[str, str]

    @property
    def policy(self) -> Policy:
        """The policy of the settings."""
        return policy(
            white=self.settings.get("white", "").split(),
            black=self.settings.get("black", "").split(),
            mode=self.settings.get("mode", "mixed_float16"),
            gray_policy=self.settings.get("gray-policy", "ascend"),  # type: ignore[arg-type]
            constants=self.settings.get("constants", "keep"),  # type: ignore[arg-type]
            protect=self.settings.get("protect", "").split(),  # type: ignore[arg-type]
            rules=keep(*self.settings.get("keep", "").split()),
        )

    def batches(self) -> list[dict[str, NDArray[Any]]]:
        """Return the section ``batches``, one JSON object of inputs a line.

        ``{"shape": [1, 64], "fill": 300}`` is an array of that shape, filled with 300.
        """
        return [{name: _array(value) for name, value in json.loads(line).items()} for line in self.lines("batches")]

    def lines(self, section: str) -> list[str]:
        """The lines of a section that are not blank."""
        return [line.strip() for line in self.sections[section].splitlines() if line.strip()]


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, dict):
        return np.full(value["shape"], value["fill"])
    return np.array(value)


def golden_files(folder: str) -> list[Path]:
    """The golden files of a folder below tests/golden, in alphabetical order."""
    return sorted((GOLDEN / folder).glob("*.txt"))


def read_golden(path: Path) -> GoldenFile:
    """Read a golden file."""
    header, *section_texts = path.read_text(encoding="utf-8").split("\n--- ")
    lines = [line for line in header.splitlines() if line]
    settings = dict(line.split(": ", 1) for line in lines if not line.startswith("#"))
    sections = dict(section.split("\n", 1) for section in section_texts)
    return GoldenFile("\n".join(line for line in lines if line.startswith("#")), settings, sections)
