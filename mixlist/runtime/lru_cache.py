"""Keep values by key between the tasks of a process, and drop the least recently used ones first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """Values of at most ``limit``, each counted by ``weigh``: by default their number. Safe for several threads."""

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda _: 1) -> None:
        self._limit, self._weigh = limit, weigh
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._weight = 0
        self._lock = threading.RLock()

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key, None if there is none (any more)."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Keep the value of a new key, unless it is beyond the limit by itself."""
        weight = self._weigh(value)
        with self._lock:
            if key not in self._values and weight <= self._limit:
                self._make_room(weight)
                self._values[key] = value
                self._weight += weight

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; it is made, by one thread, where there is none."""
        with self._lock:
            value = self.get(key)
            if value is None:
                self._make_room(1)  # before, since the values are large
                value = make()
                self.put(key, value)
            return value

    def _make_room(self, weight: int) -> None:
        while self._values and self._weight + weight > self._limit:
            self._weight -= self._weigh(self._values.popitem(last=False)[1])
