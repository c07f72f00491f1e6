"""The only place that calls ONNX's shape inference, because a small file can make it take all memory or never end.

Two things make it run away:

- It infers the body of a function anew for each call. ``refuse_large_expansion`` counts the nodes that this makes.
- It can follow the values of shapes (data propagation). It then notes one element, 140 to 210 bytes, for each element
  of every vector that an operator like Add reads. ``_propagated_elements`` counts the elements that are known before.
  If they cannot be counted, because the length of a vector is itself computed, a process of its own follows the
  values: it has ``SECONDS`` and, where the system has such a limit, ``MEMORY`` bytes. Windows and macOS have none, so
  there the time alone limits the process.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, NamedTuple, cast

from mixlist.errors import ModelError

if TYPE_CHECKING:
    from typing import IO

    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

MOST_EXPANDED_NODES = 20_000  # nodes after every call is replaced by the nodes of its function
MEMORY = 1 << 29  # bytes that the process which follows values may take
SECONDS = 4.0  # that this process may take for one model
_MOST_PROPAGATED = 1 << 20  # elements that are followed in this process: some 200 MB, one second
_GRAPH, _GRAPHS = 5, 10  # AttributeProto.GRAPH and GRAPHS

FunctionId = tuple[str, str, str]  # domain, name, overload


class InferredShapes(NamedTuple):
    """A model with inferred shapes; ``exhausted`` if following the values of shapes took too much memory or time."""

    model: ModelProto
    exhausted: bool


def infer_shapes(model: ModelProto, *, strict: bool = False) -> ModelProto:
    """Return a copy of a model with the shapes that ONNX infers.

    ``strict`` checks the types, and raises an error for the first node that does not fit. Raises ModelError for too
    many function calls, MemoryError, and what onnx raises.
    """
    from onnx import shape_inference

    refuse_large_expansion(model)
    return shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict)


def infer_shapes_with_values(model: ModelProto, earlier: ModelProto | None = None) -> InferredShapes:
    """Return a copy of a model with the shapes that ONNX infers, with the values of shapes followed where affordable.

    ``earlier`` is the result for the same model when fewer of its nodes were constants. Raises what ``infer_shapes``
    does.
    """
    from onnx import shape_inference

    count = _propagated_elements(earlier) if earlier is not None else None
    inferred = earlier
    if inferred is None or count is None:  # lengths that are known do not change any more
        inferred = infer_shapes(model)
        count = _propagated_elements(inferred)
    if count is None:
        followed = _process.follow_values(model.SerializeToString())
        return InferredShapes(inferred if followed is None else type(model).FromString(followed), followed is None)
    if count > _MOST_PROPAGATED:
        return InferredShapes(infer_shapes(model) if inferred is earlier else inferred, False)
    return InferredShapes(shape_inference.infer_shapes(model, data_prop=True), False)


# --- calls of functions ---


def refuse_large_expansion(model: ModelProto) -> None:
    """Raise ModelError if a model has too many nodes once every call is replaced by the nodes of its function.

    Each of 30 functions that calls the next one twice makes 2^30 of them. A model with many nodes in its file may have
    ten times as many.
    """
    if not model.functions:
        return
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {key: _calls(function.node, functions) for key, function in functions.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())  # a function after those that it calls
    except CycleError as error:
        names = " -> ".join(f"{domain}:{name}" for domain, name, _ in error.args[1])
        raise ModelError(f"the functions of the model call each other without end: {names}") from None
    written = {key: _count(function.node) for key, function in functions.items()}
    expanded: dict[FunctionId, int] = {}
    for key in order:
        expanded[key] = written[key] + sum(expanded[called] * times for called, times in calls[key].items())
    main = _count(model.graph.node)
    total = main + sum(expanded[called] * times for called, times in _calls(model.graph.node, functions).items())
    most = max(MOST_EXPANDED_NODES, 10 * (main + sum(written.values())))
    if total > most:
        raise ModelError(
            f"the function calls of the model expand to {total:,} nodes, more than {most:,}",
            hint="this needs every call expanded, as ONNX Runtime does; inline or remove functions that call functions",
        )


def _calls(nodes: Sequence[NodeProto], functions: dict[FunctionId, FunctionProto]) -> Counter[FunctionId]:
    """Return the number of calls of each function in ``nodes`` and in the bodies of these."""
    keys = ((node.domain, node.op_type, node.overload) for node in _all_nodes(nodes))
    return Counter(key for key in keys if key in functions)


def _count(nodes: Sequence[NodeProto]) -> int:
    return sum(1 for _ in _all_nodes(nodes))


def _all_nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Yield ``nodes`` and the nodes of all bodies in them."""
    yield from nodes
    for body in _bodies(nodes):
        yield from body.node


