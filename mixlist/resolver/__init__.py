"""Decide the precision of each node of a model, with a reason. This room changes no model."""

from mixlist.resolver.decisions import Decision, ModelSolution
from mixlist.resolver.plan import Plan
from mixlist.resolver.resolve_model import Resolver, resolve

__all__ = ["Decision", "ModelSolution", "Plan", "Resolver", "resolve"]
