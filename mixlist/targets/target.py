"""Read the table of a target: which operators it runs in which types, and what happens to a node that it cannot run.

A *target* is the program that runs the mixed model: ``cpu``, ``cuda``, ``webgpu`` and ``dml`` (DirectML) are execution
providers of ONNX Runtime, ``tensorrt`` is the ONNX parser of TensorRT. Scripts in tools/ write their tables into data/,
and each table names its source with the version. Every other target is a file of the same form, which
schemas/target.json describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

from mixlist.errors import ListError, UsageError, raise_for_errors
from mixlist.files import jsonc
from mixlist.lists.op_catalog import onnx_domains
from mixlist.lists.suggestions import did_you_mean, sure_correction
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.load import LoadedModel
from mixlist.model.schema import Schema, find_schema
from mixlist.targets.providers import (
    DATA,
    PROVIDERS,
    Kernel,
    KernelRows,
    Registry,
    TargetName,
    can_list_kernels,
    parse_registry,
    read_registered_kernels,
)

# What happens to a node without a kernel: the target runs it in float32 between Casts, ONNX Runtime's CPU provider runs
# it, or the model does not load.
Otherwise = Literal["cast", "fallback", "refusal"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)  # the targets with a table in data/
FORMAT = "mixlist.target/1"
_REQUIRED = ("name", "source", "otherwise", "kernels")
_FORMS: dict[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "source": (str, "a text"),
    "note": (str, "a text"),
    "otherwise": (dict, "an object"),
    "inlines_functions": (bool, "true or false"),
    "strongly_typed": (bool, "true or false"),
    "opsets": (list, "the first and the last version, such as [9, 24]"),
    "tensor_types": (str, 'a text with names of types, such as "float float16 int64"'),
    "kernels": (dict, "an object"),
}
_KEYS = ("$schema", "format", *_FORMS)
_TYPE_NAMES = "write float16, bfloat16, float (float32), double (float64), int64 or another name of ONNX's schemas"


@dataclass(frozen=True)
class Target:
    """The table of a target.

    ``source``: the release that the table describes; "" if the kernels are those of the installed ONNX Runtime.
    ``note``: what the table does not say, or what holds for some devices or releases only; "" if there is nothing.
    ``otherwise``: by low type, what happens to a node without a kernel in this type.
    ``inlines_functions``: whether an operator without a kernel runs as its function body in ONNX.
    ``strongly_typed``: whether the target takes the types as they are, without a conversion of its own.
    ``opsets``: the first and the last version of the standard domain that the target reads; None for any.
    ``tensor_types``: the element types that a tensor may have, by onnx's names in schemas; empty for any.
    ``kernels``: the kernels by domain and op type.
    """

    name: str
    source: str
    otherwise: Mapping[str, Otherwise]
    kernels: Registry
    inlines_functions: bool = False
    strongly_typed: bool = False
    opsets: tuple[int, int] | None = None
    tensor_types: frozenset[str] = frozenset()
    note: str = ""

    def runs(
        self,
        domain: str,
        op_type: str,
        opset: int,
        dtype: str,
        outputs: tuple[int, ...],
        attributes: Mapping[str, str] | None = None,
    ) -> bool:
        """Return True if the target has a kernel of the operator in ``dtype``, an element type by onnx's schema name.

        ``outputs`` are the slots of the outputs of this type. If there are none (as with ArgMax and Equal), the kernel
        must accept the type for at least one parameter. ``attributes`` are the node's attributes that are texts; None:
        their values do not matter. With ``inlines_functions``, the result is also True if the operator has no kernel,
        but a function body in ONNX.
        """
        schema = find_schema(domain, op_type, opset)
        kernels = self.kernels.get((domain, op_type))
        if schema is None or kernels is None:
            # mixlist knows no schema, or the target has no kernel: only a function body can help.
            onnx_schema = schema.onnx_schema if schema is not None and self.inlines_functions else None
            return onnx_schema is not None and bool(
                onnx_schema.has_function or onnx_schema.has_context_dependent_function
            )
        # From output slots to type parameters: output 0 of MatMul has the parameter T. A variadic output has one formal
        # slot for each of its actual slots.
        slots = schema.formal_slots(schema.outputs, max(outputs, default=-1) + 1)
        parameters = {slots[index].parameter for index in outputs if index < len(slots)}
        return any(
            kernel.fits(schema.since_version)
            and kernel.accepts(dtype, parameters)
            and (attributes is None or _allows(kernel, schema, attributes))
            for kernel in kernels
        )

    def find_otherwise(
        self,
        domain: str,
        op_type: str,
        opset: int,
        low: str,
        outputs: tuple[int, ...],
        attributes: Mapping[str, str] | None = None,
    ) -> Otherwise:
        """Return what happens to a node for which the target has no kernel in the type ``low`` (Rule S13.3)."""
        subject = (domain, op_type, opset)
        if self.runs(*subject, low, outputs):  # only the attributes refuse: the target finds a kernel and casts nothing
            return "refusal"
        otherwise = self.otherwise.get(low, "refusal")
        if otherwise == "cast" and not self.runs(*subject, "float", outputs, attributes):
            return "refusal"
        if otherwise == "fallback":
            cpu = load_target("cpu")
            runs_on_cpu = cpu.runs(*subject, low, outputs, attributes)
            if not runs_on_cpu and cpu.find_otherwise(*subject, low, outputs, attributes) == "refusal":
                return "refusal"
        return otherwise


def _allows(kernel: Kernel, schema: Schema, attributes: Mapping[str, str]) -> bool:
    """Return True if a kernel runs a node with these attributes; one that is absent has the default of its schema."""
    defaults = schema.onnx_schema.attributes if schema.onnx_schema is not None else {}
    for name, texts in kernel.attributes.items():
        default = defaults[name].default_value.s.decode() if name in defaults else ""
        text = attributes.get(name, default)
        if text and text not in texts:
            return False
    return True


@cache
def load_target(name: str) -> Target:
    """Return the target with the table ``name``, or that of the file ``name``.

    The kernels of ``cpu`` and ``cuda`` are those of the installed ONNX Runtime where it can list them. Raises
    UsageError if ``name`` is no table and no file, FileError if the file cannot be read, and ListError if it is no
    table.
    """
    if name not in TARGETS:
        if not Path(name).exists():
            hint = f"write one of {', '.join(TARGETS)}, or the path of a table"
            raise UsageError(f"there is no target {name} and no file of this name", hint=hint)
        return _read_table(name)
    target = _read_table(str(DATA / f"{name}.json"))
    if name in PROVIDERS and can_list_kernels(name):
        return replace(target, source="", kernels=read_registered_kernels(name))
    return target


def _read_table(path: str) -> Target:
    """Return the target of a file; the docstring of ``load_target`` names the errors."""
    document = jsonc.read(path)
    raise_for_errors(document.findings)
    steps, problem = _find_problem(document.value)
    if problem:
        line, column = document.line_column(steps)
        message = f"{document.path}:{line}:{column}: {problem}"
        raise ListError(message, hint="docs/reference/files.md describes the form; schemas/target.json has its schema")
    table = cast(Mapping[str, object], document.value)
    opsets = cast("list[int] | None", table.get("opsets"))
    return Target(
        name=str(table["name"]),
        source=str(table["source"]),
        otherwise=cast(Mapping[str, Otherwise], table["otherwise"]),
        kernels=parse_registry(cast(KernelRows, table["kernels"])),
        inlines_functions=table.get("inlines_functions") is True,
        strongly_typed=table.get("strongly_typed") is True,
        opsets=None if opsets is None else (opsets[0], opsets[1]),
        tensor_types=frozenset(str(table.get("tensor_types", "")).split()),
        note=str(table.get("note", "")),
    )


def _find_problem(table: object) -> tuple[tuple[str | int, ...], str]:
    """Return the place and the text of the first fault of a table; an empty text if it has none."""
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        return (), f'this is no table of a target: the key "format" must be "{FORMAT}"'
    for key in table:
        if key not in _KEYS:
            suggestion = did_you_mean(key, _KEYS)
            return (key,), f"a table has no key {key!r}" + (f": {suggestion}" if suggestion else "")
    for key, (kind, description) in _FORMS.items():
        value = table.get(key)
        if not isinstance(value, kind) and (key in table or key in _REQUIRED):
            return ((key,) if key in table else ()), f'"{key}" must be {description}'
    for low, outcome in table["otherwise"].items():
        if low not in ("float16", "bfloat16") or outcome not in ("cast", "fallback", "refusal"):
            return ("otherwise", low), '"otherwise" must map float16 and bfloat16 to "cast", "fallback" or "refusal"'
    opsets = table.get("opsets", [1, 1])
    if len(opsets) != 2 or not all(type(version) is int for version in opsets):
        return ("opsets",), '"opsets" must be the first and the last version, such as [9, 24]'
    if unknown_names := dtypes.find_unknown_schema_names(table.get("tensor_types", "")):
        return ("tensor_types",), f"there is no type {unknown_names[0]!r}: {_TYPE_NAMES}"
    return _find_kernel_problem(table["kernels"])


def _find_kernel_problem(kernels: Mapping[str, object]) -> tuple[tuple[str | int, ...], str]:
    """Return the place and the text of the first fault in ``kernels``."""
    for domain, operators in kernels.items():
        if not isinstance(operators, dict):
            return ("kernels", domain), "a domain must map op types to their kernels"
        known = onnx_domains().get(domain, frozenset())
        for op_type, rows in operators.items():
            # A table can have operators that this version of mixlist does not know, but no misspelled ones.
            name = None if op_type in known else sure_correction(op_type, known)
            if name is not None:
                return ("kernels", domain, op_type), f"there is no operator {op_type!r}: did you mean {name}?"
            if not isinstance(rows, list):
                return ("kernels", domain, op_type), "the kernels of an operator must be a list"
            for index, row in enumerate(rows):
                if problem := _find_row_problem(row):
                    return ("kernels", domain, op_type, index), problem
    return (), ""


def _find_row_problem(row: object) -> str:
    """Return the fault of a kernel; a kernel without fault is ``[7, 12, {"T": "float16 float"}]``."""
    if not _is_kernel_row(row):
        row_form = '[first version, last version or null, {"T": "float16 float"}]'
        return f"a kernel must be {row_form}, with the texts of attributes as a fourth element if it does not take all"
    types = cast("list[dict[str, str]]", row)[2]
    unknown_names = dtypes.find_unknown_schema_names(" ".join(types.values()))
    return f"there is no type {unknown_names[0]!r}: {_TYPE_NAMES}" if unknown_names else ""


def _is_kernel_row(row: object) -> bool:
    """Return True if a value has the form of a kernel."""
    if not isinstance(row, list) or len(row) not in (3, 4):
        return False
    start, end, *texts = row
    has_versions = type(start) is int and (end is None or type(end) is int)
    has_texts = all(isinstance(part, dict) and all(isinstance(t, str) for t in part.values()) for part in texts)
    return has_versions and has_texts


# --- ONNX Runtime's CPU provider ---


def describe_refused_bfloat16(loaded: LoadedModel) -> str:
    """Return that ONNX Runtime's CPU provider does not load a model, and why; "" if no bfloat16 node is the reason.

    The provider inserts Casts around a float16 node without a kernel, but not around a bfloat16 node (Rule S13.3).
    """
    cpu, counts = load_target("cpu"), {True: 0, False: 0}
    # The nodes have the types in which they run, so the Casts of mixlist must be in the graph.
    graph = build_graph(loaded.proto, show_marked_casts=True)
    for node in graph.nodes:
        outputs = tuple(
            slot
            for slot, value in enumerate(node.outputs)
            if value is not None and dtypes.element(value.type) == dtypes.BFLOAT16
        )
        # ONNX Runtime runs the nodes inside a function instead of its call.
        if not outputs or node.bodies or node.is_call or node.op_type in ("Cast", "Constant"):
            continue
        opset = graph.opsets.get(node.domain, 1)
        counts[cpu.runs(node.domain, node.op_type, opset, "bfloat16", outputs)] += 1
    if not counts[False]:
        return ""
    return (
        f"ONNX Runtime's CPU provider does not load {loaded.name}: it has no kernel for {counts[False]} of its"
        f" {sum(counts.values())} bfloat16 nodes"
    )
