"""Socket options by which the kernel answers a question that is longer than an option's number."""

import ctypes
import os
import socket
from array import array
from typing import TypeAlias

Writable: TypeAlias = "bytearray | array[int]"
"""A buffer into which the kernel writes its answer."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def ask(asked: socket.socket, level: int, option: int, question: bytes) -> bytes:
    """getsockopt(2), which reads the buffer too: the answer is as long as the question. Raises OSError.

    Python's own gives the kernel an empty buffer, of 1,024 bytes at most.
    """
    fill(asked, level, option, buffer := bytearray(question))
    return bytes(buffer)


def fill(asked: socket.socket, level: int, option: int, buffer: Writable) -> None:
    """As `ask`; the question is in the buffer, and the answer is written over it."""
    value, length = ctypes.c_char.from_buffer(buffer), ctypes.c_uint32(memoryview(buffer).nbytes)
    if _LIBC.getsockopt(asked.fileno(), level, option, ctypes.byref(value), ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def clear(buffer: Writable) -> None:
    """Make all of the buffer zeros, without memory for as many zeros."""
    ctypes.memset(ctypes.byref(ctypes.c_char.from_buffer(buffer)), 0, memoryview(buffer).nbytes)
