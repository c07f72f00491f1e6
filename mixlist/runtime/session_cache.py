"""What a process keeps between the tasks of an executor: the last few sessions, by a token that names each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """At most ``limit`` things; the one that was not asked for the longest goes, once no thread holds it any more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._things: OrderedDict[str, T] = OrderedDict()
        self._making = threading.Lock()  # a process may work in several threads

    def get(self, token: str, source: bytes | str, make: Callable[[bytes], T]) -> T:
        """The thing of a token, made when it is first asked for of ``source``: its bytes, or the path of their file."""
        with self._making:
            found = self._things.get(token)
            if found is None:
                data = source if isinstance(source, bytes) else Path(source).read_bytes()
                while len(self._things) >= self._limit:
                    self._things.popitem(last=False)
                found = self._things[token] = make(data)
            self._things.move_to_end(token)
            return found
