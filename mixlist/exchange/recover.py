"""Recover the lists and node rules that decide as another tool's output does.

1. Pair the nodes of the two models, and read the types of the mixed model.
2. Search the smallest lists and node rules that give these types; repeat it with other settings for constants and
   protections if these keep nodes in high precision that are low in the mixed model.
3. Write the files as texts, read them back, decide the model, and report what still differs (Rule S11.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from mixlist.decide import Resolver
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.exchange.mixed_types import MixedTypes, computes_float, find_low_type, read_mixed_types
from mixlist.exchange.model_matching import ModelMatch, match_models
from mixlist.exchange.recover_edits import Difference, EditSearch, RecoveredEdits, list_names
from mixlist.exchange.recover_result import RecoveredEdit, RecoverReport, UnmatchedNode, UnrecoveredNode
from mixlist.lists.load import policy_from_options
from mixlist.lists.policy import DEFAULT_LIBRARY, Constants, ListPath, Policy, PolicyOptions, Protection
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node, pause_gc
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.naming import node_ref
from mixlist.model.protos import standard_opset
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators
from mixlist.search.edits import NO_EDITS, read_tuned_policy, render_customize_dtypes, render_modify_mixlist

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource

_VALUE_MOVERS = operators(Trait.MOVES_VALUES)
_MODES = {dtypes.FLOAT16: "mixed_float16", dtypes.BFLOAT16: "mixed_bfloat16"}
_PROTECTION_OF_RULE: dict[str, Protection] = {"mask": "masks", "position": "positions", "quantized": "quantized"}


def recover(
    original: ModelSource | LoadedModel,
    mixed: ModelSource | LoadedModel,
    *,
    ops_info: ListPath = DEFAULT_LIBRARY,
    op_names: str = "auto",
    gray_policy: str = "ascend",
    constants: str | None = None,
    protect: str | None = None,
    type_hints: Mapping[str, str] | None = None,
) -> RecoverReport:
    """Find the smallest lists and node rules under which ``resolve`` decides as the model ``mixed`` does.

    ``mixed`` is what another tool made from ``original``; its low type is read from it. ``ops_info``, ``op_names`` and
    ``gray_policy`` mean the same as for ``load_policy``, and so do ``constants`` and ``protect``; with None the values
    that need the fewest edits are taken. ``type_hints`` are those of ``resolve``, for the original. Raises ModelError
    if a model cannot be read or no nodes of the two models correspond, and the errors of ``load_policy``.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")  # or the output of another tool
        report = mixlist.recover("digits.onnx", "mixed.onnx")
        print(report.modify_mixlist)
    """
    options = PolicyOptions(
        ops_info,
        op_names=op_names,
        gray_policy=gray_policy,
        constants=constants or "keep",
        protect=protect,
    )
    policy_from_options(options)  # refuse wrong options before the models are read
    with pause_gc():
        resolver, mixed_model = Resolver(original, type_hints=type_hints), load_model(mixed)
        match = _match_nodes(resolver, mixed_model)
        types = read_mixed_types(match)
        base = policy_from_options(replace(options, precision_mode_v2=_MODES[find_low_type(types)]))
        search = EditSearch(resolver, types.assignments)
        edits = search.search(base)
        for policy in _other_settings(base, edits.refusals, constants is None, protect is None):
            edits = min(edits, search.search(policy), key=lambda candidate: candidate.size)
        return _make_report(mixed_model, match, types, base, search, edits)


def _match_nodes(resolver: Resolver, mixed: LoadedModel) -> ModelMatch:
    """Pair the nodes of the two models; raise ModelError if none correspond."""
    # A Cast of mixlist is a Cast like those of other tools: it must not hide the types of the file.
    match = match_models(resolver.graph, build_graph(mixed.proto, show_marked_casts=True))
    if not match.partners and any(map(computes_float, resolver.graph.nodes)):
        raise ModelError(
            f"no node of {mixed.name} corresponds to a node of {resolver.loaded.name}",
            hint="give the model that the other tool has read, then the model that it has written",
        )
    return match


def _other_settings(
    base: Policy, refusals: frozenset[str], may_choose_constants: bool, may_choose_protection: bool
) -> Iterator[Policy]:
    """Yield the policies with other settings that may need fewer edits.

    ``refusals``: see ``Misfits.refusals``.
    """
    treatments: dict[str, Constants] = {"constant": "clamp", "guard": "ieee"}  # a guard holds under clamp, too
    constants = [treatments[rule] for rule in treatments if may_choose_constants and rule in refusals]
    dropped = {protection for rule, protection in _PROTECTION_OF_RULE.items() if rule in refusals}
    protections = [base.protect - dropped] if may_choose_protection and dropped & base.protect else []
    for chosen_constants, protect in product([base.constants, *constants], [base.protect, *protections]):
        if (chosen_constants, protect) != (base.constants, base.protect):
            yield replace(base, constants=chosen_constants, protect=protect)


# --- report the edits and the exceptions ---


def _make_report(
    mixed: LoadedModel, match: ModelMatch, types: MixedTypes, base: Policy, search: EditSearch, edits: RecoveredEdits
) -> RecoverReport:
    """Return the report of the edits over ``base``: judge their files as the user's next command reads them."""
    lists_text = render_modify_mixlist(edits.policy, NO_EDITS)
    rules_text = render_customize_dtypes(edits.policy, NO_EDITS)
    written = read_tuned_policy(replace(edits.policy, rules=()), lists_text, rules_text)
    differences = search.find_differences(written)
    without_rules = search.find_differences(replace(written, rules=()))
    exceptions = tuple(_describe_exceptions(match, types, differences))
    original = search.resolver.loaded
    return RecoverReport(
        original=original.name,
        mixed=mixed.name,
        complete=not exceptions,
        precision_mode_v2=base.mode.name,
        gray_policy=written.gray_policy,
        constants=written.constants,
        protect=",".join(sorted(written.protect)) or "none",
        matched=len(types.assignments),
        differing=len(search.find_differences(base)),
        edits=tuple(_describe_edits(edits, types, without_rules)),
        exceptions=exceptions,
        unmatched=tuple(_describe_unmatched(match)),
        modify_mixlist=lists_text,
        customize_dtypes=rules_text,
        warnings=(*base.warnings, *_warn_opset(original, mixed, types)),
    )


