"""Socket options by which the kernel answers a question that is longer than an option's number."""

import ctypes
import os
import socket

_LIBC = ctypes.CDLL(None, use_errno=True)


def ask(asked: socket.socket, level: int, option: int, question: bytes) -> bytes:
    """getsockopt(2), which reads the buffer too: the answer is as long as the question. Raises OSError.

    Python's own gives the kernel an empty buffer, of 1,024 bytes at most.
    """
    buffer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    if _LIBC.getsockopt(asked.fileno(), level, option, buffer, ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw
