"""What ONNX Runtime's profile says: time by op type, what ran in a low type and where, and memory.

The profile is a JSON list of events in Chrome's trace format, times in microseconds. A ``Node`` event whose name ends
in ``_kernel_time`` is one run of one node of the optimised graph, with its op type, provider and output types; a
``model_run`` event of category ``Session`` spans one run of the model. On CUDA a Node event is the time that the host
took to launch; the device's own time is in ``Kernel`` events, which carry the node's op type, where the build has them
(ONNX Runtime's documentation, "Profiling tools").
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixlist.errors import FileError

LOW = frozenset({"float16", "bfloat16"})
_KERNEL = "_kernel_time"


@dataclass(frozen=True)
class OpTime:
    """One op type: how often it ran and how long it took, in seconds, both per run of the model."""

    op_type: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """A profile in short.

    ``runs``: runs of the model counted (those after the warm-up). ``ops``: slowest first; the time of a control-flow
    node is without that of its bodies. ``nodes`` ran, ``low_nodes`` of them (Casts apart) with an output in float16 or
    bfloat16; ``providers``: nodes by provider. ``arena``: the most bytes in use in the provider's arena, None where the
    profile does not say. ``device_times``: whether the seconds are those of the device's kernels.
    """

    runs: int
    ops: tuple[OpTime, ...]
    nodes: int
    low_nodes: int
    providers: Mapping[str, int] = field(default_factory=dict)
    arena: int | None = None
    device_times: bool = False

    @property
    def seconds(self) -> float:
        """The time in all nodes, per run of the model."""
        return sum(op.seconds for op in self.ops)


def read_profile(path: Path, warmup: int = 0) -> Profile:
    """The profile in a file, without the first ``warmup`` runs of the model; raises FileError where it is none."""
    try:
        events = json.loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read ONNX Runtime's profile {path}: {problem}") from None
    return parse_events(events, warmup)


def parse_events(events: Sequence[Mapping[str, Any]], warmup: int = 0) -> Profile:
    """The profile of a list of events (see the module), without the first ``warmup`` runs of the model."""
    spans = sorted((int(e["ts"]), int(e["ts"]) + int(e["dur"])) for e in events if e.get("name") == "model_run")
    spans = spans[warmup:]
    start = spans[0][0] if spans else 0
    nodes = [e for e in events if _is_node(e) and int(e["ts"]) >= start]
    kernels = [e for e in events if e.get("cat") == "Kernel" and int(e["ts"]) >= start and e["args"].get("op_name")]
    ran = {(e["name"], e["args"].get("node_index", "")): e["args"] for e in nodes}
    runs = max(len(spans), 1)
    return Profile(
        runs=len(spans),
        ops=_device_ops(nodes, kernels, runs) if kernels else _host_ops(nodes, runs),
        nodes=len(ran),
        low_nodes=sum(_is_low(args) for args in ran.values()),
        providers=dict(sorted(Counter(args.get("provider", "") for args in ran.values()).items())),
        arena=max((int(e["args"]["mem_in_use_peak"]) for e in nodes if "mem_in_use_peak" in e["args"]), default=None),
        device_times=bool(kernels),
    )


def _is_node(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL)


def _is_low(args: Mapping[str, Any]) -> bool:
    if args.get("op_name") == "Cast":
        return False
    return any(name in LOW for slot in args.get("output_type_shape", ()) for name in slot)


def _host_ops(nodes: Iterable[Mapping[str, Any]], runs: int) -> tuple[OpTime, ...]:
    """Time by op type; a node that ran inside another (the body of a Loop) counts for itself alone."""
    calls: Counter[str] = Counter()
    micros: dict[str, float] = defaultdict(float)
    open_nodes: dict[Any, list[tuple[int, str]]] = defaultdict(list)  # by thread: (end, op type) of what encloses
    for event in sorted(nodes, key=lambda e: (int(e["ts"]), -int(e["dur"]))):
        op, start, duration = event["args"].get("op_name", ""), int(event["ts"]), int(event["dur"])
        around = open_nodes[event.get("tid")]
        while around and around[-1][0] <= start:
            around.pop()
        if around and start + duration <= around[-1][0]:
            micros[around[-1][1]] -= duration
        calls[op] += 1
        micros[op] += duration
        around.append((start + duration, op))
    return _ranked(calls, micros, runs)


def _device_ops(
    nodes: Iterable[Mapping[str, Any]], kernels: Iterable[Mapping[str, Any]], runs: int
) -> tuple[OpTime, ...]:
    calls = Counter(e["args"].get("op_name", "") for e in nodes)
    micros: dict[str, float] = defaultdict(float)
    for event in kernels:
        micros[event["args"]["op_name"]] += int(event["dur"])
    return _ranked(calls, micros, runs)


def _ranked(calls: Counter[str], micros: Mapping[str, float], runs: int) -> tuple[OpTime, ...]:
    ops = (OpTime(op, count / runs, max(micros.get(op, 0.0), 0.0) / runs / 1e6) for op, count in calls.items())
    return tuple(sorted(ops, key=lambda op: (-op.seconds, op.op_type)))
