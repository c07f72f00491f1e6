"""An independent reference of mixlist's decisions, written from docs/semantics.md alone.

It is slow and simple: types that feed back are found by brute iteration (Rule S4.28: all start undecided, a vote can
only raise them, and what no vote decides keeps its authored type). The files ``reference_*.py`` restate the other
rules. ``decide`` returns the precision and the output types of every node.

Rules here: S3.2, S3.4 to S3.8 (modes), S4.2 (node rules), S4.4 (white), S4.5 (black), S4.7 (constants out of range),
S4.9 (lists act on float32), S4.36 (a gray softmax is first decided as if masks were reduced).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx

from mixlist import Policy
from mixlist.model.traits import Trait, operators
from tests.support.package import NodeRule
from tests.support.reference_between import Between
from tests.support.reference_constants import NUMPY, Constants, is_deterministic
from tests.support.reference_earlier import find_groups_to_lower, saves_casts
from tests.support.reference_flow import Flow, Shared, all_scopes
from tests.support.reference_gray import Follower, Types, is_idle_cast, widest
from tests.support.reference_guards import Guards
from tests.support.reference_masks import Mask, Masks, is_filled
from tests.support.reference_model import BFLOAT16, ELEM_TYPES, FLOAT, FLOAT16, LISTED, Node, Value
from tests.support.reference_moved import Moved, converts_integers, is_accumulator
from tests.support.reference_names import ascend_list, kernels_of
from tests.support.reference_norms import find_norms
from tests.support.reference_positions import Positions
from tests.support.reference_rules import rule_for, ruled_types
from tests.support.reference_signature import (
    Group,
    admits,
    can_be,
    float_slots,
    groups,
    has_container,
    has_fixed_output,
    type_name,
)
from tests.support.reference_types import expand
from tests.support.reference_units import find_units
from tests.support.scopes import dtype_name

FLOATS = (*LISTED, onnx.TensorProto.DOUBLE)
AUTHORED = 0  # the requested type of a node that keeps its authored type
CUBE = {"MatMul", "Gemm", "Conv", "ConvTranspose"}


@dataclass(frozen=True)
class ReferenceDecision:
    """The decision of the rules for one node: its precision, and the type of each output that is in use.

    ``reduced`` holds the constants of masks out of range that the node reads, each with the limit of its magnitude, and
    those of a guard, each with the number to which it is raised.
    """

    precision: str
    outputs: tuple[str, ...]
    reduced: frozenset[tuple[str, str]] = frozenset()


class Reference:
    """Decide the types of one model."""

    def __init__(self, model: onnx.ModelProto, policy: Policy) -> None:
        self.main = expand(model)
        self.nodes = list(self.main.walk())
        low_types = {
            v.elem for node in self.nodes for v in node.outputs if v is not None and v.elem in (FLOAT16, BFLOAT16)
        }
        if policy.mode.action == "origin" and low_types == {BFLOAT16}:  # Rule S3.5
            policy = replace(policy, mode=policy.mode._replace(low="bfloat16"))
        self.policy = policy
        self.low = ELEM_TYPES[policy.mode.low]
        self.movable = LISTED if policy.mode.action == "raise" else (FLOAT, self.low)  # Rules S3.6, S4.9
        self.flow = Flow(self.main)
        self.constants = Constants()
        self.follower = Follower(policy, self.low, self.constants)
        self.raised: dict[Node, set[Node]] = {}  # guards with their constants raised, each with the nodes to its ends
        self.protected = self._protected()
        self.groups = {node: groups(node) for node in self.nodes}
        self.rules = {node: rule_for(node, policy) for node in self.nodes}
        self.shared_by: dict[Value, Shared] = {v: s for s in self.flow.states for v in s.members}
        self.norms: list[list[Node]] = []
        self._all_units: list[list[Node]] = []
        self.units = self._units()
        self.between = self._between() if policy.gray_policy == "between" else None
        self.state: dict[Shared, int | None] = {}
        self.types: Types = {}
        self.masks = self._masks()
        self.masked: set[Node] = set()  # nodes that masks keep as authored
        self.reduced: dict[Mask, float] = {}  # masks that their readers read reduced, with the limit
        self.moved = Moved(self.nodes, self.masks.results, self.main.outputs, self.constants)
        self.taken: dict[Node, int] = {}  # the types that nodes take from their readers (Rules S4.44 to S4.46)
        if self.follower.skips_idle_casts:
            self.moved.idle_casts = set(filter(is_idle_cast, self.nodes))
        self.follower.unbound = self._unbound()
        self.follower.instead = self._followed_instead()

    def _protected(self) -> set[Node]:
        """Return the nodes that positions and guards keep, in the modes that lower nodes (Rules S4.38, S4.43)."""
        if self.policy.mode.action in ("raise", "origin"):
            return set()
        is_engine = self.policy.constants == "clamp" and self.policy.space == "ascend"  # Rule S4.19
        guards: set[Node] = set()
        if self.policy.constants != "ieee" and not is_engine:
            results = {v for scope in all_scopes(self.main) for v in scope.outputs}
            found = Guards(self.nodes, self.constants, self.low, results)
            guards, self.raised = found.nodes, found.raised
        if "positions" not in self.policy.protect:
            return guards
        return guards | Positions(self.nodes, self.flow, self.constants).nodes

    def _units(self) -> dict[Node, int]:
        """Return the nodes of quantized units that no rule names, each with its type or AUTHORED (Rule S4.41)."""
        if self.policy.mode.action in ("raise", "origin"):
            return {}
        units = find_units(self.nodes, self.constants) if "quantized" in self.policy.protect else []
        has_float16_lists = (self.policy.mode.action, self.policy.mode.low) == ("lists", "float16")
        protects_norms = "norms" in self.policy.protect and has_float16_lists
        self.norms = find_norms(self.nodes, self.constants) if protects_norms else []
        units += self.norms
        self._all_units = units
        moves = [next((m for m in map(self._moved_type, unit) if m is not None), AUTHORED) for unit in units]
        types: dict[Node, set[int]] = {}
        for unit, move in zip(units, moves, strict=True):
            for node in unit:
                types.setdefault(node, set()).add(move)
        kept = {node for node in types if self.rules[node] is not None or not self._varies(node)}
        return {n: next(iter(t)) if len(t) == 1 else AUTHORED for n, t in types.items() if n not in kept}

    def _followed_instead(self) -> dict[Value, Value]:
        """Return the results of normalizations that gray nodes do not follow, with what they follow (Rule S4.47)."""
        instead = {}
        first = {node: unit for unit in reversed(self._all_units) for node in unit}
        for unit in self.norms:
            squared = unit[0].inputs[0]
            for node in unit[1:]:
                is_kept = self.units.get(node) == AUTHORED and first[node] is unit
                is_result = node.op in ("Log", "Sqrt") or (node.op in ("Div", "Mul") and squared in node.inputs[:2])
                output = node.outputs[0]
                if is_kept and is_result and self._is_listed(node) and output is not None and squared is not None:
                    instead[output] = squared
        for node in self.nodes:
            output = node.outputs[0] if node.outputs else None
            if output is not None and self._adds_up(node) and self.list_of(node) == "black" and self._is_black(node):
                is_decided_otherwise = node in self.protected or node in self.units
                if node.inputs[2] is not None and not is_decided_otherwise:
                    instead[output] = node.inputs[2]
        return instead

    def _adds_up(self, node: Node) -> bool:
        """Return whether a scatter is on the list of ReduceSum (Rule S5.8)."""
        if node.op not in ("ScatterElements", "ScatterND") or not node.is_standard:
            return False
        reduction = node.attribute("reduction")
        is_gray = self.policy.space == "onnx" and self.policy.lists.list_of(node.op) == "gray"
        has_reduction = reduction is not None and reduction.s in (b"add", b"mul")
        return has_reduction and is_gray and self.policy.gray_policy == "ascend"

    def _is_listed(self, node: Node) -> bool:
        """Return whether the lists or the mode would decide a node."""
        arithmetic = self.constants.is_shape_arithmetic(node)
        return not (arithmetic or self._reads_unknown(node)) and self._varies(node)

    def _moved_type(self, node: Node) -> int | None:
        """Return the type to which a rule of customize_dtypes moves the unit of the node that it names."""
        rule = self._customized(node)
        chosen = ruled_types(self.groups[node], rule) if rule is not None else {}
        changed = {chosen.get(g.param, g.elem) for g in self.groups[node] if chosen.get(g.param, g.elem) != g.elem}
        return self.low if self.low in changed else FLOAT if FLOAT in changed else None

    def _masks(self) -> Masks:
        """Return the masks that are protected, in the modes that lower nodes (Rule S4.34)."""
        is_on = self.policy.mode.action not in ("raise", "origin") and "masks" in self.policy.protect
        return Masks(self.main, self.nodes if is_on else [], self.constants, self.low)

    def _movable(self, node: Node) -> tuple[int, ...]:
        """Return the types that a node may change: bfloat16, too, if fp16 forces it (S3.4) or an Ascend list (S3.8)."""
        if self.policy.mode.action == "force" and self.low == ELEM_TYPES["float16"] and self.rules[node] is None:
            return (*self.movable, BFLOAT16)
        is_ascend = self.policy.space == "ascend" and self.policy.mode.name == "mixed_float16"
        if is_ascend and self.rules[node] is None and self.list_of(node) == "white":
            return (*self.movable, BFLOAT16)
        return self.movable

    # -- the fixpoint (Rule S4.28) --------------------------------------------------------------------
    def solve(self) -> None:
        """Decide all types: first as if every mask that can be reduced were, then with the others as authored.

        Rule S4.36: a gray softmax is first decided as if the constants were reduced.
        """
        to_reduce = [group for group in self.masks.groups if group.can_be_reduced]
        while True:
            as_authored = [group for group in self.masks.groups if group not in to_reduce and group.limits]
            nodes_of_groups = [group.nodes_out_of_range | group.softmaxes for group in as_authored]
            self.masked = self.masks.computing_nodes.union(*nodes_of_groups)
            self.reduced = {mask: limit for group in to_reduce for mask, limit in group.limits.items()}
            self._fixpoint()
            with_low_softmax = [group for group in to_reduce if any(self._is_low(node) for node in group.softmaxes)]
            if with_low_softmax == to_reduce:
                self._take_types_of_readers()
                self.raised = {guard: way for guard, way in self.raised.items() if any(map(self._is_changed, way))}
                return
            to_reduce = with_low_softmax

    # -- nodes that take the type of their readers (Rules S4.44 to S4.46) --------------------------------
    def _unbound(self) -> set[Value]:
        """Return the values that no gray node follows (Rule S4.46)."""
        unbound: set[Value] = set()
        if (self.policy.space, self.policy.gray_policy, self.policy.mode.action) != ("onnx", "ascend", "lists"):
            return unbound
        for node in self.nodes:
            if self._is_unbound(node, unbound):
                unbound |= {v for v in node.outputs if v is not None and v.elem in FLOATS}
                if not node.is_user_cast and node.op != "ConstantOfShape" and self.list_of(node) == "gray":
                    self.moved.unbound_nodes.add(node)
        return unbound

    def _is_unbound(self, node: Node, unbound: set[Value]) -> bool:
        if converts_integers(node):
            return self.policy.lists.list_of("Cast") != "black" and not is_accumulator(node.inputs[0])
        if node in self.moved.idle_casts:
            return node.inputs[0] in unbound
        if node.op == "ConstantOfShape" and node in self.moved.nodes:
            return True
        kept = self.rules[node] is not None or node in self.protected or node in self.units
        kept |= self._reads_unknown(node) or self.constants.is_shape_arithmetic(node) or not self._varies(node)
        if kept or node.schema() is None or has_fixed_output(node):
            return False
        if self.list_of(node) == "white":
            return any(v is not None and self.constants.is_constant(v) for v in node.outputs)
        if self.list_of(node) != "gray":
            return False
        if node in self.moved.nodes:
            return True
        floats = [v for v in node.inputs if v is not None and v.elem in FLOATS]
        is_plain = node.is_standard and not node.bodies and is_deterministic(node) and not has_container(node)
        return (
            is_plain
            and any(v in unbound for v in floats)
            and all(v in unbound or self.constants.is_constant(v) for v in floats)
        )

    def _take_types_of_readers(self) -> None:
        """Give the nodes whose inputs have no precision the type of their readers."""
        if self.policy.mode.action in ("raise", "origin"):
            return
        for node in reversed(self.nodes):
            self._take_type_of_readers(node)
        if (self.policy.space, self.policy.gray_policy, self.policy.mode.action) == ("onnx", "ascend", "lists"):
            for group in find_groups_to_lower(self.nodes, self._can_move_casts, self.moved, self._read_type, self.low):
                is_black = self.policy.lists.list_of("Cast") == "black"
                if saves_casts(group, self.moved, self._read_type, self._type, self.low, cast_is_black=is_black):
                    for node in group:
                        self._lower(node)

    def _take_type_of_readers(self, node: Node) -> None:
        cast_is_black = self.policy.mode.action == "lists" and self.policy.lists.list_of("Cast") == "black"
        if converts_integers(node) and cast_is_black:
            return
        if converts_integers(node):
            output = node.outputs[0]
            wanted = self.moved.wanted(node, self._read_type)
            is_captured = output is not None and any(reader.scope is not node.scope for reader, _ in output.readers)
            if wanted == {self.low} == {ELEM_TYPES["float16"]} and not is_captured and output is not None:
                self.types[output] = self.taken[node] = self.low
        elif node in self.moved.nodes:
            if self.moved.stores_twice(node, self._read_type):
                return
            wanted = self.moved.wanted(node, self._read_type)
            first = next(v for v in node.outputs if v is not None)
            if first.elem in (FLOAT, self.low) and len(wanted) == 1 and wanted != {self._type(first)}:
                self._take(node, first, *wanted)
        elif not self.follower.unbound.isdisjoint(node.outputs):
            self._take_low_type(node)

    def _take(self, node: Node, output: Value, wanted: int) -> None:
        is_decided_otherwise = self.constants.is_shape_arithmetic(node) or self._reads_unknown(node)
        is_decided_otherwise |= self.rules[node] is not None or node in self.protected or node in self.units
        if node.op == "ConstantOfShape":
            limits = [limit for (value, _), limit in self.reduced.items() if value is output]
            if wanted == self.low and self.moved.can_fill(node, self.low, min(limits, default=np.inf)):
                self.types[output] = self.taken[node] = self.low
            return
        if is_decided_otherwise or self._is_black(node):
            return
        # Only the mode `lists` has lists: in the others they decide nothing, so they keep no node either.
        has_lists = self.policy.mode.action == "lists"
        is_gray = has_lists and self.list_of(node) == "gray"
        if wanted == self.low and (is_gray or not has_lists):
            self._lower(node)
        elif wanted == FLOAT == output.elem and self.constants.is_constant(output) and not is_gray:
            self._set_outputs(node, FLOAT)

    def _take_low_type(self, node: Node) -> None:
        if self.moved.wanted(node, self._read_type) == {self.low}:
            self._lower(node)

    def _can_move_casts(self, node: Node) -> bool:
        """Return whether Casts may move before a node: a gray value mover that makes float32 (Rule S4.49)."""
        if node.op not in operators(Trait.MOVES_VALUES) or not node.is_standard or node.bodies or has_container(node):
            return False
        output = node.outputs[0]
        if (
            output is None
            or output.elem not in (FLOAT, self.low)
            or self._type(output) != FLOAT
            or node in self.moved.nodes
        ):
            return False
        kept = self.rules[node] is not None or node in self.protected or node in self.units or node in self.masked
        kept |= self._reads_unknown(node) or self.constants.is_shape_arithmetic(node) or not self._varies(node)
        return not kept and node.schema() is not None and self.list_of(node) == "gray"

    def _lower(self, node: Node) -> None:
        possible = [g for g in self.groups[node] if self._moves(node, g, self.low) and can_be(node, g, self.low)]
        misfits = any(self._reads_out_of_range(node, g) for g in possible) or self._makes_out_of_range(node)
        if possible and not misfits and node not in self.masked:
            self._set_outputs(node, self.low)

    def _set_outputs(self, node: Node, elem: int) -> None:
        self.taken[node] = elem
        self.types |= {v: elem for v in node.outputs if v is not None}

    def _read_type(self, node: Node, slot: int) -> int | None:
        """Return the type that a node reads at a slot."""
        types = self._chosen_types(node)
        group = next((g for g in self.groups[node] if slot in g.inputs), None)
        value = node.inputs[slot]
        authored = value.elem if value is not None else None
        return authored if group is None else self.taken.get(node) or types[group.param]

    def _is_changed(self, node: Node) -> bool:
        types = self._chosen_types(node)
        return node in self.taken or any(types[group.param] != group.elem for group in self.groups[node])

    def _is_low(self, node: Node) -> bool:
        return any(v is not None and self._type(v) == self.low for v in node.outputs)

    def _fixpoint(self) -> None:
        self.state = {s: self._first_type(s) for s in self.flow.states}
        while True:
            self._decide_nodes_once()
            votes = {shared: widest([self.state[shared], *self._votes(shared)]) for shared in self.state}
            if votes == self.state:
                undecided = [shared for shared, elem in votes.items() if elem is None and shared.elem is not None]
                if not undecided:
                    return
                votes |= {shared: shared.elem for shared in undecided}
            self.state = votes

    def _decide_nodes_once(self) -> None:
        """Decide every node once, from the present types of states."""
        self.types = {v: self.state[s] for v, s in self.shared_by.items()}
        settled = False
        while not settled:
            before = dict(self.types)
            for value, sources in self.flow.sources.items():
                self._cross_border(value, sources)
            for node in self.nodes:
                self._visit(node)
            settled = self.types == before

    def _cross_border(self, value: Value, sources: list[Value]) -> None:
        """Give an output of control flow, or an input of a body, the type of the values that it takes over."""
        if value not in self.shared_by:
            elem = widest([self._type(v) for v in sources])
            admitted = elem is None or elem not in LISTED or admits(self.flow.owner[value], elem)
            self.types[value] = elem if admitted else FLOAT

    def _visit(self, node: Node) -> None:
        if node.is_control_flow:
            return
        types = self._chosen_types(node)
        for group in self.groups[node]:
            for i in group.outputs:
                value = node.outputs[i]
                assert value is not None
                self.types[value] = types[group.param]

    def _type(self, value: Value) -> int | None:
        return self.types.get(value, value.elem)

    # -- states ---------------------------------------------------------------------------------------
    def _first_type(self, shared: Shared) -> int | None:
        """Undecided, or the authored type of what cannot change."""
        if shared.elem not in self.movable:
            return shared.elem
        if any(not admits(node, self.low) for node in shared.nodes):
            return FLOAT
        return None

    def _votes(self, shared: Shared) -> list[int | None]:
        """Return the votes for a state in this round (Rule S4.27)."""
        if self._first_type(shared) is not None:
            return []
        votes = [self._type(v) for v in shared.initials if not self.constants.is_constant(v)]
        votes += [self._type(v) for v in shared.yielded]
        return [*votes, *[FLOAT for v in self._converted(shared) if not self.constants.fits(v, self.low)]]

    def _converted(self, shared: Shared) -> list[Value]:
        """Return the constants that would become low precision with a state (Rule S4.7)."""
        if self.policy.constants != "keep":
            return []
        return [v for v in shared.initials if self.constants.is_constant(v)]

    def _customized(self, node: Node) -> NodeRule | None:
        """Return the rule of customize_dtypes that names a node."""
        rule = self.rules[node]
        return None if rule is None or rule.keep else rule

    # -- one node -------------------------------------------------------------------------------------
    def _chosen_types(self, node: Node) -> dict[str, int | None]:
        """Return the type of each type parameter of a node."""
        type_groups = self.groups[node]
        authored: dict[str, int | None] = {group.param: group.elem for group in type_groups}
        rule = self._customized(node)
        if rule is not None:
            return authored | ruled_types(type_groups, rule)
        requested = self._requested_type(node)
        if requested == AUTHORED:
            return authored
        target = self.low if requested is None else requested
        possible = [g for g in type_groups if self._moves(node, g, target) and can_be(node, g, target)]
        if target == self.low:
            refused = [g for g in possible if self._reads_out_of_range(node, g)]
            if possible and self._makes_out_of_range(node):
                return authored
            if any(not self._reads_only_constants(node, g) for g in refused):
                return authored
            possible = [g for g in possible if g not in refused]
        return authored | {g.param: requested for g in possible}

    def _moves(self, node: Node, group: Group, target: int) -> bool:
        return group.elem in self._movable(node) and target in (FLOAT, self.low)

    def _reads_out_of_range(self, node: Node, group: Group) -> bool:
        if self.policy.constants != "keep" or group.elem == self.low:
            return False
        values = [v for i in group.inputs if (v := node.inputs[i]) is not None]
        return any(self.constants.is_constant(v) and not self._fits(v, node) for v in values)

    def _fits(self, constant: Value, reader: Node) -> bool:
        """Return whether the low type can hold a constant as a node reads it: reduced or raised, if it is."""
        is_reduced = reader in self.raised or any(
            mask in self.reduced for mask in self.masks.content(constant, reader).masks
        )
        return is_reduced or self.constants.fits(constant, self.low)

    def _reads_only_constants(self, node: Node, group: Group) -> bool:
        """Return whether no slot of a type parameter is an output, or reads a value that is no constant."""
        values = [v for i in group.inputs if (v := node.inputs[i]) is not None]
        return not group.outputs and all(map(self.constants.is_constant, values))

    def _makes_out_of_range(self, node: Node) -> bool:
        """Return whether the node makes of constants alone what the low type cannot hold (Rule S4.20)."""
        if self.policy.constants != "keep" or self.constants.result_fits(node, self.low):
            return False
        return any(v is not None and not self._fits(v, node) for v in node.outputs)

    def _requested_type(self, node: Node) -> int | None:
        """Return the type that a node asks for; AUTHORED, or None where it follows what is not decided yet."""
        requested = self._requested_type_without_masks(node)
        return AUTHORED if node in self.masked else requested

    def _requested_type_without_masks(self, node: Node) -> int | None:
        rule, action = self.rules[node], self.policy.mode.action
        if (rule is not None and rule.keep) or action == "origin" or self.constants.is_shape_arithmetic(node):
            return AUTHORED
        if self._reads_unknown(node):
            return AUTHORED
        if self._is_black(node):
            return AUTHORED
        if node in self.protected:
            return AUTHORED
        if node in self.units:
            return self.units[node]
        if action == "raise":
            return FLOAT
        if action == "cube":
            in_cube, low = node.op in CUBE and node.is_standard, self.policy.mode.low
            kernels = kernels_of(node, self.policy)
            if kernels and (low if in_cube else "float32") not in kernels:
                in_cube = low in kernels
            return self.low if in_cube else AUTHORED
        if action == "force":
            return self.low
        if self.list_of(node) != "gray":
            return self.low if self.list_of(node) == "white" else AUTHORED
        if self.between is not None:
            return self.low if self.between.is_low(node) else AUTHORED
        return self.follower.requested_type(node, self.types)

    def _can_be_low(self, node: Node) -> bool:
        """Return whether the schema admits the low type on a slot that may change."""
        movable = [g for g in self.groups[node] if g.elem in self._movable(node)]
        return any(can_be(node, g, self.low) for g in movable)

    def _reads_unknown(self, node: Node) -> bool:
        """Return whether the node reads a tensor of unknown type where it could be a float (Rule S4.40)."""
        return any(v.elem is None and not is_output for v, _, is_output, _ in float_slots(node))

    def _is_black(self, node: Node) -> bool:
        """Return whether the black list decides the node."""
        comes_first = self.rules[node] is not None or self.policy.mode.action != "lists"
        arithmetic = self.constants.is_shape_arithmetic(node)
        is_moved = self.units.get(node, AUTHORED) != AUTHORED and node not in self.protected
        is_kept_otherwise = comes_first or arithmetic or is_moved
        return self.list_of(node) == "black" and not is_kept_otherwise and self._varies(node)

    def _varies(self, node: Node) -> bool:
        """Return whether the node has a slot whose type may change (Rule S4.1)."""
        return any(g.elem in self._movable(node) for g in self.groups[node])

    def list_of(self, node: Node) -> str:
        """Return the list of a node's op type."""
        if self.policy.space == "ascend":
            return ascend_list(node, self.policy)
        return self.policy.lists.list_of("ReduceSum" if self._adds_up(node) else node.op)

    def _between(self) -> Between:
        def color(node: Node) -> str:
            listed = self.list_of(node)
            if node in self.units and node not in self.protected and self.units[node] != AUTHORED:
                listed = "white" if self.units[node] == self.low else "end"
            ends = not self._varies(node) or self.constants.is_shape_arithmetic(node) or self.rules[node] is not None
            is_protected = node in self.protected or self.units.get(node) == AUTHORED
            is_kept = (is_protected and listed != "black") or self._reads_unknown(node)
            is_refused = listed == "white" and not self._can_be_low(node)
            return "end" if ends or is_kept or is_refused else listed

        clear = self.policy.lists.library.clear_ops
        return Between(
            self.nodes,
            self.flow,
            color,
            lambda node: node.op in clear,
            self._can_be_low,
            lambda node: admits(node, self.low),
        )

    # -- the answer -----------------------------------------------------------------------------------
    def decided(self, node: Node) -> ReferenceDecision:
        """Return the precision of a node, and the types of its outputs."""
        types = tuple(type_name(self._type(v), v) for v in node.outputs if v is not None)
        return ReferenceDecision(self._precision(node), types, self._reduced_by(node))

    def _reduced_by(self, node: Node) -> frozenset[tuple[str, str]]:
        """Return the constants that a node reads reduced or raised, each with its limit (Rules S4.36, S4.43)."""
        floor = f"{float(ml_dtypes.finfo(NUMPY[self.low]).tiny):.6g}"
        if node in self.raised:
            return frozenset((v.name, floor) for v in node.inputs if v is not None and self.constants.is_constant(v))
        read = [(v, limit) for (v, reader), limit in self.reduced.items() if reader is node and not is_filled(v)]
        made = [(v, limit) for (v, _), limit in self.reduced.items() if v.producer is node and is_filled(v)]
        constants = {(v.name, f"{limit:g}") for v, limit in read if self.masks.constant_size(v) > limit}
        return frozenset(constants | {("", f"{limit:g}") for v, limit in made if self.masks.constant_size(v) > limit})

    def _precision(self, node: Node) -> str:
        if node.is_control_flow or node.op == "Constant":
            return "none"
        is_kept = node.schema() is None or has_container(node)
        if is_kept and not has_fixed_output(node):  # the authored type (Rules S4.14, S4.29)
            return next((dtype_name(v.elem) for v in node.inputs if v is not None and v.elem in LISTED), "none")
        if has_fixed_output(node):
            elem = node.outputs[0].elem if node.outputs[0] is not None else None
            elem = self.taken.get(node, elem)
            return dtype_name(elem) if elem in (*LISTED, onnx.TensorProto.DOUBLE) else "none"
        if self._reads_unknown(node) and not any(v is not None and v.elem in LISTED for v in node.inputs):
            return "none"  # Rule S4.40
        ruled = self.rules[node] is not None
        movable = [g for g in self.groups[node] if ruled or g.elem in self._movable(node)]
        if not movable:
            return "none"
        if node in self.taken:
            return dtype_name(self.taken[node])
        types = self._chosen_types(node)
        first = min(movable, key=lambda g: (not g.outputs, min([*g.outputs, *g.inputs])))
        return dtype_name(types[first.param])


def decide(model: onnx.ModelProto, policy: Policy) -> dict[Node, ReferenceDecision]:
    """Return the decisions of the rules for every node of every scope."""
    reference = Reference(model, policy)
    reference.solve()
    return {node: reference.decided(node) for node in reference.nodes}
