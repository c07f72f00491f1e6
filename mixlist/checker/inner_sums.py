"""Find the operators that add up values beyond the range of the low type inside, although their output is finite.

Rule S8.13: LayerNormalization adds the squares of its input before it takes the root. A kernel that adds in float16
overflows there, and one that adds in float32 does not. So such a node has the finding ``internal-risk``, which fails no
check. With ``--inner-type low`` it overflows. Nodes that read its output have no finding.

A node is left out if a tensor that it reads or makes has ``overflow``, ``saturated``, ``propagated``, ``preexisting``
or ``intended`` in the same batch. So is a sum from 1e37 on, which a mask makes.

``_SUMS`` has one line for each operator: the function that adds the nodes of its sums to the graph of the reference,
where no value is lost. All sums of a node are observed by one probe, which yields the largest one.

The kernel decides in which order it adds. The largest partial sum over all orders is the sum of the positive terms, or
that of the negative ones. So each sum of terms with both signs is computed as these two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from mixlist.checker.finding_rules import FindingRecord, OperandKey
from mixlist.checker.instrument import Instrumenter, Probe, ScalarStatistic, Statistic
from mixlist.checker.intended_infinities import SENTINEL
from mixlist.checker.model_pair import ModelPair
from mixlist.checker.result import FindingKind
from mixlist.diagnostics import warning
from mixlist.errors import ModelError
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.low_precision import FINITE_MAX, overflow_bound
from mixlist.model.naming import NameGenerator, NodeRef, TensorRef
from mixlist.model.protos import copy_message
from mixlist.model.prune import prune_model
from mixlist.run.local_session import RunRefused

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from mixlist.checker.observer import Observer
    from mixlist.run.feeds import Batches
    from mixlist.run.session import Feed

_LARGEST_SUM = "largest_sum"
_CONTRIB = "com.microsoft"
# The kinds of findings of a tensor that is not finite. If a node makes or reads such a tensor, its sums are not judged:
# the tensor explains a large sum, or its own finding is the worse one.
_NOT_FINITE: frozenset[FindingKind] = frozenset({"overflow", "saturated", "propagated", "intended", "preexisting"})


class InnerSums:
    """The sums inside the low nodes of a check. ``records`` has a record for each node whose sums leave the range.

    ``outputs`` and ``operands``: the records of the check, of each batch before its sums are examined.
    """

    def __init__(
        self,
        pair: ModelPair,
        inner_type: str,
        outputs: Mapping[TensorRef, FindingRecord],
        operands: Mapping[OperandKey, FindingRecord],
    ) -> None:
        self._pair, self._outputs, self._operands = pair, outputs, operands
        self._fails = inner_type == "low"
        self._nodes = {node.ref: node for node in pair.nodes}
        self._low_tensor_of = {tensor.producer: tensor for tensor in reversed(pair.low_type_of)}
        self._observer: Observer | None = None
        self._is_opened = False
        self.records: dict[TensorRef, FindingRecord] = {}

    def examine_first(self, batches: Batches) -> None:
        """Examine the first batch, unless each batch was examined when it was judged."""
        if not self._fails and self._has_sums():
            self._examine(0, next(iter(batches)))

    def overflow_in(self, index: int, feed: Feed) -> bool:
        """Examine a batch if inner sums may fail the check, and return True if one leaves the range."""
        return self._fails and self._has_sums() and self._examine(index, feed)

    def _has_sums(self) -> bool:
        """Return True if the largest sums can be observed; load the reference with them when this is first asked."""
        if not self._is_opened:
            self._is_opened = True
            low_nodes = self._low_tensor_of.keys()
            # Most models have no low node with sums: their reference is not built a second time.
            if any(_operator(self._nodes[ref].node) in _SUMS for ref in low_nodes if ref in self._nodes):
                self._observer = self._open_observer(low_nodes)
        return self._observer is not None

    def _open_observer(self, low_nodes: AbstractSet[NodeRef]) -> Observer | None:
        reference = self._pair.sessions.reference_graph(self._pair.reference.loaded)
        instrumented = _SumInstrumenter(reference, low_nodes).run()
        if not instrumented.columns:
            return None
        prune_model(instrumented.proto, instrumented.column_counts)
        # The model may be refused here or, in segments and in another process, only by the first run: see _examine().
        try:
            return self._pair.open_cpu_observer(instrumented)
        except ModelError as error:
            self._warn(error)
            return None

    def _examine(self, index: int, feed: Feed) -> bool:
        """Add the findings of one batch to ``self.records``, and return True if there is one."""
        if self._observer is None:
            return False
        try:
            sums = self._observer.read_statistics(feed)
        except RunRefused:  # it is a ModelError, but the model was loaded: the caller reports the refusal
            raise
        except ModelError as error:
            self._warn(error)
            self.close()
            return False
        explained = self._nodes_with_nonfinite_values(index)
        saturates, has_finding = self._pair.sessions.saturate, False
        for (tensor, _), values in sums.items():
            node, largest = self._nodes[tensor.producer], float(values.max())
            low = self._pair.low_type_of[self._low_tensor_of[node.ref]]
            # A value from SENTINEL on belongs to a mask on its way through the operator. A comparison with NaN is
            # false.
            is_beyond = overflow_bound(low) <= largest < SENTINEL
            if not is_beyond or node.ref in explained or any(s.ref.producer in explained for s in node.inputs):
                continue
            has_finding = True
            record = self.records.setdefault(tensor, FindingRecord(node, tensor, is_inside=True))
            record.reference_magnitude = max(record.reference_magnitude, largest)
            if not self._fails:
                output = self._outputs.get(tensor)
                record.mixed_magnitude = output.mixed_magnitude if output is not None else 0.0
                record.add_finding("internal-risk", index)
                continue
            record.mixed_magnitude = FINITE_MAX[low] if saturates else float("inf")
            record.add_finding("saturated" if saturates else "overflow", index)
            record.is_first_offender = True
        return has_finding

    def _nodes_with_nonfinite_values(self, index: int) -> set[NodeRef]:
        """Return the nodes that make, or read converted, a tensor that is not finite in a batch or its reference."""
        return {
            record.node.ref
            for record in (*self._outputs.values(), *self._operands.values())
            if any(index in indices for kind, indices in record.batches.items() if kind in _NOT_FINITE)
        }

    def _warn(self, error: ModelError) -> None:
        message = f"the sums inside operators are not judged: {error.message}"
        self._pair.warnings.append(warning("ML606", message))

    def close(self) -> None:
        """Release the session."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None


