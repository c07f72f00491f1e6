"""Data files in the forms that ``--data`` takes, found at once and read one by one.

* ``.npz``: one batch, arrays by input name;
* ``.npy``: one batch for a model with one input;
* a directory with ``input_N.pb``: one batch as ONNX's own tests keep it (``test_data_set_0``). The files are serialised
  tensors, sequences or optionals; N counts the inputs that are not initializers, unless every tensor carries the name
  of an input (ONNX Runtime's test runner goes by the name, onnx's by the number);
* a directory of such directories, or of ``.npz`` files, or of ``.npy`` files: batches in natural order (2 before 10).

Python objects in npy files are never loaded: they could run code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.graph.weights import is_external
from mixlist.ops import types
from mixlist.runtime.inputs import Input

FORMS = "data is a .npz file, a .npy file, a test_data_set directory of input_N.pb, or a directory of these"
_HOLDERS = ("TensorProto", "SequenceProto", "OptionalProto")
_NUMBERED = re.compile(r"input_(\d+)\.pb")


@dataclass(frozen=True)
class Source:
    """Where one batch comes from: ``name`` for messages, ``read`` for its values as they are stored."""

    name: str
    read: Callable[[], Mapping[str, Any]]


def sources(path: Path, inputs: Sequence[Input]) -> list[Source]:
    """The batches of one ``--data`` path. Raises FileError where it is missing or holds none."""
    if path.is_dir():
        return _directory(path, inputs)
    if not path.exists():
        raise FileError(f"{path}: there is no such file or directory", hint=FORMS)
    if path.suffix not in (".npz", ".npy"):
        raise FileError(f"{path} is no data that mixlist reads", hint=FORMS)
    return [_file(path, inputs)]


def _directory(path: Path, inputs: Sequence[Input]) -> list[Source]:
    try:
        entries = sorted(path.iterdir(), key=natural)
    except OSError as problem:
        raise FileError(f"cannot read the directory {path}: {problem.strerror}") from None
    if _is_test_set(path):
        return [_test_set(path, inputs)]
    found = {
        "test data sets": [_test_set(each, inputs) for each in entries if each.is_dir() and _is_test_set(each)],
        ".npz files": [_file(each, inputs) for each in entries if each.suffix == ".npz" and each.is_file()],
        ".npy files": [_file(each, inputs) for each in entries if each.suffix == ".npy" and each.is_file()],
    }
    kinds = [kind for kind, batches in found.items() if batches]
    if not kinds:
        raise FileError(f"{path} holds no data", hint=FORMS)
    if len(kinds) > 1:
        raise UsageError(f"{path} holds {' and '.join(kinds)}: which are the batches?", hint="give the paths of those")
    return found[kinds[0]]


def natural(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts names as people do: batch_2 before batch_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.lower()) for part in parts if part], path.name


# --- npz and npy ---


def _file(path: Path, inputs: Sequence[Input]) -> Source:
    return Source(str(path), partial(_read_file, path, inputs))


def _read_file(path: Path, inputs: Sequence[Input]) -> Mapping[str, Any]:
    content = load_arrays(path)
    return content if isinstance(content, dict) else {_only(inputs, path): content}


def _only(inputs: Sequence[Input], path: Path) -> str:
    """The one input that an array without a name is for."""
    wanted = [each for each in inputs if not each.optional] or list(inputs)
    if len(wanted) == 1:
        return wanted[0].name
    raise UsageError(
        f"{path} holds one array, and the model wants {len(wanted)}: {', '.join(each.name for each in wanted[:12])}",
        hint="write them by name with numpy.savez",
    )


def load_arrays(path: Path) -> Any:
    """The array of a npy file, or a dict of the arrays of a npz file. Raises FileError."""
    import numpy as np

    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            arrays = {name: content[name] for name in content.files}
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from None
    except MemoryError:
        raise
    except Exception as problem:  # a damaged file raises whatever the parsers of zip, zlib and numpy's header raise
        raise _unreadable(path, str(problem)) from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise FileError(f"{path}: {name!r} in it is no array", hint="write it with numpy.savez")
    return arrays


def _unreadable(path: Path, reason: str) -> FileError:
    if "Object arrays" in reason:
        return FileError(
            f"{path} holds Python objects, which are not loaded because they could run code",
            hint="save strings as numpy strings: array.astype('U')",
        )
    if "pickle" in reason:
        reason = "it is in neither of numpy's formats"
    return FileError(f"{path} cannot be read: {reason}", hint="write it with numpy.save or numpy.savez")


# --- ONNX test data ---


def _is_test_set(path: Path) -> bool:
    return any(_NUMBERED.fullmatch(each.name) for each in path.glob("input_*.pb"))


def _test_set(path: Path, inputs: Sequence[Input]) -> Source:
    return Source(str(path), partial(_read_test_set, path, inputs))


def _read_test_set(path: Path, inputs: Sequence[Input]) -> dict[str, Any]:
    files = {int(match[1]): each for each in path.glob("input_*.pb") if (match := _NUMBERED.fullmatch(each.name))}
    ordered = [each for each in inputs if not each.optional or isinstance(each.type, tuple)]
    by_name = {each.name: each for each in inputs}
    read = {}
    for number, file in sorted(files.items()):
        kind = ordered[number].type if number < len(ordered) else types.FLOAT
        read[number] = _read_proto(file, kind)
    names = [name for name, _ in read.values()]
    if len(set(names)) == len(names) and all(name in by_name for name in names):
        return dict(read.values())
    if max(files) >= len(ordered):
        wanted = ", ".join(each.name for each in ordered[:12]) or "none"
        raise UsageError(
            f"{path} has {files[max(files)].name}, and the model has {len(ordered)} inputs: {wanted}",
            hint="files are counted from input_0.pb in the order of the model's inputs",
        )
    return {ordered[number].name: value for number, (_, value) in read.items()}


def _read_proto(path: Path, kind: types.Type) -> tuple[str, Any]:
    """The name and the value that a file of ONNX's test data holds; ``kind`` says which message it is."""
    import onnx
    from onnx import numpy_helper

    messages: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
        "seq": (onnx.SequenceProto, numpy_helper.to_list),
        "optional": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    message, convert = messages.get(
        kind[0] if isinstance(kind, tuple) else "", (onnx.TensorProto, numpy_helper.to_array)
    )
    made = message()
    try:
        made.ParseFromString(path.read_bytes())
        if any(is_external(tensor) for tensor in _tensors(made)):
            raise FileError(f"{path} says that its values lie in another file", hint="data has to hold its values")
        return str(made.name), convert(made)
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror}") from None
    except (MixlistError, MemoryError):
        raise
    except Exception as problem:  # what protobuf and onnx raise for damage is of many kinds
        what = message.__name__.removesuffix("Proto").lower()
        raise FileError(f"{path} is no ONNX {what}: {problem}", hint="write it with onnx.save_tensor") from None


def _tensors(message: Any) -> Iterator[Any]:
    """The tensors in a tensor, a sequence or an optional."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(part)
