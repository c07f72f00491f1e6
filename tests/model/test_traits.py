"""Run every operator of the trait table, and compare its outputs with the definitions of its traits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from mixlist.model.schema import find_schema
from mixlist.model.traits import TRAITS, Trait, operators
from tests.support.versions import release

Array = NDArray[Any]
ONNX_RUNTIME = {"GroupNormalization", "Multinomial"}  # onnx.reference does not compute them
OPSETS = {"BitCast": 26, **dict.fromkeys(ONNX_RUNTIME, 21)}
CONTRIB = {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout"}  # ONNX Runtime has kernels for CUDA alone
FLOATS = {"float16", "float32", "bfloat16"}


def distinct_numbers(*shape: int) -> Array:
    """Return distinct numbers, positive and negative; none of them is whole or can be held by float16."""
    values = np.random.default_rng(int(np.prod(shape))).permutation(int(np.prod(shape))) * 1.37 - 7.31
    return values.astype(np.float32).reshape(shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X, Y = distinct_numbers(2, 3), distinct_numbers(3, 2) + np.float32(0.123)
IMAGE = distinct_numbers(1, 4, 4, 4)
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
    "Conv": ([IMAGE, distinct_numbers(2, 4, 3, 3)], {}),
    "ConvTranspose": ([IMAGE, distinct_numbers(4, 2, 3, 3)], {}),
    "CumSum": ([ints(3, 4, 5), np.array(0, np.int64)], {}),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}),
    "Dropout": ([IMAGE, np.float32(0.5), np.array(True)], {}),
    "EyeLike": ([distinct_numbers(3, 3)], {}),
    "Expand": ([distinct_numbers(3, 1), ints(2, 3, 4)], {}),
    "Gather": ([X, ints(2, 0)], {"axis": 1}),
    "GatherElements": ([X, np.array([[1, 0, 0]], np.int64)], {"axis": 0}),
    "GatherND": ([X, np.array([[1, 2], [0, 0]], np.int64)], {}),
    "Gemm": ([X, Y], {}),
    "GlobalAveragePool": ([IMAGE], {}),
    "GlobalMaxPool": ([IMAGE], {}),
    "GroupNormalization": ([IMAGE, *PARAMETERS], {"num_groups": 2}),
    "InstanceNormalization": ([IMAGE, *PARAMETERS], {}),
    "LayerNormalization": ([distinct_numbers(2, 4), *PARAMETERS], {}),
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
    "RMSNormalization": ([distinct_numbers(2, 4), PARAMETERS[0]], {}),
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
    "ScatterElements": ([X, np.array([[1, 0, 0]], np.int64), distinct_numbers(1, 3) + np.float32(0.5)], {"axis": 0}),
    "ScatterND": ([X, np.array([[1]], np.int64), distinct_numbers(1, 3) + np.float32(0.5)], {}),
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
    "Squeeze": ([distinct_numbers(1, 3, 1), ints(0)], {}),
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
    """Return the outputs of one node; a sequence is a list of its tensors."""
    with np.errstate(all="ignore"):
        return list(prepare(op_type, inputs, **attributes)())


def prepare(op_type: str, inputs: Sequence[Any], **attributes: Any) -> Callable[[], Sequence[Any]]:
    """Return a function that runs the node each time that it is called."""
    all_attributes = CASES.get(op_type, ([X], {}))[1] | attributes
    names = [f"i{slot}" for slot in range(len(inputs))]
    outputs = [f"o{slot}" for slot in range(OUTPUTS.get(op_type, 1))]
    node = helper.make_node(op_type, names, outputs, **all_attributes)
    arguments = dict(zip(names, inputs, strict=True))
    graph = helper.make_graph(
        [node], "g", [make_value_info(*i) for i in arguments.items()], list(map(make_value_info, outputs))
    )
    opset = helper.make_opsetid("", OPSETS.get(op_type, 23))
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    if op_type in ONNX_RUNTIME:
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return lambda: session.run(None, arguments)
    evaluator = ReferenceEvaluator(model)
    return lambda: evaluator.run(None, arguments)


def make_value_info(name: str, value: Any = None) -> ValueInfoProto:
    if value is None or isinstance(value, list):
        return ValueInfoProto(name=name)
    array = np.asarray(value)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def inputs_of(op_type: str) -> list[Any]:
    return list(CASES.get(op_type, ([X], {}))[0])


def change_floats(change: Callable[[Array], Array], values: Sequence[Any]) -> list[Any]:
    """Return the values with the float tensors changed, also those in sequences."""
    return [
        change_floats(change, value) if isinstance(value, list) else change(value) if is_float(value) else value
        for value in values
    ]


def is_float(value: Any) -> bool:
    return str(np.asarray(value).dtype) in FLOATS


def float_elements(values: Sequence[Any]) -> Array:
    """Return the elements of all float tensors, in order."""
    tensors = [t for value in values for t in (value if isinstance(value, list) else [value]) if is_float(t)]
    return np.concatenate([np.asarray(t, np.float32).reshape(-1) for t in tensors] or [np.zeros(0, np.float32)])


# The operators of the table that an installed onnx older than the table lacks.
MISSING = {
    op_type
    for op_type in TRAITS
    if not find_schema("com.microsoft" if op_type in CONTRIB else "", op_type, defs.onnx_opset_version())
}


def for_each_operator_with(trait: Trait, *but: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op_type", sorted(operators(trait) - MISSING - set(but)))


def test_each_operator_has_one_row() -> None:
    from mixlist.model.traits import _ROWS

    named = [op_type for op_types, _ in _ROWS for op_type in op_types.split()]
    assert sorted(named) == sorted(TRAITS) and len(named) == len(set(named))
    assert ({"BitCast"} if release(onnx.__version__) < (1, 21) else set()) == MISSING


@for_each_operator_with(Trait.VALUE_PRESERVING)
@pytest.mark.parametrize("low", [np.float16, ml_dtypes.bfloat16])
def test_value_preserving_operators_make_rounded_outputs_of_rounded_inputs(op_type: str, low: Any) -> None:
    rounded = change_floats(lambda x: np.asarray(x).astype(low).astype(np.float32), inputs_of(op_type))
    outputs = float_elements(run(op_type, rounded))
    assert outputs.size and np.array_equal(outputs, outputs.astype(low).astype(np.float32))


@for_each_operator_with(Trait.MOVES_VALUES)
def test_value_movers_do_not_depend_on_the_values(op_type: str) -> None:
    """A one-to-one change of the inputs' elements that keeps zero must change the elements of the output likewise."""
    inputs = inputs_of(op_type)
    old = np.unique(float_elements(inputs))
    new = np.random.default_rng(1).permutation(np.arange(1, old.size + 1) * np.float32(0.9))

    def relabel(x: Array) -> Array:
        relabeled = np.where(np.asarray(x) == 0, 0, new[np.searchsorted(old, x).clip(0, old.size - 1)])
        return np.asarray(relabeled, np.float32)

    outputs = run(op_type, inputs)
    assert float_elements(outputs).size and set(float_elements(outputs)) <= {*old, 0}
    assert np.array_equal(
        float_elements(run(op_type, change_floats(relabel, inputs))), float_elements(change_floats(relabel, outputs))
    )


