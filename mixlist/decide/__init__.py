"""Decide the precision of each node of a model, with a reason. This room changes no model.

``resolve_model.py`` goes from a model and a policy to a Plan. Some decisions need facts that follow from the graph
alone. These have files of their own: ranges of constants, masks, positions, quantized units, ranges of integer inputs.
"""

from mixlist.decide.decisions import Decision, ModelSolution
from mixlist.decide.plan import Plan
from mixlist.decide.resolve_model import Resolver, resolve

__all__ = ["Decision", "ModelSolution", "Plan", "Resolver", "resolve"]
