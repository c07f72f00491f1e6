"""Build the float32 graph that rounds like a mixed model, and the float32 graph that does not round.

On ONNX Runtime's CPU provider, a mixed model shows no overflow: the provider computes float16 nodes in float32 and
drops the Casts between them. Therefore ``emulate`` turns every tensor of a low type into float32, and inserts a pair of
Casts, to the low type and back, after each node that computes such a tensor. ONNX Runtime keeps these Casts
(``run/provider_rounding.py`` tests it), so the values are rounded and an overflow gives infinity. ``widen_to_float32``
does the same without the pairs: its result is the reference.

    mixed model:  x (float16) -> MatMul -> y (float16)
    emulation:    x (float32, rounded) -> MatMul -> y_exact -> Cast to float16 -> Cast to float32 -> y

A node is computed in float32 from rounded inputs, and its output is rounded once, like in a kernel with a float32
accumulator (Rule S8.2). A tensor keeps its name: ``y`` of the mixed model is ``y`` in the emulation.

To *widen* a tensor means to make it float32, so that the nodes compute in float32. The emulation, the reference and the
gated graph of ``tune`` are made in this way.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.checker.intended_infinities import mask_slot
from mixlist.decide.plan_masks import LARGEST_SCORE
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node, Scope, Value, protos_by_scope
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.model.naming import NameGenerator, NodeRef, names_in, node_ref
from mixlist.model.protos import (
    SortKey,
    copy_message,
    nodes_in,
    reorder_messages,
    scopes_in,
    standard_opset,
    tensors_in_model,
)
from mixlist.model.save import set_inline
from mixlist.model.schema import TYPE_ATTRIBUTES
from mixlist.model.signature import Signature
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import (
    cancel_lossless_conversion,
    is_external,
    read_pieces,
    stored_type,
)
from mixlist.write.tensor_conversion import inline_external_data, stream_tensor

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

# Attributes that fix the output type of a node, and that are changed to float32. ``to`` is not one of them:
# ``_rewrite_cast`` changes the ``to`` of a Cast, and a BitCast keeps its types (``_can_widen``).
_WIDENED_ATTRIBUTES = TYPE_ATTRIBUTES - {"to"}
_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)


def emulate(
    loaded: LoadedModel,
    *,
    saturate: bool = False,
    keep_external: bool = False,
    absorbing: AbstractSet[NodeRef] = frozenset(),
) -> ModelProto:
    """Return a new float32 model that rounds every tensor that has a low type in ``loaded`` (Rule S8.2).

    saturate: a value beyond the range of the low type becomes its largest finite value, as on accelerators that
        saturate. Otherwise it becomes infinite.
    keep_external: external data stays in its files, except data that changes. Otherwise it moves into the model.
    absorbing: the softmaxes, and fused attentions, in whose masked rows float32 loses the scores (Rule S8.12).
    """
    return EmulationBuilder(
        loaded, rounding=True, saturate=saturate, keep_external=keep_external, absorbing=absorbing
    ).run()


def widen_to_float32(loaded: LoadedModel, *, keep_external: bool = False) -> ModelProto:
    """Return a new model that computes every low-precision node in float32, with the same weights.

    keep_external: see ``emulate``.
    """
    return EmulationBuilder(loaded, rounding=False, keep_external=keep_external).run()


def has_low_types(model: ModelProto) -> bool:
    """Return True if a model may have a low type: in tensors, in declarations, or in attributes.

    Some cases cannot be decided here; the result is then True. These are sparse tensors, attributes that hold a type,
    and an integer attribute of a custom operator that equals the number of a low type (10 or 16).
    """
    if model.graph.sparse_initializer or any(tensor.data_type in LOW_TYPES for tensor in tensors_in_model(model)):
        return True
    infos = chain(model.graph.input, model.graph.output, *(scope.value_info for scope in scopes_in(model.graph)))
    if any(dtypes.element(dtypes.from_proto(info.type)) in LOW_TYPES for info in infos):
        return True
    for node in nodes_in(model.graph):
        for attribute in node.attribute:
            if attribute.i in LOW_TYPES and (node.domain or attribute.name in TYPE_ATTRIBUTES):
                return True
            if attribute.type in (attribute.SPARSE_TENSOR, attribute.TYPE_PROTO):
                return True
    return False


def updates_running_statistics(node: NodeProto) -> bool:
    """Return True for a BatchNormalization that makes a new running mean and variance of those that it reads."""
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


# --- the rewrite ---


@dataclass(eq=False)
class EmulationBuilder:
    """Build a copy of a model in which all tensors of a low type are float32.

    rounding: insert the pair of Casts after each node that computes a tensor of a low type.
    saturate, keep_external, absorbing: see ``emulate``.

    A subclass may override ``_rewrite_scope`` and ``_rewrite_node`` to do more with each scope and node.
    """

    loaded: LoadedModel
    rounding: bool
    saturate: bool = False
    keep_external: bool = False
    absorbing: AbstractSet[NodeRef] = frozenset()

    def __post_init__(self) -> None:
        self.proto = copy_message(self.loaded.proto)
        # The Casts that mixlist inserted must stay nodes here: each of them rounds.
        self.graph = build_graph(self.proto, show_marked_casts=True)
        self.opset = standard_opset(self.proto)
        self.new_names = NameGenerator(names_in(self.proto.graph))

    def run(self) -> ModelProto:
        """Rewrite the model and return it."""
        self._rewrite_graph()
        if not self.keep_external:
            self.inline_external()
        return self.proto

    def inline_external(self) -> None:
        """Move external data into the model, so that a session can be made of the model alone."""
        inline_external_data(self.proto, self.loaded.folder)

    # --- one scope ---

    def _rewrite_graph(self) -> None:
        """Rewrite all scopes of the model."""
        # Bodies come first: their nodes read constants of outer scopes, which must still have their authored values.
        for scope, scope_proto in reversed(protos_by_scope(self.graph.root, self.proto.graph).items()):
            self._rewrite_scope(scope, scope_proto)

    def _rewrite_scope(self, scope: Scope, scope_proto: GraphProto) -> None:
        """Rewrite the nodes, weights and declared types of one scope in place, without its bodies."""
        # Nodes. The node at position p of the topological order gets the key (p, 0, 0), new nodes after it (p, 1, i),
        # and new nodes before it (p - 1, 3, i): these come after all new nodes of the node before.
        keys: list[SortKey | None] = [None] * len(scope_proto.node)
        added: list[NodeProto] = []
        for position, node in enumerate(scope.nodes):
            before, after = self._rewrite_node(node, scope_proto.node[node.position])
            keys[node.position] = (position, 0, 0)
            keys += [(position - 1, 3, index) for index in range(len(before))]
            keys += [(position, 1, index) for index in range(len(after))]
            added += before + after
        scope_proto.node.extend(added)
        reorder_messages(scope_proto.node, keys)
        # Weights, and the declared types of tensors.
        for tensor in (*scope_proto.initializer, *(sparse.values for sparse in scope_proto.sparse_initializer)):
            if tensor.data_type in LOW_TYPES:
                self._widen_tensor(tensor)
        for info in (*scope_proto.value_info, *scope_proto.input, *scope_proto.output):
            declared_type = dtypes.from_proto(info.type)
            if dtypes.element(declared_type) in LOW_TYPES:
                dtypes.write_type(info.type, dtypes.with_element(declared_type, dtypes.FLOAT))

    def _widen_tensor(self, tensor: TensorProto) -> None:
        """Store the same numbers in float32, in place."""
        import numpy as np

        if self.keep_external and cancel_lossless_conversion(tensor, dtypes.FLOAT):
            return  # the file has the numbers in float32 already
        if is_external(tensor) and stored_type(tensor) != tensor.data_type:
            # The file has numbers that are still to be rounded to the declared type: round them first.
            set_inline(tensor, b"".join(stream_tensor(tensor, self.loaded.folder, "", {})))
        data = b"".join(piece.astype(np.float32).tobytes() for piece in read_pieces(tensor, self.loaded.folder))
        tensor.data_type = dtypes.FLOAT
        set_inline(tensor, data)

    # --- one node ---

    def _rewrite_node(self, node: Node, node_proto: NodeProto) -> tuple[list[NodeProto], list[NodeProto]]:
        """Widen a node in place, and return the new nodes before it and after it."""
        signature = node.signature
        if node.bodies or signature is None or not any(self._needs_widening(v) for v in (*node.inputs, *node.outputs)):
            return [], []
        if node.op_type == "Cast" and not node.domain:
            return [], self._rewrite_cast(node, node_proto)
        if signature.reads_any_type and not signature.has_fixed_output:
            return [], []  # Shape and Size read every type, and their outputs are integers
        if not self._can_widen(node, signature):  # the operator is unknown, or does not take float32
            output_types = [None if value is None else value.type for value in node.outputs]
            return self._insert_type_casts(node, node_proto, node.input_types, output_types)
        before: list[NodeProto] = []
        after: list[NodeProto] = []
        if signature.has_fixed_output:
            self._widen_attributes(node_proto)
        else:
            assignment = signature.assign(self._requested_types(signature))
            before, after = self._insert_type_casts(node, node_proto, assignment.inputs, assignment.outputs)
        slot = mask_slot(node) if self.absorbing and node_ref(node) in self.absorbing else None
        if slot is not None and self._needs_widening(node.inputs[slot]) and not before:
            before = self.make_masked_scores_equal(node_proto.input[slot])
            node_proto.input[slot] = before[-1].output[0]
        # A value-preserving operator computes low-precision values from low-precision values: it needs no rounding.
        # The values of a constant are rounded in the file.
        if not self.rounding or node.op_type in _VALUE_PRESERVING or node.op_type in ("Constant", "ConstantOfShape"):
            return before, after
        for slot, value in enumerate(node.outputs):
            after += self._round_output(node_proto, slot, value)
        return before, after

    def _insert_type_casts(
        self,
        node: Node,
        node_proto: NodeProto,
        input_types: Iterable[dtypes.Type | None],
        output_types: Iterable[dtypes.Type | None],
    ) -> tuple[list[NodeProto], list[NodeProto]]:
        """Insert Casts between widened tensors and the slots of a node that keep their type.

        Return the Casts before the node, and those after it. ``input_types`` and ``output_types`` are the types that
        the node has in the new model. A custom operator has such slots.
        """
        before, after = [], []
        for slot, (value, input_type) in enumerate(zip(node.inputs, input_types, strict=False)):
            if value is not None and self._needs_widening(value) and self._keeps_narrow_type(input_type):
                assert isinstance(input_type, int)
                name = self.new_names.make_name(f"{value.name}_low")
                before.append(self.new_names.make_cast(value.name, name, input_type))
                node_proto.input[slot] = name
        for slot, (value, output_type) in enumerate(zip(node.outputs, output_types, strict=False)):
            if value is not None and self._needs_widening(value) and self._keeps_narrow_type(output_type):
                name = self.new_names.make_name(f"{value.name}_low")
                after.append(self.new_names.make_cast(name, value.name, dtypes.FLOAT))
                node_proto.output[slot] = name
        return before, after

    def _rewrite_cast(self, node: Node, node_proto: NodeProto) -> list[NodeProto]:
        """Widen a Cast in place, and return the new nodes after it."""
        value, source = node.outputs[0], node.inputs[0]
        authored_source = dtypes.element(source.type) if source is not None else dtypes.UNKNOWN
        source_type = dtypes.FLOAT if authored_source in LOW_TYPES else authored_source
        if not self._needs_widening(value):
            # A Cast from float16 to float32 has a float32 input now, and nothing to do.
            if value is not None and dtypes.element(value.type) == source_type:
                _make_identity(node_proto)
            return []
        if not self.rounding:
            self._set_cast_type(node_proto, source_type, dtypes.FLOAT)
            return []
        assert value is not None
        if self.saturate:
            # The Clip must come before the rounding, so the Cast itself must not round. ONNX Runtime converts other
            # types through float32, too.
            self._set_cast_type(node_proto, source_type, dtypes.FLOAT)
            return self._round_output(node_proto, 0, value)
        # The Cast itself rounds: one more Cast goes back to float32.
        low = self.new_names.make_name(f"{value.name}_low")
        node_proto.output[0] = low
        return [self.new_names.make_cast(low, value.name, dtypes.FLOAT)]

    def _set_cast_type(self, cast: NodeProto, source_type: int, elem: int) -> None:
        """Make a Cast of a tensor of ``source_type`` cast to ``elem``; make it an Identity if the types are equal."""
        if source_type == elem:
            _make_identity(cast)
        else:
            next(attribute for attribute in cast.attribute if attribute.name == "to").i = elem

    def _round_output(self, node_proto: NodeProto, slot: int, value: Value | None) -> list[NodeProto]:
        """Give the unrounded output of a node a new name, and return the nodes that make the rounded output.

        The rounded tensor has the old name, so its readers stay as they are. Return no nodes for an output that is not
        of a low type.
        """
        if value is None or not self._needs_widening(value) or isinstance(value.type, tuple):
            return []  # the tensors of a sequence are rounded where they are computed
        unrounded = node_proto.output[slot] = self.new_names.make_name(f"{value.name}_exact")
        return self.make_rounding_nodes(unrounded, dtypes.element(value.type), value.name)

    def make_rounding_nodes(self, name: str, elem: int, out: str) -> list[NodeProto]:
        """Return the nodes that round the float32 tensor ``name`` to ``elem`` and write it as the float32 ``out``."""
        clip_nodes = self.make_clip(name, FINITE_MAX[elem]) if self.saturate else []
        clipped = clip_nodes[-1].output[0] if clip_nodes else name
        return [*clip_nodes, *self.make_cast_pair(clipped, elem, out)]

    def make_cast_pair(self, name: str, elem: int, out: str) -> list[NodeProto]:
        """Return a Cast of the float32 tensor ``name`` to ``elem``, and one back to float32 that makes ``out``."""
        low = self.new_names.make_name(f"{out}_low")
        return [self.new_names.make_cast(name, low, elem), self.new_names.make_cast(low, out, dtypes.FLOAT)]

    def make_clip(self, name: str, largest: float) -> list[NodeProto]:
        """Return the nodes that limit magnitudes to ``largest``; the last one makes the result. A NaN stays a NaN."""
        out = self.new_names.make_name(f"{name}_clipped")
        if self.opset < 11:  # the bounds are attributes
            return [self.new_names.make_node("Clip", [name], out, min=-largest, max=largest)]
        bounds = {self.new_names.make_name(f"{out}_bound"): number for number in (-largest, largest)}
        nodes = [self.new_names.make_constant(bound, dtypes.FLOAT, [], [number]) for bound, number in bounds.items()]
        return [*nodes, self.new_names.make_node("Clip", [name, *bounds], out)]

    def make_masked_scores_equal(self, name: str) -> list[NodeProto]:
        """Return the nodes that subtract 1e30 from the values of a mask in a tensor; the last one makes the result.

        No score is added to such a value with an effect. An infinity stays, so that a row of them gives NaN.
        """
        bound, size = (self.new_names.make_name(f"{name}_{part}") for part in ("mask_bound", "mask_size"))
        masked, number, shift, out = (
            self.new_names.make_name(f"{name}_{part}") for part in ("masked", "number", "shift", "absorbed")
        )
        return [
            self.new_names.make_constant(bound, dtypes.FLOAT, [], [-LARGEST_SCORE]),
            self.new_names.make_constant(size, dtypes.FLOAT, [], [1e30]),
            self.new_names.make_node("Less", [name, bound], masked),
            self.new_names.make_cast(masked, number, dtypes.FLOAT),
            self.new_names.make_node("Mul", [number, size], shift),
            self.new_names.make_node("Sub", [name, shift], out),
        ]

    def _widen_attributes(self, node_proto: NodeProto) -> None:
        """Widen the attributes that fix the output type of a node."""
        for attribute in node_proto.attribute:
            if attribute.name in _WIDENED_ATTRIBUTES and attribute.i in LOW_TYPES:
                attribute.i = dtypes.FLOAT
            elif attribute.name == "value" and attribute.t.data_type in LOW_TYPES:
                self._widen_tensor(attribute.t)
            elif attribute.name == "sparse_value" and attribute.sparse_tensor.values.data_type in LOW_TYPES:
                self._widen_tensor(attribute.sparse_tensor.values)

    def _needs_widening(self, value: Value | None) -> bool:
        """Return True if a value has a low type."""
        return value is not None and dtypes.element(value.type) in LOW_TYPES

    def _keeps_narrow_type(self, slot_type: dtypes.Type | None) -> bool:
        """Return True if a slot of the new node still has a low type."""
        return isinstance(slot_type, int) and slot_type in LOW_TYPES

    def _can_widen(self, node: Node, signature: Signature) -> bool:
        """Return True if the operator takes float32."""
        if node.op_type == "BitCast" and not node.domain:
            return False  # a BitCast must see the bits of its own type
        if signature.has_fixed_output:
            return True
        if signature.schema is None or not signature.groups:
            return False
        return not signature.assign(self._requested_types(signature)).refused

    def _requested_types(self, signature: Signature) -> tuple[int, ...]:
        """Return the element type of each group of slots: float32 if the authored type is low."""
        return tuple([dtypes.FLOAT if g.authored in LOW_TYPES else g.authored for g in signature.groups])


def _make_identity(cast: NodeProto) -> None:
    """Turn a Cast to the type of its input into an Identity, in place.

    ONNX Runtime removes such a Cast even if a subgraph reads its output (a gate of ``tune`` does). It keeps an
    Identity.
    """
    cast.op_type = "Identity"
    del cast.attribute[:]
