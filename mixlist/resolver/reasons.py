"""Write the reason for each decision, as a sentence.

Rule S4.33: A decision names its rule, the list entry or node rule that caused it (with file, line and column), the
producer that it follows, the node that decided, and the schema's refusal, if any.
"""

from __future__ import annotations

from mixlist.graph.model import Node, Value
from mixlist.graph.naming import display_name
from mixlist.lists.policy import Action, GrayPolicy
from mixlist.ops import types
from mixlist.ops.low_precision import MAX_EXACT_INTEGER
from mixlist.ops.names import onnx_names
from mixlist.ops.schema import next_opset_allowing
from mixlist.resolver.classification import Classification, unknown_inputs
from mixlist.resolver.decisions import GraphSolution, ModelSolution, find_precision
from mixlist.resolver.gray_policies import is_followed
from mixlist.resolver.sequence_groups import is_container


def find_rule(solution: GraphSolution, node: Node) -> str:
    """Return the rule that decided a node, as the reports name it."""
    return solution.rule_overrides.get(node.id, solution.classifications[node.id].rule)


def shown_type(solution: GraphSolution, value: Value) -> str:
    """Return the decided type of a value as the reports show it."""
    if value.type == types.UNKNOWN:
        return types.type_name(value.type)
    return types.type_name(types.with_element(value.type, solution.decided_types[value.id]))


# The rules of docs/semantics.md that the reasons cite, where the policy chooses between several.
_MODE_RULES: dict[Action, str] = {"force": "S3.4", "origin": "S3.5", "raise": "S3.6", "cube": "S3.7"}
_GRAY_RULES: dict[GrayPolicy, str] = {"ascend": "S4.6", "black-wins": "S4.23", "promote": "S4.24"}