def _bodies(nodes: Sequence[NodeProto]) -> Iterator[GraphProto]:
    """Yield the graphs in the attributes of ``nodes``, and those in them."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.type == _GRAPH else []
                for body in attribute.graphs if attribute.type == _GRAPHS else inner:
                    yield body
                    pending.append(body.node)


# --- values of shapes ---


@cache
def _propagators() -> frozenset[tuple[str, str]]:
    """Return domain and type of the operators that propagate values: they read vectors element by element."""
    from onnx import defs

    schemas = defs.get_all_schemas_with_history()
    return frozenset((schema.domain, schema.name) for schema in schemas if schema.has_data_propagation_function)


@cache
def _expanded_operators() -> frozenset[tuple[str, str]]:
    """Return domain and type of the operators that onnx may infer as it infers the call of a function."""
    from onnx import defs

    schemas = defs.get_all_schemas()
    return frozenset((s.domain, s.name) for s in schemas if not s.has_type_and_shape_inference_function)


def _propagated_elements(inferred: ModelProto) -> int | None:
    """Return the number of elements that data propagation would note; None if it is not known.

    ``inferred`` is the model after inference without data propagation. The number is not known if an operator reads a
    tensor that may be a vector whose length only data propagation could find, or if a node calls a function.
    """
    functions = {(function.domain, function.name) for function in inferred.functions}
    lengths: Counter[str] = Counter()  # of vectors, by name: the longest in any scope
    unknown: set[str] = set()
    for scope in (inferred.graph, *_bodies(inferred.graph.node)):
        _note_lengths(scope, lengths, unknown)
    count = 0
    for node in _all_nodes(inferred.graph.node):
        operator = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if (node.domain, node.op_type) in functions or operator in _expanded_operators():
            return None
        if operator in _propagators() and node.op_type != "Shape":  # Shape reads no elements
            if any(name in unknown for name in node.input):
                return None
            count += sum(lengths[name] for name in (*node.input, *node.output) if name in lengths)
    return count


def _note_lengths(scope: GraphProto, lengths: Counter[str], unknown: set[str]) -> None:
    """Add the lengths of a scope's vectors by name, and the names of tensors that may be vectors of unknown length."""
    stated: dict[str, ValueInfoProto] = {}
    for info in (*scope.value_info, *scope.output, *scope.input):
        stated[info.name] = info
        tensor = info.type.tensor_type
        if len(tensor.shape.dim) == 1:
            lengths[info.name] = max(lengths[info.name], tensor.shape.dim[0].dim_value)
    for weight in scope.initializer:
        if len(weight.dims) == 1:
            lengths[weight.name] = max(lengths[weight.name], weight.dims[0])
    names = [info.name for info in scope.input]
    for node in scope.node:
        if node.op_type != "Shape":  # as many elements as its input has dimensions: few
            names += node.output
    unknown.update(name for name in names if name not in stated or not _has_length(stated[name]))


def _has_length(info: ValueInfoProto) -> bool:
    """Return True if a tensor is no vector, or one of known length."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return info.type.WhichOneof("value") is not None
    return tensor.HasField("shape") and (len(tensor.shape.dim) != 1 or tensor.shape.dim[0].HasField("dim_value"))


_PROCESS = """
import sys, types
package = types.ModuleType("onnx")
package.__path__ = [sys.argv[1]]
sys.modules["onnx"] = package  # the library alone: the Python part of onnx takes 0.3 s to import
from onnx.onnx_cpp2py_export.shape_inference import infer_shapes
try:
    import resource
    most = int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
except (ImportError, OSError, ValueError):
    pass  # Windows and macOS
source, target = sys.stdin.buffer, sys.stdout.buffer
while size := source.read(8):
    try:
        result = b"\\1" + infer_shapes(source.read(int.from_bytes(size, "big")), False, False, True)
    except MemoryError:
        break
    except Exception as error:
        result = b"\\0" + str(error).encode()
    target.write(len(result).to_bytes(8, "big") + result)
    target.flush()
"""


class _Process:
    """A process that follows values for one model after the other; it starts when it is first needed."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        atexit.register(self.close)

    def follow_values(self, model: bytes) -> bytes | None:
        """Return the model with its shapes; None if that takes too much memory or time, or onnx dies of the model.

        Raises ValueError with onnx's message if onnx finds a fault in the model.
        """
        with self._lock:
            process = self._running or self._start()
            timer = Timer(SECONDS, process.kill)
            timer.start()
            try:
                answer = _exchange(process, model)
            except BaseException:  # an interrupt in the middle of an answer
                self.close()
                raise
            finally:
                timer.cancel()
            if answer is None:
                self.close()
                return None
        if answer[:1] == b"\0":
            raise ValueError(answer[1:].decode(errors="replace"))
        return answer[1:]

    def _start(self) -> subprocess.Popen[bytes]:
        import onnx

        command = [sys.executable, "-I", "-S", "-c", _PROCESS, str(Path(onnx.__file__).parent), str(MEMORY)]
        pipe = subprocess.PIPE
        self._running = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        return self._running

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._running = self._running, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # close() writes the rest of a request, which a dead process does not read
                    cast("IO[bytes]", pipe).close()


def _exchange(process: subprocess.Popen[bytes], model: bytes) -> bytes | None:
    """Send a model to the process and return its answer; None if the process ends before."""
    source, target = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    try:
        source.write(len(model).to_bytes(8, "big") + model)
        source.flush()
        size = target.read(8)
        answer = target.read(int.from_bytes(size, "big")) if len(size) == 8 else b""
    except OSError:
        return None
    return answer if answer and len(answer) == int.from_bytes(size, "big") else None


_process = _Process()
