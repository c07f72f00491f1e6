"""Read a training-step graph: an ONNX model that computes a loss and its gradients.

Inputs: the parameters (float32), ``loss_scale`` (a float32 scalar that multiplies the loss before the backward pass),
what a batch holds, and where the network has them buffers (running statistics) and random numbers. Outputs: ``loss``
(unscaled), ``grad.<parameter>`` for each parameter (of the scaled loss), ``state.<buffer>`` for each buffer (its new
value), and any metrics. Metadata ``pkg.mixlist.random.<input>`` and ``pkg.mixlist.init.<parameter>`` (JSON) say what to
draw, see ``sampling``. Operators that draw numbers themselves are refused: a training that goes on in a new session
would see other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mixlist.errors import ModelError
from mixlist.graph.load import LoadedModel, load_model
from mixlist.graph.traversal import nodes_in_model
from mixlist.ops import types
from mixlist.ops.shape_inference import refuse_large_expansion
from mixlist.ops.traits import Trait, operators
from mixlist.runtime.inputs import Input, declared_shape, describe_type, model_inputs
from mixlist.torch_export.step_format import (
    GRADIENT_PREFIX,
    INIT_KEY_PREFIX,
    LOSS,
    LOSS_SCALE,
    RANDOM_KEY_PREFIX,
    STATE_PREFIX,
)

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model

Distribution: TypeAlias = Mapping[str, object]  # a JSON object of the metadata
_DRAWING = operators(Trait.RANDOM) - {"Dropout"}  # a Dropout draws only where it trains
_HINT = "mixlist.training.export_step makes step graphs from PyTorch modules; the README tells what one holds"


@dataclass(frozen=True)
class Parameter:
    """A trained input or a buffer: its shape, how its first value is drawn ({}: by its shape), its type."""

    name: str
    shape: tuple[int, ...]
    init: Distribution
    type: int = types.FLOAT


@dataclass(frozen=True)
class StepGraph:
    """A step graph that can be trained. ``batch``, ``buffers`` and ``random`` are its other inputs."""

    loaded: LoadedModel
    parameters: tuple[Parameter, ...]
    batch_inputs: tuple[Input, ...]
    buffers: tuple[Parameter, ...]
    random_inputs: tuple[tuple[Input, Distribution], ...]
    metrics: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the graph for messages."""
        return self.loaded.name

    @property
    def fixed_batch_size(self) -> int | None:
        """Return the batch size if the graph has a fixed one; None if it takes any."""
        sizes = [each.shape[0] for each in self.batch_inputs if each.shape]
        return next((size for size in sizes if isinstance(size, int)), None)


def read_step(model: Model) -> StepGraph:
    """Return the parts of a step graph; raises ModelError that names what is missing, and what ``load`` raises."""
    loaded = load_model(model)
    refuse_large_expansion(loaded.proto)
    inputs = {each.name: each for each in model_inputs(loaded.proto)}
    outputs = [output.name for output in loaded.proto.graph.output]
    trained, buffers = (
        [name.removeprefix(prefix) for name in outputs if name.startswith(prefix)]
        for prefix in (GRADIENT_PREFIX, STATE_PREFIX)
    )
    if LOSS not in outputs:
        raise ModelError(f"{loaded.name} is no step graph: it has no output {LOSS!r}", hint=_HINT)
    if not trained:
        raise ModelError(f"{loaded.name} is no step graph: it has no output {GRADIENT_PREFIX}<parameter>", hint=_HINT)
    _check_scale(loaded.name, inputs)
    for name, prefix in (*((n, GRADIENT_PREFIX) for n in trained), *((n, STATE_PREFIX) for n in buffers)):
        if name not in inputs:
            raise ModelError(f"{loaded.name} has an output {prefix + name!r} and no input {name!r}", hint=_HINT)
    metadata = {entry.key: entry.value for entry in loaded.proto.metadata_props}
    random = [name for name in inputs if RANDOM_KEY_PREFIX + name in metadata]
    graph = StepGraph(
        loaded,
        tuple(_parameter(loaded.name, inputs[name], metadata, "parameter") for name in trained),
        tuple(each for name, each in inputs.items() if name not in {*trained, *buffers, *random, LOSS_SCALE}),
        tuple(_parameter(loaded.name, inputs[name], metadata, "buffer") for name in buffers),
        tuple((inputs[name], _distribution(loaded.name, metadata, RANDOM_KEY_PREFIX + name)) for name in random),
        tuple(name for name in outputs if name != LOSS and not name.startswith((GRADIENT_PREFIX, STATE_PREFIX))),
    )
    _check_outputs(graph)
    _check_drawing(loaded)
    return graph


