"""Every command in the documents runs, and prints the output that the document shows.

A ``console`` block holds commands (``$ mixlist ...``) and their outputs: both streams of a command, as a terminal shows
them. A line ``...`` stands for any lines that are left out, and ``...`` in a line for any text. A block after a line
that is only the name of a file in backticks and a colon is that file, which later commands read. The file
``NAME.onnxtxt`` is a model in ONNX's text form; commands read it as ``NAME.onnx``. The commands of a document run in
one folder, which begins with the files of ``mixlist/demo_data``.

Besides ``mixlist``, a console block may have ``python FILE``, ``cat FILE`` and ``echo $?``. A document with a script
that imports torch is skipped if the extra is not installed.

``MIXLIST_UPDATE_DOCUMENTS=1`` writes the printed outputs into the documents, in place of those shown. It changes no
output that has ``...``, and shows no output where there is none. A new output begins as a line ``?``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest

from mixlist.cli import main
from tests.support.extras import import_extra
from tests.support.package import data_folder

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
BLOCK = re.compile(
    r"(?:^`(?P<file>[\w./-]+)`:\n\n)?^(?P<fence>```+)(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)
UPDATE = bool(os.environ.get("MIXLIST_UPDATE_DOCUMENTS"))
# Commands in blocks that are not run: files of CI services, and help texts of which the site generates its own.
NOT_RUN = ("yaml", "{commands}")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document: its language, its text, and the name of the file whose content it shows, or ""."""

    language: str
    text: str
    file: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text("utf-8")
    return [
        Block(match["language"], match["text"], match["file"] or "", text.count("\n", 0, match.start("fence")) + 1)
        for match in BLOCK.finditer(text)
    ]


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that the document shows."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.M)
    assert not parts[0].strip(), f"line {block.line}: a console block begins with a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def output_pattern(shown: str) -> str:
    """Return a regular expression for an output in which ``...`` stands for text that is left out."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "...":
            lines.append(r"(?:[^\n]*\n)*")
        else:
            lines.append(re.escape(line.rstrip()).replace(r"\.\.\.", r"[^\n]*") + r" *\n")
    return "".join(lines)


@dataclass
class Console:
    """A terminal in the current folder: runs one command after the other, and keeps the last exit status."""

    status: int = 0

    def run(self, command: str) -> str:
        """Run a command as a user would, and return what it prints to both streams."""
        if command == "echo $?":
            return f"{self.status}\n"
        program, *arguments = shlex.split(command)
        target = None
        if ">" in arguments:
            *arguments, _, target = arguments
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            self.status = run_program(program, arguments)
        assert self.status in (0, 1, 2), f"{command}: exit status {self.status}\n{output.getvalue()}"
        if target is not None:
            Path(target).write_text(output.getvalue(), "utf-8")
            return ""
        return output.getvalue()


def run_program(program: str, arguments: list[str]) -> int:
    """Run ``mixlist``, or one of the two other programs that documents use, in this process. Return its status."""
    if program == "mixlist":
        return main(arguments)
    (path,) = arguments
    if program == "python":
        runpy.run_path(path, run_name="__main__")
    else:
        assert program == "cat", program
        print(Path(path).read_text("utf-8").rstrip("\n"))
    return 0


def write_file(block: Block) -> None:
    """Write the file that a block shows; of a model in text form write the binary form, too."""
    path = Path(block.file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, "utf-8")
    if path.suffix == ".onnxtxt":
        onnx.save(onnx.parser.parse_model(block.text), path.with_suffix(".onnx"))


def shown_output(shown: str, printed: str) -> str:
    """Return the output that an updated document shows. An output that is left out, in full or in part, stays so."""
    return shown if not shown.strip() or "..." in shown else printed.rstrip("\n") + "\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_prints_what_the_document_shows(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in data_folder("demo_data").iterdir():
        if source.suffix != ".md":
            shutil.copy(source, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    blocks = blocks_of(document)
    if any(block.file and "import torch" in block.text for block in blocks):
        import_extra("torch")
    console = Console()
    for block in blocks:
        if block.file:
            write_file(block)
        if block.language != "console":
            continue
        updated = ""
        for command, shown in commands_of(block):
            printed = console.run(command)
            updated += f"$ {command}\n{shown_output(shown, printed)}"
            if shown.strip() and not UPDATE:
                place = f"{os.path.relpath(document, ROOT)}:{block.line}: $ {command}"
                assert re.fullmatch(output_pattern(shown), printed.rstrip("\n") + "\n"), f"{place}\n{printed}"
        if UPDATE:
            document.write_text(document.read_text("utf-8").replace(block.text, updated, 1), "utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_in_a_block_that_runs(document: Path) -> None:
    unchecked = [
        f"line {block.line}: {line}"
        for block in blocks_of(document)
        if block.language not in ("console", *NOT_RUN)
        for line in block.text.splitlines()
        if re.match(r"(\$ )?mixlist [a-z]", line.strip()) and not block.file
    ]
    assert not unchecked
