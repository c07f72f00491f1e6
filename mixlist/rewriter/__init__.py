"""A Plan made real: ``rewrite`` obeys it and decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ModelError
from mixlist.graph.io import Loaded, load
from mixlist.graph.model import Node, Scope, Value
from mixlist.graph.naming import NewNames, names_in, scopes_of
from mixlist.ops import types
from mixlist.resolver import Plan, Resolved
from mixlist.resolver.solve import Solution
from mixlist.rewriter.casts import Converted, KeepTypes, Layout, lay_out
from mixlist.rewriter.convert import ConstantReport, converted_tensor
from mixlist.rewriter.emit import Emitter
from mixlist.rewriter.functions import FunctionNames, replace_functions

__all__ = ["ConstantReport", "RewriteResult", "rewrite"]


@dataclass
class RewriteResult:
    """The rewritten model and what was done.

    ``model`` is of the kind that went in (an ``onnx.ModelProto`` where a path did). ``constants`` reports every
    converted constant; ``counts`` the nodes by precision; ``low`` of ``eligible`` nodes are low.
    """

    loaded: Loaded
    proto: Any
    casts_inserted: int
    constants: list[ConstantReport]
    counts: dict[str, int]
    low: int
    eligible: int
    warnings: tuple[Diagnostic, ...] = ()
    initial_file: int = field(default=0, repr=False)

    @property
    def model(self) -> Any:
        """The model, of the kind that went in."""
        if self.loaded.kind == "ir":
            import onnx_ir

            return onnx_ir.from_proto(self.proto)
        return self.proto

    def save(self, path: str | Path, *, force: bool = False, external_data: str = "auto") -> None:
        """Write the model to ``path``: whole or not at all, never over the input, over another file only by ``force``."""
        from mixlist.graph.save import save

        save(self.proto, Path(path), self.loaded, force=force, external_data=external_data)

    def to_json(self) -> dict[str, Any]:
        """The contract's ``mixlist.apply/1`` object."""
        return {
            "format": "mixlist.apply/1",
            "casts_inserted": self.casts_inserted,
            "counts": self.counts,
            "constants": [
                {"name": c.name, "flushed": c.flushed, "clamped": c.clamped, "overflowed": c.overflowed, "max_abs": c.max_abs}
                for c in self.constants
            ],
            "warnings": [str(w) for w in self.warnings],
        }


def rewrite(model: Any, plan: Plan, *, keep_io_types: bool = True, keep_io: Iterable[str] = ()) -> RewriteResult:
    """Rewrite ``model`` so that every node has the precision that ``plan`` decided (contract, nine points).

    ``model`` is what ``resolve`` was given; it is not changed. With ``keep_io_types`` false, graph inputs and outputs
    not named in ``keep_io`` take the decided types. Raises ModelError where the plan is another model's.
    """
    resolved: Resolved = plan.solution
    loaded = _same_model(model, resolved)
    keep = _keep(resolved, keep_io_types, keep_io)
    proto = type(resolved.loaded.proto)()
    proto.CopyFrom(resolved.loaded.proto)
    return _rewrite(resolved, loaded, plan, proto, keep)


def rewrite_in_place(plan: Plan, keep_io_types: bool = True, keep_io: Iterable[str] = ()) -> RewriteResult:
    """As ``rewrite`` for a model that ``resolve`` loaded itself and that nobody needs any more: no copy is made."""
    resolved: Resolved = plan.solution
    keep = _keep(resolved, keep_io_types, keep_io)
    return _rewrite(resolved, resolved.loaded, plan, resolved.loaded.proto, keep)


def _keep(resolved: Resolved, keep_io_types: bool, keep_io: Iterable[str]) -> KeepTypes:
    names = frozenset(keep_io)
    known = {i.name for i in (*resolved.loaded.proto.graph.input, *resolved.loaded.proto.graph.output)}
    for name in sorted(names - known):
        raise ModelError(f"the model has no input or output called {name!r}", hint=f"it has {', '.join(sorted(known))}")
    return KeepTypes(keep_io_types, names)


def _same_model(model: Any, resolved: Resolved) -> Loaded:
    """The model that the plan was made for, checked by what it holds."""
    loaded = load(model)
    if loaded.proto is resolved.loaded.proto:
        return loaded
    mine, theirs = loaded.proto.graph, resolved.loaded.proto.graph
    if len(mine.node) != len(theirs.node) or any(a.op_type != b.op_type or a.output != b.output for a, b in zip(mine.node, theirs.node, strict=True)):  # fmt: skip
        raise ModelError("the plan was made for another model", hint="call resolve on this model")
    return loaded


def _rewrite(resolved: Resolved, loaded: Loaded, plan: Plan, proto: Any, keep: KeepTypes) -> RewriteResult:
    new = NewNames(_taken(resolved))
    names = FunctionNames(resolved)
    casts, reports = 0, []
    emitted: dict[Solution, Any] = {}
    for index, solution in enumerate(resolved.solutions):
        main = index == 0
        layout = lay_out(solution, new, resolved.cast_is_black, resolved.low, keep if main else None)
        casts += sum(len(c) for c in layout.casts.values())
        target = proto.graph if main else names.fresh(solution)
        nodes = _convert(solution, layout, target, new, resolved, reports)
        Emitter(solution, layout, names.calls(solution)).emit(solution.graph.root, target, nodes)
        emitted[solution] = target
    replace_functions(proto, resolved, emitted, names)
    _stamp(proto, resolved)
    counts = Counter(_precisions(resolved))
    low_name = types.type_name(resolved.low)
    eligible = counts[low_name] + counts["float32"]
    return RewriteResult(loaded, proto, casts, reports, dict(sorted(counts.items())), counts[low_name], eligible, (*plan.warnings, *_constant_warnings(resolved, reports)))  # fmt: skip


