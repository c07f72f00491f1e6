"""Check the promises S7.1 to S7.13 about a rewritten model, from the two models alone.

``check_contract`` raises AssertionError with the number of the broken point and the reason. Points 6 and 9
need more than two models: ``check_idempotent`` applies the policy again, and the tests of saving check files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from tests.support import contract_casts, contract_constants
from tests.support.evaluation import ort_session
from tests.support.pairing import Pairing, ScopePair, is_constant
from tests.support.scopes import (
    MARK,
    Scope,
    View,
    cast_target,
    dtype_name,
    elem_type,
    is_marked,
    is_marked_cast,
    reads,
    subgraphs,
)

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
LOW_DTYPES = (np.float16, ml_dtypes.bfloat16)


def check_contract(
    original: onnx.ModelProto | str | Path,
    result: Any,
    plan: Any = None,
    *,
    io: str = "keep",
    runtime: bool = True,
    constants: str = "keep",
) -> None:
    """Assert every point that the two models show.

    ``result`` is a RewriteResult or a ModelProto. An optional ``plan`` gives the low type and the list of
    Cast, and its decisions are compared with the file. ``runtime`` loads both models in ONNX Runtime's CPU
    provider (float16 only: it has few bfloat16 kernels).
    """
    before = onnx.load(original) if isinstance(original, str | Path) else original
    after = result if isinstance(result, onnx.ModelProto) else result.model
    low = {"float16": FLOAT16, "bfloat16": BFLOAT16}[plan.policy.mode.low] if plan else FLOAT16
    cast_is_black = bool(plan) and plan.policy.lists.list_of("Cast") == "black"
    if plan:
        constants = "clamp all" if plan.policy.clamp == "all" else plan.policy.constants
    old, new = View(before), View(after)
    pairing = Pairing(old, new)
    check_accepted(before, after)
    if runtime and low == FLOAT16:
        check_loads(before, after)
    check_signature(before, after, io=io)
    check_metadata(before, after)
    check_sorted(new)
    check_new_names(pairing)
    check_value_info(after, new)
    contract_casts.check(old, new, cast_is_black=cast_is_black)
    check_nodes(pairing)
    check_islands(pairing, low)
    changed_slots = plan.solution.changed_slots if plan else {}
    limits = {limit for slots in changed_slots.values() for limit in slots.values()}
    contract_constants.check(pairing, low, constants, limits)
    check_other_fields(before, after)
    if plan:
        check_plan(pairing, plan)


# -- point 1 --------------------------------------------------------------------------------------
def check_accepted(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that the full checker accepts the result if it accepts the input."""
    if _error(lambda: onnx.checker.check_model(before, full_check=True)) is None:
        error = _error(lambda: onnx.checker.check_model(after, full_check=True))
        assert error is None, f"point 1: the checker refuses the result: {error}"


