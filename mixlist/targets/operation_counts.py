"""Count the floating-point operations (FLOPs) of a node from the shapes of its inputs and outputs.

A multiplication and an addition are two operations. The formulas follow the definitions of the operators (ONNX operator
documentation; ONNX Runtime's ContribOperators for ``com.microsoft``). Faster algorithms that a kernel may use, such as
Winograd convolution, are not considered.

- Matrix products and convolutions are counted exactly, with their bias.
- A reduction or a pooling counts one operation per element that it reads.
- An operator that only moves data counts none.
- Any other operator counts one operation per output element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import AttributeProto

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]  # by slot; None if the shape is not known or the slot is left out
Attributes: TypeAlias = "Mapping[str, AttributeProto]"  # by name
_NO_ARITHMETIC = operators(Trait.NO_ARITHMETIC)


class UnknownShapeError(Exception):
    """The error that a formula raises if it needs a shape that is not known."""


def is_matrix_operator(domain: str, op_type: str) -> bool:
    """Return True if the operator computes matrix products or convolutions, also as a part (LSTM, Attention)."""
    return (domain, op_type) in _MATRIX_FORMULAS


def count_flops(domain: str, op_type: str, attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Return the floating-point operations of one run of a node.

    ``attributes``: the node's attributes by name. ``inputs`` and ``outputs``: the shapes of its slots. Raises
    UnknownShapeError if the formula needs a shape that is None.
    """
    formula = _MATRIX_FORMULAS.get((domain, op_type))
    if formula is not None:
        return formula(attributes, inputs, outputs)
    # The traits are of standard operators. An unknown operator of another domain may compute.
    if domain == "" and op_type in _NO_ARITHMETIC:
        return 0
    if op_type.startswith(("Reduce", "Arg", "GlobalAveragePool", "GlobalMaxPool")):
        return prod(_shape_at(inputs, 0))
    elements = prod(_shape_at(outputs, 0))
    if op_type in ("MaxPool", "AveragePool", "LpPool"):
        return elements * prod(attributes["kernel_shape"].ints)
    return elements


def _shape_at(shapes: Shapes, slot: int) -> Shape:
    """Return the shape of a slot. Raises UnknownShapeError if it is not known."""
    shape = shapes[slot] if slot < len(shapes) else None
    if shape is None:
        raise UnknownShapeError
    return shape


def _is_present(shapes: Shapes, slot: int) -> bool:
    """Return True if an optional slot is not left out."""
    return slot < len(shapes) and shapes[slot] is not None


# --- matrix products ---


