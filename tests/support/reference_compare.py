"""Compare mixlist's plan with the reference, node by node in every scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.reference import ReferenceDecision
from tests.support.reference_model import Node, Scope

if TYPE_CHECKING:
    from mixlist.decide import Decision, Plan

# In a reason, as S4.33 asks; without a name, the number of a ConstantOfShape.
REDUCED = re.compile(
    r"(?:constant '([^']*)' of a (?:mask|guard)|its number is that of a mask and)"
    r" is (?:reduced to magnitude|raised to) ([^ ]*)"
)


def differences(plan: Plan, decided: dict[Node, ReferenceDecision]) -> list[str]:
    """Return one line for each node that the two decide differently."""
    by_scope: dict[str, list[Decision]] = {}
    for decision in plan.nodes:
        by_scope.setdefault(decision.scope, []).append(decision)
    main = next(iter(decided)).scope if decided else None
    while main is not None and main.outer:
        main = main.outer
    return list(_compare(main, "", by_scope, decided)) if main else []


def _compare(
    scope: Scope, path: str, by_scope: dict[str, list[Decision]], decided: dict[Node, ReferenceDecision]
) -> Iterator[str]:
    decisions = {(d.name, tuple(d.outputs)): d for d in by_scope.get(path, [])}
    for node in scope.nodes:
        expected = decided[node]
        names = tuple(name for name in node.proto.output if name)
        actual = decisions.get((node.name, names))
        location = f"{path}/{node.name} ({node.op})"
        outputs = dict(zip(names, expected.outputs, strict=True))
        if actual is None:
            yield f"{location}: mixlist has no decision"
        elif (actual.precision, dict(actual.outputs)) != (expected.precision, outputs):
            yield (
                f"{location}: mixlist says {actual.precision} {dict(actual.outputs)} by rule {actual.rule}, "
                f"the reference says {expected.precision} {outputs}"
            )
        elif frozenset(REDUCED.findall(actual.reason)) != expected.reduced:
            yield f"{location}: mixlist says {actual.reason}, the reference reduces {sorted(expected.reduced)}"
        inner = f"{path}/{node.name}" if path else node.name
        for name, body in node.bodies.items():
            yield from _compare(body, f"{inner}/{name}", by_scope, decided)