class ReasonWriter:
    """Writes the reasons of the decisions for one graph."""

    def __init__(self, resolved: ModelSolution, solution: GraphSolution) -> None:
        self.solution, self.policy, self.rules = solution, resolved.policy, resolved.rules
        self.low_type = resolved.low
        self.low = types.type_name(resolved.low)
        self.has_sequences = any(isinstance(value.type, tuple) for value in solution.graph.values)

    def reason(self, node: Node, follows: tuple[str, ...]) -> str:
        """Return the reason; ``follows`` names the producer that a gray node follows and the node that decided."""
        text = self._by_rule(node, follows)
        note = self.solution.reason_notes.get(node.id)
        if note and find_rule(self.solution, node) not in ("constant", "mask"):
            text += f"; its slot stays float32 because {note} (S4.7)"
        for slot, limit in self.solution.reduced_slots.get(node, {}).items():
            value = node.inputs[slot]
            if value is not None and value.constant_proto is not None:
                text += f"; constant {value.name!r} of a mask is reduced to magnitude {limit:.6g} (S4.36)"
        entry = self.solution.classifications[node.id].listed
        if entry is not None and entry.note and entry.source:
            text += f"; {entry.note} (S5.4)"
        return text

    def _by_rule(self, node: Node, follows: tuple[str, ...]) -> str:
        fact, rule, kept = (
            self.solution.classifications[node.id],
            find_rule(self.solution, node),
            find_precision(self.solution, node),
        )
        entry = _shown_entry(fact)
        if rule == "control-flow" and node.signature is not None:
            shared = self._of_sequence(node, kept, follows)
            return f"{entry}, but all elements of a sequence or optional share one type: {shared}"
        if rule == "control-flow":
            number = "S4.25" if node.function is None else "S4.31"
            return f"{node.op_type} carries no precision itself; each output has the type of what it yields ({number})"
        if rule == "no-float":
            return self._nothing_to_vary(node)
        if rule == "cast":
            return f"{self._fixed_output(node)} (S4.13)"
        if rule == "node-rule":
            return self._node_rule(node, kept)
        if rule == "shape":
            return f"all its float inputs come from shapes and constants: shape arithmetic stays {kept} (S4.3)"
        if rule == "position":
            return self._position(node, kept)
        if rule == "schema":
            return self._refused(node, kept)
        if rule == "constant":
            why = self.solution.reason_notes.get(node.id, "a constant does not fit")
            return f"{entry}, but {why}: it stays {kept} (S4.7)"
        if rule == "mask":
            return f"{entry}, but {self.solution.reason_notes[node.id]}: it stays {kept} ({self._mask_rule(node)})"
        if rule == "unknown-type":
            names = ", ".join(repr(value.name) for value in unknown_inputs(node))
            return f"nothing tells the type of {names}, so it stays as authored; --type-hints can give the type (S4.40)"
        if rule == "mode":
            mode = self.policy.mode
            return f"precision mode {mode.name} makes it {kept} ({_MODE_RULES[mode.action]})"
        if rule == "white" and kept != self.low:  # of the other low type, with slots of another type that may change
            return f"{entry}, but {self._keeps_other_type(kept)}"
        if rule == "white":
            number = "S3.8" if _is_lowered_bfloat16(node, kept) else "S4.4"
            return f"{entry}: computed in {self.low} ({number})"
        if rule == "black":
            return f"{entry}: keeps the type it was authored in, {kept} (S4.5)"
        return self._gray(node, follows, kept)

    def _of_sequence(self, node: Node, kept: str, follows: tuple[str, ...]) -> str:
        """Return the type of a node's sequences, the value that gave them the type, the decider, and the rule."""
        source = self.solution.followed_values[node.id]
        number = "S4.29" if self.policy.gray_policy == "ascend" else "S4.29, S4.30"
        if source is None:
            return f"{kept} ({number})"
        maker = source.producer or source.scope.owner
        made_by = f" of {display_name(maker)}" if maker is not None else ""
        decided = f", which {follows[1]} decided" if follows and follows[0] != follows[1] else ""
        return f"{kept}, the type of {source.name!r}{made_by}{decided} ({number})"

    def _gray(self, node: Node, follows: tuple[str, ...], kept: str) -> str:
        entry, policy = _shown_entry(self.solution.classifications[node.id]), self.policy.gray_policy
        if self.has_sequences and any(map(is_container, (*node.inputs, *node.outputs))):
            return f"{entry}: its sequences are {self._of_sequence(node, kept, follows)}"
        if policy == "between":
            where = "lies" if kept == self.low else "does not lie"
            black = "" if kept == self.low else ", or black reaches it"
            return f"{entry}: {where} between white nodes{black}, so it is {kept} (S4.22)"
        value = self.solution.followed_values[node.id]
        if not follows or value is None:
            if not any(v is not None and is_followed(v) for v in node.inputs):
                return f"{entry}: all its float inputs are constants, so it stays {kept} (S4.6)"
            number = "S4.23" if policy == "black-wins" else "S4.28"
            return f"{entry}: nothing that it reads decides it, so it stays {kept} ({number})"
        producer, decider = follows
        text = f"{entry}: follows {producer}, whose output {value.name!r} is {shown_type(self.solution, value)}"
        if decider != producer:
            text += f", which {decider} decided"
        through_cast = "" if value in node.inputs else ", S4.17"
        return f"{text} ({_GRAY_RULES[policy]}{through_cast})"

    def _fixed_output(self, node: Node) -> str:
        if node.op_type == "Constant":
            return "it holds a constant, which is converted where its readers want another type"
        outputs = ", ".join(shown_type(self.solution, v) for v in node.outputs if v is not None)
        return f"an attribute of {node.op_type} says its output type ({outputs}), which no list changes"

    def _nothing_to_vary(self, node: Node) -> str:
        signature = node.signature
        if signature is not None and signature.reads_any_type:
            return f"{node.op_type} reads only the shape of its input (S4.1)"
        if any(v is not None and types.element(v.type) == types.DOUBLE for v in node.inputs):
            return "it computes in float64, which lists never change (S4.9)"
        if signature is not None and signature.groups:  # of the other low type
            return self._keeps_other_type(types.type_name(signature.groups[0].authored))
        if any(v is not None and types.element(v.type) in types.MIXABLE for v in [*node.inputs, *node.outputs]):
            return f"the schema of {node.op_type} fixes its float types (S4.1)"
        return "it has no float input or output (S4.1)"

    def _keeps_other_type(self, kept: str) -> str:
        return f"it keeps {kept}, the type it was authored in; only float32 and {self.low} change (S4.9)"

    def _node_rule(self, node: Node, kept: str) -> str:
        rule = self.rules.rule_of(self.solution.graph, node)
        what = "keep_dtype keeps its authored type" if rule.keep else "customize_dtypes sets its types"
        return f"{what}, {kept} ({rule.place}; S4.2)"

    def _position(self, node: Node, kept: str) -> str:
        plan = self.solution.positions
        assert plan is not None
        position = plan.nodes[node.id]
        if position.source is None:
            return f"it makes an operand of position arithmetic before {position.reader}: it stays {kept} (S4.38)"
        way = "it reads" if position.is_reader else f"it brings to {position.reader}"
        exact = f"{self.low} holds all integers up to {MAX_EXACT_INTEGER[self.low_type]} only"
        return f"the integers of {position.source!r}, which {way}, are positions, and {exact}: it stays {kept} (S4.38)"

    def _mask_rule(self, node: Node) -> str:
        groups = [group for group in self.solution.kept_masks if node in group.exceeding]
        if any(group.reducible for group in groups):
            return "S4.35"
        return "S4.36" if all(group.misfit for group in groups) else "S4.36: no constant of the mask can be reduced"

    def _refused(self, node: Node, kept: str) -> str:
        opset = self.solution.graph.opsets.get(node.domain, 0)
        if node.signature is not None and node.signature.schema is None:
            _, operator = onnx_names(node.domain, node.op_type)
            return f"no schema is known for {operator} at opset {opset}: it stays as authored (S4.14)"
        if kept not in ("float32", self.low):
            return f"{_shown_entry(self.solution.classifications[node.id])}, but {self._keeps_other_type(kept)}"
        later = next_opset_allowing(node.domain, node.op_type, opset, self.low_type)
        advice = f"; opset {later} would allow it" if later is not None else ""
        refusal = f"{node.op_type} does not allow {self.low} at opset {opset}"
        return f"{_shown_entry(self.solution.classifications[node.id])}, but {refusal}: it stays {kept}{advice} (S4.11)"


def _is_lowered_bfloat16(node: Node, kept: str) -> bool:
    """Return whether a node was authored in bfloat16 and is float16 (Rule S3.8)."""
    primary = node.signature.primary if node.signature is not None else None
    return primary is not None and primary.authored == types.BFLOAT16 and kept == "float16"


def _shown_entry(fact: Classification) -> str:
    """Return the list of a node, and the entry that put its op type on it."""
    entry = fact.listed
    if entry is None:
        return "the mode would lower it" if fact.list == "none" else f"on the {fact.list} list"
    if entry.source:
        return f"{fact.list} by {entry.source} ({entry.op})"
    return f"{fact.list} ({entry.note})" if entry.note else fact.list
