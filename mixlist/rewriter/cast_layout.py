"""Choose the Casts of a plan and their places.

A plan gets the fewest Casts. A value v has one type; let R be the other types that its readers want. Each r
in R needs some tensor that holds v as r, so one tensor per (v, r) is a lower bound unless one is there already:
a constant, which is converted instead; what stands behind a Cast of the user that resolution looks through
(exact, and free); a Cast of v to r by the user that every such reader sees. Where none is there, exactly one Cast
is made, in the scope that defines v, where every reader of v can see it, also from inside
subgraphs. So no (v, r) costs more than one, and none costs one that could cost nothing. A user's Cast that only some
of the readers see would leave the others in need of one, and that one serves all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.graph.model import Node, Scope, Value
from mixlist.graph.naming import NameGenerator, names_in
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators
from mixlist.resolver.cast_look_through import find_cast_source
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.value_uses import Use, find_uses

if TYPE_CHECKING:
    from onnx import ModelProto

_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


@dataclass(frozen=True)
class NewCast:
    """A Cast of ``value`` to ``elem``, called ``name``; ``output`` where it makes a graph output."""

    value: Value
    elem: int
    name: str
    node_name: str
    output: bool = False


@dataclass(frozen=True)
class Converted:
    """A constant that is wanted as ``elem``: as a new tensor ``name``, or in place where ``name`` is its own.

    ``limit``: the largest magnitude that its finite values keep; 0 if it is not reduced (Rule S4.36).
    """

    value: Value
    elem: int
    name: str
    limit: float = 0.0


@dataclass
class Layout:
    """The changes of one graph. Slots that are not named here keep the names that they have."""

    inputs: dict[Node, dict[int, str]] = field(default_factory=dict)
    outputs: dict[Scope, dict[int, str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # final name by value id, where it is not Value.name
    elements: dict[int, int] = field(default_factory=dict)  # final type by value id, where it is not the decided one
    casts: dict[Scope, list[NewCast]] = field(default_factory=dict)
    converted: list[Converted] = field(default_factory=list)
    moved: set[Node] = field(default_factory=set)  # the user's Casts that must stand right after what they read

    def name(self, value: Value) -> str:
        """The final name of a value."""
        return self.names.get(value.id, value.name)


def lay_out(
    solution: GraphSolution, new: NameGenerator, cast_is_black: bool, low: int, keep: KeepTypes | None = None
) -> Layout:
    """Choose the Casts, conversions and names for one graph; ``keep`` is None for a function's body."""
    return _Chooser(solution, new, cast_is_black, low).run(keep)


@dataclass(frozen=True)
class KeepTypes:
    """The inputs and outputs of the main graph that keep their declared types."""

    everything: bool = True
    names: frozenset[str] = frozenset()

    def keeps(self, name: str) -> bool:
        return self.everything or name in self.names


def _names_in_training(model: ModelProto) -> set[str]:
    """Names that the training information uses: it shares the main graph's initializers, so they stay as they are."""
    found: set[str] = set()
    for info in model.training_info:
        found.update(names_in(info.initialization, info.algorithm))
        for binding in (*info.initialization_binding, *info.update_binding):
            found.update((binding.key, binding.value))
    return found


