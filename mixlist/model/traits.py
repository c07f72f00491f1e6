"""The one table of operator traits: facts about the values that an operator makes, in every model.

The names are those of the standard domain, and three of ``com.microsoft`` that the standard domain does not use. A
trait holds for all attributes of an operator, with one exception: before opset 11, Clip and Pad take their numbers from
attributes, and these numbers count as inputs. A fact that only one rule or formula needs is not a trait and stays in
the file of that rule.

To give an operator a trait, change its row. tests/model/test_traits.py then runs the operator and checks the definition
of the trait. If the operator needs special inputs, add them to the table ``CASES`` of that file.

To add a trait, give it the next bit and a definition below, add it to the rows of its operators, and write one test of
the definition in tests/model/test_traits.py, which runs for each operator that has the trait.
"""

from __future__ import annotations

from enum import Flag


class Trait(Flag):
    """One fact about an operator.

    A trait that contains another one implies it: an operator with MOVES_VALUES also has VALUE_PRESERVING.
    """

    VALUE_PRESERVING = 1 << 0
    """If a low type holds all inputs exactly, it holds all outputs exactly. Each output element is an input element, a
    negated one, one rounded to a whole number, or -1, 0 or 1. Rounding the output again therefore changes nothing."""

    MOVES_VALUES = 1 << 1 | VALUE_PRESERVING
    """Each output element is an element of an input of the output's type, or a zero that fills a gap. Only shapes,
    indices and conditions decide which element goes where. Max and TopK do not qualify: there the values decide."""

    SAME_VALUES = 1 << 2 | MOVES_VALUES
    """The output has each element of the first input exactly once and no other element. So it has the same range."""

    VIEWS = 1 << 3 | SAME_VALUES
    """The output has the elements of the first input in the same order: a runtime needs no copy."""

    PICKS = 1 << 4 | MOVES_VALUES
    """Indices or bounds pick elements of the first input; the operator reads no other element of this input."""

    FILLS = 1 << 5 | MOVES_VALUES
    """The operator moves values, and may put zeros between or around them."""

    BOUNDED = 1 << 6
    """No output has a magnitude above 2, however large the finite inputs are."""

    WELL_CONDITIONED = 1 << 7
    """A sum, product or mean, or a piecewise linear function. If no terms cancel, a relative change of the inputs by at
    most e changes each output by at most 8 e times the largest output."""

    NORMALIZES = 1 << 8
    """The operator divides by the square root of a variance, or mean of squares, to which it adds ``epsilon``."""

    SOFTMAX = 1 << 9
    """The operator normalizes exponentials along an axis. An element far below the largest one has no effect."""

    RANDOM = 1 << 10
    """Two runs may give different numbers. Dropout is random in training mode only."""

    READS_ONLY_SHAPE = 1 << 11
    """The output depends on the shape of the first input and not on its elements."""

    YIELDS_SHAPE = 1 << 12 | READS_ONLY_SHAPE
    """The output is dimensions of the first input, or their product."""

    CONTROL_FLOW = 1 << 13
    """The operator runs graphs that are its attributes, and has no precision itself (Rule S4.25)."""

    CUBE = 1 << 14
    """The matrix unit ("cube") of an accelerator computes the operator (Rule S3.7): it is linear in each of its first
    two inputs."""

    NO_ARITHMETIC = 1 << 15
    """The operator moves, converts or makes numbers without an operation on floats. An output element is an element of
    an input, an attribute, or a whole number."""

    COMPUTES_SHAPES = 1 << 16
    """Models compute shapes with the operator. It is deterministic, has no graphs, and is cheap on tensors of a few
    thousand elements."""


