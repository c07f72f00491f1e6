"""Resolve small models in ONNX text: the helpers that the tests of the resolver share."""

from __future__ import annotations

from typing import Any

import mixlist
from mixlist.decide import Decision, Plan
from tests.support.builders import model, policy


def resolve_text(text: str, **settings: Any) -> Plan:
    """Resolve a model in ONNX text under ``builders.policy(**settings)``."""
    return mixlist.resolve(model(text), policy(**settings))


def decide_nodes(text: str, **settings: Any) -> dict[str, Decision]:
    """Return the decisions by node name; by ``scope/name`` in bodies."""
    return {(f"{d.scope}/{d.name}" if d.scope else d.name): d for d in resolve_text(text, **settings).nodes}


def find_precisions(text: str, **settings: Any) -> dict[str, str]:
    """Return the precisions by node name; by ``scope/name`` in bodies."""
    return {name: decision.precision for name, decision in decide_nodes(text, **settings).items()}


def decide_node(text: str, name: str, **settings: Any) -> Decision:
    """Return the decision for one node."""
    return decide_nodes(text, **settings)[name]
