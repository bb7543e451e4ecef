"""Memory: little work for the garbage collector while kroute holds many objects, and what is freed is returned.

Nearly everything that kroute holds (objects of the API, plans, applied state) is in no cycle, so its reference count
frees it when it is replaced. Cycles come from failures, a few each. Yet a full collection visits every object: with
100,000 endpoints it holds the event loop for a quarter of a second or more.

Nor do modules while they are imported, and the initial sync, leave cycles; but they make so many objects that visiting
each of them twice took a twentieth of an agent's start. So there are hardly any collections (`seldom`), and no full
one, until the result of the initial sync is in the kernel. Then all live objects are frozen
(`gc.freeze`): no later collection visits them. From then on, after a full collection that was slow, the surviving
objects are frozen as well. Reference counts still free frozen objects. Only a cycle that becomes unreachable after the
freeze is never freed. Long-lived objects form no cycles, and a watch that restarts leaves none.

Python starts a collection when the count of objects has grown by a threshold. Plans replace plans, so the count does
not grow and no collection starts; new plans would pile up. So one is also started after every 256 plans.

A list read in one piece, or a scan of the kernel, needs tens of megabytes for a moment. glibc takes large blocks from
the system and returns them. But after the first one is freed, it takes the next ones, of up to 32 MiB, from its own
heap, and a small block behind them keeps them there forever (mallopt(3), M_MMAP_THRESHOLD). Each block from the system
costs system calls, and a page fault for each page. So the limit is above the 256 KiB that asyncio allocates for each
read of a socket; with glibc's 128 KiB these caused half of the page faults of a large initial sync. The free end of the
heap is not returned at once, either.
"""

import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

SLOW = 0.004
"""Seconds. After a full collection that took longer, the surviving objects are frozen."""
PLANS = 256
"""How many plans are made between two full collections."""
_YOUNG = (1_000, 5)
"""How many objects are created (less those freed) before the youngest generation is collected, and how many such
collections happen before the middle generation is."""
_NEVER = 1_000_000
_SELDOM = (100_000, _NEVER, _NEVER)
"""The same while an agent starts: it visits each object once at most, and some 20 MiB of garbage can pile up."""
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20
"""Bytes; glibc's default is 128 KiB."""
_M_TRIM_THRESHOLD = -1
_KEPT = 4 << 20
"""Bytes at the end of the heap that are kept although they are free; glibc's default is 128 KiB."""


@contextmanager
def seldom() -> Iterator[None]:
    """Hardly any collections inside a `with` block, which imports modules or starts an agent.

    What there is at its end is frozen: the next collection would visit all of it.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*usual)


class GcTuning:
    """The agent's settings of Python's garbage collector, in force inside a `with` block."""

    def __init__(self) -> None:
        self._has_loaded = False
        self._plans = 0
        self._started = 0.0

    def __enter__(self) -> Self:
        """Freeze the imported objects. Until `loaded`, new objects are collected, and seldom."""
        self._usual = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*_SELDOM)
        return self

    def __exit__(self, *_exc: object) -> None:
        gc.set_threshold(*self._usual)  # frozen objects stay frozen, so the end of the process need not visit them
        if self._has_loaded:
            gc.callbacks.remove(self._watch)

    def loaded(self) -> None:
        """Freeze what the initial sync has created, and begin with full collections."""
        gc.freeze()
        gc.set_threshold(*_YOUNG, 1)
        gc.callbacks.append(self._watch)
        self._has_loaded = True
        self._plans = 0

    def made(self, plans: int) -> None:
        """Count plans that were made."""
        self._plans += plans
        if self._has_loaded and self._plans >= PLANS:
            self._plans = 0
            gc.collect()

    def _watch(self, phase: str, collection: dict[str, int]) -> None:
        """Called by the collector at the beginning and the end of every collection."""
        if collection["generation"] < 2:
            return
        if phase == "start":
            self._started = time.perf_counter()
        elif time.perf_counter() - self._started > SLOW:
            gc.freeze()


def return_large_blocks() -> None:
    """Always return large blocks when they are freed, and keep smaller ones. Does nothing without glibc."""
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE)
    _call("mallopt", _M_TRIM_THRESHOLD, _KEPT)


def return_free_pages() -> None:
    """Return every page that holds nothing (malloc_trim(3)). Takes some milliseconds. Does nothing without glibc."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """Call a function of glibc's, if this is glibc."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
