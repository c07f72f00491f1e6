"""Read a training-step graph: an ONNX model that computes a loss and its gradients.

Inputs of the graph:

- each parameter that is trained, float32;
- ``loss_scale``, a float32 scalar by which the loss is multiplied before the backward pass;
- the batch inputs;
- buffers, such as running statistics, if the network has them;
- random inputs, such as the draws of dropout, if the network has them.

Outputs of the graph:

- ``loss``, not scaled;
- ``grad.<parameter>`` for each parameter: the gradient of the scaled loss;
- ``state.<buffer>`` for each buffer: its value after the step;
- any other outputs, which are metrics.

The metadata ``pkg.mixlist.random.<input>`` and ``pkg.mixlist.init.<parameter>`` say in JSON how values are drawn, see
``random_values``. Operators that draw random numbers themselves are refused: a training that continues in another
session would get other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from mixlist.errors import ModelError
from mixlist.graph.load import LoadedModel, load_model
from mixlist.graph.prune import names_read_by
from mixlist.graph.traversal import nodes_in_model
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.ops import dtypes
from mixlist.ops.shape_inference import refuse_large_expansion
from mixlist.ops.traits import Trait, operators
from mixlist.runtime.inputs import Input, declared_shape, describe_type, model_inputs
from mixlist.torch_export.step_names import (
    EVALUATION_PREFIX,
    GRADIENT_PREFIX,
    INIT_KEY_PREFIX,
    LOSS,
    LOSS_SCALE,
    RANDOM_KEY_PREFIX,
    STATE_PREFIX,
)

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model

Distribution: TypeAlias = Mapping[str, object]  # a JSON object of the metadata, see ``random_values``
_RANDOM_OPERATORS = operators(Trait.RANDOM) - {"Dropout"}  # Dropout draws only with training_mode, see below
_STEP_GRAPH_HINT = (
    "mixlist.training.export_step makes step graphs from PyTorch modules; the README lists their inputs and outputs"
)


@dataclass(frozen=True)
class Parameter:
    """A parameter or a buffer of a step graph.

    ``distribution`` is that of the initial value; {} if the metadata has none. ``type`` is a number of
    TensorProto.DataType, float32 for every parameter.
    """

    name: str
    shape: tuple[int, ...]
    distribution: Distribution
    type: int = dtypes.FLOAT


@dataclass(frozen=True)
class StepGraph:
    """A checked step graph and its inputs by kind. ``metrics`` has the names of the outputs that are metrics."""

    loaded: LoadedModel
    parameters: tuple[Parameter, ...]
    batch_inputs: tuple[Input, ...]
    buffers: tuple[Parameter, ...]
    random_inputs: tuple[tuple[Input, Distribution], ...]
    metrics: tuple[str, ...]
    has_evaluation: bool = False  # the outputs eval.loss and eval.<metric> are those of the module in the mode eval()

    @property
    def step_outputs(self) -> list[str]:
        """Return the outputs that a step reads: the loss, the gradients, and the new values of the buffers."""
        return [
            LOSS,
            *(GRADIENT_PREFIX + parameter.name for parameter in self.parameters),
            *(STATE_PREFIX + buffer.name for buffer in self.buffers),
        ]

    @cached_property
    def evaluation_is_random(self) -> bool:
        """Return whether the outputs of the mode eval() depend on random inputs."""
        needed = {output.name for output in self.loaded.proto.graph.output if output.name.startswith(EVALUATION_PREFIX)}
        for node in reversed(self.loaded.proto.graph.node):
            if any(name in needed for name in node.output):
                needed.update(names_read_by(node))
        return any(value.name in needed for value, _ in self.random_inputs)

    @property
    def name(self) -> str:
        """Return the name of the model for messages."""
        return self.loaded.name

    @property
    def fixed_batch_size(self) -> int | None:
        """Return the batch size that the batch inputs declare, or None if it is symbolic."""
        sizes = [value.shape[0] for value in self.batch_inputs if value.shape]
        return next((size for size in sizes if isinstance(size, int)), None)


def load_step_graph(model: Model) -> StepGraph:
    """Load a model, check that it is a step graph, and return its parts.

    Raises ModelError that names the missing or wrong part, and the errors of ``load_model``.
    """
    loaded = load_model(model)
    # ONNX Runtime expands every function call. A few functions that call each other can need more memory than there is.
    refuse_large_expansion(loaded.proto)
    inputs = {value.name: value for value in model_inputs(loaded.proto)}
    outputs = [output.name for output in loaded.proto.graph.output]
    # The outputs decide the kind of an input: grad.w makes w a parameter, state.m makes m a buffer.
    parameter_names, buffer_names = (
        [name.removeprefix(prefix) for name in outputs if name.startswith(prefix)]
        for prefix in (GRADIENT_PREFIX, STATE_PREFIX)
    )
    if LOSS not in outputs:
        raise ModelError(f"{loaded.name} is not a step graph: it has no output {LOSS!r}", hint=_STEP_GRAPH_HINT)
    if not parameter_names:
        raise ModelError(
            f"{loaded.name} is not a step graph: it has no output {GRADIENT_PREFIX}<parameter>", hint=_STEP_GRAPH_HINT
        )
    _check_loss_scale(loaded.name, inputs)
    for name, prefix in (*((n, GRADIENT_PREFIX) for n in parameter_names), *((n, STATE_PREFIX) for n in buffer_names)):
        if name not in inputs:
            raise ModelError(
                f"{loaded.name} has an output {prefix + name!r} and no input {name!r}", hint=_STEP_GRAPH_HINT
            )
    metadata = {entry.key: entry.value for entry in loaded.proto.metadata_props}
    random_names = [name for name in inputs if RANDOM_KEY_PREFIX + name in metadata]
    non_batch_names = {*parameter_names, *buffer_names, *random_names, LOSS_SCALE}
    graph = StepGraph(
        loaded,
        parameters=tuple(_make_parameter(loaded.name, inputs[name], metadata, "parameter") for name in parameter_names),
        batch_inputs=tuple(value for name, value in inputs.items() if name not in non_batch_names),
        buffers=tuple(_make_parameter(loaded.name, inputs[name], metadata, "buffer") for name in buffer_names),
        random_inputs=tuple(
            (inputs[name], _read_distribution(loaded.name, metadata, RANDOM_KEY_PREFIX + name)) for name in random_names
        ),
        metrics=tuple(
            name
            for name in outputs
            if name != LOSS and not name.startswith((GRADIENT_PREFIX, STATE_PREFIX, EVALUATION_PREFIX))
        ),
        has_evaluation=EVALUATION_PREFIX + LOSS in outputs,
    )
    # After the parts are known, since the outputs are compared with the parameters.
    _check_outputs(graph)
    _refuse_nodes_that_draw(loaded)
    return graph


def _check_loss_scale(model_name: str, inputs: Mapping[str, Input]) -> None:
    """Raise ModelError unless there is a float32 input ``loss_scale`` of one element, of any rank."""
    if LOSS_SCALE not in inputs:
        raise ModelError(
            f"{model_name} has no input {LOSS_SCALE!r}: its loss cannot be scaled before the backward pass",
            hint=f"add a float32 scalar input {LOSS_SCALE!r} and multiply the loss by it before taking gradients",
        )
    scale = inputs[LOSS_SCALE]
    if scale.type != dtypes.FLOAT or any(size != 1 for size in scale.shape or ()):
        text = describe_type(scale.type, scale.shape)
        raise ModelError(
            f"{model_name}: the input {LOSS_SCALE!r} must be a float32 scalar, not {text}", hint=_STEP_GRAPH_HINT
        )


def _make_parameter(model_name: str, value: Input, metadata: Mapping[str, str], kind: str) -> Parameter:
    """Make a Parameter from an input; ``kind`` is "parameter" or "buffer".

    Raises ModelError for a wrong type or shape.
    """
    if kind == "parameter" and value.type != dtypes.FLOAT:
        raise ModelError(
            f"{model_name}: the parameter {value.name!r} is {dtypes.type_name(value.type)}, and parameters must be"
            " float32",
            hint="keep the weights in float32: the lists decide which nodes read them in low precision",
        )
    if not isinstance(value.type, int):  # the type of a sequence or an optional is not a number
        raise ModelError(f"{model_name}: the {kind} {value.name!r} is not a tensor")
    # A symbolic size is no int, so it is missing in ``shape``.
    shape = tuple(size for size in value.shape or () if isinstance(size, int))
    if value.shape is None or len(shape) < len(value.shape):
        raise ModelError(f"{model_name}: the {kind} {value.name!r} has no fixed shape", hint="declare its shape")
    distribution = _read_distribution(model_name, metadata, INIT_KEY_PREFIX + value.name)
    return Parameter(value.name, shape, distribution, value.type)


def _read_distribution(model_name: str, metadata: Mapping[str, str], key: str) -> Distribution:
    """Return the JSON object of a metadata key, or {} if the metadata lacks the key."""
    text = metadata.get(key, "{}")
    try:
        distribution = json.loads(text)
    except ValueError:
        distribution = None
    if not isinstance(distribution, dict):
        raise ModelError(f"{model_name}: the metadata {key!r} must be a JSON object, not {text[:60]!r}")
    return distribution


def _check_outputs(graph: StepGraph) -> None:
    """Raise ModelError unless loss and gradients are float32, the loss is a scalar, and gradients fit their parameters.

    A gradient must have the shape of its parameter. Shapes that the model does not declare are checked when the step
    runs.
    """
    gradient_shapes = {GRADIENT_PREFIX + parameter.name: parameter.shape for parameter in graph.parameters}
    for value in graph.loaded.proto.graph.output:
        if value.name != LOSS and value.name not in gradient_shapes:
            continue
        element_type, shape = dtypes.from_proto(value.type), declared_shape(value.type)
        if element_type != dtypes.FLOAT:
            raise ModelError(
                f"{graph.name}: the output {value.name!r} is {dtypes.type_name(element_type)}, not float32",
                hint=_STEP_GRAPH_HINT,
            )
        # A shape that is not declared, or only in part, is checked by StepSession.step.
        if shape is None or not all(isinstance(size, int) for size in shape):
            continue
        text = describe_type(element_type, shape)
        if value.name == LOSS:
            if any(size != 1 for size in shape):
                raise ModelError(f"{graph.name}: the loss is {text}, not a scalar", hint="reduce it to its mean")
        elif shape != gradient_shapes[value.name]:
            parameter_text = describe_type(element_type, gradient_shapes[value.name])
            raise ModelError(
                f"{graph.name}: the output {value.name!r} is {text}, and its parameter is {parameter_text}",
                hint="give each gradient the shape of its parameter",
            )


def _refuse_nodes_that_draw(loaded: LoadedModel) -> None:
    """Raise ModelError for a node that draws random numbers itself."""
    for node in nodes_in_model(loaded.proto):
        # The third input of Dropout (from opset 12 on) is training_mode. Without it, a Dropout copies its input.
        is_training_dropout = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
        if is_standard_domain(node.domain) and (node.op_type in _RANDOM_OPERATORS or is_training_dropout):
            raise ModelError(
                f"{loaded.name}: the node {node.name or node.output[0]!r} ({node.op_type}) draws random numbers itself",
                hint="make the numbers an input, and describe their distribution in the metadata"
                f" '{RANDOM_KEY_PREFIX}<input>': a step then depends on the seed and the step number alone",
            )
