"""Plan and check a model under the text of node rules, as the user's next command does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.decide import Plan, Resolver
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.lists.load import load_policy
from mixlist.lists.policy import Policy

if TYPE_CHECKING:
    from mixlist.checker.options import CheckOptions
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.feeds import Batches


def policy_with_rules(customize_dtypes: str) -> Policy:
    """Return the policy under which only these node rules change a model."""
    if not customize_dtypes:
        return load_policy(precision_mode_v2="origin")
    with ScratchFolder() as folder:
        path = folder / "customize_dtypes.txt"
        write_scratch(path, customize_dtypes.encode())
        return load_policy(precision_mode_v2="origin", customize_dtypes=path)


def plan_with_rules(resolver: Resolver, customize_dtypes: str) -> Plan:
    """Return the plan that ``apply`` makes with these node rules."""
    return resolver.plan(policy_with_rules(customize_dtypes))


def with_low_type(policy: Policy, precision: str) -> Policy:
    """Return a policy with another low type."""
    return replace(policy, mode=replace(policy.mode, low=cast("Any", precision)))


@dataclass(frozen=True)
class RuleChecks:
    """Checks of a model under node rules, on each of several sets of data. ``precision``: the low type."""

    data: Sequence[Batches]
    precision: str
    options: CheckOptions

    def run(self, loaded: LoadedModel, customize_dtypes: str, against: Model | None = None) -> list[CheckReport]:
        """Return a check for each set of data; ``against``, if it is given, is judged instead of the plan's model."""
        policy = with_low_type(policy_with_rules(customize_dtypes), self.precision)
        options = replace(self.options, against=against)
        return [run_check(loaded, policy, batches, options) for batches in self.data]
