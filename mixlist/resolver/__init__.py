"""Decide which precision each node of a model gets, and why. Nothing is changed here."""

from mixlist.resolver.decisions import Decision, ModelSolution
from mixlist.resolver.plan import Plan
from mixlist.resolver.resolve_model import Resolver, resolve

__all__ = ["Decision", "ModelSolution", "Plan", "Resolver", "resolve"]
