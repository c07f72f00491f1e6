"""Compare the files that a command writes with the files that it reads, before it does any work.

The type of a parameter (``parameters.PathType``) says how the command uses its files. The comparison uses inodes, so a
link to a file counts as that file. ``load_input_model`` returns a model that the comparison has loaded already.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.config_file import write_found_config
from mixlist.cli.grouped_help import GroupedHelpCommand
from mixlist.cli.parameters import PathType, used_paths
from mixlist.errors import FileError, UsageError
from mixlist.files.list_text import is_directory
from mixlist.lists import presets

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel

# The files that ``run/batch_files.py`` reads in a folder.
_BATCH_PATTERNS = (
    *("*.npz", "*.npy", "*.bin", "*.pb", "*/*.npy", "*/*.bin", "*/*.pb"),
    *("*.png", "*.jpg", "*.jpeg", "*.bmp", "*.webp"),
)
_LOADED_MODELS_KEY = "mixlist.models"  # the key in ``context.meta`` of models loaded to find their weights


class FileCheckingCommand(GroupedHelpCommand):
    """The class of all commands: before any work, it checks that the command does not write over its inputs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run the command."""
        write_found_config(ctx)
        check_files(ctx)
        return super().invoke(ctx)


@dataclass(frozen=True)
class _PathValue:
    """A path that the user gave to a parameter. ``label`` is the name of the parameter for messages."""

    parameter: click.Parameter
    type: PathType
    path: str

    @property
    def is_stream(self) -> bool:
        return self.path == "-" and self.type.allow_dash

    @property
    def label(self) -> str:
        option = isinstance(self.parameter, click.Option)
        return self.parameter.opts[-1] if option else self.parameter.human_readable_name


@dataclass(frozen=True)
class _Output:
    """A file that the command writes because of a parameter. ``status`` describes an existing file at this path."""

    path_value: _PathValue
    path: str
    status: os.stat_result | None

    @property
    def is_named_by_user(self) -> bool:
        """Return whether the parameter names this file or its folder; False for its ``other_output``."""
        return self.path_value.type.use == "writes into" or self.path == self.path_value.path

    @property
    def is_regular(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)


def check_files(context: click.Context) -> None:
    """Raise an error if an output of the running command is an input or another output, exists, or cannot be written.

    The errors are UsageError and FileError, and ModelError for a model that cannot be read to find its weights.

    The checks go from cheap to expensive. The check for overwritten inputs comes before the check for existing files,
    because the hint of the second check, ``--force``, does not permit the command to overwrite an input.
    """
    path_values = [_PathValue(*fields) for fields in used_paths(context)]
    outputs = [
        _Output(path_value, path, _stat(path))
        for path_value in path_values
        for path in path_value.type.files_written(path_value.path)
    ]
    if not outputs:
        return
    # Two outputs must not be one file: the second one would replace the first.
    for first, second in combinations(outputs, 2):
        if _same_file(first, second):
            raise UsageError(
                f"{first.path_value.label} and {second.path_value.label} would write the same file {second.path}",
                hint="name one file each",
            )
    # The path of each output must be one that a file can have.
    for output in outputs:
        _check_place(output)
    # No output may be an input. Only regular files count: a device, such as /dev/null, can be both.
    inputs = [path_value for path_value in path_values if path_value.type.is_read and not path_value.is_stream]
    replaced = [output for output in outputs if output.is_regular]
    _refuse_overwriting_inputs(replaced, inputs)
    for output in outputs:
        # The second file of a parameter, such as modify.partial.json, is replaced without --force.
        must_be_new = output.is_named_by_user and output.path_value.type.must_be_new and not context.params.get("force")
        if must_be_new and output.status is not None:
            raise UsageError(f"{output.path} exists", hint="use --force to replace it")
    for output in outputs:
        # A dry run of ``apply`` does not write the model. It writes the report, which need not be new.
        if not (context.params.get("dry_run") and output.path_value.type.must_be_new):
            _check_writable(output)
    # Last, because it loads the models.
    if replaced:
        _refuse_overwriting_weights(replaced, inputs, context)


def load_input_model(path: str) -> LoadedModel:
    """Return a model of the running command; load it unless ``check_files`` has loaded it to find its weights."""
    from mixlist.model.load import load_model

    models: dict[str, LoadedModel] = click.get_current_context().meta.get(_LOADED_MODELS_KEY, {})
    # Each loaded model is returned only once, because ``apply`` rewrites its model in place.
    return models.pop(path, None) or load_model(path)


def _stat(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of a file, following links; None if there is no file."""
    try:
        return os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _same_file(first: _Output, second: _Output) -> bool:
    """Return whether two outputs are the same regular file. Several outputs may go to one device, such as /dev/null."""
    if first.status is None or second.status is None:
        # Files that do not exist yet have no inode. A file that exists differs from one that does not.
        return first.status is second.status and _canonical(first.path) == _canonical(second.path)
    return (first.is_regular or second.is_regular) and os.path.samestat(first.status, second.status)


