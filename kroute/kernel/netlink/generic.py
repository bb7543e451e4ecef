"""Generic netlink: its message header, and the lookup of a family's number."""

import struct

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.client import only
from kroute.kernel.netlink.message import attributes, message, text, to_u16
from kroute.kernel.netlink.netlink_socket import NetlinkSocket

GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2

GENERIC_HEADER = struct.Struct("=BBH")
"""command, version, reserved."""


def generic_message(family: int, flags: int, command: int, payload: bytes = b"") -> bytes:
    return message(family, flags, GENERIC_HEADER.pack(command, 1, 0) + payload)


async def find_family(netlink: NetlinkSocket, name: str) -> int:
    """The number of the family, valid until its module is unloaded. Raises KernelError if the kernel has none."""
    request = generic_message(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, text(CTRL_ATTR_FAMILY_NAME, name))
    try:
        return only(await netlink.request(request, _parse_family))
    except KernelError as error:
        sentence = f"the kernel has no {name} (generic netlink); load the module that provides it"
        raise KernelError(sentence, errno=error.errno) from error


def _parse_family(payload: bytes) -> int:
    return to_u16(attributes(payload, GENERIC_HEADER.size)[CTRL_ATTR_FAMILY_ID])
