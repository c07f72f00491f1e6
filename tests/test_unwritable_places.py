"""Every command that writes, on a full disk and in a read-only folder: an error names the file, and no file changes.

A limit of the file size, which every POSIX system has, simulates a full disk. ``MIXLIST_CAMPAIGN=1`` tests more such
limits, and mounts a small file system, which needs root. That file system is read-only, also for root, or it is full
except for some pages.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

from mixlist.cli.command_index import COMMANDS, load_command
from mixlist.cli.parameters import PathType
from tests.search.test_search_state import FEEDS, TEXT
from tests.support.builders import model
from tests.support.command_process import CommandProcess, End
from tests.support.external_models import write_external
from tests.support.extras import import_extra
from tests.support.killed_runs import OF_LIBRARIES, tree
from tests.support.package import data_folder
from tests.support.systems import posix_only
from tests.support.training_loops import write_loop

pytestmark = posix_only  # limits of a process, and mounts
IS_CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
in_campaign = pytest.mark.skipif(not IS_CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it")
SECONDS = 120  # for one command
_MOUNTED_SIZE = 4 << 20  # bytes
_PAGE = 4096  # bytes; the unit of a file system in memory
_WRITES = ("edits", "writes", "appends", "writes into")
_REASONS = (
    *map(os.strerror, (errno.ENOSPC, errno.EFBIG, errno.EROFS)),
    "ONNX Runtime's profile is incomplete",  # ONNX Runtime does not give the reason
    "their disks are full or read-only",  # Python does not give the reason for folders of temporary files
)
_OLD = b"the old content\n"
_TUNE = ["tune", "search.onnx", "--data", "search.npz", "--ops-info", "mindspore-o3", "--jobs", "1", "--force"]
_CONVERT = ["convert", "m.onnx", "--random", "1", "--jobs", "1", "--force"]
_REPAIR = ["repair", "half.onnx", "--data", "half.npz", "--jobs", "1", "--force"]


@dataclass(frozen=True)
class Writer:
    """A command that writes into ``place/`` because of one of its parameters; ``old``: the files before, by name."""

    args: Sequence[str]
    old: Mapping[str, bytes] = field(default_factory=dict)
    check_part: Callable[[bytes], object] | None = None  # checks a file that is complete before the command ends
    package: str | None = None  # the package of an extra that the command needs


def _read_trials(state: bytes) -> None:
    """Read the lines of a search's state but the last, which a full disk can cut off."""
    for line in state.splitlines(keepends=True)[:-1]:
        json.loads(line)


def _check_demo_file(data: bytes) -> None:
    """Load a model that the demo wrote, unless the file is a copy of a bundled file."""
    if data not in {path.read_bytes() for path in data_folder("demo_data").iterdir()}:
        onnx.load_model_from_string(data)


_LIST = b'{"white-list": {"to-add": [' + b", ".join(b'"Operator%d"' % k for k in range(2000)) + b"]}}"
WRITERS: dict[str, Writer] = {
    "apply output": Writer(["apply", "m.onnx", "-o", "place/f", "--force"], {"f": _OLD}),
    "apply output data": Writer(["apply", "external.onnx", "-o", "place/f", "--force"], {"f": _OLD}),
    "apply report": Writer(["apply", "m.onnx", "-o", "new.onnx", "--force", "--report", "place/f"], {"f": _OLD}),
    "view output": Writer(["view", "m.onnx", "-o", "place/f"], {"f": _OLD}),
    "check html": Writer(["check", "m.onnx", "--random", "1", "--html", "place/f"], {"f": _OLD}),
    "bench html": Writer(["bench", "m.onnx", "--random", "1", "--rounds", "2", "--html", "place/f"], {"f": _OLD}),
    "diff html": Writer(["diff", "lib", "lib", "--html", "place/f"], {"f": _OLD}),
    "tune html": Writer([*_TUNE, "-o", "new.json", "--html", "place/f"], {"f": _OLD}),
    "tune output": Writer([*_TUNE, "-o", "place/f"], {"f": _OLD}),
    "tune state": Writer([*_TUNE, "-o", "new.json", "--state", "place/f"], check_part=_read_trials),
    "convert output": Writer([*_CONVERT, "-o", "place/f"], {"f": _OLD}),
    "convert rules": Writer([*_CONVERT, "-o", "new.onnx", "--rules", "place/f"], {"f": _OLD}),
    "convert html": Writer([*_CONVERT, "-o", "new.onnx", "--html", "place/f"], {"f": _OLD}),
    "repair output": Writer([*_REPAIR, "-o", "place/f"], {"f": _OLD}),
    "repair rules": Writer([*_REPAIR, "-o", "new.onnx", "--rules", "place/f"], {"f": _OLD}),
    "repair state": Writer([*_REPAIR, "-o", "new.onnx", "--state", "place/f"], check_part=_read_trials),
    "export output": Writer(["export", "m.onnx", "--for", "atc", "--library", "ascend310p", "-o", "place/new"]),
    "train html": Writer(["train", "train.py:run", "--runs", "1", "--html", "place/f"], {"f": _OLD}, package="torch"),
    "train tensorboard": Writer(
        ["train", "train.py:run", "--runs", "1", "--tensorboard", "place"], package="tensorboard"
    ),
    "validate paths": Writer(["validate", "place/f.json", "--fix"], {"f.json": b"// old\n" + _LIST}),
    "fmt paths": Writer(["fmt", "place/f.json"], {"f.json": _LIST}),
    "demo output": Writer(["demo", "-o", "place", "--force"], {"digits.mixed.onnx": _OLD}, check_part=_check_demo_file),
}


