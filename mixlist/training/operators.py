"""Find the list of each ATen operator, by the names that it has in ONNX and on Ascend.

``data/aten_ops.json`` maps ATen operators to these names, with one entry for each result. The gradients are operators
of their own: ``convolution_backward`` is Conv2DBackpropInput, Conv2DBackpropFilter and BiasAddGrad on Ascend. In a list
of ONNX names, a gradient has the op type of its forward operator; an operator that ONNX lacks, such as a loss, has the
name ``aten::mse_loss``. An operator without an entry is gray, and the report lists it. Inside of a module that an
accelerator runs as one operator, such as ``LSTM``, all operators have its name, and in a list of ONNX names also inside
of a loss of ``torch.nn.functional`` that consists of several.

A line of a ``keep_dtype`` file names a module by its path in ``named_modules()``, with "/" or "." between the names,
and all modules in it, or an op type. The path begins below the module that the loop calls; the class of that module may
come before it. A ``customize_dtypes`` rule must have one type for all slots. A backward operator belongs to the module
of its forward operator, and so does what a checkpoint computes again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from mixlist.diagnostics import Diagnostic
from mixlist.errors import UsageError
from mixlist.lists.library import ListName
from mixlist.lists.policy import NodeRule, Policy
from mixlist.model.name_warnings import find_name_warnings
from mixlist.model.operator_names import ascend_names, find_list, find_list_of_forms, onnx_names
from mixlist.option_spelling import spell

# Where an operator runs outside of every module, reports show this instead of a path.
OUTSIDE_MODULES = "(outside of modules)"
_CUBE_TYPES = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})  # of the modes with the action "cube" (Rule S3.7)


@dataclass(frozen=True)
class OperatorNames:
    """The names of one result of an ATen operator: the ONNX op type, and the Ascend op types that compute it.

    ``onnx`` is ``aten::NAME`` for an operator that ONNX lacks, and "" for one without an entry.
    """

    onnx: str
    ascend: tuple[str, ...]

    def domain_and_type(self) -> tuple[str, str]:
        """Return the domain of the ONNX name, "" for the standard one, and the name without it."""
        domain, _, op_type = self.onnx.rpartition("::")
        return domain, op_type


@dataclass(frozen=True)
class OperatorTable:
    """The content of ``data/aten_ops.json``, which explains it. None is a statistic, which stays float32."""

    operators: dict[str, tuple[OperatorNames | None, ...]]
    moves: frozenset[str]
    modules: dict[str, ModuleNames]
    functions: dict[str, OperatorNames]


@dataclass(frozen=True)
class ModuleNames:
    """The names of the operators in a module that an accelerator runs as one, and those of their gradients.

    ``operators``: the ATen operators that have these names; all of the module if it is empty.
    """

    forward: OperatorNames
    gradient: OperatorNames
    operators: frozenset[str]


@cache
def operator_table() -> OperatorTable:
    """Return the table of ATen operators."""
    content = json.loads((Path(__file__).parent / "data" / "aten_ops.json").read_text("utf-8"))

    def names(entry: list[str]) -> OperatorNames:
        return OperatorNames(entry[0], tuple(entry[1:]) or ascend_names("", entry[0]))

    def results(entries: list[list[str] | None]) -> tuple[OperatorNames | None, ...]:
        return tuple(None if entry is None else names(entry) for entry in entries)

    operators = {operator: results(entries) for operator, entries in content["operators"].items()}
    modules = {
        name: ModuleNames(names(entry["forward"]), names(entry["gradient"]), frozenset(entry.get("operators", ())))
        for name, entry in content["modules"].items()
    }
    functions = {name: OperatorNames(onnx, ()) for name, onnx in content["functions"].items()}
    return OperatorTable(operators, frozenset(content["moves"]), modules, functions)


@dataclass(frozen=True)
class ModulePosition:
    """The module that an operator belongs to.

    ``path``: its names from the module that the loop calls, joined by "/"; "" outside of modules and for that module
    itself. ``root``: the class of the module that the loop calls. ``module_class``: the class of PyTorch that the
    module is. ``function``: the loss that the operator is a part of, a key of ``OperatorTable.functions``, or "".
    ``is_float32``: whether the operator is in a region of ``torch.autocast(enabled=False)``.
    """

    path: str = ""
    root: str = ""
    module_class: str = ""
    function: str = ""
    is_float32: bool = False

    def __str__(self) -> str:
        return self.path or self.root or OUTSIDE_MODULES


@dataclass(frozen=True)
class ResultDecision:
    """The decision on one result of an operator.

    ``list``: "gray" follows the first float operand; None is a statistic, which is always float32. ``op_type``: the
    name that decides, in the name space of the lists. ``rule``: the node rule that decides instead of the lists.
    """

    list: ListName | None
    op_type: str
    rule: NodeRule | None = None


class OperatorLists:
    """The lists and node rules of a policy, applied to ATen operators.

    Raises UsageError for a policy that leaves every operator in float32, and for what training cannot follow: a gray
    policy that reads operators that have not run yet, or node rules with different types for the slots of a node.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.table = operator_table()
        self.unlisted = Counter[str]()  # the calls of ATen operators that the table lacks
        self._rules = [(rule, _high_or_low(rule, policy)) for rule in policy.rules]
        has_low_rule = any(list_name == "white" for _, list_name in self._rules)
        if policy.mode.action in ("origin", "raise") and not has_low_rule:
            raise UsageError(
                f"the mode {policy.mode.name} leaves every operator in float32: there is no mixed training to judge",
                hint="use mixed_float16 or mixed_bfloat16, or name modules that are low with"
                f" {spell('customize_dtypes')}",
            )
        if policy.gray_policy not in ("ascend", "promote"):
            raise UsageError(
                f"the gray policy {policy.gray_policy} reads operators that have not run yet, and a training loop runs"
                " them one by one",
                hint="use ascend or promote",
            )
        self._used_rules: set[NodeRule] = set()
        self._names: set[str] = set()  # every name by which the lists can mean an operator that ran

    def decide(
        self, operator: str, position: ModulePosition, rank: int | None, *, is_gradient: bool
    ) -> tuple[ResultDecision, ...]:
        """Return the decision on each result of an operator, or one for all results.

        ``operator`` is its name without overload and trailing underscore. ``rank`` is the number of dimensions of its
        first float operand.
        """
        entries = self.table.operators.get(operator, (OperatorNames("", ()),))
        module = self.table.modules.get(position.module_class)
        if module is not None and (not module.operators or operator in module.operators):
            names = module.gradient if is_gradient else module.forward
            entries = tuple(None if entry is None else names for entry in entries)
        elif position.function and self.policy.space == "onnx":
            names = self.table.functions[position.function]
            entries = tuple(None if entry is None else names for entry in entries)
        return tuple(self._decide_result(operator, entry, position, rank) for entry in entries)

    def _decide_result(
        self, operator: str, names: OperatorNames | None, position: ModulePosition, rank: int | None
    ) -> ResultDecision:
        if names is None:
            return ResultDecision(None, operator)
        is_ascend, action, name = self.policy.space == "ascend", self.policy.mode.action, names.onnx or operator
        self._names.update(names.ascend if is_ascend else onnx_names(*names.domain_and_type()))
        if position.is_float32:
            return ResultDecision("black", name)
        for rule, list_name in self._rules:
            named = rule.pattern in (names.onnx, *names.ascend)
            if named if rule.by == "type" else _names_module(rule.pattern, position):
                self._used_rules.add(rule)
                return ResultDecision(list_name, name, rule)
        if action != "lists":  # in the modes origin and raise, only rules make an operator low
            is_low = action == "force" or (action == "cube" and names.onnx in _CUBE_TYPES)
            return ResultDecision("white" if is_low else "black", name)
        if not names.onnx or (is_ascend and not names.ascend):
            return ResultDecision("gray", name)
        lists = self.policy.lists
        match = (
            find_list_of_forms(lists, operator, names.ascend, lambda: rank)
            if is_ascend
            else find_list(lists, "onnx", *names.domain_and_type())
        )
        return ResultDecision(match.list, match.op)

    def find_warnings(self) -> list[Diagnostic]:
        """Return the warnings about names in the policy's files that mean no operator that ran (Rules S5.6, S6.6)."""
        return [*find_name_warnings(self.policy, self._names), *self._unused_rules()]

    def _unused_rules(self) -> list[Diagnostic]:
        hint = "name a module as in named_modules(), such as layer1/* or layer1/0/conv1, or an op type"
        return [
            rule.place.finding("ML305", "warning", f"no module that ran is called {rule.pattern!r}", hint)
            if rule.by == "name"
            else rule.place.finding("ML307", "warning", f"no operator of the type {rule.pattern!r} ran", hint)
            for rule, _ in self._rules
            if rule not in self._used_rules
        ]


def _high_or_low(rule: NodeRule, policy: Policy) -> ListName:
    """Return "black" for a rule that keeps float32, and "white" for one that asks for the low type."""
    if rule.keep:
        return "black"
    types = {dtype for dtype in (*rule.inputs, *rule.outputs) if dtype is not None}
    if types == {"float32"}:
        return "black"
    if types == {policy.mode.low}:
        return "white"
    message = f"a rule of a training gives one type to all slots of a module: float32 or {policy.mode.low}"
    raise UsageError(f"{rule.place}: {message}", hint="write keep_dtype lines, or the same type for all slots")


def _names_module(pattern: str, position: ModulePosition) -> bool:
    """Return whether a pattern names the module or one that it is in, with or without the class of the root."""
    pattern = pattern.removeprefix("./").replace(".", "/").strip("/")
    if not position.root:
        return False
    parts = [position.root, *position.path.split("/")] if position.path else [position.root]
    paths = ["/".join(parts[start:end]) for start in (0, 1) for end in range(start + 1, len(parts) + 1)]
    return any(fnmatchcase(path, pattern) for path in paths)
