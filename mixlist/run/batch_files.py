"""Find the batches in the files that ``--data`` names, and read them one by one.

* ``.npz``: one batch, arrays by input name;
* ``.npy`` or ``.bin`` (raw values): one batch for a model with one input;
* an image: one sample for a model with one input (see ``image_batches``);
* a directory of ``.npy`` and ``.bin`` files that have the names of the inputs: one batch (see ``_is_named_batch``);
* a directory with ``input_N.pb``: one batch in the form of ONNX's own tests (``test_data_set_0``). The files are
  serialized tensors. If every file holds the name of an input, these names decide (as in ONNX Runtime's test runner).
  Otherwise N is the index among the inputs without an initializer (as in the test runner of onnx);
* a directory of such directories, or of files of one kind: batches in natural order (2 before 10).

All batches are found at once, so that a wrong path is an error before the first run. Python objects in npy files are
never loaded, because they could run code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.files.regular_files import open_regular, refuse_irregular
from mixlist.model import dtypes
from mixlist.model.weights import PACKED_BITS, is_external
from mixlist.option_spelling import spell
from mixlist.run.inputs import ONLY_TENSORS, Input, describe_type, numpy_type

if TYPE_CHECKING:
    from mixlist.run.session import Array

Form = Literal["file", "named arrays", "test data set", "image"]
Shapes = Mapping[str, tuple[int, ...]]  # the shapes of ``.bin`` files by input name

ARRAY_SUFFIXES = (".npz", ".npy", ".bin")
_NAMED_SUFFIXES = (".npy", ".bin")  # of files that can have the name of an input
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_FORMS = (
    "data is a .npz file (one batch), a .npy or .bin file or images (.png, .jpg, .jpeg, .bmp, .webp) for a model with"
    " one input, a directory with a .npy or .bin file for each input, a test_data_set directory of input_N.pb, or a"
    " directory of these; for other data, write a Python function that yields batches, and give "
)
_INPUT_FILE = re.compile(r"input_(\d+)\.pb")
_NOT_IN_FILE_NAMES = re.compile(r'[/\\:*?"<>|]')  # on some systems, names of files cannot hold these characters


class BatchSource(NamedTuple):
    """The source of one batch.

    ``name`` identifies it in messages, ``read`` returns its values as stored, and ``files`` are the paths of the file,
    the directory or the images that hold it. ``refusal_hint``: what to do if the model refuses to run the batch.
    """

    name: str
    read: Callable[[], Mapping[str, object]]
    files: tuple[Path, ...] = ()
    refusal_hint: str | None = None


class BatchPath(NamedTuple):
    """The path of one batch, or of one image, which is a sample of a batch."""

    path: Path
    form: Form

    def source(self, inputs: Sequence[Input], shapes: Shapes) -> BatchSource:
        """Return the source of the batch; images have ``image_batches.make_image_sources``."""
        readers: dict[Form, Callable[[], Mapping[str, object]]] = {
            "file": partial(_read_file, self.path, inputs, shapes),
            "named arrays": partial(_read_named_arrays, self.path, inputs, shapes),
            "test data set": partial(_read_test_set, self.path, inputs),
        }
        files = _array_files(self.path) if self.form == "named arrays" else [self.path]
        return BatchSource(str(self.path), readers[self.form], tuple(files))


def find_batch_paths(path: Path, inputs: Sequence[Input]) -> list[BatchPath]:
    """Return the batches and images of one ``--data`` path.

    Raises FileError if it does not exist or contains none.
    """
    if not path.exists():
        raise FileError(f"{path}: there is no such file or directory", hint=_FORMS + spell("loader"))
    refuse_irregular(path, path.stat().st_mode)
    if path.is_dir():
        return _find_in_folder(path, inputs)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [BatchPath(path, "image")]
    if path.suffix not in ARRAY_SUFFIXES:
        raise FileError(f"mixlist cannot read {path} as data", hint=_FORMS + spell("loader"))
    return [BatchPath(path, "file")]


def _find_in_folder(folder: Path, inputs: Sequence[Input]) -> list[BatchPath]:
    """Return the batches in a directory: files or subdirectories in it, or itself if it is one batch."""
    entries = sorted_entries(folder)
    # A test data set is one batch, also if other data lies next to its files.
    if _is_test_set(folder):
        return [BatchPath(folder, "test data set")]
    files = [entry for entry in entries if entry.is_file()]
    folders = [entry for entry in entries if entry.is_dir()]
    paths_by_form = {
        "test data sets": [BatchPath(entry, "test data set") for entry in folders if _is_test_set(entry)],
        "directories of arrays by input name": [
            BatchPath(entry, "named arrays") for entry in folders if _is_named_batch(sorted_entries(entry), inputs)
        ],
        "images": [BatchPath(file, "image") for file in files if file.suffix.lower() in IMAGE_SUFFIXES],
        ".npz files": [BatchPath(file, "file") for file in files if file.suffix == ".npz"],
    }
    if _is_named_batch(files, inputs):
        paths_by_form["arrays by input name"] = [BatchPath(folder, "named arrays")]
    else:
        for suffix in _NAMED_SUFFIXES:
            paths_by_form[f"{suffix} files"] = [BatchPath(file, "file") for file in files if file.suffix == suffix]
    forms = [form for form, paths in paths_by_form.items() if paths]
    if not forms:
        raise FileError(f"{folder} contains no data", hint=_FORMS + spell("loader"))
    if len(forms) > 1:
        message = f"{folder} contains {' and '.join(forms)}, but only one of these forms can be the batches"
        raise UsageError(message, hint="give the paths of the batches")
    return paths_by_form[forms[0]]


def sorted_entries(folder: Path) -> list[Path]:
    """Return the paths in a directory in natural order: batch_2 before batch_10. Raises FileError."""
    try:
        return sorted(folder.iterdir(), key=_natural_order)
    except OSError as error:
        raise FileError(f"cannot read the directory {folder}: {error.strerror}") from None


def _natural_order(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key that puts batch_2 before batch_10: numbers in names are compared as numbers."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.lower()) for part in parts if part], path.name


# --- npz, npy and bin ---


def _read_file(path: Path, inputs: Sequence[Input], shapes: Shapes) -> Mapping[str, object]:
    if path.suffix == ".bin":
        model_input = find_only_input(inputs, path)
        return {model_input.name: read_raw(path, model_input, shapes)}
    content = load_arrays(path)
    return content if isinstance(content, dict) else {find_only_input(inputs, path).name: content}


def find_only_input(inputs: Sequence[Input], path: Path) -> Input:
    """Return the only required input, which gets the array of a file without names.

    If all inputs are optional, the model must have only one. Raises UsageError if there are several.
    """
    required = [model_input for model_input in inputs if not model_input.optional] or list(inputs)
    # Guess nothing: with several inputs the array could be any of them.
    if len(required) == 1:
        return required[0]
    names = ", ".join(model_input.name for model_input in required[:12])
    raise UsageError(
        f"{path} contains one array, but the model expects {len(required)}: {names}",
        hint="write them by name with numpy.savez, or as one .npy or .bin file for each input, named after it",
    )


def _is_named_batch(paths: Sequence[Path], inputs: Sequence[Input]) -> bool:
    """Return whether the ``.npy`` and ``.bin`` files among these paths are the inputs of one batch, by their names.

    All of them must have the names of inputs. If the model has several inputs, one such name is enough, because files
    without names could not be its batches.
    """
    array_files = [path for path in paths if path.suffix in _NAMED_SUFFIXES]
    name_of_stem = _input_names_by_stem(inputs)
    named_count = sum(path.stem in name_of_stem for path in array_files)
    has_several_inputs = sum(not model_input.optional for model_input in inputs) > 1
    return named_count > 0 and (named_count == len(array_files) or has_several_inputs)


def _array_files(folder: Path) -> list[Path]:
    return [path for path in sorted_entries(folder) if path.suffix in _NAMED_SUFFIXES]


def _input_names_by_stem(inputs: Sequence[Input]) -> dict[str, str]:
    """Return the input names by the names of their files without suffix.

    Characters that names of files cannot have on some system may be ``_``: ``ids_0.npy`` is the input ``ids:0``.
    """
    names = [model_input.name for model_input in inputs]
    # An exact name wins over one with replaced characters.
    return {_NOT_IN_FILE_NAMES.sub("_", name): name for name in names} | {name: name for name in names}


def _read_named_arrays(folder: Path, inputs: Sequence[Input], shapes: Shapes) -> Mapping[str, object]:
    """Return the arrays of a directory whose files have the names of the inputs."""
    name_of_stem = _input_names_by_stem(inputs)
    input_by_name = {model_input.name: model_input for model_input in inputs}
    arrays: dict[str, object] = {}
    for path in _array_files(folder):
        name = name_of_stem.get(path.stem, path.stem)
        if name in arrays:
            raise UsageError(f"{folder} contains two files for input {name!r}", hint=f"remove {path.name} or the other")
        # A file that is no input stays among the arrays: the error for its name also shows what is missing.
        is_raw = path.suffix == ".bin" and name in input_by_name
        arrays[name] = read_raw(path, input_by_name[name], shapes) if is_raw else load_arrays(path)
    return arrays


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """Return the array of a npy file, or the arrays of a npz file by name. Raises FileError."""
    import numpy as np

    try:
        with open_regular(path) as file:
            content = np.load(file, allow_pickle=False)
            # An entry of a npz file is read when it is accessed, so read all of them while the file is open.
            if isinstance(content, np.ndarray):
                return content
            arrays = {name: content[name] for name in content.files}
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    except (FileError, MemoryError):
        raise
    except Exception as error:  # the parsers of zip, zlib and numpy's header raise many types for damage
        raise _unreadable_file_error(path, str(error)) from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise FileError(f"{path}: its entry {name!r} is not an array", hint="write it with numpy.savez")
    return arrays


def _unreadable_file_error(path: Path, reason: str) -> FileError:
    """Return the error for a file that numpy cannot read; ``reason`` is the message of numpy."""
    if "Object arrays" in reason:
        return FileError(
            f"{path} contains Python objects, which are not loaded because they could run code",
            hint="save strings as numpy strings: array.astype('U')",
        )
    if "pickle" in reason:  # numpy assumes that every file that it does not recognize is a pickle
        reason = "it is neither a .npy nor a .npz file"
    return FileError(f"{path} cannot be read: {reason}", hint="write it with numpy.save or numpy.savez")


# --- ONNX test data ---


def _is_test_set(path: Path) -> bool:
    return any(_INPUT_FILE.fullmatch(file.name) for file in path.glob("input_*.pb"))


def _read_test_set(path: Path, inputs: Sequence[Input]) -> Mapping[str, object]:
    """Return the values of one test data set by input name."""
    files = {int(match[1]): file for file in path.glob("input_*.pb") if (match := _INPUT_FILE.fullmatch(file.name))}
    # Inputs with an initializer have no number. ``optional`` is True for them, but also for inputs whose type is an
    # optional, which do have a number. The type of the latter is a tuple.
    numbered_inputs = [i for i in inputs if not i.optional or isinstance(i.type, tuple)]
    for number, model_input in enumerate(numbered_inputs):
        if number in files and isinstance(model_input.type, tuple):
            raise UsageError(f"{files[number]} is for input {model_input}, {ONLY_TENSORS}")
    # By the number of the file: the name and the value in it.
    values = {number: _read_tensor(file) for number, file in sorted(files.items())}
    by_name = dict(values.values())
    # The names decide only if they are distinct, and if all of them are names of inputs.
    if len(by_name) == len(values) and by_name.keys() <= {model_input.name for model_input in inputs}:
        return by_name
    if max(files) >= len(numbered_inputs):
        names = ", ".join(model_input.name for model_input in numbered_inputs[:12]) or "none"
        raise UsageError(
            f"{path} contains {files[max(files)].name}, but the model has {len(numbered_inputs)} inputs: {names}",
            hint="number the files from input_0.pb in the order of the model's inputs",
        )
    return {numbered_inputs[number].name: value for number, (_, value) in values.items()}


def _read_tensor(path: Path) -> tuple[str, Array]:
    """Return the name and the values of a tensor in a file of ONNX's test data."""
    from onnx import TensorProto, numpy_helper

    tensor = TensorProto()
    try:
        with open_regular(path) as file:
            tensor.ParseFromString(file.read())
        # The path of another file could lead out of the folder of the data.
        if is_external(tensor):
            raise FileError(
                f"{path} refers to values in another file", hint="write data files that contain their values"
            )
        return tensor.name, numpy_helper.to_array(tensor)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except (MixlistError, MemoryError):
        raise
    except Exception as error:  # on a damaged file, protobuf and onnx raise errors of many types
        raise FileError(f"{path} is not an ONNX tensor: {error}", hint="write it with onnx.save_tensor") from None


