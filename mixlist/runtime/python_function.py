"""Find the Python function that a user names: ``FILE.py:NAME`` or ``MODULE:NAME``.

``MODULE:NAME`` is imported as Python imports modules, also from the current folder, and ``FILE.py:NAME`` from that
file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from mixlist.errors import FileError, UsageError
from mixlist.lists.suggestions import choices_hint

FORM = "FILE.py:FUNCTION or MODULE:FUNCTION"
_MAX_LISTED = 12  # names that a hint lists


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
