"""Export a plan for the Ascend compiler: a modify_mixlist, node rules and the command line of ``atc``.

mixlist's own rules for Ascend libraries describe how atc decides (docs/semantics.md). So the lists are found by
resolving the model as atc would: in Ascend names, with gray nodes that follow upstream, without protections, and with
constants that atc clips (``--is_weight_clip``), or that the hardware converts. The options are those of the documents
of atc of CANN 8.1.

Each round of the search resolves the model, and takes the nodes that differ from the plan and follow no node that
differs. If all nodes of an Ascend op type have one precision in the plan, the op type moves to the white or the black
list. Otherwise the single nodes get a rule. Gray nodes that follow are right afterwards, so that the lists stay small.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from mixlist.decide.decisions import Decision, is_guard_limit
from mixlist.decide.plan import Plan
from mixlist.decide.resolve_model import resolver_of
from mixlist.decide.solution import Interface
from mixlist.diagnostics import FilePlace
from mixlist.exchange.export_result import ExportException, ExportResult
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Library, ListName, Lists, Move
from mixlist.lists.node_rules import format_customize_line, is_valid_rule_name
from mixlist.lists.policy import NEW_MODES, NodeRule, Policy
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.naming import NodeRef, node_ref
from mixlist.model.operator_names import ascend_forms, newest_forms
from mixlist.option_spelling import spell

_MOST_ROUNDS = 40
_PRECISIONS = ("float16", "bfloat16", "float32")
_PLACE = FilePlace("export", 1, 1)  # the rules have no file
_NO_NAME = "has no name of its own, so that no rule can name it: give all nodes different names, and export again"
MEASURED_WITH = "the documents of atc, CANN 8.1"
_DOCUMENTS_WITH_HIFLOAT8 = "the documents of atc, CANN 9.0"
DEFAULT_LIBRARY = "ascend910b"
_FRAMEWORK_ONNX = 5
_NOTES = (
    "atc was not run: the exceptions compare the plan with mixlist's rules for Ascend libraries",
    "atc matches names after its own fusion, so that a rule for a node that is fused has no effect",
)


def export_for_atc(plan: Plan, library: str | None = None) -> ExportResult:
    """Return the modify_mixlist, the node rules and the command for ``atc``.

    ``library`` is a built-in library in Ascend names, or the path of one; by default that of the plan's policy, or
    ascend910b if the policy is in ONNX names. Raises UsageError for a library in ONNX names.
    """
    target = _find_library(plan.policy, library)
    search = _AscendSearch(plan, target)
    search.run()
    lists: dict[str, object] = {
        "modify_mixlist": diff_lists(Lists(target), search.policy.lists),
        **_node_rule_lists(search.policy.rules),
    }
    files = _make_files(lists)
    arguments = _find_arguments(search.policy, files) | _find_io_arguments(plan)
    call = _show_command(plan.model, _quoted(arguments))
    return ExportResult(
        tool="atc",
        measured_with=MEASURED_WITH,
        model=plan.model,
        precision=plan.policy.mode.low,
        lists={"library": target.name, **lists},
        arguments=arguments,
        call=call,
        exceptions=tuple(_find_exceptions(plan, search)),
        notes=(*_NOTES, *_find_opset_notes(plan)),
        files={**files, "atc.sh": _show_script(plan.model, arguments, files)},
        warnings=plan.warnings,
    )


def export_lists_for_atc(model: str, policy: Policy, library: str | None = None) -> ExportResult:
    """Return the files and the command for ``atc`` with the lists of a policy as they are, without a plan (S3.9).

    ``model`` is the path of the model. Raises UsageError for a policy in ONNX names, and for ``library``.
    """
    from mixlist.errors import UsageError

    mode = policy.mode
    names_operators = mode.action == "lists" or any(rule.by == "type" for rule in policy.rules)
    if library is not None or (policy.space != "ascend" and names_operators):
        raise UsageError(
            f"{spell('precision_mode_v2', mode.name)} needs lists in the names of the chip: no model translates them",
            hint=f"give the operator library of the Ascend 950 to {spell('ops_info')}, without {spell('library')}",
        )
    lists: dict[str, object] = {
        "modify_mixlist": diff_lists(Lists(policy.lists.library), policy.lists),
        **_node_rule_lists(policy.rules),
    }
    files = _make_files(lists)
    arguments = _find_arguments(policy, files)
    return ExportResult(
        tool="atc",
        measured_with=_DOCUMENTS_WITH_HIFLOAT8,
        model=model,
        precision=mode.low,
        lists={"library": policy.lists.library.name, **lists},
        arguments=arguments,
        call=_show_command(model, _quoted(arguments)),
        notes=(_NOTES[0].partition(":")[0], f"ONNX has no {mode.low}: the lists are as given, and no node was decided"),
        files={**files, "atc.sh": _show_script(model, arguments, files)},
        warnings=policy.warnings,
    )


def _node_rule_lists(rules: tuple[NodeRule, ...]) -> dict[str, object]:
    """Return the lines of the two node rule files."""
    return {
        "keep_dtype": [r.pattern if r.by == "name" else f"OpType::{r.pattern}" for r in rules if r.keep],
        "customize_dtypes": [format_customize_line(rule) for rule in rules if not rule.keep],
    }


def _find_library(policy: Policy, library: str | None) -> Library:
    from mixlist.errors import UsageError
    from mixlist.lists.load import load_policy

    if library is None and policy.space == "ascend":
        return policy.lists.library
    target = load_policy(ops_info=library or DEFAULT_LIBRARY)
    if target.space != "ascend":
        raise UsageError(
            f"{spell('library', library)} is in ONNX names, and atc has Ascend names",
            hint="give the chip's library, such as ascend910b; mixlist presets lists the built-in ones",
        )
    return target.lists.library


def _make_files(lists: dict[str, object]) -> dict[str, str]:
    """Return the text of each file that has content, by its name."""
    files: dict[str, str] = {}
    if lists["modify_mixlist"]:
        text = json.dumps(lists["modify_mixlist"])
        files["modify_mixlist.json"] = format_text(text, "modify_mixlist.json", "modify-mixlist")
    for key in ("keep_dtype", "customize_dtypes"):
        lines = lists[key]
        assert isinstance(lines, list)
        if lines:
            files[f"{key}.cfg"] = "".join(f"{line}\n" for line in lines)
    return files


def _find_arguments(policy: Policy, files: dict[str, str]) -> dict[str, object]:
    mode = policy.mode.name
    arguments: dict[str, object] = {"framework": _FRAMEWORK_ONNX}
    arguments["precision_mode_v2" if mode in NEW_MODES else "precision_mode"] = mode
    arguments["is_weight_clip"] = int(policy.constants != "ieee")  # the default of atc is 1 (Rule S4.19)
    return arguments | {posixpath.splitext(name)[0]: name for name in files}


def _find_io_arguments(plan: Plan) -> dict[str, object]:
    """Return the arguments for the inputs and outputs of the model that become float16 (Rule S7.3).

    ``output_type`` is FP16 if all outputs do. Otherwise atc wants the types of single outputs, named by their nodes,
    and all outputs by ``out_nodes``. Raises UsageError where atc has no such argument.
    """
    from mixlist.errors import UsageError

    interface, scope = plan.solution.interface, plan.solution.graph.root
    if interface.io == "keep":
        return {}
    if interface.io != "low" or interface.policy.mode.low != "float16":
        raise UsageError(
            f"{spell('io', interface.io)}: atc makes inputs and outputs float16 only, in the modes of float16",
            hint=f"{spell('io', 'low')} with another mode, or without {spell('io')}",
        )
    # An input with a default and an output that is a constant keep their types, as in the rule.
    inputs = [v.name for v in scope.inputs if v.kind == "input" and _becomes_float16(interface, v.name, v.type)]
    all_outputs = scope.output_names()
    outputs = [
        name
        for name, value, declared in zip(all_outputs, scope.outputs, scope.output_types, strict=True)
        if value.constant_proto is None and _becomes_float16(interface, name, declared)
    ]
    arguments: dict[str, object] = {"input_fp16_nodes": ";".join(inputs)} if inputs else {}
    places = {
        name: (node.name, slot) for node in scope.proto.node for slot, name in enumerate(node.output) if node.name
    }
    if len(outputs) == len(all_outputs):
        arguments["output_type"] = "FP16"
    elif outputs:
        unnamed = [name for name in all_outputs if name not in places]
        if unnamed:
            raise UsageError(
                f"the output {unnamed[0]!r} comes from no node that has a name, and atc finds outputs by their nodes",
                hint="give its node a name, or give all outputs the low type",
            )
        form = "{}:{}".format
        arguments["out_nodes"] = ";".join(form(*places[name]) for name in all_outputs)
        arguments["output_type"] = ";".join(f"{form(*places[name])}:FP16" for name in outputs)
    unclear = [name for name in (*inputs, *(node for node, _ in places.values())) if {*":;"} & {*name}]
    if unclear and (inputs or "out_nodes" in arguments):
        raise UsageError(f"the name {unclear[0]!r} has a character with which atc separates names", hint="rename it")
    return arguments


def _becomes_float16(interface: Interface, name: str, declared: dtypes.Type) -> bool:
    is_float32 = dtypes.element(declared) == dtypes.FLOAT
    return is_float32 and interface.find_type(name, declared) == dtypes.FLOAT16


def _quoted(arguments: dict[str, object]) -> dict[str, str]:
    return {name: quote(str(value)) for name, value in arguments.items()}


def _show_command(model: str, arguments: dict[str, str]) -> str:
    words = [f"atc --model={quote(model)}", "--output=mixed", '--soc_version="$SOC_VERSION"']
    words += [f"--{name}={value}" for name, value in arguments.items()]
    return " \\\n  ".join(words) + "\n"


def _show_script(model: str, arguments: dict[str, object], files: dict[str, str]) -> str:
    """Return a shell script that calls atc with the files of its own folder, wherever it is called."""
    paths = {posixpath.splitext(name)[0]: f'"$(dirname "$0")/{name}"' for name in files}
    head = "#!/bin/sh\n# Call this where mixlist export was called, with SOC_VERSION set to the name of the chip.\n"
    return head + _show_command(model, {**_quoted(arguments), **paths})


def _find_opset_notes(plan: Plan) -> tuple[str, ...]:
    """Return a note if the opset of the model refuses the low type, for which atc does not ask."""
    if all(item.code != "ML411" for item in plan.warnings):
        return ()
    low = plan.policy.mode.low
    return (
        f"the opset of the model refuses {low} for nodes that atc makes {low}, and the exceptions do not name them:"
        " export a copy at a later opset (mixlist apply --opset) to compare",
    )


def _find_exceptions(plan: Plan, search: _AscendSearch) -> Iterator[ExportException]:
    for ref in sorted(search.unnamed):
        yield ExportException(ref, _NO_NAME)
    for decision in search.differing:
        if decision.ref not in search.unnamed:
            planned_precision = search.planned_precisions[decision.ref]
            why = f"atc makes it {decision.precision}, the plan {planned_precision}: {decision.reason}"
            yield ExportException(decision.ref, why)
    main = plan.solution
    for node, limits in main.changed_slots.items():
        if all(map(is_guard_limit, limits.values())):
            why = "mixlist raises the guard that it reads (S4.43), and atc does not: a row of zeros can become NaN"
            yield ExportException(node_ref(node), why)
            continue
        loss = "does not: a fully masked row can become NaN"
        if plan.policy.constants != "ieee":
            loss = "only clips it: the sum of two masks can be infinite"
        why = f"mixlist reduces the mask that it reads (S4.36), and atc {loss}"
        yield ExportException(node_ref(node), why)


# --- find the lists and node rules ---


class _AscendSearch:
    """The search for the smallest lists that give the nodes of one plan their precision, over one library.

    ``policy``: the lists and node rules so far. ``differing``: the decisions under them that differ from the plan.
    ``unnamed``: the nodes that need a rule and cannot be named. ``planned_precisions``: those of the plan.
    """

    def __init__(self, plan: Plan, library: Library) -> None:
        self._plan = plan
        self._resolver = resolver_of(plan)
        self.planned_precisions = {d.ref: d.precision for d in plan.nodes if d.precision in _PRECISIONS}
        self._nodes = {node_ref(node): node for node in plan.solution.graph.nodes}
        self._name_counts = Counter(node.proto.name for node in self._nodes.values())
        self.policy = self._make_first_policy(library)
        self._precisions_of_form = self._group_by_form()
        self.differing: list[Decision] = []
        self.unnamed: set[NodeRef] = set()

    def run(self) -> None:
        """Move op types and add rules until no node differs, or no edit helps."""
        for _ in range(_MOST_ROUNDS):
            self.differing = [d for d in self._resolver.plan(self.policy).nodes if self._differs(d)]
            refs = {d.ref for d in self.differing}
            # Correct the causes first: the nodes that follow one of them may then be right.
            causes = [d for d in self.differing if d.producer not in refs] or self.differing
            if not self._correct(causes):
                break

    def _differs(self, decision: Decision) -> bool:
        planned = self.planned_precisions.get(decision.ref)
        return planned is not None and decision.precision in _PRECISIONS and decision.precision != planned

    def _correct(self, causes: list[Decision]) -> bool:
        """Move op types, or add rules for nodes if none can move; return whether something changed."""
        moves = dict(self.policy.lists.moves)
        rules = list(self.policy.rules)
        is_by_list = self.policy.mode.action == "lists"
        for decision in causes:
            node = self._nodes.get(decision.ref)
            if node is not None and is_by_list and decision.rule not in ("shape", "schema", "node-rule"):
                self._move_op_type(node, decision.ref, moves)
        if len(moves) > len(self.policy.lists.moves):
            lists = Lists(self.policy.lists.library, moves, frozenset(moves))
            self.policy = replace(self.policy, lists=lists)
            return True
        for decision in causes:
            node = self._nodes.get(decision.ref)
            if node is not None and (rule := self._make_rule(node, decision.ref)) and rule not in rules:
                rules.append(rule)
        if len(rules) == len(self.policy.rules):
            return False
        # Rules that give types come before those that keep types (Rule S6.3).
        self.policy = replace(self.policy, rules=tuple(sorted(rules, key=lambda rule: rule.keep)))
        return True

    def _move_op_type(self, node: Node, ref: NodeRef, moves: dict[str, Move]) -> None:
        """Add the moves of the Ascend op types of a node, if all of their nodes have one precision in the plan."""
        forms = [form for form in self._forms(node) if self._is_form_of(node, form)]
        target: ListName = "black" if self.planned_precisions[ref] == "float32" else "white"
        for form in forms if target == "white" else forms[:1]:
            before = self.policy.lists.library.list_of(form)
            if len(self._precisions_of_form[form]) == 1 and form not in moves and before != target:
                moves[form] = Move(form, before, target, None)

    def _forms(self, node: Node) -> tuple[str, ...]:
        """Return the Ascend op types of a node, as the library has them."""
        return newest_forms(self.policy.lists, ascend_forms(node))

    def _is_form_of(self, node: Node, form: str) -> bool:
        """Return whether the library holds the Ascend op type, or the operator has only this one."""
        return form in self.policy.lists.library.lists or len(self._forms(node)) == 1

    def _make_rule(self, node: Node, ref: NodeRef) -> NodeRule | None:
        """Return the rule that gives a node its types in the plan; None for a node of ``unnamed``, which grows here."""
        name = node.proto.name
        if not name or self._name_counts[name] > 1 or not is_valid_rule_name(name):
            self.unnamed.add(ref)
            return None
        solution = self._plan.solution
        assignment, signature = solution.assignments[node.id], node.signature
        if assignment is None or signature is None:
            return None
        if assignment == signature.authored_assignment():
            return NodeRule("name", name, True, _PLACE)
        inputs = _slot_types(assignment.inputs, {i for group in signature.groups for i in group.inputs})
        outputs = _slot_types(assignment.outputs, {o for group in signature.groups for o in group.outputs})
        return NodeRule("name", name, False, _PLACE, inputs, outputs)

    def _group_by_form(self) -> dict[str, set[str]]:
        """Return the precisions that the nodes of each Ascend op type have in the plan."""
        precisions: dict[str, set[str]] = {}
        for ref, node in self._nodes.items():
            if ref in self.planned_precisions:
                for form in self._forms(node):
                    precisions.setdefault(form, set()).add(self.planned_precisions[ref])
        return precisions

    def _make_first_policy(self, library: Library) -> Policy:
        """Return the policy of atc without any edit; with the user's edits and rules if they are over this library.

        Rules that atc would read otherwise are left out: the search finds rules for their nodes.
        """
        plan_policy = self._plan.policy
        policy = replace(
            plan_policy,
            lists=Lists(library),
            rules=(),
            gray_policy="ascend",
            # Where the plan keeps the reader of a constant in float32, so do the lists, and nothing is clipped.
            constants="ieee" if plan_policy.constants == "ieee" else "clamp",
            protect=frozenset(),
            op_names="ascend",
            space="ascend",
            warnings=(),
        )
        if plan_policy.lists.library.name == library.name and plan_policy.space == "ascend":
            rules = tuple(rule for rule in plan_policy.rules if self._is_rule_of_atc(rule, library))
            policy = replace(policy, lists=plan_policy.lists, rules=rules)
        return policy

    def _is_rule_of_atc(self, rule: NodeRule, library: Library) -> bool:
        """Return whether atc reads a rule as mixlist does: without wildcards, scopes, made-up names and ONNX names."""
        if rule.by == "type":
            return rule.pattern in library.lists
        return self._name_counts[rule.pattern] == 1 and is_valid_rule_name(rule.pattern)


def _slot_types(slots: tuple[dtypes.Type | None, ...], grouped: set[int]) -> tuple[str | None, ...]:
    """Return the name of the type of each slot that a rule can choose, and None for the others."""
    names = [
        dtypes.type_name(dtypes.element(t)) if t is not None and i in grouped else None for i, t in enumerate(slots)
    ]
    while names and names[-1] is None:
        names.pop()
    return tuple(names)
