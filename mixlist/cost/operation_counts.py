"""Count the floating-point operations of a node from the shapes of its inputs and outputs.

A multiplication and an addition are two operations. The formulas are those of the operators' definitions (ONNX operator
documentation; ONNX Runtime's ContribOperators for ``com.microsoft``), without tricks like Winograd's that an
implementation may use. Matrix products and convolutions are counted exactly, with their bias; everything else counts
one operation per output element, a reduction or a pooling window one per element read, and what only moves data none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import AttributeProto

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Attributes: TypeAlias = "Mapping[str, AttributeProto]"
_FREE = operators(Trait.NO_ARITHMETIC)


class UnknownShapeError(Exception):
    """A shape that a formula needs is not known."""


def is_matrix(domain: str, op_type: str) -> bool:
    """Return True if the operator is a matrix product, a convolution, or made of them."""
    return (domain, op_type) in _MATRIX


def flops(domain: str, op_type: str, attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Floating-point operations of one run of the node.

    ``inputs`` and ``outputs`` hold a shape per slot, None where it is not known or the slot is left out;
    ``attributes`` the node's attributes by name. Raises UnknownShapeError where the formula needs a shape that
    is not known.
    """
    formula = _MATRIX.get((domain, op_type))
    if formula is not None:
        return formula(attributes, inputs, outputs)
    if domain == "" and op_type in _FREE:
        return 0
    if op_type.startswith(("Reduce", "Arg", "GlobalAveragePool", "GlobalMaxPool")):
        return prod(_need(inputs, 0))
    elements = prod(_need(outputs, 0))
    if op_type in ("MaxPool", "AveragePool", "LpPool"):
        return elements * prod(attributes["kernel_shape"].ints)
    return elements


def _need(shapes: Shapes, slot: int) -> Shape:
    shape = shapes[slot] if slot < len(shapes) else None
    if shape is None:
        raise UnknownShapeError
    return shape


def _has(shapes: Shapes, slot: int) -> bool:
    return slot < len(shapes) and shapes[slot] is not None


# --- matrix products ---


