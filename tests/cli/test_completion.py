"""What the Tab key offers in a shell: options, and the names of libraries, modes and targets."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from mixlist.cli.command_group import mixlist
from mixlist.lists import presets

MIXLIST = [sys.executable, "-m", "mixlist"]


def complete(*words: str) -> list[tuple[str, str]]:
    """Return what completes the last word, with the type of each item."""
    items = BashComplete(mixlist, {}, "mixlist", "_MIXLIST_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [(str(item.value), item.type) for item in items]


@pytest.mark.parametrize("command", ["check", "resolve", "validate", "export", "lists"])
def test_libraries(command: str) -> None:
    assert complete(command, "--ops-info", "") == [(name, "plain") for name in presets.names()]


@pytest.mark.parametrize(
    ("words", "items"),
    [
        (("lists", "--ops-info", "./lib"), [("./lib", "file")]),
        (("resolve", "--target", "tensor"), [("tensorrt", "plain")]),
        (("check", "--precision-mode-v2", "mixed_b"), [("mixed_bfloat16", "plain")]),
        (("check", "--precision-mode", "force"), [("force_fp16", "plain"), ("force_fp32", "plain")]),
        (("resolve", "--list", "w"), [("white", "plain")]),
    ],
)
def test_names_and_paths(words: tuple[str, ...], items: list[tuple[str, str]]) -> None:
    assert complete(*words) == items


def test_bash_completes_the_line_with_the_printed_script(tmp_path: Path) -> None:
    (tmp_path / "mixlist").write_text(f'#!/bin/sh\nexec {shlex.join(MIXLIST)} "$@"\n')
    (tmp_path / "mixlist").chmod(0o755)
    script = (
        "source <(mixlist completion bash); COMP_WORDS=(mixlist lists --ops-info ascend910b); COMP_CWORD=3;"
        ' _mixlist_completion mixlist; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    completed = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert completed.stdout.splitlines() == ["ascend910b"], completed.stderr
