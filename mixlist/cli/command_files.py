"""Compare the files that a command writes with the files that it reads, before it does any work.

The type of a parameter (``parameters.PathType``) says how the command uses its files. The comparison uses inodes, so a
link to a file counts as that file. ``load_input_model`` returns a model that the comparison has loaded already.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations
from os.path import samestat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mixlist.cli.config_file import write_found_config
from mixlist.cli.grouped_help import GroupedHelpCommand
from mixlist.cli.options import spell_flag
from mixlist.cli.parameters import PathType, keep_one_of_exclusive_options, used_paths
from mixlist.errors import FileError, UsageError
from mixlist.files.list_text import is_directory
from mixlist.option_spelling import spelled_by

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel

# The files that a command reads in a folder: those of a library, and those of batches (``run/batch_files.py``).
_FOLDER_PATTERNS = {
    "reads library": ("*.json",),
    "reads": (
        *("*.npz", "*.npy", "*.bin", "*.pb", "*/*.npy", "*/*.bin", "*/*.pb"),
        *("*.png", "*.jpg", "*.jpeg", "*.bmp", "*.webp"),
    ),
}
_LOADED_MODELS_KEY = "mixlist.models"  # the key in ``context.meta`` of models loaded to find their weights


class FileCheckingCommand(GroupedHelpCommand):
    """The class of all commands: before any work, it checks that options and files do not contradict each other."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the options and files, then run the command. Messages name its flags."""
        write_found_config(ctx)
        keep_one_of_exclusive_options(ctx)
        with spelled_by(partial(spell_flag, self)):
            check_files(ctx)
            return super().invoke(ctx)


class _Output(NamedTuple):
    """A file that the command writes because of the value of a parameter.

    ``status`` describes an existing file, following links; None if there is none.
    """

    label: str
    type: PathType
    value: str
    path: str
    status: os.stat_result | None

    @property
    def is_regular(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    @property
    def is_named_by_user(self) -> bool:
        """Return whether the parameter names this file or its folder; False for its ``other_output``."""
        return self.type.use == "writes into" or self.path == self.value

    def is_file(self, status: os.stat_result | None) -> bool:
        """Return whether the output is an existing file. Only regular files count: a device, /dev/null, can be both."""
        return status is not None and self.status is not None and self.is_regular and samestat(status, self.status)


def check_files(context: click.Context) -> None:
    """Raise an error if an output of the running command is an input or another output, exists, or cannot be written.

    The errors are UsageError and FileError, and ModelError for a model that cannot be read to find its weights.

    The checks go from cheap to expensive. The check for overwritten inputs comes before the check for existing files,
    because the hint of the second check, ``--force``, does not permit the command to overwrite an input.
    """
    paths = list(used_paths(context))
    if sum(path == "-" and kind.allow_dash and kind.is_read for _, kind, path in paths) > 1:
        raise UsageError(
            "'-' (standard input) is given twice", hint="it can be read only once: put one of the two inputs in a file"
        )
    outputs = [
        _Output(_label(parameter), kind, value, path, _stat(path))
        for parameter, kind, value in paths
        for path in kind.files_written(value)
    ]
    # Two outputs must not be one file: the second one would replace the first.
    for first, second in combinations(outputs, 2):
        # A file that does not exist yet has no status.
        is_new = first.status is None and second.status is None
        if _real(first.path) == _real(second.path) if is_new else first.is_file(second.status):
            raise UsageError(
                f"{first.label} and {second.label} would write the same file {second.path}", hint="name one file each"
            )
    for output in outputs:
        _check_place(output)
    inputs = [(parameter, kind, path) for parameter, kind, path in paths if kind.is_read]
    for parameter, kind, value in inputs if any(output.is_regular for output in outputs) else ():
        for path in _files_read(kind, value):
            others = (o for o in outputs if not (o.is_named_by_user and parameter.name == o.type.replaceable_input))
            _refuse_overwriting(others, path, _label(parameter))
    for output in outputs:
        # The second file of a parameter, such as modify.partial.json, is replaced without --force.
        must_be_new = output.is_named_by_user and output.type.must_be_new and not context.params.get("force")
        if must_be_new and output.status is not None:
            raise UsageError(f"{output.path} exists", hint="use --force to replace it")
        _check_writable(output)
    # Last, because it loads the models.
    for parameter, kind, value in inputs if any(output.is_regular for output in outputs) else ():
        if kind.use == "reads model":
            from mixlist.model.load import load_model
            from mixlist.model.save import files_of_model

            loaded = load_model(value)
            # Commands take only the models of arguments with ``load_input_model``; another one is loaded later.
            if isinstance(parameter, click.Argument):
                context.meta.setdefault(_LOADED_MODELS_KEY, {})[value] = loaded
            for path in files_of_model(loaded):
                _refuse_overwriting(outputs, path, f"weights of {_label(parameter)} in")


def _label(parameter: click.Parameter) -> str:
    """Return the name of a parameter for messages."""
    return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _refuse_overwriting(outputs: Iterable[_Output], path: str | Path, use: str) -> None:
    """Raise UsageError if an output is this file, compared by inode: links and several spellings can name one file."""
    status = _stat(path)
    for output in outputs:
        if output.is_file(status):
            message = f"{output.label} {output.path} is an input: {use} {path}"
            raise UsageError(message, hint="name another file to write")


def load_input_model(path: str) -> LoadedModel:
    """Return a model of the running command; load it unless ``check_files`` has loaded it to find its weights."""
    from mixlist.model.load import load_model

    models: dict[str, LoadedModel] = click.get_current_context().meta.get(_LOADED_MODELS_KEY, {})
    # Each loaded model is returned only once, because ``apply`` rewrites its model in place.
    return models.pop(path, None) or load_model(path)


def _stat(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _real(path: str) -> str:
    return os.path.normcase(os.path.realpath(path))  # Windows ignores case


def _check_place(output: _Output) -> None:
    """Raise FileError if the path of the output cannot be that of a file: its folder is missing, or it is a folder."""
    path = Path(output.path)
    if output.type.use == "writes into":
        if _stat(output.value) is not None and not is_directory(output.value):
            raise FileError(
                f"{output.label} {output.value} is not a folder", hint="name a folder, or a path that does not exist"
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
    if output.type.use == "appends" and output.is_regular:
        if not os.access(output.path, os.W_OK):
            raise FileError(f"{output.path}: cannot be written: Permission denied")
        return
    # a/b/c/out.json, where only a exists -> a/b: the test creates a file in a.
    path = Path(output.path)
    while not is_directory(path.parent) and path.parent != path:
        path = path.parent
    check_writable(path)


def _files_read(kind: PathType, path: str) -> Iterator[str | Path]:
    """Yield the path of an input and, if it is a folder, the files in it that the command reads."""
    if path == "-" and kind.allow_dash:
        return
    yield path
    if is_directory(path):
        for pattern in _FOLDER_PATTERNS.get(kind.use, ()):
            yield from Path(path).glob(pattern)
