"""Infer the output shapes of ONNX Runtime's own operators (``com.microsoft``), which ONNX's shape inference lacks.

ONNX Runtime's optimizer fuses standard operators into these. Many have the output shape of a standard operator. That
operator can replace them in a copy of the model that is only for shapes. The others have a rule here. Shapes that
neither way covers stay unknown. Source: ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import AttributeProto, NodeProto

    Attributes = dict[str, AttributeProto]

Shape = tuple[int, ...]


class KnownInputs(NamedTuple):
    """The known shapes and values of the inputs of a node, by slot; None for an omitted input, and if unknown."""

    shapes: Sequence[Shape | None]
    arrays: Sequence[NDArray[np.generic] | None]


CONTRIB_DOMAIN = "com.microsoft"
_SKIP_NORMALIZATIONS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
# Operators whose output has the shape of the first input.
_SHAPE_OF_FIRST_INPUT = _SKIP_NORMALIZATIONS | {
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "GroupNorm",
    "QuickGelu",
    "RotaryEmbedding",
}
# The standard operator with the same output shape, and the number of inputs to pass to it.
_STANDARD_OPERATORS = {"FusedConv": ("Conv", 3), "FusedGemm": ("Gemm", 3), "GemmFastGelu": ("MatMul", 2)}


def replace_with_standard_node(node: NodeProto) -> bool:
    """Change a node in place to a standard one with the same output shape; return False if there is none.

    Only the shape is right: the new node does not compute the numbers of the old one.
    """
    op = node.op_type
    if len(node.output) > 1:
        return False  # each of the standard operators below has one output
    # ONNX Runtime writes these into the standard domain: LayerNormalization also below opset 17, where ONNX has none,
    # and SimplifiedLayerNormalization, which ONNX never had.
    is_layer_normalization = op in ("LayerNormalization", "SimplifiedLayerNormalization") and not node.domain
    if is_layer_normalization or (op in _SHAPE_OF_FIRST_INPUT and node.domain == CONTRIB_DOMAIN):
        _replace_node(node, "Identity", 1)
    elif node.domain != CONTRIB_DOMAIN:
        return False
    elif op in _STANDARD_OPERATORS:
        # The fused activation changes no shape, and the standard operator does not have its attributes.
        _replace_node(
            node, *_STANDARD_OPERATORS[op], [a for a in node.attribute if not a.name.startswith("activation")]
        )
    elif op in ("FusedMatMul", "TransposeMatMul"):
        flags = {a.name: bool(a.i) for a in node.attribute}
        # These two flags permute the batch dimensions as well. No equation below covers that.
        if flags.get("transBatchA") or flags.get("transBatchB"):
            return False
        transpose_a, transpose_b = flags.get("transA", False), flags.get("transB", False)
        if transpose_a or transpose_b:
            # Example: transA alone gives "...ji,...jk->...ik".
            a, b = "ji" if transpose_a else "ij", "kj" if transpose_b else "jk"
            _replace_node(node, "Einsum", 2, equation=f"...{a},...{b}->...ik")
        else:
            _replace_node(node, "MatMul", 2)
    elif op == "MultiHeadAttention" and len(node.input) > 2 and node.input[2]:
        # query (batch, query length, width) and value (batch, key length, value width)
        # give (batch, query length, value width).
        # The Einsum reads the first two inputs only, so the value takes the slot of the key.
        node.input[1] = node.input[2]
        _replace_node(node, "Einsum", 2, equation="abc,ade->abe")
    else:
        return False
    return True


def _replace_node(
    node: NodeProto, op_type: str, inputs: int, attributes: Sequence[AttributeProto] = (), **text_attributes: str
) -> None:
    """Change a node in place to ``op_type``, with its first ``inputs`` inputs.

    ``attributes`` are those of the node that stay, ``text_attributes`` are new.
    """
    from onnx import helper

    standard_node = helper.make_node(op_type, node.input[:inputs], node.output, node.name, **text_attributes)
    standard_node.attribute.extend(attributes)
    node.CopyFrom(standard_node)


def infer_output_shapes(node: NodeProto, inputs: KnownInputs) -> list[Shape | None]:
    """Return the output shapes of a com.microsoft node for its inputs; an empty list without a rule."""
    rule = _RULES.get(node.op_type) if node.domain == CONTRIB_DOMAIN else None
    attributes = {a.name: a for a in node.attribute}
    try:
        return rule(attributes, inputs) if rule else []
    except (IndexError, KeyError, TypeError, ValueError):  # a shape is unknown, or is not what the operator requires
        return []


def _skip_normalization(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output, the mean, the inverse standard deviation, and the normalized sum."""
    (data,) = _known_shapes(inputs, 0)
    return [data, (*data[:-1], 1), (*data[:-1], 1), data]


