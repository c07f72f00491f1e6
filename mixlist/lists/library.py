"""The list of each op type: in a library, and after the edits of a modify_mixlist file (Rules S4.4 to S4.6).

White: the operator is computed in low precision. Black: it keeps its authored type. Gray: it follows the operator
upstream.

A name is an op type, for all domains (``Attention``), or an op type of one domain (``com.microsoft::Attention``). A
name with a domain that has no entry of its own is on the list of the op type without the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mixlist.diagnostics import FilePlace

ListName = Literal["white", "black", "gray"]
NameSpace = Literal["onnx", "ascend"]
# The list for each flag of precision_reduce (Rule S1.1).
LIST_OF_FLAG: dict[str, ListName] = {"true": "white", "false": "black"}


@dataclass(frozen=True)
class Library:
    """An operator information library that was read.

    ``lists`` maps every op type in the library, gray ones too, to the name of its list. ``space`` is the name space of
    a built-in library, and None for a file, whose name space must be found out (Rule S5.1). ``locate`` finds the place
    of an op type in the files, and is called only when a message needs the place. ``clear_ops`` are the op types of
    TensorFlow's fourth list, the clear list: operators without numeric effect. ``kernels`` has the float types in which
    a chip computes an op type, if the library says so (Rule S4.50). ``reasons`` has the text ``reason`` of the entries
    that have one: why the op type is on its list.
    """

    name: str
    lists: Mapping[str, ListName]
    space: NameSpace | None = None
    locate: Callable[[str], FilePlace | None] | None = field(default=None, compare=False, repr=False)
    clear_ops: frozenset[str] = frozenset()
    kernels: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def lacks_kernel(self, op: str, dtype: str) -> bool:
        """Return whether the chip computes an op type in floats, but not in this one."""
        return op in self.kernels and dtype not in self.kernels[op]

    def list_of(self, op: str) -> ListName:
        """Return the list of an op type before any edit. An unknown op type is gray (Rule S2.5)."""
        # com.microsoft::Attention without an entry of its own is on the list of Attention (Rule S5.2).
        return self.lists.get(op) or self.lists.get(op.rpartition("::")[2], "gray")

    def place(self, op: str) -> FilePlace | None:
        """Return the place that puts ``op`` on its list; None for a built-in library or an unknown op type."""
        return self.locate(op) if self.locate else None


class Move(NamedTuple):
    """The move of one op type to another list. ``place`` is the entry of the modify_mixlist that decides it, if any."""

    op: str
    before: ListName
    after: ListName
    place: FilePlace | None


@dataclass(frozen=True)
class Lists:
    """The effective lists: a library, and the moves of op types to other lists by a modify_mixlist file.

    ``moves`` holds the move of each op type that changes its list. ``named_ops`` are all op types that the
    modify_mixlist names, also those that it does not move. ``entry_places`` holds the place of the first entry of each
    op type.
    """

    library: Library
    moves: Mapping[str, Move] = field(default_factory=dict)
    named_ops: frozenset[str] = frozenset()
    entry_places: Mapping[str, FilePlace] = field(default_factory=dict, compare=False, repr=False)

    @property
    def title(self) -> str:
        """Return the name of the library, and the number of op types that a modify_mixlist moves."""
        count = len(self.moves)
        return f"{self.library.name} with {count} edit{'s' * (count != 1)}" if count else self.library.name

    def list_of(self, op: str) -> ListName:
        """Return the list of an op type after the edits. An unknown op type is gray (Rule S2.5)."""
        move = self.moves.get(op)
        if move:
            return move.after
        # domain::Op without an entry of its own is on the list of Op, which can have moved.
        bare_op = op.rpartition("::")[2]
        return self.library.list_of(op) if bare_op == op or self.has_entry(op) else self.list_of(bare_op)

    def has_entry(self, op: str) -> bool:
        """Return True if the library or the modify_mixlist names exactly this op type."""
        return op in self.library.lists or op in self.named_ops

    def source(self, op: str) -> str:
        """Return the place in a file that puts the op type on its list; for a built-in library, the library's name."""
        move = self.moves.get(op)
        if move and move.place:
            return str(move.place)
        place = self.library.place(op)
        return str(place) if place else f"library {self.library.name}"
