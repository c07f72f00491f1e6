"""Test that damaged models are refused with the name of the damaged part, and that harmless oddities are accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import mixlist
from mixlist.errors import MixlistError
from tests.support.builders import model

TEXT = """g (float[4,4] x, bool c) => (float[4,4] y)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
    [mm] a = MatMul(x, w)
    [k] k = Constant<value_float=1.0>()
    [add] b = Add(a, k)
    [cast] d = Cast<to=10>(b)
    [back] e = Cast<to=1>(d)
    [if] y = If(c) <then_branch = t () => (float[4,4] p) { p = Relu(e) },
                    else_branch = f () => (float[4,4] q) { q = Exp(e) }> }"""
Damage = Callable[[onnx.ModelProto], object]


def node(m: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Return the node of the main graph with this name."""
    return next(n for n in m.graph.node if n.name == name)


def weight(**fields: object) -> Damage:
    """Return a damage that changes fields of the weight ``w``; ``raw_data`` replaces its numbers."""

    def damage(m: onnx.ModelProto) -> None:
        tensor = m.graph.initializer[0]
        if "raw_data" in fields:
            tensor.ClearField("float_data")
        if "dims" in fields:
            del tensor.dims[:]
        tensor.MergeFrom(onnx.TensorProto(**fields))  # type: ignore[arg-type]

    return damage


def external(**entries: str) -> Damage:
    """Return a damage that moves the weight to ``w.data`` (64 bytes) and changes these entries; "" removes an entry."""

    def damage(m: onnx.ModelProto) -> None:
        tensor = m.graph.initializer[0]
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in ({"location": "w.data", "offset": "0", "length": "64"} | entries).items():
            if value:
                tensor.external_data.add(key=key, value=value)

    return damage


def add_entries(*entries: tuple[str, str]) -> Damage:
    """Return a damage that moves the weight to ``w.data`` and adds entries of external data."""

    def damage(m: onnx.ModelProto) -> None:
        external()(m)
        for key, value in entries:
            m.graph.initializer[0].external_data.add(key=key, value=value)

    return damage


def attribute(node_name: str, name: str, value: object) -> Damage:
    """Return a damage that replaces the first attribute of a node."""
    return lambda m: node(m, node_name).attribute[0].CopyFrom(helper.make_attribute(name, value))


def version(number: int) -> Damage:
    """Return a damage that changes the opset version."""
    return lambda m: setattr(m.opset_import[0], "version", number)


def rename_outputs(graph: onnx.GraphProto, name: str) -> None:
    """Give the output of a graph, and of the node that makes it, another name."""
    graph.output[0].name = graph.node[-1].output[0] = name


def declare_shape(info: onnx.ValueInfoProto, *sizes: int) -> None:
    """Declare another shape of a tensor."""
    info.CopyFrom(helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, sizes))


