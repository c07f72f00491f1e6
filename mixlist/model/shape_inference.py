"""Run ONNX's shape inference within bounds of memory and time. Only this module calls it.

A small model file can make ONNX's inference take all memory, or run for hours, for two reasons:

- Inference visits the body of a function again for each call. ``refuse_large_expansion`` counts the nodes that it would
  visit, and refuses a model with too many.
- Inference with data propagation follows the values of shapes, for example through ``Shape -> Gather -> Add``. It then
  stores 140 to 210 bytes for each element of every vector that an operator like Add reads. ``_propagated_elements``
  counts these elements before. If they cannot be counted, because the length of a vector is itself computed, the
  helper process runs the data propagation. It may take ``PROCESS_SECONDS`` and ``PROCESS_MEMORY`` bytes. Windows and
  macOS have no limit of memory for a process, so there the time alone limits it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import canonical_domain
from mixlist.model import dtypes
from mixlist.model.protos import FunctionKey, function_key, nodes_in, scopes_in

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, ValueInfoProto

    from mixlist.model.protos import RootProto

# Nodes of a model in which every call is replaced by the nodes of its function.
MOST_EXPANDED_NODES = 20_000
PROCESS_MEMORY = 1 << 29  # bytes that the data propagation of a model may take in the helper process
PROCESS_SECONDS = 4.0  # for each model
# Up to this many elements, data propagation needs no other process: it takes some 200 MB and one second.
_MOST_PROPAGATED = 1 << 20


def infer_shapes(model: ModelProto, *, strict: bool = False) -> ModelProto:
    """Return a copy of a model with the shapes that ONNX infers without data propagation.

    ``strict`` also checks the types of all nodes. Raises ModelError for too many function calls, MemoryError, and the
    errors of onnx: with ``strict``, its InferenceError for the first node that is invalid.
    """
    from onnx import shape_inference

    refuse_large_expansion(model)
    return shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict)


def find_fault(model: ModelProto, infers: bool) -> str | None:
    """Return why onnx's checker refuses a model, None if it accepts it; with ``infers``, shapes and types count, too.

    A model of more than 2 GiB, or with too many function calls, is not checked. Raises ModelError for functions that
    call each other without end, and MemoryError.
    """
    from onnx import checker

    if model.functions and _expanded_nodes(model) > _node_limit(model):
        return None
    try:
        message = model.SerializeToString()
    except Exception:  # protobuf's own error type differs by implementation
        return None
    try:
        checker.check_model(message, full_check=infers, skip_opset_compatibility_check=True)
    except MemoryError:
        raise
    except Exception as error:  # onnx raises its own ValidationError or InferenceError, by fault
        return _shorten(str(error).strip() or type(error).__name__)
    return None


def _shorten(text: str) -> str:
    """Return the first fault of an error of onnx, with the node that has it and the names of types, in one line."""
    text = re.sub(r"\[\w+Error\] |Inference error\(s\): |==> Context: ", "", text)
    text = re.sub(r"(?<=\btype of )\d+", lambda number: dtypes.type_name(int(number[0])), text)
    lines = text.split("\n")
    # Shape inference has a line for each node that it refuses. The checker has several lines for one node.
    return lines[0] if "node name:" in lines[0] else " ".join(filter(None, lines))


def infer_shapes_with_data_propagation(model: ModelProto, earlier: ModelProto | None = None) -> tuple[ModelProto, bool]:
    """Return a copy of a model with the shapes that ONNX infers, with data propagation if its cost is acceptable.

    The second result is True if data propagation took too much memory or time.

    ``earlier``: the result of a previous call for this model, which has more constants now. It saves one inference.
    Raises the same errors as ``infer_shapes``, and ValueError with onnx's message if the helper process finds an error
    in the model.
    """
    from onnx import shape_inference

    # More constants do not change a length that inference knew before, so the elements of ``earlier`` can be counted.
    count = _propagated_elements(earlier) if earlier is not None else None
    inferred = earlier
    if inferred is None or count is None:
        inferred = infer_shapes(model)
        count = _propagated_elements(inferred)
    # The cost is unknown, so the helper process tries within limits.
    if count is None:
        propagated = _propagate_values(model)
        return (inferred, True) if propagated is None else (propagated, False)
    if count > _MOST_PROPAGATED:
        # Too many elements: return the shapes without data propagation. ``earlier`` itself lacks the new constants.
        return infer_shapes(model) if inferred is earlier else inferred, False
    return shape_inference.infer_shapes(model, data_prop=True), False


# --- calls of functions ---


def refuse_large_expansion(model: ModelProto) -> None:
    """Raise ModelError if a model has too many nodes once every call is replaced by the nodes of its function.

    30 functions, each of which calls the next one twice, expand to 2^30 nodes. The limit is ``MOST_EXPANDED_NODES``, or
    ten times the nodes in the file if these are more.
    """
    if not model.functions:
        return
    total, limit = _expanded_nodes(model), _node_limit(model)
    if total > limit:
        raise ModelError(
            f"the function calls of the model expand to {total:,} nodes, more than {limit:,}",
            hint="this needs every call expanded, as ONNX Runtime does; inline or remove functions that call functions",
        )


def _expanded_nodes(model: ModelProto) -> int:
    """Return the number of nodes after every call is replaced; raise ModelError if functions call each other."""
    functions = {function_key(function): function for function in model.functions}
    calls = {key: _count_calls(function, functions) for key, function in functions.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())  # a function comes after the functions that it calls
    except CycleError as error:
        names = " -> ".join(f"{domain}:{name}" for domain, name, _ in error.args[1])
        raise ModelError(f"the functions of the model call each other without end: {names}") from None
    # The counts come from arithmetic alone: expanding such a model would take all memory.
    expanded_nodes: dict[FunctionKey, int] = {}
    for key in order:
        own_nodes = sum(1 for _ in nodes_in(functions[key]))
        expanded_nodes[key] = own_nodes + sum(expanded_nodes[callee] * n for callee, n in calls[key].items())
    main_calls = _count_calls(model.graph, functions)
    return sum(1 for _ in nodes_in(model.graph)) + sum(expanded_nodes[callee] * n for callee, n in main_calls.items())


def _node_limit(model: ModelProto) -> int:
    """Return the largest number of nodes that mixlist lets a model expand to."""
    return max(MOST_EXPANDED_NODES, 10 * sum(1 for _ in nodes_in(model.graph, *model.functions)))


def _count_calls(root: RootProto, functions: dict[FunctionKey, FunctionProto]) -> Counter[FunctionKey]:
    """Return the number of calls of each function in a graph or function, and in the bodies in it."""
    keys = ((node.domain, node.op_type, node.overload) for node in nodes_in(root))
    return Counter(key for key in keys if key in functions)


# --- the cost of data propagation ---


@cache
def _propagating_operators() -> frozenset[tuple[str, str]]:
    """Return domain and op type of the operators whose values onnx propagates, element by element."""
    from onnx import defs

    schemas = defs.get_all_schemas_with_history()
    return frozenset((schema.domain, schema.name) for schema in schemas if schema.has_data_propagation_function)


@cache
def _expanded_operators() -> frozenset[tuple[str, str]]:
    """Return domain and op type of the operators without inference of their own: onnx infers their function body."""
    from onnx import defs

    schemas = defs.get_all_schemas()
    return frozenset((s.domain, s.name) for s in schemas if not s.has_type_and_shape_inference_function)


def _propagated_elements(inferred: ModelProto) -> int | None:
    """Return the number of elements that data propagation would store; None if it is unknown.

    ``inferred`` is the model after inference without data propagation. The number is unknown if an operator reads a
    tensor that may be a vector whose length only data propagation can find, or if a node calls a function, because the
    types inside a function depend on the call.
    """
    functions = {(function.domain, function.name) for function in inferred.functions}
    # Names are unique within a scope only. The longest vector of a name counts, so that the count is never too low.
    lengths: Counter[str] = Counter()
    unknown_lengths: set[str] = set()
    for scope in scopes_in(inferred.graph):
        _add_lengths(scope, lengths, unknown_lengths)
    count = 0
    for node in nodes_in(inferred.graph):
        operator = (canonical_domain(node.domain), node.op_type)
        # onnx infers a body of a function there, and its vectors are not in the lists above.
        if (node.domain, node.op_type) in functions or operator in _expanded_operators():
            return None
        if operator in _propagating_operators() and node.op_type != "Shape":  # Shape reads no elements
            if any(name in unknown_lengths for name in node.input):
                return None
            count += sum(lengths[name] for name in (*node.input, *node.output) if name in lengths)
    return count


def _add_lengths(scope: GraphProto, lengths: Counter[str], unknown_lengths: set[str]) -> None:
    """Add the lengths of a scope's vectors by name, and the names of tensors that may be vectors of unknown length."""
    declared: dict[str, ValueInfoProto] = {}
    for value_info in (*scope.value_info, *scope.output, *scope.input):
        declared[value_info.name] = value_info
        tensor = value_info.type.tensor_type
        if len(tensor.shape.dim) == 1:
            lengths[value_info.name] = max(lengths[value_info.name], tensor.shape.dim[0].dim_value)
    for weight in scope.initializer:
        if len(weight.dims) == 1:
            lengths[weight.name] = max(lengths[weight.name], weight.dims[0])
    names = [value_info.name for value_info in scope.input]
    for node in scope.node:
        if node.op_type != "Shape":
            # A Shape makes one element for each dimension of its input, so a few.
            names += node.output
    unknown_lengths.update(name for name in names if name not in declared or not _has_known_length(declared[name]))


