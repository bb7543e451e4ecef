"""Socket options by which the kernel answers a question that is longer than an option's number."""

import ctypes
import os
import socket

_LIBC = ctypes.CDLL(None, use_errno=True)


def ask(asked: socket.socket, level: int, option: int, question: bytes) -> bytes:
    """getsockopt(2), which reads the buffer too: the answer is as long as the question. Raises OSError.

    Python's own gives the kernel an empty buffer, of 1,024 bytes at most.
    """
    fill(asked, level, option, buffer := bytearray(question))
    return bytes(buffer)


def fill(asked: socket.socket, level: int, option: int, buffer: bytearray) -> None:
    """As `ask`; the question is in the buffer, and the answer is written over it."""
    length = ctypes.c_uint32(len(buffer))
    if _LIBC.getsockopt(asked.fileno(), level, option, _shared(buffer), ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def clear(buffer: bytearray) -> None:
    """Make all of the buffer zeros, without memory for as many zeros."""
    ctypes.memset(_shared(buffer), 0, len(buffer))


def _shared(buffer: bytearray) -> "ctypes.Array[ctypes.c_char]":
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)