class _Chooser:
    def __init__(self, solution: GraphSolution, new: NameGenerator, cast_is_black: bool, low: int) -> None:
        self.solution = solution
        self.decided_types = solution.decided_types
        self.new = new
        self.cast_is_black = cast_is_black
        self.low = low
        self.layout = Layout()
        self.needs: dict[tuple[Value, int], list[Use]] = {}
        self.constants: dict[Value, list[Use]] = {}
        self.redirected: set[tuple[Node | None, Scope, int]] = set()  # uses that read another value than they name
        self.made: dict[tuple[Value, int], str] = {}
        self.trained = _names_in_training(solution.graph.model)

    def run(self, keep: KeepTypes | None) -> Layout:
        root = self.solution.graph.root
        found: Iterable[Use] = find_uses(self.solution)
        if keep is not None and not keep.everything:
            found = list(found)
            self._retype_inputs(found, keep)
        self._sort_out(found)
        if keep is not None:
            for slot, value in enumerate(root.outputs):
                self._output(value, self._output_type(slot, value, keep), slot)
        for value, constant_uses in self.constants.items():
            self._constant(value, constant_uses)
        for (value, elem), needing in self.needs.items():
            self._provide(value, elem, needing)
        return self.layout

    def _elem(self, value: Value) -> int:
        return self.layout.elements.get(value.id, self.decided_types[value.id])

    def _sort_out(self, found: Iterable[Use]) -> None:
        decided, needs, changed = self.decided_types, self.needs, self.layout.elements
        for use in found:
            value = use.value
            source = self._stored_low(use)
            if source is not None:
                self.constants.setdefault(source, []).append(replace(use, value=source))
                self.redirected.add((use.node, use.scope, use.slot))
            elif value.constant_proto is not None and value.kind != "overridable":
                if types.element(value.type) in types.MIXABLE:
                    self.constants.setdefault(value, []).append(use)
            elif use.wanted_type is not None and use.wanted_type != changed.get(value.id, decided[value.id]):
                needs.setdefault((value, use.wanted_type), []).append(use)

    def _stored_low(self, use: Use) -> Value | None:
        """The low constant that a user's Cast raises, where the reader wants it low: weights kept small in the file."""
        cast = use.value.producer
        if (
            use.wanted_type is None
            or cast is None
            or cast.op_type != "Cast"
            or use.wanted_type == self._elem(use.value)
        ):
            return None
        source = find_cast_source(use.value, self.decided_types, self.low, self.cast_is_black)
        if source is None or source.constant_proto is None or source.kind == "overridable":
            return None
        return source if types.element(source.type) == use.wanted_type else None

    # --- graph inputs and outputs ---

    def _retype_inputs(self, found: Iterable[Use], keep: KeepTypes) -> None:
        """An input takes the low type where every reader, captured ones included, wants it."""
        wants: dict[Value, set[int | None]] = {}
        for use in found:
            if use.value.kind == "input" and use.value.scope is self.solution.graph.root:
                indifferent = use.node is not None and use.node.op_type in _YIELDS_SHAPE
                if not (use.wanted_type is None and indifferent):
                    wants.setdefault(use.value, set()).add(use.wanted_type)
        for value, wanted in wants.items():
            if wanted == {self.low} and self.decided_types[value.id] == types.FLOAT and not keep.keeps(value.name):
                self.layout.elements[value.id] = self.low

    def _output_type(self, slot: int, value: Value, keep: KeepTypes) -> int:
        root = self.solution.graph.root
        authored = self.solution.graph.marked_cast_types.get(root.output_names()[slot], value.type)
        declared = types.element(root.declared_output_types[slot] or authored)  # an output may lack a declaration
        if declared in types.MIXABLE and keep.keeps(value.name):
            return declared
        return self._elem(value)

    def _output(self, value: Value, declared: int, slot: int) -> None:
        """The Cast that makes a graph output has the output's name; what it casts gets a new one."""
        same = declared == self._elem(value) or declared not in types.MIXABLE
        if value in self.constants or (value.constant_proto is not None and not same):
            self.constants.setdefault(value, []).append(Use(value, declared, value.scope, None, slot))
            return
        if same or (value, declared) in self.made:
            return
        self.layout.names[value.id] = self.new.make_name(f"{value.name}_{types.type_name(self._elem(value))}")
        self._add_cast(value, declared, value.name, output=True)

    # --- constants ---

    def _constant(self, value: Value, found: list[Use]) -> None:
        own = types.element(value.type)
        self._point(
            [u for u in found if u.wanted_type == own and (u.node, u.scope, u.slot) in self.redirected], value.name
        )
        variants = {(u.wanted_type, u.magnitude_limit) for u in found if u.wanted_type is not None}
        wanted = sorted(variants - {(own, 0.0)})
        if not wanted:
            return
        if (own, 0.0) not in variants and value.name not in self.trained:
            elem, limit = wanted.pop(0)
            self.layout.elements[value.id] = elem
            self.layout.converted.append(Converted(value, elem, value.name, limit))
        for elem, limit in wanted:
            kind = "mask_" if limit else ""
            name = self.new.make_name(f"{value.name}_{kind}{types.type_name(elem)}")
            self.layout.converted.append(Converted(value, elem, name, limit))
            self._point([u for u in found if (u.wanted_type, u.magnitude_limit) == (elem, limit)], name)

    # --- everything else ---

    def _provide(self, value: Value, elem: int, needing: list[Use]) -> None:
        made = self.made.get((value, elem))
        if made is None:
            source = find_cast_source(value, self.decided_types, self.low, self.cast_is_black)
            if source is not None and self._elem(source) == elem:
                made = self.layout.name(source)
        if made is None:
            seen = [cast for use in needing if (cast := self._visible_cast(value, elem, use.scope)) is not None]
            if len(seen) == len(needing):
                for use, cast in zip(needing, seen, strict=True):
                    self._reuse(use, cast)
                return
            made = self.new.make_name(f"{value.name}_{types.type_name(elem)}")
            self._add_cast(value, elem, made)
        self._point(needing, made)

    def _add_cast(self, value: Value, elem: int, name: str, output: bool = False) -> None:
        self.made[value, elem] = name
        cast = NewCast(value, elem, name, self.new.make_name(f"Cast_{name}"), output)
        self.layout.casts.setdefault(value.scope, []).append(cast)

    def _point(self, needing: list[Use], name: str) -> None:
        for use in needing:
            if use.node is not None:
                self.layout.inputs.setdefault(use.node, {})[use.slot] = name
            elif use.scope is not self.solution.graph.root:
                self.layout.outputs.setdefault(use.scope, {})[use.slot] = name

    def _reuse(self, use: Use, cast: Node) -> None:
        assert cast.outputs[0] is not None
        self._point([use], self.layout.name(cast.outputs[0]))
        reader, at = use.node, use.scope
        while at is not cast.scope and at.owner is not None:
            reader, at = at.owner, at.owner.scope
        if reader is not None and reader.id < cast.id:
            self.layout.moved.add(cast)

    def _visible_cast(self, value: Value, elem: int, scope: Scope) -> Node | None:
        """The user's own Cast of ``value`` to ``elem`` that a reader in ``scope`` sees: the innermost."""
        casts = self.user_casts.get((value, elem), {})
        at: Scope | None = scope if casts else None
        while at is not None and at not in casts:
            at = at.parent
        return casts[at] if at is not None else None

    @cached_property
    def user_casts(self) -> dict[tuple[Value, int], dict[Scope, Node]]:
        """The first Cast of each scope by what it reads and makes."""
        casts: dict[tuple[Value, int], dict[Scope, Node]] = {}
        for node in self.solution.graph.nodes:
            if node.op_type == "Cast" and not node.domain and node.inputs and node.inputs[0] and node.outputs[0]:
                made = (node.inputs[0], types.element(node.outputs[0].type))
                casts.setdefault(made, {}).setdefault(node.scope, node)
        return casts
