"""The search itself: which choices are tried, for each objective.

``min-edits``: of the minimal sets of op types that the two orders of suspicion give, the one with the fewest edits,
where an edit more is worth a tenth of the matrix and convolution work that it keeps low (``WORTH``). ``max-low``
starts from everything white and keeps as little as possible high; what then is not needed is left as the base has it.
``max-speed`` takes the cheaper of both by the static account, and goes on with single edits that make it cheaper.
Then, where node rules are allowed, an op type gives way to a few of its nodes: at most half of them, or as many as it
takes where more work stays low by it and edits are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mixlist.graph.refs import NodeRef
from mixlist.lists.library import ListName
from mixlist.tuner.candidate_ranking import Suspicion, orders, work_of
from mixlist.tuner.candidates import Choice, Edit, ListEdit, NodeEdit, Unit, list_units, node_units
from mixlist.tuner.cost_model import Price
from mixlist.tuner.options import Objective
from mixlist.tuner.search import Ahead, foreseen, minimal, tighten
from mixlist.tuner.trial_compiler import Rig
from mixlist.tuner.trials import Trials

WORTH = 0.1  # share of the matrix work that is worth one edit more
FEW = 0.5  # of an op type's low nodes: more by rule than that, and the list says it better


class Strategy:
    """One search over one rig. ``work``: FLOPs of matrix products by node; ``price``: static cost of a choice."""

    def __init__(
        self,
        rig: Rig,
        trials: Trials,
        suspicion: Suspicion,
        work: Mapping[NodeRef, int],
        nodes_allowed: bool,
        price: Price,
    ) -> None:
        self.rig, self.trials, self.suspicion, self.work = rig, trials, suspicion, work
        self.nodes_allowed, self.price = nodes_allowed, price
        self.objective: Objective = "min-edits"
        self.units: dict[Edit, Unit] = {}
        self.notes: list[str] = []

    def run(self, objective: Objective) -> Choice | None:
        """The best choice found; None where no choice keeps the limits."""
        self.objective = objective
        found = self._lists(objective)
        if found is None:
            self.notes = ["no list of op types keeps the limits" + ("" if self.nodes_allowed else "; --node-rules may")]
            if not self.nodes_allowed:
                return None
            found = self._nodes(frozenset(), self._all_nodes(frozenset()))
            if found is None:
                self.notes.append("rules of single nodes do not either")
                return None
            return self._tight(found)
        if self.nodes_allowed:
            for edit in sorted((e for e in found if isinstance(e, ListEdit) and e.after == "black"), key=self._weight):
                found = self._refine(found, edit)
        return self._tight(found)

    # --- op types ---

    def _lists(self, objective: Objective) -> Choice | None:
        if objective == "min-edits":
            return self._fewest()
        low = self._lowest()
        if objective == "max-low" or low is None:
            return low
        few = self._fewest()
        return self._cheaper(min([c for c in (few, low) if c is not None], key=lambda c: (self.price(c), len(c))))

    def _fewest(self) -> Choice | None:
        """The best minimal set of op types to make black."""
        found = []
        for order in orders(self._black(), self.suspicion, self.work):
            chosen = self._minimal(order, lambda edits: edits)
            if not chosen:
                return chosen
            found.append(chosen)
        return min(found, key=self._merit)

    def _lowest(self) -> Choice | None:
        """Everything white, but for what must not be; then the edits that bring nothing go."""
        start = frozenset(unit.edit for unit in self._units(frozenset(), "white"))
        self.rig.offer(start)
        units = self._units(start, "black")
        order = orders(units, self.suspicion, self.work)[0]
        chosen = self._minimal(order, lambda black: self._instead(start, black))
        if chosen is None:
            return None
        best = self._instead(start, chosen)
        for edit in sorted(best & start, key=str, reverse=True):
            rest = best - {edit}
            if self._share(rest) >= self._share(best) and self.trials.passes(rest):
                best = rest
        return best

    def _instead(self, start: Choice, black: Choice) -> Choice:
        """``start`` with some op types black instead; one that the base has black already needs no edit."""
        ops = {edit.op for edit in black if isinstance(edit, ListEdit)}
        kept = {edit for edit in start if not (isinstance(edit, ListEdit) and edit.op in ops)}
        return frozenset(kept | {edit for edit in black if isinstance(edit, ListEdit) and edit.before != "black"})

    def _cheaper(self, start: Choice) -> Choice:
        """Single edits that lower the static cost and keep the limits; the last low node stays low."""
        best, price = start, self.price(start)
        for unit in (*self._units(start, "black"), *self._units(start, "white")):
            edit = unit.edit
            assert isinstance(edit, ListEdit)
            if edit.before == edit.after or edit.op in {e.op for e in best if isinstance(e, ListEdit)}:
                continue
            tried = best | {edit}
            cost = self.price(tried)
            if cost < self.price.edge * price and self.rig.low_nodes(tried):
                self.rig.offer(tried)
                if self.trials.passes(tried):
                    best, price = tried, cost
        return best

    def _black(self) -> tuple[Unit, ...]:
        return self._units(frozenset(), "black")

    def _units(self, choice: Choice, after: ListName) -> tuple[Unit, ...]:
        """The op types that could go to a list under a choice; to black only those with low nodes."""
        if after == "black":
            units = self._closed(choice, lambda low: list_units(self.rig.solution(choice), self.rig.base, after, low))
        else:
            units = list_units(self.rig.solution(choice), self.rig.base, after, None)
        self._know(units)
        return units

    def _closed(self, choice: Choice, units_of: Callable[[set[NodeRef]], tuple[Unit, ...]]) -> tuple[Unit, ...]:
        """Units of the nodes that round under a choice, and of those that do once all these are high.

        (A Relu of what is low already rounds nothing, until its input comes in float32.)
        """
        low = self.rig.low_nodes(choice)
        while True:
            units = units_of(low)
            edits = frozenset(unit.edit for unit in units)
            rest = self.rig.low_nodes(self._instead(choice, edits) | {e for e in edits if isinstance(e, NodeEdit)})
            if rest <= low:
                return units
            low = low | rest

    # --- nodes ---

    def _refine(self, choice: Choice, edit: ListEdit) -> Choice:
        """A few nodes of an op type instead of all of them, where that keeps the limits."""
        rest = choice - {edit}
        before = self.rig.low_nodes(rest)
        own = {node for node in self.units[edit].nodes if node in before}
        units = node_units(self.rig.solution(rest), own)
        if len(own) < 2 or not units:
            return choice
        found = self._nodes(rest, units)
        if found is None:
            return choice
        gains = self.objective != "min-edits" and self._share(found) > self._share(choice)
        return found if gains or len(found - rest) <= FEW * len(own) else choice

    def _all_nodes(self, start: Choice) -> tuple[Unit, ...]:
        return self._closed(start, lambda low: node_units(self.rig.solution(start), low))

    def _nodes(self, start: Choice, units: Sequence[Unit]) -> Choice | None:
        """The best minimal set of nodes to keep high, beside ``start``."""
        self._know(units)
        found = []
        for order in orders(units, self.suspicion, self.work):
            chosen = self._minimal(order, lambda edits: start | edits)
            if chosen is None:
                return None
            found.append(start | chosen)
        return min(found, key=self._merit)

    # --- common ---

    def _minimal(self, order: Sequence[Unit], choice_of: Callable[[Choice], Choice]) -> Choice | None:
        """A minimal set of edits that passes; ``choice_of`` says what is tried of a set."""
        edits = [unit.edit for unit in order]

        def passes(chosen: Choice, ahead: Ahead[Edit]) -> bool:
            return self.trials.passes(choice_of(chosen), lambda count: map(choice_of, ahead(count)))

        return foreseen(lambda passes: minimal(edits, passes), passes)

    def _tight(self, choice: Choice) -> Choice:
        """The choice without what can go; edits stay that bring what the objective asks for."""
        gains = {e for e in choice if self.gain(e, choice)}
        least = 0.0 if self.objective == "min-edits" else self._share(choice)

        def can_go(rest: Choice, ahead: Ahead[Edit]) -> bool:
            if self._share(rest | gains) < least:
                return False
            return self.trials.passes(rest | gains, lambda count: [more | gains for more in ahead(count)])

        order = sorted(choice - gains, key=self._weight)
        return foreseen(lambda passes: tighten(frozenset(choice - gains), order, passes), can_go) | gains

    def gain(self, edit: Edit, choice: Choice) -> str:
        """What the objective would lose if an edit of a choice were left out, in words; "" for nothing."""
        rest = choice - {edit}
        if self.objective != "min-edits" and self._share(rest) < self._share(choice):
            return "with less in low precision"
        if self.objective == "max-speed" and self.price(choice) < self.price.edge * self.price(rest):
            return "at a higher cost"
        return ""

    def merit(self, choice: Choice) -> tuple[float, float, list[str]]:
        """How choices that keep the limits compare: smaller is better."""
        edits, share = float(len(choice)), self._share(choice)
        few, much = edits - share / WORTH, -share
        first = (few, much) if self.objective == "min-edits" else (much, few)
        return *first, sorted(map(str, choice))

    def _know(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self.units.setdefault(unit.edit, unit)

    def _weight(self, edit: Edit) -> tuple[int, bool, str]:
        """The work that an edit makes high: what costs little stays longest."""
        unit = self.units.get(edit)
        return (work_of(unit, self.work) if unit is not None else 0), isinstance(edit, NodeEdit), str(edit)

    def _share(self, choice: Choice) -> float:
        return self.rig.share(choice) or 0.0

    def _merit(self, choice: Choice) -> tuple[float, list[str]]:
        """Smaller is better."""
        return len(choice) - self._share(choice) / WORTH, sorted(map(str, choice))
