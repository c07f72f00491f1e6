"""Every operator of the trait table is run, and its outputs must be what the definitions of its traits say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from mixlist.ops.schema import find_schema
from mixlist.ops.traits import TRAITS, Trait, operators

Array = NDArray[Any]
ONNX_RUNTIME = {"GroupNormalization", "Multinomial"}  # onnx.reference does not compute them
OPSETS = {"BitCast": 26, **dict.fromkeys(ONNX_RUNTIME, 21)}
CONTRIB = {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout"}  # ONNX Runtime has kernels for CUDA alone
FLOATS = {"float16", "float32", "bfloat16"}


def numbers(*shape: int) -> Array:
    """Distinct numbers, positive and negative, none of them whole or in float16."""
    values = np.random.default_rng(int(np.prod(shape))).permutation(int(np.prod(shape))) * 1.37 - 7.31
    return values.astype(np.float32).reshape(shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X, Y = numbers(2, 3), numbers(3, 2) + np.float32(0.123)
IMAGE = numbers(1, 4, 4, 4)
PARAMETERS = [np.array([1.5, -2, 0.7, 3], np.float32), np.array([0.1, 0.2, 0.3, 0.4], np.float32)]
MOMENTS = [np.array([0.5, -1, 2, 0.3], np.float32), np.array([0.9, 0.01, 4, 1], np.float32)]

# The inputs and attributes that an operator runs with: (inputs, attributes). A list of arrays is a sequence.
CASES: dict[str, tuple[Sequence[Any], dict[str, Any]]] = {
    "AveragePool": ([IMAGE], {"kernel_shape": [2, 2]}),
    "BatchNormalization": ([IMAGE, *PARAMETERS, *MOMENTS], {}),
    "Bernoulli": ([np.full((4, 8), 0.5, np.float32)], {}),
    "BitCast": ([ints(3, 4)], {"to": TensorProto.INT64}),
    "Cast": ([X], {"to": TensorProto.FLOAT}),
    "CastLike": ([X, Y], {}),
    "CenterCropPad": ([X, ints(4, 2)], {}),
    "Clip": ([X, np.float32(-3.3), np.float32(2.2)], {}),
    "Compress": ([X, np.array([True, False, True])], {"axis": 1}),
    "Concat": ([X, X + np.float32(50)], {"axis": 0}),
    "ConcatFromSequence": ([[X, X + np.float32(50)]], {"axis": 1}),
    "Constant": ([], {"value": numpy_helper.from_array(np.float32([0.7, 3]))}),
    "ConstantOfShape": ([ints(2, 3)], {}),
    "Conv": ([IMAGE, numbers(2, 4, 3, 3)], {}),
    "ConvTranspose": ([IMAGE, numbers(4, 2, 3, 3)], {}),
    "CumSum": ([ints(3, 4, 5), np.array(0, np.int64)], {}),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}),
    "Dropout": ([IMAGE, np.float32(0.5), np.array(True)], {}),
    "EyeLike": ([numbers(3, 3)], {}),
    "Expand": ([numbers(3, 1), ints(2, 3, 4)], {}),
    "Gather": ([X, ints(2, 0)], {"axis": 1}),
    "GatherElements": ([X, np.array([[1, 0, 0]], np.int64)], {"axis": 0}),
    "GatherND": ([X, np.array([[1, 2], [0, 0]], np.int64)], {}),
    "Gemm": ([X, Y], {}),
    "GlobalAveragePool": ([IMAGE], {}),
    "GlobalMaxPool": ([IMAGE], {}),
    "GroupNormalization": ([IMAGE, *PARAMETERS], {"num_groups": 2}),
    "InstanceNormalization": ([IMAGE, *PARAMETERS], {}),
    "LayerNormalization": ([numbers(2, 4), *PARAMETERS], {}),
    "MatMul": ([X, Y], {}),
    "MaxPool": ([IMAGE], {"kernel_shape": [2, 2]}),
    "Multinomial": ([np.zeros((2, 9), np.float32)], {"sample_size": 20}),
    "NonZero": ([X], {}),
    "OneHot": ([ints(0, 2), np.array(3, np.int64), np.float32([0.3, 5.7])], {}),
    "Optional": ([X], {}),
    "OptionalGetElement": ([X], {}),
    "OptionalHasElement": ([X], {}),
    "PRelu": ([X, np.float32([[0.1, 0.2, 0.3]])], {}),
    "Pad": ([X, ints(1, 0, 0, 2), np.float32(9.9)], {}),
    "RMSNormalization": ([numbers(2, 4), PARAMETERS[0]], {}),
    "RandomNormal": ([], {"shape": [9]}),
    "RandomNormalLike": ([X], {}),
    "RandomUniform": ([], {"shape": [9]}),
    "RandomUniformLike": ([X], {}),
    "Range": ([np.array(2), np.array(9), np.array(3)], {}),
    "ReduceMax": ([X, ints(1)], {}),
    "ReduceMean": ([X, ints(1)], {}),
    "ReduceMin": ([X, ints(1)], {}),
    "ReduceProd": ([ints(3, 4, 5)], {}),
    "ReduceSum": ([X, ints(1)], {}),
    "Reshape": ([X, ints(3, 2)], {}),
    "ReverseSequence": ([X, ints(2, 1, 2)], {}),
    "ScatterElements": ([X, np.array([[1, 0, 0]], np.int64), numbers(1, 3) + np.float32(0.5)], {"axis": 0}),
    "ScatterND": ([X, np.array([[1]], np.int64), numbers(1, 3) + np.float32(0.5)], {}),
    "SequenceAt": ([[X, Y], np.array(1, np.int64)], {}),
    "SequenceConstruct": ([X, Y], {}),
    "SequenceEmpty": ([], {}),
    "SequenceErase": ([[X, Y], np.array(0, np.int64)], {}),
    "SequenceInsert": ([[X], Y], {}),
    "SequenceLength": ([[X, Y]], {}),
    "Slice": ([X, ints(1), ints(3), ints(1)], {}),
    "SpaceToDepth": ([IMAGE], {"blocksize": 2}),
    "Split": ([X], {"axis": 1, "num_outputs": 3}),
    "SplitToSequence": ([X], {"axis": 1}),
    "Squeeze": ([numbers(1, 3, 1), ints(0)], {}),
    "Tile": ([X, ints(2, 1)], {}),
    "TopK": ([X, ints(2)], {}),
    "Unsqueeze": ([X, ints(1)], {}),
    "Where": ([np.array([[True], [False]]), X, X + np.float32(50)], {}),
    **dict.fromkeys(["Add", "Max", "Mean", "Min", "Mul", "Sub", "Sum"], ([X, X.T.reshape(2, 3) + np.float32(0.5)], {})),
    **dict.fromkeys(["And", "Or", "Xor"], ([np.array([True, False]), np.array([True, True])], {})),
    **dict.fromkeys(["Div", "Mod", "Pow"], ([ints(7, 9), ints(2, 3)], {})),
    **dict.fromkeys(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"], ([ints(7, 9), ints(7, 3)], {})),
    "Not": ([np.array([True, False])], {}),
    "Sqrt": ([np.float32([4, 9])], {}),
}
OUTPUTS = {"Split": 3, "TopK": 2, "DynamicQuantizeLinear": 3}


def run(op_type: str, inputs: Sequence[Any], **attributes: Any) -> list[Any]:
    """Run one node; a sequence comes back as the list of its tensors."""
    with np.errstate(all="ignore"):
        return list(prepare(op_type, inputs, **attributes)())


def prepare(op_type: str, inputs: Sequence[Any], **attributes: Any) -> Callable[[], Sequence[Any]]:
    """Return a function that runs the node each time that it is called."""
    given = CASES.get(op_type, ([X], {}))[1] | attributes
    names = [f"i{slot}" for slot in range(len(inputs))]
    outputs = [f"o{slot}" for slot in range(OUTPUTS.get(op_type, 1))]
    node = helper.make_node(op_type, names, outputs, **given)
    arguments = dict(zip(names, inputs, strict=True))
    graph = helper.make_graph([node], "g", [declared(*i) for i in arguments.items()], list(map(declared, outputs)))
    opset = helper.make_opsetid("", OPSETS.get(op_type, 23))
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    if op_type in ONNX_RUNTIME:
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return lambda: session.run(None, arguments)
    evaluator = ReferenceEvaluator(model)
    return lambda: evaluator.run(None, arguments)


def declared(name: str, value: Any = None) -> ValueInfoProto:
    if value is None or isinstance(value, list):
        return ValueInfoProto(name=name)
    array = np.asarray(value)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def case(op_type: str) -> list[Any]:
    return list(CASES.get(op_type, ([X], {}))[0])


def each(change: Callable[[Array], Array], values: Sequence[Any]) -> list[Any]:
    """Change the float tensors, also those in sequences."""
    return [
        each(change, value) if isinstance(value, list) else change(value) if is_float(value) else value
        for value in values
    ]


def is_float(value: Any) -> bool:
    return str(np.asarray(value).dtype) in FLOATS


def flat(values: Sequence[Any]) -> Array:
    """The elements of all float tensors, in order."""
    tensors = [t for value in values for t in (value if isinstance(value, list) else [value]) if is_float(t)]
    return np.concatenate([np.asarray(t, np.float32).reshape(-1) for t in tensors] or [np.zeros(0, np.float32)])


def having(trait: Trait, *but: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op_type", sorted(operators(trait) - set(but)))


def test_each_operator_has_one_row() -> None:
    from mixlist.ops.traits import _ROWS

    named = [op_type for op_types, _ in _ROWS for op_type in op_types.split()]
    assert sorted(named) == sorted(TRAITS) and len(named) == len(set(named))
    for op_type in TRAITS:
        assert find_schema("com.microsoft" if op_type in CONTRIB else "", op_type, 26), op_type


@having(Trait.VALUE_PRESERVING)
@pytest.mark.parametrize("low", [np.float16, ml_dtypes.bfloat16])
def test_exact_outputs_of_rounded_inputs_are_rounded(op_type: str, low: Any) -> None:
    rounded = each(lambda x: np.asarray(x).astype(low).astype(np.float32), case(op_type))
    made = flat(run(op_type, rounded))
    assert made.size and np.array_equal(made, made.astype(low).astype(np.float32))


@having(Trait.MOVES_VALUES)
def test_moved_values_are_chosen_without_looking_at_them(op_type: str) -> None:
    """Any one-to-one change of the inputs' elements that keeps zero is the same change of the output's."""
    inputs = case(op_type)
    old = np.unique(flat(inputs))
    new = np.random.default_rng(1).permutation(np.arange(1, old.size + 1) * np.float32(0.9))

    def relabel(x: Array) -> Array:
        wanted = np.where(np.asarray(x) == 0, 0, new[np.searchsorted(old, x).clip(0, old.size - 1)])
        return np.asarray(wanted, np.float32)

    made = run(op_type, inputs)
    assert flat(made).size and set(flat(made)) <= {*old, 0}
    assert np.array_equal(flat(run(op_type, each(relabel, inputs))), flat(each(relabel, made)))


@having(Trait.SAME_VALUES)
def test_same_values_are_all_there_once(op_type: str) -> None:
    inputs = case(op_type)
    assert sorted(flat(run(op_type, inputs))) == sorted(flat(inputs[:1]))


@having(Trait.VIEWS)
def test_views_keep_the_order(op_type: str) -> None:
    inputs = case(op_type)
    assert np.array_equal(flat(run(op_type, inputs)), flat(inputs[:1]))


@having(Trait.PICKS)
def test_picks_read_nothing_else(op_type: str) -> None:
    inputs = case(op_type)
    made = run(op_type, inputs)
    assert flat(made).size < inputs[0].size
    hidden = np.where(np.isin(inputs[0], made[0]), inputs[0], np.nan).astype(np.float32)
    assert np.array_equal(flat(run(op_type, [hidden, *inputs[1:]])), flat(made))


@having(Trait.MOVES_VALUES)
def test_only_those_that_fill_add_zeros(op_type: str) -> None:
    inputs = case(op_type)[: 2 if op_type == "Pad" else None]  # without the number that it pads with
    added = 0 in flat(run(op_type, inputs)) and 0 not in flat(inputs)
    assert added == (Trait.FILLS in TRAITS[op_type])


@having(Trait.BOUNDED)
def test_bounded_outputs_are_small(op_type: str) -> None:
    huge = np.float32([[3e38, -3e38, 1e30], [-65504, 1e9, 0], [3e38, 3e38, 3e38], [-3e38, -3e38, -3e38]])
    assert np.abs(flat(run(op_type, [huge]))).max() <= 2


@having(Trait.WELL_CONDITIONED)
def test_steady_outputs_change_as_little_as_the_inputs(op_type: str) -> None:
    inputs = each(lambda x: np.abs(x) + np.float32(0.5), case(op_type))
    made, share, draw = run(op_type, inputs), 2.0**-8, np.random.default_rng(2)
    largest = np.abs(np.concatenate([np.ravel(value) for value in made])).max()
    for _ in range(5):
        changed = each(lambda x: (x * draw.choice([1 - share, 1, 1 + share], np.shape(x))).astype(np.float32), inputs)
        for before, after in zip(made, run(op_type, changed), strict=True):
            assert np.abs(after.astype(np.float64) - before).max() <= 8 * share * largest


@having(Trait.NORMALIZES)
def test_normalizing_divides_by_the_root_of_variance_and_epsilon(op_type: str) -> None:
    """A variance of v: epsilons a and b give outputs, less the bias, that differ by the root of (v + b) / (v + a)."""
    row = np.float32([2, -2, 2, -2])  # mean 0, variance and mean square 4
    by_channel = op_type in ("BatchNormalization", "GroupNormalization", "InstanceNormalization")
    x = np.broadcast_to(row, (1, 4, 1, 4)).copy() if by_channel else row[None]
    count = 1 if op_type == "RMSNormalization" else 2
    parameters = [np.full(4, 1.5, np.float32), np.zeros(4, np.float32)][:count]
    moments = [np.zeros(4, np.float32), np.full(4, 4, np.float32)] if op_type == "BatchNormalization" else []
    for epsilon in (1e-5, 0.5, 12.0):
        (made,) = run(op_type, [x, *parameters, *moments], epsilon=epsilon)
        np.testing.assert_allclose(made, 1.5 * x / np.sqrt(4 + epsilon), rtol=1e-5)


@having(Trait.SOFTMAX)
def test_a_softmax_ignores_what_is_far_below(op_type: str) -> None:
    masked = [run(op_type, [np.float32([[1, 2, low, 0.5]])])[0] for low in (-1e4, -1e9, -np.inf)]
    for made in masked[:2]:
        assert np.array_equal(np.delete(made, 2), np.delete(masked[2], 2))


@having(Trait.RANDOM, *CONTRIB)
def test_random_numbers_differ_between_runs(op_type: str) -> None:
    again = prepare(op_type, case(op_type))
    runs = [np.ravel(again()[0]) for _ in range(8)]
    assert any(not np.array_equal(runs[0], other) for other in runs[1:])


def test_the_random_operators_of_the_contrib_domain_have_a_ratio() -> None:
    """They are dropouts: no CPU runs them, so their schema has to do."""
    for op_type in CONTRIB:
        schema = find_schema("com.microsoft", op_type, 1)
        assert schema is not None and len(schema.inputs) >= 3 and TRAITS[op_type] == Trait.RANDOM


@having(Trait.READS_ONLY_SHAPE)
def test_only_the_shape_is_read(op_type: str) -> None:
    attributes = {"seed": 3.0} if op_type.startswith("Random") else {}
    (x,) = case(op_type)
    made, other = (run(op_type, [given], **attributes)[0] for given in (x, x * np.float32(100)))
    assert np.array_equal(made, other)
    if Trait.YIELDS_SHAPE in TRAITS[op_type]:
        assert made.dtype == np.int64 and np.prod(made) == x.size


def test_control_flow_is_all_that_has_graphs() -> None:
    schemas = [schema for schema in defs.get_all_schemas() if schema.domain == ""]
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    graphs = {s.name for s in schemas if any(int(a.type) in kinds for a in s.attributes.values())}
    assert operators(Trait.CONTROL_FLOW) == graphs


@having(Trait.CUBE)
def test_the_matrix_unit_computes_products(op_type: str) -> None:
    first, second = case(op_type)
    (made,) = run(op_type, [first, second])
    for slot in (0, 1):
        scaled = [x * np.float32(4) if at == slot else x for at, x in enumerate((first, second))]
        other = [np.roll(x, 1) if at == slot else x for at, x in enumerate((first, second))]
        both = [x + y if at == slot else x for at, (x, y) in enumerate(zip((first, second), other, strict=True))]
        np.testing.assert_allclose(run(op_type, scaled)[0], 4 * made, rtol=1e-5)
        np.testing.assert_allclose(run(op_type, both)[0], made + run(op_type, other)[0], rtol=1e-3, atol=1e-3)


@having(Trait.NO_ARITHMETIC, *operators(Trait.CONTROL_FLOW))
def test_without_arithmetic_no_new_fraction_comes_up(op_type: str) -> None:
    inputs, attributes = case(op_type), CASES.get(op_type, ([], {}))[1]
    old = {*flat(inputs), *(numpy_helper.to_array(attributes["value"]) if "value" in attributes else ())}
    assert all(number in old or float(number).is_integer() for number in flat(run(op_type, inputs)))


@having(Trait.COMPUTES_SHAPES)
def test_shapes_are_computed_from_integers(op_type: str) -> None:
    def whole(x: Array) -> Array:
        return np.round(x).astype(np.float32 if op_type == "Sqrt" else np.int64)

    inputs = each(whole, case(op_type))
    attributes = {"to": TensorProto.INT64} if op_type == "Cast" else {}
    made, again = run(op_type, inputs, **attributes), run(op_type, inputs, **attributes)
    assert made and all(np.asarray(x).size < 4096 and np.array_equal(x, y) for x, y in zip(made, again, strict=True))
