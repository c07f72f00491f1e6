"""A Plan made real: ``rewrite`` obeys it and decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ModelError
from mixlist.graph.gc_pause import no_collection
from mixlist.graph.io import Loaded, is_unchanged, load
from mixlist.graph.model import MARK, POLICY_KEY, Scope, Value
from mixlist.graph.naming import NewNames, label, names_in
from mixlist.graph.save import Options, Progress, save, set_inline, tensors
from mixlist.graph.shapes import correct_shapes
from mixlist.graph.traversal import nodes_in, scope_messages
from mixlist.graph.weights import declared_size, is_external, stored_type
from mixlist.ops import types
from mixlist.ops.schema import find_schema
from mixlist.resolver import Plan, Resolved
from mixlist.resolver.decisions import Solution, precision
from mixlist.rewriter.casts import Converted, KeepTypes, Layout, lay_out
from mixlist.rewriter.convert import ConstantReport, converted_tensor, identity, stream
from mixlist.rewriter.emit import Emitter
from mixlist.rewriter.functions import FunctionNames, replace_functions

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

    from mixlist.graph.protos import ScopeProto

__all__ = ["ConstantReport", "RewriteResult", "rewrite"]


@dataclass
class RewriteResult:
    """The rewritten model and what was done.

    ``model`` is of the kind that went in (an ``onnx.ModelProto`` where a path did). ``constants`` reports every
    converted constant; ``counts`` the nodes by precision; ``low`` of ``eligible`` nodes are low.
    """

    loaded: Loaded
    proto: Any = field(repr=False)
    casts_inserted: int
    counts: dict[str, int]
    low: int
    eligible: int
    _reports: dict[Any, ConstantReport]
    _clamp: bool
    _sensitive: dict[str, str]  # node fed by each converted constant, where a zero there is dangerous
    _plan_warnings: tuple[Diagnostic, ...]

    @property
    def model(self) -> Any:
        """The model, of the kind that went in, with all weights in it where a path went in."""
        if self.loaded.kind == "path":
            self._take_in()
        if self.loaded.kind == "ir":
            import onnx_ir

            self._take_in(pending_only=True)
            return onnx_ir.from_proto(self.proto)
        return self.proto

    @property
    def constants(self) -> list[ConstantReport]:
        """A report per converted constant, in the order of the file; external ones are read for it once."""
        for tensor in self._external(pending_only=True):
            if identity(tensor) not in self._reports:
                for _ in self._stream(tensor):
                    pass
        return list(self._reports.values())

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The plan's warnings, and what conversion did to constants."""
        return (*self._plan_warnings, *constant_warnings(self.constants, self._sensitive))

    def save(
        self, path: str | Path, *, force: bool = False, external_data: str = "auto", progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Write the model to ``path``: whole or not at all, never over the input, over another file only by ``force``.

        Returns the files written: the model's and, where there is one, its data file.

        ``external_data``: ``auto``, ``yes`` or ``no`` as on the command line; ``progress`` is told the bytes written.
        """
        options = Options(force, external_data, progress)
        return save(self.proto, Path(path), self.loaded, self._stream, options)

    def streamed_bytes(self) -> int:
        """How many bytes of external data ``save`` writes."""
        return sum(declared_size(t) for t in self._external(pending_only=False))

    def _stream(self, tensor: Any) -> Iterator[bytes]:
        return stream(tensor, self.loaded.folder, self._clamp, self._reports)

    def _external(self, pending_only: bool) -> Iterator[Any]:
        for tensor in self._outside:
            if is_external(tensor) and (not pending_only or stored_type(tensor) != tensor.data_type):
                yield tensor

    @cached_property
    def _outside(self) -> list[Any]:
        """The tensors that lie in other files, as long as nobody takes them in."""
        return [t for t in tensors(self.proto) if is_external(t)]

    def _take_in(self, pending_only: bool = False) -> None:
        for tensor in self._external(pending_only):
            set_inline(tensor, b"".join(self._stream(tensor)))

    def to_json(self) -> dict[str, Any]:
        """Return the ``mixlist.apply/1`` object of schemas/apply.json."""
        return {
            "format": "mixlist.apply/1",
            "casts_inserted": self.casts_inserted,
            "counts": self.counts,
            "constants": [
                {
                    "name": c.name,
                    "flushed": c.flushed,
                    "clamped": c.clamped,
                    "overflowed": c.overflowed,
                    "max_abs": c.max_abs,
                }
                for c in self.constants
            ],
            "warnings": [str(w) for w in self.warnings],
        }


@no_collection()
def rewrite(model: Any, plan: Plan, *, keep_io_types: bool = True, keep_io: Iterable[str] = ()) -> RewriteResult:
    """Rewrite ``model`` so that every node has the precision that ``plan`` decided (docs/semantics.md, S7).

    ``model`` is what ``resolve`` was given; it is not changed. With ``keep_io_types`` false, graph inputs and outputs
    not named in ``keep_io`` take the decided types. Raises ModelError where the plan is another model's.
    """
    resolved: Resolved = plan.solution
    loaded = _same_model(model, resolved)
    keep = _keep(resolved, keep_io_types, keep_io)
    proto = type(resolved.loaded.proto)()
    proto.CopyFrom(resolved.loaded.proto)
    return _rewrite(resolved, loaded, plan, proto, keep)


@no_collection()
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
    """The model that the plan was made for, checked by what it holds; a file that nobody changed is not read again."""
    if is_unchanged(model, resolved.loaded):
        return resolved.loaded
    loaded = load(model)
    if loaded.proto is resolved.loaded.proto:
        return loaded
    mine, theirs = loaded.proto.graph, resolved.loaded.proto.graph
    if len(mine.node) != len(theirs.node) or any(
        a.op_type != b.op_type or a.output != b.output for a, b in zip(mine.node, theirs.node, strict=True)
    ):
        raise ModelError("the plan was made for another model", hint="call resolve on this model")
    return loaded


def _rewrite(resolved: Resolved, loaded: Loaded, plan: Plan, proto: Any, keep: KeepTypes) -> RewriteResult:
    new = NewNames(_taken(resolved))
    names = FunctionNames(resolved)
    casts = 0
    reports: dict[Any, ConstantReport] = {}
    sensitive: dict[str, str] = {}
    emitted: dict[Solution, FunctionProto] = {}
    for index, solution in enumerate(resolved.solutions):
        main = index == 0
        layout = lay_out(solution, new, resolved.cast_is_black, resolved.low, keep if main else None)
        casts += sum(len(c) for c in layout.casts.values())
        holder = proto if main else names.fresh(solution)
        messages = scope_messages(solution.graph.root, proto.graph if main else holder)
        nodes = _convert(layout, messages, new, resolved, reports)
        sensitive.update(_sensitive_readers(solution, layout))
        Emitter(solution, layout, names.calls(solution)).emit(messages, nodes)
        if not main:
            emitted[solution] = holder
        _import_opset(holder, layout, proto)
    replace_functions(proto, resolved, emitted)
    correct_shapes(proto)
    _stamp(proto, resolved)
    counts = Counter(_precisions(resolved))
    low_name = types.type_name(resolved.low)
    return RewriteResult(
        loaded=loaded,
        proto=proto,
        casts_inserted=casts,
        counts=dict(sorted(counts.items())),
        low=counts[low_name],
        eligible=counts[low_name] + counts["float32"],
        _reports=reports,
        _clamp=resolved.policy.constants == "clamp",
        _sensitive=sensitive,
        _plan_warnings=plan.warnings,
    )


def _taken(resolved: Resolved) -> set[str]:
    taken: set[str] = set()
    called = set()
    for solution in resolved.solutions:
        called.add(solution.graph.path)
        taken.update(v.name for v in solution.graph.values)
        taken.update(n.proto.name for n in solution.graph.order)
        taken.update(names_in(*solution.graph.unlinked))
    for function in resolved.loaded.proto.functions:
        if f"function:{function.domain}:{function.name}" not in called:
            taken.update(names_in(function))
    return taken


# --- constants ---


def _convert(
    layout: Layout, homes: dict[Scope, Any], new: NewNames, resolved: Resolved, reports: dict[Any, ConstantReport]
) -> dict[Scope, list[tuple[Value, Any]]]:
    """Convert the constants of a layout in the messages ``homes``; returns the new Constant nodes by scope."""
    nodes: dict[Scope, list[tuple[Value, Any]]] = {}
    tables: dict[Scope, dict[str, Any]] = {}
    clamp = resolved.policy.constants == "clamp"
    for item in sorted(layout.converted, key=lambda c: c.name == c.value.name):  # copies first, then in place
        value, home = item.value, homes[item.value.scope]
        made, report = converted_tensor(_current(value, home, tables), item.elem, clamp, item.name)
        if report is not None:
            reports[item.name, id(value.tensor)] = report  # two scopes may have a constant of one name
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
    del target.attribute[:]
    if sparse:
        target.attribute.add(name="sparse_value", type=11).sparse_tensor.CopyFrom(made)
    else:
        target.attribute.add(name="value", type=4).t.CopyFrom(made)


# --- the rest ---


def _import_opset(holder: Any, layout: Layout, model: Any) -> None:
    """The opset of the Casts that are inserted: a graph of custom operators alone imports no standard one.

    A function may import another opset than the model as long as its operators are the same in both; with a Cast
    that is not, it takes the model's.
    """
    if not layout.casts:
        return
    given = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 13)
    own = next((o for o in holder.opset_import if o.domain in ("", "ai.onnx")), None)
    if own is None:
        holder.opset_import.add(domain="", version=given)
    elif not _same_operator("Cast", own.version, given) and all(
        _same_operator(node.op_type, own.version, given) for node in _standard_nodes(holder)
    ):
        own.version = given


def _same_operator(op_type: str, one: int, other: int) -> bool:
    schemas = find_schema("", op_type, one), find_schema("", op_type, other)
    return len({schema.since if schema else 0 for schema in schemas}) == 1


def _standard_nodes(scope: ScopeProto) -> Iterator[NodeProto]:
    """Yield the nodes of ONNX's own domain that a scope had before, and those in its bodies."""
    for node in nodes_in(scope):
        if node.domain in ("", "ai.onnx") and not any(p.key == MARK for p in node.metadata_props):
            yield node


def _stamp(proto: Any, resolved: Resolved) -> None:
    from mixlist.version import __version__

    wanted = {POLICY_KEY: resolved.policy.digest, "pkg.mixlist.version": __version__}
    for entry in proto.metadata_props:
        if entry.key in wanted:
            entry.value = wanted.pop(entry.key)
    for key, value in wanted.items():
        proto.metadata_props.add(key=key, value=value)


def _precisions(resolved: Resolved) -> Iterable[str]:
    for solution in resolved.solutions:
        for node in solution.graph.order:
            yield precision(solution, node)


_SENSITIVE = frozenset({"Sqrt", "Div", "Log", "Pow"})  # the four that Rule S7.8 names


def _sensitive_readers(solution: Solution, layout: Layout) -> Iterator[tuple[str, str]]:
    """(converted constant, node) where the node divides by it, or takes its root, logarithm or power."""
    converted: dict[int, list[str]] = {}
    for item in layout.converted:
        converted.setdefault(item.value.id, []).append(item.name)
    if not converted:
        return
    for node in solution.graph.order:
        if node.op_type in _SENSITIVE:
            for value in node.inputs:
                for name in converted.get(value.id, ()) if value is not None else ():
                    yield name, f"{node.op_type} {label(node)}"


def constant_warnings(reports: Iterable[ConstantReport], sensitive: dict[str, str]) -> Iterator[Diagnostic]:
    """What conversion did to constants that a user should know."""
    for report in reports:
        if report.overflowed or report.clamped:
            done = f"{report.overflowed} became infinite" if report.overflowed else f"{report.clamped} were clamped"
            text = f"constant {report.name!r} reaches {report.max_abs:.6g}, beyond the low type: of its values {done}"
            yield Diagnostic("ML502", "warning", text, hint="--constants keep leaves such constants in float32")
        if report.flushed and report.name in sensitive:
            reader = sensitive[report.name]
            text = f"{report.flushed} values of constant {report.name!r} became zero, and it feeds {reader}"
            hint = "keep that node in float32: black-list its op type or use keep_dtype"
            yield Diagnostic("ML503", "warning", text, hint=hint)
