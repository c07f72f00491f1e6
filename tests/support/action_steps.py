"""Run the steps of the GitHub Actions ``action.yml`` and ``actions/check/action.yml`` as GitHub's runner does."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
CHECK_ACTION: dict[str, Any] = yaml.safe_load((ROOT / "actions/check/action.yml").read_text("utf-8"))
_EXPRESSION = re.compile(r"\$\{\{ *([\w.-]+) *\}\}")


@dataclass(frozen=True)
class StepEnd:
    """The end of a step: exit status, both streams, and the lines that the step wrote for the runner."""

    status: int
    out: str
    err: str
    outputs: Mapping[str, str]  # of GITHUB_OUTPUT
    added_paths: list[str]  # of GITHUB_PATH
    summary: str  # of GITHUB_STEP_SUMMARY


def run_step(
    step_id: str,
    inputs: Mapping[str, str],
    folder: Path,
    *,
    action: Mapping[str, Any] = ACTION,
    python: str = "",
    **environment: str,
) -> StepEnd:
    """Run a ``run:`` step in bash, in ``folder``. ``inputs`` replace the defaults of the action's inputs.

    ``python``: the Python that actions/setup-python would have installed.
    """
    (step,) = (step for step in action["runs"]["steps"] if step.get("id") == step_id)
    unknown = set(inputs) - set(action["inputs"])
    assert not unknown, unknown
    values = {f"inputs.{name}": inputs.get(name, entry.get("default", "")) for name, entry in action["inputs"].items()}
    values["steps.python.outputs.python-path"] = python
    assert "${{" not in step["run"], "an input in the text of a script could be read as a command"
    step_environment = {
        name: _EXPRESSION.sub(lambda match: values[match[1]], text) for name, text in step["env"].items()
    }
    files = {name: folder / f".{name.lower()}" for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("")
    completed = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={
            **os.environ,
            "RUNNER_TEMP": str(folder),
            **step_environment,
            **{name: str(path) for name, path in files.items()},
            **environment,
        },
        capture_output=True,
        text=True,
    )
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text("utf-8").splitlines())
    added_paths = files["GITHUB_PATH"].read_text("utf-8").splitlines()
    summary = files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
    return StepEnd(completed.returncode, completed.stdout, completed.stderr, outputs, added_paths, summary)
