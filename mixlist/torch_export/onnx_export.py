"""Write a traced step as an ONNX model: torch's exporter, then our names for inputs, outputs and nodes."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)  # fmt: skip
from torch.utils._pytree import tree_flatten

from mixlist.errors import ModelError
from mixlist.torch_export import op_translations
from mixlist.torch_export.randomness import scope_of

if TYPE_CHECKING:
    from torch import SymInt, Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule

OPSET, IR_VERSION = 18, 8
_OTHER_OPERATORS = "write this part with other operators, or compute it ahead of the step as a batch input"
BATCH = "batch"


def to_onnx(
    graph: GraphModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Tensor],
    batch: SymInt | None,
) -> ir.Model:
    """Return the ONNX model of a traced graph.

    ``inputs`` and ``outputs`` name its placeholders and results; a placeholder in ``constants`` becomes an initializer
    of that name. ``batch`` is the batch size's SymInt, or None.
    """
    program = _exported_program(graph, inputs, constants)
    with _quiet():
        try:
            model: ir.Model = torch.onnx.export(
                program,
                opset_version=OPSET,
                dynamo=True,
                optimize=True,
                verbose=False,
                custom_translation_table=op_translations.table(),
            ).model
        except torch.onnx.OnnxExporterError as error:
            raise _refusal(error, graph.graph) from None
    _name_ends(model.graph, [name for name in inputs if name not in constants], outputs)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)
    _name_nodes(model.graph)
    _name_constants(model.graph, constants)
    _name_batch_axis(model.graph, str(batch))
    _strip(model)
    model.ir_version = IR_VERSION
    return model


def _exported_program(graph: GraphModule, inputs: Sequence[str], constants: Mapping[str, Tensor]) -> ExportedProgram:
    """Return the graph with its constants as inputs, in the form that torch's exporter reads."""
    placeholders = (node for node in graph.graph.nodes if node.op == "placeholder")
    names = dict(zip(placeholders, inputs, strict=True))
    lifted = {name: constants[name].detach() for name in inputs if name in constants}
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(next(iter(names))):
            placeholder = graph.graph.placeholder(f"constant_{len(lifted)}")
        placeholder.meta["val"] = node.meta["val"]
        names = {placeholder: f"constant.{len(lifted)}", **names}
        lifted[names[placeholder]] = getattr(graph, node.target).detach()
        node.replace_all_uses_with(placeholder)
        graph.graph.erase_node(node)
    specs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        if name in lifted
        else InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
        for node, name in names.items()
    ]
    results = graph.graph.output_node().args[0]
    ends = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
    fed = tuple(node.meta["val"] for node, name in names.items() if name not in lifted)
    call = torch.export.ModuleCallSignature(
        inputs=[], outputs=[], in_spec=tree_flatten((fed, {}))[1], out_spec=tree_flatten(tuple(results))[1]
    )
    graph.recompile()
    return torch.export.ExportedProgram(
        root=graph,
        graph=graph.graph,
        graph_signature=ExportGraphSignature(specs, ends),
        state_dict={},
        range_constraints={},
        module_call_graph=[torch.export.ModuleCallEntry("", call)],
        constants=lifted,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's exporter, which prints its progress and warns of what is not the user's doing."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _refusal(error: BaseException, graph: Graph) -> ModelError:
    """Name the operator and the first module that has it."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).splitlines()[0]
    name = re.search(r"op='([\w.]+)'", text)
    if name is None:
        return ModelError(f"torch's exporter refused the step: {text}", hint=_OTHER_OPERATORS)
    node = next((node for node in graph.nodes if str(node.target).startswith(name[1])), None)
    where = f" of {scope_of(node)}" if node is not None else ""
    return ModelError(f"ONNX has no counterpart for the operator {name[1]}{where}", hint=_OTHER_OPERATORS)


def _name_ends(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs and outputs; an output that is an input, a constant or another output gets an Identity."""
    for value, name in zip(graph.inputs, inputs, strict=True):
        value.name = name
    taken: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    for index, (value, name) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        if value in taken:
            node = ir.node("Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = value = node.outputs[0]
        taken.add(value)
        value.name = name


def _name_nodes(graph: ir.Graph) -> None:
    """Name nodes /module/path/Operator, in the backward pass /grad/module/path/Operator, and values after them."""
    ends = set(graph.outputs)  # by identity: torch calls values after operators, as a metric may be called
    counts: Counter[str] = Counter()
    scopes: dict[ir.Node | None, str] = {}
    for node in graph:
        scope = _scope(node)
        if scope is None:  # made by an optimisation: it belongs where its first input comes from
            scope = next((scopes[value.producer()] for value in node.inputs if value and value.producer()), "")
        scopes[node] = scope
        name = "/" + "/".join([*(part for part in scope.split(".") if part), node.op_type])
        count = counts[name]
        counts[name] += 1
        node.name = f"{name}_{count}" if count else name
        for index, value in enumerate(node.outputs):
            if value.name and value not in ends:
                value.name = f"{node.name}_output_{index}"


def _name_constants(graph: ir.Graph, own: Mapping[str, Tensor]) -> None:
    """Name the initializers that are no tensors of the module's: constant.<n>."""
    others = [value for name, value in graph.initializers.items() if name not in own]
    for prefix in ("renamed", "constant"):  # twice: a new name may be another's old one
        for index, value in enumerate(others):
            value.name = f"{prefix}.{index}"


def _scope(node: ir.Node) -> str | None:
    names = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    return None if len(names) < 2 or names[0].startswith("_empty_nn_module") else names[0]


def _name_batch_axis(graph: ir.Graph, symbol: str) -> None:
    """Write ``batch`` for the symbol that torch gave to the batch size."""
    for value in chain(graph.inputs, *(node.outputs for node in graph)):
        shape = value.shape or ir.Shape([])
        for axis, size in enumerate(shape):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                shape[axis] = str(size.value).replace(symbol, BATCH)


def _strip(model: ir.Model) -> None:
    """Remove torch's notes on nodes and values: stack traces with the machine's paths, most of the file."""
    passes.ClearMetadataAndDocStringPass()(model)
    graph = model.graph
    values = chain(graph.inputs, graph.initializers.values(), *(node.outputs for node in graph))
    for metadata in (model.metadata_props, graph.metadata_props, *(value.metadata_props for value in values)):
        metadata.clear()
