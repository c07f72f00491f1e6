"""The list of each op type: a library's three lists, and the lists after a mixlist's edits.

White: the op is computed in low precision. Black: it keeps the type the model was authored in.
Gray: it follows the operator upstream. (Rules S4.4 to S4.6.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mixlist.diagnostics import FilePlace

ListName = Literal["white", "black", "gray"]
NameSpace = Literal["onnx", "ascend"]
LIST_OF_FLAG: dict[str, ListName] = {"true": "white", "false": "black"}  # by the flag of precision_reduce (Rule S1.1)


@dataclass(frozen=True)
class Library:
    """An operator information library, read.

    ``lists`` holds every op type that the library knows, gray ones included. ``locate`` finds an
    op's place in the files when a message needs it (positions are not computed before that).
    ``space`` is the fixed name space of a built-in library, None where it has to be found out.
    ``clear`` are the op types without numeric effect of TensorFlow's fourth list.
    """

    name: str
    lists: Mapping[str, ListName]
    space: NameSpace | None = None
    locate: Callable[[str], FilePlace | None] | None = field(default=None, compare=False, repr=False)
    clear_ops: frozenset[str] = frozenset()

    def list_of(self, op: str) -> ListName:
        """The list before any edit: ``domain::Op`` without an entry of its own starts where ``Op`` is."""
        found = self.lists.get(op)
        return found or self.lists.get(op.rpartition("::")[2], "gray")

    def place(self, op: str) -> FilePlace | None:
        """Return the place that puts ``op`` on its list; None in a built-in library, and for an unknown op."""
        return self.locate(op) if self.locate else None


@dataclass(frozen=True, slots=True)
class Move:
    """The move of one op type by a modify_mixlist file; ``place`` is the entry that decided."""

    op: str
    before: ListName
    after: ListName
    place: FilePlace | None


@dataclass(frozen=True)
class Lists:
    """The effective lists: a library and the moves of a modify_mixlist file."""

    library: Library
    moves: Mapping[str, Move] = field(default_factory=dict)
    named_ops: frozenset[str] = frozenset()  # every op type that the modify_mixlist file names
    entry_places: Mapping[str, FilePlace] = field(
        default_factory=dict, compare=False, repr=False
    )  # where it names it first

    def list_of(self, op: str) -> ListName:
        """The list of an op type; an op nobody names is gray, ``domain::Op`` nobody names is where ``Op`` is."""
        move = self.moves.get(op)
        if move:
            return move.after
        bare = op.rpartition("::")[2]
        return self.library.list_of(op) if bare == op or self.has_entry(op) else self.list_of(bare)

    def has_entry(self, op: str) -> bool:
        """Return True if the library or the mixlist names the op type."""
        return op in self.library.lists or op in self.named_ops

    def source(self, op: str) -> str:
        """Return the place in a file that put the op on its list, or the name of the library if no file did."""
        move = self.moves.get(op)
        if move and move.place:
            return str(move.place)
        place = self.library.place(op)
        return str(place) if place else f"library {self.library.name}"
