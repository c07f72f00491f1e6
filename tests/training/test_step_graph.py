"""What a step graph must hold, and data that does not fit it."""

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
from mixlist.training.step_graph import read_step
from tests.support.training_network import classifier, clusters, mixed, noisy, squares


def test_what_a_step_graph_holds() -> None:
    graph = read_step(classifier())
    assert {p.name: p.shape for p in graph.parameters} == {"w1": (4, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}
    assert [each.name for each in graph.batch_inputs] == ["x", "y"]
    assert graph.metrics == ("logits",)
    assert graph.fixed_batch_size is None
    other = read_step(noisy())
    assert [b.name for b in other.buffers] == ["seen"]
    assert [each.name for each, _ in other.random_inputs] == ["keep"]
    assert [each.name for each in other.batch_inputs] == ["x", "t"]


def drop_outputs(model: Any, prefix: str) -> None:
    kept = [o for o in model.graph.output if not o.name.startswith(prefix)]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def rename_input(model: Any, old: str, new: str) -> None:
    next(i for i in model.graph.input if i.name == old).name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def set_shape(value: Any, *sizes: int) -> None:
    value.type.tensor_type.shape.ClearField("dim")
    for size in sizes:
        value.type.tensor_type.shape.dim.add().dim_value = size


def output(model: Any, name: str) -> Any:
    return next(o for o in model.graph.output if o.name == name)


def random_node(model: Any) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("RandomNormal", [], ["r"], name="draw", shape=[2]))


def dropout(model: Any) -> None:
    model.graph.initializer.append(onnx.helper.make_tensor("yes", 9, [], [1]))
    model.graph.node.append(onnx.helper.make_node("Dropout", ["logits", "", "yes"], ["q"], name="draw"))


def bad_metadata(model: Any) -> None:
    model.metadata_props.add(key="pkg.mixlist.init.w1", value="[1]")


def double_scale(model: Any) -> None:
    next(i for i in model.graph.input if i.name == "loss_scale").type.tensor_type.elem_type = 11


def half_parameter(model: Any) -> None:
    next(i for i in model.graph.input if i.name == "w1").type.tensor_type.elem_type = 10