@for_each_operator_with(Trait.SAME_VALUES)
def test_same_values_has_each_element_once(op_type: str) -> None:
    inputs = inputs_of(op_type)
    assert sorted(float_elements(run(op_type, inputs))) == sorted(float_elements(inputs[:1]))


@for_each_operator_with(Trait.VIEWS)
def test_views_keep_the_order_of_elements(op_type: str) -> None:
    inputs = inputs_of(op_type)
    assert np.array_equal(float_elements(run(op_type, inputs)), float_elements(inputs[:1]))


@for_each_operator_with(Trait.PICKS)
def test_picks_reads_no_other_element(op_type: str) -> None:
    inputs = inputs_of(op_type)
    outputs = run(op_type, inputs)
    assert float_elements(outputs).size < inputs[0].size
    hidden = np.where(np.isin(inputs[0], outputs[0]), inputs[0], np.nan).astype(np.float32)
    assert np.array_equal(float_elements(run(op_type, [hidden, *inputs[1:]])), float_elements(outputs))


@for_each_operator_with(Trait.MOVES_VALUES)
def test_only_fillers_add_zeros(op_type: str) -> None:
    inputs = inputs_of(op_type)[: 2 if op_type == "Pad" else None]  # without the fill value of Pad
    added = 0 in float_elements(run(op_type, inputs)) and 0 not in float_elements(inputs)
    assert added == (Trait.FILLS in TRAITS[op_type])


@for_each_operator_with(Trait.BOUNDED)
def test_bounded_outputs_are_small(op_type: str) -> None:
    huge = np.float32([[3e38, -3e38, 1e30], [-65504, 1e9, 0], [3e38, 3e38, 3e38], [-3e38, -3e38, -3e38]])
    assert np.abs(float_elements(run(op_type, [huge]))).max() <= 2


@for_each_operator_with(Trait.WELL_CONDITIONED)
def test_well_conditioned_outputs_change_as_little_as_the_inputs(op_type: str) -> None:
    inputs = change_floats(lambda x: np.abs(x) + np.float32(0.5), inputs_of(op_type))
    outputs, share, draw = run(op_type, inputs), 2.0**-8, np.random.default_rng(2)
    largest = np.abs(np.concatenate([np.ravel(value) for value in outputs])).max()
    for _ in range(5):
        changed = change_floats(
            lambda x: (x * draw.choice([1 - share, 1, 1 + share], np.shape(x))).astype(np.float32), inputs
        )
        for before, after in zip(outputs, run(op_type, changed), strict=True):
            assert np.abs(after.astype(np.float64) - before).max() <= 8 * share * largest


