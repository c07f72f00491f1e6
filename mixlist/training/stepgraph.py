"""The training-step graph: an ONNX model that computes a loss and its gradients.

Inputs: the parameters (float32), ``loss_scale`` (a float32 scalar that multiplies the loss before the backward pass),
what a batch holds, and where the network has them buffers (running statistics) and random numbers. Outputs: ``loss``
(unscaled), ``grad.<parameter>`` for each parameter (of the scaled loss), ``state.<buffer>`` for each buffer (its new
value), and any metrics. Metadata ``pkg.mixlist.random.<input>`` and ``pkg.mixlist.init.<parameter>`` (JSON) say what to
draw, see ``drawing``. Operators that draw numbers themselves are refused: a training that goes on in a new session
would see other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixlist.errors import ModelError
from mixlist.graph.io import Loaded, load
from mixlist.graph.traversal import nodes
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators
from mixlist.runtime.inputs import Input, declared_shape, model_inputs, type_text

SCALE, LOSS, GRADIENT, STATE = "loss_scale", "loss", "grad.", "state."
_RANDOM, _INIT = "pkg.mixlist.random.", "pkg.mixlist.init."
_DRAWING = operators(Trait.RANDOM) - {"Dropout"}  # a Dropout draws only where it trains
_HINT = "mixlist.training.export_step makes step graphs from PyTorch modules; the README tells what one holds"


@dataclass(frozen=True)
class Parameter:
    """A trained input or a buffer: its shape, how it is drawn where nobody gives it ({}: a default), its type."""

    name: str
    shape: tuple[int, ...]
    init: Mapping[str, Any]
    type: int = types.FLOAT


@dataclass(frozen=True)
class StepGraph:
    """A step graph, looked through. ``batch``, ``buffers`` and ``random`` are its other inputs."""

    loaded: Loaded
    parameters: tuple[Parameter, ...]
    batch: tuple[Input, ...]
    buffers: tuple[Parameter, ...]
    random: tuple[tuple[Input, Mapping[str, Any]], ...]
    metrics: tuple[str, ...]

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.loaded.name

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the graph was made for; None where it takes any."""
        sizes = [each.shape[0] for each in self.batch if each.shape]
        return next((size for size in sizes if isinstance(size, int)), None)


def read_step(model: Any) -> StepGraph:
    """Look a step graph through; raises ModelError that names what is missing, and what ``load`` raises."""
    loaded = load(model)
    inputs = {each.name: each for each in model_inputs(loaded.proto)}
    outputs = [o.name for o in loaded.proto.graph.output]
    trained = [name.removeprefix(GRADIENT) for name in outputs if name.startswith(GRADIENT)]
    if LOSS not in outputs:
        raise ModelError(f"{loaded.name} is no step graph: it has no output {LOSS!r}", hint=_HINT)
    if not trained:
        raise ModelError(f"{loaded.name} is no step graph: it has no output {GRADIENT}<parameter>", hint=_HINT)
    _check_scale(loaded.name, inputs)
    told = {entry.key: entry.value for entry in loaded.proto.metadata_props}
    buffers = [name.removeprefix(STATE) for name in outputs if name.startswith(STATE)]
    for name, prefix in (*((n, GRADIENT) for n in trained), *((n, STATE) for n in buffers)):
        if name not in inputs:
            raise ModelError(f"{loaded.name} has an output {prefix + name!r} and no input {name!r}", hint=_HINT)
    random = {n: _json(loaded.name, _RANDOM + n, told[_RANDOM + n]) for n in inputs if _RANDOM + n in told}
    own = {*trained, *buffers, *random, SCALE}
    rest = [name for name in outputs if name != LOSS and not name.startswith((GRADIENT, STATE))]
    graph = StepGraph(
        loaded,
        tuple(_parameter(loaded.name, inputs[n], told, "parameter") for n in trained),
        tuple(each for name, each in inputs.items() if name not in own),
        tuple(_parameter(loaded.name, inputs[n], told, "buffer") for n in buffers),
        tuple((inputs[n], what) for n, what in random.items()),
        tuple(rest),
    )
    _check_outputs(graph)
    _check_drawing(loaded)
    return graph


def _check_scale(model: str, inputs: Mapping[str, Input]) -> None:
    if SCALE not in inputs:
        raise ModelError(
            f"{model} has no input {SCALE!r}: its loss cannot be scaled before the backward pass",
            hint=f"add a float32 scalar input {SCALE!r} and multiply the loss by it before taking gradients",
        )
    scale = inputs[SCALE]
    if scale.type != types.FLOAT or any(d != 1 for d in scale.shape or ()):
        raise ModelError(
            f"{model}: the input {SCALE!r} is a float32 scalar, not {type_text(scale.type, scale.shape)}", hint=_HINT
        )


def _parameter(model: str, given: Input, told: Mapping[str, str], kind: str) -> Parameter:
    if kind == "parameter" and given.type != types.FLOAT:
        raise ModelError(
            f"{model}: the parameter {given.name!r} is {types.type_name(given.type)}; parameters are float32",
            hint="keep master weights in float32: the lists decide what becomes low",
        )
    if not isinstance(given.type, int):
        raise ModelError(f"{model}: the {kind} {given.name!r} is no tensor")
    shape = tuple(d for d in given.shape or () if isinstance(d, int))
    if given.shape is None or len(shape) < len(given.shape):
        raise ModelError(f"{model}: the {kind} {given.name!r} has no fixed shape", hint="declare its shape")
    key = _INIT + given.name
    return Parameter(given.name, shape, _json(model, key, told.get(key, "{}")), given.type)


def _check_outputs(graph: StepGraph) -> None:
    """Loss and gradients must be float32, the loss a scalar, a gradient of its parameter's shape."""
    wanted: dict[str, tuple[int, ...]] = {GRADIENT + p.name: p.shape for p in graph.parameters}
    for value in graph.loaded.proto.graph.output:
        if value.name != LOSS and value.name not in wanted:
            continue
        kind, shape = types.from_proto(value.type), declared_shape(value.type)
        if kind != types.FLOAT:
            raise ModelError(
                f"{graph.name}: the output {value.name!r} is {types.type_name(kind)}, not float32", hint=_HINT
            )
        known = shape is not None and all(isinstance(size, int) for size in shape)
        if value.name == LOSS and known and any(size != 1 for size in shape or ()):
            raise ModelError(
                f"{graph.name}: the loss is {type_text(kind, shape)}, not a scalar", hint="reduce it to its mean"
            )
        if value.name != LOSS and known and shape != wanted[value.name]:
            parameter = type_text(kind, wanted[value.name])
            text = f"the output {value.name!r} is {type_text(kind, shape)}, its parameter {parameter}"
            raise ModelError(f"{graph.name}: {text}", hint="a gradient has the shape of its parameter")


def _check_drawing(loaded: Loaded) -> None:
    for node in nodes(loaded.proto):
        trains = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
        if node.domain in ("", "ai.onnx") and (node.op_type in _DRAWING or trains):
            raise ModelError(
                f"{loaded.name}: the node {node.name or node.output[0]!r} ({node.op_type}) draws random numbers itself",
                hint="make them an input, and say in the metadata "
                f"'{_RANDOM}<input>' how they are drawn: a step then depends on seed and number alone",
            )


def _json(model: str, key: str, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ModelError(f"{model}: the metadata {key!r} is no JSON object: {text[:60]!r}")
    return found
