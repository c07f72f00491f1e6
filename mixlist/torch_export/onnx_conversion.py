"""Convert a traced step to an ONNX model with torch's exporter, then give inputs, outputs and nodes stable names."""

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
from mixlist.torch_export.step_names import EVALUATION_PREFIX, RANDOM_PREFIX
from mixlist.torch_export.trace_errors import describe_line, describe_module

if TYPE_CHECKING:
    from torch import SymInt, Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule

OPSET, IR_VERSION = 18, 8
_OPERATOR_HINT = "write this part with other operators, or compute it before the step and make it a batch input"


def convert_to_onnx(
    graph: GraphModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Tensor],
    sizes: Mapping[str, SymInt],
) -> ir.Model:
    """Return the ONNX model of a traced graph.

    ``inputs`` and ``outputs`` are the names of its placeholders and results, in order. A placeholder whose name is in
    ``constants`` becomes an initializer. ``sizes`` are the symbolic sizes by name. Raises
    ModelError, with the operator and its module, if ONNX cannot express an operator.
    """
    program = _make_exported_program(graph, inputs, constants)
    with _silent_exporter():
        try:
            model: ir.Model = torch.onnx.export(
                program,
                opset_version=OPSET,
                dynamo=True,
                optimize=True,
                verbose=False,
                custom_translation_table=op_translations.translation_table(),
            ).model
        except torch.onnx.OnnxExporterError as error:
            raise _describe_export_error(error, graph.graph) from None
    _name_inputs_and_outputs(model.graph, [name for name in inputs if name not in constants], outputs)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    _drop_equal_evaluation(model.graph)
    passes.RemoveUnusedNodesPass()(model)
    # The passes remove nodes. The others get their names afterwards, so that the numbers in the names have no gaps.
    _name_nodes(model.graph)
    _name_constants(model.graph, constants)
    _name_sizes(model.graph, sizes)
    _remove_exporter_metadata(model)  # after _name_nodes, which reads the module paths in the metadata
    model.ir_version = IR_VERSION
    return model


def _make_exported_program(
    graph: GraphModule, inputs: Sequence[str], constants: Mapping[str, Tensor]
) -> ExportedProgram:
    """Return the graph in the form that torch's exporter reads: every constant tensor is a placeholder.

    ``graph`` is changed in place: it gets a placeholder for each tensor that it reads with a get_attr node, before its
    other placeholders.
    """
    placeholders = (node for node in graph.graph.nodes if node.op == "placeholder")
    placeholder_names = dict(zip(placeholders, inputs, strict=True))
    constant_tensors = {name: constants[name].detach() for name in inputs if name in constants}
    # A get_attr node reads a tensor that the tracing has stored in the module, such as a literal in the user's code.
    # Its placeholder goes before the first one, in the graph and in ``placeholder_names``: the signature must list the
    # placeholders in the order of the graph.
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(next(iter(placeholder_names))):
            placeholder = graph.graph.placeholder(f"constant_{len(constant_tensors)}")
        placeholder.meta["val"] = node.meta["val"]
        placeholder_names = {placeholder: f"constant.{len(constant_tensors)}", **placeholder_names}
        constant_tensors[placeholder_names[placeholder]] = getattr(graph, node.target).detach()
        node.replace_all_uses_with(placeholder)
        graph.graph.erase_node(node)
    input_specs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        if name in constant_tensors
        else InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
        for node, name in placeholder_names.items()
    ]
    results = graph.graph.output_node().args[0]
    output_specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
    user_inputs = tuple(node.meta["val"] for node, name in placeholder_names.items() if name not in constant_tensors)
    call_signature = torch.export.ModuleCallSignature(
        inputs=[], outputs=[], in_spec=tree_flatten((user_inputs, {}))[1], out_spec=tree_flatten(tuple(results))[1]
    )
    # The Python code of the graph was compiled before the new placeholders were added.
    graph.recompile()
    return torch.export.ExportedProgram(
        root=graph,
        graph=graph.graph,
        graph_signature=ExportGraphSignature(input_specs, output_specs),
        state_dict={},
        range_constraints={},
        module_call_graph=[torch.export.ModuleCallEntry("", call_signature)],
        constants=constant_tensors,
    )


@contextlib.contextmanager
def _silent_exporter() -> Iterator[None]:
    """Silence torch's exporter: it prints its progress, and its warnings are not about the user's code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _describe_export_error(error: BaseException, graph: Graph) -> ModelError:
    """Return a ModelError for an error of torch's exporter, with the operator and the first module that calls it."""
    # The first cause has the operator in its text; the exporter wraps it in several other errors.
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).splitlines()[0]
    operator = re.search(r"op='([\w.]+)'", text)
    if operator is None:
        return ModelError(f"torch's exporter refused the step: {text}", hint=_OPERATOR_HINT)
    node = next((node for node in graph.nodes if str(node.target).startswith(operator[1])), None)
    module_text = f" of {describe_module(node)}{describe_line(node)}" if node is not None else ""
    return ModelError(f"ONNX has no counterpart for the operator {operator[1]}{module_text}", hint=_OPERATOR_HINT)


