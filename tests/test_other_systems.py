"""Other systems than Linux: an ``os`` module like that of Windows, and the tests that the public CI runs there."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixlist import cli
from mixlist.errors import FileError, ModelError
from mixlist.files.list_text import read_bytes
from tests.support.package import load_model

ROOT = Path(__file__).parents[1]
WRITING_TESTS = (
    "tests/files/test_atomic_writes.py",
    "tests/files/test_scratch_folder.py",
    "tests/model/test_save.py",
    "tests/model/test_data_files.py",
    "tests/cli/test_fmt.py",
    "tests/cli/test_apply.py",
    "tests/cli/test_command_files.py",
    "tests/run/test_sessions.py",
)
UNIX_MODULES = {"fcntl", "grp", "posix", "pwd", "resource", "termios"}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the list of the files that are open")
def test_writing_needs_no_function_that_windows_lacks() -> None:
    options = ["-v", "-p", "no:cacheprovider", "-p", "tests.support.without_posix", "-k", "not is_an_input"]
    command = [sys.executable, "-m", "pytest", *options, *WRITING_TESTS]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MIXLIST_EXAMPLES": "10"}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert completed.returncode == 0, completed.stdout[-4000:]
    assert set(re.findall(r"^(\S+)::.* PASSED", completed.stdout, re.M)) == set(WRITING_TESTS)


def test_every_file_of_the_core_tests_exists() -> None:
    for line in (ROOT / "tests/core.txt").read_text("utf-8").split():
        assert (ROOT / line).exists(), line
    assert "@tests/core.txt" in (ROOT / ".github/workflows/core-tests.yml").read_text("utf-8")


def imports(source: str) -> Iterator[str]:
    """Yield the modules that the source of a module imports at its top level."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_modules_of_tests_can_be_imported_on_windows() -> None:
    """An import that fails on Windows would stop the core tests before the first of them runs."""
    files = (ROOT / "tests").rglob("*.py")
    unix = [path.name for path in files if not UNIX_MODULES.isdisjoint(imports(path.read_text("utf-8")))]
    assert unix == []


# --- the command line on Windows ---


class _WindowsOs:
    """The module ``os``, with the name that it has on Windows."""

    name = "nt"

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def test_wildcards_in_arguments_are_expanded_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.json", "a.json"):
        (tmp_path / name).write_text("{}")
    arguments = ["fmt", "*.json", "--check", "none*.json", "s*=32"]
    assert cli._expand_wildcards(arguments) == arguments
    monkeypatch.setattr(cli, "os", _WindowsOs())
    assert cli._expand_wildcards(arguments) == ["fmt", "a.json", "b.json", "--check", "none*.json", "s*=32"]


def test_a_pipe_gets_the_same_bytes_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding of Windows lacks most characters, and its text files end lines with two characters."""
    monkeypatch.setattr(cli, "os", _WindowsOs())
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, encoding="cp1252", newline="\r\n"))
    cli._make_streams_accept_any_text()
    print("重み")
    sys.stdout.flush()
    assert pipe.getvalue() == "重み\n".encode()
    monkeypatch.undo()


def test_a_folder_that_cannot_be_opened_is_reported_as_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = Path.open

    def refuse(path: Path, *args: Any, **keywords: Any) -> Any:
        if path.is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *args, **keywords)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="this is a directory, but a file is needed"):
        read_bytes(tmp_path)
    with pytest.raises((FileError, ModelError), match="is a directory, not an ONNX model"):
        load_model(tmp_path)