# Short forms, because most rows have them.
_NO_ARITHMETIC, _SHAPES = Trait.NO_ARITHMETIC, Trait.COMPUTES_SHAPES
_ROWS: tuple[tuple[str, Trait], ...] = (
    # Every output element is an input element, and its place does not depend on values.
    ("Flatten Identity Reshape Squeeze Unsqueeze", Trait.VIEWS | _NO_ARITHMETIC | _SHAPES),
    ("Transpose", Trait.SAME_VALUES | _NO_ARITHMETIC | _SHAPES),
    ("DepthToSpace ReverseSequence SpaceToDepth", Trait.SAME_VALUES | _NO_ARITHMETIC),
    ("Gather GatherElements GatherND Slice", Trait.PICKS | _NO_ARITHMETIC | _SHAPES),
    ("Compress Concat Expand Split Tile", Trait.MOVES_VALUES | _NO_ARITHMETIC | _SHAPES),
    ("ConcatFromSequence OneHot Optional OptionalGetElement", Trait.MOVES_VALUES | _NO_ARITHMETIC),
    ("SequenceAt SequenceConstruct SequenceErase SequenceInsert SplitToSequence", Trait.MOVES_VALUES | _NO_ARITHMETIC),
    ("Pad Trilu", Trait.FILLS | _NO_ARITHMETIC),
    ("CenterCropPad", Trait.FILLS),
    ("Where", Trait.MOVES_VALUES | _SHAPES),
    # Every output element preserves a value, but the values decide which one.
    ("Abs Ceil Floor Max Min Neg ReduceMax ReduceMin Round", Trait.VALUE_PRESERVING | _SHAPES),
    ("Sign", Trait.VALUE_PRESERVING | Trait.BOUNDED | _SHAPES),
    ("Hardmax", Trait.VALUE_PRESERVING | Trait.BOUNDED),
    ("Clip GlobalMaxPool MaxPool Relu ThresholdedRelu TopK", Trait.VALUE_PRESERVING),
    # The output is small, or about as large as the terms from which it is computed.
    ("Atan Cos Erf HardSigmoid Sigmoid Sin Softsign Tanh", Trait.BOUNDED),
    ("Softmax", Trait.BOUNDED | Trait.SOFTMAX),
    ("LogSoftmax", Trait.SOFTMAX),
    ("Conv ConvTranspose Gemm MatMul", Trait.WELL_CONDITIONED | Trait.CUBE),
    ("AveragePool DynamicQuantizeLinear GlobalAveragePool HardSwish LeakyRelu Mean PRelu Sum", Trait.WELL_CONDITIONED),
    ("Add Mul ReduceMean ReduceSum Sub", Trait.WELL_CONDITIONED | _SHAPES),
    ("Cast ScatterElements ScatterND", Trait.WELL_CONDITIONED | _NO_ARITHMETIC | _SHAPES),
    ("BatchNormalization GroupNormalization InstanceNormalization LayerNormalization", Trait.NORMALIZES),
    ("RMSNormalization", Trait.NORMALIZES),
    # Shapes, random numbers, conversions, containers and control flow.
    ("Shape Size", Trait.YIELDS_SHAPE | _NO_ARITHMETIC | _SHAPES),
    ("EyeLike", Trait.READS_ONLY_SHAPE | _NO_ARITHMETIC),
    ("RandomNormalLike RandomUniformLike", Trait.RANDOM | Trait.READS_ONLY_SHAPE),
    ("Bernoulli Dropout Multinomial RandomNormal RandomUniform", Trait.RANDOM),
    ("BiasDropout BitmaskBiasDropout BitmaskDropout", Trait.RANDOM),  # of com.microsoft
    ("ConstantOfShape NonZero Range", _NO_ARITHMETIC | _SHAPES),
    ("BitCast CastLike Constant OptionalHasElement SequenceEmpty SequenceLength", _NO_ARITHMETIC),
    ("If Loop Scan SequenceMap", Trait.CONTROL_FLOW | _NO_ARITHMETIC),
    # Other operators that models compute shapes with.
    ("And ArgMax ArgMin CumSum Div Equal Greater GreaterOrEqual Less LessOrEqual", _SHAPES),
    ("Mod Not Or Pow ReduceProd Sqrt Xor", _SHAPES),
)
TRAITS = {op_type: traits for op_types, traits in _ROWS for op_type in op_types.split()}


def operators(trait: Trait) -> frozenset[str]:
    """Return the op types that have a trait."""
    return frozenset(op_type for op_type, traits in TRAITS.items() if trait in traits)
