"""Run a model that is larger than memory in segments: load and run one part of the model after another.

A segment is loaded, runs all batches that have been started, hands on the tensors that later segments read, and is
closed. So the memory holds the weights of one segment, however large the model is. ONNX Runtime maps these weights from
their file. The more batches are started before the first one is waited for, the less often a segment is loaded.

``segment_bytes_if_needed`` decides whether a model needs segments, and ``split_by_weights`` cuts it: into segments of
at most N bytes of weights, or a single node, between nodes of the main graph where few bytes cross; a sequence or an
optional never crosses. The report is that of whole models, except for its times. From 20 batches on, ONNX Runtime packs
the weights of whole models, so the last bits of matrix products differ. If ONNX Runtime crashes in a segment, no batch
of the group that ran there is judged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import MixlistError
from mixlist.files.scratch_folder import ScratchFolder, translate_write_errors
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.protos import tensors_in_model
from mixlist.model.shape_propagation import propagate_shapes
from mixlist.model.split import GraphPart, GraphSplitter, count_crossing_bytes
from mixlist.model.weights import declared_byte_size, stored_element_count
from mixlist.run.available_memory import measure_available_memory
from mixlist.run.local_session import RunRefused
from mixlist.run.session import Session

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.run.session import Array, Feed, Outputs

# Models with fewer bytes of weights fit on every machine, so the free memory is not measured for them.
_LEAST_WEIGHTS = 64 * 2**20
DEFAULT_SEGMENT_BYTES = 256 * 2**20
# A cut may move back to a place where fewer bytes cross, as long as its segment keeps this share of the weights.
_LEAST_SHARE = 0.5
MEMORY_BYTES = 256 * 2**20  # of the tensors between segments that stay in memory


# --- whether a model needs segments ---


def segment_bytes_if_needed(loaded: LoadedModel, copies: int, most_weights: int | None = None) -> int | None:
    """Return the most bytes of weights in a segment; None if the model can run whole.

    copies: how often memory holds the weights if the model runs whole.
    most_weights: the most bytes of weights of a model that can run whole, however much memory is free; None for no
        limit.
    """
    total = weight_bytes(loaded)
    if total < _LEAST_WEIGHTS:
        return None
    free = measure_available_memory()
    fits = (free is None or copies * total <= free) and (most_weights is None or total <= most_weights)
    return None if fits else DEFAULT_SEGMENT_BYTES


def weight_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of the model's constants, where those of a low type count as float32."""
    # Strings have no fixed size and are never rounded, so they are left out.
    numbers = [tensor for tensor in tensors_in_model(loaded.proto) if tensor.data_type != dtypes.STRING]
    return sum(
        4 * stored_element_count(tensor) if tensor.data_type in LOW_TYPES else declared_byte_size(tensor)
        for tensor in numbers
    )


# --- where a model is cut ---


def split_by_weights(
    proto: ModelProto, segment_bytes: int, input_shapes: Mapping[str, tuple[int, ...]]
) -> list[GraphPart]:
    """Return the parts of a model in order. Each has at most ``segment_bytes`` of weights, or a single node.

    ``input_shapes``: the shapes of a batch by input name. They show where few bytes cross.
    """
    # A marked Cast of a mixed model is a node: its output can cross, in the type of the Cast.
    graph = build_graph(proto, show_marked_casts=True)
    known_shapes = propagate_shapes(graph, {}, input_shapes)
    cuts = choose_weight_cuts(graph, count_crossing_bytes(graph, known_shapes.shape_of), segment_bytes)
    values = graph.root.values
    tensor_types = {name: value.type for name, value in values.items()}
    computed_constants = frozenset(n for n, value in values.items() if value.is_constant and value.kind == "node")
    return list(GraphSplitter(proto, tensor_types, computed_constants).split([(name,) for name in cuts]))