def _has_known_length(value_info: ValueInfoProto) -> bool:
    """Return True if a value is no vector, or a vector of known length."""
    tensor = value_info.type.tensor_type
    if not value_info.type.HasField("tensor_type"):
        return value_info.type.WhichOneof("value") is not None  # a sequence, optional or map; None: no type at all
    return tensor.HasField("shape") and (len(tensor.shape.dim) != 1 or tensor.shape.dim[0].HasField("dim_value"))


# --- the process that propagates values ---


def _propagate_values(model: ModelProto) -> ModelProto | None:
    """Return a copy of a model with the shapes that ONNX infers with data propagation, in the helper process.

    Returns None if that takes too much memory or time, or if ONNX crashes. Raises ValueError with onnx's message if
    onnx finds an error in the model.
    """
    message = model.SerializeToString()
    from mixlist.worker_processes import helper_process  # imports 10 ms of modules

    with helper_process() as process:
        try:
            inferred, error = process.call(
                partial(_infer_in_helper, message), seconds=PROCESS_SECONDS, memory=PROCESS_MEMORY
            )
        except ModelError:
            return None
    if error:
        raise ValueError(error)
    return type(model).FromString(inferred)


def _infer_in_helper(message: bytes) -> tuple[bytes, str]:
    """Return a serialized model with its shapes, or the text of onnx's error."""
    infer_shapes = _load_onnx_library().shape_inference.infer_shapes
    try:
        # The flags are check_type, strict_mode and data_prop.
        return infer_shapes(message, False, False, True), ""
    except MemoryError:
        raise
    except Exception as error:
        return b"", str(error) or type(error).__name__


def _load_onnx_library() -> Any:  # a module in C++, which has no type hints
    """Return onnx's C++ library alone: to import the package onnx takes 0.2 s longer."""
    name = "onnx.onnx_cpp2py_export"
    if name not in sys.modules:
        package = find_spec("onnx")
        assert package is not None and package.submodule_search_locations is not None
        spec = PathFinder.find_spec(name, package.submodule_search_locations)
        assert spec is not None and spec.loader is not None
        library = module_from_spec(spec)
        spec.loader.exec_module(library)
        # A later import of onnx takes the same library.
        sys.modules[name] = library
    return sys.modules[name]
