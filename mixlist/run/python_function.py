"""Find the Python function that a user names: ``FILE.py:NAME`` or ``MODULE:NAME``.

``MODULE:NAME`` is imported as Python imports modules, also from the current folder, and ``FILE.py:NAME`` from that
file.

``run_loader`` imports and runs the function of ``--loader``, which yields batches as dicts of arrays by input name. It
is a function without arguments, a class of which an object yields batches, or an iterable object. ``load_function``
returns a function that a command calls: the loop of ``train``, or the function of ``--judge``. The code runs in this
process only. What it prints goes to standard error, because standard output belongs to the report.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from mixlist.errors import FileError, MixlistError, UsageError, UserCodeError
from mixlist.lists.suggestions import choices_hint

FORM = "FILE.py:FUNCTION or MODULE:FUNCTION"
_MAX_LISTED = 12  # names that a hint lists
_TRACEBACK_HINT = "MIXLIST_DEBUG=1 shows the traceback"

Result = TypeVar("Result")


def split_function(text: str, shown: str, example: str) -> tuple[str, str]:
    """Return the file or module and the name in ``FILE.py:NAME`` or ``MODULE:NAME``.

    ``shown`` is the text as the user wrote it, with its option. Raises UsageError with ``example`` in its hint.
    """
    # From the right: a path of Windows has a colon after the drive.
    place, _, name = text.rpartition(":")
    if not (place and name.isidentifier()):
        raise UsageError(f"{shown}: this is not {FORM}", hint=f"for example {example}")
    return place, name


def is_file(place: str) -> bool:
    """Return whether the part before the colon is a file, and not the name of a module."""
    return place.endswith(".py") or "/" in place or os.sep in place


def import_place(place: str, example: str) -> ModuleType:
    """Return the module of a file or of a module name; the code of the user runs.

    Raises FileError without such a file or module.
    """
    if not is_file(place):
        # ``python -m`` finds modules of the current folder too. A console script does not.
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            # An import inside of the module is the user's own error.
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise FileError(f"there is no module {error.name}", hint=f"for example {example}") from None
    path = Path(place).absolute()
    if not path.is_file():
        raise FileError(f"{place}: there is no such file", hint=f"for example {example}")
    # As for ``python loader.py``: the file can import its neighbors.
    sys.path.insert(0, os.fspath(path.parent))
    # A name of its own: the file may be called like a module that is loaded already, such as random.py.
    name = f"mixlist_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileError(f"{place} is not a Python file", hint=f"for example {example}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up here.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def get_member(module: ModuleType, place: str, name: str, shown: str) -> object:
    """Return a function, class or object of a module. Raises UsageError if the module has no such name."""
    if not hasattr(module, name):
        names = [known for known in vars(module) if not known.startswith("_") and callable(getattr(module, known))]
        hint = choices_hint(name, names[:_MAX_LISTED], "it has") if names else "define it there"
        raise UsageError(f"{shown}: {place} has no {name!r}", hint=hint)
    member: object = getattr(module, name)
    return member


# --- a function that the command calls ---


def load_function(text: str, shown: str, example: str) -> Callable[..., Any]:
    """Return a function of a user's file. Errors in the file and of the function are UserCodeErrors.

    ``shown`` and ``example`` as for ``split_function``. Raises UsageError if there is no such function.
    """
    place, name = split_function(text, shown, example)
    function = get_member(call_user_code(lambda: import_place(place, example)), place, name, shown)
    if not callable(function):
        raise UsageError(f"{shown} is an object of the type {type(function).__name__}, and not a function")

    def call(*arguments: object) -> object:
        return call_user_code(lambda: function(*arguments))

    # The signature that is checked before the first call is that of the user's function.
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def call_user_code(work: Callable[[], Any]) -> Any:
    """Return the result of the user's code. What it prints goes to standard error, and errors become UserCodeErrors."""
    try:
        # Standard output belongs to the report.
        with redirect_stdout(sys.stderr):
            return work()
    except (MixlistError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, and classes of the user's own that are no Exception
        raise UserCodeError(_user_traceback(error)) from error


def _user_traceback(error: BaseException) -> str:
    """Return the traceback of an error without the frames of mixlist; MIXLIST_DEBUG=1 keeps them."""
    lines = traceback.TracebackException.from_exception(error)
    if not os.environ.get("MIXLIST_DEBUG"):
        own_folder = os.fspath(Path(__file__).resolve().parent.parent)
        shown: traceback.TracebackException | None = lines
        while shown is not None:
            shown.stack = traceback.StackSummary.from_list(_without_own_frames(list(shown.stack), own_folder))
            shown = shown.__cause__ or shown.__context__
    return "".join(lines.format())


def _without_own_frames(frames: list[traceback.FrameSummary], own_folder: str) -> list[traceback.FrameSummary]:
    """Return the frames without those of mixlist, and of PyTorch where it only calls an operator for mixlist."""
    is_own = [frame.filename.startswith(own_folder) for frame in frames]
    is_user = [
        not own and f"{os.sep}torch{os.sep}" not in frame.filename for own, frame in zip(is_own, frames, strict=True)
    ]
    last_user = max((index for index, user in enumerate(is_user) if user), default=0)
    end = next((index for index in range(last_user, len(frames)) if is_own[index]), len(frames))
    return [frame for frame, own in zip(frames[:end], is_own, strict=False) if not own]


# --- a function that yields batches ---


def run_loader(text: str) -> Iterator[object]:
    """Import a loader and yield the batches that it yields, as they are.

    Raises UsageError for a text that names no loader and for every error of its code, with file and line, and FileError
    if its file does not exist.
    """
    shown, example = f"the loader {text}", "loader.py:batches"
    place, name = split_function(text, shown, example)
    module = _run_user_code(lambda: import_place(place, example), shown, place)
    loader = get_member(module, place, name, shown)
    path = getattr(module, "__file__", None) or place
    if callable(loader):
        _check_arguments(loader, shown)
        loader = _run_user_code(loader, shown, path)
    if isinstance(loader, Mapping):
        loader = [loader]
    if isinstance(loader, str | bytes) or not hasattr(loader, "__iter__"):
        message = f"{shown} gives {describe_kind(loader)}, and not batches"
        raise UsageError(message, hint="yield one dict of arrays by input name for each batch")
    iterator = _run_user_code(lambda: iter(loader), shown, path)
    end = object()
    while (batch := _run_user_code(lambda: next(iterator, end), shown, path)) is not end:
        yield batch


def describe_kind(value: object) -> str:
    """Return what a value of the user is, for an error: ``an object of the type list``."""
    return "None" if value is None else f"an object of the type {type(value).__name__}"


def _check_arguments(loader: Callable[..., object], shown: str) -> None:
    """Raise UsageError, with file and line, if a function cannot be called without arguments."""
    try:
        signature = inspect.signature(loader)
    except (ValueError, TypeError):  # functions in C may have no signature
        return
    try:
        signature.bind()
    except TypeError:
        code = getattr(loader, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
        message = f"{place}{shown} takes arguments {signature}, and mixlist calls it without any"
        raise UsageError(message, hint="give the arguments defaults") from None


def _run_user_code(work: Callable[[], Result], shown: str, path: str) -> Result:
    """Return the result of the user's code; raise UsageError with the file and the line of an error in it."""
    try:
        with redirect_stdout(sys.stderr):
            return work()
    except (FileError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, and classes of the user, too
        message = f"{_place_of(error, path)}{shown} raised {type(error).__name__}"
        reason = f"{error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{message}: {reason}" if reason else message, hint=_TRACEBACK_HINT) from error


def _place_of(error: BaseException, path: str) -> str:
    """Return ``file:line: `` of the user's code where an error arose; "" if it arose outside of it.

    The last line in the loader's own file counts, because the user can change that one, and not a line of a library
    that it calls.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    own_file = os.path.abspath(path)  # noqa: PTH100
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) == own_file]  # noqa: PTH100
    return f"{path}:{frames[-1].lineno}: " if frames else ""
