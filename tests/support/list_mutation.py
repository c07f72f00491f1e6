"""Damage to list files: bytes, tokens, values and encodings that are not what a reader expects.

``LISTS`` has the files of each kind before the damage. The kinds are those of ``validate``; "config" and "hints" are
what else mixlist reads in such a form: a configuration, and the types of tensors.
"""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Callable
from typing import TypeAlias

Edits: TypeAlias = list[tuple[str, int, bytes]]
Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

WAYS = ("set", "cut", "insert", "repeat")
LISTS: dict[str, list[bytes]] = {
    "modify-mixlist": [
        b'{"black-list": {"to-add": ["Add", "Mul"]}, "white-list": {"to-remove": ["Add"]}, "gray-list": {}}',
        b'{\n  "black-list": {"to-remove": ["Exp"]}, // a comment\n  "gray-list": {"to-add": ["Exp", "Log",]},\n}\n',
        b'\xef\xbb\xbf{"white-list": {"to-add": ["ai.onnx::Softmax", "com.microsoft::Gelu"]}} /* the end */',
        '{"white-list": {"to-add": ["重み", "a\\u0085b", "é"]}}'.encode(),
    ],
    "ops-info": [
        b'{"Add": {"precision_reduce": {"flag": "true"}, "input0": {"dtype": "float16"}}, "Mul": {}}',
        b'{"MatMul": {"precision_reduce": {"flag": "true"}}, "Softmax": {"precision_reduce": {"flag": "false"}},\n'
        b' "Relu": {"opFile": {"value": "relu"}, "attr": {"list": "a,b"}}, "Exp": {"precision_reduce": {}}}\n',
    ],
    "keep-dtype": [b"/fc/MatMul\nOpType::Conv\n", b"first\r\nthen/else_branch/OpType::Add\r\n\r\n./third\n"],
    "customize-dtypes": [
        b"/a::b::InputDtype:float16,,OutputDtype:float32\nOpType::Add:InputDtype:float16,OutputDtype:\n",
        b"first::InputDtype:float32,float32,OutputDtype:float32,\nOpType::Relu::OutputDtype:bfloat16\n",
    ],
    "config": [
        b'ops-info = "onnx"\nkeep-dtype = "n.txt"\n[resolve]\nformat = "json"\n',
        b'gray-policy = "between"\nprecision-mode-v2 = "mixed_bfloat16"\nprotect = "none"\n[lists]\nformat = "csv"\n',
    ],
    "hints": [b'{"a": "float32", "b": "float16"}', b'{"h": "int64", "y": "sequence(tensor(float))"}'],
}
_BYTES = [*(bytes([k]) for k in b'{}[]",:/*#\\\n\r\t\0 \x0b\x1b\x7f\x80\xc3\xff'), b"\xe2\x80\xa8", codecs.BOM_UTF8]
_TOKENS = [
    *('"Add"', '""', '"\\ud800"', '"\\u0000"', '"a\\nb"', '"::error::x"', '"##[error]x"', '"../x"', "NaN", "-0"),
    *("-Infinity", "1e999", "9" * 700, "null", "true", '"flag"', '"to-add"', '"black-list"', '"$schema"', "//", "/*"),
    *("*/", "OpType::", "InputDtype:", "OutputDtype:float16", "::", ",,", "[" * 250, '{"a":' * 250, "'x'", "[a.b]"),
    *("=", "'''", "[[x]]", "1979-05-27", "0x1F", "\u0085", "\u2028", "\ufeff", "e\u0301", "x" * 5000, "%s", "*"),
]
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|\s+|.', re.DOTALL)
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037")


def edited(data: bytes, edits: Edits) -> bytes:
    """The data with a few bytes set, cut, inserted or repeated."""
    for kind, position, new_bytes in edits:
        at = position % (len(data) + 1)
        tails = {"set": data[at + len(new_bytes) :], "cut": data[at + len(new_bytes) + 1 :], "insert": data[at:]}
        middle = data[max(at - 20, 0) : at] if kind == "repeat" else b"" if kind == "cut" else new_bytes
        data = data[:at] + middle + tails.get(kind, data[at:])
    return data


