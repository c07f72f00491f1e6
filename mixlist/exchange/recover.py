"""Recover the lists and node rules that decide as another tool's output does.

1. Pair the nodes of the two models, and read the types of the mixed model.
2. Search the smallest lists and node rules that give these types; repeat it with other settings for constants and
   protections if these keep nodes in high precision that are low in the mixed model.
3. Write the files as texts, read them back, decide the model, and report what still differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from mixlist.decide import Resolver
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.exchange.mixed_types import computes_float, find_low_type, read_mixed_types
from mixlist.exchange.model_matching import match_models
from mixlist.exchange.recover_edits import EditSearch
from mixlist.exchange.recover_report import describe_edits, describe_exceptions, describe_unmatched
from mixlist.exchange.recover_result import RecoverReport
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Lists
from mixlist.lists.load import policy_from_options
from mixlist.lists.node_rules import format_customize_line
from mixlist.lists.policy import DEFAULT_LIBRARY, Constants, ListPath, Policy, PolicyOptions, Protection
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.gc_pause import pause_gc
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.opsets import standard_opset
from mixlist.search.output_texts import read_tuned_policy

if TYPE_CHECKING:
    from mixlist.model.proto_types import ModelSource

_MODES = {dtypes.FLOAT16: "mixed_float16", dtypes.BFLOAT16: "mixed_bfloat16"}
_PROTECTION_OF_RULE: dict[str, Protection] = {"mask": "masks", "position": "positions", "quantized": "quantized"}


def recover(
    original: ModelSource | LoadedModel,
    mixed: ModelSource | LoadedModel,
    *,
    ops_info: ListPath = DEFAULT_LIBRARY,
    op_names: str = "auto",
    gray_policy: str = "ascend",
    constants: str | None = None,
    protect: str | None = None,
    type_hints: Mapping[str, str] | None = None,
) -> RecoverReport:
    """Find the smallest lists and node rules under which ``resolve`` decides as the model ``mixed`` does.

    ``mixed`` is what another tool made from ``original``; its low type is read from it. ``ops_info``, ``op_names`` and
    ``gray_policy`` mean the same as for ``load_policy``, and so do ``constants`` and ``protect``; with None the values
    that need the fewest edits are taken. ``type_hints`` are those of ``resolve``, for the original. Raises ModelError
    if a model cannot be read or no nodes of the two models correspond, and the errors of ``load_policy``.
    """
    options = PolicyOptions(
        ops_info,
        op_names=op_names,
        gray_policy=gray_policy,
        constants=constants or "keep",
        protect=protect,
    )
    policy_from_options(options)  # refuse wrong options before the models are read
    with pause_gc():
        return _Recovery(original, mixed, type_hints).run(options, constants is None, protect is None)


class _Recovery:
    """Recovers the edits for one pair of models."""

    def __init__(
        self,
        original: ModelSource | LoadedModel,
        mixed: ModelSource | LoadedModel,
        type_hints: Mapping[str, str] | None,
    ) -> None:
        self.resolver, self.mixed = Resolver(original, type_hints=type_hints), load_model(mixed)
        # A Cast of mixlist is a Cast like those of other tools: it must not hide the types of the file.
        mixed_graph = build_graph(self.mixed.proto, show_marked_casts=True)
        self.match = match_models(self.resolver.graph, mixed_graph)
        self.types = read_mixed_types(self.match)
        if not self.match.partners and any(map(computes_float, self.resolver.graph.nodes)):
            raise ModelError(
                f"no node of {self.mixed.name} corresponds to a node of {self.resolver.loaded.name}",
                hint="give the model that the other tool has read, then the model that it has written",
            )
        self.search = EditSearch(self.resolver, self.types)

    def run(self, options: PolicyOptions, may_choose_constants: bool, may_choose_protection: bool) -> RecoverReport:
        """Return the report of the smallest edits."""
        mode = _MODES[find_low_type(self.types)]
        base = policy_from_options(replace(options, precision_mode_v2=mode))
        library_differences = self.search.find_differences(base)
        edits = self.search.search(base)
        for policy in _other_settings(base, edits.refusals, may_choose_constants, may_choose_protection):
            edits = min(edits, self.search.search(policy), key=lambda candidate: candidate.size)
        # Judge the files as the user's next command reads them.
        lists_text, rules_text = _render(edits.policy)
        written = read_tuned_policy(replace(edits.policy, rules=()), lists_text, rules_text)
        differences = self.search.find_differences(written)
        without_rules = self.search.find_differences(replace(written, rules=()))
        exceptions = tuple(describe_exceptions(self.match, self.types, differences))
        return RecoverReport(
            original=self.resolver.loaded.name,
            mixed=self.mixed.name,
            complete=not exceptions,
            precision_mode_v2=mode,
            gray_policy=written.gray_policy,
            constants=written.constants,
            protect=",".join(sorted(written.protect)) or "none",
            matched=len(self.types.pairs),
            differing=len(library_differences),
            edits=tuple(describe_edits(edits, self.types, without_rules)),
            exceptions=exceptions,
            unmatched=tuple(describe_unmatched(self.match)),
            modify_mixlist=lists_text,
            customize_dtypes=rules_text,
            warnings=(*base.warnings, *self._warn_opset()),
        )

    def _warn_opset(self) -> Iterator[Diagnostic]:
        """Warn if the mixed model has another opset, and types that the opset of the original does not admit."""
        before, after = (standard_opset(loaded.proto) for loaded in (self.resolver.loaded, self.mixed))
        if self.types.refused and before != after:
            count = len(self.types.refused)
            message = (
                f"{count} {'node has' if count == 1 else 'nodes have'} types that opset {before} of the original does"
                f" not admit; {self.mixed.name} has opset {after}"
            )
            hint = (
                f"convert the original first: mixlist apply ORIGINAL -o NEW --opset {after} --precision-mode-v2 origin"
            )
            yield warning("ML613", message, hint=hint)


def _other_settings(
    base: Policy, refusals: frozenset[str], may_choose_constants: bool, may_choose_protection: bool
) -> Iterator[Policy]:
    """Yield the policies with other settings that may need fewer edits.

    ``refusals``: the rules that keep nodes in high precision although they are low in the mixed model.
    """
    constants: list[Constants] = ["clamp"] if may_choose_constants and "constant" in refusals else []
    dropped = {protection for rule, protection in _PROTECTION_OF_RULE.items() if rule in refusals}
    protections = [base.protect - dropped] if may_choose_protection and dropped & base.protect else []
    for chosen_constants, protect in product([base.constants, *constants], [base.protect, *protections]):
        if (chosen_constants, protect) != (base.constants, base.protect):
            yield replace(base, constants=chosen_constants, protect=protect)


def _render(policy: Policy) -> tuple[str, str]:
    """Return the texts of the modify_mixlist and customize_dtypes files, in the strict canonical form."""
    actions = json.dumps(diff_lists(Lists(policy.lists.library), policy.lists))
    lists_text = format_text(actions, "modify_mixlist", "modify-mixlist")
    return lists_text, "".join(f"{format_customize_line(rule)}\n" for rule in policy.rules)
