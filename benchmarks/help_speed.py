#!/usr/bin/env python3
"""Compare the time of ``mixlist --help`` with that of a bare interpreter start.

python benchmarks/help_speed.py
"""

from __future__ import annotations

from clock import machine, process, race, report

ROUNDS = 25


def main() -> None:
    """Print the ratio of the whole processes."""
    times = race(
        {
            "help": process(["-m", "mixlist", "--help"]),
            "version": process(["-m", "mixlist", "--version"]),
            "pass": process(["-c", "pass"]),
        },
        ROUNDS,
    )
    print(machine())
    report("mixlist --help", times["help"], "python -c pass", times["pass"], goal=6)
    report("mixlist --version", times["version"], "python -c pass", times["pass"], goal=6)


if __name__ == "__main__":
    main()
