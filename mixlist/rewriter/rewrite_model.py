"""Rewrite a model as its plan says: obey the plan and decide nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph.gc_pause import pause_gc
from mixlist.graph.inferred_shapes import correct_shapes
from mixlist.graph.load import LoadedModel, is_unchanged, load_model
from mixlist.graph.model import CAST_MARK, POLICY_KEY
from mixlist.graph.naming import NameGenerator, names_in
from mixlist.graph.proto_edits import copy_message, standard_opset
from mixlist.graph.traversal import nodes_in, protos_by_scope
from mixlist.ops import types
from mixlist.ops.schema import find_schema
from mixlist.resolver import ModelSolution, Plan
from mixlist.resolver.decisions import GraphSolution, find_precision
from mixlist.rewriter.cast_layout import KeepTypes, lay_out
from mixlist.rewriter.constant_conversion import convert_constants, sensitive_readers
from mixlist.rewriter.emit import Emitter
from mixlist.rewriter.result import RewriteResult
from mixlist.rewriter.specialized_functions import FunctionNames, replace_functions
from mixlist.rewriter.tensor_conversion import ConstantReport

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import FunctionProto, ModelProto, OperatorSetIdProto

    from mixlist.graph.proto_types import ModelSource, ScopeProto


@pause_gc()
def rewrite(
    model: ModelSource | LoadedModel, plan: Plan, *, keep_io_types: bool = True, keep_io: Iterable[str] = ()
) -> RewriteResult:
    """Rewrite ``model`` so that every node has the precision that ``plan`` decided (docs/semantics.md, S7).

    ``model`` is what ``resolve`` was given; it is not changed. With ``keep_io_types`` false, graph inputs and outputs
    not named in ``keep_io`` take the decided types. Raises ModelError where the plan is another model's,
    TypeError where it is no Plan.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: pass the Plan that mixlist.resolve(model, policy) returns")
    loaded = _same_model(model, plan.solution)
    keep = _keep(plan.solution, keep_io_types, keep_io)
    return _rewrite(plan, loaded, copy_message(plan.solution.loaded.proto), keep)


@pause_gc()
def rewrite_in_place(plan: Plan, keep_io_types: bool = True, keep_io: Iterable[str] = ()) -> RewriteResult:
    """Do what ``rewrite`` does, without a copy: for a model that ``resolve`` loaded and that is not used again."""
    loaded = plan.solution.loaded
    return _rewrite(plan, loaded, loaded.proto, _keep(plan.solution, keep_io_types, keep_io))


def _keep(resolved: ModelSolution, keep_io_types: bool, keep_io: Iterable[str]) -> KeepTypes:
    names = frozenset(keep_io)
    known = {i.name for i in (*resolved.loaded.proto.graph.input, *resolved.loaded.proto.graph.output)}
    for name in sorted(names - known):
        raise ModelError(f"the model has no input or output called {name!r}", hint=f"it has {', '.join(sorted(known))}")
    return KeepTypes(keep_io_types, names)


def _same_model(model: ModelSource | LoadedModel, resolved: ModelSolution) -> LoadedModel:
    """The model that the plan was made for, checked by what it holds; a file that nobody changed is not read again."""
    if is_unchanged(model, resolved.loaded):
        return resolved.loaded
    loaded = load_model(model)
    if loaded.proto is resolved.loaded.proto:
        return loaded
    mine, theirs = loaded.proto.graph, resolved.loaded.proto.graph
    if len(mine.node) != len(theirs.node) or any(
        a.op_type != b.op_type or a.output != b.output for a, b in zip(mine.node, theirs.node, strict=True)
    ):
        raise ModelError("the plan was made for another model", hint="call resolve on this model")
    return loaded


