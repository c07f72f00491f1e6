"""Compare the files that a command writes with those that it reads, before it does any work.

The type of a parameter (``parameters.PathType``) says what the command does with the files that it names. Files are
compared by inode, so every link to a file is that file.
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

from mixlist.cli.parameters import PathType, path_values
from mixlist.errors import FileError, UsageError
from mixlist.files.jsonc import is_directory
from mixlist.lists import presets

if TYPE_CHECKING:
    from mixlist.graph.load import LoadedModel

_BATCHES = ("*.npz", "*.npy", "*.pb", "*/*.pb")  # the files that ``runtime.batch_files`` reads in a folder
_MODELS = "mixlist.models"  # the key in a context's ``meta`` of models that were loaded to find their weights


class Command(click.Command):
    """A command that refuses, before any work, to write over its own inputs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run the command."""
        check_files(ctx)
        return super().invoke(ctx)


@dataclass(frozen=True)
class _Named:
    """A path that a parameter of the running command has; ``label`` is the parameter as users know it."""

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
    """A file that the command writes because of a parameter; ``status`` is of the file that is there, if one is."""

    named: _Named
    path: str
    status: os.stat_result | None

    @property
    def is_main(self) -> bool:
        """Return whether the parameter names this file or its folder; False for a file that ``also`` adds."""
        return self.named.type.use == "writes into" or self.path == self.named.path

    @property
    def is_regular(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)


def check_files(context: click.Context) -> None:
    """Raise where an output of the running command is an input or another output, exists, or cannot be written.

    Raises UsageError and FileError, and ModelError for a model that cannot be read to find its weights.
    """
    given = [_Named(*each) for each in path_values(context)]
    outputs = [_Output(named, path, _status(path)) for named in given for path in named.type.files_written(named.path)]
    if not outputs:
        return
    for first, second in combinations(outputs, 2):
        if _same_file(first, second):
            raise UsageError(
                f"{first.named.label} and {second.named.label} would write the same file {second.path}",
                hint="name one file each",
            )
    for output in outputs:
        _check_place(output)
    inputs = [named for named in given if named.type.is_read and not named.is_stream]
    replaced = [output for output in outputs if output.is_regular]
    _refuse_inputs(replaced, inputs)
    for output in outputs:
        must_be_new = output.is_main and output.named.type.must_be_new and not context.params.get("force")
        if must_be_new and output.status is not None:
            raise UsageError(f"{output.path} exists", hint="use --force to replace it")
    for output in outputs:
        if not (context.params.get("dry_run") and output.named.type.must_be_new):  # a dry run does not write it
            _check_writable(output)
    if replaced:
        _refuse_weights(replaced, inputs, context)


def load_model(path: str) -> LoadedModel:
    """Load a model for the running command, unless it was loaded to find its weights."""
    from mixlist.graph.load import load_model

    models: dict[str, LoadedModel] = click.get_current_context().meta.get(_MODELS, {})
    return models.pop(path, None) or load_model(path)


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of a file, also behind a link; None if there is no file."""
    try:
        return os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _same_file(first: _Output, second: _Output) -> bool:
    if first.status is None or second.status is None:
        return first.status is second.status and _canonical(first.path) == _canonical(second.path)
    return (first.is_regular or second.is_regular) and os.path.samestat(first.status, second.status)


def _canonical(path: str) -> str:
    """Return one spelling for all paths of a file that does not exist yet; Windows and macOS ignore capitals."""
    real, system = os.path.realpath(path), str(sys.platform)
    if system not in ("win32", "darwin"):
        return real
    import unicodedata

    return unicodedata.normalize("NFC", real).casefold()


def _check_place(output: _Output) -> None:
    """Raise FileError unless a file can lie at the output's path."""
    named, path = output.named, Path(output.path)
    if named.type.use == "writes into":
        if _status(named.path) is not None and not is_directory(named.path):
            raise FileError(
                f"{named.label} {named.path} is no folder", hint="name a folder, or one that does not exist"
            )
    elif not is_directory(path.parent):
        raise FileError(f"{path}: cannot be written: its folder does not exist", hint="name a file in another folder")
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long, or one that Windows forbids
        raise FileError(f"{path}: cannot be written: {error.strerror}", hint="choose another name") from None
    if is_directory(path):
        raise FileError(f"{path}: is a folder", hint="name a file in a folder that exists")


def _check_writable(output: _Output) -> None:
    """Raise FileError unless the output can be written; the folders of an output may be missing."""
    from mixlist.files.atomic_writes import check_writable

    if output.named.type.use == "appends" and output.is_regular:
        if not os.access(output.path, os.W_OK):
            raise FileError(f"{output.path}: cannot be written: Permission denied")
        return
    path = Path(output.path)
    while not is_directory(path.parent) and path.parent != path:
        path = path.parent
    check_writable(path)


def _refuse_inputs(outputs: Iterable[_Output], inputs: Iterable[_Named]) -> None:
    """Raise UsageError for an output that is the file of an input, or one in the folder of an input."""
    by_identity = {_identity(output.status): output for output in outputs if output.status is not None}
    for named in inputs if by_identity else ():
        for path in _files_read(named):
            output = by_identity.get(_identity(_status(path)))
            if output is not None and not _may_replace(output, named):
                raise _would_replace(output, f"{named.label} {path}")


def _refuse_weights(outputs: Iterable[_Output], inputs: Iterable[_Named], context: click.Context) -> None:
    """Raise UsageError for an output that is a file of a model's weights."""
    from mixlist.graph.load import load_model
    from mixlist.graph.save import files_of_model

    by_identity = {_identity(output.status): output for output in outputs}
    models: dict[str, LoadedModel] = context.meta.setdefault(_MODELS, {})
    for named in inputs:
        if named.type.use == "reads model":
            loaded = load_model(named.path)
            if isinstance(named.parameter, click.Argument):  # the command gets it from ``load_model``
                models[named.path] = loaded
            for path in files_of_model(loaded):
                if output := by_identity.get(_identity(_status(path))):
                    raise _would_replace(output, f"weights of {named.label} in {path}")


def _identity(status: os.stat_result | None) -> tuple[int, int]:
    return (status.st_dev, status.st_ino) if status is not None else (-1, -1)


def _would_replace(output: _Output, what: str) -> UsageError:
    message = f"{output.named.label} {output.path} is an input: {what}"
    return UsageError(message, hint="name another file to write")


def _may_replace(output: _Output, named: _Named) -> bool:
    """Return whether the output is there to take the place of this input."""
    return output.is_main and named.parameter.name == output.named.type.may_replace


def _files_read(named: _Named) -> Iterator[str | Path]:
    """Yield the file of an input, or those of its folder that the command reads."""
    is_library = named.type.use == "reads library"
    if is_library and named.path in presets.names():
        return
    yield named.path
    if is_directory(named.path):
        for pattern in ("*.json",) if is_library else _BATCHES:
            yield from Path(named.path).glob(pattern)
