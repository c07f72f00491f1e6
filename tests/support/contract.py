"""Check the promises S7.1 to S7.13 about a rewritten model, judged from before and after alone.

``check_contract`` raises AssertionError with the point's number and what breaks it. Points 6 and 9 need
more than two models: ``check_idempotent`` applies again, and files are judged in the tests of saving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto

from tests.support import contract_casts, contract_constants
from tests.support.evaluation import ort_session
from tests.support.pairing import Pairing, is_constant
from tests.support.scopes import MARK, Scope, View, dtype_name, elem_type, is_marked, is_marked_cast, reads, subgraphs

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def check_contract(
    original: onnx.ModelProto | str | Path,
    result: Any,
    plan: Any = None,
    *,
    keep_io_types: bool = True,
    runtime: bool = True,
    constants: str = "keep",
) -> None:
    """Assert every point that the two models show.

    ``result`` is a RewriteResult or a ModelProto. ``plan``, where given, tells the low type and whether
    Cast is on the black list, and its decisions are compared with the file. ``runtime`` loads both models
    in ONNX Runtime's CPU provider (float16 only: it has few bfloat16 kernels).
    """
    before = onnx.load(original) if isinstance(original, str | Path) else original
    after = result if isinstance(result, onnx.ModelProto) else result.model
    low = {"float16": FLOAT16, "bfloat16": BFLOAT16}[plan.policy.mode.low] if plan else FLOAT16
    cast_is_black = bool(plan) and plan.policy.lists.list_of("Cast") == "black"
    if plan:
        constants = plan.policy.constants
    old, new = View(before), View(after)
    pairing = Pairing(old, new)
    check_accepted(before, after)
    if runtime and low == FLOAT16:
        check_loads(before, after)
    check_signature(before, after, keep_io_types=keep_io_types)
    check_metadata(before, after)
    check_sorted(new)
    check_new_names(pairing)
    check_value_info(after, new)
    contract_casts.check(old, new, cast_is_black=cast_is_black)
    check_nodes_kept(pairing)
    check_islands(pairing, low)
    solutions = plan.solution.solutions if plan else ()
    limits = {limit for each in solutions for slots in each.reduced_slots.values() for limit in slots.values()}
    contract_constants.check(pairing, low, constants, limits)
    check_carried(old, before, after)
    if plan:
        check_plan(pairing, plan)


# -- point 1 --------------------------------------------------------------------------------------
def check_accepted(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """The checker (full) passes wherever it passed for the input."""
    if _error(lambda: onnx.checker.check_model(before, full_check=True)) is None:
        error = _error(lambda: onnx.checker.check_model(after, full_check=True))
        assert error is None, f"point 1: the checker refuses the result: {error}"


# What ONNX Runtime 1.31's optimizer says where inlining a function makes a second Cast of one tensor visible
# in another scope; the same model loads without optimisation.
OPTIMIZER_DEFECTS = ("the graph is not acyclic", "UpdateImplicitInputNameInSubgraph")


def check_loads(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """ONNX Runtime's CPU provider loads it wherever it loaded the input."""
    if _error(lambda: ort_session(before)) is None:
        error = _error(lambda: ort_session(after))
        if after.functions and any(text in str(error) for text in OPTIMIZER_DEFECTS):
            error = _error(lambda: ort_session(after, optimize=False))
        assert error is None, f"point 1: ONNX Runtime refuses the result: {error}"


