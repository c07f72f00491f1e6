#!/usr/bin/env python3
"""How long ``mixlist validate`` takes on a 1.4 MB operator information library, against reading it with ``json``.

python benchmarks/validate_speed.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from clock import machine, process, race, report
from generate import write_ops_info

ROUNDS, SIZE = 15, 1_400_000


def main() -> None:
    """Print the ratio of the two whole processes, and the ratio when the file grows tenfold."""
    with tempfile.TemporaryDirectory() as folder:
        one = write_ops_info(Path(folder, "ops-info.json"), SIZE)
        ten = write_ops_info(Path(folder, "ops-info-10.json"), 10 * SIZE)
        times = race({"validate": _validate(one), "json": _read(one)}, ROUNDS)
        large = race({"validate": _validate(ten), "json": _read(ten)}, 3)
    print(machine())
    report("mixlist validate, 1.4 MB", times["validate"], "json.load", times["json"], goal=8)
    report("mixlist validate, 14 MB", large["validate"], "json.load", large["json"], goal=8)


def _validate(path: Path) -> Callable[[], None]:
    return process(["-m", "mixlist", "validate", "--kind", "ops-info", str(path)])


def _read(path: Path) -> Callable[[], None]:
    return process(["-c", "import json, sys; json.load(open(sys.argv[1]))", str(path)])


if __name__ == "__main__":
    main()
