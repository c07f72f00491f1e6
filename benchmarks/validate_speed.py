#!/usr/bin/env python3
"""Compare the time of ``mixlist validate`` with that of ``json.load``, on an operator information library of 1.4 MB.

python benchmarks/validate_speed.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from clock import machine, process, race, report
from generate import write_ops_info

ROUNDS, LARGE_ROUNDS = 15, 3
SIZE = 1_400_000  # bytes
LARGE_SIZE = 10_000_000  # a list file may have 12 MiB


def main() -> None:
    """Print the ratio of the two whole processes, for the file of 1.4 MB and for one of 10 MB."""
    with tempfile.TemporaryDirectory() as folder:
        small = write_ops_info(Path(folder, "ops-info.json"), SIZE)
        large = write_ops_info(Path(folder, "ops-info-10.json"), LARGE_SIZE)
        small_times = race({"validate": _validate(small), "json": _read(small)}, ROUNDS)
        large_times = race({"validate": _validate(large), "json": _read(large)}, LARGE_ROUNDS)
    print(machine())
    report("mixlist validate, 1.4 MB", small_times["validate"], "json.load", small_times["json"], goal=8)
    report("mixlist validate, 10 MB", large_times["validate"], "json.load", large_times["json"], goal=8)


def _validate(path: Path) -> Callable[[], None]:
    return process(["-m", "mixlist", "validate", "--kind", "ops-info", str(path)])


def _read(path: Path) -> Callable[[], None]:
    return process(["-c", "import json, sys; json.load(open(sys.argv[1]))", str(path)])


if __name__ == "__main__":
    main()