def _error(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:  # whatever the checker or the runtime raises is a refusal
        return error
    return None


# -- point 2 --------------------------------------------------------------------------------------
def check_signature(before: onnx.ModelProto, after: onnx.ModelProto, *, keep_io_types: bool = True) -> None:
    """Names, order, types and shapes of graph inputs and outputs are unchanged."""
    for side in ("input", "output"):
        old, new = getattr(before.graph, side), getattr(after.graph, side)
        assert [v.name for v in old] == [v.name for v in new], f"point 2: {side} names or order changed"
        for a, b in zip(old, new, strict=True):
            want, got = onnx.TypeProto(), onnx.TypeProto()
            want.CopyFrom(a.type)
            got.CopyFrom(b.type)
            if not keep_io_types and elem_type(a.type) != elem_type(b.type):
                lists_act = elem_type(a.type) in (FLOAT, FLOAT16, BFLOAT16)
                assert lists_act, f"point 2: {side} {a.name} was {dtype_name(elem_type(a.type))}"
                assert a.type.HasField("tensor_type"), f"point 2: {side} {a.name} is no tensor"
                want.tensor_type.elem_type = got.tensor_type.elem_type
                assert side == "output" or not _is_cast_back(after, a.name), f"point 2: input {a.name} is cast back"
            assert want == got, f"point 2: type or shape of {side} {a.name} changed: {got}"


def _is_cast_back(after: onnx.ModelProto, name: str) -> bool:
    return any(is_marked_cast(node) and name in node.input for node in after.graph.node)


def check_metadata(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Metadata, opset imports and IR version are unchanged but for the keys that mixlist adds."""
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(before, field) == getattr(after, field), f"point 2: {field} changed"
    for field in ("name", "doc_string"):
        assert getattr(before.graph, field) == getattr(after.graph, field), f"point 2: graph {field} changed"
    old = {(o.domain, o.version) for o in before.opset_import}
    new = {(o.domain, o.version) for o in after.opset_import}
    assert old == new, f"point 2: opset imports {sorted(old)} became {sorted(new)}"
    for holder, name in ((before, "model"), (before.graph, "graph")):
        other = after if name == "model" else after.graph
        kept = [(p.key, p.value) for p in other.metadata_props if not p.key.startswith(MARK)]
        had = [(p.key, p.value) for p in holder.metadata_props if not p.key.startswith(MARK)]
        assert kept == had, f"point 2: {name} metadata {had} became {kept}"


# -- point 3 --------------------------------------------------------------------------------------
def check_sorted(new: View) -> None:
    """Every node stands after what it reads, captured values included."""
    for scope in new.scopes():
        made = set(scope.producers)
        done: set[str] = scope.defined - made
        for node in scope.nodes:
            late = {name for name in reads(node) & made if name not in done}
            assert not late, f"point 3: {node.op_type} {node.name!r} in {scope.path!r} reads {sorted(late)} too early"
            unknown = {name for name in node.input if name and scope.resolve(name) is None}
            assert not unknown, f"point 3: {node.op_type} {node.name!r} in {scope.path!r} reads unknown {unknown}"
            done |= set(node.output)


def check_new_names(pairing: Pairing) -> None:
    """Every new name, of values and nodes alike, is unique across all scopes."""
    old, new = pairing.before, pairing.after
    known = {name for scope in old.scopes() for name in scope.defined}
    known_nodes = {node.name for scope in old.scopes() for node in scope.nodes}
    fresh = Counter(name for pair in pairing.pairs for name in pair.after.defined - pair.before.defined)
    wrong = [name for name, count in fresh.items() if count > 1 or name in known]
    assert not wrong, f"point 3: new value names that are not unique: {wrong}"
    nodes = Counter(node.name for scope in new.scopes() for node in scope.nodes if node.name)
    wrong = [name for name, count in nodes.items() if name not in known_nodes and count > 1]
    assert not wrong, f"point 3: new node names used twice: {wrong}"
    for scope in new.scopes():
        made = Counter(name for node in scope.nodes for name in node.output if name)
        wrong = [name for name, count in made.items() if count > 1]
        assert not wrong, f"point 3: {wrong} is made twice in {scope.path!r}"


def check_value_info(after: onnx.ModelProto, view: View) -> None:
    """No value_info names a missing tensor or contradicts the inferred type or shape; ``view`` is that of the model."""

    def compare(graph: Any, scope: Scope) -> None:
        for info in graph.value_info:
            where = f"value_info of {info.name} in {scope.path!r}"
            assert info.name in scope.defined, f"point 3: {where} names a missing tensor"
            inferred = scope.types.get(info.name)
            assert inferred is None or _agree(info.type, inferred), f"point 3: {where} contradicts inference"
        inner = iter(scope.subscopes)
        for node in graph.node:
            for _, sub in subgraphs(node):
                compare(sub, next(inner))

    compare(after.graph, view.main)
    for function in after.functions:
        compare(function, next(s for s in view.bodies.values() if s.body.name == function.name))


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
def check_nodes_kept(pairing: Pairing) -> None:
    """The user's nodes, Casts among them, are all there with the attributes they had, and no others."""
    for pair in pairing.pairs:
        where = f"in {pair.before.path!r}"
        for node, twin in pair.nodes:
            if is_constant(node) or is_marked_cast(node):
                continue
            label = f"{node.op_type} {node.name!r} {where}"
            assert twin is not None, f"point 5: {label} is gone"
            assert node.name == twin.name, f"point 5: {label} is now called {twin.name!r}"
            assert [bool(o) for o in node.output] == [bool(o) for o in twin.output], f"point 5: outputs of {label}"
            assert [bool(i) for i in node.input] == [bool(i) for i in twin.input], f"point 5: inputs of {label}"
            if (node.domain, node.op_type, node.overload) not in pairing.before.bodies:
                assert (node.op_type, node.domain) == (twin.op_type, twin.domain), f"point 5: {label} changed type"
            assert _attributes(node) == _attributes(twin), f"point 5: attributes of {label} changed"
            assert is_marked(node) == is_marked(twin), f"point 5: {label} carries a mark"
        counts = [
            sum(not is_constant(n) and not is_marked_cast(n) for n in scope.nodes)
            for scope in (pair.before, pair.after)
        ]
        assert counts[0] == counts[1], f"point 5: {counts[0]} nodes became {counts[1]} {where}"


def _attributes(node: onnx.NodeProto) -> dict[str, bytes]:
    kept = [a for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    return {a.name: a.SerializeToString(deterministic=True) for a in kept}


def check_islands(pairing: Pairing, low: int) -> None:
    """float64, integers, bool, string and the other low type are what they were.

    A function's types are those of its first call, so only its first specialisation can be compared.
    """
    for pair in {id(p.before): p for p in reversed(pairing.pairs)}.values():
        for name, type_proto in pair.before.types.items():
            elem = elem_type(type_proto)
            if elem in (FLOAT, low, None) or name not in pair.after.types:
                continue
            now = elem_type(pair.after.types[name])
            assert now == elem, f"point 5: {name} in {pair.before.path!r} was {dtype_name(elem)}, is {dtype_name(now)}"


# -- point 8 --------------------------------------------------------------------------------------
def check_carried(old: View, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that the rewritten model keeps the fields that a view does not show; ``old`` is the view before."""
    annotations = [list(m.graph.quantization_annotation) for m in (before, after)]
    assert annotations[0] == annotations[1], "point 8: quantization_annotation changed"
    _check_sparse(before, after)
    assert list(before.training_info) == list(after.training_info), "point 8: training_info changed"
    called = {(n.domain, n.op_type, n.overload) for s in old.scopes() for n in s.nodes}
    kept = {(f.domain, f.name, f.overload) for f in after.functions}
    lost = [f.name for f in before.functions if (f.domain, f.name, f.overload) not in called | kept]
    assert not lost, f"point 8: functions that nothing calls were dropped: {lost}"


def _check_sparse(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Sparse initializers are there in their order: the same, or with converted values; copies stand behind them."""
    kept, now = list(before.graph.sparse_initializer), list(after.graph.sparse_initializer)
    assert len(now) >= len(kept), "point 8: sparse initializers are lost"
    for old, new in zip(kept, now, strict=False):
        name = old.values.name
        assert (new.values.name, new.indices, new.dims) == (name, old.indices, old.dims), f"point 8: sparse {name!r}"
        if new.values.data_type == old.values.data_type:
            assert new == old, f"point 8: sparse {name!r} changed"


# -- the plan -------------------------------------------------------------------------------------
def check_plan(pairing: Pairing, plan: Any) -> None:
    """Every output has the type that the plan says (functions are judged by what their callers see)."""
    decided: dict[tuple[str, str], tuple[Any, str]] = {}
    for decision in plan.nodes:
        for output, dtype in decision.outputs.items():
            decided[decision.scope, output] = decision, dtype
    for pair in pairing.pairs:
        if pair.before.path.startswith("function:"):
            continue
        for node, twin in pair.nodes:
            for i, name in enumerate(node.output):
                if not name or twin is None or is_marked_cast(node):
                    continue
                assert (pair.before.path, name) in decided, f"plan: no decision for {name!r} in {pair.before.path!r}"
                decision, dtype = decided[pair.before.path, name]
                now = dtype_name(pair.after.elem_type(twin.output[i]))
                same = dtype.rstrip(")").endswith(f"({now}") or now in (dtype, "unknown")
                is_moved_constant = is_constant(node)
                assert same or is_moved_constant, (
                    f"plan: {decision.name} makes {now}, decided was {dtype} ({decision.reason})"
                )


# -- point 6 --------------------------------------------------------------------------------------
def check_idempotent(result: onnx.ModelProto, apply: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Applying the same policy to the result gives the same bytes."""
    again = apply(result)
    same = again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    assert same, "point 6: applying twice differs:\n" + _difference(result, again)


def _difference(a: onnx.ModelProto, b: onnx.ModelProto) -> str:
    import difflib

    texts = [onnx.printer.to_text(m).splitlines() for m in (a, b)]
    lines = list(difflib.unified_diff(*texts, "once", "twice", lineterm="", n=1))
    return "\n".join(lines[:60]) or "(the text is the same; metadata or order of fields differs)"