def _canonical(path: str) -> str:
    """Return one spelling for all paths of a file that does not exist yet; Windows and macOS ignore case."""
    # str() hides the platform from mypy, which would call one of the branches unreachable.
    real, system = os.path.realpath(path), str(sys.platform)
    if system not in ("win32", "darwin"):
        return real
    import unicodedata

    # macOS also ignores whether an accented letter is one character or a letter and a combining accent.
    return unicodedata.normalize("NFC", real).casefold()


def _check_place(output: _Output) -> None:
    """Raise FileError if the path of the output cannot be that of a file: its folder is missing, or it is a folder."""
    path_value, path = output.path_value, Path(output.path)
    if path_value.type.use == "writes into":
        if _stat(path_value.path) is not None and not is_directory(path_value.path):
            raise FileError(
                f"{path_value.label} {path_value.path} is not a folder",
                hint="name a folder, or a path that does not exist",
            )
    elif not is_directory(path.parent):
        raise FileError(f"{path}: cannot be written: its folder does not exist", hint="name a file in another folder")
    # lstat() asks about the name itself: it fails for a name that the system refuses, and not for a broken link.
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long, or one that Windows forbids
        raise FileError(f"{path}: cannot be written: {error.strerror}", hint="choose another name") from None
    if is_directory(path):
        raise FileError(f"{path}: is a folder", hint="name a file in a folder that exists")


def _check_writable(output: _Output) -> None:
    """Raise FileError unless the output can be written.

    If folders of its path do not exist yet, the nearest folder that exists must be writable.
    """
    from mixlist.files.atomic_writes import check_writable

    # A file that the command extends must itself be writable. Any other output is replaced by a new file, which needs
    # only a writable folder.
    if output.path_value.type.use == "appends" and output.is_regular:
        if not os.access(output.path, os.W_OK):
            raise FileError(f"{output.path}: cannot be written: Permission denied")
        return
    # a/b/c/out.json, where only a exists -> a/b: the test creates a file in a.
    path = Path(output.path)
    while not is_directory(path.parent) and path.parent != path:
        path = path.parent
    check_writable(path)


def _refuse_overwriting_inputs(outputs: Iterable[_Output], inputs: Iterable[_PathValue]) -> None:
    """Raise UsageError for an output that is the file of an input, or a file in the folder of an input."""
    # Files are compared by inode, because links and several spellings can name one file.
    by_identity = {_identity(output.status): output for output in outputs if output.status is not None}
    for path_value in inputs if by_identity else ():
        for path in _files_read(path_value):
            output = by_identity.get(_identity(_stat(path)))
            if output is not None and not _may_replace(output, path_value):
                raise _overwrite_error(output, f"{path_value.label} {path}")


def _refuse_overwriting_weights(
    outputs: Iterable[_Output], inputs: Iterable[_PathValue], context: click.Context
) -> None:
    """Raise UsageError for an output that is a file with weights of an input model."""
    from mixlist.model.load import load_model
    from mixlist.model.save import files_of_model

    by_identity = {_identity(output.status): output for output in outputs}
    models: dict[str, LoadedModel] = context.meta.setdefault(_LOADED_MODELS_KEY, {})
    for path_value in inputs:
        if path_value.type.use == "reads model":
            loaded = load_model(path_value.path)
            # Commands take only the models of arguments with ``load_input_model``; the other one is loaded later.
            if isinstance(path_value.parameter, click.Argument):
                models[path_value.path] = loaded
            for path in files_of_model(loaded):
                if output := by_identity.get(_identity(_stat(path))):
                    raise _overwrite_error(output, f"weights of {path_value.label} in {path}")


def _identity(status: os.stat_result | None) -> tuple[int, int]:
    """Return the device and the inode; for no file, a pair that no file has."""
    return (status.st_dev, status.st_ino) if status is not None else (-1, -1)


def _overwrite_error(output: _Output, overwritten: str) -> UsageError:
    message = f"{output.path_value.label} {output.path} is an input: {overwritten}"
    return UsageError(message, hint="name another file to write")


def _may_replace(output: _Output, path_value: _PathValue) -> bool:
    """Return whether the output may replace this input. The ``other_output`` of a parameter may replace no input."""
    return output.is_named_by_user and path_value.parameter.name == output.path_value.type.replaceable_input


def _files_read(path_value: _PathValue) -> Iterator[str | Path]:
    """Yield the path of an input and, if it is a folder, the files in it that the command reads."""
    is_library = path_value.type.use == "reads library"
    # The name of a built-in library is no path, even if a file has that name.
    if is_library and path_value.path in presets.names():
        return
    yield path_value.path
    if is_directory(path_value.path):
        for pattern in ("*.json",) if is_library else _BATCH_PATTERNS:
            yield from Path(path_value.path).glob(pattern)
