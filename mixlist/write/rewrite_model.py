"""Rewrite a model as its plan says. Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from mixlist.decide import Plan, Solution
from mixlist.decide.solution import find_precision, is_changed
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.graph import POLICY_KEY, Graph, pause_gc, protos_by_scope
from mixlist.model.inferred_shapes import correct_shapes
from mixlist.model.load import LoadedModel, is_unchanged, load_model
from mixlist.model.naming import NameGenerator, names_in
from mixlist.model.protos import copy_message, standard_opset
from mixlist.write.cast_layout import CastLayout, lay_out_casts
from mixlist.write.constant_conversion import convert_constants, find_sensitive_readers
from mixlist.write.layout_writer import LayoutWriter
from mixlist.write.result import NOTHING_LOW, RewriteResult
from mixlist.write.tensor_conversion import ConstantReport

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from mixlist.model.protos import ModelSource


@pause_gc()
def rewrite(model: ModelSource | LoadedModel, plan: Plan) -> RewriteResult:
    """Rewrite ``model`` so that every node has the precision that ``plan`` decided (docs/semantics.md, S7).

    ``model`` is the model that ``resolve`` got, or an equal one; it is not changed. The bytes of external data are read
    from the folder of ``model``. Raises ModelError if the plan belongs to another model, and TypeError if ``plan`` is
    no Plan.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: pass the Plan that mixlist.resolve(model, policy) returns")
    loaded = _load_model_of_plan(model, plan.solution)
    return _rewrite(plan, loaded, copy_message(plan.solution.loaded.proto))


@pause_gc()
def rewrite_in_place(plan: Plan) -> RewriteResult:
    """Do the same as ``rewrite``, without a copy: for a model that ``resolve`` loaded and that is not used again."""
    loaded = plan.solution.loaded
    return _rewrite(plan, loaded, loaded.proto)


def _load_model_of_plan(model: ModelSource | LoadedModel, solution: Solution) -> LoadedModel:
    """Load the model for which the plan was made; raise ModelError if ``model`` is another one.

    A file that did not change since ``resolve`` read it is not read again.
    """
    if is_unchanged(model, solution.loaded):
        return solution.loaded
    loaded = load_model(model)
    # The usual case of Python: resolve() and rewrite() got one ModelProto.
    if loaded.proto is solution.loaded.proto:
        return loaded
    # The weights count, too: whether a constant fits the low type is part of the plan.
    if loaded.proto != solution.loaded.proto:
        raise ModelError("the plan was made for another model", hint="call resolve on this model")
    return loaded


def _rewrite(plan: Plan, loaded: LoadedModel, proto: ModelProto) -> RewriteResult:
    """Rewrite ``proto`` in place: a copy of the model for which the plan was made, or that model itself."""
    solution = plan.solution
    name_generator = NameGenerator(_find_used_names(solution.graph))
    clamp = solution.policy.clamp
    reports: dict[Hashable, ConstantReport] = {}
    # Phase 1: rewrite the graph.
    layout = lay_out_casts(solution, name_generator)
    protos = protos_by_scope(solution.graph.root, proto.graph)
    new_constants = convert_constants(layout, protos, name_generator, clamp, loaded.folder, reports)
    LayoutWriter(solution, layout).write(protos, new_constants)
    renamed = _rename_second_nodes(protos.values(), name_generator)
    # Phase 2: finish the model as a whole.
    if layout.new_cast_count and not any(is_standard_domain(entry.domain) for entry in proto.opset_import):
        # A model that has only custom operators does not import the standard domain, which has the new Casts.
        proto.opset_import.add(domain="", version=standard_opset(proto))
    correct_shapes(proto)
    nodes = solution.graph.nodes
    has_changes = any(is_changed(solution, node) for node in nodes)
    if has_changes:
        _write_policy_metadata(proto, solution)
    counts = Counter(find_precision(solution, node) for node in nodes)
    low_name = dtypes.type_name(solution.low_type)
    # In the mode origin the user asks for no low node.
    has_nothing_low = not has_changes and not counts[low_name] and solution.policy.mode.action != "origin"
    return RewriteResult(
        loaded=loaded,
        proto=proto,
        casts_inserted=layout.new_cast_count,
        counts=dict(sorted(counts.items())),
        low=counts[low_name],
        # Every float32 node counts. Nodes of another precision (float64, the other low type) could not become low.
        eligible=counts[low_name] + counts["float32"],
        _reports=reports,
        _clamp=clamp,
        _sensitive_readers=dict(find_sensitive_readers(solution, layout)),
        _plan_warnings=(*plan.warnings, *([NOTHING_LOW] if has_nothing_low else ()), *_find_name_warnings(renamed)),
    )


def lay_out_plan(plan: Plan) -> CastLayout:
    """Return the Casts that ``rewrite`` inserts for a plan.

    Nothing is rewritten. The names of the layout are free in the model, and may differ from those of ``rewrite``.
    """
    return lay_out_casts(plan.solution, NameGenerator(_find_used_names(plan.solution.graph)))


def _find_used_names(graph: Graph) -> set[str]:
    """Return the names of all tensors and nodes of a model, except those that an earlier rewrite added.

    The rewrite removes the Casts of an earlier one, so their names are free. A second ``apply`` then gives new Casts
    the same names, and writes the same bytes (Rule S7.9).
    """
    used_names = {value.name for value in graph.values}
    used_names.update(node.proto.name for node in graph.nodes)
    used_names.update(names_in(*graph.unlinked_bodies))
    return used_names


def _write_policy_metadata(proto: ModelProto, solution: Solution) -> None:
    """Write into the model's metadata the digest of the policy and the version of mixlist (Rule S7.11)."""
    from mixlist.version import __version__

    for key, value in ((POLICY_KEY, solution.policy.digest), ("pkg.mixlist.version", __version__)):
        entry = next((entry for entry in proto.metadata_props if entry.key == key), None)
        (entry or proto.metadata_props.add(key=key)).value = value


# --- nodes of one name (Rule S7.18) ---


def _rename_second_nodes(graphs: Iterable[GraphProto], name_generator: NameGenerator) -> dict[str, str]:
    """Give each node whose name an earlier node of its graph has a name of its own; return the new names by the old.

    ONNX Runtime refuses a graph with two nodes of one name.
    """
    renamed: dict[str, str] = {}
    for graph in graphs:
        used_names: set[str] = set()
        for node in graph.node:
            if node.name in used_names:
                old_name = node.name
                node.name = name_generator.make_name(old_name)
                renamed.setdefault(old_name, node.name)
            elif node.name:
                used_names.add(node.name)
    return renamed


def _find_name_warnings(renamed: dict[str, str]) -> Iterator[Diagnostic]:
    for old_name, new_name in list(renamed.items())[:1]:
        others = f", and {len(renamed) - 1} other names occur twice" if len(renamed) > 1 else ""
        yield warning(
            "ML512",
            f"two nodes are called {old_name!r}: the second one is {new_name!r} in the result{others}",
            hint="ONNX Runtime refuses a graph with two nodes of one name",
        )
