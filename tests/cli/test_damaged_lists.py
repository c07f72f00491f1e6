"""No list file makes a command fail by itself: status 0 or 1, or 2 with a message, and a rewritten file means the same.

``MIXLIST_LISTS`` is the number of damaged files, ``MIXLIST_LISTS_SEED`` that of the first. tests/cli/test_fuzz.py has
random list files too; here each file goes through every command that reads one.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.command_process import CommandProcess, End
from tests.support.list_mutation import damaged_list
from tests.support.systems import posix_only

pytestmark = posix_only  # the limits of a process
COUNT = int(os.environ.get("MIXLIST_LISTS", "40"))
SEED = int(os.environ.get("MIXLIST_LISTS_SEED", "0"))
SECONDS = 30  # for one command, which takes milliseconds
_KINDS = ("modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes")
_JSON_KINDS = _KINDS[:2]  # node rules that are valid are refused where the model has no such node
_OPTIONS = {"modify-mixlist": "--mixlist", "config": "--config", "hints": "--type-hints"}
_FORMATS = ("text", "json", "github", "sarif")


@dataclass
class Campaign:
    """Run commands on damaged files, and record exit statuses and problems."""

    process: CommandProcess
    model: Path
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, *args: object) -> End:
        """Run one command; record its exit status and its problem, if it has one."""
        end = self.process.run(*args)
        self.ends[str(args[0]), end.status] += 1
        if end.problem:
            self.report(args, end.problem)
        return end

    def report(self, args: object, problem: str) -> None:
        self.wrong.append(f"{self.name}: {args}: {problem}")
        print(self.wrong[-1], flush=True)

    def try_file(self, number: int, folder: Path) -> None:
        """Make a damaged file, and run the five commands on it."""
        rng = random.Random(number)
        kind, data = damaged_list(rng)
        self.name = f"file {number} ({kind}, {data[:300]!r})"
        if rng.random() < 0.1:
            kind = rng.choice(_KINDS)
        path = folder / ("list.txt" if kind.endswith(("dtype", "dtypes")) else "list.json")
        path.write_bytes(data)
        kinds = ["--kind", kind] if kind in _KINDS and rng.random() < 0.7 else []
        options = [_OPTIONS.get(kind, f"--{kind}"), path]
        model_options = ["--model", self.model] if rng.random() < 0.1 else []
        valid = self.run("validate", path, "--format", rng.choice(_FORMATS), *kinds, *model_options)
        resolved = self.run("resolve", self.model, *options, "--format", rng.choice(("text", "json", "csv")))
        lists = self.run("lists", *options, "--format=json") if kind != "hints" else None
        self._diff(kind, path)
        if valid.status == 0 and kind in _JSON_KINDS and kinds and not model_options and resolved.status != 0:
            self.report(kind, f"valid for validate, but resolve says: {resolved.err[-300:]}")
        if kind in _KINDS and self.run("fmt", path, *kinds).status == 0:
            self._compare(kind, kinds, options, lists)

    def _diff(self, kind: str, path: Path) -> None:
        arguments: dict[str, list[object]] = {
            "modify-mixlist": ["onnx", "onnx", "--other-mixlist", path],
            "config": ["onnx", "pytorch", "--config", path],
        }
        self.run("diff", *arguments.get(kind, [path, "onnx", "--op-names", "onnx"]))

    def _compare(self, kind: str, kinds: list[str], options: list[object], before: End | None) -> None:
        """Report a formatted file that is not in its own form, or means something else than before."""
        path = options[1]
        if self.run("fmt", "--check", path, *kinds).status != 0:
            self.report(kind, "the result of fmt is not in the form of fmt")
        if before is None or before.status != 0:
            return
        after = self.run("lists", *options, "--format=json")
        if after.status != 0 or _meaning(after.out) != _meaning(before.out):
            self.report(kind, f"after fmt the lists differ: {after.out[:300]} {after.err[-300:]}")


def _meaning(out: str) -> object:
    """Return the result of ``lists`` without the places of the edits."""
    lists = json.loads(out)
    lists["edits"] = [{key: value for key, value in edit.items() if key != "at"} for edit in lists["edits"]]
    return lists


@pytest.mark.timeout(60_000)
def test_damaged_lists_are_read_or_refused(tmp_path: Path, model_path: Path) -> None:
    with CommandProcess(tmp_path, SECONDS) as process:
        campaign = Campaign(process, model_path)
        for number in range(SEED, SEED + COUNT):
            campaign.try_file(number, tmp_path)
    ends = dict(sorted(campaign.ends.items()))
    print(f"{COUNT} damaged list files, {len(campaign.wrong)} wrong; runs by exit status: {ends}")
    assert campaign.wrong == []