def check_loads(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that ONNX Runtime's CPU provider loads the result if it loads the input."""
    if _error(lambda: ort_session(before)) is None:
        error = _error(lambda: ort_session(after))
        assert error is None, f"point 1: ONNX Runtime refuses the result: {error}"


def _error(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:  # whatever the checker or the runtime raises is a refusal
        return error
    return None


# -- point 2 --------------------------------------------------------------------------------------
def check_signature(before: onnx.ModelProto, after: onnx.ModelProto, *, io: str = "keep") -> None:
    """Assert that names, order, types and shapes of graph inputs and outputs are unchanged.

    With another ``io`` those whose type changes have one type.
    """
    changed: set[int] = set()
    for side in ("input", "output"):
        old, new = getattr(before.graph, side), getattr(after.graph, side)
        assert [v.name for v in old] == [v.name for v in new], f"point 2: {side} names or order changed"
        for old_value, new_value in zip(old, new, strict=True):
            expected_type, actual_type = onnx.TypeProto(), onnx.TypeProto()
            expected_type.CopyFrom(old_value.type)
            actual_type.CopyFrom(new_value.type)
            if io != "keep" and elem_type(old_value.type) != elem_type(new_value.type):
                lists_act = elem_type(old_value.type) in (FLOAT, FLOAT16, BFLOAT16)
                assert lists_act, f"point 2: {side} {old_value.name} was {dtype_name(elem_type(old_value.type))}"
                assert old_value.type.HasField("tensor_type"), f"point 2: {side} {old_value.name} is no tensor"
                expected_type.tensor_type.elem_type = actual_type.tensor_type.elem_type
                changed.add(elem_type(new_value.type))
            assert expected_type == actual_type, (
                f"point 2: type or shape of {side} {old_value.name} changed: {actual_type}"
            )
    assert len(changed) <= 1, f"point 2: inputs and outputs became {sorted(map(dtype_name, changed))}"


def check_metadata(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that metadata, opset imports and IR version are unchanged, except for the keys that mixlist adds."""
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(before, field) == getattr(after, field), f"point 2: {field} changed"
    for field in ("name", "doc_string"):
        assert getattr(before.graph, field) == getattr(after.graph, field), f"point 2: graph {field} changed"
    old = {(o.domain, o.version) for o in before.opset_import}
    new = {(o.domain, o.version) for o in after.opset_import}
    assert old == new, f"point 2: opset imports {sorted(old)} became {sorted(new)}"
    for old_holder, name in ((before, "model"), (before.graph, "graph")):
        new_holder = after if name == "model" else after.graph
        new_properties = [(p.key, p.value) for p in new_holder.metadata_props if not p.key.startswith(MARK)]
        old_properties = [(p.key, p.value) for p in old_holder.metadata_props if not p.key.startswith(MARK)]
        assert new_properties == old_properties, f"point 2: {name} metadata {old_properties} became {new_properties}"


# -- point 3 --------------------------------------------------------------------------------------
def check_sorted(new: View) -> None:
    """Assert that every node comes after the producers of all values that it reads, captured values included."""
    for scope in new.scopes():
        produced = set(scope.producers)
        available: set[str] = scope.defined - produced
        for node in scope.nodes:
            late = {name for name in reads(node) & produced if name not in available}
            assert not late, f"point 3: {node.op_type} {node.name!r} in {scope.path!r} reads {sorted(late)} too early"
            unknown = {name for name in node.input if name and scope.resolve(name) is None}
            assert not unknown, f"point 3: {node.op_type} {node.name!r} in {scope.path!r} reads unknown {unknown}"
            available |= set(node.output)


def check_new_names(pairing: Pairing) -> None:
    """Assert that every new name of a value or a node is unique across all scopes."""
    old, new = pairing.before, pairing.after
    old_names = {name for scope in old.scopes() for name in scope.defined}
    old_node_names = {node.name for scope in old.scopes() for node in scope.nodes}
    new_names = Counter(name for pair in pairing.pairs for name in pair.after.defined - pair.before.defined)
    duplicates = [name for name, count in new_names.items() if count > 1 or name in old_names]
    assert not duplicates, f"point 3: new value names that are not unique: {duplicates}"
    nodes = Counter(node.name for scope in new.scopes() for node in scope.nodes if node.name)
    duplicates = [name for name, count in nodes.items() if name not in old_node_names and count > 1]
    assert not duplicates, f"point 3: new node names used twice: {duplicates}"
    for scope in new.scopes():
        outputs = Counter(name for node in scope.nodes for name in node.output if name)
        duplicates = [name for name, count in outputs.items() if count > 1]
        assert not duplicates, f"point 3: {duplicates} is made twice in {scope.path!r}"


def check_value_info(after: onnx.ModelProto, view: View) -> None:
    """Assert that no value_info names a missing tensor or contradicts inference; ``view`` is that of the model."""

    def compare(graph: Any, scope: Scope) -> None:
        for value in graph.value_info:
            label = f"value_info of {value.name} in {scope.path!r}"
            assert value.name in scope.defined, f"point 3: {label} names a missing tensor"
            inferred = scope.types.get(value.name)
            assert inferred is None or _agree(value.type, inferred), f"point 3: {label} contradicts inference"
        inner = iter(scope.subscopes)
        for node in graph.node:
            for _, sub in subgraphs(node):
                compare(sub, next(inner))

    compare(after.graph, view.main)


def _agree(a: onnx.TypeProto, b: onnx.TypeProto) -> bool:
    if a.WhichOneof("value") != b.WhichOneof("value"):
        return not (a.WhichOneof("value") and b.WhichOneof("value"))
    if a.HasField("sequence_type"):
        return _agree(a.sequence_type.elem_type, b.sequence_type.elem_type)
    if a.HasField("optional_type"):
        return _agree(a.optional_type.elem_type, b.optional_type.elem_type)
    x, y = a.tensor_type, b.tensor_type
    if x.elem_type and y.elem_type and x.elem_type != y.elem_type:
        return False
    if not (x.HasField("shape") and y.HasField("shape")):
        return True
    if len(x.shape.dim) != len(y.shape.dim):
        return False
    pairs = zip(x.shape.dim, y.shape.dim, strict=True)
    return all(p.dim_value == q.dim_value for p, q in pairs if p.HasField("dim_value") and q.HasField("dim_value"))


# -- point 5 --------------------------------------------------------------------------------------
def _keeps_fill(node: onnx.NodeProto, rewritten: onnx.NodeProto) -> bool:
    """Return whether a ConstantOfShape makes its number, rounded to a low type (S4.44), or a reduced mask (S4.36)."""
    before, after = _fill(node), _fill(rewritten)
    if before.dtype not in (np.float32, *LOW_DTYPES) or after.dtype not in (np.float32, *LOW_DTYPES):
        return bool(before.dtype == after.dtype and before == after)
    with np.errstate(all="ignore"):
        is_rounded = before.astype(after.dtype) == after
    old, new = before.astype(np.float64), after.astype(np.float64)
    return bool(is_rounded or (np.sign(old) == np.sign(new) and 1e4 <= abs(new) < abs(old) < np.inf))


def _fill(node: onnx.NodeProto) -> np.ndarray:
    tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
    return numpy_helper.to_array(tensors[0]).reshape(-1)[0] if tensors else np.float32(0)


def _may_go(node: onnx.NodeProto, pair: ScopePair) -> bool:
    """Return whether a Cast may go, because nothing in the result reads what it made (Rule S7.7)."""
    if node.op_type != "Cast" or node.domain not in ("", "ai.onnx"):
        return False
    had_readers = any(node.output[0] in reads(reader) for reader in pair.before.nodes)
    return had_readers and all(node.output[0] not in reads(reader) for reader in pair.after.nodes)


def _merges_casts(node: onnx.NodeProto, rewritten: onnx.NodeProto, pair: ScopePair) -> bool:
    """Return whether a Cast of integers makes float16 now, which its readers read (Rule S4.45)."""
    if node.op_type != "Cast" or (cast_target(node), cast_target(rewritten)) != (FLOAT, FLOAT16):
        return False
    return pair.before.elem_type(node.input[0]) not in (FLOAT, FLOAT16, BFLOAT16, TensorProto.DOUBLE)


def check_nodes(pairing: Pairing) -> None:
    """Assert that the result has exactly the nodes of the user, Casts included, with the same attributes."""
    for pair in pairing.pairs:
        place = f"in {pair.before.path!r}"
        name_counts = Counter(node.name for node, _ in pair.nodes)
        kept_names: set[str] = set()
        removed = 0
        for node, rewritten in pair.nodes:
            if is_constant(node) or is_marked_cast(node):
                continue
            label = f"{node.op_type} {node.name!r} {place}"
            if rewritten is None and _may_go(node, pair):
                removed += 1
                continue
            assert rewritten is not None, f"point 5: {label} is gone"
            # Of several nodes of one name, one keeps it (Rule S7.18).
            may_change = node.name in kept_names or (node.name and name_counts[node.name] > 1)
            assert may_change or node.name == rewritten.name, f"point 5: {label} is now called {rewritten.name!r}"
            assert not rewritten.name or rewritten.name not in kept_names, f"point 5: two nodes {rewritten.name!r}"
            kept_names.add(rewritten.name)
            assert [bool(o) for o in node.output] == [bool(o) for o in rewritten.output], f"point 5: outputs of {label}"
            assert [bool(i) for i in node.input] == [bool(i) for i in rewritten.input], f"point 5: inputs of {label}"
            assert (node.op_type, node.domain) == (rewritten.op_type, rewritten.domain), (
                f"point 5: {label} changed type"
            )
            may_change = node.op_type == "ConstantOfShape" and not node.domain and _keeps_fill(node, rewritten)
            may_change |= _merges_casts(node, rewritten, pair)
            same = may_change or _attributes(node) == _attributes(rewritten)
            assert same, f"point 5: attributes of {label} changed"
            assert is_marked(node) == is_marked(rewritten), f"point 5: {label} carries a mark"
        counts = [
            sum(not is_constant(n) and not is_marked_cast(n) for n in scope.nodes)
            for scope in (pair.before, pair.after)
        ]
        assert counts[0] - removed == counts[1], f"point 5: {counts[0]} nodes became {counts[1]} {place}"


def _attributes(node: onnx.NodeProto) -> dict[str, bytes]:
    plain_attributes = [a for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    return {a.name: a.SerializeToString(deterministic=True) for a in plain_attributes}


def check_islands(pairing: Pairing, low: int) -> None:
    """Assert that tensors of float64, integers, bool, string and the other low type keep their type."""
    for pair in pairing.pairs:
        for name, type_proto in pair.before.types.items():
            old_elem = elem_type(type_proto)
            if old_elem in (FLOAT, low, None) or name not in pair.after.types:
                continue
            new_elem = elem_type(pair.after.types[name])
            assert new_elem == old_elem, (
                f"point 5: {name} in {pair.before.path!r} was {dtype_name(old_elem)}, is {dtype_name(new_elem)}"
            )


# -- point 8 --------------------------------------------------------------------------------------
def check_other_fields(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that the rewritten model keeps the fields that a view does not show."""
    annotations = [list(m.graph.quantization_annotation) for m in (before, after)]
    assert annotations[0] == annotations[1], "point 8: quantization_annotation changed"
    _check_sparse(before, after)
    assert list(before.training_info) == list(after.training_info), "point 8: training_info changed"
    assert list(before.functions) == list(after.functions), "point 8: model-local functions changed"


def _check_sparse(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that sparse initializers keep their order and are the same or converted; copies come after them."""
    old_tensors, new_tensors = list(before.graph.sparse_initializer), list(after.graph.sparse_initializer)
    assert len(new_tensors) >= len(old_tensors), "point 8: sparse initializers are lost"
    for old_tensor, new_tensor in zip(old_tensors, new_tensors, strict=False):
        name = old_tensor.values.name
        assert (new_tensor.values.name, new_tensor.indices, new_tensor.dims) == (
            name,
            old_tensor.indices,
            old_tensor.dims,
        ), f"point 8: sparse {name!r}"
        if new_tensor.values.data_type == old_tensor.values.data_type:
            assert new_tensor == old_tensor, f"point 8: sparse {name!r} changed"


# -- the plan -------------------------------------------------------------------------------------
def check_plan(pairing: Pairing, plan: Any) -> None:
    """Assert that every output has the type of the plan."""
    decided: dict[tuple[str, str], tuple[Any, str]] = {}
    for decision in plan.nodes:
        for output, dtype in decision.outputs.items():
            decided[decision.scope, output] = decision, dtype
    for pair in pairing.pairs:
        for node, rewritten in pair.nodes:
            for i, name in enumerate(node.output):
                if not name or rewritten is None or is_marked_cast(node):
                    continue
                assert (pair.before.path, name) in decided, f"plan: no decision for {name!r} in {pair.before.path!r}"
                decision, dtype = decided[pair.before.path, name]
                actual_type = dtype_name(pair.after.elem_type(rewritten.output[i]))
                agrees = dtype.rstrip(")").endswith(f"({actual_type}") or actual_type in (dtype, "unknown")
                is_moved_constant = is_constant(node)
                assert agrees or is_moved_constant, (
                    f"plan: {decision.name} makes {actual_type}, decided was {dtype} ({decision.reason})"
                )


# -- point 6 --------------------------------------------------------------------------------------
def check_idempotent(result: onnx.ModelProto, apply: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Assert that applying the same policy to the result gives the same bytes."""
    second_result = apply(result)
    is_same = second_result.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    assert is_same, "point 6: applying twice differs:\n" + _difference(result, second_result)


def _difference(a: onnx.ModelProto, b: onnx.ModelProto) -> str:
    import difflib

    texts = [onnx.printer.to_text(m).splitlines() for m in (a, b)]
    lines = list(difflib.unified_diff(*texts, "once", "twice", lineterm="", n=1))
    return "\n".join(lines[:60]) or "(the text is the same; metadata or order of fields differs)"
