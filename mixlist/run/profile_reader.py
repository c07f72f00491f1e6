"""Read ONNX Runtime's profile: the time of each op type, the nodes in low precision, providers, and memory.

The profile is a JSON list of events in Chrome's trace format, with times in microseconds. A ``Node`` event whose name
ends in ``_kernel_time`` is one run of one node of the optimized graph. Its arguments are the op type, the provider and
the output types. A ``model_run`` event of category ``Session`` spans one run of the model. On CUDA, the duration of a
Node event is the time in which the host launched the kernels. The time of the device is in ``Kernel`` events, which
carry the op type of their node. Only some builds of ONNX Runtime write them (its documentation, "Profiling tools").
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
from mixlist.model.dtypes import ELEMENT_BY_NAME
from mixlist.model.low_precision import LOW_TYPES
from mixlist.targets.providers import PROVIDERS

Event: TypeAlias = Mapping[str, Any]  # an entry of the list: texts, numbers, and a mapping ``args``
_NODE_SUFFIX = "_kernel_time"
_TimedRun = tuple[int, str, int]  # one run of a node or kernel: its start, its op type, its duration (microseconds)


@dataclass(frozen=True)
class OpTime:
    """The cost of one op type in one run of the model.

    calls: how many times its nodes run; the mean over the runs of the model.
    seconds: the time that they take together; the median over the runs of the model.
    """

    op_type: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The summary of a profile.

    runs: the number of runs of the model after the warm-up.
    ops: the op types, the slowest first. The time of a control-flow node does not include its bodies.
    nodes: the number of nodes that ran.
    low_nodes: the number of these nodes that have an output in float16 or bfloat16; Casts are not counted.
    providers: the number of nodes by provider.
    arena: the largest number of bytes in use in the memory arena of the provider; None if the profile lacks it.
    device_times: True if the seconds are the times of the device's kernels.
    seconds: the time in all nodes, per run of the model.
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
    """Return the summary of a profile file without the first ``warmup`` runs of the model. Raises FileError."""
    return parse_events(read_events(path), warmup)


def read_events(path: Path) -> Sequence[Event]:
    """Return the events of a profile file. Raises FileError."""
    try:
        events: Sequence[Event] = json.loads(path.read_text("utf-8", "replace"))
    except OSError as error:
        raise FileError(f"{path}: ONNX Runtime's profile cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # mostly a full disk, on which ONNX Runtime ends the file early without an error
        hint = "check the space there; TMPDIR names another place for temporary files"
        raise FileError(f"{path}: ONNX Runtime's profile is incomplete: {error}", hint=hint) from None
    return events


def find_float32_nodes(events: Sequence[Event]) -> set[str]:
    """Return the names of the nodes that ran on the CPU provider with float32 tensors, and without a low tensor."""
    names = set()
    for event in events:
        args, name = event.get("args", {}), str(event.get("name", ""))
        if event.get("cat") != "Node" or args.get("provider") != PROVIDERS["cpu"] or not name.endswith(_NODE_SUFFIX):
            continue
        tensors = (*args.get("input_type_shape", ()), *args.get("output_type_shape", ()))
        elements = {element for tensor in tensors for element in tensor}
        if "float" in elements and elements.isdisjoint(("float16", "bfloat16")):
            names.add(name.removesuffix(_NODE_SUFFIX))
    return names


def parse_events(events: Sequence[Event], warmup: int = 0) -> Profile:
    """Return the summary of a list of events without the first ``warmup`` runs of the model."""
    # 1. The events after the warm-up: all that start at or after the start of the first run that counts.
    run_starts = sorted(int(e["ts"]) for e in events if e.get("name") == "model_run")[warmup:]
    first_start = run_starts[0] if run_starts else 0
    node_events = [
        e
        for e in events
        if e.get("cat") == "Node" and str(e["name"]).endswith(_NODE_SUFFIX) and int(e["ts"]) >= first_start
    ]
    kernel_events = [
        e for e in events if e.get("cat") == "Kernel" and int(e["ts"]) >= first_start and e["args"].get("op_name")
    ]
    # 2. The nodes. A node has one event for each run, but one entry here. Nodes without a name all have the same event
    # name, so the index of the node is a part of the key.
    args_of_nodes = {(e["name"], e["args"].get("node_index", "")): e["args"] for e in node_events}
    calls = Counter(e["args"].get("op_name", "") for e in node_events)
    # 3. The times: those of the device's kernels if the profile has them, else those of the host.
    durations = [(int(e["ts"]), e["args"]["op_name"], int(e["dur"])) for e in kernel_events]
    ops = _sum_by_op_type(calls, durations or _exclusive_times(node_events), run_starts or [0])
    return Profile(
        runs=len(run_starts),
        ops=ops,
        nodes=len(args_of_nodes),
        low_nodes=sum(_has_low_output(args) for args in args_of_nodes.values()),
        providers=dict(sorted(Counter(args.get("provider", "") for args in args_of_nodes.values()).items())),
        arena=max(
            (int(e["args"]["mem_in_use_peak"]) for e in node_events if "mem_in_use_peak" in e["args"]), default=None
        ),
        device_times=bool(kernel_events),
        seconds=sum(op.seconds for op in ops),
    )


def _has_low_output(args: Event) -> bool:
    if args.get("op_name") == "Cast":
        return False
    # output_type_shape: [{"float16": [1, 64]}, {"int64": [1]}]
    return any(
        ELEMENT_BY_NAME.get(name) in LOW_TYPES for output in args.get("output_type_shape", ()) for name in output
    )


def _exclusive_times(node_events: Iterable[Event]) -> list[_TimedRun]:
    """Return the run of each node. Its duration excludes the nodes that ran inside it (in the body of a Loop)."""
    durations: list[_TimedRun] = []
    # By thread: a stack of the nodes that have started and not ended, as (end, position in ``durations``).
    open_nodes_by_thread: dict[object, list[tuple[int, int]]] = defaultdict(list)
    # Of two events that start together, the longer one encloses the other one.
    for event in sorted(node_events, key=lambda e: (int(e["ts"]), -int(e["dur"]))):
        start, duration = int(event["ts"]), int(event["dur"])
        open_nodes = open_nodes_by_thread[event.get("tid")]
        while open_nodes and open_nodes[-1][0] <= start:
            open_nodes.pop()
        # Loop [0, 100] with Add [10, 30] inside: the Loop keeps 80 of its 100 microseconds. Only the innermost open
        # node loses the time, because the nodes around it have lost the whole time of that node already.
        if open_nodes and start + duration <= open_nodes[-1][0]:
            position = open_nodes[-1][1]
            outer_start, outer_op_type, outer_duration = durations[position]
            durations[position] = (outer_start, outer_op_type, max(outer_duration - duration, 0))
        open_nodes.append((start + duration, len(durations)))
        durations.append((start, event["args"].get("op_name", ""), duration))
    return durations


def _sum_by_op_type(
    calls: Mapping[str, int], durations: Iterable[_TimedRun], run_starts: Sequence[int]
) -> tuple[OpTime, ...]:
    """Return the calls and the time of each op type per run of the model.

    The time is the median over the runs, because one run that was disturbed changes a mean.
    """
    microseconds: dict[str, list[int]] = defaultdict(lambda: [0] * len(run_starts))  # one number for each run
    for start, op_type, duration in durations:
        # The last run that started before the node. A profile without runs counts as one run.
        run = max(bisect_right(run_starts, start) - 1, 0)
        microseconds[op_type][run] += duration
    ops = (
        OpTime(op_type, count / len(run_starts), median(microseconds[op_type]) / 1e6)
        for op_type, count in calls.items()
    )
    return tuple(sorted(ops, key=lambda op: (-op.seconds, op.op_type)))
