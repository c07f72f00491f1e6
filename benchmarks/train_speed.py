#!/usr/bin/env python3
"""Time `mixlist train`: the nine trainings of three seeds against nine plain ones, and against one.

    python benchmarks/train_speed.py [STEPS]

The loops are the eight networks of the tests (tests/training/networks.py), with 100 steps by default and a batch of 32,
on one thread. A plain training is a call of the same loop with a GradScaler that does nothing. The time of replays is
printed, and left out of the ratio.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from clock import machine, report  # noqa: E402

RUNS, GOAL = 3, 20.0


def main(steps: str = "100") -> None:
    """Print the ratio of each network, and the median."""
    import torch

    import mixlist
    from tests.training.networks import NETWORKS

    torch.set_num_threads(1)
    print(machine(), flush=True)
    ratios = []
    for name, network in NETWORKS.items():
        loop = replace(network, steps=int(steps))
        plain = []
        for seed in range(RUNS + 1):
            start = time.perf_counter()
            loop(seed, torch.amp.GradScaler("cpu", enabled=False))
            plain.append(time.perf_counter() - start)
        result = mixlist.train(loop, mixlist.load_policy(), runs=RUNS)
        seconds = dict(result.seconds)
        replays = seconds.pop("replay", 0.0)
        one = statistics.median(plain[1:])  # the first training warms up caches
        ratios.append(sum(seconds.values()) / one)
        title = f"{name}, {3 * RUNS} trainings (and {replays:.1f} s of {len(result.replays)} replays)"
        report(title, sum(seconds.values()), "one plain float32 training", one, GOAL)
        mixed = seconds["mixed"] / RUNS
        report(f"{name}, a mixed training", mixed, "one plain float32 training", one, None)
    print(f"median ratio of {3 * RUNS} trainings: {statistics.median(ratios):.3g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
