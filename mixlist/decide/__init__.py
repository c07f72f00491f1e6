"""Decide the precision of each node of a model, with a reason. This folder changes no model.

``resolve_model.py`` goes from a model and a policy to a Plan. The other files, in the order in which it needs them:

- ``classification.py``, ``node_rules.py``: the list or the node rule of each node;
- ``protections.py``: what keeps nodes as authored, in order: ``units.py`` with ``norm_units.py``, ``positions.py``,
  ``guards.py``, ``plan_masks.py``; ``constant_ranges.py`` for all of them;
- ``solver.py``: decides the nodes in order, and loops until nothing changes; ``solution.py`` has all decisions;
- ``node_types.py``, ``gray_policies.py``, ``control_flow_types.py``: the types of one node;
- ``decisions.py``, ``describe_decisions.py``, ``plan.py``: the result, and the reason of each decision;
- ``types_from_readers.py``: the nodes whose inputs have no precision, after all others;
- ``value_uses.py``: the type that each reader of a value wants, for ``write/``.
"""

from mixlist.decide.decisions import Decision
from mixlist.decide.plan import Plan
from mixlist.decide.resolve_model import Resolver, resolve, resolver_of
from mixlist.decide.solution import Solution

__all__ = ["Decision", "Plan", "Resolver", "Solution", "resolve", "resolver_of"]