def _embed_normalization(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output, the mask index, and the normalized sum."""
    ids, word_embedding = _known_shapes(inputs, 0, 2)
    output = (*ids, word_embedding[1])
    return [output, ids[:1], output]


def _attention(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the output shape for the data (batch, length, width) and the weights (width, q + k + v)."""
    data, weights = _known_shapes(inputs, 0, 1)
    # Without the attribute, the columns of q, k and v are equally many.
    widths = list(attributes["qkv_hidden_sizes"].ints) if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    return [(*data[:2], widths[2])]


def _grouped_attention(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shapes of the output and of both caches for the query (batch, length, width).

    Without a key, the query is packed: its width holds the heads of the query, then those of the key and of the value.
    A cache is (batch, key heads, length, head size). Its length is the total length, or that of a larger past cache.
    """
    (query,) = _known_shapes(inputs, 0)
    # Grouped attention has fewer heads in the key and in the value than in the query.
    heads, key_heads = attributes["num_heads"].i, attributes["kv_num_heads"].i
    is_packed = len(inputs.shapes) < 2 or inputs.shapes[1] is None
    width = query[2] * heads // (heads + 2 * key_heads) if is_packed else query[2]
    total = inputs.arrays[6] if len(inputs.arrays) > 6 else None
    if total is None:
        return [(*query[:2], width)]
    past = inputs.shapes[3]
    length = max(int(total.reshape(())), past[2] if past is not None else 0)
    cache = (query[0], key_heads, length, width // heads)
    return [(*query[:2], width), cache, cache]


def _quantized_lstm(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shapes of all hidden states (length, directions, batch, hidden), the last state, and the last cell."""
    # The recurrence weights are (directions, hidden, 4 * hidden); those of the standard LSTM end in hidden.
    data, recurrence = _known_shapes(inputs, 0, 2)
    length, batch = data[:2]
    directions, hidden = recurrence[:2]
    last = (directions, batch, hidden)
    return [(length, directions, batch, hidden), last, last]


def _matmul(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shape of a matrix product; the leading dimensions broadcast."""
    import numpy as np

    left, right = _known_shapes(inputs, 0, 1)
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])]


def _block_quantized_matmul(attributes: Attributes, inputs: KnownInputs) -> list[Shape | None]:
    """Return the shape of a product with a quantized matrix of N columns, which no input has as an axis."""
    (data,) = _known_shapes(inputs, 0)
    return [(*data[:-1], attributes["N"].i)]


def _known_shapes(inputs: KnownInputs, *slots: int) -> list[Shape]:
    """Return the shapes of input slots; raise ValueError for an unknown shape, IndexError for a missing slot."""
    shapes = [inputs.shapes[slot] for slot in slots]
    if any(shape is None for shape in shapes):
        raise ValueError("the shape of an input is unknown")
    return [shape for shape in shapes if shape is not None]


_RULES = {  # the function that infers the output shapes, by operator
    "Attention": _attention,
    "DynamicQuantizeLSTM": _quantized_lstm,
    "DynamicQuantizeMatMul": _matmul,
    "EmbedLayerNormalization": _embed_normalization,
    "GroupQueryAttention": _grouped_attention,
    "MatMulIntegerToFloat": _matmul,
    "MatMulNBits": _block_quantized_matmul,
    **dict.fromkeys(_SKIP_NORMALIZATIONS, _skip_normalization),
}