def damaged_list(rng: random.Random) -> tuple[str, bytes]:
    """Return the kind of a list file, and the file after one to three damages."""
    kind = rng.choice(list(LISTS))
    data = rng.choice(LISTS[kind])
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_DAMAGES)(data, rng)[:100_000]
    return kind, data


def edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """Set, cut, insert or repeat a few bytes."""
    new_bytes = rng.choice(_BYTES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(6))
    return edited(data, [(rng.choice(WAYS), rng.randrange(10**6), new_bytes) for _ in range(rng.choice((1, 1, 2, 4)))])


def edit_tokens(data: bytes, rng: random.Random) -> bytes:
    """Drop, repeat, swap or replace words, texts and brackets."""
    tokens = _TOKEN.findall(data.decode(errors="surrogateescape")) or [""]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, second = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        change = rng.randrange(4)
        if change == 0:
            tokens[at] = ""
        elif change == 1:
            tokens[at] *= rng.choice((2, 3, 50))
        elif change == 2:
            tokens[at], tokens[second] = tokens[second], tokens[at]
        else:
            tokens[at] = rng.choice(_TOKENS)
    return "".join(tokens).encode(errors="surrogateescape")


def _edit_values(data: bytes, rng: random.Random) -> bytes:
    """Put another value, or key, in the place of one; tokens where the file is no JSON."""
    try:
        value: Json = json.loads(data)
    except (ValueError, RecursionError):
        return edit_tokens(data, rng)
    places: list[tuple[list[Json] | dict[str, Json], int | str]] = []
    open_values: list[Json] = [value]
    while open_values:
        holder = open_values.pop()
        if isinstance(holder, list | dict):
            keys: list[int] | list[str] = list(range(len(holder))) if isinstance(holder, list) else list(holder)
            places += [(holder, key) for key in keys]
            open_values += holder.values() if isinstance(holder, dict) else holder
    if not places:
        return json.dumps(_value(rng)).encode()
    holder, key = rng.choice(places)
    if isinstance(holder, dict) and isinstance(key, str):
        if rng.random() < 0.4:
            holder[rng.choice(["Add", "to-add", "flag", "black-list", "", "precision_reduce", "\0"])] = holder.pop(key)
        else:
            holder[key] = _value(rng)
    elif isinstance(holder, list) and isinstance(key, int):
        holder[key] = _value(rng)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")


def _value(rng: random.Random) -> Json:
    values: list[Callable[[], Json]] = [
        lambda: rng.choice([None, True, False, 0, -1, 1.5, 1e300, 2**70, "", "Add", "true", " True ", "yes", "\ud800"]),
        lambda: [_value(rng) for _ in range(rng.randrange(3))],
        lambda: {rng.choice(["flag", "to-add", "dtype", "Add", ""]): _value(rng) for _ in range(rng.randrange(3))},
    ]
    return rng.choices(values, (4, 1, 1))[0]()


def _join(data: bytes, rng: random.Random) -> bytes:
    """Put a part of another list file, of any kind, behind a part of this one."""
    second_file = rng.choice(LISTS[rng.choice(list(LISTS))])
    return data[: rng.randrange(len(data) + 1)] + second_file[rng.randrange(len(second_file) + 1) :]


def _encode(data: bytes, rng: random.Random) -> bytes:
    """Write the text in another encoding, with other ends of lines, cut off, or many times."""
    change = rng.randrange(4)
    if change == 0:
        return data.decode(errors="replace").encode(rng.choice(_ENCODINGS), errors="replace")
    if change == 1:
        return data.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b"\x0b", b"\xc2\x85"]))
    return data[: rng.randrange(len(data) + 1)] if change == 2 else data * rng.choice((2, 3, 100))


_DAMAGES = (edit_bytes, edit_tokens, edit_tokens, _edit_values, _edit_values, _join, _encode)
