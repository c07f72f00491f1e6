"""Short ways to write models and policies in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import onnx
from onnx import TensorProto, helper, parser

from mixlist import Policy
from mixlist.diagnostics import FilePlace
from tests.support.package import (
    Constants,
    GrayPolicy,
    Library,
    ListName,
    Lists,
    Mode,
    Move,
    NameSpace,
    NodeRule,
    Protection,
)
from tests.support.scopes import MARK, subgraphs

MODES = {
    "mixed_float16": Mode("mixed_float16", "lists", "float16"),
    "mixed_bfloat16": Mode("mixed_bfloat16", "lists", "bfloat16"),
    "fp16": Mode("fp16", "force", "float16"),
    "origin": Mode("origin", "origin", "float16"),
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise", "float16"),
    "allow_fp32_to_fp16": Mode("allow_fp32_to_fp16", "cube", "float16"),
}
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text: str, *, check: bool = True) -> onnx.ModelProto:
    """Parse and check a model in ONNX text; the default header is IR 8, opset 17.

    A node named ``mixlist`` represents one that mixlist made: it gets the mark and loses the name.
    The numbers of a float16 or bfloat16 constant, which ONNX's parser reads as bit patterns, are read
    as integer values.
    """
    parsed = parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [parsed.graph, *parsed.functions]
    while bodies:
        body = bodies.pop()
        for tensor in getattr(body, "initializer", []):
            _read_values(tensor)
        for node in body.node:
            for attr in node.attribute:
                _read_values(attr.t)
            if node.name == "mixlist":
                node.name = ""
                node.metadata_props.add(key=f"{MARK}test", value="1")
            bodies.extend(graph for _, graph in subgraphs(node))
    if check:
        onnx.checker.check_model(parsed, full_check=True)
    return parsed


def _read_values(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        values = [float(x) for x in tensor.int32_data]
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), values))


def policy(
    *,
    white: Iterable[str] = (),
    black: Iterable[str] = (),
    mode: str = "mixed_float16",
    gray_policy: GrayPolicy = "ascend",
    constants: Constants = "keep",
    rules: tuple[NodeRule, ...] = (),
    clear: Iterable[str] = (),
    edits: Mapping[str, ListName] | None = None,
    protect: Iterable[Protection] = (),
    space: NameSpace = "onnx",
) -> Policy:
    """Build a policy whose library has only these op types, in the names of the space; other op types are gray.

    ``edits`` are the op types of a modify_mixlist file, each with the list to which the file moves it.
    """
    lists: dict[str, ListName] = dict.fromkeys(white, "white") | dict.fromkeys(black, "black")  # type: ignore[assignment]
    library = Library("test", lists, space=space, clear_ops=frozenset(clear))
    at = FilePlace("modify.json", 2, 9)
    moves = {op: Move(op, lists.get(op, "gray"), to, at) for op, to in (edits or {}).items()}
    content = repr(
        (
            sorted(lists.items()),
            sorted((edits or {}).items()),
            mode,
            gray_policy,
            constants,
            rules,
            sorted(library.clear_ops),
            sorted(protect),
            space,
        )
    )
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Policy(
        mode=MODES[mode],
        lists=Lists(library, moves, frozenset(moves)),
        rules=rules,
        gray_policy=gray_policy,
        constants=constants,
        protect=frozenset(protect),
        op_names=space,
        space=space,
        digest=digest,
    )


def keep(*names: str, by_type: bool = False) -> tuple[NodeRule, ...]:
    """Build node rules that keep the authored type of nodes, by name or by op type."""
    kind = "type" if by_type else "name"
    return tuple(NodeRule(kind, n, True, FilePlace("keep.cfg", i + 1, 1)) for i, n in enumerate(names))  # type: ignore[arg-type]


def customize(
    name: str, inputs: Iterable[str | None], outputs: Iterable[str | None], *, by_type: bool = False
) -> NodeRule:
    """Build the node rule of one line of a customize_dtypes file."""
    kind = "type" if by_type else "name"
    return NodeRule(kind, name, False, FilePlace("custom.cfg", 1, 1), tuple(inputs), tuple(outputs))  # type: ignore[arg-type]


def apply(original: onnx.ModelProto, rules: Policy, **options: object) -> onnx.ModelProto:
    """Resolve a model and rewrite it in memory."""
    import mixlist

    result = mixlist.rewrite(original, mixlist.resolve(original, rules, **options))
    assert isinstance(result.model, onnx.ModelProto)
    return result.model


def loop_model(size: str = "N") -> onnx.ModelProto:
    """Return a model with a Loop whose body reads its state, which starts as the output of ``pre``."""
    text = f"b (int64 i, bool c, float[{size}, 4] s) => (bool co, float[{size}, 4] so) "
    body = onnx.parser.parse_graph(text + "{ [keep] co = Identity(c) [square] so = Mul(s, s) }")
    built = model(
        f"g (float[{size}, 4] x) => (float[{size}, 4] y) {{ [pre] a = Exp(x) [post] y = Relu(l) }}", check=False
    )
    built.graph.node.insert(1, onnx.helper.make_node("Loop", ["n", "", "a"], ["l"], "loop", body=body))
    built.graph.initializer.append(onnx.helper.make_tensor("n", onnx.TensorProto.INT64, [], [3]))
    onnx.checker.check_model(built, full_check=True)
    return built