def choose_weight_cuts(graph: Graph, crossing_bytes: list[int], segment_bytes: int) -> list[str]:
    """Return one tensor of the main graph for each cut. The graph is cut behind the node that makes the tensor.

    ``crossing_bytes``: for each node of the main graph, the bytes of the tensors that later nodes read.
    """
    nodes = graph.root.nodes
    sizes = _WeightSizes()
    cuts: list[str] = []
    start = position = 0
    weights: set[Value] = set()  # those that the segment reads so far
    sizes_up_to: list[int] = []  # for each node of the segment, the bytes of the weights up to it
    while position < len(nodes):
        new_weights = sizes.weights_read_by(nodes[position]) - weights
        total = (sizes_up_to[-1] if sizes_up_to else 0) + sum(map(sizes.size_of, new_weights))
        if total <= segment_bytes or position == start:
            weights |= new_weights
            sizes_up_to.append(total)
            position += 1
            continue
        # This node exceeds the bound. Cut before it, or further back where fewer bytes cross; of equal places the last.
        least = _LEAST_SHARE * sizes_up_to[-1]
        places = [start + index for index, size in enumerate(sizes_up_to) if size >= least]
        best = min(reversed(places), key=lambda place: crossing_bytes[place])
        name = next((value.name_in_file for value in nodes[best].outputs if value is not None), None)
        if name is not None:  # without an output there is nothing to cut at: the next segment is joined to this one
            cuts.append(name)
        start = position = best + 1
        weights, sizes_up_to = set(), []
    return cuts


class _WeightSizes:
    """The weights that nodes read, and their bytes."""

    def __init__(self) -> None:
        self._sources: dict[Value, frozenset[Value]] = {}

    def weights_read_by(self, node: Node) -> set[Value]:
        """Return the weights that a node of the main graph reads, also in its bodies and through computed constants."""
        captured = [value for body in node.bodies.values() for value in (*body.captures, *body.outputs)]
        return {source for value in (*node.inputs, *captured) if value is not None for source in self._trace(value)}

    def _trace(self, value: Value) -> frozenset[Value]:
        """Return the weights from which a constant is computed: itself, if no node computes it."""
        if not value.is_constant:
            return frozenset()
        if value not in self._sources:
            producer = value.producer
            if producer is None or value.constant_proto is not None:
                self._sources[value] = frozenset({value})
            else:
                self._sources[value] = frozenset(self.weights_read_by(producer))
        return self._sources[value]

    @staticmethod
    def size_of(value: Value) -> int:
        """Return the bytes of a weight in its declared type; 0 for strings and for what is not a dense tensor."""
        from onnx import TensorProto

        constant = value.constant_proto
        if not isinstance(constant, TensorProto) or constant.data_type == dtypes.STRING:
            return 0
        return declared_byte_size(constant)


# --- the session ---


@dataclass(eq=False)
class _Run:
    """One batch that was started. ``error``: why it has no outputs, None if it has."""

    output_names: Sequence[str]
    feed: Feed
    error: MixlistError | None = None


