"""Programs in classic BPF by which the kernel drops datagrams of a socket before a program is woken for them.

See Documentation/networking/filter.rst of Linux and include/uapi/linux/filter.h.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

LOAD_BYTE, LOAD_HALF, LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x30, 0x28, 0x20, 0x15, 0x06
LOAD_BYTE_AT_X, LOAD_HALF_AT_X, LOAD_WORD_AT_X = 0x50, 0x48, 0x40
"""Loads from X plus the operand. One beyond the datagram's end drops it."""
ADD, ADD_X, AND, SHIFT_LEFT = 0x04, 0x0C, 0x54, 0x64
COPY_TO_X, STORE, LOAD_STORED = 0x07, 0x02, 0x60
TYPE_AT, PORT_AT = 4, 12
"""Where a netlink message's header has its type, and the port of the socket that caused the event."""
SO_ATTACH_FILTER = 26
EVERYTHING = 0xFFFFFFFF
"""What a program returns to let the whole datagram pass."""
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = struct.Struct("@HP")
"""`struct sock_fprog`: how many instructions, and where they are."""


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
    to.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, _PROGRAM.pack(len(program), ctypes.addressof(memory)))
