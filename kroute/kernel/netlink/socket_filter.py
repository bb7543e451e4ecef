"""Programs in classic BPF by which the kernel drops datagrams of a socket before anybody is woken for them.

See Documentation/networking/filter.rst of Linux and include/uapi/linux/filter.h.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

LOAD_BYTE, LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x15, 0x06
SO_ATTACH_FILTER = 26
_INSTRUCTION = struct.Struct("=HBBI")


class Instruction(NamedTuple):
    """`struct sock_filter`: what to do, how many instructions to skip if it is true and if not, and its operand."""

    code: int
    if_true: int
    if_false: int
    operand: int


def attach(to: socket.socket, program: Sequence[Instruction]) -> None:
    """Have a socket receive only what the program returns another number than 0 for. No program: everything."""
    if not program:
        return
    instructions = b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)
    memory = ctypes.create_string_buffer(instructions, len(instructions))
    to.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(memory)))