# --- raw values ---


def read_raw(path: Path, model_input: Input, shapes: Mapping[str, tuple[int, ...]]) -> Array:
    """Return the values of a ``.bin`` file for an input. Bools are the uint8 values of the file.

    ``shapes``: the shapes of ``--shape`` by input name. The declared shape is used if it has no open size. Raises
    UsageError for an unknown shape, another number of bytes, and a type without a raw form, and FileError if the file
    cannot be read.
    """
    import numpy as np

    elem, name = model_input.type, model_input.name
    # Of types with 2 or 4 bits, programs pack several elements into a byte or not.
    if isinstance(elem, tuple) or elem in (dtypes.STRING, dtypes.UNKNOWN) or elem in PACKED_BITS:
        raise UsageError(
            f"{path}: input {model_input} cannot come from a .bin file",
            hint="numbers of 8 bits or more can; write a .npz file of inputs by name with numpy.savez",
        )
    shape = _choose_shape(path, model_input, shapes)
    dtype = np.dtype(np.uint8) if elem == dtypes.BOOL else numpy_type(elem)
    if dtype.kind in "iufc":  # the types of ml_dtypes have no other byte order
        dtype = dtype.newbyteorder("<")
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    expected = prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise UsageError(
            f"{path} has {len(content)} bytes, but input {name}: {describe_type(elem, shape)} takes {expected}",
            hint=f"write the values of one batch in {dtypes.type_name(elem)} without a header, and give their shape:"
            f" {spell('shapes', {name: tuple(shape)})}",
        )
    return np.frombuffer(content, dtype).reshape(shape)


def _choose_shape(path: Path, model_input: Input, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of ``--shape``, or the declared one. Raises UsageError if that has open sizes."""
    name, declared = model_input.name, model_input.shape
    if name in shapes:
        return shapes[name]
    sizes = [size for size in declared or () if isinstance(size, int)]
    if declared is not None and len(sizes) == len(declared):
        return tuple(sizes)
    example = tuple(size if isinstance(size, int) else 8 for size in declared or (2, 8))
    raise UsageError(
        f"{path} has no shape, and input {model_input} leaves sizes open",
        hint=f"give the shape of one batch, for example {spell('shapes', {name: example})}",
    )
