"""Rewrite a model as its plan says. Nothing is decided here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from mixlist.decide import ModelSolution, Plan
from mixlist.decide.decisions import find_precision, is_changed
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError, UsageError
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.graph import POLICY_KEY, Graph, pause_gc, protos_by_scope
from mixlist.model.inferred_shapes import correct_shapes
from mixlist.model.load import LoadedModel, is_unchanged, load_model
from mixlist.model.naming import NameGenerator, names_in
from mixlist.model.protos import copy_message, standard_opset
from mixlist.text_escapes import quote_argument
from mixlist.write.cast_layout import CastLayout, lay_out_casts
from mixlist.write.constant_conversion import convert_constants, find_sensitive_readers
from mixlist.write.layout_writer import LayoutWriter
from mixlist.write.result import NOTHING_LOW, RewriteResult
from mixlist.write.tensor_conversion import ConstantReport

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from mixlist.model.protos import ModelSource


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

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
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


def _find_kept_io(model_solution: ModelSolution, keep_io_types: bool, keep_io: Iterable[str]) -> AbstractSet[str]:
    """Return the inputs and outputs that keep their types; raise ModelError for a name that is neither."""
    names = frozenset(keep_io)
    io_names = _find_io_names(model_solution)
    for name in sorted(names - io_names):
        hint = f"it has {', '.join(sorted(io_names))}"
        raise ModelError(f"the model has no input or output called {name!r}", hint=hint)
    if names and keep_io_types:
        raise UsageError(
            f"--keep-io {min(names)} changes nothing: all inputs and outputs keep their types",
            hint="add --no-keep-io-types (keep_io_types=False), or leave out --keep-io",
        )
    return io_names if keep_io_types else names


def _find_io_names(model_solution: ModelSolution) -> set[str]:
    """Return the names of the inputs and outputs of a model."""
    graph = model_solution.loaded.proto.graph
    return {info.name for info in (*graph.input, *graph.output)}


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


def _rewrite(plan: Plan, loaded: LoadedModel, model: ModelProto, kept_io: AbstractSet[str]) -> RewriteResult:
    """Rewrite ``model`` in place: a copy of the model for which the plan was made, or that model itself."""
    model_solution, solution = plan.solution, plan.solution.graph_solution
    name_generator = NameGenerator(_find_used_names(solution.graph))
    clamp = model_solution.policy.constants == "clamp"
    reports: dict[Hashable, ConstantReport] = {}
    caches = _find_caches(model.graph)
    # Phase 1: rewrite the graph.
    layout = lay_out_casts(model_solution, name_generator, kept_io)
    protos = protos_by_scope(solution.graph.root, model.graph)
    new_constants = convert_constants(layout, protos, name_generator, clamp, loaded.folder, reports)
    LayoutWriter(solution, layout).write(protos, new_constants)
    # Phase 2: finish the model as a whole.
    if layout.casts and not any(is_standard_domain(entry.domain) for entry in model.opset_import):
        # A model that has only custom operators does not import the standard domain, which has the new Casts.
        model.opset_import.add(domain="", version=standard_opset(model))
    correct_shapes(model)
    nodes = solution.graph.nodes
    has_changes = any(is_changed(solution, node) for node in nodes)
    if has_changes:
        _write_policy_metadata(model, model_solution)
    counts = Counter(find_precision(solution, node) for node in nodes)
    low_name = dtypes.type_name(model_solution.low_type)
    # In the mode origin the user asks for no low node.
    is_original = not has_changes and not counts[low_name] and model_solution.policy.mode.action != "origin"
    return RewriteResult(
        loaded=loaded,
        proto=model,
        casts_inserted=sum(map(len, layout.casts.values())),
        counts=dict(sorted(counts.items())),
        low=counts[low_name],
        # Nodes of another precision (float64, the other low type) could not become low.
        eligible=counts[low_name] + counts["float32"],
        _reports=reports,
        _clamp=clamp,
        _sensitive_readers=dict(find_sensitive_readers(solution, layout)),
        _plan_warnings=(
            *plan.warnings,
            *([NOTHING_LOW] if is_original else ()),
            *_find_cache_warnings(model.graph, caches),
        ),
    )


def lay_out_plan(plan: Plan) -> CastLayout:
    """Return the Casts that ``rewrite`` inserts for a plan if the types of inputs and outputs stay.

    Nothing is rewritten. The names of the layout are free in the model, and may differ from those of ``rewrite``.
    """
    name_generator = NameGenerator(_find_used_names(plan.solution.graph))
    return lay_out_casts(plan.solution, name_generator, _find_io_names(plan.solution))


def _find_used_names(graph: Graph) -> set[str]:
    """Return the names of all tensors and nodes of a model, except those that an earlier rewrite added.

    The rewrite removes the Casts of an earlier one, so their names are free. A second ``apply`` then gives new Casts
    the same names, and writes the same bytes (Rule S7.9).
    """
    used_names = {value.name for value in graph.values}
    used_names.update(node.proto.name for node in graph.nodes)
    used_names.update(names_in(*graph.unlinked_bodies))
    return used_names


def _write_policy_metadata(model: ModelProto, model_solution: ModelSolution) -> None:
    """Write into the model's metadata the digest of the policy and the version of mixlist (Rule S7.11)."""
    from mixlist.version import __version__

    for key, value in ((POLICY_KEY, model_solution.policy.digest), ("pkg.mixlist.version", __version__)):
        entry = next((entry for entry in model.metadata_props if entry.key == key), None)
        (entry or model.metadata_props.add(key=key)).value = value


# --- caches: a program passes such an output on as the next input ---

# Exporters call the caches past_key_values.0.key and present.0.key, past.0.key and present.0.key, or past_key and
# present_key.
_PAST_NAMES = (re.compile("past_key_values"), re.compile("past"))


def _find_caches(graph: GraphProto) -> list[tuple[str, str]]:
    """Return the names of each input that is a cache, and of the output of the same type that replaces it."""
    output_types = {info.name: dtypes.from_proto(info.type) for info in graph.output}
    caches = []
    for info in graph.input:
        names = [pattern.sub("present", info.name, count=1) for pattern in _PAST_NAMES]
        present = next((name for name in names if name != info.name and name in output_types), None)
        if present is not None and output_types[present] == dtypes.from_proto(info.type):
            caches.append((info.name, present))
    return caches


def _find_cache_warnings(graph: GraphProto, caches: Sequence[tuple[str, str]]) -> Iterator[Diagnostic]:
    """Yield the warning ML511 if the types of ``caches`` differ in the rewritten graph (Rule S7.3)."""
    if not caches:
        return
    types = {info.name: dtypes.from_proto(info.type) for info in (*graph.input, *graph.output)}
    changed = [(past, present) for past, present in caches if types[past] != types[present]]
    if not changed:
        return
    past, present = changed[0]
    others = f", and {len(changed) - 1} other caches have two types" if len(changed) > 1 else ""
    yield warning(
        "ML511",
        f"cache input {past!r} is {dtypes.type_name(types[past])}, and output {present!r}, which replaces it, is "
        f"{dtypes.type_name(types[present])}{others}",
        hint="keep both with "
        + " ".join(f"--keep-io {quote_argument(name)}" for name in changed[0])
        + ", or make every node that reads the cache white",
    )
