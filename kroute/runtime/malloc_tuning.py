"""Which memory is returned to the system when it is freed, and which is kept for reuse.

A list read in one piece, or a scan of the kernel, needs tens of megabytes for a moment. glibc takes large blocks from
the system and returns them. But after the first one is freed, it takes the next ones, of up to 32 MiB, from its own
heap, and a small block behind them keeps them there forever (mallopt(3), M_MMAP_THRESHOLD).

Each block from the system costs system calls, and a page fault for each page. So the limit is above the 256 KiB that
asyncio allocates for each read of a socket; with glibc's 128 KiB these caused half of the page faults of a large
initial sync. The free end of the heap is not returned at once, either.
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20
"""Bytes; glibc's default is 128 KiB."""

_M_TRIM_THRESHOLD = -1
_KEPT = 4 << 20
"""Bytes at the end of the heap that are kept although they are free; glibc's default is 128 KiB."""


def return_large_blocks() -> None:
    """Always return large blocks when they are freed, and keep smaller ones. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def return_free_pages() -> None:
    """Return every page that holds nothing (malloc_trim(3)). Takes some milliseconds. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