@for_each_operator_with(Trait.NORMALIZES)
def test_normalizing_divides_by_the_root_of_variance_and_epsilon(op_type: str) -> None:
    """With a variance of 4, the output is the scaled input divided by the square root of 4 + epsilon."""
    row = np.float32([2, -2, 2, -2])  # mean 0, variance and mean square 4
    by_channel = op_type in ("BatchNormalization", "GroupNormalization", "InstanceNormalization")
    x = np.broadcast_to(row, (1, 4, 1, 4)).copy() if by_channel else row[None]
    count = 1 if op_type == "RMSNormalization" else 2
    parameters = [np.full(4, 1.5, np.float32), np.zeros(4, np.float32)][:count]
    moments = [np.zeros(4, np.float32), np.full(4, 4, np.float32)] if op_type == "BatchNormalization" else []
    for epsilon in (1e-5, 0.5, 12.0):
        (output,) = run(op_type, [x, *parameters, *moments], epsilon=epsilon)
        np.testing.assert_allclose(output, 1.5 * x / np.sqrt(4 + epsilon), rtol=1e-5)


@for_each_operator_with(Trait.SOFTMAX)
def test_a_softmax_ignores_elements_far_below_the_largest(op_type: str) -> None:
    *outputs, expected = [run(op_type, [np.float32([[1, 2, mask, 0.5]])])[0] for mask in (-1e4, -1e9, -np.inf)]
    for output in outputs:
        assert np.array_equal(np.delete(output, 2), np.delete(expected, 2))


@for_each_operator_with(Trait.RANDOM, *CONTRIB)
def test_random_numbers_differ_between_runs(op_type: str) -> None:
    run_again = prepare(op_type, inputs_of(op_type))
    runs = [np.ravel(run_again()[0]) for _ in range(8)]
    assert any(not np.array_equal(runs[0], later_run) for later_run in runs[1:])


def test_the_random_operators_of_the_contrib_domain_have_a_ratio() -> None:
    """They are dropouts. ONNX Runtime has no CPU kernels for them, so only their schema is checked."""
    for op_type in CONTRIB:
        schema = find_schema("com.microsoft", op_type, 1)
        assert schema is not None and len(schema.inputs) >= 3 and TRAITS[op_type] == Trait.RANDOM


@for_each_operator_with(Trait.READS_ONLY_SHAPE)
def test_only_the_shape_is_read(op_type: str) -> None:
    attributes = {"seed": 3.0} if op_type.startswith("Random") else {}
    (x,) = inputs_of(op_type)
    output, output_of_larger = (run(op_type, [values], **attributes)[0] for values in (x, x * np.float32(100)))
    assert np.array_equal(output, output_of_larger)
    if Trait.YIELDS_SHAPE in TRAITS[op_type]:
        assert output.dtype == np.int64 and np.prod(output) == x.size


def test_control_flow_is_every_operator_with_graphs() -> None:
    schemas = [schema for schema in defs.get_all_schemas() if schema.domain == ""]
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    with_graphs = {schema.name for schema in schemas if any(int(a.type) in kinds for a in schema.attributes.values())}
    assert operators(Trait.CONTROL_FLOW) == with_graphs


@for_each_operator_with(Trait.CUBE)
def test_cube_operators_are_linear_in_both_inputs(op_type: str) -> None:
    inputs = inputs_of(op_type)
    (output,) = run(op_type, inputs)
    for slot in (0, 1):
        scaled = [x * np.float32(4) if k == slot else x for k, x in enumerate(inputs)]
        rolled = [np.roll(x, 1) if k == slot else x for k, x in enumerate(inputs)]
        added = [x + y if k == slot else x for k, (x, y) in enumerate(zip(inputs, rolled, strict=True))]
        np.testing.assert_allclose(run(op_type, scaled)[0], 4 * output, rtol=1e-5)
        np.testing.assert_allclose(run(op_type, added)[0], output + run(op_type, rolled)[0], rtol=1e-3, atol=1e-3)


@for_each_operator_with(Trait.NO_ARITHMETIC, *operators(Trait.CONTROL_FLOW))
def test_without_arithmetic_no_new_fraction_appears(op_type: str) -> None:
    inputs, attributes = inputs_of(op_type), CASES.get(op_type, ([], {}))[1]
    old = {*float_elements(inputs), *(numpy_helper.to_array(attributes["value"]) if "value" in attributes else ())}
    assert all(number in old or float(number).is_integer() for number in float_elements(run(op_type, inputs)))


@for_each_operator_with(Trait.COMPUTES_SHAPES)
def test_shapes_are_computed_from_integers(op_type: str) -> None:
    def to_integers(x: Array) -> Array:
        return np.round(x).astype(np.float32 if op_type in ("Ceil", "Floor", "Sqrt") else np.int64)

    inputs = change_floats(to_integers, inputs_of(op_type))
    attributes = {"to": TensorProto.INT64} if op_type == "Cast" else {}
    first_run, second_run = run(op_type, inputs, **attributes), run(op_type, inputs, **attributes)
    assert first_run and all(np.asarray(x).size < 4096 for x in first_run)
    assert all(np.array_equal(x, y) for x, y in zip(first_run, second_run, strict=True))
