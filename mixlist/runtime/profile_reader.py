"""Read ONNX Runtime's profile: time by op type, what ran in a low type and where, and memory.

The profile is a JSON list of events in Chrome's trace format, times in microseconds. A ``Node`` event whose name ends
in ``_kernel_time`` is one run of one node of the optimised graph, with its op type, provider and output types; a
``model_run`` event of category ``Session`` spans one run of the model. On CUDA a Node event is the time that the host
took to launch; the device's own time is in ``Kernel`` events, which carry the node's op type, where the build has them
(ONNX Runtime's documentation, "Profiling tools").
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from mixlist.errors import FileError
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.ops.types import ELEMENT_BY_NAME

Event: TypeAlias = Mapping[str, Any]  # as ONNX Runtime writes it: text, numbers, and its arguments by name
_KERNEL = "_kernel_time"
_Time = tuple[int, str, int]  # of one node or kernel: start, op type, microseconds


@dataclass(frozen=True)
class OpTime:
    """One op type: how often it ran (on average) and how many seconds it took (the median), per run of the model."""

    op_type: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """A profile in short.

    ``runs``: runs of the model counted (those after the warm-up). ``ops``: slowest first; the time of a control-flow
    node is without that of its bodies. ``nodes`` ran, ``low_nodes`` of them (Casts apart) with an output in float16 or
    bfloat16; ``providers``: nodes by provider. ``arena``: the most bytes in use in the provider's arena, None where the
    profile does not say. ``device_times``: the seconds are those of the device's kernels. ``seconds``: in all nodes,
    per run of the model.
    """

    runs: int
    ops: tuple[OpTime, ...]
    nodes: int
    low_nodes: int
    providers: Mapping[str, int]
    arena: int | None
    device_times: bool
    seconds: float


def read_profile(path: Path, warmup: int = 0) -> Profile:
    """Return the profile in a file, without the first ``warmup`` runs of the model. Raises FileError."""
    try:
        events = json.loads(path.read_text("utf-8", "replace"))
    except OSError as error:
        raise FileError(f"{path}: ONNX Runtime's profile cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # ONNX Runtime does not say that the disk is full
        hint = "check the space there; TMPDIR names another place for temporary files"
        raise FileError(f"{path}: ONNX Runtime's profile is not whole: {error}", hint=hint) from None
    return parse_events(events, warmup)


def parse_events(events: Sequence[Event], warmup: int = 0) -> Profile:
    """Return the profile of a list of events, without the first ``warmup`` runs of the model."""
    starts = sorted(int(e["ts"]) for e in events if e.get("name") == "model_run")[warmup:]
    first = starts[0] if starts else 0
    runs_of_nodes = (e for e in events if e.get("cat") == "Node" and str(e["name"]).endswith(_KERNEL))
    nodes = [e for e in runs_of_nodes if int(e["ts"]) >= first]
    kernels = [e for e in events if e.get("cat") == "Kernel" and int(e["ts"]) >= first and e["args"].get("op_name")]
    ran = {(e["name"], e["args"].get("node_index", "")): e["args"] for e in nodes}
    calls = Counter(e["args"].get("op_name", "") for e in nodes)
    times = [(int(e["ts"]), e["args"]["op_name"], int(e["dur"])) for e in kernels] if kernels else _own_times(nodes)
    ops = _ops(calls, times, starts or [0])
    return Profile(
        runs=len(starts),
        ops=ops,
        nodes=len(ran),
        low_nodes=sum(_is_low(args) for args in ran.values()),
        providers=dict(sorted(Counter(args.get("provider", "") for args in ran.values()).items())),
        arena=max((int(e["args"]["mem_in_use_peak"]) for e in nodes if "mem_in_use_peak" in e["args"]), default=None),
        device_times=bool(kernels),
        seconds=sum(op.seconds for op in ops),
    )


def _is_low(args: Event) -> bool:
    if args.get("op_name") == "Cast":
        return False
    return any(ELEMENT_BY_NAME.get(name) in LOW_TYPES for slot in args.get("output_type_shape", ()) for name in slot)


def _own_times(nodes: Iterable[Event]) -> list[_Time]:
    """Return the time of each node; one that others ran inside (the bodies of a Loop) counts for itself alone."""
    times: list[_Time] = []
    around: dict[object, list[tuple[int, int]]] = defaultdict(list)  # by thread: (end, place in times) of what encloses
    for event in sorted(nodes, key=lambda e: (int(e["ts"]), -int(e["dur"]))):
        start, duration = int(event["ts"]), int(event["dur"])
        open_nodes = around[event.get("tid")]
        while open_nodes and open_nodes[-1][0] <= start:
            open_nodes.pop()
        if open_nodes and start + duration <= open_nodes[-1][0]:
            at = open_nodes[-1][1]
            times[at] = (times[at][0], times[at][1], max(times[at][2] - duration, 0))
        open_nodes.append((start + duration, len(times)))
        times.append((start, event["args"].get("op_name", ""), duration))
    return times


def _ops(calls: Mapping[str, int], times: Iterable[_Time], starts: Sequence[int]) -> tuple[OpTime, ...]:
    """Return calls and time per run: the median over the runs, since a run that was disturbed says little."""
    runs: dict[str, list[int]] = defaultdict(lambda: [0] * len(starts))
    for start, op, micros in times:
        runs[op][max(bisect_right(starts, start) - 1, 0)] += micros
    ops = (OpTime(op, count / len(starts), median(runs[op]) / 1e6) for op, count in calls.items())
    return tuple(sorted(ops, key=lambda op: (-op.seconds, op.op_type)))
