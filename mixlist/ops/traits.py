"""The one table of operator traits: facts about the values that an operator makes, whatever model it is in.

The names are those of the standard domain, and three of ``com.microsoft`` that the standard domain does not use. A
trait holds for all attributes of an operator, with one exception: Clip and Pad take their numbers from attributes
before opset 11, and these count as inputs. A fact that only one rule or formula needs is not a trait and stays there.

To give an operator a trait, change its row. tests/ops/test_traits.py then runs it and checks the definition; an
operator that needs special inputs gets them in the table ``CASES`` there.
"""

from __future__ import annotations

from enum import Flag


class Trait(Flag):
    """One fact about an operator. A trait that contains another one implies it: what moves values preserves them."""

    VALUE_PRESERVING = 1 << 0
    """Inputs that a low type represents give outputs that it represents: values of the inputs, their negatives, the
    next whole numbers, or -1, 0 and 1. So rounding the output again changes nothing."""

    MOVES_VALUES = 1 << 1 | VALUE_PRESERVING
    """Each output element is an element of an input of the output's type, or a zero that fills a gap. Shapes, indices
    and conditions alone decide which element goes where: the values themselves do not (Max and TopK do not qualify)."""

    SAME_VALUES = 1 << 2 | MOVES_VALUES
    """The output holds each element of the first input exactly once, and nothing else: it has the same range."""

    VIEWS = 1 << 3 | SAME_VALUES
    """The output has the elements of the first input in the same order: a runtime needs no copy."""

    PICKS = 1 << 4 | MOVES_VALUES
    """Indices or bounds pick elements of the first input; the operator reads no element that it does not yield."""

    FILLS = 1 << 5 | MOVES_VALUES
    """A value mover that may put zeros beside the elements of its inputs."""

    BOUNDED = 1 << 6
    """No output has a magnitude beyond 2, however large the finite inputs are."""

    WELL_CONDITIONED = 1 << 7
    """A sum, product or mean, or piecewise linear: if no terms cancel, a relative change of the inputs by at most e
    changes no output by more than 8 e of the largest output."""

    NORMALIZES = 1 << 8
    """Divides by the square root of a variance, or mean of squares, plus the attribute ``epsilon``."""

    SOFTMAX = 1 << 9
    """Normalizes exponentials along an axis, so that an element far below the largest counts nothing."""

    RANDOM = 1 << 10
    """May yield other numbers from run to run; Dropout does so only in training mode."""

    READS_ONLY_SHAPE = 1 << 11
    """The output depends on the shape of the first input and not on its elements."""

    YIELDS_SHAPE = 1 << 12 | READS_ONLY_SHAPE
    """The output is dimensions of the first input, or their product."""

    CONTROL_FLOW = 1 << 13
    """Runs graphs that are its attributes, and carries no precision itself (Rule S4.25)."""

    CUBE = 1 << 14
    """The engine's matrix unit computes it (Rule S3.7): linear in each of its first two inputs."""

    NO_ARITHMETIC = 1 << 15
    """Moves, converts or makes numbers with no operation on floats: an output element is an element of an input, an
    attribute, or a whole number."""

    COMPUTES_SHAPES = 1 << 16
    """Models compute shapes with it: deterministic, without graphs, and cheap on tensors of a few thousand elements."""


_FREE, _SHAPES = Trait.NO_ARITHMETIC, Trait.COMPUTES_SHAPES
_ROWS: tuple[tuple[str, Trait], ...] = (
    # The output holds what the input holds.
    ("Flatten Identity Reshape Squeeze Unsqueeze", Trait.VIEWS | _FREE | _SHAPES),
    ("Transpose", Trait.SAME_VALUES | _FREE | _SHAPES),
    ("DepthToSpace ReverseSequence SpaceToDepth", Trait.SAME_VALUES | _FREE),
    ("Gather GatherElements GatherND Slice", Trait.PICKS | _FREE | _SHAPES),
    ("Compress Concat Expand Split Tile", Trait.MOVES_VALUES | _FREE | _SHAPES),
    ("ConcatFromSequence OneHot Optional OptionalGetElement", Trait.MOVES_VALUES | _FREE),
    ("SequenceAt SequenceConstruct SequenceErase SequenceInsert SplitToSequence", Trait.MOVES_VALUES | _FREE),
    ("Pad Trilu", Trait.FILLS | _FREE),
    ("CenterCropPad", Trait.FILLS),
    ("Where", Trait.MOVES_VALUES | _SHAPES),
    # The output is exact, but the values decide.
    ("Abs Ceil Floor Max Min Neg ReduceMax ReduceMin Round", Trait.VALUE_PRESERVING | _SHAPES),
    ("Sign", Trait.VALUE_PRESERVING | Trait.BOUNDED | _SHAPES),
    ("Hardmax", Trait.VALUE_PRESERVING | Trait.BOUNDED),
    ("Clip GlobalMaxPool MaxPool Relu ThresholdedRelu TopK", Trait.VALUE_PRESERVING),
    # The output is small, or as large as the terms that it is made of.
    ("Atan Cos Erf HardSigmoid Sigmoid Sin Softsign Tanh", Trait.BOUNDED),
    ("Softmax", Trait.BOUNDED | Trait.SOFTMAX),
    ("LogSoftmax", Trait.SOFTMAX),
    ("Conv ConvTranspose Gemm MatMul", Trait.WELL_CONDITIONED | Trait.CUBE),
    ("AveragePool DynamicQuantizeLinear GlobalAveragePool HardSwish LeakyRelu Mean PRelu Sum", Trait.WELL_CONDITIONED),
    ("Add Mul ReduceMean ReduceSum Sub", Trait.WELL_CONDITIONED | _SHAPES),
    ("Cast ScatterElements ScatterND", Trait.WELL_CONDITIONED | _FREE | _SHAPES),
    ("BatchNormalization GroupNormalization InstanceNormalization LayerNormalization", Trait.NORMALIZES),
    ("RMSNormalization", Trait.NORMALIZES),
    # The output depends on shapes, on chance, or on nothing.
    ("Shape Size", Trait.YIELDS_SHAPE | _FREE | _SHAPES),
    ("EyeLike", Trait.READS_ONLY_SHAPE | _FREE),
    ("RandomNormalLike RandomUniformLike", Trait.RANDOM | Trait.READS_ONLY_SHAPE),
    ("Bernoulli Dropout Multinomial RandomNormal RandomUniform", Trait.RANDOM),
    ("BiasDropout BitmaskBiasDropout BitmaskDropout", Trait.RANDOM),  # of com.microsoft
    ("ConstantOfShape NonZero Range", _FREE | _SHAPES),
    ("BitCast CastLike Constant OptionalHasElement SequenceEmpty SequenceLength", _FREE),
    ("If Loop Scan SequenceMap", Trait.CONTROL_FLOW | _FREE),
    # Other arithmetic on shapes.
    ("And ArgMax ArgMin CumSum Div Equal Greater GreaterOrEqual Less LessOrEqual", _SHAPES),
    ("Mod Not Or Pow ReduceProd Sqrt Xor", _SHAPES),
)
TRAITS = {op_type: traits for op_types, traits in _ROWS for op_type in op_types.split()}


def operators(trait: Trait) -> frozenset[str]:
    """Return the op types that have a trait."""
    return frozenset(op_type for op_type, traits in TRAITS.items() if trait in traits)