def _matmul(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count one multiplication and one addition per output element and element of the summed axis."""
    # The summed axis is the last one of the first matrix; with transA (Gemm, FusedMatMul) the one before it.
    first = _shape_at(inputs, 0)
    transposed = "transA" in attributes and attributes["transA"].i and len(first) > 1
    depth = first[-2] if transposed else first[-1]
    return 2 * prod(_shape_at(outputs, 0)) * depth


def _gemm(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count the product, and one addition per output element if there is a bias."""
    return _matmul(attributes, inputs, outputs) + prod(_shape_at(outputs, 0)) * _is_present(inputs, 2)


def _packed_matmul(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count a product whose second matrix is packed (MatMulNBits): the attribute ``K`` is the summed length."""
    return 2 * prod(_shape_at(outputs, 0)) * attributes["K"].i


def _einsum(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count an Einsum by its combinations of index values.

    Each combination has its multiplications, and one addition if an index is summed.

    ``bij,bjk->bik`` has b * i * j * k combinations, each with one multiplication and one addition.
    """
    equation = attributes["equation"].s.decode().replace(" ", "")
    # 1. The size of each index: "bij,bjk->bik" gives the sizes of b, i, j and k.
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms.split(",")):
        _add_index_sizes(term, _shape_at(inputs, position), sizes)
    if "->" not in equation:
        # Without "->" the result has the ellipsis, and the letters that occur once.
        letters = terms.replace(",", "").replace(".", "")
        result = "." * ("." in terms) + "".join(c for c in letters if letters.count(c) == 1)
    # 2. The indices that the result does not have are summed. A sum over one element needs no addition.
    result_indices = {index for index in sizes if (index.isdigit() and "." in result) or index in result}
    is_summed = any(sizes[index] != 1 for index in sizes.keys() - result_indices)
    # 3. n operands need n - 1 multiplications for each combination of index values.
    return prod(sizes.values()) * (len(inputs) - 1 + is_summed)


def _add_index_sizes(term: str, shape: Shape, sizes: dict[str, int]) -> None:
    """Add the size of each index of one operand to ``sizes``.

    The axes of an ellipsis have no letters. They are numbered from the right, since operands are broadcast that way:
    ``a...b`` of a tensor with four axes has the indices a, 2, 1, b.
    """
    before, dots, after = term.partition("...")
    ellipsis_axes = len(shape) - len(before) - len(after)
    names = [*before, *(str(ellipsis_axes - k) for k in range(ellipsis_axes if dots else 0)), *after]
    for name, size in zip(names, shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)  # a size of 1 is broadcast


# --- convolutions ---


def _conv(attributes: Attributes, inputs: Shapes, outputs: Shapes, weight: int = 1, bias: int = 2) -> int:
    """Count a convolution. ``weight`` and ``bias`` are the slots of these inputs.

    The weight has the shape (output channels, input channels per group, kernel ...). Each output element multiplies
    and adds the weights of its output channel.
    """
    return prod(_shape_at(outputs, 0)) * (2 * prod(_shape_at(inputs, weight)[1:]) + _is_present(inputs, bias))


def _conv_transpose(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count a transposed convolution.

    The weight has the shape (input channels, output channels per group, kernel ...). Each input element is
    multiplied by the whole kernel, once for every output channel of its group.
    """
    weight, output_size = _shape_at(inputs, 1), prod(_shape_at(outputs, 0))
    return 2 * prod(_shape_at(inputs, 0)) * prod(weight[1:]) + (output_size if _is_present(inputs, 2) else 0)


# --- recurrent layers: the products of input and hidden state with the weights of all gates ---


def _recurrent(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count the products with W (directions, gates x hidden, input) and R (directions, gates x hidden, hidden).

    Each step of the sequence is multiplied by W, and the hidden state by R. The elementwise operations of the gates are
    not counted.
    """
    steps_and_batch, weight, recurrence = _shape_at(inputs, 0)[:2], _shape_at(inputs, 1), _shape_at(inputs, 2)
    return 2 * prod(steps_and_batch) * (prod(weight) + prod(recurrence))


# --- attention: the products of queries and keys, and of attention weights and values ---


def _attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count ai.onnx Attention: Q, K, V are (batch, heads, length, size), or (batch, length, heads x size)."""
    query, key, value = (_shape_at(inputs, slot) for slot in range(3))
    if len(query) == 3:
        heads, kv_heads = attributes["q_num_heads"].i, attributes["kv_num_heads"].i
        batch, length, size = query[0], query[1], query[2] // heads
        key_count, value_size = key[1], value[2] // kv_heads
    else:
        (batch, heads, length, size), key_count, value_size = query, key[2], value[3]
    # Each query is multiplied by all keys, those of the past included, and the result by all values.
    past = _shape_at(inputs, 4)[2] if _is_present(inputs, 4) else 0
    return 2 * batch * heads * length * (key_count + past) * (size + value_size)


def _packed_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count com.microsoft Attention, with the products that make Q, K and V.

    The input is (batch, length, width), the weights are (width, q + k + v), the past is (2, batch, heads, past, size).
    """
    (batch, length, width), weights = _shape_at(inputs, 0), _shape_at(inputs, 1)
    # ``sizes``: the widths of Q, K and V. Without the attribute all three are equal.
    sizes = attributes["qkv_hidden_sizes"].ints if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    past = _shape_at(inputs, 4)[3] if _is_present(inputs, 4) else 0
    bias = batch * length * weights[1] * _is_present(inputs, 2)
    projections = 2 * batch * length * width * weights[1] + bias
    return projections + 2 * batch * length * (length + past) * (sizes[1] + sizes[2])


def _multi_head_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count com.microsoft MultiHeadAttention, whose inputs come in three forms.

    - Q, K and V apart: (batch, length, width); K and V may be (batch, heads, length, size).
    - All three packed in the query: (batch, length, heads, 3, size).
    - K and V packed in the key: (batch, length, heads, 2, size).
    """
    query = _shape_at(inputs, 0)
    if len(query) == 5:
        batch, length, heads, _, size = query
        key_count, width, value_width = length, heads * size, heads * size
    else:
        batch, length, width = query
        key = _shape_at(inputs, 1)
        key_count = key[2] if len(key) == 4 else key[1]
        value = _shape_at(inputs, 2) if len(key) < 5 else (batch, key_count, width)
        value_width = value[1] * value[3] if len(value) == 4 else value[2]
    past = _shape_at(inputs, 6)[2] if _is_present(inputs, 6) else 0
    return 2 * batch * length * (key_count + past) * (width + value_width)


def _grouped_attention(attributes: Attributes, inputs: Shapes, outputs: Shapes) -> int:
    """Count com.microsoft GroupQueryAttention; its output 1 is (batch, kv heads, past + new length, size)."""
    query, heads, kv_heads = _shape_at(inputs, 0), attributes["num_heads"].i, attributes["kv_num_heads"].i
    batch, length, width = query
    # Without a key input the query holds Q, K and V of each token.
    size = width // heads if _is_present(inputs, 1) else width // (heads + 2 * kv_heads)
    # 4 = two products of 2 operations each: queries with keys, and attention weights with values of the same size.
    key_count = _shape_at(outputs, 1)[2] if _is_present(outputs, 1) else length
    return 4 * batch * heads * length * key_count * size


_Formula = Callable[[Attributes, Shapes, Shapes], int]
# Each formula with its operators: those of the ONNX domain, then those of com.microsoft.
_FORMULAS: tuple[tuple[_Formula, str, str], ...] = (
    (_matmul, "MatMul MatMulInteger QLinearMatMul", "DynamicQuantizeMatMul FusedMatMul FusedMatMulActivation"),
    (_matmul, "", "GemmFastGelu MatMulInteger16 MatMulIntegerToFloat TransposeMatMul"),
    (_gemm, "Gemm", "FusedGemm"),
    (_packed_matmul, "", "MatMulNBits"),
    (_einsum, "Einsum", ""),
    (_conv, "Conv", "FusedConv"),
    (partial(_conv, bias=4), "ConvInteger", ""),  # ConvInteger has 4 inputs and no bias: slot 4 is always absent
    (partial(_conv, bias=3), "DeformConv", ""),
    (partial(_conv, weight=3, bias=8), "QLinearConv", ""),
    (_conv_transpose, "ConvTranspose", ""),
    (_recurrent, "GRU LSTM RNN", "DynamicQuantizeLSTM"),
    (_attention, "Attention", ""),
    (_packed_attention, "", "Attention"),
    (_multi_head_attention, "", "MultiHeadAttention"),
    (_grouped_attention, "", "GroupQueryAttention"),
)
_MATRIX_FORMULAS = {
    (domain, op_type): formula
    for formula, *op_types_by_domain in _FORMULAS
    for domain, op_types in zip(("", "com.microsoft"), op_types_by_domain, strict=True)
    for op_type in op_types.split()
}