def _rewrite(plan: Plan, loaded: LoadedModel, model: ModelProto, keep: KeepTypes) -> RewriteResult:
    """Rewrite ``model``, a copy of the model that the plan was made for or that model itself."""
    resolved = plan.solution
    new, names = NameGenerator(_taken(resolved)), FunctionNames(resolved)
    clamp = resolved.policy.constants == "clamp"
    casts = 0
    reports: dict[Hashable, ConstantReport] = {}
    sensitive: dict[str, str] = {}
    functions: dict[GraphSolution, FunctionProto] = {}
    for solution in resolved.solutions:
        function = names.fresh(solution) if solution.graph.path else None
        scope = function or model.graph
        layout = lay_out(solution, new, resolved.cast_is_black, resolved.low_type, None if function else keep)
        casts += sum(map(len, layout.casts.values()))
        messages = protos_by_scope(solution.graph.root, scope)
        constants = convert_constants(layout, messages, new, clamp, loaded.folder, reports)
        sensitive.update(sensitive_readers(solution, layout))
        Emitter(solution, layout, names.calls(solution)).emit(messages, constants)
        if layout.casts:
            _import_opset((function or model).opset_import, scope, standard_opset(model))
        if function is not None:
            functions[solution] = function
    replace_functions(model, resolved, functions)
    correct_shapes(model)
    _stamp(model, resolved)
    nodes = ((solution, node) for solution in resolved.solutions for node in solution.graph.nodes)
    counts = Counter(find_precision(solution, node) for solution, node in nodes)
    low_name = types.type_name(resolved.low_type)
    return RewriteResult(
        loaded=loaded,
        proto=model,
        casts_inserted=casts,
        counts=dict(sorted(counts.items())),
        low=counts[low_name],
        eligible=counts[low_name] + counts["float32"],
        _reports=reports,
        _clamp=clamp,
        _sensitive=sensitive,
        _plan_warnings=plan.warnings,
    )


def _taken(resolved: ModelSolution) -> set[str]:
    """Return the names of all tensors and nodes of a model, but for those that an earlier rewriting added."""
    taken: set[str] = set()
    called = {solution.graph.path for solution in resolved.solutions}
    for solution in resolved.solutions:
        taken.update(v.name for v in solution.graph.values)
        taken.update(n.proto.name for n in solution.graph.nodes)
        taken.update(names_in(*solution.graph.unlinked_bodies))
    for function in resolved.loaded.proto.functions:
        if f"function:{function.domain}:{function.name}" not in called:
            taken.update(names_in(function))
    return taken


def _import_opset(
    imports: RepeatedCompositeFieldContainer[OperatorSetIdProto], scope: ScopeProto, version: int
) -> None:
    """Import an opset for the Casts in ``scope``: a graph of custom operators alone imports no standard one.

    A function may import another opset than the model, ``version``, as long as its operators are the same in both.
    Where Cast is not, the function imports the model's opset.
    """
    own = next((entry for entry in imports if entry.domain in ("", "ai.onnx")), None)
    if own is None:
        imports.add(domain="", version=version)
    elif not _same_operator("Cast", own.version, version):
        nodes = (node for node in nodes_in(scope) if node.domain in ("", "ai.onnx"))
        before = (node for node in nodes if not any(entry.key == CAST_MARK for entry in node.metadata_props))
        if all(_same_operator(node.op_type, own.version, version) for node in before):
            own.version = version


def _same_operator(op_type: str, one: int, other: int) -> bool:
    schemas = find_schema("", op_type, one), find_schema("", op_type, other)
    return len({schema.since_version if schema else 0 for schema in schemas}) == 1


def _stamp(model: ModelProto, resolved: ModelSolution) -> None:
    """Note in the model's metadata under which policy, and by which version of mixlist, it was rewritten."""
    from mixlist.version import __version__

    for key, value in ((POLICY_KEY, resolved.policy.digest), ("pkg.mixlist.version", __version__)):
        entry = next((entry for entry in model.metadata_props if entry.key == key), None)
        (entry or model.metadata_props.add(key=key)).value = value
