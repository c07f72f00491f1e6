#!/usr/bin/env python3
"""Write mixlist/targets/data/webgpu.json and dml.json: the kernels of two providers, from ONNX Runtime's source.

    python tools/make_source_kernels.py CHECKOUT COMMIT [FOLDER]

CHECKOUT is a folder with ONNX Runtime's source at COMMIT. No wheel lists these kernels: WebGPU's are not in
``get_all_opkernel_def``, and DirectML runs on Windows only.

- WebGPU: the C++ files of the provider. The C preprocessor (``cpp``) expands the macros that register kernels.
- DirectML: its table in docs/OperatorKernels.md, which ONNX Runtime generates from the registered kernels.

As in the files of tools/make_kernels.py, only the versions and the float types of each type parameter are kept.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from make_kernels import merge_kernels, row, text

from mixlist.targets.providers import DATA, FLOAT_NAMES, Kernel
from mixlist.targets.target import FORMAT

NOTES = {
    "webgpu": (
        "float16 needs the feature shader-f16 of the adapter (core/providers/webgpu/shader_helper.cc), and no kernel"
        " computes in bfloat16: kernels that take every type only copy it"
    ),
    "dml": (
        "a device without native 16-bit shader operations runs fewer float16 nodes, and the attributes and shapes that"
        " DirectML refuses are not in the table (core/providers/dml/DmlExecutionProvider/src/ExecutionProvider.cpp)"
    ),
}

# --- WebGPU ---

FOLDERS = ("onnxruntime/core/providers/webgpu", "onnxruntime/contrib_ops/webgpu")
DOMAINS = {"kOnnxDomain": "", "kMSDomain": "com.microsoft"}  # without the one of NHWC, which no model has
# Each macro of ONNX Runtime becomes a mark with its arguments. DEFINED is a kernel, and LISTED its name in a table of
# kernels to register.
MACROS = """
#define ONNX_OPERATOR_KERNEL_EX(name, domain, start, provider, builder, ...) \
    DEFINED<domain|name|start||> builder DEFINED_END
#define ONNX_OPERATOR_TYPED_KERNEL_EX(name, domain, start, type, provider, builder, ...) \
    DEFINED<domain|name|start||type> builder DEFINED_END
#define ONNX_OPERATOR_VERSIONED_KERNEL_EX(name, domain, start, end, provider, builder, ...) \
    DEFINED<domain|name|start|end|> builder DEFINED_END
#define ONNX_OPERATOR_VERSIONED_TYPED_KERNEL_EX(name, domain, start, end, type, provider, builder, ...) \
    DEFINED<domain|name|start|end|type> builder DEFINED_END
#define ONNX_OPERATOR_KERNEL_CLASS_NAME(provider, domain, start, name) LISTED<domain|name|start||>
#define ONNX_OPERATOR_TYPED_KERNEL_CLASS_NAME(provider, domain, start, type, name) LISTED<domain|name|start||type>
#define ONNX_OPERATOR_VERSIONED_KERNEL_CLASS_NAME(provider, domain, start, end, name) LISTED<domain|name|start|end|>
#define ONNX_OPERATOR_VERSIONED_TYPED_KERNEL_CLASS_NAME(provider, domain, start, end, type, name) \
    LISTED<domain|name|start|end|type>
