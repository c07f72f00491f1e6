"""Resolve a model under a policy: load the model, decide its nodes, and collect the warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.decide.classification import Classifier, find_unknown_inputs
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.control_flow_types import settle_body_constants
from mixlist.decide.earlier_casts import move_casts_before_movers
from mixlist.decide.guards import leave_high_guards
from mixlist.decide.node_rules import NodeRules
from mixlist.decide.node_types import can_become
from mixlist.decide.plan import Plan
from mixlist.decide.protections import find_protection_warnings
from mixlist.decide.solution import AppliedPolicy, Interface, Solution
from mixlist.decide.solver import solve_model
from mixlist.decide.types_from_readers import settle_types_from_readers
from mixlist.diagnostics import Diagnostic
from mixlist.errors import ModelError, UsageError
from mixlist.lists.op_catalog import onnx_domains
from mixlist.lists.policy import INTERFACE_TYPES, InterfaceTypes, Policy, require_policy
from mixlist.lists.suggestions import did_you_mean
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import POLICY_KEY, Graph, Node, pause_gc
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.name_warnings import find_name_warnings, names_in_lists
from mixlist.model.onnx_check import refuse_invalid_model
from mixlist.model.operator_names import fused_op
from mixlist.model.protos import FunctionKey, nodes_in
from mixlist.model.schema import find_later_opsets, find_schema
from mixlist.option_spelling import spell
from mixlist.progress import ProgressCallback, ProgressCounter

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.model.protos import ModelSource

_MAX_SHOWN_NAMES = 5  # in one warning


class Resolver:
    """One model that can be resolved under several policies: the work that needs no policy is done once.

    Arguments and errors are those of ``resolve``.
    """

    @pause_gc()
    def __init__(
        self,
        model: ModelSource | LoadedModel,
        *,
        type_hints: Mapping[str, str] | None = None,
        io: InterfaceTypes = "keep",
        keep_io: Iterable[str] = (),
        progress: ProgressCallback | None = None,
    ) -> None:
        self.loaded = load_model(model)
        self.io, self.kept_io = io, frozenset(keep_io)
        _refuse_wrong_io(self.loaded, io, self.kept_io)
        hints = {name: dtypes.parse_name(text) for name, text in (type_hints or {}).items()}
        self.graph = build_graph(self.loaded.proto, hints)
        refuse_invalid_model(self.graph, self.loaded.may_be_external)
        self.constant_ranges = ConstantRanges(self.loaded.folder, ProgressCounter(progress, "bytes"))

    @pause_gc()
    def solve(self, policy: Policy) -> Solution:
        """Decide the graph under ``policy``, without reasons and warnings, as a search needs it."""
        classifier, node_rules = Classifier(policy), NodeRules(policy, self.graph)
        # A type that Cast does not make at the model's opset cannot be served to nodes that want float32.
        is_possible = self.io != "low" or can_become(classifier.low_type, classifier.low_type, self.graph)
        interface = Interface(policy, self.io if is_possible else "keep", self.kept_io)
        applied = AppliedPolicy(self.loaded, self.graph, classifier, node_rules, self.constant_ranges, interface)
        solution = solve_model(applied)
        # Finish the inputs of bodies that receive constants. The readers of each are decided now.
        settle_body_constants(solution, applied.fits_low_type)
        settle_types_from_readers(solution)
        move_casts_before_movers(solution)
        leave_high_guards(solution)
        return solution

    @pause_gc()
    def plan(self, policy: Policy) -> Plan:
        """Decide the precision of every node under ``policy``."""
        require_policy(policy)
        policy = _with_authored_low_type(policy, self.graph)
        solution = self.solve(policy)
        return Plan(self.loaded.name, policy, tuple(_find_warnings(solution)), solution)


def _with_authored_low_type(policy: Policy, graph: Graph) -> Policy:
    """Return the policy with the low type of the author under ``origin``: bfloat16 if the model has no float16."""
    if policy.mode.action != "origin":
        return policy
    elements = {dtypes.element(value.type) for node in graph.nodes for value in node.outputs if value is not None}
    has_bfloat16_only = dtypes.BFLOAT16 in elements and dtypes.FLOAT16 not in elements
    return replace(policy, mode=policy.mode._replace(low="bfloat16")) if has_bfloat16_only else policy


def resolver_of(plan: Plan) -> Resolver:
    """Return a Resolver of the model of a plan, with its graph and the types of its inputs and outputs."""
    solution = plan.solution
    resolver = Resolver.__new__(Resolver)  # the graph is built and checked already
    resolver.loaded, resolver.graph = solution.loaded, solution.graph
    resolver.io, resolver.kept_io = solution.interface.io, solution.interface.kept
    resolver.constant_ranges = solution.constant_ranges
    return resolver


def resolve(
    model: ModelSource | LoadedModel,
    policy: Policy,
    *,
    type_hints: Mapping[str, str] | None = None,
    io: InterfaceTypes = "keep",
    keep_io: Iterable[str] = (),
    progress: ProgressCallback | None = None,
) -> Plan:
    """Decide the precision of every node of ``model`` under ``policy`` (docs/semantics.md, S4).

    ``model`` is a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed. ``type_hints`` gives the
    types (``float32``, ``int64``, ...) of tensors that custom operators make and the model does not declare. ``io``:
    the type of the float inputs and outputs that ``keep_io`` does not name: ``keep``, ``float32`` or ``low``, the low
    type of the mode (Rule S7.3). ``progress`` gets a Progress that counts the bytes of weights read. Raises ModelError
    for a model that cannot be read and if ``keep_io`` names no input or output, ListError for a node rule that the
    model cannot follow, UsageError for another ``io`` and if ``keep_io`` would change nothing, and TypeError if
    ``policy`` is not a Policy.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        print(plan.counts, plan.nodes[0].reason)
    """
    require_policy(policy)
    resolver = Resolver(model, type_hints=type_hints, io=io, keep_io=keep_io, progress=progress)
    return resolver.plan(policy)


def _refuse_wrong_io(loaded: LoadedModel, io: str, keep_io: frozenset[str]) -> None:
    """Raise an error for another ``io``, and if ``keep_io`` names no input or output, or would change nothing."""
    if io not in INTERFACE_TYPES:
        raise UsageError(f"unknown {spell('io', io)}", hint=f"use {', '.join(INTERFACE_TYPES)}")
    graph = loaded.proto.graph
    io_names = {info.name for info in (*graph.input, *graph.output)}
    for name in sorted(keep_io - io_names):
        hint = f"it has {', '.join(sorted(io_names))}"
        raise ModelError(f"the model has no input or output called {name!r}", hint=hint)
    if keep_io and io == "keep":
        raise UsageError(
            f"{spell('keep_io', min(keep_io))} changes nothing: all inputs and outputs keep their types",
            hint=f"add {spell('io', 'low')}, or leave out {spell('keep_io')}",
        )


def _find_warnings(solution: Solution) -> Iterator[Diagnostic]:
    yield from _warn_other_policy(solution)
    policy, graph = solution.policy, solution.graph
    model_names = names_in_lists(policy, {(node.domain, node.op_type, fused_op(node)) for node in graph.nodes})
    function_names = {name for _, name, _ in graph.functions}
    yield from find_name_warnings(policy, model_names, function_names)
    yield from solution.node_rules.find_warnings()
    yield from find_protection_warnings(solution)
    yield from _warn_unknown_types(solution)
    yield from _warn_functions(graph)
    yield from _warn_unknown_operators(graph)
    yield from _warn_old_opset(solution)
    yield from _warn_unknown_constants(solution)


def _warn_functions(graph: Graph) -> Iterator[Diagnostic]:
    """Warn about the nodes in model-local functions that nodes call: the lists do not reach them (Rule S4.31)."""
    waiting = [(call.proto.domain, call.op_type, call.proto.overload) for call in graph.nodes if call.is_call]
    called: dict[FunctionKey, list[NodeProto]] = {}
    while waiting:
        key = waiting.pop()
        if key in graph.functions and key not in called:
            called[key] = list(nodes_in(graph.functions[key]))
            waiting += [(node.domain, node.op_type, node.overload) for node in called[key]]
    if called:
        count = sum(map(len, called.values()))
        nodes = "1 node" if count == 1 else f"{count} nodes"
        functions = "a model-local function" if len(called) == 1 else f"{len(called)} model-local functions"
        yield Diagnostic(
            "ML410",
            "warning",
            f"{nodes} in {functions} {'stays' if count == 1 else 'stay'} as authored",
            hint="mixlist apply --inline-functions replaces the calls by these nodes",
        )


def _warn_unknown_operators(graph: Graph) -> Iterator[Diagnostic]:
    """Warn about operators of the standard domain that ONNX does not have at the opset of the model (Rule S4.14)."""
    opset = graph.opsets.get("", 0)
    counts = Counter(node.op_type for node in graph.nodes if not (node.domain or node.is_call))
    for op_type, count in counts.items():
        if find_schema("", op_type, opset) is not None:
            continue
        similar = did_you_mean(op_type, onnx_domains()[""])
        hint = similar or "only a runtime that has it, for example as a plugin, loads the model"
        if op_type in onnx_domains()[""]:
            hint = f"convert it to an opset that has {op_type}: mixlist apply or convert with --opset"
        stays = "1 node stays" if count == 1 else f"{count} nodes stay"
        message = f"ONNX has no operator {op_type} at opset {opset}: {stays} as authored"
        yield Diagnostic("ML413", "warning", message, hint=hint)


def _warn_old_opset(solution: Solution) -> Iterator[Diagnostic]:
    """Warn about the white nodes that the opset of the model refuses, if a later one allows them (Rule S4.11)."""
    low_type, refused = solution.low_type, Counter(node.op_type for node in find_refused_nodes(solution))
    opset = solution.graph.opsets.get("", 0)
    later = find_later_opsets(refused, opset, low_type)
    if later:
        count, low_name = sum(refused[op] for op in later), dtypes.type_name(low_type)
        first, *others = later
        operators = first if not others else f"{first} and {len(others)} other operators"
        yield Diagnostic(
            "ML411",
            "warning",
            f"opset {opset} allows no {low_name} for {operators}, so {count} white node{'s' * (count != 1)} stay"
            f"{'s' * (count == 1)} float32",
            hint=f"write it at a later opset: mixlist apply or convert with --opset {max(later.values())}",
        )


def find_refused_nodes(solution: Solution) -> list[Node]:
    """Return the white nodes of standard operators that do not admit the low type at the opset (Rule S4.11)."""
    nodes = [solution.graph.nodes[index] for index, rule in solution.rule_overrides.items() if rule == "schema"]
    return [node for node in nodes if solution.classifications[node.id].kind == "low" and not node.domain]


def _warn_unknown_types(solution: Solution) -> Iterator[Diagnostic]:
    """Warn about the nodes that stay as authored because of tensors of unknown type, and name these (Rule S4.40)."""
    pairs = zip(solution.graph.nodes, solution.classifications, strict=True)
    readers = [node for node, classification in pairs if classification.kind == "unknown"]
    if not readers:
        return
    affected = set(readers)
    unknown = [value for node in readers for value in find_unknown_inputs(node)]
    # custom -> u -> Relu -> v -> Neg: a hint for `u` also gives the type of `v`, so the warning names only `u`.
    sources = dict.fromkeys(v.name for v in unknown if v.producer is None or v.producer not in affected)
    names = ", ".join(map(repr, [*sources][:_MAX_SHOWN_NAMES])) + (", ..." if len(sources) > _MAX_SHOWN_NAMES else "")
    subject = f"the type of {names} is" if len(sources) == 1 else f"the types of {names} are"
    effect = "1 node stays" if len(readers) == 1 else f"{len(readers)} nodes stay"
    yield Diagnostic(
        "ML409",
        "warning",
        f"{subject} not known: {effect} as authored",
        hint=f'give the types with {spell("type_hints")}: {{"tensor": "float32"}}',
    )


def _warn_other_policy(solution: Solution) -> Iterator[Diagnostic]:
    """Warn if mixlist wrote the file under another policy (Rule S4.32)."""
    metadata = solution.loaded.proto.metadata_props
    digest = next((entry.value for entry in metadata if entry.key == POLICY_KEY), None)
    # Under ``origin`` the types of the file are what the user asks for.
    if digest is not None and digest != solution.policy.digest and solution.policy.mode.action != "origin":
        yield Diagnostic(
            "ML501",
            "warning",
            f"mixlist wrote {solution.loaded.name} under another policy or by other rules, and decides it here again",
            hint=f"give the original model, or see the types in this file: {spell('precision_mode_v2', 'origin')}",
        )


def _warn_unknown_constants(solution: Solution) -> Iterator[Diagnostic]:
    """Warn of constants that count as fitting because their value is not known (Rule S4.20)."""
    for reason, constants in solution.applied.unknown_constants.items():
        more = f" and {len(constants) - 1} more" if len(constants) > 1 else ""
        name = next(iter(constants)).name
        yield Diagnostic(
            "ML504",
            "warning",
            f"constant {name!r}{more} may be out of the range of the low type; its value is not known: {reason}",
            hint="mixlist check runs the model; keep_dtype keeps a node as authored",
        )
