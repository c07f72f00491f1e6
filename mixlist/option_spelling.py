"""Name an option in a message: as the keyword argument of Python, or as the flag of the running command.

Code below the command line writes ``spell("protect", "masks")`` into an error, a finding or a reason. A Python
user reads ``protect='masks'``. ``cli/`` lets it become ``--protect masks`` while a command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Speller: TypeAlias = Callable[[str, object], str]
# The options of the command line that are something else in Python.
_PYTHON_FORMS = {
    "random": "mixlist.random_batches(...)",
    "loader": "what it yields",
    "loss_scale": "it as a parameter",  # each loss scaler has its own name for it
    "scaler_args": "it as a parameter",
}


class Verbatim(str):
    """A value that is written as it is, without quotes, such as ``1/255``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def spell_keyword(name: str, value: object = None) -> str:
    """Return ``name=value`` as in a call of a Python function; ``name=...`` without a value."""
    return _PYTHON_FORMS.get(name) or f"{name}={'...' if value is None else repr(value)}"


_speller: Speller = spell_keyword


def spell(name: str, value: object = None) -> str:
    """Return the option as its user gives it. ``name`` is the name of the field or keyword argument.

    A dict is an option that takes names and values: ``dims={'batch': 4}`` or ``--dim batch=4``. True and False turn a
    flag on and off.
    """
    return _speller(name, value)


@contextmanager
def spelled_by(speller: Speller) -> Iterator[None]:
    """Let ``spell`` call another function in the ``with``, in all threads of this process."""
    global _speller
    previous, _speller = _speller, speller
    try:
        yield
    finally:
        _speller = previous
