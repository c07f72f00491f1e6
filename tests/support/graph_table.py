"""List the operators of random graphs, with the first opset and the frequency of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support import graph_masks, graph_patterns, graph_sequences
from tests.support.graph_constants import constant_state, use_constant
from tests.support.graph_moves import (
    cast_again,
    cast_pair,
    compare,
    concat,
    dropout,
    identity,
    idle_cast,
    pad,
    reshape,
    sequence,
    shape_arithmetic,
    slice_or_gather,
    split,
    transpose,
    where,
)
from tests.support.graph_ops import (
    NewValues,
    binary,
    clip,
    convolution,
    divide,
    exponential,
    harmless_extreme,
    layer_norm,
    leaky,
    matmul,
    reduce,
    scale,
    softmax,
    unary,
    variadic,
)
from tests.support.graph_scope import Scope


@dataclass(frozen=True)
class Op:
    """An entry of the table: from which opset, how often."""

    make: Callable[[Scope], NewValues]
    since: int = 7
    weight: int = 4


TABLE = [
    Op(unary, weight=12),
    Op(binary, weight=16),
    Op(scale, weight=6),
    Op(matmul, weight=8),
    Op(cast_pair, weight=2),
    Op(cast_again, weight=1),
    Op(leaky, weight=4),
    Op(exponential, weight=1),
    Op(clip, weight=3),
    Op(divide, weight=1),
    Op(variadic, since=8, weight=2),
    Op(harmless_extreme, since=8, weight=1),
    Op(reduce, weight=4),
    Op(softmax, weight=3),
    Op(layer_norm, since=17, weight=3),
    Op(convolution, weight=3),
    Op(transpose, weight=3),
    Op(identity, weight=1),
    Op(dropout, weight=1),
    Op(reshape, weight=2),
    Op(concat, weight=3),
    Op(split, weight=2),
    Op(slice_or_gather, weight=3),
    Op(where, since=9, weight=2),
    Op(pad, weight=1),
    Op(compare, since=9, weight=2),
    Op(shape_arithmetic, since=10, weight=1),
    Op(sequence, since=11, weight=3),
]

DECISIONS = {  # families of operators only for graphs whose decisions are compared, not their numbers
    "constants": [Op(use_constant, weight=16), Op(constant_state, weight=4)],
    "sequences": [
        Op(graph_sequences.construct, since=11, weight=12),
        Op(graph_sequences.change, since=11, weight=12),
        Op(graph_sequences.read, since=11, weight=12),
        Op(graph_sequences.optional, since=15, weight=10),
        Op(graph_sequences.map_sequence, since=17, weight=4),
        Op(graph_sequences.conditional, since=14, weight=6),
        Op(graph_sequences.loop, since=14, weight=6),
    ],
    "casts": [Op(idle_cast, weight=16)],
    "masks": [Op(graph_masks.masked_softmax, weight=16)],
    "bfloat16": [Op(graph_patterns.bfloat16, since=13, weight=16)],
    "guards": [Op(graph_patterns.guard, since=8, weight=16)],
    "norms": [Op(graph_patterns.written_norm, since=8, weight=16)],
    "positions": [Op(graph_patterns.positions, weight=16)],
    "quantized": [Op(graph_patterns.quantized_unit, since=10, weight=16)],
    "types": [
        Op(graph_patterns.contrib, weight=6),
        Op(graph_patterns.value_of_unknown_type, weight=6),
        Op(graph_patterns.reader_of_unknown_type, weight=6),
    ],
}