def _name_inputs_and_outputs(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name the inputs and outputs of the graph.

    A value has one name only. So an output that is also an input, an initializer or another output gets an Identity.
    """
    for value, name in zip(graph.inputs, inputs, strict=True):
        value.name = name
    named_values: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    for index, (value, name) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        # An output of the mode eval() gets one too, so that its node can be merged with the same node of the step.
        if value in named_values or name.startswith(EVALUATION_PREFIX):
            node = ir.node("Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = value = node.outputs[0]
        named_values.add(value)
        value.name = name


def _drop_equal_evaluation(graph: ir.Graph) -> None:
    """Remove the outputs of the mode eval() if they equal those of the step, and the step draws no random numbers."""
    outputs = {str(value.name): value for value in graph.outputs}
    pairs = [
        (value, outputs[name.removeprefix(EVALUATION_PREFIX)])
        for name, value in outputs.items()
        if name.startswith(EVALUATION_PREFIX)
    ]
    is_random = any(str(value.name).startswith(RANDOM_PREFIX) for value in graph.inputs)
    if not is_random and all(_source(value) is _source(other) for value, other in pairs):
        for value, _ in pairs:
            graph.outputs.remove(value)


def _source(value: ir.Value) -> ir.Value:
    """Return the value that a chain of Identities copies."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _name_nodes(graph: ir.Graph) -> None:
    """Name each node after its module and op type, and each value after its node.

    Examples: ``/encoder/linear1/Gemm``, in the backward pass ``/grad/encoder/linear1/MatMul``, and ``..._1`` for the
    second node of a name.
    """
    # A set of values, not of names: torch names inner values after operators, and an output may have the same name.
    graph_outputs = set(graph.outputs)
    counts: Counter[str] = Counter()
    module_paths: dict[ir.Node | None, str] = {}
    for node in graph:
        module_path = _read_module_path(node)
        if module_path is None:
            # An optimization of the exporter made this node. It gets the module path of the first input that has
            # a producer.
            module_path = next(
                (module_paths[value.producer()] for value in node.inputs if value and value.producer()), ""
            )
        module_paths[node] = module_path
        name = "/" + "/".join([*(part for part in module_path.split(".") if part), node.op_type])
        count = counts[name]
        counts[name] += 1
        node.name = f"{name}_{count}" if count else name
        for index, value in enumerate(node.outputs):
            if value.name and value not in graph_outputs:
                value.name = f"{node.name}_output_{index}"


def _name_constants(graph: ir.Graph, module_constants: Mapping[str, Tensor]) -> None:
    """Name the initializers that are not tensors of the module: ``constant.<n>``."""
    values = [value for name, value in graph.initializers.items() if name not in module_constants]
    # Twice, because the new name of one value may be the old name of another.
    for prefix in ("renamed", "constant"):
        for index, value in enumerate(values):
            value.name = f"{prefix}.{index}"


def _read_module_path(node: ir.Node) -> str | None:
    """Return the module path of a node, such as ``encoder.linear1``; None if the exporter did not record it."""
    # The list has the path that tracing has set, then the name of the node. For a node without a path, the exporter
    # writes the node's name alone, or its dummy path "_empty_nn_module_stack..." before the name.
    names = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    return None if len(names) < 2 or names[0].startswith("_empty_nn_module") else names[0]


def _name_sizes(graph: ir.Graph, sizes: Mapping[str, SymInt]) -> None:
    """Replace torch's symbols for sizes by their names in all declared shapes."""
    name_of = {str(size): name for name, size in sizes.items()}
    for value in chain(graph.inputs, *(node.outputs for node in graph)):
        shape = value.shape or ir.Shape([])
        for axis, size in enumerate(shape):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                # A symbol may be a part of an expression, such as ``4*s0``.
                shape[axis] = re.sub(r"\w+", lambda match: name_of.get(match[0], match[0]), str(size.value))


def _remove_exporter_metadata(model: ir.Model) -> None:
    """Remove the metadata of torch's exporter from nodes and values.

    It holds stack traces with paths of this machine, and would be most of the file.
    """
    passes.ClearMetadataAndDocStringPass()(model)
    graph = model.graph
    values = chain(graph.inputs, graph.initializers.values(), *(node.outputs for node in graph))
    for metadata in (model.metadata_props, graph.metadata_props, *(value.metadata_props for value in values)):
        metadata.clear()
