"""Work in batches, so that the event loop is never held for long."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Generic, Self, TypeVar, cast

from kroute.model.steps import Steps

T = TypeVar("T")

BATCH = 256
"""Services or kernel objects that are handled before other tasks run: a few milliseconds."""


def in_portions(
    items: Iterable[T], weight: Callable[[T], float], most: float, size: int | None = None
) -> Iterator[list[T]]:
    """Cut into lists of items that weigh `most` together, or of one item that weighs more; of `size` items at most."""
    portion: list[T] = []
    total = 0.0
    for item in items:
        heavy = weight(item)
        if portion and (total + heavy > most or len(portion) == size):
            yield portion
            portion, total = [], 0.0
        portion.append(item)
        total += heavy
    if portion:
        yield portion


class _Slices(Generic[T]):
    """An iterator rather than a generator: the event loop registers each generator, which costs more than one slice."""

    __slots__ = ("_has_begun", "_items")

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._has_begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[T]:
        batch = list(islice(self._items, BATCH))
        if not batch:
            raise StopAsyncIteration
        if self._has_begun:
            await asyncio.sleep(0)
        self._has_begun = True
        return batch


def cut(items: Collection[T], size: int = BATCH) -> Iterable[list[T]]:
    """Cut into lists of at most `size`, usually one. The caller lets other tasks run in between."""
    if len(items) <= size:
        return (list(items),) if items else ()
    iterator = iter(items)
    return iter(lambda: list(islice(iterator, size)), [])


def sliced(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """Cut into lists of at most BATCH. Other tasks run in between, and must not change the collection of `items`."""
    return _Slices(items)


async def in_turns(steps: Steps[T]) -> T:
    """Take the steps one by one, and let other tasks run in between. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        await asyncio.sleep(0)
