"""A cache of values by key, which drops the least recently used values first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """A cache whose values have a total weight of at most ``limit``. Several threads may use it.

    weigh: returns the weight of a value; by default 1, so that ``limit`` is a number of values.
    """

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda _: 1) -> None:
        self._limit, self._weigh = limit, weigh
        self._values: OrderedDict[Hashable, T] = OrderedDict()  # the least recently used value first
        self._total_weight = 0
        self._lock = threading.RLock()  # reentrant, because ``get_or_make`` calls ``get`` and ``put``

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None if the cache does not have it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Store the value of a new key, unless the value alone is beyond the limit."""
        weight = self._weigh(value)
        # A value beyond the limit would drop all others and still not fit, so it is not stored.
        with self._lock:
            if key not in self._values and weight <= self._limit:
                self._make_room(weight)
                self._values[key] = value
                self._total_weight += weight

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; if the cache does not have it, call ``make`` and store the result.

        While one thread calls ``make``, all other threads that use the cache wait, also for other keys.
        """
        with self._lock:
            value = self.get(key)
            if value is None:
                # Values are large: if the cache is full, drop an old one before the new one takes memory. The weight of
                # the new value is not known yet, and is at least 1.
                self._make_room(1)
                value = make()
                self.put(key, value)
            return value

    def drop(self, key: Hashable) -> None:
        """Forget the value of a key, if the cache has it."""
        with self._lock:
            if key in self._values:
                self._total_weight -= self._weigh(self._values.pop(key))

    def _make_room(self, weight: int) -> None:
        while self._values and self._total_weight + weight > self._limit:
            _, dropped_value = self._values.popitem(last=False)
            self._total_weight -= self._weigh(dropped_value)
