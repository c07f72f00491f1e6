"""The result of ``mixlist.diff`` with a model: the changes from one policy to another."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.files.strict_json import JsonObject
from mixlist.flat_rows import Row
from mixlist.graph.refs import NodeResult
from mixlist.lists.diff import ListDiff
from mixlist.lists.setting_changes import SettingChange
from mixlist.notebook_table import notebook_rows
from mixlist.ops.names import operator_name

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.cost.estimate import Work


@dataclass(frozen=True)
class NodeChange(NodeResult):
    """A node whose precision differs.

    ``base`` and ``target``: its precision under each policy. ``reason``: the reason under the target.
    """

    base: str
    target: str
    reason: str
    domain: str = ""

    @property
    def operator(self) -> str:
        """Return the op type with its domain, as lists name it."""
        return operator_name(self.domain, self.op_type)


@dataclass(frozen=True)
class SideResult:
    """The effect of one of the two policies on the model.

    ``lists``: the library, and the number of op types that a modify_mixlist moves. ``casts``: the number of Casts that
    ``apply`` inserts. ``check``: the check on the data. ``work``: the estimated operations and bytes of the mixed model
    in the shapes of the first batch. ``check`` and ``work`` are None without data.
    """

    lists: str
    casts: int
    check: CheckReport | None = None
    work: Work | None = None


@dataclass(frozen=True, repr=False)
class DiffReport:
    """The changes from the policy ``base`` to the policy ``target``, for one model.

    ``mixlist``: the modify_mixlist that turns the lists of ``base`` into those of ``target``, None if their libraries
    have names of different name spaces. ``settings``: the other settings that differ. ``nodes``: the nodes whose
    precision differs. ``total``: the number of all nodes.
    """

    model: str
    mixlist: ListDiff | None
    settings: tuple[SettingChange, ...]
    nodes: tuple[NodeChange, ...]
    total: int
    base: SideResult
    target: SideResult
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.nodes)} of {self.total} nodes change, Casts {self.base.casts} -> {self.target.casts}"
        return f"<DiffReport of {self.model!r}: {counts}; settings {len(self.settings)}, warnings {len(self.warnings)}>"

    def count_changes(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the number of changed nodes of each operator, by (precision of base, precision of target)."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for node in self.nodes:
            counts.setdefault((node.base, node.target), Counter())[node.operator] += 1
        # The most frequent change first.
        return dict(sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])))

    def to_rows(self) -> list[Row]:
        """Return a flat row for each node that changes, for pandas or polars."""
        return [asdict(node) for node in self.nodes]

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [
            (base or "-", target, str(operators.total()), ", ".join(operators))
            for (base, target), operators in self.count_changes().items()
        ]
        title = f"{self.model}: {len(self.nodes)} of {self.total} nodes change their precision"
        return notebook_rows(title, ("base", "target", "nodes", "operators"), rows)

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.diff/1`` object of schemas/diff.json."""
        changes = [
            {"base": base, "target": target, "nodes": operators.total(), "operators": dict(operators.most_common())}
            for (base, target), operators in self.count_changes().items()
        ]
        sides = {"base": self.base, "target": self.target}
        return {
            "format": "mixlist.diff/1",
            "model": self.model,
            "mixlist": self.mixlist,
            "settings": [asdict(change) for change in self.settings],
            "totals": {
                "nodes": self.total,
                "changed": len(self.nodes),
                "changes": changes,
                "casts": {name: side.casts for name, side in sides.items()},
            },
            "check": {name: side.check.to_json() if side.check else None for name, side in sides.items()},
            "estimate": {
                name: {**asdict(side.work), "low_share": side.work.low_share} if side.work else None
                for name, side in sides.items()
            },
            "nodes": [asdict(node) for node in self.nodes],
            "warnings": warnings_as_text(self.warnings),
        }
