"""Deciding small graphs: what the tests of resolve share."""

from __future__ import annotations

from typing import Any

import mixlist
from mixlist.resolver import Decision, Plan
from tests.support.builders import model, policy


def plan(text: str, **settings: Any) -> Plan:
    """Resolve a model in ONNX text under ``builders.policy(**settings)``."""
    return mixlist.resolve(model(text), policy(**settings))


def nodes(text: str, **settings: Any) -> dict[str, Decision]:
    """The decisions by node name; by ``scope/name`` below the main graph."""
    return {(f"{d.scope}/{d.name}" if d.scope else d.name): d for d in plan(text, **settings).nodes}


def precisions(text: str, **settings: Any) -> dict[str, str]:
    """The precisions by node name; by ``scope/name`` below the main graph."""
    return {name: decision.precision for name, decision in nodes(text, **settings).items()}


def one(text: str, name: str, **settings: Any) -> Decision:
    """The decision of one node."""
    return nodes(text, **settings)[name]
