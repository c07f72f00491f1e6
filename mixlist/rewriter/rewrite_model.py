"""Rewrite a model as its plan says. Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from mixlist.errors import ModelError, UsageError
from mixlist.graph.gc_pause import pause_gc
from mixlist.graph.inferred_shapes import correct_shapes
from mixlist.graph.load import LoadedModel, is_unchanged, load_model
from mixlist.graph.model import CAST_MARK, POLICY_KEY
from mixlist.graph.naming import NameGenerator, names_in
from mixlist.graph.opsets import standard_opset
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.traversal import nodes_in, protos_by_scope
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.ops import dtypes
from mixlist.ops.schema import find_schema
from mixlist.resolver import ModelSolution, Plan
from mixlist.resolver.decisions import GraphSolution, find_precision, is_changed
from mixlist.rewriter.cache_types import find_cache_warnings, find_caches
from mixlist.rewriter.cast_layout import CastLayout, KeptIoTypes, lay_out_casts
from mixlist.rewriter.constant_conversion import convert_constants, find_sensitive_readers
from mixlist.rewriter.layout_writer import LayoutWriter
from mixlist.rewriter.result import NOTHING_LOW, RewriteResult
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

    ``model`` is the model that ``resolve`` got; it is not changed. With ``keep_io_types`` false, the inputs and
    outputs that ``keep_io`` does not name may change their types: an output gets its decided type, and an input the low
    type if every reader wants that (Rule S7.3). Raises ModelError if the plan belongs to another model or
    ``keep_io`` names no input or output, UsageError if ``keep_io`` is given with ``keep_io_types``, and TypeError if
    ``plan`` is no Plan.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: pass the Plan that mixlist.resolve(model, policy) returns")
    loaded = _load_model_of_plan(model, plan.solution)
    kept_io = _find_kept_io(plan.solution, keep_io_types, keep_io)
    return _rewrite(plan, loaded, copy_message(plan.solution.loaded.proto), kept_io)


@pause_gc()
def rewrite_in_place(plan: Plan, keep_io_types: bool = True, keep_io: Iterable[str] = ()) -> RewriteResult:
    """Do the same as ``rewrite``, without a copy: for a model that ``resolve`` loaded and that is not used again."""
    loaded = plan.solution.loaded
    return _rewrite(plan, loaded, loaded.proto, _find_kept_io(plan.solution, keep_io_types, keep_io))


def _find_kept_io(model_solution: ModelSolution, keep_io_types: bool, keep_io: Iterable[str]) -> KeptIoTypes:
    """Return the inputs and outputs that keep their types; raise ModelError for a name that is neither."""
    names = frozenset(keep_io)
    graph = model_solution.loaded.proto.graph
    io_names = {info.name for info in (*graph.input, *graph.output)}
    for name in sorted(names - io_names):
        hint = f"it has {', '.join(sorted(io_names))}"
        raise ModelError(f"the model has no input or output called {name!r}", hint=hint)
    if names and keep_io_types:
        raise UsageError(
            f"--keep-io {min(names)} changes nothing: all inputs and outputs keep their types",
            hint="add --no-keep-io-types (keep_io_types=False), or leave out --keep-io",
        )
    return KeptIoTypes(keep_io_types, names)


def _load_model_of_plan(model: ModelSource | LoadedModel, model_solution: ModelSolution) -> LoadedModel:
    """Load the model for which the plan was made; raise ModelError if ``model`` is another one.

    A file that did not change since ``resolve`` read it is not read again.
    """
    if is_unchanged(model, model_solution.loaded):
        return model_solution.loaded
    loaded = load_model(model)
    # The usual case of Python: resolve() and rewrite() got one ModelProto.
    if loaded.proto is model_solution.loaded.proto:
        return loaded
    graph, planned_graph = loaded.proto.graph, model_solution.loaded.proto.graph
    # The solution refers to nodes by position. Another copy of the same model fits, and its weights may differ.
    if len(graph.node) != len(planned_graph.node) or any(
        node.op_type != planned.op_type or node.output != planned.output
        for node, planned in zip(graph.node, planned_graph.node, strict=True)
    ):
        raise ModelError("the plan was made for another model", hint="call resolve on this model")
    return loaded


def _rewrite(plan: Plan, loaded: LoadedModel, model: ModelProto, kept_io: KeptIoTypes) -> RewriteResult:
    """Rewrite ``model`` in place: a copy of the model for which the plan was made, or that model itself."""
    model_solution = plan.solution
    name_generator = NameGenerator(_find_used_names(model_solution))
    function_names = FunctionNames(model_solution)
    clamp = model_solution.policy.constants == "clamp"
    cast_count = 0
    reports: dict[Hashable, ConstantReport] = {}
    sensitive_readers: dict[str, str] = {}
    functions: dict[GraphSolution, FunctionProto] = {}
    caches = find_caches(model.graph)
    # Phase 1: rewrite the main graph, and a copy of a function for each of its specializations.
    for solution in model_solution.solutions:
        # Only the main graph has an empty path.
        function = function_names.copy_function(solution) if solution.graph.path else None
        message = function or model.graph
        layout = _lay_out_graph(model_solution, solution, name_generator, kept_io)
        cast_count += sum(map(len, layout.casts.values()))
        protos = protos_by_scope(solution.graph.root, message)
        new_constants = convert_constants(layout, protos, name_generator, clamp, loaded.folder, reports)
        sensitive_readers.update(find_sensitive_readers(solution, layout))
        LayoutWriter(solution, layout, function_names.find_new_callee_names(solution)).write(protos, new_constants)
        if layout.casts:
            _import_opset((function or model).opset_import, message, standard_opset(model))
        if function is not None:
            functions[solution] = function
    # Phase 2: finish the model as a whole.
    replace_functions(model, model_solution, functions)
    correct_shapes(model)
    nodes = [(solution, node) for solution in model_solution.solutions for node in solution.graph.nodes]
    has_changes = any(is_changed(solution, node) for solution, node in nodes)
    if has_changes:
        _write_policy_metadata(model, model_solution)
    counts = Counter(find_precision(solution, node) for solution, node in nodes)
    low_name = dtypes.type_name(model_solution.low_type)
    # In the mode origin the user asks for no low node.
    is_original = not has_changes and not counts[low_name] and model_solution.policy.mode.action != "origin"
    return RewriteResult(
        loaded=loaded,
        proto=model,
        casts_inserted=cast_count,
        counts=dict(sorted(counts.items())),
        low=counts[low_name],
        # Nodes of another precision (float64, the other low type) could not become low.
        eligible=counts[low_name] + counts["float32"],
        _reports=reports,
        _clamp=clamp,
        _sensitive_readers=sensitive_readers,
        _plan_warnings=(
            *plan.warnings,
            *([NOTHING_LOW] if is_original else ()),
            *find_cache_warnings(model.graph, caches),
        ),
    )


def _lay_out_graph(
    model_solution: ModelSolution, solution: GraphSolution, name_generator: NameGenerator, kept_io: KeptIoTypes
) -> CastLayout:
    """Choose the Casts of one graph: the main graph, or a specialization of a function."""
    # Only the main graph may have to keep the types of its inputs and outputs: callers of functions are rewritten.
    kept = None if solution.graph.path else kept_io
    return lay_out_casts(solution, name_generator, model_solution.cast_is_black, model_solution.low_type, kept)


def lay_out_plan(plan: Plan) -> Iterator[tuple[GraphSolution, CastLayout]]:
    """Yield each graph of a plan with the Casts that ``rewrite`` inserts if the types of inputs and outputs stay.

    Nothing is rewritten. The names of the layouts are free in the model, and may differ from those of ``rewrite``.
    """
    name_generator = NameGenerator(_find_used_names(plan.solution))
    for solution in plan.solution.solutions:
        yield solution, _lay_out_graph(plan.solution, solution, name_generator, KeptIoTypes())


def _find_used_names(model_solution: ModelSolution) -> set[str]:
    """Return the names of all tensors and nodes of a model, except those that an earlier rewrite added.

    The rewrite removes the Casts of an earlier one, so their names are free. A second ``apply`` then gives new Casts
    the same names, and writes the same bytes (Rule S7.9).
    """
    used_names: set[str] = set()
    called_paths = {solution.graph.path for solution in model_solution.solutions}
    for solution in model_solution.solutions:
        used_names.update(value.name for value in solution.graph.values)
        used_names.update(node.proto.name for node in solution.graph.nodes)
        used_names.update(names_in(*solution.graph.unlinked_bodies))
    for function in model_solution.loaded.proto.functions:
        # A function that nothing calls has no solution. It stays in the file, so its names are in use.
        if f"function:{function.domain}:{function.name}" not in called_paths:
            used_names.update(names_in(function))
    return used_names


def _import_opset(
    imports: RepeatedCompositeFieldContainer[OperatorSetIdProto], message: ScopeProto, model_opset: int
) -> None:
    """Import an opset of the standard domain for the new Casts in ``message``.

    A graph or function that has only custom operators does not import the standard domain. A function may import
    another opset than the model. The new Casts are those of the model's opset: if Cast differs between both opsets, the
    function gets the model's opset, provided that its other operators are the same in both.
    """
    standard_import = next((entry for entry in imports if is_standard_domain(entry.domain)), None)
    if standard_import is None:
        imports.add(domain="", version=model_opset)
    elif not _is_same_operator("Cast", standard_import.version, model_opset):
        standard_nodes = (node for node in nodes_in(message) if is_standard_domain(node.domain))
        # The Casts that mixlist added are those of the model's opset, so they fit after the change.
        authored_nodes = (
            node for node in standard_nodes if not any(entry.key == CAST_MARK for entry in node.metadata_props)
        )
        if all(_is_same_operator(node.op_type, standard_import.version, model_opset) for node in authored_nodes):
            standard_import.version = model_opset


def _is_same_operator(op_type: str, left_opset: int, right_opset: int) -> bool:
    """Return whether both opsets have the same version of an operator."""
    # An operator that neither opset has counts as the same.
    schemas = find_schema("", op_type, left_opset), find_schema("", op_type, right_opset)
    return len({schema.since_version if schema else 0 for schema in schemas}) == 1


def _write_policy_metadata(model: ModelProto, model_solution: ModelSolution) -> None:
    """Write into the model's metadata the digest of the policy and the version of mixlist (Rule S7.11)."""
    from mixlist.version import __version__

    for key, value in ((POLICY_KEY, model_solution.policy.digest), ("pkg.mixlist.version", __version__)):
        entry = next((entry for entry in model.metadata_props if entry.key == key), None)
        (entry or model.metadata_props.add(key=key)).value = value
