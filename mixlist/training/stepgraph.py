"""The training-step graph: an ONNX model that computes a loss and its gradients.

Inputs: the parameters (float32), ``loss_scale`` (a float32 scalar that multiplies the loss before the backward pass),
what a batch holds, and where the network has them buffers (running statistics) and random numbers. Outputs: ``loss``
(unscaled), ``grad.<parameter>`` for each parameter (of the scaled loss), ``state.<buffer>`` for each buffer (its new
value), and any metrics. Metadata ``pkg.mixlist.random.<input>`` and ``pkg.mixlist.init.<parameter>`` (JSON) say what to
draw: {"kind": "uniform", "low": 0, "high": 1, "off": ...}, {"kind": "normal", "mean": 0, "std": 1}, {"kind": "zeros"}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixlist.errors import ModelError
from mixlist.graph.io import Loaded, load
from mixlist.ops import types
from mixlist.runtime.inputs import Input, model_inputs, shown

SCALE, LOSS, GRADIENT, STATE = "loss_scale", "loss", "grad.", "state."
_RANDOM, _INIT = "pkg.mixlist.random.", "pkg.mixlist.init."
_HINT = "mixlist.training.export_step makes step graphs from PyTorch modules; the README tells what one holds"


@dataclass(frozen=True)
class Parameter:
    """A trained input: its shape, and how it is drawn where nobody gives it ({} for a default)."""

    name: str
    shape: tuple[int, ...]
    init: Mapping[str, Any]


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
    for name in (*trained, *buffers):
        if name not in inputs:
            output = f"{GRADIENT if name in trained else STATE}{name}"
            raise ModelError(f"{loaded.name} has an output {output!r} and no input {name!r}", hint=_HINT)
    random = {n: _json(loaded.name, _RANDOM + n, told[_RANDOM + n]) for n in inputs if _RANDOM + n in told}
    own = {*trained, *buffers, *random, SCALE}
    rest = [name for name in outputs if name != LOSS and not name.startswith((GRADIENT, STATE))]
    return StepGraph(
        loaded,
        tuple(_parameter(loaded.name, inputs[n], told) for n in trained),
        tuple(each for name, each in inputs.items() if name not in own),
        tuple(_parameter(loaded.name, inputs[n], told) for n in buffers),
        tuple((inputs[n], what) for n, what in random.items()),
        tuple(rest),
    )


def _check_scale(model: str, inputs: Mapping[str, Input]) -> None:
    if SCALE not in inputs:
        raise ModelError(
            f"{model} has no input {SCALE!r}: its loss cannot be scaled before the backward pass",
            hint=f"add a float32 scalar input {SCALE!r} and multiply the loss by it before taking gradients",
        )
    scale = inputs[SCALE]
    if scale.type != types.FLOAT or any(d != 1 for d in scale.shape or ()):
        raise ModelError(
            f"{model}: the input {SCALE!r} is a float32 scalar, not {shown(scale.type, scale.shape)}", hint=_HINT
        )


def _parameter(model: str, given: Input, told: Mapping[str, str]) -> Parameter:
    if given.type != types.FLOAT:
        raise ModelError(
            f"{model}: the parameter {given.name!r} is {types.type_name(given.type)}; parameters are float32",
            hint="keep master weights in float32: the lists decide what becomes low",
        )
    shape = tuple(d for d in given.shape or () if isinstance(d, int))
    if given.shape is None or len(shape) < len(given.shape):
        raise ModelError(f"{model}: the parameter {given.name!r} has no fixed shape", hint="declare its shape")
    key = _INIT + given.name
    return Parameter(given.name, shape, _json(model, key, told.get(key, "{}")))


def _json(model: str, key: str, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ModelError(f"{model}: the metadata {key!r} is no JSON object: {text[:60]!r}")
    return found
