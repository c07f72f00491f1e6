"""Import and run the Python function of ``--loader``, which yields batches as dicts of arrays by input name.

It is a function without arguments, a class of which an object yields batches, or an iterable object. The code runs in
this process only. What it prints goes to standard error, because standard output belongs to the report.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from typing import TypeVar

from mixlist.errors import FileError, UsageError
from mixlist.runtime.python_function import get_member, import_place, split_function

_EXAMPLE = "--loader loader.py:batches"
_TRACEBACK_HINT = "MIXLIST_DEBUG=1 shows the traceback"

Result = TypeVar("Result")


def run_loader(text: str) -> Iterator[object]:
    """Import a loader and yield the batches that it yields, as they are.

    Raises UsageError for a text that names no loader and for every error of its code, with file and line, and FileError
    if its file does not exist.
    """
    place, name = split_function(text, f"--loader {text}", _EXAMPLE)
    module = _run_user_code(lambda: import_place(place, _EXAMPLE), text, place)
    loader = get_member(module, place, name, f"--loader {text}")
    path = getattr(module, "__file__", None) or place
    if callable(loader):
        _check_arguments(loader, text)
        loader = _run_user_code(loader, text, path)
    if isinstance(loader, Mapping):
        loader = [loader]
    if isinstance(loader, str | bytes) or not hasattr(loader, "__iter__"):
        message = f"--loader {text} gives {_kind_of(loader)}, and not batches"
        raise UsageError(message, hint="yield one dict of arrays by input name for each batch")
    iterator = _run_user_code(lambda: iter(loader), text, path)
    end = object()
    while (batch := _run_user_code(lambda: next(iterator, end), text, path)) is not end:
        yield batch


def _kind_of(value: object) -> str:
    return "None" if value is None else f"an object of the type {type(value).__name__}"


def _check_arguments(loader: Callable[..., object], text: str) -> None:
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
        message = f"{place}--loader {text} takes arguments {signature}, and mixlist calls it without any"
        raise UsageError(message, hint="give the arguments defaults") from None


def _run_user_code(work: Callable[[], Result], text: str, path: str) -> Result:
    """Return the result of the user's code; raise UsageError with the file and the line of an error in it."""
    try:
        with redirect_stdout(sys.stderr):
            return work()
    except (FileError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        message = f"{_place_of(error, path)}--loader {text} raised {type(error).__name__}"
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