class SegmentedSession(Session):
    """A session that holds one segment of its model at a time.

    ``segment_bytes``: the most bytes of weights in a segment; a node that reads more is a segment of its own.
    ``open_session``: opens a session of a segment. The model is loaded at the first run, so that run raises the errors
    of loading.
    """

    def __init__(self, proto: ModelProto, segment_bytes: int, open_session: Callable[[ModelProto], Session]) -> None:
        self._proto, self._segment_bytes, self._open_session = proto, segment_bytes, open_session
        self._parts: list[GraphPart] = []  # chosen for the shapes of the first batch
        self._started: list[_Run] = []
        self._values = ValueStore()

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run. It waits until the outputs of any started run are needed; then all started runs go together."""
        names = [output.name for output in self._proto.graph.output] if output_names is None else output_names
        run = _Run(names, feed)
        self._started.append(run)
        return partial(self._finish, run)

    def _finish(self, run: _Run) -> Outputs:
        if run in self._started:
            runs, self._started = self._started, []
            self._run_segments(runs)
        if run.error is not None:
            raise run.error
        outputs = [self._values.get((run, name)) for name in run.output_names]
        for name in run.output_names:
            self._values.drop((run, name))
        return outputs

    def _run_segments(self, runs: Sequence[_Run]) -> None:
        """Run all segments, each on all batches."""
        if not self._parts:
            shapes = {name: tuple(value.shape) for name, value in runs[0].feed.items()}
            self._parts = split_by_weights(self._proto, self._segment_bytes, shapes)
        requested = {name for run in runs for name in run.output_names}
        needed = requested.union(*(part.input_names for part in self._parts))
        try:
            for index, part in enumerate(self._parts):
                needed_later = requested.union(*(later.input_names for later in self._parts[index + 1 :]))
                with closing(self._open_session(part.model)) as session:
                    for run in runs:
                        if run.error is None:
                            self._run_part(part, session, run, needed, needed_later)
        except MixlistError as error:  # the segment cannot be loaded, or its process died: no run can go on
            for run in runs:
                run.error = run.error or error

    def _run_part(self, part: GraphPart, session: Session, run: _Run, needed: set[str], needed_later: set[str]) -> None:
        """Run one segment on one batch, and store the outputs that are needed."""
        # The data may omit an optional input.
        computed = [name for name in part.input_names if name not in run.feed]
        feed = {name: run.feed[name] for name in part.input_names if name in run.feed}
        feed |= {name: self._values.get((run, name)) for name in computed if (run, name) in self._values}
        names = [name for name in part.output_names if name in needed]
        try:
            outputs = session.run(names, feed) if names else []
        except RunRefused as refused:  # the other batches go on
            run.error = refused
            outputs = []
        for name, value in zip(names, outputs, strict=False):
            self._values.put((run, name), value)
        for name in computed:
            if name not in needed_later or run.error is not None:
                self._values.drop((run, name))

    def close(self) -> None:
        """Forget the runs that were started, and remove the files of values."""
        self._started.clear()
        self._values.close()


class ValueStore:
    """Values of tensors by key. A value that does not fit into ``MEMORY_BYTES`` goes to a temporary file.

    The values of sequences and optionals stay in memory.
    """

    def __init__(self) -> None:
        self._in_memory: dict[Hashable, Array] = {}
        self._in_files: dict[Hashable, Path] = {}
        self._used_bytes = 0
        self._scratch: ScratchFolder | None = None  # made for the first file
        self._file_numbers = count()

    def put(self, key: Hashable, value: Array) -> None:
        """Store the value of a new key. Raises FileError if the file cannot be written."""
        size = getattr(value, "nbytes", 0)  # a sequence is a list, and an empty optional None
        if self._used_bytes + size <= MEMORY_BYTES or not size:
            self._in_memory[key] = value
            self._used_bytes += size
            return
        if self._scratch is None:
            self._scratch = ScratchFolder()
        path = self._scratch.path / f"value_{next(self._file_numbers)}"
        # pickle writes all types of arrays, also bfloat16 and strings, which ``numpy.save`` does not.
        with translate_write_errors(path), path.open("wb") as file:
            pickle.dump(value, file, protocol=5)
        self._in_files[key] = path

    def __contains__(self, key: Hashable) -> bool:
        return key in self._in_memory or key in self._in_files

    def get(self, key: Hashable) -> Array:
        """Return a value."""
        if key in self._in_memory:
            return self._in_memory[key]
        with self._in_files[key].open("rb") as file:
            value: Array = pickle.load(file)
        return value

    def drop(self, key: Hashable) -> None:
        """Forget a value, and remove its file."""
        value = self._in_memory.pop(key, None)
        self._used_bytes -= getattr(value, "nbytes", 0)
        path = self._in_files.pop(key, None)
        if path is not None:
            path.unlink()

    def close(self) -> None:
        """Forget all values, and remove their files."""
        self._in_memory.clear()
        self._in_files.clear()
        self._used_bytes = 0
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None