class _SumInstrumenter(Instrumenter):
    """An instrumenter that adds the sums of each low node to the graph, and a probe of the largest one."""

    def __init__(self, reference: ModelProto, low_nodes: AbstractSet[NodeRef]) -> None:
        super().__init__(reference)
        self.low_nodes = low_nodes

    def make_statistics(
        self, probe: Probe, node: Node | None = None, node_proto: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the largest sum of a node, and the nodes that compute it. Only its first output yields them."""
        if node is None or node_proto is None or probe.ref.slot or probe.ref.producer not in self.low_nodes:
            return [], []
        add_sums = _SUMS.get(_operator(node))
        if add_sums is None:
            return [], []
        builder = _SumBuilder(self.new_names, self.graph.opsets.get("", 0))
        sums = add_sums(builder, node_proto)
        largest = builder.add("Max", *(builder.add("ReduceMax", name, keepdims=0) for name in sums))
        return [ScalarStatistic(probe.ref, _STATISTIC, largest, dtypes.FLOAT)], builder.nodes


def _operator(node: Node) -> tuple[str, str]:
    return node.domain, node.op_type


_STATISTIC = Statistic(_LARGEST_SUM, 0.0, "ReduceMax", None, dtypes.FLOAT)


class _SumBuilder:
    """The nodes of the sums of one node. Each method adds nodes and returns the tensor that they compute."""

    def __init__(self, names: NameGenerator, opset: int) -> None:
        self.names, self.opset = names, opset
        self.nodes: list[NodeProto] = []

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add one node."""
        out = self.names.make_name(f"{inputs[0]}_{op_type}")
        self.nodes.append(self.names.make_node(op_type, inputs, out, **attributes))
        return out

    def constant(self, elem: int, dims: list[int], numbers: Sequence[float]) -> str:
        """Add a constant."""
        out = self.names.make_name("sum_constant")
        self.nodes.append(self.names.make_constant(out, elem, dims, numbers))
        return out

    def reduce(self, op_type: str, tensor: str, axis: int) -> str:
        """Reduce one axis, and keep it with size 1."""
        # The axes are an input since opset 13 (ReduceSum) or 18 (the other reductions), before that an attribute.
        if self.opset < (13 if op_type == "ReduceSum" else 18):
            return self.add(op_type, tensor, axes=[axis])
        return self.add(op_type, tensor, self.constant(dtypes.INT64, [1], [axis]))

    def reduce_like(self, node: NodeProto, tensor: str) -> str:
        """Add ``tensor`` up over the axes of a Reduce node. ``tensor`` has no negative values."""
        copy = copy_message(node)
        # ReduceL1 of values that are not negative is their sum. Its axes have the form that those of ReduceMean,
        # ReduceL2 and ReduceSumSquare have in each opset.
        copy.op_type = "ReduceSum" if node.op_type == "ReduceSum" else "ReduceL1"
        copy.input[0], copy.output[0] = tensor, self.names.make_name(f"{tensor}_sum")
        copy.name = self.names.make_name(f"{node.name}_sum")
        self.nodes.append(copy)
        return copy.output[0]

    def square(self, tensor: str) -> str:
        """Square each value."""
        return self.add("Mul", tensor, tensor)

    def split_heads(self, tensor: str, heads: int) -> str:
        """Turn [batch, length, heads x size] into [batch, heads, length, size]."""
        shape = self.constant(dtypes.INT64, [4], [0, 0, heads, -1])
        return self.add("Transpose", self.add("Reshape", tensor, shape), perm=[0, 2, 1, 3])

    def split_signs(self, tensor: str) -> tuple[str, str]:
        """Return the positive terms and the magnitudes of the negative ones; both have 0 for the other terms."""
        return self.add("Relu", tensor), self.add("Relu", self.add("Neg", tensor))


AddSums = Callable[[_SumBuilder, "NodeProto"], list[str]]


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _add_values(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """ReduceSum, ReduceMean: the values are added over the axes."""
    return [builder.reduce_like(node, terms) for terms in builder.split_signs(node.input[0])]


def _add_squares(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """ReduceL2, ReduceSumSquare: the squares are added over the axes."""
    return [builder.reduce_like(node, builder.square(node.input[0]))]


def _sums_of_rows(builder: _SumBuilder, rows: str, axis: int) -> list[str]:
    """Return the sums of the values along an axis (the mean), and of their squares (the variance).

    A kernel may subtract the mean before it squares. The sum of the squares of all values is at least as large.
    """
    terms = (*builder.split_signs(rows), builder.square(rows))
    return [builder.reduce("ReduceSum", term, axis) for term in terms]


def _add_normalized(builder: _SumBuilder, node: NodeProto, axis: int = -1, summed: tuple[int, ...] = ()) -> list[str]:
    """Normalizations over the axes from ``axis`` on, or from the attribute ``axis``.

    ``summed``: the slots of inputs that are added to the first one before.
    """
    tensor = node.input[0]
    for slot in summed:
        if slot < len(node.input) and node.input[slot]:
            tensor = builder.add("Add", tensor, node.input[slot])
    return _sums_of_rows(builder, builder.add("Flatten", tensor, axis=_attribute(node, "axis", axis)), 1)


def _add_pooled(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """GlobalAveragePool: the values of each channel are added."""
    terms = builder.split_signs(builder.add("Flatten", node.input[0], axis=2))
    return [builder.reduce("ReduceSum", term, 1) for term in terms]


def _add_groups(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """GroupNormalization: [N, C, ...] becomes [N, groups, values of a group]."""
    shape = builder.constant(dtypes.INT64, [3], [0, _attribute(node, "num_groups", 1), -1])
    return _sums_of_rows(builder, builder.add("Reshape", node.input[0], shape), 2)


def _add_powers(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """LpNormalization: the magnitudes (p = 1) or the squares (p = 2) are added along one axis."""
    tensor = node.input[0]
    powers = builder.add("Abs", tensor) if _attribute(node, "p", 2) == 1 else builder.square(tensor)
    return [builder.reduce("ReduceSum", powers, _attribute(node, "axis", -1))]


def _add_exponentials(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """Softmax, LogSoftmax: exp(x - max) is added along the axis. A sum is at most the number of its terms."""
    tensor, axis = node.input[0], _attribute(node, "axis", -1)
    if builder.opset < 13:  # all axes from ``axis`` on are one
        tensor, axis = builder.add("Flatten", tensor, axis=_attribute(node, "axis", 1)), 1
    shifted = builder.add("Sub", tensor, builder.reduce("ReduceMax", tensor, axis))
    return [builder.reduce("ReduceSum", builder.add("Exp", shifted), axis)]


def _add_scores(builder: _SumBuilder, node: NodeProto) -> list[str]:
    """Attention: the scores of all queries and keys, scaled, with those that a mask covers.

    The partial sums of a score are left out, and so is the sum of the softmax, which is at most the number of keys.
    """
    query, keys = node.input[0], [node.input[1]]
    query_heads, key_heads = _attribute(node, "q_num_heads", 0), _attribute(node, "kv_num_heads", 0)
    if query_heads:  # [batch, length, heads x size]; without the attribute, the heads are an axis of their own
        query, keys = builder.split_heads(query, query_heads), [builder.split_heads(keys[0], key_heads)]
    if len(node.input) > 4 and node.input[4]:
        keys.append(node.input[4])  # the keys of earlier tokens
    # Several heads of the query may read one head of the key: [batch, key heads, heads x length, size].
    shape = builder.add("Shape", keys[0])
    batch_and_heads, size = (
        builder.add("Gather", shape, builder.constant(dtypes.INT64, [len(axes)], axes)) for axes in ([0, 1], [3])
    )
    any_length = builder.constant(dtypes.INT64, [1], [-1])
    query = builder.add("Reshape", query, builder.add("Concat", batch_and_heads, any_length, size, axis=0))
    scale = next((attribute.f for attribute in node.attribute if attribute.name == "scale"), 0.0)
    if scale:
        query = builder.add("Mul", query, builder.constant(dtypes.FLOAT, [], [scale]))
    else:
        query = builder.add("Div", query, builder.add("Sqrt", builder.add("Cast", size, to=dtypes.FLOAT)))
    transposed = [builder.add("Transpose", key, perm=[0, 1, 3, 2]) for key in keys]
    return [builder.add("Abs", builder.add("MatMul", query, key)) for key in transposed]


# By domain and op type, what a kernel of the operator adds up (Rule S8.13): values, squares or magnitudes over the
# axes; of normalizations the values and their squares that are normalized together, of the Skip forms those of the sum
# of the inputs; of a softmax exp(x - max); of Attention the scaled products of queries and keys, also those under a
# mask.
_SUMS: dict[tuple[str, str], AddSums] = {
    ("", "ReduceSum"): _add_values,
    ("", "ReduceMean"): _add_values,
    ("", "GlobalAveragePool"): _add_pooled,
    ("", "ReduceL2"): _add_squares,
    ("", "ReduceSumSquare"): _add_squares,
    ("", "LpNormalization"): _add_powers,
    ("", "LayerNormalization"): _add_normalized,
    ("", "RMSNormalization"): _add_normalized,
    ("", "SimplifiedLayerNormalization"): _add_normalized,
    (_CONTRIB, "SkipLayerNormalization"): partial(_add_normalized, summed=(1, 4)),
    (_CONTRIB, "SkipSimplifiedLayerNormalization"): partial(_add_normalized, summed=(1, 3)),
    ("", "InstanceNormalization"): partial(_add_normalized, axis=2),
    ("", "GroupNormalization"): _add_groups,
    ("", "Softmax"): _add_exponentials,
    ("", "LogSoftmax"): _add_exponentials,
    ("", "Attention"): _add_scores,
}
