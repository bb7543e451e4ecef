"""Give memory back that the C library would keep for later.

A list in one piece, or a reading of the kernel, needs tens of megabytes for a moment. glibc takes large blocks from the
system and returns them, but learns from the first that is freed to take the next ones, of up to 32 MiB, from its own
heap, where a small block behind them keeps them for good (mallopt(3), M_MMAP_THRESHOLD).
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE = 128 << 10
"""Bytes; what glibc begins with."""


def return_large_blocks() -> None:
    """Have large blocks always returned when they are freed. Other C libraries than glibc do so by themselves."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def return_free_pages() -> None:
    """Return every page that holds nothing (malloc_trim(3)); takes some milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
