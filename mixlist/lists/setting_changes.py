"""Find the settings in which two policies differ, apart from their lists: no modify_mixlist can express these."""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.lists.policy import LOWERING_ACTIONS, NodeRule, Policy


@dataclass(frozen=True)
class SettingChange:
    """A setting that two policies have with different values. ``base`` and ``target``: the values as text."""

    setting: str
    base: str
    target: str

    def __str__(self) -> str:
        return f"{self.setting} ({self.base} -> {self.target})"


def find_setting_changes(base: Policy, target: Policy) -> tuple[SettingChange, ...]:
    """Return the settings that differ and have an effect under the mode of one of the two policies."""
    policies = base, target
    texts = [("precision mode", *(policy.mode.name for policy in policies))]
    # Two names of one mode decide the same (Rule S3.1).
    if (base.mode.action, base.mode.low) == (target.mode.action, target.mode.low):
        texts.clear()
    if any(policy.mode.action == "lists" for policy in policies):
        texts.append(("name space", *(policy.space for policy in policies)))
        texts.append(("gray policy", *(policy.gray_policy for policy in policies)))
        # Only the gray policy ``between`` reads the clear list.
        clear = [sorted(p.lists.library.clear_ops) if p.gray_policy == "between" else [] for p in policies]
        if clear[0] != clear[1]:
            texts.append(("clear list", *(f"{policy.lists.library.name}'s" for policy in policies)))
    texts.append(("constants", *(policy.constants for policy in policies)))
    if any(policy.mode.action in LOWERING_ACTIONS for policy in policies):
        texts.append(("protections", *(",".join(sorted(policy.protect)) or "none" for policy in policies)))
    changes = [SettingChange(*text) for text in texts if text[1] != text[2]]
    rules = [tuple(map(_rule_meaning, policy.rules)) for policy in policies]
    if rules[0] != rules[1]:
        changes.append(SettingChange("node rules", _describe_rules(rules[0], rules[1]), _describe_rules(*rules[::-1])))
    return tuple(changes)


RuleMeaning = tuple[object, ...]


def _rule_meaning(rule: NodeRule) -> RuleMeaning:
    """Return a rule without its place in a file."""
    return rule.by, rule.pattern, rule.keep, rule.inputs, rule.outputs


def _describe_rules(rules: tuple[RuleMeaning, ...], other_rules: tuple[RuleMeaning, ...]) -> str:
    """Return the number of rules, and how many of them the other policy lacks."""
    lacking = len(set(rules) - set(other_rules))
    if set(rules) == set(other_rules):
        return f"{len(rules)} in another order"
    return f"{len(rules)}, {lacking} of them only here" if rules else "none"
