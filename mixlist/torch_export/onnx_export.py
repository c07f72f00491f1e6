"""A traced step as an ONNX model: torch's exporter, then our names for inputs, outputs and nodes."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch.export import graph_signature as signature
from torch.utils._pytree import tree_flatten

from mixlist.errors import ModelError
from mixlist.torch_export import op_translations
from mixlist.torch_export.randomness import scope_of

OPSET, IR_VERSION = 18, 8
_OTHER_OPERATORS = "write this part with other operators, or compute it ahead of the step as a batch input"
BATCH = "batch"


def to_onnx(
    graph: Any, inputs: Sequence[str], outputs: Sequence[str], constants: Mapping[str, Any], batch: Any
) -> ir.Model:
    """The ONNX model of an fx GraphModule.

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
    _name_batch(model.graph, str(batch))
    _strip(model)
    model.ir_version = IR_VERSION
    return model


def _exported_program(graph: Any, inputs: Sequence[str], constants: Mapping[str, Any]) -> Any:
    """The graph with its constants as inputs, in the form that torch's exporter reads."""
    specs, lifted = [], {}
    holders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, name in zip(holders, inputs, strict=True):
        kind = signature.InputKind.CONSTANT_TENSOR if name in constants else signature.InputKind.USER_INPUT
        target = name if name in constants else None
        specs.append(signature.InputSpec(kind, signature.TensorArgument(node.name), target))
        if target:
            lifted[name] = constants[name].detach()
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        value = getattr(graph, node.target)
        with graph.graph.inserting_before(holders[0]):
            holder = graph.graph.placeholder(f"constant_{len(lifted)}")
        holder.meta["val"] = node.meta["val"]
        name = f"constant.{len(lifted)}"
        node.replace_all_uses_with(holder)
        graph.graph.erase_node(node)
        specs.insert(
            0, signature.InputSpec(signature.InputKind.CONSTANT_TENSOR, signature.TensorArgument(holder.name), name)
        )
        holders.insert(0, holder)
        lifted[name] = value.detach()
    results = graph.graph.output_node().args[0]
    ends = [
        signature.OutputSpec(signature.OutputKind.USER_OUTPUT, signature.TensorArgument(node.name), None)
        for node in results
    ]
    fed = tuple(node.meta["val"] for node, spec in zip(holders, specs, strict=True) if spec.target is None)
    call = torch.export.ModuleCallSignature(
        inputs=[], outputs=[], in_spec=tree_flatten((fed, {}))[1], out_spec=tree_flatten(tuple(results))[1]
    )
    graph.recompile()
    return torch.export.ExportedProgram(
        root=graph,
        graph=graph.graph,
        graph_signature=signature.ExportGraphSignature(specs, ends),
        state_dict={},
        range_constraints={},
        module_call_graph=[torch.export.ModuleCallEntry("", call)],
        constants=lifted,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter prints its progress and warns of what is not the user's doing."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _refusal(error: BaseException, graph: Any) -> ModelError:
    """Names the operator and the first module that has it."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).splitlines()[0]
    name = re.search(r"op='([\w.]+)'", text)
    if name is None:
        return ModelError(f"torch's exporter refused the step: {text}", hint=_OTHER_OPERATORS)
    found = [node for node in graph.nodes if str(node.target).startswith(name[1])]
    where = f" of {scope_of(found[0])}" if found else ""
    return ModelError(f"ONNX has no counterpart for the operator {name[1]}{where}", hint=_OTHER_OPERATORS)


def _name_ends(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Inputs and outputs get their names; an output that is an input, a constant or another output, an Identity."""
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
    """/module/path/Operator, and /grad/module/path/Operator in the backward pass; values after their node."""
    ends = {value.name for value in graph.outputs}
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
            if value.name and value.name not in ends:
                value.name = f"{node.name}_output_{index}"


def _name_constants(graph: ir.Graph, own: Mapping[str, Any]) -> None:
    """constant.<n> for what is no tensor of the module's."""
    others = [value for name, value in graph.initializers.items() if name not in own]
    for index, value in enumerate(others):  # twice: a new name may be another's old one
        value.name = f"renamed.{index}"
    for index, value in enumerate(others):
        value.name = f"constant.{index}"


def _scope(node: ir.Node) -> str | None:
    names = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    return None if len(names) < 2 or names[0].startswith("_empty_nn_module") else names[0]


def _name_batch(graph: ir.Graph, symbol: str) -> None:
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([_dimension(size, symbol) for size in value.shape])


def _dimension(size: Any, symbol: str) -> Any:
    named = isinstance(size, ir.SymbolicDim) and size.value is not None
    return ir.SymbolicDim(size.value.replace(symbol, BATCH)) if named else size


def _strip(model: ir.Model) -> None:
    """torch's notes on nodes and values hold stack traces: paths of the machine, and most of the file."""
    graph = model.graph
    graph.metadata_props.clear()
    model.metadata_props.clear()
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
