"""Find data files in the forms that ``--data`` takes, at once, and read them one by one.

* ``.npz``: one batch, arrays by input name;
* ``.npy``: one batch for a model with one input;
* a directory with ``input_N.pb``: one batch as ONNX's own tests keep it (``test_data_set_0``). The files are serialized
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
from typing import TYPE_CHECKING

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.files.regular_files import open_regular, refuse_irregular
from mixlist.graph.weights import is_external
from mixlist.ops import types
from mixlist.runtime.inputs import Input

if TYPE_CHECKING:
    from onnx import OptionalProto, SequenceProto, TensorProto

    from mixlist.runtime.session import Array

FORMS = "data is a .npz file, a .npy file, a test_data_set directory of input_N.pb, or a directory of these"
_HOLDERS = ("TensorProto", "SequenceProto", "OptionalProto")
_NUMBERED = re.compile(r"input_(\d+)\.pb")


@dataclass(frozen=True)
class BatchSource:
    """The source of one batch: ``name`` is for messages, ``read`` returns the values as they are stored."""

    name: str
    read: Callable[[], Mapping[str, object]]


def find_batch_sources(path: Path, inputs: Sequence[Input]) -> list[BatchSource]:
    """Return the batches of one ``--data`` path. Raises FileError where it is missing or holds none."""
    if not path.exists():
        raise FileError(f"{path}: there is no such file or directory", hint=FORMS)
    refuse_irregular(path, path.stat().st_mode)
    if not path.is_dir() and path.suffix not in (".npz", ".npy"):
        raise FileError(f"{path} is no data that mixlist reads", hint=FORMS)
    batches = _batches(path) if path.is_dir() else [path]
    return [
        BatchSource(str(batch), partial(_read_test_set if batch.is_dir() else _read_file, batch, inputs))
        for batch in batches
    ]


def _batches(folder: Path) -> list[Path]:
    """Return the files or directories that hold the batches of a directory, which may be a batch itself."""
    try:
        entries = sorted(folder.iterdir(), key=_natural)
    except OSError as problem:
        raise FileError(f"cannot read the directory {folder}: {problem.strerror}") from None
    if _is_test_set(folder):
        return [folder]
    files = [entry for entry in entries if entry.is_file()]
    batches = {
        "test data sets": [entry for entry in entries if entry.is_dir() and _is_test_set(entry)],
        ".npz files": [file for file in files if file.suffix == ".npz"],
        ".npy files": [file for file in files if file.suffix == ".npy"],
    }
    kinds = [kind for kind, paths in batches.items() if paths]
    if not kinds:
        raise FileError(f"{folder} holds no data", hint=FORMS)
    if len(kinds) > 1:
        message = f"{folder} holds {' and '.join(kinds)}: which are the batches?"
        raise UsageError(message, hint="give the paths of those")
    return batches[kinds[0]]


def _natural(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Return a key that sorts names as people do: batch_2 before batch_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.lower()) for part in parts if part], path.name


# --- npz and npy ---


def _read_file(path: Path, inputs: Sequence[Input]) -> Mapping[str, object]:
    content = load_arrays(path)
    return content if isinstance(content, dict) else {_only_input(inputs, path): content}


def _only_input(inputs: Sequence[Input], path: Path) -> str:
    """Return the name of the one input that an array without a name is for."""
    required = [each for each in inputs if not each.optional] or list(inputs)
    if len(required) == 1:
        return required[0].name
    names = ", ".join(each.name for each in required[:12])
    raise UsageError(
        f"{path} holds one array, and the model wants {len(required)}: {names}",
        hint="write them by name with numpy.savez",
    )


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """Return the array of a npy file, or the arrays of a npz file by name. Raises FileError."""
    import numpy as np

    try:
        with open_regular(path) as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            arrays = {name: content[name] for name in content.files}
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (FileError, MemoryError):
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
    return any(_NUMBERED.fullmatch(file.name) for file in path.glob("input_*.pb"))


def _read_test_set(path: Path, inputs: Sequence[Input]) -> Mapping[str, object]:
    files = {int(match[1]): file for file in path.glob("input_*.pb") if (match := _NUMBERED.fullmatch(file.name))}
    ordered = [each for each in inputs if not each.optional or isinstance(each.type, tuple)]
    kinds = {number: ordered[number].type if number < len(ordered) else types.FLOAT for number in sorted(files)}
    values = {number: _read_proto(files[number], kind) for number, kind in kinds.items()}
    by_name = dict(values.values())
    if len(by_name) == len(values) and by_name.keys() <= {each.name for each in inputs}:
        return by_name
    if max(files) >= len(ordered):
        names = ", ".join(each.name for each in ordered[:12]) or "none"
        raise UsageError(
            f"{path} has {files[max(files)].name}, and the model has {len(ordered)} inputs: {names}",
            hint="files are counted from input_0.pb in the order of the model's inputs",
        )
    return {ordered[number].name: value for number, (_, value) in values.items()}


def _read_proto(path: Path, kind: types.Type) -> tuple[str, object]:
    """Return the name and the value that a file of ONNX's test data holds; ``kind`` says which message it is."""
    import onnx
    from onnx import numpy_helper

    container = kind[0] if isinstance(kind, tuple) else ""
    forms: dict[str, tuple[type[TensorProto | SequenceProto | OptionalProto], Callable[..., object]]] = {
        "seq": (onnx.SequenceProto, numpy_helper.to_list),
        "optional": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    form, to_value = forms.get(container, (onnx.TensorProto, numpy_helper.to_array))
    message = form()
    try:
        with open_regular(path) as file:
            message.ParseFromString(file.read())
        if any(is_external(tensor) for tensor in _tensors(message)):
            raise FileError(f"{path} says that its values lie in another file", hint="data has to hold its values")
        return message.name, to_value(message)
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror}") from None
    except (MixlistError, MemoryError):
        raise
    except Exception as problem:  # protobuf and onnx raise errors of many kinds for damage
        word = container.replace("seq", "sequence") or "tensor"
        raise FileError(f"{path} is no ONNX {word}: {problem}", hint="write it with onnx.save_tensor") from None


def _tensors(message: TensorProto | SequenceProto | OptionalProto) -> Iterator[TensorProto]:
    """Yield the tensors in a tensor, a sequence or an optional."""
    from onnx import TensorProto

    if isinstance(message, TensorProto):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(part)
