"""Decide the precision of each node of a model, with a reason. This folder changes no model.

``resolve_model.py`` goes from a model and a policy to a Plan. The other files, in the order in which it needs them:

- ``classification.py``, ``node_rules.py``: the list or the node rule of each node;
- ``constant_ranges.py``, ``guards.py``, ``plan_masks.py``, ``positions.py``, ``units.py`` with ``norm_units.py``: facts
  that keep nodes as authored;
- ``solver.py``: decides the nodes in order, and loops until nothing changes; ``solver_state.py`` has its data;
- ``node_types.py``, ``gray_policies.py``, ``control_flow_types.py``: the types of one node;
- ``decisions.py``, ``describe_decisions.py``, ``plan.py``: the result, and the reason of each decision;
- ``types_from_readers.py``: the nodes whose inputs have no precision, after all others;
- ``value_uses.py``: the type that each reader of a value wants, for ``write/``.
"""

from mixlist.decide.decisions import Decision, ModelSolution
from mixlist.decide.plan import Plan
from mixlist.decide.resolve_model import Resolver, resolve, resolver_of

__all__ = ["Decision", "ModelSolution", "Plan", "Resolver", "resolve", "resolver_of"]