WRONG: list[tuple[Callable[[Any], None], str]] = [
    (lambda m: drop_outputs(m, "grad."), "no output grad.<parameter>"),
    (lambda m: drop_outputs(m, "loss"), "no output 'loss'"),
    (lambda m: rename_input(m, "loss_scale", "factor"), "no input 'loss_scale'"),
    (lambda m: rename_input(m, "w1", "weights"), "'grad.w1' and no input 'w1'"),
    (lambda m: set_shape(output(m, "grad.w1"), 16, 4), r"float32\[16, 4\], its parameter float32\[4, 16\]"),
    (lambda m: set_shape(output(m, "loss"), 7), "not a scalar"),
    (double_scale, "must be a float32 scalar, not float64"),
    (half_parameter, "'w1' is float16"),
    (random_node, r"'draw' \(RandomNormal\) draws random numbers"),
    (dropout, r"'draw' \(Dropout\) draws random numbers"),
    (bad_metadata, "must be a JSON object"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_models_that_are_no_step_graphs(change: Callable[[Any], None], message: str) -> None:
    model = classifier()
    change(model)
    with pytest.raises(ModelError, match=message) as told:
        read_step(model)
    assert told.value.hint or "JSON" in message


def test_a_gradient_of_another_shape_that_only_shows_when_it_runs() -> None:
    model = classifier()
    next(node for node in model.graph.node if node.name == "of_b1").attribute[0].i = 1
    output(model, "grad.b1").type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"gradient of 'b1' is \[1, 16\], the parameter \[16\]"):
        run(model)


def run(model: Any = None, data: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 16, "epochs": 2, "optimizer": Settings(lr=0.01), **options}
    return train(model or classifier(), mixed(), clusters() if data is None else data, **given)


def changed(**arrays: Any) -> dict[str, Any]:
    return {**clusters(), **arrays}


def with_nan() -> Any:
    x = clusters()["x"]
    x[7, 2] = np.nan
    return x


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": changed(x=np.zeros((240, 5), np.float32))}, "wants 4 along axis 1"),
    ({"data": changed(x=np.zeros((239, 4), np.float32))}, "differ in length: x 239, y 240"),
    ({"data": changed(x=with_nan())}, "x holds a value that is not finite, first in row 7"),
    ({"data": {"x": clusters()["x"]}}, "no data for input 'y'"),
    ({"data": changed(z=np.zeros(240))}, "no input 'z'"),
    ({"data": changed(y=np.float32(3))}, "'y'"),
    ({"data": changed(y=np.full(240, 0.5))}, "0.5 is no int64"),
    (
        {"eval_data": {"x": np.zeros((0, 4), np.float32), "y": np.zeros(0, np.int64)}},
        "evaluation data holds no samples",
    ),
    ({"batch_size": 241}, "a batch of 241 needs as many samples, and the training data has 240"),
    ({"init": {"w3": np.zeros(3)}}, "'w3' is not a parameter"),
    ({"init": {"w1": np.zeros((16, 4))}}, r"'w1' is \[16, 4\], and the parameter is \[4, 16\]"),
    ({"init": {"b2": np.array([1, np.inf, 0])}}, "not finite numbers"),
    ({"init": {"b2": np.array(["a", "b", "c"])}}, "not finite numbers"),
    ({"metric": "f1"}, "no output 'f1'"),
    ({"scaler": "npu"}, "needs init_loss_scale"),
    ({"scaler": "cosine"}, "no loss scaler 'cosine'"),
    ({"steps": 3}, "both give the length"),
    ({"runs": 0}, "at least 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_what_does_not_fit_is_told_before_any_training(options: dict[str, Any], message: str) -> None:
    def never(_: object) -> None:
        raise AssertionError("a step was made")

    with pytest.raises(MixlistError, match=message) as told:
        run(progress=never, **options)
    assert told.value.exit_status == 2


def test_labels_that_are_none() -> None:
    """A label outside the classes is a wrong answer, and padding below 0 counts for nothing: accuracy needs no more."""
    data = changed(y=clusters()["y"].reshape(-1, 1))
    with pytest.raises(UsageError, match="wants 1 axes"):
        run(data=data)


def fixed(size: int) -> Any:
    model = classifier()
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            dims[0].dim_value = size
    return model


def test_a_graph_for_one_batch_size() -> None:
    assert read_step(fixed(16)).fixed_batch_size == 16
    with pytest.raises(UsageError, match="batches of 16 samples, not of 8"):
        run(fixed(16), batch_size=8)
    with pytest.raises(UsageError, match="has 10"):
        run(fixed(16), eval_data=clusters(10))
    found = run(fixed(16), eval_data=clusters(50, seed=1), epochs=4)
    assert any("2 samples are left out" in warning.message for warning in found.warnings)
    free = run(eval_data=clusters(48, seed=1), epochs=4)
    whole = {name: value[:48] for name, value in clusters(50, seed=1).items()}
    same = run(fixed(16), eval_data=whole, epochs=4)
    assert [r.float32.loss for r in found.runs] == [r.float32.loss for r in free.runs]
    assert [r.mixed.metric for r in found.runs] == [r.mixed.metric for r in same.runs]


def test_the_public_names() -> None:
    from mixlist import training

    assert set(training.__all__) == {"Settings", "export_step", "make_scaler", "train"}
    assert training.make_scaler("torch", init_scale=4.0).update(False) == "skip"
    assert mixlist.load_policy is not None


def test_data_of_other_types_is_cast() -> None:
    data = Dataset(read_step(squares()), {"x": np.ones((4, 2)), "t": np.ones((4, 2), np.int8)}, "data")
    assert {value.dtype.name for value in data.arrays.values()} == {"float32"}