def _check_scale(model: str, inputs: Mapping[str, Input]) -> None:
    if LOSS_SCALE not in inputs:
        raise ModelError(
            f"{model} has no input {LOSS_SCALE!r}: its loss cannot be scaled before the backward pass",
            hint=f"add a float32 scalar input {LOSS_SCALE!r} and multiply the loss by it before taking gradients",
        )
    scale = inputs[LOSS_SCALE]
    if scale.type != types.FLOAT or any(d != 1 for d in scale.shape or ()):
        text = describe_type(scale.type, scale.shape)
        raise ModelError(f"{model}: the input {LOSS_SCALE!r} is a float32 scalar, not {text}", hint=_HINT)


def _parameter(model: str, declared: Input, metadata: Mapping[str, str], kind: str) -> Parameter:
    if kind == "parameter" and declared.type != types.FLOAT:
        raise ModelError(
            f"{model}: the parameter {declared.name!r} is {types.type_name(declared.type)}; parameters are float32",
            hint="keep master weights in float32: the lists decide what becomes low",
        )
    if not isinstance(declared.type, int):
        raise ModelError(f"{model}: the {kind} {declared.name!r} is no tensor")
    shape = tuple(d for d in declared.shape or () if isinstance(d, int))
    if declared.shape is None or len(shape) < len(declared.shape):
        raise ModelError(f"{model}: the {kind} {declared.name!r} has no fixed shape", hint="declare its shape")
    return Parameter(
        declared.name, shape, _distribution(model, metadata, INIT_KEY_PREFIX + declared.name), declared.type
    )


def _distribution(model: str, metadata: Mapping[str, str], key: str) -> Distribution:
    """Return how to draw an input, as the metadata say; {} where they do not."""
    text = metadata.get(key, "{}")
    try:
        distribution = json.loads(text)
    except ValueError:
        distribution = None
    if not isinstance(distribution, dict):
        raise ModelError(f"{model}: the metadata {key!r} is no JSON object: {text[:60]!r}")
    return distribution


def _check_outputs(graph: StepGraph) -> None:
    """Raise ModelError unless all are float32, the loss is a scalar, and gradients have the parameters' shapes."""
    gradients = {GRADIENT_PREFIX + p.name: p.shape for p in graph.parameters}
    for value in graph.loaded.proto.graph.output:
        if value.name != LOSS and value.name not in gradients:
            continue
        kind, shape = types.from_proto(value.type), declared_shape(value.type)
        if kind != types.FLOAT:
            raise ModelError(
                f"{graph.name}: the output {value.name!r} is {types.type_name(kind)}, not float32", hint=_HINT
            )
        if shape is None or not all(isinstance(size, int) for size in shape):
            continue
        text = describe_type(kind, shape)
        if value.name == LOSS:
            if any(size != 1 for size in shape):
                raise ModelError(f"{graph.name}: the loss is {text}, not a scalar", hint="reduce it to its mean")
        elif shape != gradients[value.name]:
            parameter = describe_type(kind, gradients[value.name])
            raise ModelError(
                f"{graph.name}: the output {value.name!r} is {text}, its parameter {parameter}",
                hint="a gradient has the shape of its parameter",
            )


def _check_drawing(loaded: LoadedModel) -> None:
    """Raise ModelError for a node that draws random numbers itself."""
    for node in nodes_in_model(loaded.proto):
        trains = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
        if node.domain in ("", "ai.onnx") and (node.op_type in _DRAWING or trains):
            raise ModelError(
                f"{loaded.name}: the node {node.name or node.output[0]!r} ({node.op_type}) draws random numbers itself",
                hint="make them an input, and say in the metadata "
                f"'{RANDOM_KEY_PREFIX}<input>' how they are drawn: a step then depends on seed and number alone",
            )