REFUSED: dict[str, tuple[Damage, str]] = {
    "Cast without to": (lambda m: node(m, "cast").ClearField("attribute"), r"'cast' \(Cast\) has no attribute 'to'"),
    "to is a float": (attribute("cast", "to", 1.0), r"'to' of node 'cast' \(Cast\) must be INT"),
    "to is no type": (attribute("cast", "to", 99), r"'to' of node 'cast' \(Cast\) is 99"),
    "Constant without value": (lambda m: node(m, "k").ClearField("attribute"), "'k'.*has no value"),
    "If with one branch": (lambda m: node(m, "if").attribute.pop(), "'if'.*has no else_branch"),
    "If without input": (lambda m: node(m, "if").ClearField("input"), "'if'.*has no condition"),
    "If with an omitted condition": (lambda m: node(m, "if").input.__setitem__(0, ""), "'if'.*has no condition"),
    "branch twice": (
        lambda m: node(m, "if").attribute.append(node(m, "if").attribute[0]),
        r"'if' \(If\) has 2 attributes named 'then_branch'",
    ),
    "to twice": (
        lambda m: node(m, "cast").attribute.append(node(m, "cast").attribute[0]),
        r"'cast' \(Cast\) has 2 attributes named 'to'",
    ),
    "branch is a number": (attribute("if", "then_branch", 1), "'if'.*has no then_branch"),
    "branch without output": (
        lambda m: node(m, "if").attribute[0].g.output.pop(),
        "then_branch returns another number",
    ),
    "MatMul with one input": (lambda m: node(m, "mm").input.pop(), "'mm'.*1 inputs.*needs 2"),
    "marked Cast without output": (
        lambda m: m.graph.node.add(
            op_type="Cast", name="extra", input=["x"], metadata_props=[{"key": "pkg.mixlist.cast", "value": "tensor"}]
        ),
        "'extra'.*0 outputs, its schema needs 1",
    ),
    "MatMul with three inputs": (
        lambda m: node(m, "mm").input.append("w"),
        r"'mm' \(MatMul\) has 3 inputs, its schema has at most 2",
    ),
    "Add with two outputs": (
        lambda m: node(m, "add").output.append("more"),
        r"'add' \(Add\) has 2 outputs, its schema has at most 1",
    ),
    "no op type": (lambda m: node(m, "add").ClearField("op_type"), "'add'.* has no op type"),
    "short data of integers": (
        lambda m: m.graph.initializer.add(name="unread", data_type=7, dims=[2], raw_data=b"abc"),
        r"unread(\) raw_data size \(3 bytes\) is too small|' has 3 bytes, its shape needs 16)",
    ),
    "negative dimension": (weight(dims=[-4, 4]), r"'w' has the shape \[-4, 4\]"),
    "dimensions that overflow": (weight(dims=[2**62, 2**62]), "'w' is damaged"),
    "too few numbers": (weight(dims=[4, 5]), "'w' is damaged"),
    "short data": (
        weight(raw_data=b"abc"),
        r"w(\) raw_data size \(3 bytes\) is too small|' has 3 bytes, its shape needs 64)",
    ),
    "long data": (weight(raw_data=bytes(65)), "'w' has 65 bytes, its shape needs 64"),
    "no data": (weight(raw_data=b""), r"w\) should contain one and only one value field"),
    "no element type": (weight(data_type=0), "'w' has element type 0"),
    "unknown element type": (weight(data_type=99), "'w' has element type 99"),
    "negative element type": (weight(data_type=-1), "'w' has element type -1"),
    "no opset": (lambda m: m.ClearField("opset_import"), "imports no opset of the standard domain"),
    "opset 0": (version(0), "opset version 0"),
    "opset -1": (version(-1), "opset version -1"),
    "opset of the future": (version(999), "opset 999; the installed onnx ends at"),
    "opset beyond integers": (version(2**40), "opset version 1099511627776"),
    "tensor twice": (lambda m: node(m, "add").output.__setitem__(0, "a"), "'a' is defined twice.*'add'"),
    "initializer twice": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "initializer 'w' is.* twice"),
    "input twice": (lambda m: m.graph.input.append(m.graph.input[0]), "input 'x' is defined twice"),
    "cycle": (lambda m: node(m, "mm").input.__setitem__(0, "b"), "a cycle through node 'mm'"),
    "cycle of one": (lambda m: node(m, "mm").input.__setitem__(0, "a"), "a cycle through node 'mm'"),
    "undefined tensor": (
        lambda m: node(m, "mm").input.__setitem__(0, "n"),
        "'mm'.*reads 'n', which nothing defines",
    ),
    "undefined output": (lambda m: m.graph.output.add(name="n"), "nothing defines the graph output 'n'"),
    "output without name": (lambda m: m.graph.output.add(), "nothing defines the graph output ''"),
    "weight without name": (lambda m: m.graph.initializer[0].ClearField("name"), "reads 'w', which nothing defines"),
    "input without type": (lambda m: m.graph.input[0].ClearField("type"), "the input 'x' of the graph has no type"),
    "declared type": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99),
        "tensor 'x' has element type 99",
    ),
    "IR version": (lambda m: setattr(m, "ir_version", 26), "IR version 26; the installed onnx ends at"),
    "no IR version": (lambda m: m.ClearField("ir_version"), "has no IR version"),
    "domain without opset": (lambda m: setattr(node(m, "cast"), "domain", "q"), "imports no opset of domain 'q'"),
    "attribute without type": (
        lambda m: node(m, "cast").attribute[0].ClearField("type"),
        r"attribute 'to' of node 'cast' \(Cast\) has no type",
    ),
    "second value": (
        lambda m: setattr(node(m, "cast").attribute[0], "f", 1.0),
        r"attribute 'to' of node 'cast' \(Cast\) has a value that is no int",
    ),
    "attribute without name": (
        lambda m: node(m, "add").attribute.add(type=onnx.AttributeProto.INT, i=1),
        "Field 'name' of 'attr' is required.*Name: add OpType: Add",
    ),
    "unknown attribute": (
        lambda m: node(m, "mm").attribute.append(helper.make_attribute("other", 1)),
        "Unrecognized attribute: other for operator MatMul.*Name: mm OpType: MatMul",
    ),
    "shapes that contradict each other": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 5),
        "node name: mm.*Incompatible dimensions",
    ),
    "a name of the main graph in a branch": (
        lambda m: rename_outputs(node(m, "if").attribute[0].g, "x"),
        "'x' has been used as .* multiple times.*Name: if OpType: If",
    ),
    "a branch that returns a tensor of the main graph": (
        lambda m: setattr(node(m, "if").attribute[0].g.output[0], "name", "e"),
        "Graph output 'e' is not an output of any node in graph.*Name: if OpType: If",
    ),
    "too many numbers": (
        lambda m: m.graph.initializer[0].float_data.append(1.0),
        "'w' is damaged: it has 17 numbers, its shape needs 16",
    ),
    "numbers of another type": (
        lambda m: m.graph.initializer.add(name="unread", data_type=7, dims=[1], float_data=[1.0]),
        "'unread' is damaged: it has 0 numbers, its shape needs 1",
    ),
    "numbers twice": (
        lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(64)),
        r"w\) should contain one and only one value field",
    ),
    "sequence without a type": (
        lambda m: m.graph.value_info.add(name="a").type.sequence_type.SetInParent(),
        "tensor 'a' is declared without the type of its elements",
    ),
    "optional of no element type": (
        lambda m: m.graph.value_info.add(name="a").type.optional_type.elem_type.tensor_type.SetInParent(),
        "tensor 'a' has element type 0",
    ),
    "sparse indices out of order": (
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                helper.make_tensor("s", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]),
                helper.make_tensor("", onnx.TensorProto.INT64, [2], [3, 0]),
                [4],
            )
        ),
        "sparse initializer 's': .*not in sorted order",
    ),
    "no graph": (lambda m: m.ClearField("graph"), "holds no graph"),
    "no nodes": (lambda m: m.graph.ClearField("node"), "nothing defines the graph output 'y'"),
    "data without a location": (external(location=""), "'w' names no location"),
    "data above the folder": (external(location="../w.data"), "points out of the model's folder"),
    "data at the root": (external(location="/etc/hostname"), "points out of the model's folder"),
    "data at no path": (external(location="w\0.data"), "points out of the model's folder"),
    "data missing": (external(location="gone.data"), "'w' is missing.*gone.data"),
    "data in a folder": (external(location="folder"), "is not a file.*folder"),
    "data before the file": (external(offset="-1"), "'w' needs bytes -1 to 63 of 64"),
    "data behind the file": (external(offset="4"), "'w' needs bytes 4 to 68 of 64"),
    "offset is no number": (external(offset="four"), "offset or length that is not a number"),
    "less data than shape": (external(length="60"), "has 60 bytes, its shape needs 64"),
    "length beyond the file": (external(length="9" * 30), "truncated"),
    "two locations": (
        add_entries(("location", "other.data")),
        "'w' has the key 'location' twice: 'w.data' and 'other.data'",
    ),
    "one location twice": (add_entries(("location", "w.data")), "'w' has the key 'location' twice"),
    "two offsets": (add_entries(("offset", "16")), "'w' has the key 'offset' twice"),
    "two lengths": (add_entries(("length", "60")), "'w' has the key 'length' twice"),
    "two checksums": (add_entries(("checksum", "1"), ("checksum", "1")), "'w' has the key 'checksum' twice"),
    "a key of mixlist": (external(**{"pkg.mixlist.from": "abc"}), "'w' has the key 'pkg.mixlist.from'"),
    "a key of mixlist with a type": (external(**{"pkg.mixlist.from": "11"}), "'w' has the key 'pkg.mixlist.from'"),
    "a dense and a sparse initializer": (
        lambda m: m.graph.sparse_initializer.add().values.CopyFrom(m.graph.initializer[0]),
        "initializer 'w' is.* twice",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_refused_by_name(name: str, tmp_path: Path) -> None:
    damage, message = REFUSED[name]
    proto = model(TEXT)
    damage(proto)
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    (tmp_path / "w.data").write_bytes(bytes(64))
    (tmp_path / "folder").mkdir()
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(MixlistError, match=f"(?s){message}"):
        mixlist.rewrite(path, mixlist.resolve(path, mixlist.load_policy())).save(out)
    assert not out.exists()


FUNCTIONS = """<ir_version: 9, opset_import: ["" : 17, "f" : 1]>
g (float[4] x) => (float[4] y) { [call] y = f.F(x) }
<domain: "f", opset_import: ["" : 17, "f" : 1]> F (a) => (b) { [exp] c = Exp(a) [inner] b = f.G(c) }
<domain: "f", opset_import: ["" : 17]> G (a) => (b) { [neg] b = Neg(a) }"""
REFUSED_FUNCTIONS: dict[str, tuple[Damage, str]] = {
    "call with two inputs": (
        lambda m: m.graph.node[0].input.append("x"),
        "'call' has 2 inputs, its function 'F' has 1",
    ),
    "inner call with two outputs": (
        lambda m: m.functions[0].node[1].output.append("d"),
        "'inner' has 2 outputs, its function 'G' has 1",
    ),
    "call without an input": (lambda m: m.graph.node[0].ClearField("input"), "node name: exp.*expected to have type"),
    "output that nothing makes": (
        lambda m: m.functions[1].output.__setitem__(0, "z"),
        "nothing defines the output 'z' of the function 'G'",
    ),
    "input that nothing makes": (lambda m: m.functions[1].node[0].input.__setitem__(0, "z"), "input 'z' of node"),
    "nodes out of order": (lambda m: m.functions[0].node.reverse(), "input 'c' of node.*inner"),
    "tensor twice": (lambda m: m.functions[0].node.add().CopyFrom(m.functions[0].node[1]), "'b' has been used"),
    "unknown attribute": (
        lambda m: m.functions[1].node[0].attribute.append(helper.make_attribute("other", 1)),
        "Unrecognized attribute: other for operator Neg",
    ),
    "no opset": (lambda m: m.functions[1].ClearField("opset_import"), "No opset import for domain ''"),
    "function twice": (lambda m: m.functions.add().CopyFrom(m.functions[0]), "function 'F' is defined twice"),
    "function that calls itself": (
        lambda m: setattr(m.functions[1].node[0], "op_type", "G") or setattr(m.functions[1].node[0], "domain", "f"),
        "call each other without end: f:G -> f:G",
    ),
}


@pytest.mark.parametrize("name", REFUSED_FUNCTIONS)
def test_a_damaged_function_is_refused(name: str) -> None:
    """Rule S4.53."""
    damage, message = REFUSED_FUNCTIONS[name]
    proto = model(FUNCTIONS)
    mixlist.resolve(proto, mixlist.load_policy())
    damage(proto)
    with pytest.raises(MixlistError, match=f"(?s){message}"):
        mixlist.resolve(proto, mixlist.load_policy())


def test_a_loop_with_a_trip_count_of_floats_is_refused() -> None:
    text = """g (float[4] x, TYPE n) => (float[4] y) { c = Constant<value = bool {1}>() [loop] y = Loop(n, c, x)
        <body = b (int64 i, bool d, float[4] s) => (bool e, float[4] t) { e = Identity(d) t = Tanh(s) }> }"""
    mixlist.resolve(model(text.replace("TYPE", "int64")), mixlist.load_policy())
    with pytest.raises(MixlistError, match=r"node name: loop.*unsupported type: tensor\(float\)"):
        mixlist.resolve(model(text.replace("TYPE", "float"), check=False), mixlist.load_policy())


SCAN = """g (float[4] s, float[2,4] x) => (float[4] z, float[2,4] y) {
    [scan] z, y = Scan<num_scan_inputs = COUNT, body = b (float[4] i, float[4] k) => (float[4] o, float[4] p) {
        o = Add(i, k) p = Exp(k) }>(s, x) }"""


@pytest.mark.parametrize("count", [-1, 0, -(2**63), 3, 2**63 - 1])
def test_a_scan_with_a_number_of_inputs_that_does_not_fit(count: int) -> None:
    proto = model(SCAN.replace("COUNT", "1"))
    mixlist.resolve(proto, mixlist.load_policy())
    node(proto, "scan").attribute[0].i = count
    with pytest.raises(MixlistError, match=r"'scan'.*has a body with a wrong number of inputs or outputs"):
        mixlist.resolve(proto, mixlist.load_policy())


HARMLESS: dict[str, Damage] = {
    "nothing": lambda m: None,
    "external data": external(),
    "unknown operator": lambda m: setattr(node(m, "add"), "op_type", "Nope"),
    "graph without name": lambda m: m.graph.ClearField("name"),
    "input without shape": lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "nodes out of order": lambda m: m.graph.node.reverse(),
    "wrong shape inside": lambda m: declare_shape(m.graph.value_info.add(name="a"), 7, 9),
    "wrong shape of the output": lambda m: declare_shape(m.graph.output[0], 7, 9),
    "wrong shape of a branch": lambda m: declare_shape(node(m, "if").attribute[0].g.output[0], 7, 9),
    "weight without name": lambda m: m.graph.initializer.add(data_type=1, dims=[1], float_data=[1.0]),
    "old IR version": lambda m: setattr(m, "ir_version", 3),
    "both names of the standard domain": lambda m: setattr(node(m, "add"), "domain", "ai.onnx"),
    "unknown operator in a branch": lambda m: setattr(node(m, "if").attribute[0].g.node[0], "op_type", "Nope"),
    "two nodes with one name": lambda m: setattr(node(m, "add"), "name", "mm"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_oddities_are_accepted(name: str, tmp_path: Path) -> None:
    proto = model(TEXT)
    HARMLESS[name](proto)
    path = tmp_path / "m.onnx"
    (tmp_path / "w.data").write_bytes(bytes(64))
    path.write_bytes(proto.SerializeToString())
    result = mixlist.rewrite(path, mixlist.resolve(path, mixlist.load_policy()))
    assert node(result.model, "cast").op_type == "Cast"


def test_an_external_entry_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    proto = model(TEXT)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="LOCATION")
    for text in (b"location", b"LOCATION"):
        path = tmp_path / "m.onnx"
        path.write_bytes(proto.SerializeToString().replace(text, b"\xff" + text[1:]))
        with pytest.raises(MixlistError, match=r"external tensor 'w' is damaged: the entry .* is not UTF-8"):
            mixlist.resolve(path, mixlist.load_policy())
