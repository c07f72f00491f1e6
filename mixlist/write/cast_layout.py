"""Choose the Casts of a plan and their places, and the constants that are converted.

The layout has the fewest Casts that the plan allows. A value has one type. For each other type that its readers want,
these readers need a tensor that holds the value in that type. Such a tensor needs no new Cast in three cases:

- The value is a constant: a converted copy costs nothing at run time.
- The value is the output of a user's Cast that readers look through, and the Cast's input has the type (Rule S4.17).
- A user's Cast converts the value to that type, and all these readers see it.

Otherwise mixlist makes exactly one Cast, in the scope that defines the value, where all readers see it, also those in
bodies. So each pair of a value and a type needs at most one Cast, and none in the three cases above. If only some of
the readers see a user's Cast, because it is in a branch, it saves no Cast: the other readers need a new Cast, and the
new Cast serves all readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mixlist.decide.decisions import is_guard_limit
from mixlist.decide.gray_policies import find_cast_source, skip_idle_casts
from mixlist.decide.solution import Solution, find_widened_slots
from mixlist.decide.value_uses import Use, find_node_uses, find_uses
from mixlist.model import dtypes
from mixlist.model.graph import Node, Scope, Value
from mixlist.model.low_precision import LOW_TYPES, overflow_bound
from mixlist.model.naming import NameGenerator, names_in

if TYPE_CHECKING:
    from onnx import ModelProto


class NewCast(NamedTuple):
    """A Cast of ``value`` to the element type ``elem``, whose output is called ``name``."""

    value: Value
    elem: int
    name: str
    node_name: str
    makes_graph_output: bool = False


class ConvertedConstant(NamedTuple):
    """A constant that readers want in the element type ``elem``.

    ``name``: the name of the converted tensor. If it is the name of ``value``, the constant is converted in place;
    otherwise it is copied. ``magnitude_limit``: the largest magnitude of the finite values of a mask's constant (Rule
    S4.36), or below 1 the smallest number of a guard's constant (Rule S4.43); 0 for other constants.
    """

    value: Value
    elem: int
    name: str
    magnitude_limit: float = 0.0


class WideningCast(NamedTuple):
    """A Cast to float32 of what the input ``slot`` of ``node`` reads, right before the node (Rule S6.10)."""

    node: Node
    slot: int
    input_name: str
    name: str
    node_name: str


@dataclass
class CastLayout:
    """The changes of one graph. Slots that are not named here keep the names that they have.

    - ``input_names``: the name that an input slot of a node reads, by node and slot.
    - ``output_names``: the name that an output slot of a body yields, by scope and slot.
    - ``value_names``: the final name of a value, by its id, if it is not ``Value.name``.
    - ``value_types``: the final element type of a value, by its id, if it is not the decided one.
    - ``casts``: the new Casts of each scope.
    - ``converted_constants``: the constants that readers want in another type, in place or as a copy.
    - ``moved_casts``: the user's Casts that move to the place directly after their producer.
    - ``removed_casts``: the user's Casts that no reader needs any more (Rule S7.7).
    - ``widening_casts``: the Casts before matrix operators that read the low type and write float32, of each scope.
    """

    input_names: dict[Node, dict[int, str]] = field(default_factory=dict)
    output_names: dict[Scope, dict[int, str]] = field(default_factory=dict)
    value_names: dict[int, str] = field(default_factory=dict)
    value_types: dict[int, int] = field(default_factory=dict)
    casts: dict[Scope, list[NewCast]] = field(default_factory=dict)
    converted_constants: list[ConvertedConstant] = field(default_factory=list)
    moved_casts: set[Node] = field(default_factory=set)
    removed_casts: set[Node] = field(default_factory=set)
    widening_casts: dict[Scope, list[WideningCast]] = field(default_factory=dict)

    @property
    def new_cast_count(self) -> int:
        """Return the number of new Casts."""
        return sum(map(len, self.casts.values())) + sum(map(len, self.widening_casts.values()))

    def final_name(self, value: Value) -> str:
        """Return the name of a value in the rewritten model."""
        return self.value_names.get(value.id, value.name)


def lay_out_casts(solution: Solution, name_generator: NameGenerator) -> CastLayout:
    """Choose the Casts, conversions and names for a model."""
    return _CastLayoutBuilder(solution, name_generator).build()


def _names_in_training_info(model: ModelProto) -> set[str]:
    """Return the names that the training information uses.

    The training information shares these initializers with the main graph, so they keep their types.
    """
    names: set[str] = set()
    for info in model.training_info:
        names.update(names_in(info.initialization, info.algorithm))
        for binding in (*info.initialization_binding, *info.update_binding):
            # A binding connects a tensor of the training graphs with an initializer of the main graph.
            names.update((binding.key, binding.value))
    return names


class _CastLayoutBuilder:
    """Builds the CastLayout of a model.

    - ``uses_to_convert``: the uses that want a value in another type than it has, by value and wanted type.
    - ``constant_uses``: the uses of each constant that can be converted in the file.
    - ``cast_names``: the name of the Cast that mixlist makes of a value, by value and type.
    - ``uses_of_casts``: the uses of what each Cast of the user makes.
    - ``connected_names``: the names that ``_connect`` let a use read.
    """

    def __init__(self, solution: Solution, name_generator: NameGenerator) -> None:
        self.solution = solution
        self.decided_types = self.solution.decided_types
        self.name_generator, self.interface = name_generator, solution.interface
        self.cast_is_black, self.low_type = solution.classifier.cast_is_black, solution.low_type
        self.skips_idle_casts = solution.classifier.skips_idle_casts
        self.layout = CastLayout()
        self.uses_to_convert: dict[tuple[Value, int], list[Use]] = {}
        self.constant_uses: dict[Value, list[Use]] = {}
        self.cast_names: dict[tuple[Value, int], str] = {}
        self.uses_of_casts: dict[Value, list[Use]] = {}
        self.connected_names: set[str] = set()
        self.training_names = _names_in_training_info(self.solution.graph.model)

    def build(self) -> CastLayout:
        self._collect_uses(find_uses(self.solution))
        # The order of these steps matters.
        # 1. Make the Casts of graph outputs: step 3 lets readers in the graph use them, too. This step also
        #    adds the graph outputs that are constants to the uses of constants.
        for slot, value in enumerate(self.solution.graph.root.outputs):
            self._convert_output(slot, value, self._output_type(slot, value))
        # 2. Convert constants. This decides their final types.
        for value, constant_uses in self.constant_uses.items():
            self._store_cast_constant(value, constant_uses)
        for value, constant_uses in self.constant_uses.items():
            self._convert_constant(value, constant_uses)
        # 3. Give the remaining readers an existing tensor or a new Cast. An existing tensor may be a constant.
        for (value, elem), uses_of_type in self.uses_to_convert.items():
            self._convert_value(value, elem, uses_of_type)
        # 4. Remove the Casts of the user whose readers all read another tensor now.
        self._remove_unread_casts()
        # 5. Widen the inputs of matrix operators that read the low type and write float32 (Rule S6.10).
        for node in self.solution.graph.nodes:
            if slots := find_widened_slots(self.solution, node):
                for use in find_node_uses(self.solution, node):
                    if use.slot in slots:
                        self._widen(use, node)
        return self.layout

    def _widen(self, use: Use, node: Node) -> None:
        low_name = self._final_input_name(use)
        name = self.name_generator.make_name(f"{low_name}_float32")
        cast = WideningCast(node, use.slot, low_name, name, self.name_generator.make_name(f"Cast_{name}"))
        self.layout.widening_casts.setdefault(node.scope, []).append(cast)
        self.layout.input_names.setdefault(node, {})[use.slot] = name

    def _final_type(self, value: Value) -> int:
        return self.layout.value_types.get(value.id, self.decided_types[value.id])

    def _collect_uses(self, uses: Iterable[Use]) -> None:
        """Collect the uses of constants in ``constant_uses``, and those of other values in ``uses_to_convert``."""
        for use in uses:
            value = use.value
            if value.producer is not None and value.producer.op_type == "Cast" and value.producer.is_plain:
                self.uses_of_casts.setdefault(value, []).append(use)
            if value.constant_proto is not None and value.kind != "overridable":
                # The default of an input is not converted: the caller may replace it, so its readers get a Cast
                # (S4.16).
                if dtypes.element(value.type) in dtypes.MIXABLE:
                    self.constant_uses.setdefault(value, []).append(use)
            elif use.wanted_type is not None and use.wanted_type != self.decided_types[value.id]:
                self.uses_to_convert.setdefault((value, use.wanted_type), []).append(use)

    # --- graph inputs and outputs ---

    def _output_type(self, slot: int, value: Value) -> int:
        """Return the element type that a graph output has in the rewritten model."""
        root = self.solution.graph.root
        # The model may leave the type of an output out. If an earlier rewrite made the output with a Cast, which has a
        # mark and is no node of the graph (Rule S4.18), the type is that of this Cast.
        authored = self.solution.graph.marked_cast_types.get(root.output_names()[slot], value.type)
        declared = root.declared_output_types[slot] or authored
        # A constant that is an output keeps its declared type: no node makes it, so no Cast can follow one.
        is_constant = value.constant_proto is not None
        elem = dtypes.element(declared) if is_constant else self.interface.find_type(value.name, declared)
        return elem if elem in dtypes.MIXABLE else self._final_type(value)

    def _convert_output(self, slot: int, value: Value, output_type: int) -> None:
        """Give graph output ``slot`` the type ``output_type``, with a Cast if ``value`` has another type.

        The Cast gets the name of the output, because the interface keeps its names (Rule S7.2). ``value`` gets a new
        name: ``Exp -> y`` becomes ``Exp -> y_float16 -> Cast -> y``.
        """
        value_type = self._final_type(value)
        if value.constant_proto is not None:
            # No Cast: _convert_constant() converts the constant in the file, for the output and its other uses.
            output_use = Use(value, output_type, value.scope, None, slot)
            self.constant_uses.setdefault(value, []).append(output_use)
        # A value may be two outputs of the graph: one Cast is enough.
        elif output_type != value_type and (value, output_type) not in self.cast_names:
            new_name = self.name_generator.make_name(f"{value.name}_{dtypes.type_name(value_type)}")
            self.layout.value_names[value.id] = new_name
            self._add_cast(value, output_type, value.name, makes_graph_output=True)

    # --- constants ---

    def _store_cast_constant(self, value: Value, uses: list[Use]) -> None:
        """Store a float32 constant that only a user's Casts to one low type read in this type (Rule S7.6).

        The readers of the Casts read the constant, so ``_remove_unread_casts`` removes the Casts.
        """
        casts = [use.node for use in uses if use.node is not None and use.node.op_type == "Cast" and use.node.is_plain]
        outputs = [cast.outputs[0] for cast in casts if cast.outputs[0] is not None]
        elems = {self.decided_types[output.id] for output in outputs}
        readers = [use for output in outputs for use in self.uses_of_casts.get(output, ())]
        root_outputs = self.solution.graph.root.outputs
        if (
            len(casts) < len(uses)
            or value.type != dtypes.FLOAT
            or len(elems) != 1
            or not elems <= LOW_TYPES
            or value.name in self.training_names
            or any(output in root_outputs for output in outputs)
            or any(use.wanted_type not in (None, *elems) for use in readers)
            or self._may_be_clamped(value, *elems)
        ):
            return
        self.layout.value_types[value.id] = next(iter(elems))
        self.layout.converted_constants.append(ConvertedConstant(value, next(iter(elems)), value.name))
        self._connect(readers, value.name)

    def _may_be_clamped(self, value: Value, elem: int) -> bool:
        """Return whether the conversion may clamp a value, which a Cast never does (Rule S4.19)."""
        if not self.solution.policy.clamp:
            return False
        constant_range = self.solution.constant_ranges.known_range_of(value)
        if constant_range is None:
            return True
        # The ends, because ``max_abs`` leaves out infinities.
        return max(-constant_range.smallest, constant_range.largest) >= overflow_bound(elem)

    def _convert_constant(self, value: Value, uses: list[Use]) -> None:
        """Convert a constant once for each type, and each limit, that its readers want (Rule S7.6)."""
        authored = dtypes.element(value.type)
        variants = {(u.wanted_type, u.magnitude_limit) for u in uses if u.wanted_type is not None}
        to_convert = sorted(variants - {(authored, 0.0)})
        if not to_convert:
            return
        # If no use wants the authored values, convert the constant in place, and copy it for further variants.
        if (authored, 0.0) not in variants and value.name not in self.training_names:
            elem, limit = to_convert.pop(0)
            self.layout.value_types[value.id] = elem
            self.layout.converted_constants.append(ConvertedConstant(value, elem, value.name, limit))
        for elem, limit in to_convert:
            prefix = "" if not limit else "guard_" if is_guard_limit(limit) else "mask_"
            name = self.name_generator.make_name(f"{value.name}_{prefix}{dtypes.type_name(elem)}")
            self.layout.converted_constants.append(ConvertedConstant(value, elem, name, limit))
            self._connect([u for u in uses if (u.wanted_type, u.magnitude_limit) == (elem, limit)], name)

    # --- all other values ---

    def _convert_value(self, value: Value, elem: int, uses: list[Use]) -> None:
        """Let ``uses`` read ``value`` as ``elem``: from an existing tensor if there is one, else from a new Cast."""
        # An existing tensor costs nothing: the Cast that makes a graph output, the input of a user's Cast that readers
        # look through, or user's Casts to this type. Make a new Cast only if there is none of them.
        name = self.cast_names.get((value, elem))
        origin = skip_idle_casts(value) if self.skips_idle_casts else value
        if name is None and origin is not value and origin.constant_proto is None:
            # The Casts of the user between the two do nothing, so they need not be computed for these readers.
            if self._final_type(origin) == elem:
                self._connect(uses, self.layout.final_name(origin))
            else:
                self._convert_value(origin, elem, uses)
            return
        if name is None:
            source = find_cast_source(value, self.decided_types, self.low_type, self.cast_is_black)
            if source is not None and self._final_type(source) == elem:
                name = self.layout.final_name(source)
        if name is None:
            visible_casts = [
                cast for use in uses if (cast := self._find_visible_cast(value, elem, use.scope)) is not None
            ]
            if len(visible_casts) == len(uses):  # every reader sees one
                for use, cast in zip(uses, visible_casts, strict=True):
                    self._reuse_cast(use, cast)
                return
            name = self.name_generator.make_name(f"{value.name}_{dtypes.type_name(elem)}")
            self._add_cast(value, elem, name)
        self._connect(uses, name)

    def _add_cast(self, value: Value, elem: int, name: str, makes_graph_output: bool = False) -> None:
        self.cast_names[value, elem] = name
        node_name = self.name_generator.make_name(f"Cast_{name}")
        cast = NewCast(value, elem, name, node_name, makes_graph_output)
        self.layout.casts.setdefault(value.scope, []).append(cast)

    def _connect(self, uses: list[Use], name: str) -> None:
        """Let each use read the tensor called ``name``."""
        self.connected_names.add(name)
        for use in uses:
            if use.node is not None:
                self.layout.input_names.setdefault(use.node, {})[use.slot] = name
            # The outputs of the graph itself keep their names: _convert_output() treats them.
            elif use.scope is not self.solution.graph.root:
                self.layout.output_names.setdefault(use.scope, {})[use.slot] = name

    def _reuse_cast(self, use: Use, cast: Node) -> None:
        """Let a use read the output of a user's Cast; move the Cast before the reader if it comes after it."""
        assert cast.outputs[0] is not None
        self._connect([use], self.layout.final_name(cast.outputs[0]))
        # Find the node of the Cast's own scope whose body holds the reader: the order in that scope counts. Nodes have
        # their ids in topological order.
        reader, scope = use.node, use.scope
        while scope is not cast.scope:
            assert scope.owner is not None  # a reader sees the Casts of its scope and of those around it
            reader, scope = scope.owner, scope.owner.scope
        if reader is not None and reader.id < cast.id:
            self.layout.moved_casts.add(cast)

    def _remove_unread_casts(self) -> None:
        graph = self.solution.graph
        kept_names = names_in(*graph.unlinked_bodies)
        converted = {value for value, _ in self.cast_names}
        removed = self.layout.removed_casts
        # From the last Cast to the first: a Cast may be read by one that goes.
        for value in sorted(self.uses_of_casts, key=lambda value: value.id, reverse=True):
            uses = [use for use in self.uses_of_casts[value] if use.node not in removed]
            assert value.producer is not None
            if value in graph.root.outputs or value in converted or value.name in kept_names:
                continue
            final_name = self.layout.final_name(value)
            # Another reader may have been connected to it, which reads another value in the model.
            if final_name not in self.connected_names and all(
                self._final_input_name(use) != final_name for use in uses
            ):
                removed.add(value.producer)

    def _final_input_name(self, use: Use) -> str:
        """Return the name that a use reads in the rewritten model."""
        layout, slots = self.layout, dict[int, str]()
        if use.node is not None:
            slots = layout.input_names.get(use.node, slots)
        elif use.scope is not self.solution.graph.root:
            slots = layout.output_names.get(use.scope, slots)
        return slots.get(use.slot) or layout.final_name(use.value)

    def _find_visible_cast(self, value: Value, elem: int, scope: Scope) -> Node | None:
        """Return the innermost Cast of the user from ``value`` to ``elem`` that a reader in ``scope`` sees."""
        casts_by_scope = self.user_casts.get((value, elem), {})
        # Most values have no Cast of the user, and then no scope need be visited.
        outer: Scope | None = scope if casts_by_scope else None
        while outer is not None and outer not in casts_by_scope:
            outer = outer.parent
        return casts_by_scope[outer] if outer is not None else None

    @cached_property
    def user_casts(self) -> dict[tuple[Value, int], dict[Scope, Node]]:
        """Return the first Cast of the user in each scope, by the value that it reads and the type that it makes."""
        casts: dict[tuple[Value, int], dict[Scope, Node]] = {}
        for node in self.solution.graph.nodes:
            if node.op_type == "Cast" and not node.domain and node.inputs[0] and node.outputs[0]:
                key = (node.inputs[0], dtypes.element(node.outputs[0].type))
                casts.setdefault(key, {}).setdefault(node.scope, node)
        return casts