def _taken(resolved: Resolved) -> set[str]:
    taken: set[str] = set()
    called = set()
    for solution in resolved.solutions:
        called.add(solution.graph.path)
        taken.update(v.name for v in solution.graph.values)
        taken.update(n.proto.name for n in solution.graph.order)
    for function in resolved.loaded.proto.functions:
        if f"function:{function.domain}:{function.name}" not in called:
            taken.update(names_in(function))
    return taken


# --- constants ---


def _convert(
    solution: Solution, layout: Layout, target: Any, new: NewNames, resolved: Resolved, reports: list[ConstantReport]
) -> dict[Scope, list[tuple[Value, Any]]]:
    """Convert the constants of a layout in ``target``; returns the new Constant nodes by scope."""
    nodes: dict[Scope, list[tuple[Value, Any]]] = {}
    homes = _messages(solution.graph.root, target)
    tables: dict[Scope, dict[str, Any]] = {}
    clamp = resolved.policy.constants == "clamp"
    for item in sorted(layout.converted, key=lambda c: c.name == c.value.name):  # copies first, then in place
        value, home = item.value, homes[item.value.scope]
        made, report = converted_tensor(_current(value, home, tables), item.elem, clamp, item.name, resolved.loaded.folder)
        reports.append(report)
        sparse = made.DESCRIPTOR.name == "SparseTensorProto"
        if value.producer is not None:
            _convert_node(item, made, sparse, home, new, nodes)
        elif item.name == value.name:
            _current(value, home, tables).CopyFrom(made)
        else:
            (home.sparse_initializer if sparse else home.initializer).append(made)
    return nodes


def _current(value: Value, home: Any, tables: dict[Scope, dict[str, Any]]) -> Any:
    if value.producer is not None:
        return value.tensor
    table = tables.get(value.scope)
    if table is None:
        table = tables[value.scope] = {t.name: t for t in home.initializer}
        table.update({t.values.name: t for t in home.sparse_initializer})
    return table[value.name]


def _convert_node(
    item: Converted, made: Any, sparse: bool, home: Any, new: NewNames, nodes: dict[Scope, list[tuple[Value, Any]]]
) -> None:
    """A Constant node's value, in place, or in a new Constant beside it."""
    maker = item.value.producer
    assert maker is not None
    target = home.node[maker.position]
    if item.name != item.value.name:
        copy = type(target)()
        copy.CopyFrom(target)
        copy.name = new.make(f"Constant_{item.name}")
        copy.output[0] = item.name
        target = copy
        nodes.setdefault(item.value.scope, []).append((item.value, copy))
    else:
        made.ClearField("name") if not sparse else None
    del target.attribute[:]
    if sparse:
        target.attribute.add(name="sparse_value", type=11).sparse_tensor.CopyFrom(made)
    else:
        target.attribute.add(name="value", type=4).t.CopyFrom(made)


def _messages(root: Scope, target: Any) -> dict[Scope, Any]:
    """The message of each scope below ``target``."""
    found = {root: target}
    waiting = [(root, target)]
    while waiting:
        scope, proto = waiting.pop()
        for node in scope.nodes:
            for name, body in node.bodies.items():
                message = next(a.g for a in proto.node[node.position].attribute if a.name == name)
                found[body] = message
                waiting.append((body, message))
    return found


# --- the rest ---


def _stamp(proto: Any, resolved: Resolved) -> None:
    from mixlist import __version__

    wanted = {"pkg.mixlist.policy": resolved.policy.digest, "pkg.mixlist.version": __version__}
    for entry in proto.metadata_props:
        if entry.key in wanted:
            entry.value = wanted.pop(entry.key)
    for key, value in wanted.items():
        proto.metadata_props.add(key=key, value=value)


def _precisions(resolved: Resolved) -> Iterable[str]:
    from mixlist.resolver.report import precision

    for solution in resolved.solutions:
        for node in solution.graph.order:
            yield precision(solution, node)


_SENSITIVE = frozenset({"Sqrt", "Div", "Log", "Pow"})


def _constant_warnings(resolved: Resolved, reports: list[ConstantReport]) -> list[Diagnostic]:
    flushed = {r.name for r in reports if r.flushed}
    found = [Diagnostic("ML502", "warning", f"constant {r.name!r}: {r.overflowed} values became infinite, {r.clamped} were clamped (largest {r.max_abs:.6g})") for r in reports if r.overflowed or r.clamped]  # fmt: skip
    if not flushed:
        return found
    for solution in resolved.solutions:
        for scope in scopes_of(solution.graph):
            for node in scope.nodes:
                found.extend(_flush_warning(node, flushed))
    return found


def _flush_warning(node: Node, flushed: set[str]) -> Iterable[Diagnostic]:
    if node.op_type not in _SENSITIVE:
        return
    for value in node.inputs:
        if value is not None and any(n == value.name or n.startswith(f"{value.name}_") for n in flushed):
            yield Diagnostic("ML503", "warning", f"constant {value.name!r} has values that became zero and feeds {node.op_type} {node.proto.name!r}", hint="keep that node in float32: add its op type to the black list or use keep_dtype")  # fmt: skip
