"""Output shapes of ONNX Runtime's own operators (``com.microsoft``), which ONNX's shape inference does not know.

ONNX Runtime's optimiser makes them out of standard operators, so many have the shape of one, which can stand in for
them in a copy of the model that is for shapes alone; for the others there are rules. (Source: the operators'
documentation in ONNX Runtime, ContribOperators.) Nodes with other uses of these operators stay unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

    Attributes = dict[str, AttributeProto]

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
DOMAIN = "com.microsoft"
_SKIP = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_AS_FIRST_INPUT = _SKIP | {"BiasGelu", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding"}
_STANDARD = {"FusedConv": ("Conv", 3), "FusedGemm": ("Gemm", 3), "GemmFastGelu": ("MatMul", 2)}  # and inputs it takes


def replace_with_standard_node(node: NodeProto) -> bool:
    """Turn a NodeProto into a standard one whose output has the same shape; False where there is none."""
    op = node.op_type
    if len(node.output) > 1:
        return False
    written_early = op == "LayerNormalization" and not node.domain  # by ONNX Runtime, at opsets that lack it
    if written_early or (op in _AS_FIRST_INPUT and node.domain == DOMAIN):
        _become(node, "Identity", 1)
    elif node.domain != DOMAIN:
        return False
    elif op in _STANDARD:
        _become(node, *_STANDARD[op], [a for a in node.attribute if not a.name.startswith("activation")])
    elif op in ("FusedMatMul", "TransposeMatMul"):
        flags = {a.name: bool(a.i) for a in node.attribute}
        if flags.get("transBatchA") or flags.get("transBatchB"):
            return False
        left, right = flags.get("transA", False), flags.get("transB", False)
        if left or right:
            _become(node, "Einsum", 2, equation=f"...{'ji' if left else 'ij'},...{'kj' if right else 'jk'}->...ik")
        else:
            _become(node, "MatMul", 2)
    elif op == "MultiHeadAttention" and len(node.input) > 2 and node.input[2]:
        node.input[1] = node.input[2]  # the width of a value for each place of a query
        _become(node, "Einsum", 2, equation="abc,ade->abe")
    else:
        return False
    return True


def _become(
    node: NodeProto, op_type: str, inputs: int, attributes: Sequence[AttributeProto] = (), **texts: str
) -> None:
    """Turn a node into one with the first ``inputs``, some ``attributes`` of its own, and new ones with ``texts``."""
    from onnx import helper

    made = helper.make_node(op_type, node.input[:inputs], node.output, node.name, **texts)
    made.attribute.extend(attributes)
    node.CopyFrom(made)


def infer_output_shapes(node: NodeProto, inputs: Shapes) -> list[Shape | None]:
    """The shapes of a com.microsoft node's outputs for those of its inputs, as far as there is a rule; else nothing."""
    rule = _RULES.get(node.op_type) if node.domain == DOMAIN else None
    attributes = {a.name: a for a in node.attribute}
    try:
        return rule(attributes, inputs) if rule else []
    except (IndexError, KeyError, TypeError, ValueError):  # shapes that are not known, or not these
        return []


def _skip(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    """Output, mean, inverse deviation, and the sum that was normalised."""
    (whole,) = _known(inputs, 0)
    return [whole, (*whole[:-1], 1), (*whole[:-1], 1), whole]


def _embed(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    """Embedded words, the mask's index, and the sum that was normalised."""
    ids, words = _known(inputs, 0, 2)
    made = (*ids, words[1])
    return [made, ids[:1], made]


def _attention(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    """Input (batch, length, width) and weights (width, q + k + v)."""
    given, weights = _known(inputs, 0, 1)
    sizes = list(attributes["qkv_hidden_sizes"].ints) if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    return [(*given[:2], sizes[2])]


def _grouped_attention(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    (query,) = _known(inputs, 0)
    heads, groups = attributes["num_heads"].i, attributes["kv_num_heads"].i
    packed = len(inputs) < 2 or inputs[1] is None
    return [(*query[:2], query[2] * heads // (heads + 2 * groups) if packed else query[2])]


def _quantized_lstm(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    """All hidden states (length, directions, batch, hidden), the last ones, the last cells."""
    given, recurrence = _known(inputs, 0, 2)
    directions, hidden = recurrence[:2]
    last = (directions, given[1], hidden)
    return [(given[0], directions, given[1], hidden), last, last]


def _matmul(attributes: Attributes, inputs: Shapes) -> list[Shape | None]:
    import numpy as np

    left, right = _known(inputs, 0, 1)
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])]


def _known(inputs: Shapes, *slots: int) -> list[Shape]:
    shapes = [inputs[slot] for slot in slots]
    if any(shape is None for shape in shapes):
        raise ValueError("an input's shape is not known")
    return [shape for shape in shapes if shape is not None]


_RULES = {
    "Attention": _attention,
    "DynamicQuantizeLSTM": _quantized_lstm,
    "DynamicQuantizeMatMul": _matmul,
    "EmbedLayerNormalization": _embed,
    "GroupQueryAttention": _grouped_attention,
    "MatMulIntegerToFloat": _matmul,
    **dict.fromkeys(_SKIP, _skip),
}
