"""Tests of the checks of step graphs, and of the data and options that must fit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.errors import MixlistError, ModelError, UsageError
from mixlist.training import Settings, train
from mixlist.training.dataset import Dataset
from mixlist.training.step_graph import load_step_graph
from tests.support.training_network import classifier, clusters, mixed, noisy, squares


def test_the_inputs_of_a_step_graph_by_kind() -> None:
    graph = load_step_graph(classifier())
    assert {parameter.name: parameter.shape for parameter in graph.parameters} == {
        "w1": (4, 16),
        "b1": (16,),
        "w2": (16, 3),
        "b2": (3,),
    }
    assert [value.name for value in graph.batch_inputs] == ["x", "y"]
    assert graph.metrics == ("logits",)
    assert graph.fixed_batch_size is None
    noisy_graph = load_step_graph(noisy())
    assert [buffer.name for buffer in noisy_graph.buffers] == ["seen"]
    assert [value.name for value, _ in noisy_graph.random_inputs] == ["keep"]
    assert [value.name for value in noisy_graph.batch_inputs] == ["x", "t"]


def drop_outputs(model: Any, prefix: str) -> None:
    remaining = [output for output in model.graph.output if not output.name.startswith(prefix)]
    del model.graph.output[:]
    model.graph.output.extend(remaining)


def rename_input(model: Any, old: str, new: str) -> None:
    next(value for value in model.graph.input if value.name == old).name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def set_shape(value: Any, *sizes: int) -> None:
    value.type.tensor_type.shape.ClearField("dim")
    for size in sizes:
        value.type.tensor_type.shape.dim.add().dim_value = size


def find_output(model: Any, name: str) -> Any:
    return next(output for output in model.graph.output if output.name == name)


def add_random_node(model: Any) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("RandomNormal", [], ["r"], name="draw", shape=[2]))


def add_dropout(model: Any) -> None:
    model.graph.initializer.append(onnx.helper.make_tensor("yes", 9, [], [1]))
    model.graph.node.append(onnx.helper.make_node("Dropout", ["logits", "", "yes"], ["q"], name="draw"))


def add_invalid_metadata(model: Any) -> None:
    model.metadata_props.add(key="pkg.mixlist.init.w1", value="[1]")


def make_scale_float64(model: Any) -> None:
    next(value for value in model.graph.input if value.name == "loss_scale").type.tensor_type.elem_type = 11


def make_parameter_float16(model: Any) -> None:
    next(value for value in model.graph.input if value.name == "w1").type.tensor_type.elem_type = 10


INVALID_MODELS: list[tuple[Callable[[Any], None], str]] = [
    (lambda m: drop_outputs(m, "grad."), "no output grad.<parameter>"),
    (lambda m: drop_outputs(m, "loss"), "no output 'loss'"),
    (lambda m: rename_input(m, "loss_scale", "factor"), "no input 'loss_scale'"),
    (lambda m: rename_input(m, "w1", "weights"), "'grad.w1' and no input 'w1'"),
    (lambda m: set_shape(find_output(m, "grad.w1"), 16, 4), r"float32\[16, 4\], and its parameter is float32\[4, 16\]"),
    (lambda m: set_shape(find_output(m, "loss"), 7), "not a scalar"),
    (make_scale_float64, "must be a float32 scalar, not float64"),
    (make_parameter_float16, "'w1' is float16"),
    (add_random_node, r"'draw' \(RandomNormal\) draws random numbers"),
    (add_dropout, r"'draw' \(Dropout\) draws random numbers"),
    (add_invalid_metadata, "must be a JSON object"),
]


@pytest.mark.parametrize(("change", "message"), INVALID_MODELS, ids=[message for _, message in INVALID_MODELS])
def test_a_model_that_is_not_a_step_graph_is_refused(change: Callable[[Any], None], message: str) -> None:
    model = classifier()
    change(model)
    with pytest.raises(ModelError, match=message) as caught:
        load_step_graph(model)
    assert caught.value.hint or "JSON" in message


def test_a_gradient_shape_that_is_not_declared_is_checked_when_the_step_runs() -> None:
    model = classifier()
    next(node for node in model.graph.node if node.name == "of_b1").attribute[0].i = 1
    find_output(model, "grad.b1").type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"gradient of 'b1' is \[1, 16\], the parameter \[16\]"):
        run(model)


def run(model: Any = None, data: Any = None, **changes: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 16, "epochs": 2, "optimizer": Settings(lr=0.01), **changes}
    return train(model or classifier(), mixed(), clusters() if data is None else data, **options)


def changed_data(**arrays: Any) -> dict[str, Any]:
    return {**clusters(), **arrays}


def x_with_nan() -> Any:
    x = clusters()["x"]
    x[7, 2] = np.nan
    return x


INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"data": changed_data(x=np.zeros((240, 5), np.float32))}, "expects 4 along axis 1"),
    ({"data": changed_data(x=np.zeros((239, 4), np.float32))}, "differ in length: x 239, y 240"),
    ({"data": changed_data(x=x_with_nan())}, "x holds a value that is not finite, first in row 7"),
    ({"data": {"x": clusters()["x"]}}, "no data for input 'y'"),
    ({"data": changed_data(z=np.zeros(240))}, "no input 'z'"),
    ({"data": changed_data(y=np.float32(3))}, "'y'"),
    ({"data": changed_data(y=np.full(240, 0.5))}, "0.5 cannot be represented as int64"),
    (
        {"eval_data": {"x": np.zeros((0, 4), np.float32), "y": np.zeros(0, np.int64)}},
        "evaluation data holds no samples",
    ),
    ({"batch_size": 241}, "a batch has 241 samples, and the training data has 240 in all"),
    ({"init": {"w3": np.zeros(3)}}, "'w3' is not a parameter"),
    ({"init": {"w1": np.zeros((16, 4))}}, r"'w1' has the shape \[16, 4\], and the parameter has the shape \[4, 16\]"),
    ({"init": {"b2": np.array([1, np.inf, 0])}}, "not finite numbers"),
    ({"init": {"b2": np.array(["a", "b", "c"])}}, "not finite numbers"),
    ({"metric": "f1"}, "no output 'f1'"),
    ({"scaler": "npu"}, "needs init_loss_scale"),
    ({"scaler": "cosine"}, "no loss scaler 'cosine'"),
    ({"steps": 3}, "both give the length"),
    ({"runs": 0}, "at least 1"),
]


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS, ids=[message for _, message in INVALID_OPTIONS])
def test_data_and_options_that_do_not_fit_are_refused_before_the_training(
    options: dict[str, Any], message: str
) -> None:
    def fail_at_first_step(_: object) -> None:
        raise AssertionError("the training has made a step")

    with pytest.raises(MixlistError, match=message) as caught:
        run(progress=fail_at_first_step, **options)
    assert caught.value.exit_status == 2


def test_labels_of_another_rank_are_refused() -> None:
    data = changed_data(y=clusters()["y"].reshape(-1, 1))
    with pytest.raises(UsageError, match="expects 1 axes"):
        run(data=data)


def with_batch_size(size: int) -> Any:
    """Return the classifier with a fixed batch size."""
    model = classifier()
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            dims[0].dim_value = size
    return model


def test_a_graph_for_one_batch_size() -> None:
    assert load_step_graph(with_batch_size(16)).fixed_batch_size == 16
    with pytest.raises(UsageError, match="batches of 16 samples, not of 8"):
        run(with_batch_size(16), batch_size=8)
    with pytest.raises(UsageError, match="has 10"):
        run(with_batch_size(16), eval_data=clusters(10))
    report = run(with_batch_size(16), eval_data=clusters(50, seed=1), epochs=4)
    assert any("2 samples are left out" in warning.message for warning in report.warnings)
    dynamic = run(eval_data=clusters(48, seed=1), epochs=4)
    whole_batches = {name: value[:48] for name, value in clusters(50, seed=1).items()}
    expected = run(with_batch_size(16), eval_data=whole_batches, epochs=4)
    assert [seed_run.float32.loss for seed_run in report.runs] == [seed_run.float32.loss for seed_run in dynamic.runs]
    assert [seed_run.mixed.metric for seed_run in report.runs] == [seed_run.mixed.metric for seed_run in expected.runs]


def test_the_public_names() -> None:
    from mixlist import training

    assert set(training.__all__) == {"ParameterGroup", "Settings", "export_step", "make_scaler", "train"}
    assert training.make_scaler("torch", init_scale=4.0).update(False) == "skip"
    assert mixlist.load_policy is not None


def test_data_is_cast_to_the_declared_types() -> None:
    data = Dataset(load_step_graph(squares()), {"x": np.ones((4, 2)), "t": np.ones((4, 2), np.int8)}, "data")
    assert {value.dtype.name for value in data.arrays.values()} == {"float32"}