def _warn_opset(original: LoadedModel, mixed: LoadedModel, types: MixedTypes) -> Iterator[Diagnostic]:
    """Warn if the mixed model has another opset, and types that the opset of the original does not admit."""
    before, after = standard_opset(original.proto), standard_opset(mixed.proto)
    if types.refused and before != after:
        count = len(types.refused)
        message = (
            f"{count} {'node has' if count == 1 else 'nodes have'} types that opset {before} of the original does"
            f" not admit; {mixed.name} has opset {after}"
        )
        hint = f"convert the original first: mixlist apply ORIGINAL -o NEW --opset {after} --precision-mode-v2 origin"
        yield warning("ML613", message, hint=hint)


def _describe_edits(
    edits: RecoveredEdits, types: MixedTypes, without_rules: Sequence[Difference]
) -> Iterator[RecoveredEdit]:
    """Yield the edits: op types first, then rules. ``without_rules``: the nodes that differ under the lists alone."""
    names = [list_names(edits.policy, node.domain, node.op_type) for node in types.assignments]
    for op, move in sorted(edits.policy.lists.moves.items()):
        yield RecoveredEdit("list", op, move.before, move.after, sum(op in accepted for accepted in names))
    decided = {difference.node: difference.decided for difference in without_rules}
    for written in edits.rules:
        before = {_precision(node, decided.get(node, types.assignments[node])) for node in written.nodes}
        after = {_precision(node, types.assignments[node]) for node in written.nodes}
        name = f"OpType::{written.rule.pattern}" if written.rule.by == "type" else written.rule.pattern
        yield RecoveredEdit("rule", name, ", ".join(sorted(before)), ", ".join(sorted(after)), len(written.nodes))


def _describe_exceptions(
    match: ModelMatch, types: MixedTypes, differences: Iterable[Difference]
) -> Iterator[UnrecoveredNode]:
    """Yield the nodes that do not get the types of the mixed model, and those that no node corresponds to."""
    for node, (partner, why) in types.problems.items():
        yield _unrecovered(node, "original", _mixed_precision(partner), "", why)
    for difference in differences:
        node = difference.node
        why = "no node rule can name it: its name is not unique, or reads as a pattern"
        precisions = _precision(node, difference.target), _precision(node, difference.decided)
        yield _unrecovered(node, "original", *precisions, why)
    paired = set(match.partners.values())
    for node in match.mixed.nodes:
        if computes_float(node) and node not in paired and (node.domain or node.op_type not in _VALUE_MOVERS):
            why = "no node of the original corresponds to it"
            yield _unrecovered(node, "mixed", _mixed_precision(node), "", why)


def _describe_unmatched(match: ModelMatch) -> Iterator[UnmatchedNode]:
    """Yield the nodes of the original that compute with floats, so no Identity, and have no counterpart."""
    for node in match.original.nodes:
        if computes_float(node) and node not in match.partners and (node.domain or node.op_type != "Identity"):
            ref = node_ref(node)
            yield UnmatchedNode(ref.scope, ref.name, node.op_type)


def _precision(node: Node, assignment: Assignment | None) -> str:
    """Return the type of the node's main slots."""
    signature = node.signature
    primary = signature.primary_group if signature is not None else None
    if signature is None or primary is None or assignment is None:
        return ""
    return dtypes.type_name(assignment.elements[signature.groups.index(primary)])


def _mixed_precision(node: Node) -> str:
    """Return the types of the outputs of a node of the mixed model; each type once."""
    elements = dict.fromkeys(dtypes.element(value.type) for value in node.outputs if value is not None)
    return ", ".join(dtypes.type_name(elem) for elem in elements if elem in dtypes.FLOATS)


def _unrecovered(node: Node, model: str, precision: str, decided: str, why: str) -> UnrecoveredNode:
    ref = node_ref(node)
    return UnrecoveredNode(ref.scope, ref.name, node.op_type, model, precision, decided, why)