def test_every_parameter_that_writes_has_an_entry() -> None:
    """A new parameter needs an entry in ``WRITERS``."""
    entries = {name.removesuffix(" data") for name in WRITERS}
    assert {f"{name} {parameter.name}" for name, parameter in _parameters()} == entries


def _parameters() -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters of all commands that name a file to write."""
    for name in COMMANDS:
        for parameter in load_command(name).params:
            if isinstance(parameter.type, PathType) and parameter.type.use in _WRITES:
                yield name, parameter


# --- a command in a place that cannot be written ---


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the commands read."""
    from tests.cli.conftest import MODEL

    folder = tmp_path_factory.mktemp("inputs")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    write_external(folder / "external.onnx", 0, 64)
    onnx.save(model(TEXT), folder / "search.onnx")
    np.savez(folder / "search.npz", **FEEDS[1])
    half = model("g (float16[2] x) => (float16[2] y) { [square] a = Mul(x, x) [root] y = Sqrt(a) }")
    onnx.save(half, folder / "half.onnx")
    np.savez(folder / "half.npz", x=np.array([1, 1000], np.float16))
    write_loop(folder)
    (folder / "lib").mkdir()
    (folder / "lib" / "ops.json").write_text('{"Add": {}}')
    return folder


class Attempts:
    """Run one command several times; ``reset`` restores the folder ``place`` before each run."""

    def __init__(self, writer: Writer, inputs: Path, work: Path, process: CommandProcess) -> None:
        self.writer, self.process = writer, process
        self.inputs, self.work, self.place, self.temporary = inputs, work, work / "place", work / "temporary"
        for folder in (self.place, self.temporary):
            folder.mkdir(exist_ok=True)
        self.count = 0
        self.wrong: list[str] = []

    def reset(self) -> None:
        """Copy the inputs into the folder, and give ``place`` the old files and no others."""
        shutil.copytree(self.inputs, self.work, dirs_exist_ok=True)
        for path in self.place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, content in self.writer.old.items():
            (self.place / name).write_bytes(content)

    def run(self, condition: str, limits: Mapping[str, int] | None = None) -> End:
        """Run the command under a condition; if it ends with an error, note what is wrong with the message or files."""
        before = tree(self.place)
        end = self.process.run(*self.writer.args, limits=limits)
        self.count += 1
        problems = [end.problem] if end.problem else []
        if end.status == 2:
            problems += self._changes(before)
            if not any(reason in end.err for reason in _REASONS):
                problems.append(f"another reason: {end.err}")
            if not any(name in end.err for name in ("place", "new.onnx", "new.json", "backup", str(self.temporary))):
                problems.append(f"no file is named: {end.err}")
        problems += [
            f"{path} is left over" for path in self.temporary.iterdir() if not path.name.startswith(OF_LIBRARIES)
        ]
        self.wrong += [f"{condition}: {problem}" for problem in problems]
        return end

    def _changes(self, before: Mapping[str, tuple[int, str]]) -> Iterator[str]:
        after = tree(self.place)
        for name in sorted(before.keys() | after.keys()):
            if after.get(name) == before.get(name):
                continue
            try:
                if name not in after or self.writer.check_part is None:
                    raise ValueError("it changed" if name in before else "it is left over")
                self.writer.check_part((self.place / name).read_bytes())
            except Exception as error:
                yield f"{name}: {error}"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, CommandProcess]]:
    """Start a process that runs commands in a folder and writes temporary files there; yield both."""
    work = tmp_path_factory.mktemp("work")
    # torch needs a folder for its compiler when a loop makes its first layer. Without this name it looks for a folder
    # of temporary files by writing into them, and its import fails where no byte can be written.
    names = {"TMPDIR": str(work / "temporary"), "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}
    with CommandProcess(work, SECONDS, names) as process:
        yield work, process


@pytest.fixture
def attempts(request: pytest.FixtureRequest, inputs: Path, process: tuple[Path, CommandProcess]) -> Attempts:
    """Return the attempts of a command in a folder with the inputs and ``place``; skip without its extra."""
    writer = WRITERS[request.param]
    if writer.package is not None:
        import_extra(writer.package)
    return Attempts(writer, inputs, *process)


def _finish(attempts: Attempts) -> None:
    print(f"{' '.join(attempts.writer.args[:4])} ...: {attempts.count} attempts, {len(attempts.wrong)} wrong")
    print("\n".join(attempts.wrong))
    assert attempts.wrong == []


every_writer = pytest.mark.parametrize("attempts", WRITERS, indirect=True)


@every_writer
def test_a_limit_of_the_file_size_is_an_error_without_changes(attempts: Attempts) -> None:
    """Rule S7.14: A file that cannot be written completely keeps its old content."""
    for size in _sizes(attempts) if IS_CAMPAIGN else (0, 40):
        attempts.reset()
        end = attempts.run(f"files of at most {size} bytes", {"RLIMIT_FSIZE": size})
        if end.status != 2:
            attempts.wrong.append(f"files of at most {size} bytes: status {end.status}: {end.err}")
    _finish(attempts)


def _sizes(attempts: Attempts) -> list[int]:
    """Return limits from none to just less than the command needs."""
    attempts.reset()
    before = tree(attempts.place)
    assert attempts.run("undisturbed").status in (0, 1)
    changed = [name for name, state in tree(attempts.place).items() if before.get(name) != state]
    sizes = {(attempts.place / name).stat().st_size for name in changed}
    assert min(sizes) > 0
    return sorted({0, 1, *(size // 2 for size in sizes), *(size * 9 // 10 for size in sizes)})


# --- on a file system of its own ---


@pytest.fixture
def mounted(attempts: Attempts) -> Iterator[Attempts]:
    """Mount a small file system in memory at ``place``, and yield the attempts."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_MOUNTED_SIZE}", "mixlist-test", attempts.place],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"this process cannot mount a file system: {done.stderr.strip()}")
    try:
        yield attempts
    finally:
        subprocess.run(["umount", "--lazy", attempts.place], check=True)


@in_campaign
@every_writer
def test_a_full_file_system_is_an_error_without_changes(mounted: Attempts) -> None:
    """No page is free at first, then more and more pages are, until the command succeeds."""
    for pages in (0, *(2**k for k in range(10))):
        mounted.reset()
        _fill(mounted.place / "filler", pages)
        if mounted.run(f"{pages} pages are free").status != 2:
            break
    else:
        mounted.wrong.append("the command never succeeds")
    assert mounted.count > 1, "nothing was refused"
    _finish(mounted)


def _fill(path: Path, pages: int) -> None:
    """Fill the file system with one file, except for some pages."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(_PAGE)):
            pass
    os.truncate(path, max(path.stat().st_size - pages * _PAGE, 0))


@in_campaign
@every_writer
def test_a_read_only_file_system_is_an_error_without_changes(mounted: Attempts) -> None:
    mounted.reset()
    subprocess.run(["mount", "-o", "remount,ro", mounted.place], check=True)
    end = mounted.run("read-only")
    subprocess.run(["mount", "-o", "remount,rw", mounted.place], check=True)
    if end.status != 2:
        mounted.wrong.append(f"status {end.status} on a read-only file system: {end.err}")
    _finish(mounted)
