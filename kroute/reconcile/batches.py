"""Work in batches, so that the event loop is never held for long."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

BATCH = 256
"""Services or kernel objects that are handled before other tasks run: a few milliseconds."""


def batched(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """Cut into lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


async def sliced(items: Iterable[T], size: int = BATCH) -> AsyncIterator[list[T]]:
    """As `batched`, but other tasks run between two batches. They must not change the collection behind `items`."""
    is_first = True
    for batch in batched(items, size):
        if not is_first:
            await asyncio.sleep(0)
        is_first = False
        yield batch
