"""Which memory goes back to the system when it is freed, and which is kept to be used again.

A list in one piece, or a scan of the kernel, needs tens of megabytes for a moment. glibc takes large blocks from the
system and returns them, but learns from the first that is freed to take the next ones, of up to 32 MiB, from its own
heap, where a small block behind them keeps them for good (mallopt(3), M_MMAP_THRESHOLD).

What is taken from the system each time costs system calls, and a page fault for each page. So the limit is above the
256 KiB that asyncio asks for at each look at a socket (with glibc's 128 KiB they caused half of the page faults of a
large initial sync), and the end of the heap is not returned as soon as it is free.
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20
"""Bytes; glibc begins with 128 KiB."""

_M_TRIM_THRESHOLD = -1
_KEPT = 4 << 20
"""Bytes at the end of the heap that are kept though they are free; glibc begins with 128 KiB."""


def return_large_blocks() -> None:
    """Have large blocks always returned when they are freed, and smaller ones kept. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def return_free_pages() -> None:
    """Return every page that holds nothing (malloc_trim(3)); takes some milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