def _matmul(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    first = _need(inputs, 0)
    transposed = "transA" in attributes and attributes["transA"].i and len(first) > 1
    depth = first[-2] if transposed else first[-1]
    return 2 * prod(_need(outputs, 0)) * depth


def _gemm(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """The product, and one addition per output element if there is a bias."""
    return _matmul(attributes, inputs, outputs) + prod(_need(outputs, 0)) * _has(inputs, 2)


def _packed_matmul(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """The second matrix is packed; the attribute ``K`` has the length of a row."""
    return 2 * prod(_need(outputs, 0)) * attributes["K"].i


def _einsum(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """One addition where something is summed, and a multiplication between neighbours, per index tuple."""
    equation = attributes["equation"].s.decode().replace(" ", "")
    left, _, right = equation.partition("->")
    sizes: dict[str, int] = {}
    for at, term in enumerate(left.split(",")):
        _index_sizes(term, _need(inputs, at), sizes)
    if "->" not in equation:
        letters = left.replace(",", "").replace(".", "")
        right = "." * ("." in left) + "".join(c for c in letters if letters.count(c) == 1)
    kept = {index for index in sizes if (index.isdigit() and "." in right) or index in right}
    summed = any(sizes[index] != 1 for index in sizes.keys() - kept)
    return prod(sizes.values()) * (len(inputs) - 1 + summed)


def _index_sizes(term: str, shape: Shape, sizes: dict[str, int]) -> None:
    """The size of each index of one operand; those behind an ellipsis are numbered from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    names = [*before, *(str(hidden - k) for k in range(hidden if dots else 0)), *after]
    for name, size in zip(names, shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)


# --- convolutions ---


def _conv(attributes: Attributes, inputs: Shapes, outputs: Shapes, weight: int = 1, bias: int = 2) -> int:
    """Each output element takes one weight of each input channel of its group; ``weight`` and ``bias`` are slots."""
    return prod(_need(outputs, 0)) * (2 * prod(_need(inputs, weight)[1:]) + _has(inputs, bias))


def _conv_transpose(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Each input element meets the kernel once for every output channel of its group."""
    weight, out = _need(inputs, 1), prod(_need(outputs, 0))
    return 2 * prod(_need(inputs, 0)) * prod(weight[1:]) + (out if _has(inputs, 2) else 0)


# --- recurrent layers: the products of input and hidden state with the weights of all gates ---


def _recurrent(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """At each step W (directions, gates x hidden, input) and R (..., hidden), without the elementwise rest."""
    steps_and_batch, weight, recurrence = _need(inputs, 0)[:2], _need(inputs, 1), _need(inputs, 2)
    return 2 * prod(steps_and_batch) * (prod(weight) + prod(recurrence))


# --- attention: the products of queries and keys, and of weights and values ---


def _attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """ai.onnx Attention: Q, K, V (batch, heads, length, size), or (batch, length, heads x size)."""
    query, key, value = (_need(inputs, at) for at in range(3))
    if len(query) == 3:
        heads, kv_heads = attributes["q_num_heads"].i, attributes["kv_num_heads"].i
        batch, length, size = query[0], query[1], query[2] // heads
        keys, value_size = key[1], value[2] // kv_heads
    else:
        (batch, heads, length, size), keys, value_size = query, key[2], value[3]
    past = _need(inputs, 4)[2] if _has(inputs, 4) else 0
    return 2 * batch * heads * length * (keys + past) * (size + value_size)


def _packed_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """com.microsoft Attention: input (batch, length, width), weights (width, q + k + v), past (2, batch, ...)."""
    (batch, length, width), weights = _need(inputs, 0), _need(inputs, 1)
    sizes = attributes["qkv_hidden_sizes"].ints if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    past = _need(inputs, 4)[3] if _has(inputs, 4) else 0
    bias = batch * length * weights[1] * _has(inputs, 2)
    projected = 2 * batch * length * width * weights[1] + bias
    return projected + 2 * batch * length * (length + past) * (sizes[1] + sizes[2])


def _multi_head_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """MultiHeadAttention; queries may hold all three, (batch, length, heads, 3, size), keys the values."""
    query = _need(inputs, 0)
    if len(query) == 5:
        batch, length, heads, _, size = query
        keys, width, value_width = length, heads * size, heads * size
    else:
        batch, length, width = query
        key = _need(inputs, 1)
        keys = key[2] if len(key) == 4 else key[1]
        value = _need(inputs, 2) if len(key) < 5 else (batch, keys, width)
        value_width = value[1] * value[3] if len(value) == 4 else value[2]
    past = _need(inputs, 6)[2] if _has(inputs, 6) else 0
    return 2 * batch * length * (keys + past) * (width + value_width)


def _grouped_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """com.microsoft GroupQueryAttention: the cached keys are (batch, kv heads, all so far, size)."""
    query, heads, groups = _need(inputs, 0), attributes["num_heads"].i, attributes["kv_num_heads"].i
    batch, length, width = query
    size = width // heads if _has(inputs, 1) else width // (heads + 2 * groups)
    keys = _need(outputs, 1)[2] if _has(outputs, 1) else length
    return 4 * batch * heads * length * keys * size


_Formula = Callable[[Attributes, Shapes, Shapes], int]
_FORMULAS: tuple[tuple[_Formula, str, str], ...] = (  # with the operators of the standard domain and of com.microsoft
    (_matmul, "MatMul MatMulInteger QLinearMatMul", "DynamicQuantizeMatMul FusedMatMul FusedMatMulActivation"),
    (_matmul, "", "GemmFastGelu MatMulInteger16 MatMulIntegerToFloat TransposeMatMul"),
    (_gemm, "Gemm", "FusedGemm"),
    (_packed_matmul, "", "MatMulNBits"),
    (_einsum, "Einsum", ""),
    (_conv, "Conv", "FusedConv"),
    (partial(_conv, bias=4), "ConvInteger", ""),  # ConvInteger has no bias, and no slot 4
    (partial(_conv, bias=3), "DeformConv", ""),
    (partial(_conv, weight=3, bias=8), "QLinearConv", ""),
    (_conv_transpose, "ConvTranspose", ""),
    (_recurrent, "GRU LSTM RNN", "DynamicQuantizeLSTM"),
    (_attention, "Attention", ""),
    (_packed_attention, "", "Attention"),
    (_multi_head_attention, "", "MultiHeadAttention"),
    (_grouped_attention, "", "GroupQueryAttention"),
)
_MATRIX = {
    (domain, op_type): formula
    for formula, *by_domain in _FORMULAS
    for domain, op_types in zip(("", "com.microsoft"), by_domain, strict=True)
    for op_type in op_types.split()
}
