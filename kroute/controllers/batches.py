"""Work in batches, so that the event loop is never held for long."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

BATCH = 256
"""Services, or kernel objects, between two looks at the event loop: a few milliseconds."""


def batched(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """Cut into lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