"""
KEY = r"<\s*(\w+)\s*\|\s*(\w+)\s*\|\s*(\d+)\s*\|\s*(\d*)\s*\|\s*(\w*)\s*>"
DEFINED = re.compile(rf"DEFINED{KEY}(.*?)DEFINED_END", re.DOTALL)
LISTED = re.compile(rf"BuildKernelCreateInfo<\s*class\s+LISTED{KEY}")
# Some kernels are made by a function, such as CreateCastKernelInfo(6, 8): the arguments are the versions or a type.
MAKER = re.compile(r"^KernelCreateInfo (\w+)\([^)]*\) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
MAKER_CALL = re.compile(r"Register\(\s*(\w+)(?:<([^>]*)>)?\(([^)]*)\)")
VARIABLE = re.compile(r"(?:const auto&|std::vector<MLDataType>) (\w+)(?: = |\{)([^;]*);")
# Elementwise operators with two inputs have a call each: RegisterBinaryOp(registry, "Add", create, types, {{7, 12}}).
BINARY = re.compile(r'RegisterBinaryOp\(\s*\w+,\s*"(\w+)",[^,]*,\s*(\w+),\s*\{\{(.*?)\}\}(?:,\s*&(\w+))?\)')
# The C++ functions and aliases that give the types of a type parameter.
TYPE_FUNCTION = re.compile(r"std::vector<MLDataType>&? (\w+)\([^)]*\) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
TYPE_ALIAS = re.compile(r"using (\w+)\s*=\s*(TypeList<[^;]*);")
ALL_TYPES = re.compile(r"All\w*TensorTypes\w*")
CPP_FLOATS = {"float": "float", "double": "double", "MLFloat16": "float16", "BFloat16": "bfloat16"}
CPP_OTHERS = frozenset(
    {"bool", *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)), "Int4x2", "UInt4x2"}
)


class KernelKey(NamedTuple):
    """The name of a kernel in the source; ``end`` and ``type`` are empty texts if there are none."""

    domain: str
    op_type: str
    start: str
    end: str
    type: str


def preprocess(path: Path) -> str:
    """Return a C++ file with its own macros expanded, and with the marks of ``MACROS``."""
    source = re.sub(r"^\s*#\s*include.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    command = ["cpp", "-P", "-undef", "-nostdinc", "-w", "-x", "c++", "-"]
    return subprocess.run(command, input=MACROS + source, capture_output=True, text=True, check=True).stdout


class TypeReader:
    """Resolves the C++ expressions of type constraints to the names of float types."""

    def __init__(self, sources: list[str]) -> None:
        self.definitions: dict[str, str] = {}
        for source in sources:
            self.definitions.update(TYPE_FUNCTION.findall(source))
            self.definitions.update(TYPE_ALIAS.findall(source))

    def read(self, expression: str) -> frozenset[str]:
        """Return the float types of an expression. An expression without a known type is an error."""
        if ALL_TYPES.search(expression):
            return frozenset(FLOAT_NAMES)
        words = set(re.findall(r"\w+", expression))
        types = {CPP_FLOATS[word] for word in words if word in CPP_FLOATS}
        names = words & self.definitions.keys()
        if not types and not names and not words & CPP_OTHERS:
            raise SystemExit(f"no type is known in the constraint {expression.strip()!r}")
        return frozenset(types.union(*(self.read(self.definitions[name]) for name in names)))

    def constraints(self, builder: str) -> dict[str, frozenset[str]]:
        """Return the float types by type parameter of a chain of ``.TypeConstraint("T", types)``."""
        return {parameter: self.read(expression) for parameter, expression in find_constraints(builder)}


def find_constraints(builder: str) -> Iterator[tuple[str, str]]:
    """Yield the type parameter and the C++ expression of each type constraint."""
    for match in re.finditer(r'TypeConstraint\(\s*"(\w+)",', builder):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(builder[end], 0)
            end += 1
        yield match[1], builder[match.end() : end - 1]


def read_makers(sources: list[str], reader: TypeReader) -> dict[KernelKey, dict[str, frozenset[str]]]:
    """Return the kernels that a function makes and a call registers."""
    bodies = {name: body for source in sources for name, body in MAKER.findall(source)}
    kernels = {}
    for name, template_arguments, arguments in (call for source in sources for call in MAKER_CALL.findall(source)):
        body = bodies[name]
        # The arguments are the versions, if the body does not have them.
        versions = re.findall(r"\b\d+\b", f"{template_arguments} {arguments}")
        versions = versions or re.findall(r"SinceVersion\((\d+)\)", body)
        type_name = "" if re.search(r"\d", template_arguments[:1]) else template_arguments
        body = re.sub(r"\bT\b(?!\")", type_name, body) if type_name else body
        # A variable of the function holds the types of several parameters.
        for variable, expression in VARIABLE.findall(body):
            body = re.sub(rf"\b{variable}\b", lambda _, types=expression: types, body)
        domain, op_type = re.findall(r"SetDomain\((\w+)\)", body)[0], re.findall(r'SetName\("(\w+)"\)', body)[0]
        key = KernelKey(domain, op_type, versions[0], "".join(versions[1:]), type_name)
        kernels[key] = reader.constraints(body)
    return kernels


def read_binary_operators(sources: list[str], reader: TypeReader) -> dict[KernelKey, dict[str, frozenset[str]]]:
    """Return the kernels of the elementwise operators with two inputs."""
    kernels = {}
    for source in sources:
        variables = dict(VARIABLE.findall(source))
        for op_type, types, ranges, exponent_types in BINARY.findall(source):
            for versions in ranges.split("}, {"):
                start, end = (version.strip() for version in versions.split(","))
                names = {"T": types, **({"T1": exponent_types} if exponent_types else {})}
                key = KernelKey("kOnnxDomain", op_type, start, end if end.isdigit() else "", "")
                kernels[key] = {parameter: reader.read(variables[name]) for parameter, name in names.items()}
    return kernels


def read_webgpu(checkout: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the rows of the WebGPU provider by domain and op type."""
    files = [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.*"))]
    sources = [preprocess(path) for path in files if path.suffix in (".cc", ".h")]
    reader = TypeReader(sources)
    defined = {
        KernelKey(*key): reader.constraints(builder) for source in sources for *key, builder in DEFINED.findall(source)
    }
    listed = [KernelKey(*key) for source in sources for key in LISTED.findall(source)]
    if missing := [key for key in listed if key not in defined and key.domain in DOMAINS]:
        raise SystemExit(f"these registered kernels have no definition: {missing}")
    kernels = {key: defined[key] for key in listed if key in defined}
    kernels |= read_makers(sources, reader) | read_binary_operators(sources, reader)
    registry: dict[tuple[str, str], list[Kernel]] = {}
    for key, types in kernels.items():
        if key.domain in DOMAINS and not key.op_type.startswith("Memcpy"):
            kernel = Kernel(int(key.start), int(key.end) if key.end else None, types)
            registry.setdefault((DOMAINS[key.domain], key.op_type), []).append(kernel)
    return make_rows(registry)


# --- DirectML ---

ROW = re.compile(r"^\|(?P<op>\w*)\|[^|]*\|(?P<versions>[^|]+)\|(?P<types>.*)\|$")
DOMAIN = re.compile(r"^\|\*\*Operator Domain:\*\* \*([\w.]+)\*")
VERSIONS = re.compile(r"\[?(?P<start>\d+)(?:, (?P<end>\d+)\]|(?P<open>\+)?)$")
CONSTRAINT = re.compile(r"\*\*(\w+)\*\* = ([^*]*)")


def read_dml(checkout: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the rows of the DirectML provider by domain and op type."""
    page = (checkout / "docs" / "OperatorKernels.md").read_text(encoding="utf-8")
    section = page.partition("## Operators implemented by DmlExecutionProvider")[2].partition("\n## ")[0]
    registry: dict[tuple[str, str], list[Kernel]] = {}
    domain = op_type = ""
    for line in section.splitlines():
        if header := DOMAIN.match(line):
            domain = header[1].replace("ai.onnx", "") if header[1] == "ai.onnx" else header[1]
        elif (match := ROW.match(line)) and (versions := VERSIONS.match(match["versions"])):
            op_type = match["op"] or op_type  # further rows of an operator have an empty first cell
            end = None if versions["open"] else int(versions["end"] or versions["start"])
            types = {parameter: read_float_names(names) for parameter, names in CONSTRAINT.findall(match["types"])}
            registry.setdefault((domain, op_type), []).append(Kernel(int(versions["start"]), end, types))
    if not registry:
        raise SystemExit("docs/OperatorKernels.md has no table of the DmlExecutionProvider")
    return make_rows(registry)


def read_float_names(names: str) -> frozenset[str]:
    """Return the float types in a cell such as ``tensor(float), seq(tensor(float16))``."""
    return frozenset(re.findall(r"\((\w+)\)", names)) & frozenset(FLOAT_NAMES)


# --- the files ---


def make_rows(registry: dict[tuple[str, str], list[Kernel]]) -> dict[str, dict[str, list[Any]]]:
    """Return kernels as rows of a file. An operator without a kernel in a float type has no row."""
    rows: dict[str, dict[str, list[Any]]] = {}
    for (domain, op_type), kernels in sorted(registry.items()):
        with_floats = tuple(kernel for kernel in kernels if any(kernel.types.values()))
        rows.setdefault(domain, {})[op_type] = sorted(map(row, merge_kernels(with_floats)), key=json.dumps)
    return rows


def make(name: str, checkout: Path, commit: str) -> dict[str, Any]:
    """Return the table of a provider."""
    version = (checkout / "VERSION_NUMBER").read_text(encoding="utf-8").strip()
    kernels, place = {
        "webgpu": (read_webgpu, "the registrations in core/providers/webgpu"),
        "dml": (read_dml, "docs/OperatorKernels.md"),
    }[name]
    return {
        "format": FORMAT,
        "name": name,
        "source": f"ONNX Runtime {version}, commit {commit}, {place}",
        "note": NOTES[name],
        "otherwise": {"float16": "fallback", "bfloat16": "fallback"},
        "inlines_functions": True,
        "kernels": kernels(checkout),
    }


def _operators(kernels: dict[str, dict[str, list[Any]]]) -> set[str]:
    return {op_type for of_domain in kernels.values() for op_type in of_domain}


def main() -> None:
    """Write the two tables."""
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[3]) if len(sys.argv) == 4 else DATA
    for name in NOTES:
        table, path = make(name, Path(sys.argv[1]), sys.argv[2]), folder / f"{name}.json"
        if path.exists():  # a new form of registration that this script cannot read shows as lost operators
            old = json.loads(path.read_text(encoding="utf-8"))["kernels"]
            if lost := _operators(old) - _operators(table["kernels"]):
                raise SystemExit(f"{name} has no kernels any more for {sorted(lost)}: if that is right, delete {path}")
        path.write_text(text(table), encoding="utf-8")


if __name__ == "__main__":
    main()
