"""Decide which precision each node of a model gets, and why. Nothing is changed here."""

from mixlist.resolver.decisions import Decision, Resolved
from mixlist.resolver.plan import Plan
from mixlist.resolver.resolve_model import Resolver, resolve

__all__ = ["Decision", "Plan", "Resolved", "Resolver", "resolve"]
