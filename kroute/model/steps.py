"""Long work in steps, between which the caller may do something else: a generator that yields what each step took."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

UNITS_A_STEP = 1000
"""Virtual servers, real servers or set entries that are planned at a time: a millisecond or two."""

Steps: TypeAlias = Generator[int, None, T]
"""Work in steps: each yields how many units it took. What is found is returned."""


def parts(items: Iterable[T], units: int = 1) -> Iterator[list[T]]:
    """The items, as many at a time as one step should take, if each takes so many units."""
    waiting = iter(items)
    while part := list(islice(waiting, max(1, UNITS_A_STEP // units))):
        yield part


def sort(items: Iterable[T]) -> Steps[list[T]]:
    """The items in order."""
    in_order = []
    for part in parts(items):
        in_order.append(sorted(part))  # type: ignore[type-var]
        yield len(part)
    if len(in_order) <= 1:
        return in_order[0] if in_order else []
    result: list[T] = []
    for part in parts(merge(*in_order)):  # type: ignore[type-var]
        result += part
        yield len(part)
    return result


class Meter:
    """Counts units of work: virtual servers, real servers, set entries. `limit` None is no limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = float("inf") if limit is None else limit
        self.spent = 0


class Batch(Generic[K, V, T]):
    """Services that are planned together, in as many pieces as it takes: what is `due`, and what was `made` so far."""

    def __init__(self, due: Mapping[K, V]) -> None:
        self.made: list[T] = []
        self._due = iter(due.items())
        self._steps: Steps[T] | None = None

    def advance(self, meter: Meter, begin: Callable[[K, V], Steps[T]]) -> bool:
        """Plan until the meter is spent; `begin` starts with one Service. Whether all of them are planned."""
        while True:
            if self._steps is None:
                due = next(self._due, None)
                if due is None:
                    return True
                self._steps = begin(*due)
            try:
                meter.spent += next(self._steps)
            except StopIteration as end:
                self.made.append(end.value)
                self._steps = None
            if meter.spent >= meter.limit:
                return False
